# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for a made-up host; unit files and records are real, in folders of the test."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import (
    docker_gpus,
    gpu,
    health,
    processes,
    release_record,
    service,
    sockets,
    take_over,
)
from ansible_collections.gpuops.sglang.plugins.module_utils import fit as fit_module
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils import preflight as preflights
from ansible_collections.gpuops.sglang.plugins.module_utils.fit import Candidate, Fit
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Unhealthy
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Comparison, Host, Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight import Preflight
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process
from ansible_collections.gpuops.sglang.plugins.module_utils.service import Asked, GpuHeld
from ansible_collections.gpuops.sglang.plugins.module_utils.sockets import Listener
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import LAUNCH_LINE

PID = 4711  # of the server of instance a
HUNG, LOADING, BUSY, COMPUTING = (
    Unhealthy(f"it is {state}", state) for state in ("hung", "loading", "busy", "computing")
)


class Machine:
    """A host whose systemctl does what systemd's does; the instances with a unit are there, `active` ones run."""

    def __init__(self, folder: Path) -> None:
        self.host = Host(folder / "release", "nobody", folder / "state")
        self.active: dict[str, str] = {}  # instance -> ActiveState
        self.enabled: set[str] = set()
        self.reasons: dict[str, list[str]] = {}  # instance -> how it differs
        self.verdicts: dict[str, list[Any]] = {}  # instance -> what its next verifications come to
        self.problems: dict[str, str] = {}  # instance -> what SGLang says against it
        self.on_gpus: list[GpuProcess] = []
        self.used: dict[int, float] = {}
        self.before = "before"  # the unit in place
        self.calls: list[str] = []
        self.checked: dict[str, Any] = {}  # instance -> processes that leave its ports
        self.old: Any = None

    def systemctl(self, *words: str) -> str:
        self.calls.append(" ".join(words[:2]))
        name = next((word[7:-8] for word in words if word.endswith(".service")), "")
        if words[0] == "disable":
            if not systemd.read_unit(name):
                raise Refused(f"systemctl disable failed: Unit file sglang-{name}.service does not exist")
            self.enabled.discard(name)
        elif words[0] == "enable":
            self.enabled.add(name)
        elif words[0] == "stop":
            self.active[name] = "inactive"
        elif words[0] == "show":
            return self.show(name)
        return ""

    def show(self, name: str) -> str:
        active = self.active.get(name, "inactive")
        pid, group = (PID, f"/system.slice/sglang-{name}.service") if active == "active" else (0, "")
        state = "enabled" if name in self.enabled else "disabled"
        return (
            f"ActiveState={active}\nSubState=sub\nMainPID={pid}\nControlGroup={group}\nUnitFileState={state}\n"
            "InvocationID=i\nNRestarts=2\n"
        )

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(" ".join(argv[1:3]))
        return subprocess.CompletedProcess(argv, 0, "", "")

    def verify(self, state: Path, name: str, wait: health.Wait) -> dict[str, Any]:
        assert (state, wait.limit) == (self.host.state, 0)  # nobody waits in a plan
        self.calls.append(f"verify {name}")
        told = self.verdicts[name].pop(0)
        if isinstance(told, Exception):
            raise told
        verdict: dict[str, Any] = told
        return verdict

    def check(self, instance: Instance, host: Host, schema: Any, leaving: Any) -> None:
        self.calls.append(f"check {instance.name}")
        self.checked[instance.name] = leaving

    def compare(self, instance: Instance, host: Host, schema: Any, accepted: Mapping[str, Any]) -> Comparison:
        self.calls.append(f"compare {instance.name}")
        found = self.reasons.get(instance.name, [])
        return Comparison(tuple(found), "L1", self.before, "after" if found else self.before)

    def preflight(self, instance: Instance, host: Host, schema: Any, accepted: Any, keep: bool) -> Preflight:
        self.calls.append(f"preflight {instance.name} {keep}")
        problem = self.problems.get(instance.name)
        return Preflight(instance.name, "0.5.23", False, (), (problem,) if problem else (), ("W",), {"a": 1})

    def in_cgroup(self, group: str) -> list[int]:
        return [PID] if self.active.get(group.rpartition("sglang-")[2][:-8]) == "active" else []

    def processes(self, gpus: Any = ()) -> list[GpuProcess]:
        return [one for one in self.on_gpus if not gpus or one.gpu in gpus]

    # what a test asks for

    def installed(self, name: str = "a", launch: str = "L1", active: str = "active") -> str:
        (systemd.UNIT_FOLDER / f"sglang-{name}.service").write_text(f"{LAUNCH_LINE}{launch}\nX={launch}\n")
        self.active[name] = active
        self.enabled.add(name)
        return self.kept(name, launch)

    def kept(self, name: str, launch: str, proved: bool = True, **record: Any) -> str:
        folder = self.host.launch_folder(name, launch)
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "launch": launch, "instance": name, "release": str(self.host.release), "model": "hub/m", "user": "nobody",
            "port": 30000, "host": "127.0.0.1", "args": {"tp_size": 2}, "number": len(list(folder.parent.iterdir())),
        }  # fmt: skip
        (folder / "launch.json").write_text(json.dumps({**told, **record}))
        (folder / "unit").write_text(f"{LAUNCH_LINE}{launch}\nX={launch}\n")
        if proved:
            (folder / "verdict.json").write_text("{}")
        return launch

    def asked(self, **how: Any) -> Asked:
        plain: dict[str, Any] = {
            "accept_changes": {}, "share_gpus": False, "plan": "refuse", "reload_beside_docker": False,
            "restart": False, "change": True,
        }  # fmt: skip
        return Asked(self.host, **{**plain, **how})

    def plan(self, *names: str, **how: Any) -> service.Plan:
        return service.started([asked(name) for name in names or ("a",)], self.asked(**how))


