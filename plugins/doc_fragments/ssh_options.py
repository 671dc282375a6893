# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of Ansible's own ssh connection plugin, as they are in the installed ansible-core."""

from __future__ import annotations

import json
from typing import Any

import yaml
from ansible.plugins.connection import ssh
from ansible.plugins.doc_fragments import connection_pipelining

# each task reads this anew, and it is felt: the parser in C takes a sixth of the time, and JSON is YAML too
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# files travel through the commands of the plugin that uses this fragment
FILE_TRANSFER = ("sftp_", "scp_", "ssh_transfer_method")


def _without_versions(node: Any) -> Any:
    """`version_added` of ansible-core means nothing in a collection, and sanity tests refuse it."""
    if isinstance(node, dict):
        return {key: _without_versions(value) for key, value in node.items() if key != "version_added"}
    return [_without_versions(item) for item in node] if isinstance(node, list) else node


def _options() -> str:
    pipelining = yaml.load(connection_pipelining.ModuleDocFragment.DOCUMENTATION, LOADER)["options"]["pipelining"]
    options = yaml.load(ssh.DOCUMENTATION, LOADER)["options"]
    options["pipelining"] = {**pipelining, **options["pipelining"]}
    return json.dumps(
        {"options": _without_versions({k: v for k, v in options.items() if not k.startswith(FILE_TRANSFER)})}
    )


class ModuleDocFragment:
    # sanity's yamllint reads plain assignments as text, and fails on this call without the annotation
    DOCUMENTATION: str = _options()
