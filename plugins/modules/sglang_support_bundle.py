#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_support_bundle
short_description: Put what another one needs to understand SGLang instances into one archive without secrets
description:
  - For each instance its unit, what systemd says of it, its environment, its kept launches with their verdicts, and the
    logs of the present launch and of the last one that failed. Of the host its versions, memory, limits and GPUs. Of
    the releases and models what is installed, and what was changed in a release by hand.
  - The secrets of the instances, in whatever form they stand in a text, and what looks like a secret are replaced by
    C(********). The files of the secrets are left out. What requests have left in the logs is as it was, so look
    through the archive before you give it away.
  - Nothing that runs is touched. The archive is of at most 50 MiB, and only root may read it.
author: gpuops contributors (@gpuops)
options:
  instances:
    description: Names of the instances; all of this host when left out.
    type: list
    elements: str
    default: []
  state_dir:
    description: Directory for what the instances write.
    type: path
    default: /var/lib/sglang
  path:
    description: Directory for the archive, which must be there; a fresh one that only root can enter when left out.
    type: path
attributes:
  check_mode:
    description: Says what would be in the archive, and writes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Make an archive for a report
  gpuops.sglang.sglang_support_bundle:
    instances: [qwen36]
  register: bundle
"""

RETURN = r"""
path:
  description: The archive on this host; V(null) in check mode.
  type: str
  returned: success
  sample: /tmp/sglang-support-x3k2v9/ct129-20261129T195609Z.tar.gz
files:
  description: What is in the archive.
  type: list
  elements: str
  returned: success
  sample: [README.txt, host/versions.txt, instances/qwen36/service.txt]
size:
  description: Size of the archive in bytes; V(null) in check mode.
  type: int
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import support_bundle
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose, supervisor


def main() -> None:
    """Collect, write unless in check mode, report."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "default": []},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    state = Path(asked["state_dir"])
    result = {"changed": True, "path": None, "size": None}
    try:
        require_root()
        choose(state)
        known = support_bundle.instances(state)
        strange = sorted(set(asked["instances"]) - set(known))
        if strange:
            here = f"name one of {', '.join(known)}" if known else "this host has none"
            raise Refused(f"there is no instance '{strange[0]}' on this host: {here}")
        files = support_bundle.collect(state, sorted(asked["instances"]) or known, _log)
        if not module.check_mode:
            path = support_bundle.write(Path(asked["path"]) if asked["path"] else None, files)
            result.update(path=str(path), size=path.stat().st_size)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    module.exit_json(**result, files=list(files))


def _log(launch: str) -> list[str]:
    return [line.text for line in supervisor().log_of(launch, support_bundle.LOG_LINES)]


if __name__ == "__main__":
    main()