def asked(name: str = "a", gpus: tuple[int, ...] = (0,)) -> Instance:
    return Instance(name, "hub/m", "127.0.0.1", 30000, gpus, {}, {}, {})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    (tmp_path / "units").mkdir()
    (made.host.release / "venv/bin").mkdir(parents=True)
    (made.host.release / "venv/bin/python").touch()
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "chown", lambda *_: None)
        monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(systemd, "UNIT_FOLDER", tmp_path / "units")
    monkeypatch.setattr(systemd, "_systemctl", made.systemctl)
    monkeypatch.setattr(systemd, "run", made.run)
    monkeypatch.setattr(systemd, "running_launch", lambda pid: "L0" if pid == PID else None)
    monkeypatch.setattr(processes, "in_cgroup", made.in_cgroup)
    monkeypatch.setattr(release_record, "schema", lambda path: {})
    monkeypatch.setattr(launches, "TAKEN", tmp_path / "taken")
    monkeypatch.setattr(launches, "check", made.check)
    monkeypatch.setattr(launches, "compare", made.compare)
    monkeypatch.setattr(health, "verify", made.verify)
    monkeypatch.setattr(preflights, "preflight", made.preflight)
    monkeypatch.setattr(gpu, "processes", made.processes)
    monkeypatch.setattr(gpu, "memory_used", lambda: made.used)
    return made


def proved(machine: Machine, launch: str = "L1") -> bool:
    return launches.is_good(machine.host.state, "a", launch)


@pytest.fixture
def serving(machine: Machine) -> Machine:
    """A host whose instance a was started and not proved yet."""
    machine.installed()
    (machine.host.launch_folder("a", "L1") / "verdict.json").unlink()
    machine.verdicts["a"] = [{"launch": "L1", "tokens": 8}]
    return machine


@pytest.mark.parametrize("change", [True, False])
def test_what_serves_as_asked_is_left_alone(serving: Machine, change: bool) -> None:
    plan = serving.plan(change=change)
    assert plan.instances == [{"name": "a", "launch": "L1", "reasons": []}]
    assert (plan.orders, plan.problems, plan.diff) == ([], [], [])
    assert plan.verdicts == [{"launch": "L1", "tokens": 8}]
    assert proved(serving) == change
    assert not [call for call in serving.calls if call.startswith("preflight")]


def test_what_still_loads_is_followed(serving: Machine) -> None:
    serving.verdicts["a"] = [LOADING]
    plan = serving.plan()
    (order,) = plan.orders
    assert (order.instance, order.prepare) == ("a", None)
    assert (plan.instances[0]["reasons"], plan.problems, plan.verdicts) == ([], [], [])
    assert not proved(serving)


def test_what_hangs_twice_is_replaced(serving: Machine) -> None:
    serving.verdicts["a"] = [HUNG, HUNG]
    plan = serving.plan()
    assert plan.instances[0]["reasons"] == ["it hangs"]
    assert plan.orders[0].prepare is not None
    assert "preflight a True" in serving.calls and not proved(serving)


def test_what_hung_for_a_moment_is_left_alone(serving: Machine) -> None:
    serving.verdicts["a"] = [HUNG, {"launch": "L1"}]
    plan = serving.plan()
    assert (plan.instances[0]["reasons"], plan.orders, plan.verdicts) == ([], [], [{"launch": "L1"}])


@pytest.mark.parametrize("was_proved", [True, False])
def test_what_has_too_much_to_do_is_left_alone_and_proved_first_if_nobody_has(
    serving: Machine, was_proved: bool
) -> None:
    if was_proved:
        launches.keep_verdict(serving.host.state, "a", "L1", {})
    serving.verdicts["a"] = [BUSY]
    plan = serving.plan()
    assert (plan.problems, plan.verdicts, plan.instances[0]["reasons"]) == ([], [], [])
    assert plan.notes == (["it is busy"] if was_proved else [])
    assert [(order.instance, order.prepare) for order in plan.orders] == ([] if was_proved else [("a", None)])


