# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin with the answers of a made-up module; connections are real and not used."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import template
from ansible.errors import AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins import loader
from ansible_collections.gpuops.sglang.plugins.action import sglang_service as action
from ansible_collections.gpuops.sglang.plugins.connection import pct

CONVERGED = {
    "changed": False, "instances": [{"name": "a", "launch": "L1", "reasons": []}], "verdicts": [{"launch": "L1"}],
    "problems": [], "started": [], "unlisted": [], "diff": [], "run": None,
}  # fmt: skip
BEGUN = {
    **CONVERGED, "changed": True, "instances": [{"name": "a", "launch": "L1", "reasons": ["secrets differ"]}],
    "verdicts": [], "started": ["a"], "run": "r1",
}  # fmt: skip
GOOD = {"instance": "a", "launch": "L2", "serving": "L2", "verdict": {"launch": "L2"}, "problem": ""}
LOST = AnsibleConnectionFailure("ssh to kpro5 failed: Connection timed out")
BROKEN = {"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Killed\n", "module_stdout": "", "rc": 137}


class Clock:
    """The time, which goes on when somebody sleeps or asks a host."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Connections:
    """Ansible's loader of connections, which knows the collection's own too."""

    def get(self, name: str, play_context: PlayContext, **how: Any) -> Any:
        if name == "gpuops.sglang.pct":
            return pct.Connection(play_context)
        assert name in ("ansible.builtin.ssh", "ansible.builtin.local")
        return loader.connection_loader.get(name.rpartition(".")[2], play_context, **how)


class Plugin(action.ActionModule):
    """The plugin; `answers` are what its module comes to, call by call."""

    def __init__(self, args: dict[str, Any], connection: str = "ansible.builtin.ssh", **variables: Any) -> None:
        self.variables = {"inventory_hostname": "ct129", **variables}
        self.clock = Clock()
        task, context, data = Task(), PlayContext(), DataLoader()
        task.args, task.delegate_to = args, variables.get("delegated")
        context.timeout = 33
        self.answers: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.through: list[Any] = []  # the connection of each call
        self.pythons: list[Any] = []
        self.said: list[str] = []
        made = Connections().get(connection, context)
        made.set_options(var_options=self.variables)
        super().__init__(task, made, context, data, template.Templar(data, self.variables), None)
        self._display, self._shared_loader_obj = self, SimpleNamespace(connection_loader=Connections())

    def display(self, text: str, **how: Any) -> None:
        assert not how
        self.said.append(text)

    def _execute_module(self, name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert name == "gpuops.sglang.sglang_service"
        self.asked.append(module_args)
        self.through.append(self._connection)
        place = task_vars.get("ansible_delegated_vars", {}).get(self._task.delegate_to, task_vars)
        self.pythons.append(place.get("ansible_python_interpreter"))
        answer = self.answers.pop(0)
        self.clock.now += 20 if answer is LOST else 1
        if isinstance(answer, Exception):
            raise answer
        return copy.deepcopy(answer)

    def do(self, *answers: Any) -> dict[str, Any]:
        self.answers = list(answers)
        told: dict[str, Any] = self.run(task_vars=self.variables)
        assert not self.answers
        return told

    @property
    def follows(self) -> list[Any]:
        return [(asked["follow"]["run"], asked["follow"]["seen"]) for asked in self.asked if "follow" in asked]


def loading(step: str, instance: str = "a") -> dict[str, Any]:
    line = f"loading weights, shard {step}, for 9 s"
    return {"changed": False, "outcomes": None, "shown": {instance: line}, "steps": {instance: f"loading {step}"}}


def ended(*outcomes: dict[str, Any]) -> dict[str, Any]:
    return {"changed": False, "outcomes": list(outcomes), "shown": {}, "steps": {}}


def refused(text: str, **more: Any) -> dict[str, Any]:
    """What fail_json of the module makes of a refusal."""
    return {"failed": True, "msg": text, "started": [], **more}


pytestmark = pytest.mark.usefixtures("pct_options")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Plugin.__init__

    def made(plugin: Plugin, *args: Any, **how: Any) -> None:
        make(plugin, *args, **how)
        monkeypatch.setattr(action, "time", plugin.clock)

    monkeypatch.setattr(Plugin, "__init__", made)


def test_what_is_as_asked_takes_one_call() -> None:
    plugin = Plugin({"state": "started", "instances": []})
    told = plugin.do(CONVERGED)
    assert plugin.asked == [{"state": "started", "instances": []}]
    assert plugin.said == []
    assert (told["changed"], told["verdicts"], told["instances"][0]["launch"]) == (False, [{"launch": "L1"}], "L1")
    assert not told.keys() & {"run", "problems", "failed", "msg"}


def test_a_launch_is_shown_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "PACE", (2, 10))
    plugin = Plugin({"state": "started"})
    told = plugin.do(BEGUN, loading("1 of 4"), loading("2 of 4"), ended(GOOD))
    assert plugin.said == [f"ct129 | a: loading weights, shard {step}, for 9 s" for step in ("1 of 4", "2 of 4")]
    assert plugin.follows == [("r1", {}), ("r1", {"a": "loading 1 of 4"}), ("r1", {"a": "loading 2 of 4"})]
    assert plugin.asked[1] == {"state": "gathered", "follow": {"run": "r1", "seen": {}, "least": 2, "most": 10}}
    assert told["changed"] and not told.get("failed")
    assert told["verdicts"] == [{"launch": "L2"}]
    assert told["instances"] == [{"name": "a", "launch": "L2", "reasons": ["secrets differ"]}]


PRINT = "from ansible_collections.gpuops.sglang.plugins.action import sglang_service as a; print(*a.PACE)"


def test_the_pace_is_calm_where_nobody_watches() -> None:
    """The terminal is that of who loads the plugin: a task's process has none."""
    master, slave = os.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PRINT]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "10 30\n"
    subprocess.run(command, env=environment, stdout=slave, check=True)
    os.close(slave)
    assert os.read(master, 100) == b"2 10\r\n"
    os.close(master)


