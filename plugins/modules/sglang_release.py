#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Install one version of SGLang beside the others
description:
  - A release is a directory with a virtual environment, the exact list of its packages and the options of its SGLang
    as its own parser knows them.
  - A release is made once and never changed. Other inputs make another release, so a running server keeps its own.
  - An interrupted installation leaves no release; the next run makes it.
author: gpuops contributors (@gpuops)
options:
  version:
    description: Exact version of SGLang, for example V(0.5.23).
    type: str
    required: true
  overrides:
    description:
      - Requirements that replace those of any package, as C(uv) reads them from an overrides file.
    type: list
    elements: str
    default: []
  root:
    description: Directory that holds the releases and the installer.
    type: path
    default: /opt/sglang
  python:
    description: Interpreter of the host that the release is built on.
    type: path
    default: /usr/bin/python3
  uv_version:
    description: Exact version of C(uv), which installs the packages.
    type: str
    required: true
  compiler:
    description:
      - Whether the release gets CUDA's compiler from the package index, of the version that its torch is made for.
    type: bool
    default: false
  environment:
    description:
      - Variables of every command that downloads, for example a proxy, C(UV_INDEX_URL) or C(UV_FIND_LINKS).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Says whether the release would be installed.
    support: full
  diff_mode:
    description: Shows the release that would be added.
    support: full
"""

EXAMPLES = r"""
- name: Install SGLang
  gpuops.sglang.sglang_release:
    version: 0.5.23
    uv_version: 0.13.9

- name: Install SGLang behind a proxy, with a package left out
  gpuops.sglang.sglang_release:
    version: 0.5.23
    uv_version: 0.13.9
    overrides:
      - py-spy ; python_version < '3'
    environment:
      https_proxy: http://proxy.example.com:3128
"""

RETURN = r"""
path:
  description: Directory of the release.
  type: str
  returned: success
  sample: /opt/sglang/releases/0.5.23-1f3a9c2e
missing:
  description: Whether the release was not there before.
  type: bool
  returned: success
packages:
  description: The exact packages of the release; empty while it is not installed.
  type: list
  elements: str
  returned: success
  sample: [sglang==0.5.23, torch==2.13.0+cpu]
cuda:
  description: Version of CUDA that the release's torch is made for; empty for none, or while it is not installed.
  type: str
  returned: success
  sample: "13.0"
cuda_toolkit:
  description: Where the release's compilers have their toolkit from, V(wheels) or V(packages); empty for nowhere.
  type: str
  returned: success
  sample: wheels
"""

import inspect
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_record, release, schema_probe
from ansible_collections.gpuops.sglang.plugins.module_utils.cuda_versions import torch_cuda
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import passwords


def main() -> None:
    """Compare, install unless in check mode, report."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "overrides": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "uv_version": {"type": "str", "required": True},
            "compiler": {"type": "bool", "default": False},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    asked = module.params
    environment = {name: str(value) for name, value in asked["environment"].items()}
    module.no_log_values.update(passwords(environment))
    try:
        require_root()
        spec = release.ReleaseSpec(
            version=asked["version"],
            overrides=tuple(asked["overrides"]),
            python=asked["python"],
            python_version=release.python_version(asked["python"]),
            root=Path(asked["root"]),
            compiler=asked["compiler"],
        )
        found = release.read(spec.path)
        missing = found is None
        if missing and not module.check_mode:
            found = release.install(spec, asked["uv_version"], environment, inspect.getsource(schema_probe))
    except Refused as refused:
        module.fail_json(msg=str(refused))
    result = {"changed": missing, "missing": missing, "path": str(spec.path)}
    result["packages"] = found["packages"] if found else []
    result["cuda"] = torch_cuda(result["packages"]) or ""
    result["cuda_toolkit"] = cuda_record.read(spec.path).get("source", "")
    if missing:
        result["diff"] = {"before": "", "after": f"SGLang {spec.version}\n", "after_header": str(spec.path)}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
