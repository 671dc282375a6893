# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol on a made-up host whose supervisor keeps state; the launches' files are real.

A test asks in the end which launch the host runs, and what the operator was told.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, health, processes, protocol
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Order, Outcome
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity, LogLine, launch_of

WAIT = health.Wait(stall=60)
PID = os.getpid()  # of the made-up servers: a real process has a label
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Machine:
    """A host. `faults` are step -> what goes wrong, if anything, the next times that it is done."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.units: dict[str, str] = {}
        self.running: dict[str, str] = {}  # instance -> launch of its process
        self.steps: list[str] = []
        self.told: list[tuple[str, str, str | None]] = []
        self.faults: dict[str, list[Exception | None]] = {}
        self.survives = 0  # how many stops a process survives
        self.memory: list[list[GpuProcess]] = []  # what the driver tells, one look after the other

    def step(self, name: str, instance: str = "") -> None:
        self.steps.append(f"{name} {instance}".strip())
        for faults in filter(None, map(self.faults.get, {name, f"{name} {instance}"})):
            fault = faults.pop(0)
            if fault:
                raise fault

    # what systemd, the kernel and the server do

    def install(self, instance: str, text: str) -> None:
        self.step("write", instance)
        self.units[instance] = text
        self.step("install", instance)

    def stop(self, instance: str) -> None:
        self.step("stop", instance)
        if self.survives:
            self.survives -= 1
        else:
            self.running.pop(instance, None)

    def start(self, instance: str) -> None:
        self.step("start", instance)
        assert instance not in self.running, "two servers of an instance at a time"
        self.running[instance] = launch_of(self.units[instance]) or ""

    def disable(self, instance: str) -> None:
        self.step("disable", instance)

    def remove(self, instance: str) -> None:
        self.step("remove", instance)
        assert instance not in self.running, "systemd forgets of what runs"
        del self.units[instance]

    def identity(self, instance: str) -> Identity:
        self.step("identity", instance)
        active, pid = ("active", PID) if instance in self.running else ("inactive", 0)
        cgroup = f"/system.slice/sglang-{instance}.service" if pid else ""
        return Identity(active, "sub", "success", pid, "i", cgroup, True, 0, "", {})

    def in_cgroup(self, cgroup: str) -> list[int]:
        self.step("processes")
        return [PID] if cgroup.rpartition("sglang-")[2].partition(".")[0] in self.running else []

    def gpu_processes(self) -> list[GpuProcess]:
        self.step("memory")
        return self.memory.pop(0) if self.memory else []

    def verify(self, state: Path, instance: str, wait: health.Wait) -> dict[str, Any]:
        self.step("verify", instance)
        assert (state, wait) == (self.host.state, WAIT)
        if "MOOD=bad" in self.units[instance] or not self.serves(instance):
            raise health.Unhealthy(f"instance '{instance}' does not serve")
        return {"launch": self.running[instance], "stages": {}}

    def log_of(self, launch: str, count: int) -> list[LogLine]:
        self.step("log")
        return [LogLine(0.0, f"log of {launch}", "i")]

    def do_really(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        self.step(name, args[1])
        return real(*args)

    # what a test asks for and looks at

    def serves(self, instance: str = "a") -> bool:
        """Tell whether a good launch runs, and is the one that a restart of the host would start."""
        unit = self.units[instance]
        return self.running.get(instance) == launch_of(unit) and "MOOD=bad" not in unit

    def asked(self, mood: str, instance: str = "a", port: int = 30000) -> Instance:
        return Instance(instance, "hub/model", "127.0.0.1", port, (), {}, {"MOOD": mood}, {})

    def order(self, mood: str = "good", instance: str = "a", gpus: tuple[int, ...] = ()) -> Order:
        prepare = partial(launches.prepare, self.asked(mood, instance), self.host, {}, {})

        def prepared() -> launches.Prepared:
            self.step("prepare", instance)
            return prepare()

        return Order(instance, gpus, prepared)

    def take(self, mood: str = "good", **how: Any) -> tuple[Outcome, Old]:
        """Have an instance come in the place of a server that was started by hand."""
        old = Old(self, **how)
        (outcome,) = self.do(replace(self.order(mood), old=old))
        return outcome, old

    def do(self, *orders: Order) -> list[Outcome]:
        return protocol.carry_out(orders, self.host.state, WAIT, self.tell)

    def tell(self, instance: str, phase: str, launch: str | None, problem: str = "") -> None:
        self.told.append((instance, phase, launch))
        self.step("tell")

    def deploy(self, mood: str = "good", instance: str = "a") -> str:
        """Bring a launch to the host as an earlier deployment did, and return its id."""
        (outcome,) = self.do(self.order(mood, instance))
        self.steps.clear()
        self.told.clear()
        assert outcome.launch
        return outcome.launch

    def folder(self, launch: str) -> Path:
        return self.host.launch_folder("a", launch)

    def origin(self, launch: str | None) -> str:
        """Return which launch a return started again."""
        again: str = launches._read_record(self.folder(launch or ""))["again"]  # type: ignore[index]
        return again


class Old:
    """A server that somebody has started by hand; what is done with it are steps of the host."""

    label = "process 4711"

    def __init__(self, machine: Machine, ended: bool = False) -> None:
        self.machine, self.ended, self.serves, self.kept = machine, ended, not ended, False
        self.pids, self.rivals = (4711,), ""

    def keep(self) -> None:
        self.machine.step("keep")
        self.kept = True

    def end(self, tell: Callable[[str], None]) -> None:
        tell("ending process 4711")
        assert self.kept and not self.machine.running
        self.ended = True
        self.machine.step("end")
        self.serves = False

    def again(self, tell: Callable[[str], None]) -> str:
        assert not self.machine.running, "the old command would find its port taken"
        self.machine.step("again")
        self.serves = True
        return "process 4712"

    def rival(self) -> str:
        return self.rivals

    def forget(self) -> None:
        self.machine.step("forget")
        self.kept = False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(Host(tmp_path / "release", "nobody", tmp_path / "state"))
    (made.host.release / "venv/bin").mkdir(parents=True)
    (made.host.release / "venv/bin/python").touch()
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "chown", lambda *_: None)
        monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(launches, "TAKEN", tmp_path / "taken")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of small files
    monkeypatch.setattr(systemd, "read_unit", lambda instance: made.units.get(instance, ""))
    monkeypatch.setattr(systemd, "running_launch", lambda pid: "L" if pid else None)
    monkeypatch.setattr(systemd, "log_of", made.log_of)
    monkeypatch.setattr(processes, "in_cgroup", made.in_cgroup)
    monkeypatch.setattr(gpu, "processes", made.gpu_processes)
    monkeypatch.setattr(gpu, "device", lambda: "cuda")
    monkeypatch.setattr(health, "verify", made.verify)
    for name in ("install", "stop", "start", "identity", "disable", "remove"):
        monkeypatch.setattr(systemd, name, getattr(made, name))
    for name in ("keep_verdict", "keep_failure", "prepare_again"):
        monkeypatch.setattr(launches, name, partial(made.do_really, name, getattr(launches, name)))
    numbers = itertools.count()
    monkeypatch.setattr(launches, "_new_id", lambda: f"20260101T000000Z-{next(numbers):06}")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return made


@pytest.mark.parametrize(
    ("orders", "device", "waves"),
    [
        ([("a", 0), ("b", 1)], "cuda", ["ab"]),
        ([("a", 0, 1), ("b", 1, 2), ("c", 2)], "cuda", ["ac", "b"]),
        ([("a", 0), ("b", 0), ("c", 0), ("d", 1)], "cuda", ["ad", "b", "c"]),
        ([("a",), ("b", 0), ("c", 1)], "cuda", ["a", "bc"]),  # none named: all of them
        ([("b", 1), ("a",)], "cuda", ["b", "a"]),
        ([("a",), ("b",), ("c", 0), ("d", 0)], None, ["abcd"]),
        ([], "cuda", []),
    ],
)
def test_what_shares_a_gpu_does_not_load_at_a_time(
    monkeypatch: pytest.MonkeyPatch, orders: list[tuple[Any, ...]], device: str | None, waves: list[str]
) -> None:
    monkeypatch.setattr(gpu, "device", lambda: device)
    found = protocol.waves([Order(name, tuple(gpus)) for name, *gpus in orders])
    assert ["".join(order.instance for order in wave) for wave in found] == waves


def test_the_next_wave_begins_when_the_one_before_is_proved(machine: Machine) -> None:
    names = {"a": (0,), "b": (0,), "c": (1,)}
    outcomes = machine.do(*(machine.order(instance=name, gpus=gpus) for name, gpus in names.items()))
    assert [outcome.problem for outcome in outcomes] == ["", "", ""]
    assert [outcome.instance for outcome in outcomes] == ["a", "c", "b"]
    seen = [step for step in machine.steps if step.split()[0] in ("start", "verify")]
    assert seen[:2] == ["start a", "start c"] and seen[4:] == ["start b", "verify b"]
    assert {*seen[2:4]} == {"verify a", "verify c"}


@pytest.mark.parametrize("known", [True, False], ids=["it runs", "it is new"])
def test_after_a_problem_the_next_wave_is_not_touched(machine: Machine, known: bool) -> None:
    present = machine.deploy(instance="b") if known else None
    orders = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}
    outcomes = machine.do(*(machine.order("bad" if name == "c" else "good", name, orders[name]) for name in orders))
    assert [one.instance for one in outcomes] == ["a", "c", "b", "d"]
    assert machine.serves("a") and outcomes[0].problem == "" and "does not serve" in outcomes[1].problem
    for name, launch, outcome in zip("bd", (present, None), outcomes[2:]):
        assert (outcome.launch, outcome.serving, machine.running.get(name)) == (launch, None, launch)
        why = "was not touched, because another instance of this host has failed"
        assert outcome.problem == f"instance '{name}' {why}"
    assert not {step for step in machine.steps if step.split()[-1] in ("b", "d")}


def test_a_launch_that_fails_returns_while_another_one_of_its_wave_still_loads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, returned, waited = machine.deploy(instance="b"), threading.Event(), []

    def verify(state: Path, instance: str, wait: health.Wait) -> dict[str, Any]:
        if instance == "a":
            waited.append(returned.wait(30))
        verdict = machine.verify(state, instance, wait)
        if instance == "b":
            returned.set()
        return verdict

    monkeypatch.setattr(health, "verify", verify)
    outcomes = machine.do(machine.order(gpus=(0,)), machine.order("bad", "b", (1,)))
    assert waited == [True]
    assert [one.instance for one in outcomes] == ["a", "b"]  # in the order of the wave
    assert machine.serves("a") and machine.serves("b") and f"what launch {old} was" in outcomes[1].problem


def test_two_instances_may_change_their_gpus(machine: Machine) -> None:
    """Neither finds the memory of its new GPU taken by what the other one was."""
    for name in ("a", "b"):
        machine.deploy(instance=name)
    outcomes = machine.do(machine.order(instance="a", gpus=(1,)), machine.order(instance="b", gpus=(0,)))
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    seen = [step for step in machine.steps if step.split()[0] in ("start", "stop")]
    assert seen == ["stop a", "stop b", "start a", "start b"]


def test_a_first_launch(machine: Machine) -> None:
    (outcome,) = machine.do(machine.order())
    assert (outcome.serving, outcome.launch, outcome.problem) == (machine.running["a"], machine.running["a"], "")
    assert outcome.verdict == {"launch": outcome.launch, "stages": {}}
    assert machine.serves() and launches.is_good(machine.host.state, "a", outcome.launch or "")
    assert machine.told == [("a", "starting", outcome.launch), ("a", "loading", outcome.launch)]
    assert "stop a" not in machine.steps


def test_a_launch_that_replaces_another_one(machine: Machine) -> None:
    old = machine.deploy()
    (outcome,) = machine.do(machine.order())
    assert machine.serves() and outcome.serving == machine.running["a"] != old
    seen = [step.split()[0] for step in machine.steps if step.split()[0] not in ("tell", "identity", "processes")]
    assert seen == ["prepare", "write", "install", "stop", "memory", "start", "verify", "keep_verdict"]
    assert [phase for _, phase, _ in machine.told] == ["stopping", "starting", "loading"]


@pytest.mark.parametrize("step", ["prepare", "write", "install"])
@pytest.mark.parametrize("error", [Refused("no"), FULL, KeyError("x")], ids=repr)
def test_nothing_is_stopped_while_the_new_launch_can_not_be_put_in_place(
    machine: Machine, step: str, error: Exception
) -> None:
    old = machine.deploy()
    unit = machine.units["a"]
    machine.faults = {step: [error]}
    (outcome,) = machine.do(machine.order())
    assert (machine.running["a"], machine.units["a"]) == (old, unit)
    assert not {"stop a", "start a", "verify a"} & set(machine.steps)
    assert (outcome.launch, outcome.serving) == (old, None)
    assert str(error) in outcome.problem and outcome.problem.endswith("\nNothing was stopped.")


def test_the_unit_is_put_back_though_systemd_takes_it_as_badly(machine: Machine) -> None:
    machine.deploy()
    unit = machine.units["a"]
    machine.faults = {"install": [Refused("systemctl daemon-reload failed"), Refused("again")]}
    machine.do(machine.order())
    assert machine.units["a"] == unit and machine.serves()


@pytest.mark.parametrize("silent", [1, 2, 99])
def test_a_driver_that_does_not_answer_when_all_has_ended_is_asked_again_for_a_while(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """It keeps no state, and needs long for its first answer after the last process."""
    slept: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=lambda _: slept.append(protocol.MEMORY_BACK / 3))
    monkeypatch.setattr(protocol, "time", clock)
    old = machine.deploy()
    machine.faults = {"memory": [Refused("nvidia-smi does not answer")] * min(silent, 5)}
    (outcome,) = machine.do(machine.order(gpus=(0,)))
    assert machine.serves() and not machine.faults["memory"]
    if silent < 99:
        assert (outcome.problem, machine.steps.count("stop a")) == ("", 1) and outcome.serving != old
    else:
        assert outcome.problem.startswith("nvidia-smi does not answer\nServing now: what launch ")
        assert machine.steps.count("memory") == 5 and machine.origin(outcome.serving) == old


FORWARD = ("prepare", "write", "install", "identity", "processes", "stop", "memory", "start", "verify")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (step, error)
        for step in (*FORWARD, "keep_verdict")
        for error in (Refused("no"), FULL, KeyError("x"), RuntimeError("no"))
        if not (step == "memory" and isinstance(error, Refused))
    ],
    ids=repr,
)
def test_whatever_goes_wrong_a_good_launch_runs_in_the_end(machine: Machine, step: str, error: Exception) -> None:
    old = machine.deploy()
    machine.faults = {step if step in ("processes", "memory") else f"{step} a": [error]}
    outcome, other = machine.do(machine.order(gpus=(0,)), machine.order(instance="b", gpus=(1,)))
    assert machine.serves()
    assert machine.faults.popitem()[1] == []
    assert str(error) in outcome.problem
    assert outcome.launch == launch_of(machine.units["a"])
    if step in FORWARD[:3]:
        assert machine.running["a"] == old
    else:
        assert outcome.serving == machine.running["a"] and outcome.verdict
    if step in FORWARD[3:]:
        assert machine.origin(outcome.serving) == old
        assert (
            f"\nServing now: what launch {old} was, as launch {outcome.serving}, which was proved." in outcome.problem
        )
    assert machine.serves("b") and (other.problem, other.serving) == ("", machine.running["b"])


def test_a_launch_that_serves_is_not_given_up_for_a_full_disk(machine: Machine) -> None:
    old = machine.deploy()
    machine.faults = {"keep_verdict": [Refused("can not write verdict.json: No space left on device")]}
    (outcome,) = machine.do(machine.order())
    assert machine.serves() and outcome.serving == machine.running["a"] != old
    assert machine.steps.count("stop a") == 1
    assert outcome.problem == "can not write verdict.json: No space left on device"


def test_a_return_that_can_not_be_written_down_serves_all_the_same(machine: Machine) -> None:
    old = machine.deploy()
    machine.faults = {"keep_verdict": [Refused("can not write verdict.json")]}
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves() and outcome.serving == machine.running["a"]
    assert f"\nServing now: what launch {old} was, as launch {outcome.serving}, " in outcome.problem
    assert outcome.problem.endswith("can not write verdict.json")


def test_a_launch_needs_nobody_to_tell_of_it(machine: Machine) -> None:
    old = machine.deploy()
    machine.faults = {"tell": [FULL] * 9}
    (outcome,) = machine.do(machine.order())
    assert machine.serves() and outcome.serving != old and not outcome.problem
    machine.faults = {"tell": [FULL] * 9}
    (failed,) = machine.do(machine.order("bad"))
    assert machine.serves() and machine.origin(failed.serving) == outcome.launch


@pytest.mark.parametrize("step", ["log", "keep_failure"])
@pytest.mark.parametrize("error", [Refused("no journal"), FULL, ValueError("no JSON")], ids=repr)
def test_a_failure_that_can_not_be_kept_does_not_stop_the_return(machine: Machine, step: str, error: Exception) -> None:
    machine.deploy()
    machine.faults = {step: [error]}
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves()
    assert "does not serve" in outcome.problem and "Serving now" in outcome.problem


def test_a_failed_launch_returns_to_what_served_before(machine: Machine) -> None:
    old = machine.deploy()
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves() and outcome.serving == machine.running["a"]
    failed = next(launch for _, phase, launch in machine.told if phase == "starting")
    assert outcome.problem == (
        "instance 'a' does not serve\n"
        f"Serving now: what launch {old} was, as launch {outcome.serving}, which was proved."
    )
    assert outcome.verdict == {"launch": outcome.serving, "stages": {}}
    assert machine.origin(outcome.serving) == old
    assert (machine.folder(failed or "") / "failure.log").read_text() == f"log of {failed}\n"
    assert "does not serve" in (machine.folder(failed or "") / "failure.json").read_text()
    assert not launches.is_good(machine.host.state, "a", failed or "")
    assert [phase for _, phase, _ in machine.told][3:] == ["returning", "stopping", "starting", "loading"]


@pytest.mark.parametrize("followed", [False, True])
def test_a_launch_that_has_too_much_to_do_is_not_given_up(machine: Machine, followed: bool) -> None:
    old = present = machine.deploy()
    if followed:
        present = machine.deploy()
        (machine.folder(present) / "verdict.json").unlink()
    machine.faults = {"verify": [health.Unhealthy("no turn", "busy")]}
    (outcome,) = machine.do(Order("a") if followed else machine.order())
    assert machine.running["a"] == outcome.launch == launch_of(machine.units["a"]) != old
    assert (outcome.problem, outcome.serving) == ("no turn", None) and "prepare_again" not in " ".join(machine.steps)
    assert followed == (outcome.launch == present)
    assert not (machine.folder(outcome.launch or "") / "failure.json").exists()


def test_a_launch_that_fills_the_disk_gives_way_to_what_served_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, really = machine.deploy(), launches.write_whole
    room: list[int] = []  # of the disk, once it is full

    def used() -> int:
        return sum(path.stat().st_size for path in machine.host.state.rglob("*") if path.is_file())

    def write(path: Path, text: str, *how: Any) -> None:
        if room and used() + len(text) > room[0]:
            raise Refused(f"can not write {path}: {FULL.strerror}")
        really(path, text, *how)

    def verify(*how: Any) -> dict[str, Any]:
        room[:] = room or [used()]
        return machine.verify(*how)

    monkeypatch.setattr(launches, "write_whole", write)
    monkeypatch.setattr(health, "verify", verify)
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves() and machine.origin(outcome.serving) == old
    assert FULL.strerror not in outcome.problem and launches.is_good(machine.host.state, "a", outcome.serving or "")
    # and nothing is stopped for the next one where there is no room for the way back
    (next_one,) = machine.do(machine.order())
    assert machine.serves() and machine.running["a"] == outcome.serving
    assert FULL.strerror in next_one.problem and next_one.problem.endswith("\nNothing was stopped.")


def test_without_a_proof_of_what_was_there_it_returns_to_the_last_good_one(machine: Machine) -> None:
    good = machine.deploy()
    unproved = machine.deploy()
    (machine.folder(unproved) / "verdict.json").unlink()
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves() and machine.origin(outcome.serving) == good


def test_what_can_not_be_started_any_more_is_passed_over(machine: Machine) -> None:
    good, gone = machine.deploy(), machine.deploy()
    (machine.folder(gone) / "unit").unlink()
    (outcome,) = machine.do(machine.order("bad"))
    assert machine.serves() and machine.origin(outcome.serving) == good


@pytest.mark.parametrize("keep", [1, 5])
def test_a_failed_rollback_returns_to_what_it_was_to_replace(machine: Machine, keep: int) -> None:
    """And not to what is older still; how few launches are kept is no hindrance."""
    machine.deploy()
    old, present = machine.deploy(), machine.deploy()
    record = machine.folder(old) / "launch.json"
    record.write_text(record.read_text().replace('"keep": 5', f'"keep": {keep}'))
    machine.faults = {"verify": [health.Unhealthy("no")]}
    (outcome,) = machine.do(Order("a", (), partial(launches.prepare_again, machine.host.state, "a", old)))
    assert machine.serves() and machine.origin(outcome.serving) == present


def test_a_first_launch_that_fails_has_nothing_to_return_to(machine: Machine) -> None:
    (outcome,) = machine.do(machine.order("bad"))
    assert (outcome.serving, outcome.verdict) == (None, None)
    assert outcome.problem == (
        "instance 'a' does not serve\n"
        "Serving now: nothing that was proved; there is no earlier launch to return to\n"
        "The service is left as it is, active (sub)."
    )
    assert (machine.folder(outcome.launch or "") / "failure.json").exists()


CAUSE, SECOND = Refused("the first cause"), KeyError("the second cause")


@pytest.mark.parametrize(
    "faults",
    [
        {"start a": [CAUSE], "prepare_again": [SECOND]},
        {"start a": [CAUSE], "write a": [None, SECOND]},
        {"start a": [CAUSE], "install a": [None, SECOND]},
        {"start a": [CAUSE, SECOND]},
        {"start a": [CAUSE], "verify a": [SECOND]},
    ],
)
def test_a_return_that_fails_too_is_told_and_hurts_no_other_instance(
    machine: Machine, faults: dict[str, list[Exception | None]]
) -> None:
    old = machine.deploy()
    machine.faults = {step: [*those] for step, those in faults.items()}
    outcome, other = machine.do(machine.order(gpus=(0,)), machine.order(instance="b", gpus=(1,)))
    assert (outcome.serving, outcome.verdict) == (None, None)
    assert outcome.problem.startswith("the first cause\nServing now: nothing that was proved; the return to launch ")
    assert f"{old} failed too: this tool failed: " in outcome.problem and "the second cause" in outcome.problem
    assert "\nThe service is left as it is, " in outcome.problem
    assert outcome.launch == launch_of(machine.units["a"])
    # the next deployment knows by it that what is left there failed
    assert launches.has_failed(machine.host.state, "a", outcome.launch or "")
    reports = [path.read_text() for path in machine.folder(old).parent.glob("*/failure.json")]
    assert sum('"report": "the first cause"' in report for report in reports) == 1
    assert other.serving == machine.running["b"]


def test_a_host_that_answers_nothing_any_more_keeps_the_cause(machine: Machine) -> None:
    machine.deploy()
    machine.faults = {"start": [Refused("the cause")], "prepare_again": [FULL], "identity": [None, Refused("no D-Bus")]}
    (outcome,) = machine.do(machine.order())
    assert outcome.problem.startswith("the cause\nServing now: nothing that was proved; ")
    assert outcome.problem.endswith("\nno D-Bus")


def test_a_launch_that_still_loads_is_followed(machine: Machine) -> None:
    launch = machine.deploy()
    (machine.folder(launch) / "verdict.json").unlink()
    (outcome,) = machine.do(Order("a"))
    assert (outcome.serving, outcome.launch, outcome.problem) == (launch, launch, "")
    assert launches.is_good(machine.host.state, "a", launch)
    assert machine.told == [("a", "loading", launch)]
    assert machine.steps == ["tell", "verify a", "keep_verdict a"]


def test_a_followed_launch_that_was_never_proved_returns(machine: Machine) -> None:
    good, loading = machine.deploy(), machine.deploy()
    (machine.folder(loading) / "verdict.json").unlink()
    machine.faults = {"verify": [health.Unhealthy("it ended")]}
    (outcome,) = machine.do(Order("a"))
    assert machine.serves() and machine.origin(outcome.serving) == good
    assert outcome.problem.startswith("it ended\nServing now: ")
    assert (machine.folder(loading) / "failure.json").exists()


def test_a_followed_launch_that_served_once_is_left_to_its_supervisor(machine: Machine) -> None:
    machine.deploy()
    present = machine.deploy()
    machine.faults = {"verify": [health.Unhealthy("it is slow")]}
    (outcome,) = machine.do(Order("a"))
    assert machine.running["a"] == present and "stop a" not in machine.steps
    assert (outcome.problem, outcome.serving, outcome.launch) == ("it is slow", None, present)


def test_a_process_that_does_not_end_is_named_and_the_way_back_is_tried(machine: Machine) -> None:
    old = machine.deploy()
    machine.survives = 1
    (outcome,) = machine.do(machine.order())
    assert f"process {PID} of user " in outcome.problem and "can not be ended" in outcome.problem
    assert machine.serves() and machine.origin(outcome.serving) == old


def test_no_server_is_started_beside_one_that_does_not_end(machine: Machine) -> None:
    machine.deploy()
    machine.survives = 9
    (outcome,) = machine.do(machine.order())
    assert machine.steps.count("stop a") == 2 and "start a" not in machine.steps
    assert outcome.problem.count("can not be ended") == 2
    assert "Serving now: nothing that was proved" in outcome.problem


def test_memory_that_the_driver_keeps_is_named_and_the_way_back_is_tried(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = machine.deploy()
    monkeypatch.setattr(protocol, "MEMORY_BACK", -1)
    machine.memory = [[GpuProcess(PID, 70000, 3, None)]]
    (outcome,) = machine.do(machine.order())
    assert "the driver still counts process" in outcome.problem and "70000 MiB of GPU 3: see dmesg" in outcome.problem
    assert machine.serves() and machine.origin(outcome.serving) == old


def test_memory_is_waited_for_and_that_of_others_is_not(machine: Machine) -> None:
    machine.deploy()
    ours, other = GpuProcess(PID, 70000, 3, None), GpuProcess(PID + 1, 9000, 3, None)
    machine.memory = [[other, ours], [ours], [other]]
    (outcome,) = machine.do(machine.order())
    assert machine.serves() and not outcome.problem
    assert machine.steps.count("memory") == 3


def test_a_server_that_has_ended_by_itself_is_replaced(machine: Machine) -> None:
    machine.deploy()
    machine.running.clear()
    (outcome,) = machine.do(machine.order())
    assert machine.serves() and not outcome.problem
    assert [phase for _, phase, _ in machine.told] == ["starting", "loading"]


# in the place of a server that was started by hand


def order_of(steps: list[str], *named: str) -> list[str]:
    return [step for step in steps if step in named]


def test_a_server_gives_way_when_all_is_written_down_and_is_forgotten_when_the_launch_is_proved(
    machine: Machine,
) -> None:
    outcome, old = machine.take()
    assert outcome.problem == "" and outcome.serving == outcome.launch and machine.serves()
    named = "keep", "prepare a", "install a", "end", "start a", "verify a", "keep_verdict a", "forget", "again"
    assert order_of(machine.steps, *named) == [
        "keep", "prepare a", "install a", "end", "start a", "verify a", "keep_verdict a", "forget",
    ]  # fmt: skip
    assert machine.told[0] == ("a", "ending process 4711", None) and not old.serves


def test_what_has_failed_just_so_is_known(machine: Machine) -> None:
    assert not launches.failed_so(machine.asked("bad"), machine.host, {}), "there is no launch"
    machine.take("bad")
    assert launches.failed_so(machine.asked("bad"), machine.host, {})
    assert not launches.failed_so(machine.asked("good"), machine.host, {})
    assert not launches.failed_so(replace(machine.asked("bad"), secrets={"api_key": "x"}), machine.host, {})
    machine.take("good")
    assert not launches.failed_so(machine.asked("good"), machine.host, {}), "it was proved"


def test_what_starts_the_old_server_again_beside_a_launch_that_serves_is_told(machine: Machine) -> None:
    old = Old(machine)
    old.rivals = "something has started it again"
    (outcome,) = machine.do(replace(machine.order(), old=old))
    told = f"Serving now: launch {outcome.launch}, which was proved, but something has started it again."
    assert (outcome.serving, outcome.problem) == (outcome.launch, told) and machine.serves() and not old.kept


def test_a_launch_that_fails_gives_way_to_the_server_that_was_there(machine: Machine) -> None:
    outcome, old = machine.take("bad")
    assert outcome.problem == "instance 'a' does not serve\nServing now: process 4712."
    assert (outcome.launch, outcome.serving) == (None, None)
    named = "end", "start a", "keep_failure a", "disable a", "stop a", "remove a", "again", "forget"
    assert order_of(machine.steps, *named) == list(named)
    assert old.serves and not old.kept and machine.units == {}
    assert ("a", "returning to what served before", None) in machine.told


@pytest.mark.parametrize("step", ["keep", "prepare", "write"])
def test_what_fails_before_it_is_ended_leaves_it_as_it_is(machine: Machine, step: str) -> None:
    machine.faults[step] = [Refused("no")]
    outcome, old = machine.take()
    assert outcome.problem == "no\nNothing was stopped." and old.serves and not old.kept
    assert not {"end", "again", "start a", "stop a"} & {*machine.steps}


@pytest.mark.parametrize("step", ["end", "start", "verify"])
def test_what_fails_after_that_is_told_with_what_serves_now(machine: Machine, step: str) -> None:
    machine.faults[step] = [Refused("no")]
    outcome, old = machine.take()
    assert outcome.problem == "no\nServing now: process 4712." and old.serves and machine.units == {}


def test_a_way_back_that_fails_is_told_too_and_can_be_tried_again(machine: Machine) -> None:
    machine.faults["again"] = [Refused("it has ended")]
    outcome, old = machine.take("bad")
    assert outcome.problem == (
        "instance 'a' does not serve\nServing now: nothing that was proved; the return to what served before failed "
        f"too: it has ended. What its start needs is kept in {launches.TAKEN}/a.json until this host restarts"
    )
    assert old.kept
    (outcome,) = machine.do(replace(machine.order("bad"), old=old))
    assert outcome.problem.endswith("Serving now: process 4712.") and old.serves and not old.kept


@pytest.mark.parametrize("step", ["disable", "stop", "remove"])
def test_what_goes_wrong_with_a_failed_launch_does_not_keep_the_old_server_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    really, failed = getattr(machine, step), Refused(f"no {step}")

    def fails(instance: str) -> None:
        if step == "stop":
            really(instance)
        raise failed

    monkeypatch.setattr(systemd, step, fails)
    outcome, old = machine.take("bad")
    assert outcome.problem == f"instance 'a' does not serve\nno {step}\nServing now: process 4712."
    assert old.serves and not old.kept and outcome.launch == launch_of(machine.units.get("a", ""))


def test_memory_of_a_failed_launch_that_is_not_back_does_not_keep_the_old_server_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MEMORY_BACK", -1)
    machine.memory = [[GpuProcess(PID, 70000, 3, None)]]
    outcome, old = machine.take("bad")
    assert "the driver still counts process" in outcome.problem and outcome.problem.endswith(
        "\nServing now: process 4712."
    )
    assert old.serves and machine.units == {}


def test_the_old_server_is_not_started_beside_a_launch_that_does_not_end(machine: Machine) -> None:
    machine.survives = 9
    outcome, old = machine.take("bad")
    assert "can not be ended" in outcome.problem and "Serving now: nothing that was proved" in outcome.problem
    assert "again" not in machine.steps and old.kept and machine.units


def test_a_server_that_an_earlier_run_has_ended_is_what_to_return_to(machine: Machine) -> None:
    machine.faults["prepare"] = [Refused("the disk is full")]
    outcome, old = machine.take(ended=True)
    assert outcome.problem == "the disk is full\nServing now: process 4712." and old.serves
    assert "keep_failure a" not in machine.steps, "there is no launch that has failed"

    outcome, old = machine.take("bad", ended=True)
    assert outcome.problem.endswith("Serving now: process 4712.") and old.serves


def test_a_launch_that_is_followed_returns_to_it_too(machine: Machine) -> None:
    prepared = launches.prepare(machine.asked("bad"), machine.host, {}, {})
    machine.install("a", prepared.unit)
    machine.start("a")
    old = Old(machine, ended=True)
    (outcome,) = machine.do(Order("a", old=old))
    assert outcome.problem == "instance 'a' does not serve\nServing now: process 4712."
    assert old.serves and machine.units == {}


def test_the_old_server_comes_back_where_nothing_is_to_be_launched(machine: Machine) -> None:
    old = Old(machine, ended=True)
    (outcome,) = machine.do(Order("a", old=old))
    assert outcome.problem == "Serving now: process 4712." and old.serves and not old.kept
    assert "verify a" not in machine.steps


def test_an_instance_that_was_not_touched_keeps_what_it_would_replace(machine: Machine) -> None:
    old = Old(machine)
    bad, good = machine.order("bad", "a", (0,)), replace(machine.order("good", "b", (0,)), old=old)
    outcomes = machine.do(bad, good)
    assert "was not touched" in outcomes[1].problem and old.serves and "keep" not in machine.steps