def test_a_failed_launch_fails_with_its_problem_and_what_serves() -> None:
    returned = {
        "instance": "a", "launch": "L3", "serving": "L3", "verdict": {"launch": "L3"},
        "problem": "it ended\nServing now: what launch L1 was, as launch L3, which was proved.",
    }  # fmt: skip
    told = Plugin({}).do({**BEGUN, "verdicts": [{"launch": "B"}]}, ended(returned))
    assert told["failed"] and told["changed"]
    assert told["msg"] == returned["problem"]
    assert told["verdicts"] == [{"launch": "B"}, {"launch": "L3"}]
    assert told["instances"][0]["launch"] == "L3"
    assert told["started"] == ["a"]


def test_every_problem_is_told() -> None:
    outcomes: list[dict[str, Any]] = [
        {**GOOD, "problem": "one", "verdict": None, "serving": None},
        {**GOOD, "instance": "b"},
        {**GOOD, "instance": "c", "problem": "three"},
    ]
    told = Plugin({}).do({**BEGUN, "problems": ["zero"]}, ended(*outcomes))
    assert told["failed"] and told["msg"] == "zero\none\nthree"
    assert told["instances"][0]["launch"] == "L2"  # what its unit carries


def test_what_does_not_serve_as_asked_fails_without_a_run() -> None:
    told = Plugin({}).do({**CONVERGED, "problems": ["other arguments than requested"]})
    assert told["failed"] and told["msg"] == "other arguments than requested"


def test_what_the_module_refuses_is_told_as_it_is() -> None:
    plugin = Plugin({})
    assert plugin.do(refused("there is no release"))["msg"] == "there is no release"
    assert Plugin({}).do(BROKEN)["failed"]


def test_another_deployment_is_followed_and_then_it_is_asked_again() -> None:
    plugin = Plugin({"state": "restarted"})
    busy = refused("process 7 still starts instances", busy="other")
    told = plugin.do(busy, loading("1 of 4"), ended(GOOD), CONVERGED)
    assert plugin.follows == [("other", {}), ("other", {"a": "loading 1 of 4"})]
    assert plugin.said[0] == "ct129 | process 7 still starts instances"
    assert plugin.asked[-1] == {"state": "restarted"}
    assert not told.get("failed") and told["verdicts"] == [{"launch": "L1"}]  # its outcomes are not ours


