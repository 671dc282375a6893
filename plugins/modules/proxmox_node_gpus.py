#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_node_gpus
short_description: Have NVIDIA's device files on a Proxmox node before its containers start
description:
  - A container does not start without a device that it is to have, and NVIDIA's driver makes some of them, like
    C(/dev/nvidia-uvm), at their first use only.
  - Writes C(/etc/modules-load.d/gpuops-nvidia.conf) and the unit C(gpuops-gpu-devices.service), which makes the device
    files at each boot before C(pve-guests.service), and starts it. It is started again where a device has gone.
  - Does nothing on a node without NVIDIA's driver.
author: gpuops contributors (@gpuops)
options:
  modeset:
    description: Whether C(/dev/nvidia-modeset), which graphics need, is made too.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows the files.
    support: full
seealso:
  - module: gpuops.sglang.proxmox_container
"""

EXAMPLES = r"""
- name: Have the device files before the containers start
  gpuops.sglang.proxmox_node_gpus:
    modeset: false
  delegate_to: pve-kpro5
"""

RETURN = r"""
changes:
  description: What was done, or would be.
  type: list
  elements: str
  returned: success
  sample: ["gpuops-gpu-devices.service started: /dev/nvidia-uvm has gone"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import node_gpus
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root


def main() -> None:
    """Compare, do unless in check mode, report."""
    module = AnsibleModule(argument_spec={"modeset": {"type": "bool", "default": False}}, supports_check_mode=True)
    try:
        require_root()
        todo = node_gpus.compare(module.params["modeset"])
        diff = [
            {"before": node_gpus.now(path), "after": text, "before_header": f"/{path}", "after_header": f"/{path}"}
            for path, text in todo.files.items()
        ]
        if not module.check_mode:
            node_gpus.do(todo)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    module.exit_json(changed=bool(todo.changes), changes=todo.changes, diff=diff)


if __name__ == "__main__":
    main()
