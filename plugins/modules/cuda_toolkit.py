#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit
short_description: Give a release the CUDA toolkit that its compilers need
description:
  - SGLang, FlashInfer and others compile kernels when a server starts, and need a compiler, headers and libraries of
    the very CUDA that the release's torch is made for.
  - The toolkit is looked for where O(source) puts it, is proved by compiling and linking a small program, and is
    recorded with the release. The servers of the release then have it as C(CUDA_HOME) and in C(PATH).
  - What the distribution's package manager has to install first is in RV(packages), and nothing else is done then.
author: gpuops contributors (@gpuops)
options:
  release:
    description: Directory of the release, as RV(gpuops.sglang.sglang_release#module:path) tells it.
    type: path
    required: true
  source:
    description:
      - V(wheels) for the parts from the package index that are in the release itself, V(packages) for those of NVIDIA's
        apt repository in C(/usr/local/cuda-VERSION).
    type: str
    choices: [wheels, packages]
    required: true
attributes:
  check_mode:
    description: Says whether something would be done.
    support: full
  diff_mode:
    description: Shows the record.
    support: full
"""

EXAMPLES = r"""
- name: Use the compiler that is in the release
  gpuops.sglang.cuda_toolkit:
    release: /opt/sglang/releases/0.5.23-1f3a9c2e
    source: wheels
"""

RETURN = r"""
home:
  description: The toolkit, C(CUDA_HOME) of the servers.
  type: str
  returned: success
  sample: /usr/local/cuda-13.0
version:
  description: Version of CUDA that the release's torch is made for.
  type: str
  returned: success
  sample: "13.0"
packages:
  description: Packages of the distribution that must be installed before the toolkit can be used.
  type: list
  elements: str
  returned: success
  sample: [g++, python3.11-dev, cuda-nvcc-13-0]
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_record, cuda_toolkit
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root


def main() -> None:
    """Compare, provide unless in check mode or something is missing, report."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "path", "required": True},
            "source": {"type": "str", "choices": ["wheels", "packages"], "required": True},
        },
        supports_check_mode=True,
    )
    asked = module.params
    release = Path(asked["release"])
    try:
        require_root()
        toolkit = cuda_toolkit.wanted(release, asked["source"])
        before = cuda_record.read(release)
        after = toolkit.record
        changed, packages = before != after, []
        if changed:
            packages = cuda_toolkit.missing(toolkit)
            if not packages and not module.check_mode:
                cuda_toolkit.provide(toolkit)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    result = {"changed": changed, "home": str(toolkit.home), "version": toolkit.cuda, "packages": packages}
    if changed:
        texts = {"before": before, "after": after}
        result["diff"] = {key: f"{json.dumps(text, indent=1, sort_keys=True)}\n" for key, text in texts.items()}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