def test_a_deployment_waits_for_any_number_of_others() -> None:
    plugin = Plugin({})
    first, second = refused("busy", busy="one"), refused("busy", busy="two")
    told = plugin.do(first, ended(GOOD), first, ended(GOOD), second, ended(GOOD), BEGUN, ended(GOOD))
    assert [run for run, _ in plugin.follows] == ["one", "one", "two", "r1"]
    assert not told.get("failed")


def test_another_deployment_that_came_to_nothing_is_taken_up() -> None:
    plugin = Plugin({})
    died = refused("the deployment's process 7 on the host was ended before it had a result")
    told = plugin.do(refused("busy", busy="other"), died, BEGUN, ended(GOOD))
    assert not told.get("failed") and told["instances"][0]["launch"] == "L2"


def test_a_lock_of_a_run_that_nothing_is_known_of_is_not_asked_for_ever() -> None:
    unknown, busy = refused("this host knows nothing of the run other"), refused("busy", busy="other")
    told = Plugin({}).do(busy, unknown, busy, unknown)
    assert told["failed"] and told["msg"] == "this host knows nothing of the run other"


def test_a_run_that_came_to_nothing_fails() -> None:
    told = Plugin({}).do(BEGUN, refused("the deployment's process on the host failed: KeyError"))
    assert told["failed"] and told["msg"] == "the deployment's process on the host failed: KeyError"
    assert told["changed"] and told["started"] == ["a"]


@pytest.mark.parametrize("lost", [LOST, BROKEN, {"failed": True, "msg": "MODULE FAILURE"}, {}])
def test_a_lost_connection_is_tried_again(lost: Any) -> None:
    plugin = Plugin({})
    told = plugin.do(BEGUN, loading("1 of 4"), lost, lost, loading("3 of 4"), ended(GOOD))
    assert not told.get("failed") and told["instances"][0]["launch"] == "L2"
    assert len([text for text in plugin.said if "the launch goes on there; asking again: " in text]) == 2
    assert plugin.follows[1:4] == [("r1", {"a": "loading 1 of 4"})] * 3


@pytest.mark.parametrize(("lost", "why"), [(LOST, "Connection timed out"), (BROKEN, "Killed")])
def test_a_host_that_stays_silent_is_given_up(lost: Any, why: str) -> None:
    plugin = Plugin({})
    plugin.answers = [BEGUN, loading("1 of 4"), *[lost] * 99]
    told = plugin.run(task_vars=plugin.variables)
    assert told["failed"] and told["changed"]
    assert told["msg"].startswith("the host does not answer any more: ") and why in told["msg"]
    assert told["msg"].endswith("What was begun goes on there: deploy again to see what came of it")
    assert action.LOST < plugin.clock.now < action.LOST + 60
    assert told["started"] == ["a"]


def test_a_host_that_answers_now_and_then_is_not_given_up() -> None:
    plugin = Plugin({})
    told = plugin.do(BEGUN, *[*[LOST] * 9, loading("1 of 4")] * 5, ended(GOOD))
    assert plugin.clock.now > 3 * action.LOST
    assert not told.get("failed")


def test_a_host_that_is_lost_while_another_deployment_is_followed_is_given_up() -> None:
    plugin = Plugin({})
    plugin.answers = [refused("busy", busy="other"), *[LOST] * 99]
    told = plugin.run(task_vars=plugin.variables)
    assert told["failed"] and "goes on there" in told["msg"]


NODE: dict[str, Any] = {"ansible_host": "192.0.2.5", "ansible_user": "root", "ansible_port": 2222, "pct_node": "kpro5"}


def test_a_container_of_the_node_is_entered_the_way_that_the_node_is_reached() -> None:
    plugin = Plugin({"vmid": 129, "state": "gathered"}, **NODE, ansible_python_interpreter="/opt/python")
    plugin.do({"instances": []})
    (connection,) = plugin.through
    asked = ("vmid", "host", "port", "node", "node_connection", "node_become", "timeout")
    told = [connection.get_option(name) for name in asked]
    assert told == [129, "192.0.2.5", 2222, "kpro5", "ssh", "none", 33]
    assert connection.transport == "gpuops.sglang.pct" and connection._login == "root"
    assert plugin.asked == [{"state": "gathered"}]
    assert plugin.pythons == ["/usr/bin/python3"]
    assert plugin._label == "ct129, container 129"


