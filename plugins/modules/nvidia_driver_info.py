#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver_info
short_description: Tell what it takes to have NVIDIA's driver in the wanted version
description:
  - Tells of a container whether the driver's libraries are of exactly the version of its node's kernel module, and of
    a machine or a Proxmox VE node whether the version that is asked for is installed and loaded.
  - Changes nothing. What is to be done is in RV(todo); what can not be done fails with one line that says what to
    change.
  - The role nvidia_driver acts on it.
author: gpuops contributors (@gpuops)
options:
  version:
    description: Version that a machine or node is to have, for example V(590.48.01). A container follows its node.
    type: str
    default: ""
  source:
    description:
      - Where the driver would be installed from, V(packages) of the distribution's package manager or V(run), NVIDIA's
        installer. When left out, what is wrong is told only.
    type: str
    choices: ["", packages, run]
    default: ""
  flavour:
    description: Which kernel modules a machine or node is to have. GPUs from Blackwell on need V(open).
    type: str
    choices: [open, proprietary]
    default: open
  cuda:
    description: Version of CUDA that the release's torch is made for; a driver that is too old for it is an error.
    type: str
    default: ""
  stop_servers:
    description: Whether the servers on this host and in its containers may be stopped for the driver.
    type: bool
    default: false
  resolve:
    description:
      - Look up in apt's index what is to be installed, for RV(packages). The index must be up to date.
    type: bool
    default: false
attributes:
  check_mode:
    description: Does the same, since it changes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
seealso:
  - module: gpuops.sglang.gpu_info
  - module: gpuops.sglang.nvidia_runfile
"""

EXAMPLES = r"""
- name: See whether the driver is right for a release that needs CUDA 13.0
  gpuops.sglang.nvidia_driver_info:
    cuda: "13.0"
"""

RETURN = r"""
todo:
  description: What is to be installed, V(libraries) in a container, V(driver) on a machine or node; empty for nothing.
  type: str
  returned: success
  sample: libraries
version:
  description: The version that is wanted; empty where nothing asks for one.
  type: str
  returned: success
  sample: 590.48.01
loaded:
  description: Version of the kernel module that is loaded; empty where none is.
  type: str
  returned: success
  sample: 590.48.01
installed:
  description:
    - Version that is installed, of the libraries in a container, of libraries and kernel module on a machine or node;
      empty where a part is missing or of another version.
  type: str
  returned: success
  sample: 590.48.01
mismatch:
  description: How libraries and kernel module differ, in one line; empty where they do not.
  type: str
  returned: success
  sample: >-
    libcuda.so.1 is 550.54.14 (/usr/lib/x86_64-linux-gnu/libcuda.so.1), but the kernel module is 590.48.01
reboot:
  description: Why a restart of this host is pending; empty where none is.
  type: str
  returned: success
  sample: ""
nouveau:
  description: Whether the kernel has the module nouveau loaded, which keeps NVIDIA's from the GPUs.
  type: bool
  returned: success
told:
  description: What is wrong and not asked to be put right, with the next step.
  type: list
  elements: str
  returned: success
  sample: []
place:
  description: What the host is, V(machine), V(node) or V(container).
  type: str
  returned: success
  sample: container
servers:
  description: The argument lists that stop the servers which use the GPUs; only where RV(todo) is V(driver).
  type: list
  elements: list
  returned: success
  sample: [[pct, exec, "129", --, systemctl, stop, sglang-qwen36.service]]
packages:
  description: What apt is to install, with exact versions; only with O(resolve).
  type: list
  elements: str
  returned: success
  sample: [libcuda1=590.48.01-1, libnvidia-ml1=590.48.01-1, nvidia-driver-cuda=590.48.01-1]
pins:
  description: Preferences of apt that hold the driver at RV(version).
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import nvidia_driver
from ansible_collections.gpuops.sglang.plugins.module_utils import nvidia_packages as packages
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root


def main() -> None:
    """Look, judge, report."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "default": ""},
            "source": {"type": "str", "choices": ["", "packages", "run"], "default": ""},
            "flavour": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
            "cuda": {"type": "str", "default": ""},
            "stop_servers": {"type": "bool", "default": False},
            "resolve": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        require_root()
        facts = nvidia_driver.gather()
        wanted = nvidia_driver.Asked(asked["version"], asked["source"], asked["cuda"])
        verdict = nvidia_driver.judge(facts, wanted)
        users = nvidia_driver.users() if verdict.todo == "driver" else []
        nvidia_driver.refuse_users(users, asked["stop_servers"])
        names = packages.to_install(verdict, asked, facts) if asked["resolve"] and verdict.todo else []
    except Refused as refused:
        module.fail_json(msg=str(refused))
    for line in [*verdict.told, *([verdict.reboot] if verdict.reboot else [])]:
        module.warn(line)
    module.exit_json(
        changed=False,
        todo=verdict.todo,
        version=verdict.version,
        loaded=facts.driver["version"] or "",
        installed=nvidia_driver.installed(facts.driver, "libraries" if facts.place.contained else "driver") or "",
        mismatch=verdict.mismatch,
        reboot=verdict.reboot,
        nouveau=facts.driver["nouveau_loaded"],
        told=verdict.told,
        place=facts.place.kind,
        servers=[user.stop for user in users],
        packages=names,
        pins=packages.pins(verdict.version, facts.place.contained) if verdict.version else "",
    )


if __name__ == "__main__":
    main()