@pytest.mark.parametrize("change", [True, False])
@pytest.mark.parametrize(
    ("verdicts", "reasons", "orders"),
    [([{"launch": "L1"}], [], 0), ([LOADING], [], 1), ([HUNG, HUNG], ["it hangs"], 1)],
    ids=["serves", "loads", "hangs"],
)
def test_what_is_only_not_enabled_is_enabled_without_another_launch(
    serving: Machine, verdicts: list[Any], reasons: list[str], orders: int, change: bool
) -> None:
    serving.enabled.clear()
    serving.reasons["a"], serving.verdicts["a"] = ["not enabled"], list(verdicts)
    plan = serving.plan(change=change)
    assert plan.instances[0]["reasons"] == ["not enabled", *reasons]
    assert (len(plan.orders), len(plan.verdicts)) == (orders, 1 - orders)
    assert all((order.prepare is not None) == bool(reasons) for order in plan.orders)
    assert serving.enabled == ({"a"} if change else set())


def test_what_else_differs_is_enabled_with_its_next_launch(serving: Machine) -> None:
    serving.enabled.clear()
    serving.reasons["a"] = ["configuration differs", "not enabled"]
    assert serving.plan().orders[0].prepare is not None
    assert serving.enabled == set() and "verify a" not in serving.calls


def test_a_secret_that_stood_in_the_unit_is_not_in_the_diff(serving: Machine) -> None:
    secrets = {"X": "hf_" + "a1B2" * 6, "HEADER": "Bearer abcdefgh", "MY_API_KEY": "two words", "HF_TOKEN": "never"}
    lines = [f'Environment="{name}={value}"\n' for name, value in {**secrets, "PORT": "1"}.items()]
    serving.before, serving.reasons["a"] = "".join(lines), ["configuration differs"]
    (diff,) = serving.plan(change=False).diff
    told = diff["before"].splitlines(keepends=True)
    assert len(told) == len(lines) and told[-1] == lines[-1]
    assert not [
        part for value in secrets.values() for part in value.split() if part in diff["before"] and part != "Bearer"
    ]
    assert all(f"{name}=" in line for name, line in zip(secrets, told))


@pytest.mark.parametrize("first", [[], [HUNG]])
@pytest.mark.parametrize("problem", [Unhealthy("other arguments than requested"), Refused("the record is damaged")])
def test_what_was_proved_and_serves_otherwise_is_a_problem_and_is_left_alone(
    serving: Machine, first: list[Exception], problem: Exception
) -> None:
    launches.keep_verdict(serving.host.state, "a", "L1", {})
    serving.verdicts["a"] = [*first, problem]
    plan = serving.plan()
    assert (plan.problems, plan.orders, plan.instances[0]["reasons"]) == ([str(problem)], [], [])


def test_what_nobody_has_proved_and_serves_otherwise_is_followed_so_that_it_gives_way(serving: Machine) -> None:
    serving.verdicts["a"] = [Unhealthy("other arguments than requested")]
    plan = serving.plan()
    (order,) = plan.orders
    assert (order.prepare, plan.problems) == (None, []) and not proved(serving)


@pytest.mark.parametrize(
    ("verdict", "was_proved", "reasons", "anew"),
    [
        (Unhealthy("other arguments than requested"), False, ["it was seen to fail"], [True]),
        (Unhealthy("other arguments than requested"), True, [], []),
        (LOADING, False, [], [False]),
        (COMPUTING, False, [], [False]),
        (Refused("systemd does not answer"), False, [], [False]),
    ],
    ids=["fails still", "was proved since", "loads again", "only computes", "nobody knows"],
)
def test_what_failed_and_was_left_for_want_of_a_better_one_is_started_anew(
    serving: Machine, verdict: Exception, was_proved: bool, reasons: list[str], anew: list[bool]
) -> None:
    """What it failed for may be over, for example another process on its GPU."""
    launches.keep_failure(serving.host.state, "a", "L1", "15 requests at a time, not 16", ())
    if was_proved:
        launches.keep_verdict(serving.host.state, "a", "L1", {})
    serving.verdicts["a"] = [verdict]
    plan = serving.plan()
    assert plan.instances[0]["reasons"] == reasons
    assert [order.prepare is not None for order in plan.orders] == anew
    assert ("preflight a True" in serving.calls) == bool(reasons)


@pytest.mark.parametrize("accepted", [{}, {"max_running_requests": "enough"}], ids=["as before", "accepted now"])
def test_what_failed_again_as_it_was_is_left_until_something_else_is_asked(
    serving: Machine, accepted: dict[str, str]
) -> None:
    launches.keep_failure(serving.host.state, "a", "L1", "15 requests at a time, not 16", ())
    serving.installed(launch="L2")
    (serving.host.launch_folder("a", "L2") / "verdict.json").unlink()
    launches.keep_failure(serving.host.state, "a", "L2", "15 requests at a time, not 16", ())
    serving.verdicts["a"] = [Unhealthy("other arguments than requested")]
    plan = serving.plan(accept_changes=accepted)
    assert plan.instances[0]["reasons"] == (["it was seen to fail"] if accepted else [])
    assert [order.prepare is not None for order in plan.orders] == ([True] if accepted else [])
    (problem,) = plan.problems or [""]
    assert ("other arguments" in problem and "sglang_server_state=restarted" in problem) == (not accepted)


