#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Install one version of SGLang beside the others, or remove older ones
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
  date:
    description:
      - Newest day of the packages, for example V(2026-05-10), or V(latest) for no limit.
      - By default three days after this version of SGLang was put on the index, so that it gets the packages of its
        time. An index that tells no upload times gives the newest ones, with a warning.
    type: str
    default: ""
  lock:
    description:
      - Text of the file C(lock.txt) of another release. Exactly its files are installed, checked by their digests.
      - Nothing else is resolved, so O(date), O(source) and O(compiler) do not count.
    type: str
    default: ""
  source:
    description:
      - Where SGLang itself comes from instead of the index. A wheel on the host, for example
        V(/srv/sglang-0.5.23-cp311-cp311-linux_x86_64.whl), or a commit of a repository with all of its 40 digits, for
        example V(git+file:///srv/sglang@0123456789012345678901234567890123456789#subdirectory=python).
    type: str
    default: ""
  wheelhouse:
    description:
      - Folder or tar archive on the host with all wheels, C(uv) among them. No index is asked.
    type: path
  cache:
    description:
      - Directory of what is downloaded; C(cache) below O(root) by default. Containers of a node may share one.
      - The variable E(UV_CACHE_DIR) in O(environment) counts more.
    type: path
  estimate:
    description:
      - Whether check mode asks the index how large the release would be. It then takes some seconds.
    type: bool
    default: false
  state:
    description:
      - V(present) has the release that the other options describe.
      - V(pruned) removes older releases, never this one, one that a kept launch was started from, or one that runs.
    type: str
    choices: [present, pruned]
    default: present
  keep:
    description: How many releases stay with O(state=pruned), those that are needed apart; 0 keeps all.
    type: int
    default: 0
  state_dir:
    description: Directory with the records of the launches, as M(gpuops.sglang.sglang_service) writes them.
    type: path
    default: /var/lib/sglang
  environment:
    description:
      - Variables of every command that downloads, for example a proxy, C(UV_INDEX_URL) or C(UV_FIND_LINKS).
    type: dict
    default: {}
  packages:
    description: Packages of the distribution of which to tell whether they are installed; a virtual one never is.
    type: list
    elements: str
    default: []
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

- name: Remove all but the three newest, and those that are needed
  gpuops.sglang.sglang_release:
    version: 0.5.23
    uv_version: 0.13.9
    state: pruned
    keep: 3

- name: Install what another host has, from files that were copied here
  gpuops.sglang.sglang_release:
    version: 0.5.23
    uv_version: 0.13.9
    lock: "{{ lookup('ansible.builtin.file', 'lock.txt') }}"
    wheelhouse: /srv/sglang-0.5.23.tar
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
lacking_packages:
  description: Which of O(packages) are not installed; none where the distribution is not Debian's kind.
  type: list
  elements: str
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
lock:
  description: Digest of C(lock.txt) in the release, the exact files that it was made from; empty where there is none.
  type: str
  returned: success
  sample: 41748ddf54e9434eed862c35819b2a862d639833792031861552baf3d87e96e3
date:
  description: Newest day of the packages of the release; empty where there was no limit, or while it is not installed.
  type: str
  returned: success
  sample: "2026-11-02"
surplus:
  description: Older releases that O(keep) leaves no place for; with O(state=pruned) those that were removed.
  type: list
  elements: str
  returned: success
  sample: [0.5.20-1f3a9c2e]
estimate:
  description: What would be installed; C(null) unless O(estimate) is set in check mode and the release is missing.
  type: dict
  returned: success
  contains:
    packages:
      description: Number of packages.
      type: int
      sample: 179
    bytes:
      description: Size of their files, which are downloaded unless the cache has them; C(null) where it is not told.
      type: int
      sample: 3701580000
    seconds:
      description: Time at the rate of the last installation on this host; C(null) where there was none.
      type: float
      sample: 61.5
"""

import inspect
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import (
    cuda_record,
    release,
    release_prune,
    release_record,
    release_source,
    schema_probe,
)
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
            "packages": {"type": "list", "elements": "str", "default": []},
            "date": {"type": "str", "default": ""},
            "lock": {"type": "str", "default": ""},
            "source": {"type": "str", "default": ""},
            "wheelhouse": {"type": "path"},
            "cache": {"type": "path"},
            "estimate": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "pruned"], "default": "present"},
            "keep": {"type": "int", "default": 0},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    asked = module.params
    environment = {name: str(value) for name, value in asked["environment"].items()}
    # a proxy or an index may carry a login in its address
    addresses = {"source": asked["source"], "lock": asked["lock"], "overrides": " ".join(asked["overrides"])}
    module.no_log_values.update(passwords({**environment, **addresses}))
    try:
        require_root()
        spec = release.ReleaseSpec(
            version=asked["version"],
            overrides=tuple(asked["overrides"]),
            python=asked["python"],
            python_version=release.python_version(asked["python"]),
            root=Path(asked["root"]),
            compiler=asked["compiler"],
            date=asked["date"],
            lock=asked["lock"],
            **release_source.asked(asked["source"]),
        )
        others = (spec.root, spec.path, Path(asked["state_dir"]), asked["keep"])
        surplus = release_prune.surplus(*others)
        if asked["state"] == "pruned":
            gone = surplus
            if not module.check_mode:
                try:
                    gone = release_prune.remove(*others)
                except Refused as refused:  # whoever installs now prunes as well
                    module.warn(f"no release was removed: {refused}")
                    gone = []
            module.exit_json(changed=bool(gone), path=str(spec.path), surplus=gone)
        means = release.Means(
            uv_version=asked["uv_version"],
            environment=environment,
            schema_probe=inspect.getsource(schema_probe),
            cache=Path(asked["cache"]) if asked["cache"] else None,
            wheelhouse=Path(asked["wheelhouse"]) if asked["wheelhouse"] else None,
        )
        found = release_record.read(spec.path)
        missing = found is None
        if missing and not module.check_mode:
            found = release.install(spec, means)
            for note in found["notes"]:
                module.warn(note)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    estimate = None
    if missing and module.check_mode and asked["estimate"]:
        try:
            estimate = release.estimate(spec, means)
        except Refused as refused:
            # a host that has none yet may lack what the installer needs
            module.warn(f"how large the release would be is not known: {refused}")
    result = {"changed": missing, "missing": missing, "path": str(spec.path), "estimate": estimate}
    result["surplus"] = surplus
    result["lacking_packages"] = release.lacking_packages(asked["packages"])
    packages: list[str] = found["packages"] if found else []
    result["packages"] = packages
    result["cuda"] = torch_cuda(packages) or ""
    result["cuda_toolkit"] = cuda_record.read(spec.path).get("source", "")
    for name in ("lock", "date"):
        result[name] = (found or {}).get(name, "")  # a record of an earlier version of this collection has neither
    if missing:
        result["diff"] = {"before": "", "after": f"{_told(spec, estimate)}\n", "after_header": str(spec.path)}
    module.exit_json(**result)


def _told(spec: release.ReleaseSpec, estimate: dict[str, Any] | None) -> str:
    """Return what would be installed, in words."""
    told = f"SGLang {spec.version}"
    if estimate:
        size, seconds = estimate["bytes"], estimate["seconds"]
        told += f"\n{estimate['packages']} packages, {f'{size / 1e9:.2f} GB' if size else 'of unknown size'} of files"
        told += f"\nabout {seconds:.0f} s" if seconds else "\nfor an unknown time: none was installed here before"
    return told


if __name__ == "__main__":
    main()