def test_a_template_in_a_variable_of_the_node_is_rendered() -> None:
    trusted = getattr(template, "trust_as_template", str)  # before 2.19 all text is
    plugin = Plugin({"vmid": 129}, **{**NODE, "ansible_host": trusted("{{ address }}"), "address": "192.0.2.9"})
    plugin.do(CONVERGED)
    assert plugin.through[0].get_option("host") == "192.0.2.9"


def test_a_container_of_the_machine_that_ansible_runs_on() -> None:
    plugin = Plugin({"vmid": 129}, "ansible.builtin.local", **NODE)
    plugin.do(CONVERGED)
    assert plugin.through[0].get_option("node_connection") == "local"


@pytest.mark.parametrize("connection", ["ansible.builtin.ssh", "ansible.builtin.local"])
def test_who_becomes_root_at_the_node_does_so_for_its_containers(connection: str) -> None:
    plugin = Plugin({"vmid": 129}, connection, **NODE)
    plugin._connection.set_become_plugin(loader.become_loader.get("sudo"))
    plugin.do(CONVERGED)
    assert plugin.through[0].get_option("node_become") == "sudo"
    assert plugin.through[0].become is None  # it is root there


def test_a_container_of_the_node_that_the_task_is_delegated_to() -> None:
    other = {"ansible_host": "192.0.2.77", "ansible_user": "me"}
    plugin = Plugin({"vmid": 129}, **other, delegated="node", ansible_delegated_vars={"node": {**NODE}})
    plugin.do(CONVERGED)
    assert plugin.through[0].get_option("host") == "192.0.2.5" and plugin.through[0]._login == "root"
    assert plugin.pythons == ["/usr/bin/python3"]


HELD = refused("instance 'a': its GPU is held by 9000 MiB of GPU 0", gpu_held=True)
GATHERED = {"changed": False, "instances": [], "gpu_processes": ["process 99 of user alice, in container 131"]}


def container(**variables: Any) -> Plugin:
    return Plugin({}, "gpuops.sglang.pct", **NODE, ansible_pct_vmid=129, **variables)


def test_the_node_is_asked_who_holds_the_gpu_of_its_container() -> None:
    plugin = container()
    told = plugin.do(HELD, GATHERED)
    assert told["failed"]
    assert told["msg"] == f"{HELD['msg']}\nOn the node:\n  process 99 of user alice, in container 131"
    assert plugin.asked[1] == {"state": "gathered"}
    node = plugin.through[1]
    assert (node.transport, node.become) == ("ssh", None)
    assert [node.get_option(name) for name in ("host", "port", "remote_user")] == ["192.0.2.5", 2222, "root"]


def test_the_node_is_asked_as_whom_its_container_is_entered() -> None:
    plugin = container(ansible_pct_node_user="deploy", ansible_pct_node_become="sudo")
    plugin.do(HELD, GATHERED)
    node = plugin.through[1]
    assert node.get_option("remote_user") == "deploy"
    assert (node.become.name, node.become.get_option("become_user")) == ("sudo", "root")


def test_a_node_that_ansible_runs_on_is_asked_there() -> None:
    plugin = container(ansible_pct_node_connection="local")
    plugin.do(HELD, GATHERED)
    assert plugin.through[1].transport == "local"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (LOST, "ssh to kpro5 failed: Connection timed out"),
        (refused("needs root on this host"), "needs root on this host"),
        ({**GATHERED, "gpu_processes": []}, "no process computes"),
    ],
)
def test_what_the_node_does_not_tell_hides_nothing(answer: Any, why: str) -> None:
    told = container().do(HELD, answer)
    assert told["failed"]
    assert told["msg"] == f"{HELD['msg']}\nOn the node:\n  (nothing is known: {why})"


def test_without_a_node_nobody_else_is_asked() -> None:
    assert Plugin({}, **NODE).do(HELD)["msg"] == HELD["msg"]