def test_all_is_checked_before_the_first_is_looked_at(serving: Machine) -> None:
    serving.reasons["b"] = ["not installed"]
    serving.plan("a", "b")
    order = [call.split()[0] for call in serving.calls]
    assert order == ["check", "check", "compare", "compare", "verify", "show", "preflight"]


def test_a_plan_touches_nothing(serving: Machine) -> None:
    serving.reasons = {"a": ["configuration differs"], "b": ["not installed"]}
    plan = serving.plan("a", "b")
    assert [order.instance for order in plan.orders] == ["a", "b"]
    assert not {call.split()[0] for call in serving.calls} - {"check", "compare", "preflight", "show"}
    assert plan.diff == [
        {"before": "before", "after": "after", "before_header": unit, "after_header": unit}
        for unit in (str(systemd.UNIT_FOLDER / f"sglang-{name}.service") for name in "ab")
    ]


def test_what_was_asked_of_sglang_is_in_the_record(machine: Machine) -> None:
    machine.reasons["a"] = ["not installed"]
    (order,) = machine.plan(accept_changes={"page_size": "measured"}).orders
    assert order.gpus == (0,) and order.prepare is not None
    prepared = order.prepare()
    record = json.loads((machine.host.launch_folder("a", prepared.launch) / "launch.json").read_text())
    told = {key: record[key] for key in ("accepted", "accept_changes", "resolved", "warnings")}
    assert told == {
        "accepted": {}, "accept_changes": {"page_size": "measured"}, "resolved": {"a": 1}, "warnings": ["W"],
    }  # fmt: skip


def test_one_that_sglang_would_refuse_keeps_all_from_being_started(machine: Machine) -> None:
    machine.reasons = {"a": ["not installed"], "b": ["not installed"], "c": ["not installed"]}
    machine.problems = {"a": "no a", "c": "no c"}
    for change in (True, False):
        with pytest.raises(Refused, match=r"^no a; no c$"):
            machine.plan("a", "b", "c", change=change)


