# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module hands over, and what it says of it; what is done is told by the tests of module_utils."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils import docker_gpus, gpu, launch, runs, service
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import secret_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Wait
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Held, Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Prepared
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Order
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.service import Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from ansible_collections.gpuops.sglang.plugins.modules import sglang_service
from conftest import call_module, parser_of, run_module

ENTRY = {"name": "a", "model": "/srv/m", "host": "127.0.0.1", "port": 30000, "gpus": [0], "args": {}}


def test_values_that_are_no_text_become_text() -> None:
    instance = launch.instance_of({**ENTRY, "env": {"A": 1, "B": True}, "secrets": {"api_key": 4711}})
    assert instance.env == {"A": "1", "B": "True"}
    assert instance.secrets == {"api_key": "4711"}
    assert instance.gpus == (0,)


def test_null_does_not_become_the_word_none() -> None:
    instance = launch.instance_of({**ENTRY, "env": {"A": None, "B": ""}, "secrets": {"api_key": None}})
    assert instance.env == {"B": ""}
    assert len(secret_problems(instance.secrets, describe(parser_of("0.5.23")))) == 1


SECRET = """it's "never" seen"""


@pytest.mark.parametrize("internal", [{}, {"_ansible_no_log": False}], ids=["by hand", "as a task runs it"])
def test_the_arguments_are_not_logged_on_the_host(internal: dict[str, Any]) -> None:
    """A value with quotes is written otherwise in a log, where it is not found and left out."""
    # the name is refused, so nothing is done wherever this runs
    entry = {"name": "A", "model": "/srv/m", "port": 30000, "secrets": {"api_key": SECRET, "HF_TOKEN": SECRET}}
    asked = {"release": "/nowhere", "instances": [entry], **internal}
    result, logged = run_module("sglang_service", asked)
    assert result["failed"]
    assert "never" not in str(result)
    assert "never" not in logged
    assert "/srv/m" not in logged  # nor anything else of them


VERDICT = {"launch": "L0", "tokens": 8}
UNIT = "/etc/systemd/system/sglang-b.service"
DIFF = {"before": "b", "after": "a", "before_header": UNIT, "after_header": UNIT}
STATE = Path("/var/lib/sglang")
LOCK = (Path("/run/gpuops-sglang.lock"), "starts instances on this host", 180)


@dataclass
class Machine:
    """A host with a made-up plan; `called` is what the module has done, in order."""

    plan: Plan = field(
        default_factory=lambda: Plan(
            instances=[{"name": "a", "launch": "L0", "reasons": []}, {"name": "b", "launch": "L0", "reasons": ["x"]}],
            orders=[Order("a"), Order("b", (0,), lambda: Prepared("b", "L1", ""))],
            verdicts=[VERDICT],
            problems=["'c' serves otherwise"],
            diff=[DIFF],
        )
    )
    called: list[tuple[Any, ...]] = field(default_factory=list)
    raises: Exception | None = None
    held: bool = False
    is_systemd: bool = True
    installed: list[str] = field(default_factory=list)
    supervised: list[str] = field(default_factory=list)  # by supervisord
    lacking: list[str] = field(default_factory=list)

    def made(self, name: str, result: Any, locked: bool = True) -> Any:
        """Return what notes a call; all that changes something is under the lock."""

        def call(*how: Any, **more: Any) -> Any:
            assert self.held == locked, name
            self.called.append((name, *how, *more.values()))
            if self.raises:
                raise self.raises
            return result

        return call

    @contextlib.contextmanager
    def only_one(self, *how: Any) -> Iterator[None]:
        assert how == LOCK
        self.held = True
        yield
        self.held = False

    def ask(self, **asked: Any) -> dict[str, Any]:
        asked = {"instances": [ENTRY, {**ENTRY, "name": "b", "port": 30001}], "release": "/opt/r", **asked}
        return call_module(sglang_service, {name: value for name, value in asked.items() if value is not None})


