#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runfile
short_description: Install NVIDIA's driver from NVIDIA's installer
description:
  - Runs an installer C(NVIDIA-Linux-ARCHITECTURE-VERSION.run) that is on the host, without questions. Its options
    differ between versions, so it is asked for them.
  - Does nothing where the version is installed.
  - An installer that is damaged, for another processor, or of another version than asked for is refused, and so is one
    beside the distribution's packages of the driver.
author: gpuops contributors (@gpuops)
options:
  path:
    description: The installer on the host; C({version}) in it stands for the version.
    type: str
    required: true
  version:
    description: The version that is wanted.
    type: str
    required: true
  parts:
    description:
      - V(libraries) for what a container needs, without any part of the kernel's; V(driver) for all, with kernel
        modules that DKMS builds for each kernel.
    type: str
    choices: [libraries, driver]
    required: true
  flavour:
    description: Which kernel modules are built.
    type: str
    choices: [open, proprietary]
    default: open
attributes:
  check_mode:
    description: Looks at the installer and says whether it would be run.
    support: full
  diff_mode:
    description: Shows the versions.
    support: full
"""

EXAMPLES = r"""
- name: Have the libraries of the node's driver in a container
  gpuops.sglang.nvidia_runfile:
    path: /srv/nvidia/NVIDIA-Linux-x86_64-{version}.run
    version: 590.48.01
    parts: libraries
"""

RETURN = r"""
path:
  description: The installer, with the version in place.
  type: str
  returned: success
  sample: /srv/nvidia/NVIDIA-Linux-x86_64-590.48.01.run
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_driver, nvidia_driver, nvidia_runfile
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root


def main() -> None:
    """Compare, install unless in check mode, report."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "parts": {"type": "str", "choices": ["libraries", "driver"], "required": True},
            "flavour": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    path = asked["path"].replace("{version}", asked["version"])
    try:
        require_root()
        before = nvidia_driver.installed(gpu_driver.driver(), asked["parts"])
        changed = before != asked["version"]
        if changed:
            runfile = nvidia_runfile.read(Path(path), asked["version"])
            if not module.check_mode:
                nvidia_runfile.install(runfile, asked["parts"], asked["flavour"])
    except Refused as refused:
        module.fail_json(msg=str(refused))
    result = {"changed": changed, "path": path}
    if changed:
        words = {"before": before or "none", "after": asked["version"]}
        result["diff"] = {key: f"{asked['parts']} {word}\n" for key, word in words.items()}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