@pytest.fixture
def planned(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host on which a fits, b fits for other than was asked, and c does not fit."""
    told = {
        "a": Fit(record={"kv_tokens": 1}),
        "b": Fit(warnings=("b: fits, but",)),
        "c": Fit(problems=("c: does not fit",)),
    }

    def fits(candidates: list[Candidate], state: Path, accepted: Any, leaving: Any) -> dict[str, Fit]:
        assert (state, set(accepted)) == (machine.host.state, {"page_size"})
        assert all((one.version, one.resolved) == ("0.5.23", {"a": 1}) for one in candidates)
        return {one.instance.name: told[one.instance.name] for one in candidates}

    monkeypatch.setattr(fit_module, "fits", fits)
    machine.reasons = {name: ["not installed"] for name in told}
    return machine


def test_what_was_planned_is_in_the_record_and_told(planned: Machine) -> None:
    plan = planned.plan("a", "b", accept_changes={"page_size": "measured"})
    assert plan.notes == ["b: fits, but"]
    for order, record in zip(plan.orders, ({"kv_tokens": 1}, None)):
        assert order.prepare is not None
        prepared = order.prepare()
        folder = planned.host.launch_folder(order.instance, prepared.launch)
        assert json.loads((folder / "launch.json").read_text())["plan"] == record


def test_one_that_does_not_fit_keeps_all_from_being_started_unless_that_is_overruled(planned: Machine) -> None:
    accept = {"page_size": "measured"}
    with pytest.raises(Refused, match=r"^c: does not fit\. Nothing was stopped$"):
        planned.plan("a", "c", accept_changes=accept)
    plan = planned.plan("a", "c", accept_changes=accept, plan="warn")
    assert [order.instance for order in plan.orders] == ["a", "c"] and plan.notes == ["c: does not fit"]
    plan = planned.plan("a", "c", plan="skip")  # asks nobody
    assert [order.instance for order in plan.orders] == ["a", "c"] and plan.notes == []


def test_a_check_mode_keeps_nothing(machine: Machine) -> None:
    machine.reasons["a"] = ["not installed"]
    assert machine.plan(change=False).orders
    assert "preflight a False" in machine.calls


def test_a_restart_is_of_what_serves_too(serving: Machine) -> None:
    serving.reasons["b"] = ["not installed"]
    plan = serving.plan("a", "b", restart=True)
    assert [one["reasons"] for one in plan.instances] == [
        ["a restart is asked for"],
        ["not installed", "a restart is asked for"],
    ]
    assert [order.instance for order in plan.orders] == ["a", "b"]
    assert "verify a" not in serving.calls  # it is replaced whatever it is


def test_a_model_that_is_still_to_be_fetched_is_not_asked_about(serving: Machine) -> None:
    serving.reasons["a"] = ["the model differs"]
    model = serving.host.state / "models/m"
    serving.host = dataclasses.replace(serving.host, awaited=(str(model),))
    instances = [dataclasses.replace(asked(), model=str(model))]
    plan = service.started(instances, serving.asked(change=False))
    told = f"instance 'a': its model {model} is still to be fetched, so SGLang was not asked about it"
    assert (plan.orders, plan.notes, plan.instances[0]["reasons"]) == ([], [told], ["the model differs"])
    model.mkdir(parents=True)
    (model / "config.json").touch()
    plan = service.started(instances, serving.asked(change=False))
    assert len(plan.orders) == 1 and told not in plan.notes


def test_without_a_release_nothing_is_started(serving: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_record, "schema", lambda path: None)
    serving.reasons["a"] = ["not installed"]
    with pytest.raises(Refused, match=r"there is no release in .*/release: install it with sglang_release first"):
        serving.plan()
    plan = serving.plan(change=False)
    assert (plan.orders, plan.instances[0]["reasons"]) == ([], ["not installed"])


OURS = Process(PID, "python -m sglang", "sglang", 60, ("/system.slice/sglang-a.service",), None)
TRAINING = Process(99, "python train.py", "alice", 7200, ("/user.slice",), None)


@pytest.fixture
def differs(serving: Machine) -> Machine:
    serving.reasons["a"] = ["configuration differs"]
    serving.on_gpus = [GpuProcess(PID, 70000, 0, OURS)]
    serving.used = {0: 70400, 1: 0}
    return serving


def test_the_memory_of_ones_own_server_is_nobody_elses(differs: Machine) -> None:
    assert differs.plan().orders


def test_a_stranger_on_the_gpu_is_named_and_nothing_is_stopped(differs: Machine) -> None:
    differs.on_gpus.append(GpuProcess(99, 9000, 0, TRAINING))
    with pytest.raises(GpuHeld) as held:
        differs.plan()
    assert str(held.value) == (
        "instance 'a': its GPU is held by process 99 of user alice (python train.py), for 2 h: 9000 MiB of GPU 0. "
        "Nothing was stopped. Next: end that where it runs, or let the instance share the GPU by "
        "sglang_server_share_gpus"
    )
    assert not [call for call in differs.calls if call.startswith("preflight")]
    assert differs.plan(share_gpus=True).orders


def test_a_stranger_on_another_gpu_is_left_out(differs: Machine) -> None:
    differs.on_gpus.append(GpuProcess(99, 9000, 1, TRAINING))
    differs.used = {0: 70400, 1: 9000}
    assert differs.plan().orders
    with pytest.raises(GpuHeld, match="process 99 of user alice"):
        service.started([asked(gpus=())], differs.asked())  # all of them are its own


def test_a_stranger_is_no_matter_to_what_serves(differs: Machine) -> None:
    differs.on_gpus.append(GpuProcess(99, 9000, 0, TRAINING))
    differs.reasons = {}
    assert differs.plan().verdicts


def test_memory_that_this_host_can_not_see_the_holder_of(differs: Machine) -> None:
    differs.used[0] = 79000
    with pytest.raises(GpuHeld, match=r"held by 9000 MiB of GPU 0 by what this host does not see. Nothing was stopped"):
        differs.plan()


def test_a_process_that_this_host_does_not_see(differs: Machine) -> None:
    differs.on_gpus.append(GpuProcess(99, 9000, 0, None))
    with pytest.raises(GpuHeld, match=r"process 99, which this host does not see .*: 9000 MiB of GPU 0. Nothing"):
        differs.plan()


@pytest.mark.parametrize("told", [[], [GpuProcess(99, 70000, 0, None)]])
def test_a_driver_that_tells_of_no_process_does_not_blame_ones_own_server(
    differs: Machine, told: list[GpuProcess]
) -> None:
    differs.on_gpus = told
    assert differs.plan().orders
    # without a server of ours it is somebody else's
    differs.active["a"] = "inactive"
    with pytest.raises(GpuHeld, match=r"which this host does not see|what this host does not see"):
        differs.plan()


class Old:
    """A server that somebody has started by hand and that holds a GPU."""

    label, pids, ended, port = "process 99 of user alice", frozenset({99}), False, 30000
    forgotten = False

    def forget(self) -> None:
        self.forgotten = True


@pytest.fixture
def by_hand(differs: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host on which such a server is in the place of an instance that does not run."""
    differs.active["a"] = "inactive"
    differs.on_gpus = [GpuProcess(99, 9000, 0, TRAINING)]
    differs.used = {0: 9000}
    differs.old = Old()

    def server_at(name: str, port: int, drain: int) -> Old | None:
        differs.calls.append(f"at {name} {port} {drain}")
        return differs.old if name == "a" else None

    monkeypatch.setattr(take_over, "server_at", server_at)
    return differs


@pytest.mark.parametrize("change", [True, False])
def test_a_server_that_was_started_by_hand_gives_way_where_that_is_asked(by_hand: Machine, change: bool) -> None:
    plan = by_hand.plan(take_over=True, change=change)
    assert [order.old for order in plan.orders] == [by_hand.old] and "at a 30000 60" in by_hand.calls
    assert plan.instances[0]["reasons"] == [
        "configuration differs", "it takes the place of process 99 of user alice",
    ]  # fmt: skip
    assert plan.notes == ["instance 'a' takes the place of process 99 of user alice, which is ended for that"]
    assert by_hand.checked["a"] == {99} and not by_hand.old.forgotten
    # another one on its GPU is still somebody else's
    by_hand.on_gpus.append(GpuProcess(98, 9000, 0, dataclasses.replace(TRAINING, pid=98)))
    with pytest.raises(GpuHeld, match="process 98 of user alice"):
        by_hand.plan(take_over=True)


def test_it_is_not_ended_again_for_what_has_failed(by_hand: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that runs each night with the option would end it each night."""
    monkeypatch.setattr(launches, "failed_so", lambda one, host, schema: one.name == "a")
    with pytest.raises(
        Refused, match=r"instance 'a' is just what has failed before, so that process 99 .* is not ended"
    ):
        by_hand.plan(take_over=True)
    assert [order.old for order in by_hand.plan(take_over=True, restart=True).orders] == [by_hand.old]
    by_hand.old.ended = True
    assert by_hand.plan(take_over=True).orders, "nothing serves"


def test_it_is_left_alone_where_that_is_not_asked(by_hand: Machine) -> None:
    with pytest.raises(GpuHeld, match="process 99 of user alice"):
        by_hand.plan()
    assert by_hand.checked["a"] == () and "at a 30000 60" not in by_hand.calls


def test_the_place_of_another_instance_is_not_taken_for_it(by_hand: Machine) -> None:
    by_hand.installed("b", active="inactive")
    by_hand.reasons["b"] = ["not installed"]
    with pytest.raises(GpuHeld, match="instance 'b': its GPU is held by process 99"):
        by_hand.plan("a", "b", take_over=True)


def test_a_driver_that_tells_of_no_process_does_not_blame_it(by_hand: Machine) -> None:
    by_hand.on_gpus = []
    assert by_hand.plan(take_over=True).orders


def test_an_instance_that_serves_takes_no_place(serving: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_over, "server_at", lambda *_: pytest.fail("it was looked for"))
    serving.reasons["a"] = ["configuration differs"]
    assert serving.plan(take_over=True).orders[0].old is None


@pytest.fixture
def interrupted(by_hand: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host on which a run was ended when it had ended that server."""
    launches.TAKEN.mkdir()
    (launches.TAKEN / "a.json").touch()
    by_hand.old.ended, by_hand.old.pids = True, frozenset()  # type: ignore[misc]
    by_hand.on_gpus, by_hand.used = [], {}
    monkeypatch.setattr(take_over, "interrupted", lambda name: by_hand.old if name == "a" else None)
    monkeypatch.setattr(take_over, "server_at", lambda *_: None)
    return by_hand


@pytest.mark.parametrize("take", [True, False])
def test_what_an_earlier_run_has_ended_is_what_the_next_one_returns_to(interrupted: Machine, take: bool) -> None:
    plan = interrupted.plan(take_over=take)
    assert [order.old for order in plan.orders] == [interrupted.old] and plan.notes == []
    (told,) = service.unfinished(["a", "b"])
    assert told.startswith(
        "instance 'a': an earlier deployment has ended process 99 of user alice, which does not serve again"
    )
    assert service.unfinished(["b"]) == []


def test_what_was_started_by_hand_meanwhile_comes_before_it(
    interrupted: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Old()
    monkeypatch.setattr(take_over, "server_at", lambda *_: newer)
    assert interrupted.plan(take_over=True).orders[0].old is newer


@pytest.mark.parametrize("verdict", [LOADING, {"launch": "L1"}])
def test_a_launch_that_is_in_its_place_already_is_proved_or_gives_way(interrupted: Machine, verdict: Any) -> None:
    interrupted.reasons, interrupted.active["a"] = {}, "active"
    interrupted.verdicts["a"] = [verdict]
    plan = interrupted.plan()
    serves = verdict is not LOADING
    assert [(order.prepare, order.old) for order in plan.orders] == ([] if serves else [(None, interrupted.old)])
    assert interrupted.old.forgotten == serves


def test_it_comes_back_where_its_instance_is_refused(interrupted: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refused("'tp_sise' is no option")
    listening: list[int] = []
    monkeypatch.setattr(sockets, "listeners", lambda port: listening if port == 30000 else [])
    plan = service.returning(["a", "b"], refused)
    assert [(one.instance, one.prepare, one.old) for one in plan.orders] == [("a", None, interrupted.old)]
    assert plan.problems == [str(refused)]
    assert plan.instances == [{"name": "a", "launch": "L1", "reasons": ["process 99 of user alice comes back"]}]
    listening.append(1)
    with pytest.raises(Refused, match="tp_sise"):  # somebody else has its port
        service.returning(["a", "b"], refused)
    listening.clear()
    interrupted.active["a"] = "active"
    with pytest.raises(Refused, match="tp_sise"):  # what came in its place may serve
        service.returning(["a", "b"], refused)


def test_a_proof_by_anybody_makes_the_launch_what_to_return_to(interrupted: Machine) -> None:
    launches.keep_verdict(interrupted.host.state, "a", "L1", {})
    assert not (launches.TAKEN / "a.json").exists()


def test_who_stops_an_instance_does_not_want_it_back(interrupted: Machine) -> None:
    (done,) = service.stopped(["a"], interrupted.host.state, False)
    assert "it would return to a server that was started by hand" in done["reasons"]
    assert (launches.TAKEN / "a.json").exists()
    service.stopped(["a"], interrupted.host.state, True)
    assert not (launches.TAKEN / "a.json").exists()


def test_an_instance_is_stopped_once(machine: Machine) -> None:
    machine.installed()
    for change in (False, True):
        (done,) = service.stopped(["a"], machine.host.state, change)
        assert done == {"name": "a", "launch": "L1", "reasons": ["service is active (sub)", "it is started at boot"]}
        assert machine.active["a"] == ("inactive" if change else "active")
    assert "a" not in machine.enabled
    machine.calls.clear()
    assert service.stopped(["a"], machine.host.state, True) == [{"name": "a", "launch": "L1", "reasons": []}]
    assert machine.calls == ["show sglang-a.service"]
    assert systemd.read_unit("a") and proved(machine)


def test_a_failed_instance_is_stopped_too(machine: Machine) -> None:
    machine.installed(active="failed")
    (done,) = service.stopped(["a"], machine.host.state, True)
    assert done["reasons"][0] == "service is failed (sub)"
    assert machine.active["a"] == "inactive" and "a" not in machine.enabled


def test_a_removed_instance_leaves_nothing(machine: Machine) -> None:
    machine.installed()
    machine.installed("b")
    for change in (False, True):
        (done,) = service.stopped(["a"], machine.host.state, change, remove=True)
        assert done["reasons"][-1] == "it is installed"
        assert bool(systemd.read_unit("a")) == (machine.host.state / "a").exists() == (not change)
    assert service.stopped(["a"], machine.host.state, True, remove=True) == [
        {"name": "a", "launch": None, "reasons": []}
    ]
    assert machine.active["b"] == "active" and systemd.read_unit("b") and (machine.host.state / "b").exists()


def test_what_only_left_its_folder_is_removed(machine: Machine) -> None:
    machine.kept("a", "L1")
    (done,) = service.stopped(["a"], machine.host.state, True, remove=True)
    assert (done["launch"], done["reasons"]) == (None, ["it is installed"])
    assert not (machine.host.state / "a").exists()


@pytest.mark.parametrize("remove", [False, True])
def test_a_unit_of_somebody_else_is_not_touched(machine: Machine, remove: bool) -> None:
    unit = systemd.UNIT_FOLDER / "sglang-a.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/mine\n")
    machine.active["a"] = "active"
    (done,) = service.stopped(["a"], machine.host.state, True, remove=remove)
    assert (done["reasons"], machine.calls, unit.exists()) == ([], [], True)
    machine.kept("a", "L1")
    service.stopped(["a"], machine.host.state, True, remove=True)
    assert (machine.calls, unit.exists()) == ([], True)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "A", "/etc"])
@pytest.mark.parametrize("remove", [False, True])
def test_only_the_folder_of_an_instance_is_removed(machine: Machine, name: str, remove: bool) -> None:
    machine.installed()
    with pytest.raises(Refused, match=r"is no name of an instance: correct 'names'"):
        service.stopped([name], machine.host.state, True, remove=remove)
    assert proved(machine)


def test_what_can_not_be_removed_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(path: Path, **_: Any) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    machine.installed()
    monkeypatch.setattr(service.shutil, "rmtree", busy)  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"/state/a: Device or resource busy"):
        service.stopped(["a"], machine.host.state, True, remove=True)