STOPPED = [{"name": "a", "launch": "L0", "reasons": []}, {"name": "b", "launch": "L0", "reasons": ["x"]}]
GATHERED = [{"name": "a", "launch": None, "service": "not installed"}]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(sglang_service, "require_root", lambda: None)
    monkeypatch.setattr(sglang_service, "only_one", made.only_one)
    monkeypatch.setattr(systemd, "is_here", lambda: made.is_systemd)
    monkeypatch.setattr(Supervisord, "installed_instances", lambda self: made.supervised)
    monkeypatch.setattr(Supervisord, "set_up", lambda self, how, change: made.made("set_up", made.lacking)(how, change))
    monkeypatch.setattr(systemd, "installed_instances", lambda: made.installed)
    monkeypatch.setattr(gpu, "device", lambda: None)
    monkeypatch.setattr(gpu, "processes", lambda: [GpuProcess(99, 9000, 1, None)])
    monkeypatch.setattr(service, "started", made.made("started", made.plan))
    monkeypatch.setattr(service, "rolled_back", made.made("rolled_back", made.plan))
    monkeypatch.setattr(service, "stopped", made.made("stopped", STOPPED))
    monkeypatch.setattr(service, "gathered", made.made("gathered", GATHERED, locked=False))
    monkeypatch.setattr(runs, "begin", made.made("begin", "r1"))
    monkeypatch.setattr(runs, "follow", made.made("follow", {"outcomes": [], "shown": {}, "steps": {}}, locked=False))
    return made


@pytest.mark.parametrize("state", ["started", "restarted"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_what_differs_is_handed_over(machine: Machine, state: str, check_mode: bool) -> None:
    machine.installed = ["a", "b", "old"]
    more: dict[str, Any] = {
        "accept_changes": {"page_size": "measured"},
        "share_gpus": True,
        "drain_timeout": 5,
        "keep_launches": 2,
    }
    result = machine.ask(state=state, stall_timeout=90, user="u", _ansible_check_mode=check_mode, **more)
    (name, instances, how), *begun = machine.called
    assert (name, [(one.name, one.port) for one in instances]) == ("started", [("a", 30000), ("b", 30001)])
    host = Host(Path("/opt/r"), "u", STATE, 5, 2)
    assert how == service.Asked(
        host, more["accept_changes"], True, "refuse", False, state == "restarted", not check_mode
    )
    assert begun == ([] if check_mode else [("begin", machine.plan.orders, STATE, Wait(None, 90))])
    expected = {
        "changed": True,
        "instances": machine.plan.instances,
        "verdicts": [VERDICT],
        "problems": ["'c' serves otherwise"],  # the others are deployed nevertheless
        "started": [] if check_mode else ["b"],  # 'a' is there already and only followed
        "unlisted": ["old"],
        "diff": [DIFF],
        "run": None if check_mode else "r1",
    }
    assert {key: result[key] for key in expected} == expected
    (warning,) = result["warnings"]
    assert "instance 'old' is on this host but not in sglang_server_instances: it is left" in warning


def test_the_place_of_a_server_is_taken_where_that_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "unfinished", lambda names: [f"an earlier deployment of {', '.join(names)}"])
    assert machine.ask(take_over=True)["warnings"][0] == "an earlier deployment of a, b"
    assert machine.called[0][2].take_over is True
    machine.raises = Refused("'tp_sise' is no option")
    # nothing serves, which is to be known in any case
    assert machine.ask()["warnings"] == ["an earlier deployment of a, b"]


def test_what_an_earlier_deployment_has_ended_comes_back_where_this_one_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = service.Plan(problems=["no"], orders=[Order("a")])

    def returning(names: list[str], why: Refused) -> service.Plan:
        assert (names, str(why)) == (["a", "b"], "'tp_sise' is no option")
        machine.raises = None
        return back

    monkeypatch.setattr(service, "returning", returning)
    machine.raises = Refused("'tp_sise' is no option")
    assert "run" not in machine.ask(_ansible_check_mode=True), "nothing is started for a check"
    result = machine.ask()
    assert (result["run"], result["problems"], result["started"]) == ("r1", ["no"], [])


def test_what_is_to_be_known_is_a_warning_and_no_problem(machine: Machine) -> None:
    machine.plan.notes, machine.plan.problems = ["'a' has too much to do"], []
    result = machine.ask()
    assert (result["warnings"], result["problems"]) == (["'a' has too much to do"], [])


def test_where_nothing_is_to_be_started_there_is_no_run(machine: Machine) -> None:
    machine.plan.orders, machine.plan.instances, machine.plan.diff = [], machine.plan.instances[:1], []
    result = machine.ask()
    assert [name for name, *_ in machine.called] == ["started"]
    assert (result["changed"], result["run"], result["started"], result["diff"]) == (False, None, [], [])
    assert machine.called[0][2] == service.Asked(
        Host(Path("/opt/r"), "sglang", STATE, 60, 5), {}, False, "refuse", False, False, True
    )


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_return_is_handed_over(machine: Machine, check_mode: bool) -> None:
    machine.installed = ["a", "b", "old"]
    asked = {"state": "rolled_back", "instances": None, "release": None, "_ansible_check_mode": check_mode}
    result = machine.ask(**asked, names=["b"], launch="L7", stall_timeout=90)
    begun = [] if check_mode else [("begin", machine.plan.orders, STATE, Wait(None, 90))]
    assert machine.called == [("rolled_back", ["b"], STATE, "L7", False), *begun]
    assert (result["run"], result["unlisted"]) == (None if check_mode else "r1", [])
    machine.called.clear()
    machine.ask(state="rolled_back")
    assert machine.called[0] == ("rolled_back", ["a", "b"], STATE, None, False)
    for names in ([], ["a", "b"]):
        result = machine.ask(**asked, names=names, launch="L7")
        assert result["failed"] and result["msg"] == "'launch' is of one instance: name that one alone under 'names'"


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("state", ["stopped", "absent"])
@pytest.mark.parametrize("names", [None, ["b", "c"]])
def test_what_is_to_be_stopped(machine: Machine, state: str, names: list[str] | None, check_mode: bool) -> None:
    result = machine.ask(state=state, names=names, release=None, state_dir="/srv/s", _ansible_check_mode=check_mode)
    asked = (names or ["a", "b"], Path("/srv/s"), not check_mode, state == "absent")
    assert machine.called[-1] == ("stopped", *asked)
    assert [how[2] for _name, *how in machine.called] == [False, not check_mode]
    assert (result["changed"], result["instances"]) == (True, STOPPED)


def test_what_is_stopped_already_is_no_change(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "stopped", machine.made("stopped", STOPPED[:1]))
    assert not machine.ask(state="stopped")["changed"]


@pytest.mark.parametrize(
    ("names", "instances", "about"), [(["c"], [ENTRY], ["c"]), (None, [ENTRY], ["a"]), (None, None, ["a", "old"])]
)
def test_what_is_there_is_asked_without_the_lock(machine: Machine, names: Any, instances: Any, about: Any) -> None:
    machine.installed = ["a", "old"]
    result = machine.ask(state="gathered", names=names, instances=instances, release=None)
    assert machine.called == [("gathered", about, STATE)]
    assert (result["changed"], result["instances"]) == (False, GATHERED)
    (process,) = result["gpu_processes"]
    assert process.endswith("9000 MiB of GPU 1")


def test_a_run_is_followed_without_the_lock(machine: Machine) -> None:
    follow = {"run": "r1", "seen": {"a": "loading"}, "least": 2, "most": 10}
    result = machine.ask(state="gathered", follow=follow)
    assert machine.called == [("follow", "r1", {"a": "loading"}, 2, 10)]
    assert result["outcomes"] == [] and not result["changed"]


@pytest.mark.parametrize("state", ["started", "restarted", "rolled_back", "stopped", "absent", "gathered"])
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (Refused("no"), {"started": []}),
        (service.GpuHeld("no"), {"started": [], "gpu_held": True}),
        (Held("no", "r7"), {"busy": "r7"}),
    ],
)
def test_why_nothing_was_done(machine: Machine, state: str, raised: Exception, told: dict[str, Any]) -> None:
    machine.raises = raised
    result = machine.ask(state=state)
    assert result["failed"] and result["msg"] == "no"
    assert {key: result[key] for key in ("started", "gpu_held", "busy") if key in result} == told
    assert len(machine.called) == 1  # and no run


