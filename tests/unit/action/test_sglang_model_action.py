# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin with the answers of a made-up module."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible import template
from ansible.errors import AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins import loader
from ansible_collections.gpuops.sglang.plugins.action import sglang_model as action

DONE = {"changed": True, "models": [{"name": "m"}], "removed": []}
LOST = AnsibleConnectionFailure("ssh to kpro5 failed: Connection timed out")
ASKED = {"models": [{"name": "m", "repo": "o/m"}], "client_version": "2.4.0", "token": "t"}


class Plugin(action.ActionModule):
    """The plugin; `answers` are what its module comes to, call by call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task, context, data = Task(), PlayContext(), DataLoader()
        task.args = ASKED
        self.now, self.said, self.asked = 0.0, list[str](), list[dict[str, Any]]()
        made = loader.connection_loader.get("ssh", context)
        super().__init__(task, made, context, data, template.Templar(data, {}), None)
        self._display = self
        monkeypatch.setattr(action, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def display(self, text: str) -> None:
        self.said.append(text)

    def _execute_module(self, name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert name == "gpuops.sglang.sglang_model"
        self.asked.append(module_args)
        answer = self.answers.pop(0)
        self.now += 20
        if isinstance(answer, Exception):
            raise answer
        return copy.deepcopy(answer)

    def do(self, *answers: Any) -> dict[str, Any]:
        self.answers = list(answers)
        told: dict[str, Any] = self.run(task_vars={"inventory_hostname": "ct129"})
        return told


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Plugin:
    return Plugin(monkeypatch)


def test_what_is_there_takes_one_call(plugin: Plugin) -> None:
    assert plugin.do({**DONE, "changed": False})["models"] == DONE["models"]
    assert plugin.asked == [{**ASKED, "follow": {"run": ""}}] and plugin.said == []


def test_what_is_fetched_is_shown(plugin: Plugin) -> None:
    lines = ["m: 1 GB of 2 GB", "m: 2 GB of 2 GB"]
    told = plugin.do({"changed": False, "run": "r1"}, *({"changed": False, "line": line} for line in lines), DONE)
    assert (told["changed"], told["models"]) == (True, [{"name": "m"}]) and "line" not in told
    assert plugin.said == [f"ct129 | {line}" for line in lines]
    assert [asked["follow"]["seen"] for asked in plugin.asked[1:]] == ["", *lines]
    assert not any("token" in asked for asked in plugin.asked[1:])


def test_what_would_be_fetched_is_shown(plugin: Plugin) -> None:
    plugin.do({**DONE, "told": ["m: would fetch 7 files"]})
    assert plugin.said == ["ct129 | m: would fetch 7 files"]


def test_a_refusal_is_the_result(plugin: Plugin) -> None:
    told = plugin.do({"run": "r1"}, {"failed": True, "msg": "no room", "changed": False})
    assert told["failed"] and told["msg"] == "no room"


def test_a_lost_connection_is_taken_up_again(plugin: Plugin) -> None:
    assert plugin.do({"run": "r1"}, LOST, {"failed": True, "module_stderr": "Killed", "msg": "FAILURE"}, DONE)[
        "changed"
    ]
    assert [line.rpartition(": ")[2] for line in plugin.said] == ["Connection timed out", "Killed"]


def test_a_host_that_stays_silent_is_given_up(plugin: Plugin) -> None:
    told = plugin.do({"run": "r1"}, *[LOST] * 100)
    assert told["failed"] and "does not answer any more" in told["msg"] and "deploy again" in told["msg"]
    assert plugin.answers