def test_an_instance_that_can_not_be_ended_stays_installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.installed()
    monkeypatch.setattr(processes, "in_cgroup", lambda group: [os.getpid()])
    with pytest.raises(Refused, match=f"process {os.getpid()} of user .* can not be ended"):
        service.stopped(["a"], machine.host.state, True, remove=True)
    assert systemd.read_unit("a") and proved(machine)


def test_a_rollback_is_to_the_newest_good_launch_before(machine: Machine) -> None:
    machine.kept("a", "L0")
    machine.kept("a", "L1")
    machine.kept("a", "L2", proved=False)
    machine.installed(launch="L3")
    plan = service.rolled_back(["a"], machine.host.state, None, False)
    assert plan.instances == [{"name": "a", "launch": "L3", "reasons": ["it returns to launch L1"]}]
    (order,) = plan.orders
    assert order.instance == "a" and order.prepare is not None
    prepared = order.prepare()
    assert prepared.launch not in ("L0", "L1", "L2", "L3") and f"X={prepared.launch}\n" in prepared.unit
    record = json.loads((machine.host.launch_folder("a", prepared.launch) / "launch.json").read_text())
    assert (record["again"], record["launch"]) == ("L1", prepared.launch)


def test_a_rollback_is_to_the_launch_that_was_named(machine: Machine) -> None:
    machine.kept("a", "L0")
    machine.kept("a", "L1")
    machine.installed(launch="L2")
    plan = service.rolled_back(["a"], machine.host.state, "L0", False)
    assert plan.instances[0]["reasons"] == ["it returns to launch L0"]