def test_a_lock_that_is_held_is_told_before_anything_is_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def only_one(*_: Any) -> Iterator[None]:
        raise Held("process 4711 still starts instances on this host", "r7")
        yield

    monkeypatch.setattr(sglang_service, "only_one", only_one)
    result = machine.ask()
    assert (result["busy"], machine.called) == ("r7", [])
    assert result["msg"] == "process 4711 still starts instances on this host"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"release": None}, "state is started but all of the following are missing: release"),
        ({"release": None, "state": "restarted"}, "state is restarted but all of the following are missing: release"),
        ({"instances": [{**ENTRY, "port": 1}]}, "instance 'a' has the port 1: use"),
        ({"instances": [{**ENTRY, "port": 1}, {**ENTRY, "name": "B"}], "state": "restarted"}, "'B': use up to 40"),
        ({"state": "running"}, "value of state must be one of: started, restarted, rolled_back, stopped, absent, gath"),
    ],
)
def test_what_can_not_be_asked_for(machine: Machine, asked: dict[str, Any], why: str) -> None:
    result = machine.ask(**asked)
    assert result["failed"] and why in result["msg"]
    assert machine.called == []


def test_a_host_without_systemd_gets_supervisord(machine: Machine) -> None:
    machine.is_systemd = False
    machine.lacking = ["supervisord does not run"]
    machine.plan.instances = [{"name": "a", "launch": "L0", "reasons": []}]
    for check_mode in (False, True):
        result = machine.ask(_ansible_check_mode=check_mode, supervisord={"environment": {"PIP_INDEX_URL": "x"}})
        assert result["changed"] and result["supervisor"] == machine.lacking
        assert ("set sglang_server_start_hook" in "".join(result["warnings"])) == (not check_mode)
        how = {"python": "/usr/bin/python3", "environment": {"PIP_INDEX_URL": "x"}, "wheelhouse": None}
        how |= {"start_hook": None, "control": None, "release": "/opt/r"}
        assert ("set_up", how, not check_mode) in machine.called
    assert machine.ask()["supervisor"] == machine.lacking
    machine.lacking, machine.called = [], []
    assert machine.ask(supervisord={"start_hook": "/onstart.sh"})["warnings"] == []
    machine.called = []
    for asked in ({"state": "stopped"}, {"state": "rolled_back"}, {"state": "gathered"}, {"instances": []}):
        assert "failed" not in machine.ask(**asked)
    assert "set_up" not in [name for name, *_ in machine.called]


