# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.sglang.plugins.filter import found_page, found_variables

SERVER: dict[str, Any] = {
    "pid": 4711, "started": 6000, "since": "2026-11-29T19:56:09Z", "owner": "root", "started_by": "nohup",
    "command": ["python", "-m", "sglang.launch_server", "--x", "a b", ""], "working_directory": "/root",
    "python": "/root/venv/bin/python", "sglang_version": "0.5.11", "installed_in": "/root/venv/lib",
    "install_version": "0.5.11", "listens": [], "gpu_memory": [{"gpu": 1, "memory": 5.0}], "logs": ["/root/a.log"],
    "environment": {},
    "instance": {
        "name": "qwen", "model": "/root/models/Qwen", "port": 30000, "args": {"tp_size": 2, "context_length": "32k"},
        "env": {"SGLANG_X": "1"}, "secrets": {"api_key": "{{ vault_qwen_api_key }}"},
    },
    "secrets": [{"variable": "vault_qwen_api_key", "place": "--api-key in the command line of process 4711"}],
    "live": {
        "sglang_version": "0.5.11", "differences": ["tp_size: requested 2, the server reports 1"], "requests": 4,
        "options": [{"option": "tp_size", "requested": 2, "resolved": 1, "effective": 1, "same": False}],
        "kv_tokens": 900, "memory": {},
    },
    "not_carried": [], "changes": ["its log is /root/a.log"], "notes": ["a note"],
}  # fmt: skip

page = found_page.FilterModule().filters()["found_page"]
variables = found_variables.FilterModule().filters()["found_variables"]


def server(**more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SERVER), **more}


def test_a_page() -> None:
    text = page({"b": [server()], "a": []})
    assert text.splitlines() == [
        "host  process  owner  since                 started by  SGLang  model              port   GPUs  log",
        "a     (none)",
        "b     4711     root   2026-11-29T19:56:09Z  nohup       0.5.11  /root/models/Qwen  30000  1     /root/a.log",
        "",
        "b, process 4711 of user root, in /root:",
        '  python -m sglang.launch_server --x "a b" ""',
        "  option   requested  resolved  effective",
        "  tp_size  2          1         1",
        "  differs from what was requested:",
        "    - tp_size: requested 2, the server reports 1",
        "  would change:",
        "    - its log is /root/a.log",
        "  to know:",
        "    - a note",
        "  put into a vault:",
        "    - vault_qwen_api_key: --api-key in the command line of process 4711",
    ]


def test_a_page_of_a_server_whose_options_are_not_known() -> None:
    text = page({"a": [server(instance=None, live=None, sglang_version="", secrets=[], gpu_memory=[], logs=[])]})
    assert "nohup       -       -      -     -     -" in text


def test_a_host_that_was_not_looked_at_is_not_one_without_servers() -> None:
    assert page({"a": False, "b": []}).splitlines()[1:] == ["a     (not looked at)", "b     (none)"]


def test_a_page_does_nothing_to_a_terminal() -> None:
    text = page({"a": [server(command=["python", "\x1b[2J\n"], notes=["x\x1b]0;y\x07\nz"], owner="o\x1bo")]})
    assert "\x1b" not in text and "\x07" not in text and "x ]0;y  z" in text


def test_variables_are_what_ansible_reads() -> None:
    text = variables("b", [server()])
    read = yaml.safe_load(text)
    assert read == {"sglang_install_version": "0.5.11", "sglang_server_instances": [SERVER["instance"]]}
    assert "# process 4711 of user root, nohup" in text.splitlines()
    assert "#   put into a vault vault_qwen_api_key: --api-key in the command line of process 4711" in text.splitlines()


@pytest.mark.parametrize(
    "servers",
    [
        [server(install_version=None)],
        [server(), server(install_version="0.5.13")],
    ],
)
def test_a_version_that_can_not_be_told_is_left_to_the_operator(servers: list[dict[str, Any]]) -> None:
    text = variables("b", servers)
    assert list(yaml.safe_load(text)) == ["sglang_server_instances"]
    assert "# sglang_install_version: choose one" in text


def test_nothing_to_write() -> None:
    assert variables("b", []) == ""
    assert variables("b", [server(instance=None)]) == ""


def test_what_a_host_tells_is_never_a_template() -> None:
    evil = "{{ lookup('pipe', 'id') }}"
    instance = {
        **SERVER["instance"],
        "model": evil,
        "args": {"served_model_name": "{% x %}", "chat_template": "a\n# b", "json": {"a": evil}},
        "secrets": {"api_key": evil, "HF_TOKEN": "{{ vault_a }}", "x": "{{ vault_a }}{{ y }}"},
    }
    text = variables("b\nevil: 1", [server(instance=instance, owner="x\nevil: 1")])
    loaded = DataLoader().load(text)
    assert list(loaded) == ["sglang_install_version", "sglang_server_instances"]
    for written in (f"model: !unsafe '{evil.replace(chr(39), chr(39) * 2)}'", "served_model_name: !unsafe '{% x %}'"):
        assert written in text
    assert "HF_TOKEN: '{{ vault_a }}'" in text
    assert text.count("!unsafe") == 6
    assert loaded["sglang_server_instances"][0]["args"]["chat_template"] == "a\n# b"


@pytest.mark.parametrize(
    "text",
    [
        "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n[[ lookup('pipe', 'id') ]]",
        "{{ x }}",
        "{%- if 1 %}x{% endif %}",
        "{",
        "<% x %>",
        "${x}",
        "# y",
    ],
)
def test_only_what_can_begin_no_template_is_left_open(text: str) -> None:
    node = yaml.compose(variables("b", [server(instance={**SERVER["instance"], "env": {"SGLANG_X": text, text: "1"}})]))
    texts = [one for one in _scalars(node) if one.value == text]
    assert [one.tag for one in texts] == ["!unsafe", "!unsafe"]


def _scalars(node: Any) -> list[Any]:
    if isinstance(node, yaml.ScalarNode):
        return [node]
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    return [one for part in parts for one in _scalars(part)]
