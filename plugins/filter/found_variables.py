# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: found_variables
short_description: Write found SGLang servers as variables of this collection
description:
  - Turns what M(gpuops.sglang.sglang_found) returned for a host into the text of a file of variables, with
    C(sglang_server_instances), and C(sglang_install_version) where all servers run the same published version.
  - Secrets are references to variables of a vault. What a server was told is text in it and never a template.
options:
  _input:
    description: Name of the host.
    type: str
    required: true
  servers:
    description: The found servers.
    type: list
    elements: dict
    required: true
positional: servers
seealso:
  - plugin: gpuops.sglang.found_page
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Write what runs as variables
  ansible.builtin.copy:
    content: "{{ inventory_hostname | gpuops.sglang.found_variables(found.servers) }}"
    dest: "{{ inventory_dir }}/host_vars/{{ inventory_hostname }}/sglang_adopted.yml"
    mode: "0600"
    force: false
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: The text; empty where there is nothing to write.
  type: str
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils.found_page import Server, one_line, where

PLAIN = re.compile(r"[\w./:,=+@ -]*")  # what can be no template, whatever begins one
REFERENCE = re.compile(r"\{\{ vault_[a-z0-9_]+ \}\}")  # a host may tell anything


class _Template(str):
    """A text that Ansible is to take for a template."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: Any, value: str) -> Any:
    tag = "tag:yaml.org,2002:str" if PLAIN.fullmatch(value) else "!unsafe"
    return dumper.represent_scalar(tag, value, style="'" if tag == "!unsafe" else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Template, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", str(value)))


def found_variables(host: str, servers: Sequence[Server]) -> str:
    """Return the text of a file of variables for a host; '' where there is none to write."""
    written = [server for server in servers if server["instance"]]
    if not written:
        return ""
    versions = sorted({str(server["install_version"]) for server in written})
    lines = [f"Servers that were found on {host}, as instances of gpuops.sglang."]
    for server in servers:
        lines.append(f"{where(server)}, {server['started_by']}")
        lines += [f"  not carried over: {sentence}" for sentence in server["not_carried"]]
        lines += [f"  put into a vault {one['variable']}: {one['place']}" for one in server["secrets"]]
    content: dict[str, Any] = {}
    if len(versions) == 1 and written[0]["install_version"]:
        content["sglang_install_version"] = versions[0]
    else:
        lines.append("sglang_install_version: choose one, the servers do not tell one that can be installed")
    content["sglang_server_instances"] = [_entry(server["instance"]) for server in written]
    comment = "".join(f"# {one_line(line)}\n" for line in lines)
    return comment + str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True))


def _entry(instance: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = _plain(instance)
    if "secrets" in entry:
        entry["secrets"] = {
            name: _Template(template) if REFERENCE.fullmatch(template) else template
            for name, template in entry["secrets"].items()
        }
    return entry


def _plain(value: Any) -> Any:
    """Return a value without the types that Ansible gives it."""
    if isinstance(value, Mapping):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return json.loads(json.dumps(value))


class FilterModule:
    """The filter gpuops.sglang.found_variables."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"found_variables": found_variables}
