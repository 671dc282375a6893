#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_rollback
short_description: Start the last good launch of SGLang instances again
description:
  - Starts what an earlier launch was, with its release, arguments, environment and secrets, as a new launch with an id
    of its own. A launch is good when M(gpuops.sglang.sglang_health) has proved that it serves.
  - Whether the new launch serves is for M(gpuops.sglang.sglang_health) to prove.
author: gpuops contributors (@gpuops)
options:
  instances:
    description: Names of the instances.
    type: list
    elements: str
    required: true
  launch:
    description: The launch to return to, of a single instance; the newest good one before the present when left out.
    type: str
  unproved_only:
    description:
      - Leave an instance alone whose present launch has been proved to serve, and one that has no earlier good launch.
    type: bool
    default: false
  state_dir:
    description: Directory for what the instances write.
    type: path
    default: /var/lib/sglang
attributes:
  check_mode:
    description: Says what would be started.
    support: full
  diff_mode:
    description: Nothing is shown but the launches.
    support: none
seealso:
  - module: gpuops.sglang.sglang_health
"""

EXAMPLES = r"""
- name: Return to the launch before
  gpuops.sglang.sglang_rollback:
    instances: [qwen36]

- name: Return to a certain launch
  gpuops.sglang.sglang_rollback:
    instances: [qwen36]
    launch: 20261129T195609Z-9e696e
"""

RETURN = r"""
instances:
  description: What was done for each instance.
  type: list
  elements: dict
  returned: always
  contains:
    name:
      description: Name of the instance.
      type: str
    before:
      description: The launch that the unit carried.
      type: str
    again:
      description: The earlier launch that was started again; V(null) for an instance that was left alone.
      type: str
    launch:
      description: Id of the new launch; V(null) in check mode and for an instance that was left alone.
      type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, only_one, require_root, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd


def main() -> None:
    """Start each again that has a way back, report all."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "launch": {"type": "str"},
            "unproved_only": {"type": "bool", "default": False},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    state = Path(asked["state_dir"])
    results, wrong = [], []
    try:
        require_root()
        if asked["launch"] and len(asked["instances"]) != 1:
            raise Refused("'launch' is of one instance: name that one alone under 'instances'")
        with writing_below(launches.LOCK.parent), only_one(launches.LOCK, launches.LOCK_FOR, launches.LOCK_WAIT):
            for name in asked["instances"]:
                before = systemd.launch_of(systemd.read_unit(name))
                result = {"name": name, "before": before, "again": None, "launch": None}
                results.append(result)
                try:
                    result["again"] = _again(state, name, before, asked)
                    if result["again"] and not module.check_mode:
                        result["launch"] = launches.start_again(state, name, result["again"])
                except Refused as refused:  # the others are not to wait for it
                    wrong.append(str(refused))
    except Refused as refused:
        module.fail_json(msg=str(refused), instances=results)
    if wrong:
        module.fail_json(msg="; ".join(wrong), instances=results)
    module.exit_json(changed=any(result["again"] for result in results), instances=results)


def _again(state: Path, name: str, before: str | None, asked: dict) -> str | None:
    """Return the launch to start again; None: leave the instance alone."""
    if asked["unproved_only"] and (before is None or launches.is_good(state, name, before)):
        return None
    if asked["launch"]:
        problem = launches.again_problem(state, name, asked["launch"])
        if problem:
            raise Refused(problem)
        return str(asked["launch"])
    again = launches.last_good(state, name, before)
    if again is None and not asked["unproved_only"]:
        raise Refused(f"instance '{name}' has no earlier launch that was proved to serve: deploy it")
    return again


if __name__ == "__main__":
    main()
