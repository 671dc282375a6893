#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_wheelhouse
short_description: Collect all files of a version of SGLang for hosts without a package index
description:
  - Makes a folder with the wheels of SGLang, of all that it requires, and of C(uv) and supervisord, each checked by its
    digest, and with the list C(lock.txt) of SGLang's. It may be for another version of Python and another platform than
    this machine's.
  - Files that are there already are kept, so an interrupted run is gone on with. Wheels that are not of this set are
    refused, since an installation could take one of them; nothing is removed.
  - An index that wants a login for its files is not supported.
author: gpuops contributors (@gpuops)
options:
  path:
    description: Folder of the files.
    type: path
    required: true
  version:
    description: Exact version of SGLang.
    type: str
    required: true
  overrides:
    description: Requirements that replace those of any package, as in M(gpuops.sglang.sglang_release).
    type: list
    elements: str
    default: []
  date:
    description: Newest day of the packages, as in M(gpuops.sglang.sglang_release).
    type: str
    default: ""
  python:
    description: Interpreter of this machine that runs the installer.
    type: path
    default: /usr/bin/python3
  python_version:
    description: Version of Python that the files are for, for example V(3.12); by default that of O(python).
    type: str
    default: ""
  platform:
    description:
      - Platform that the files are for, as C(uv) names it, for example V(x86_64-manylinux_2_36); this one by default.
    type: str
    default: ""
  uv_version:
    description: Exact version of C(uv).
    type: str
    required: true
  environment:
    description: Variables of every command that downloads, for example a proxy or C(UV_INDEX_URL).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Not supported, as the files are known only after the index was asked.
    support: none
  diff_mode:
    description: Not supported.
    support: none
"""

EXAMPLES = r"""
- name: Collect what a host with Debian 13 needs
  gpuops.sglang.sglang_wheelhouse:
    path: /srv/wheelhouse-0.5.23
    version: 0.5.23
    uv_version: 0.13.9
    python_version: "3.13"
    platform: x86_64-manylinux_2_40
"""

RETURN = r"""
packages:
  description: The exact packages.
  type: list
  elements: str
  returned: success
  sample: [sglang==0.5.23, torch==2.14.1]
downloaded:
  description: Names of the files that came now.
  type: list
  elements: str
  returned: success
  sample: [sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl]
lock:
  description: Digest of the list.
  type: str
  returned: success
  sample: 41748ddf54e9434eed862c35819b2a862d639833792031861552baf3d87e96e3
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import release_lock, release_wheelhouse
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import passwords


def main() -> None:
    """Collect and report."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "overrides": {"type": "list", "elements": "str", "default": []},
            "date": {"type": "str", "default": ""},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "python_version": {"type": "str", "default": ""},
            "platform": {"type": "str", "default": ""},
            "uv_version": {"type": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
        },
    )
    asked = module.params
    environment = {name: str(value) for name, value in asked["environment"].items()}
    target = release_wheelhouse.Target(
        asked["version"],
        tuple(asked["overrides"]),
        asked["date"],
        asked["python"],
        asked["python_version"],
        asked["platform"],
    )
    module.no_log_values.update(passwords(environment))
    try:
        lock, came = release_wheelhouse.make(target, Path(asked["path"]), asked["uv_version"], environment)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    for note in lock.notes:
        module.warn(note)
    packages = [f"{package.name}=={package.version}" for package in lock.packages]
    module.exit_json(changed=bool(came), packages=packages, downloaded=came, lock=release_lock.digest(lock.text))


if __name__ == "__main__":
    main()