def test_which_supervisor_it_is(machine: Machine) -> None:
    def used(**asked: Any) -> str:
        machine.ask(state="gathered", **asked)
        return here.supervisor().NAME

    assert used() == "systemd" and used(supervisor="supervisord") == "supervisord"
    machine.supervised = ["a"]
    assert used() == "supervisord" and used(supervisor="systemd") == "systemd"
    machine.supervised, machine.is_systemd = [], False
    assert used() == "supervisord"
    assert "not systemd: set sglang_server_supervisor to auto" in machine.ask(supervisor="systemd")["msg"]


def test_a_host_has_one_supervisor(machine: Machine) -> None:
    machine.installed = ["old"]
    for state in ("started", "restarted", "rolled_back"):
        result = machine.ask(state=state, supervisor="supervisord")
        assert result["failed"] and machine.called == []
        assert "instance 'old' of this host is under systemd, not supervisord: set" in result["msg"]
        assert "failed" not in machine.ask(state=state)
        machine.called = []
    for state in ("stopped", "absent", "gathered"):
        assert "failed" not in machine.ask(state=state, supervisor="supervisord")
    machine.installed, machine.supervised = [], ["old"]
    assert "is under supervisord, not systemd" in machine.ask(supervisor="systemd")["msg"]
    assert "failed" not in machine.ask()
    machine.installed, machine.is_systemd = ["of an image"], False
    assert "failed" not in machine.ask()


def test_what_is_returned_is_what_is_documented(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    # the action plugin takes 'run' and 'problems', Ansible itself the rest
    own = {"run", "problems", "changed", "diff", "invocation", "warnings"}
    documented = yaml.safe_load(sglang_service.RETURN)
    found = {key for state in ("started", "stopped", "gathered") for key in machine.ask(state=state)}
    assert found - own == set(documented)
    identity = Identity("active", "running", "success", 1, "i", "/c", True, 0, "", {})
    monkeypatch.undo()
    monkeypatch.setattr(systemd, "read_unit", lambda name: "# launch: L0\n")
    monkeypatch.setattr(systemd, "identity", lambda name: identity)
    (gathered,) = service.gathered(["a"], Path("/nowhere"))
    assert {*gathered, *STOPPED[0]} == set(documented["instances"]["contains"])


@pytest.fixture
def docker(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host on which Docker runs a container with a GPU."""
    monkeypatch.setattr(docker_gpus, "containers", lambda: ["container 1a of docker"])
    return machine


@pytest.mark.parametrize("state", ["started", "restarted", "rolled_back", "stopped", "absent"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_docker_does_not_lose_its_gpu_without_leave(docker: Machine, state: str, check_mode: bool) -> None:
    result = docker.ask(state=state, _ansible_check_mode=check_mode)
    assert result["failed"] and "container 1a of docker" in result["msg"] and result["started"] == []
    assert "begin" not in [name for name, *_ in docker.called]
    assert all(how[2] is False for name, *how in docker.called if name == "stopped"), "something was stopped"
    allowed = docker.ask(state=state, _ansible_check_mode=check_mode, reload_beside_docker=True)
    assert "failed" not in allowed


def test_docker_is_no_matter_where_systemd_reads_nothing_again(docker: Machine) -> None:
    docker.plan.orders = [Order("a")]  # is followed only
    assert "failed" not in docker.ask()