def test_a_rollback_to_nothing_is_refused_before_anything_is_done(machine: Machine) -> None:
    machine.kept("b", "L0")
    machine.installed("b", "L1")
    machine.installed()
    with pytest.raises(Refused, match="instance 'a' has no earlier launch that was proved to serve: deploy it"):
        service.rolled_back(["b", "a"], machine.host.state, None, False)
    with pytest.raises(Refused, match="launch L9 of instance 'a' is not kept in"):
        service.rolled_back(["a"], machine.host.state, "L9", False)
    assert not {call.split()[0] for call in machine.calls} - {"show"}


@pytest.mark.parametrize("change", [{}, {"args": {"nccl_port": 30005}}])
def test_a_rollback_to_a_port_that_another_has_is_refused_before_anything_is_done(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    def listeners(port: int) -> list[Listener]:
        return [stranger] if port == wanted else []

    wanted = 30005 if change else 30000
    stranger = Listener(99, "python", "alice", None, ("/user.slice",), None)
    monkeypatch.setattr(sockets, "listeners", listeners)
    machine.kept("b", "L0", port=30001)
    machine.installed("b")
    machine.kept("a", "L0", **change)
    machine.installed()
    for share in (False, True):
        with pytest.raises(Refused, match=f"^instance 'a': port {wanted} is held by process 99 of user alice"):
            service.rolled_back(["b", "a"], machine.host.state, None, share)
    assert not {call.split()[0] for call in machine.calls} - {"show"}
    stranger = Listener(PID, "python", "sglang", None, ("/system.slice/sglang-a.service",), None)
    assert service.rolled_back(["b", "a"], machine.host.state, None, False).orders


def test_a_rollback_to_a_gpu_that_another_has_is_refused_before_anything_is_done(machine: Machine) -> None:
    machine.kept("a", "L0", gpus=[0])
    machine.kept("a", "L1", gpus=[1])
    machine.installed(launch="L2")
    machine.on_gpus = [GpuProcess(PID, 70000, 0, OURS), GpuProcess(99, 9000, 1, TRAINING)]
    machine.used = {0: 70400, 1: 9000}
    with pytest.raises(GpuHeld, match=r"^instance 'a': its GPU is held by process 99 of user alice .* of GPU 1"):
        service.rolled_back(["a"], machine.host.state, None, False)
    assert not {call.split()[0] for call in machine.calls} - {"show"}
    assert service.rolled_back(["a"], machine.host.state, None, True).orders
    assert service.rolled_back(["a"], machine.host.state, "L0", False).orders


def test_what_is_known_of_instances(machine: Machine) -> None:
    machine.kept("a", "L0", proved=False)
    (machine.host.launch_folder("a", "L0") / "failure.json").touch()
    machine.installed()
    machine.kept("a", "L1", again="L0")
    found = service.gathered(["a", "gone"], machine.host.state)
    assert found[1] == {"name": "gone", "launch": None, "service": "not installed"}
    assert found[0] == {
        "name": "a", "launch": "L1", "running_launch": "L0", "service": "active (sub)", "enabled": True,
        "main_pid": PID, "invocation": "i", "restarts": 2, "proved": True, "again": "L0", "args": {"tp_size": 2},
        "host": "127.0.0.1", "model": "hub/m", "port": 30000, "release": str(machine.host.release),
        "launches": [
            {"launch": "L0", "proved": False, "failed": True}, {"launch": "L1", "proved": True, "failed": False},
        ],
    }  # fmt: skip
    assert set(machine.calls) == {"show sglang-a.service"}


def test_what_is_known_of_an_instance_without_a_record(machine: Machine) -> None:
    machine.installed()
    (machine.host.launch_folder("a", "L1") / "launch.json").write_text("{")
    (found,) = service.gathered(["a"], machine.host.state)
    assert (found["launch"], found["model"], found["service"]) == ("L1", None, "active (sub)")


def test_what_is_only_not_enabled_stays_so_beside_docker(serving: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_gpus, "containers", lambda: ["container 1a of docker"])
    serving.reasons["a"] = ["not enabled"]
    with pytest.raises(Refused, match="container 1a of docker"):
        serving.plan("a")
    assert "enable --quiet" not in serving.calls
    serving.plan("a", reload_beside_docker=True)
    assert "enable --quiet" in serving.calls
