# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Unhealthy, Verdict, Wait
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, only_one
from ansible_collections.gpuops.sglang.plugins.modules import sglang_health
from conftest import call_module


class Machine:
    """A host whose instances have made-up verdicts."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.kept: list[tuple[Any, ...]] = []
        self.problems: dict[str, Exception] = {}
        self.drift: dict[str, list[str]] = {}
        self.beside: list[str] = []
        self.faults: list[str] = []

    def verify(self, state: Path, name: str, wait: Wait, requests: list[str]) -> dict[str, Any]:
        self.asked.append((state, name, wait, requests))
        if name in self.problems:
            raise self.problems[name]
        return {"instance": name, "launch": f"L-{name}"}

    def drift_of(self, state: Path, name: str) -> list[str]:
        assert state == STATE
        return self.drift.get(name, [])

    def gpu_faults(self, state: Path, names: list[str]) -> list[str]:
        assert (state, names) == (STATE, ["a", "b"])
        return self.faults

    def keep_verdict(self, *how: Any) -> None:
        self.kept.append(how)

    def check(self, **more: Any) -> dict[str, Any]:
        return call_module(sglang_health, {"instances": ["a", "b"], **more})


STATE = Path("/var/lib/sglang")
BOTH = [{"instance": name, "launch": f"L-{name}", "drift": []} for name in "ab"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    for name in ("verify", "drift_of", "gpu_faults", "keep_verdict"):
        monkeypatch.setattr(sglang_health, name, getattr(made, name))
    monkeypatch.setattr(sglang_health, "beside", lambda: made.beside)
    monkeypatch.setattr(sglang_health, "require_root", lambda: None)
    monkeypatch.setattr(sglang_health, "LOCK", tmp_path / "lock")
    return made


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_serves_is_told_and_kept(machine: Machine, check_mode: bool) -> None:
    result = machine.check(_ansible_check_mode=check_mode)
    assert (result["changed"], result["verdicts"]) == (False, BOTH)
    assert machine.asked == [(STATE, name, Wait(limit=120), []) for name in "ab"]
    assert machine.kept == ([] if check_mode else [(STATE, one["instance"], one["launch"], one) for one in BOTH])


def test_how_long_and_what_is_asked(machine: Machine) -> None:
    machine.check(timeout=5, requests=["structured_output", "chat"])
    assert machine.asked[0][2:] == (Wait(limit=5), ["structured_output", "chat"])
    assert "one or more of: chat, structured_output" in machine.check(requests=["poem"])["msg"]


@pytest.mark.parametrize("problem", [Unhealthy("'a' ended", "hung"), Refused("'a' is not there")])
def test_every_instance_is_told_of_though_one_does_not_serve(machine: Machine, problem: Exception) -> None:
    machine.problems = {"a": problem}
    result = machine.check()
    assert result["failed"] and (result["msg"], result["verdicts"]) == (str(problem), BOTH[1:])
    machine.problems["b"] = Unhealthy("'b' too")
    assert machine.check()["msg"] == f"{problem}\n'b' too"


def test_a_deployment_that_is_at_work_is_told_and_keeps_its_own_verdicts(machine: Machine) -> None:
    with only_one(sglang_health.LOCK, "starts", 0):
        result = machine.check()
        assert "failed" not in result and result["verdicts"] == BOTH  # what serves needs no excuse
        machine.problems = {"a": Unhealthy("'a' ended")}
        failure, deployment = machine.check()["msg"].splitlines()
        assert failure == "'a' ended" and machine.kept == []
        why = f"A deployment is at work, which may be why: process {os.getpid()} still starts instances on this host"
        assert deployment.startswith(why)
    # somebody has held the lock, and does so no more
    assert machine.check()["msg"] == "'a' ended" and [name for _, name, *_ in machine.kept] == ["b"]


def test_what_was_changed_by_hand_is_a_failure_beside_the_verdict(machine: Machine) -> None:
    machine.drift["a"] = ["the unit was changed: deploy again", "the release was changed: deploy again"]
    result = machine.check()
    assert result["failed"] and result["verdicts"] == [{**BOTH[0], "drift": machine.drift["a"]}, BOTH[1]]
    assert result["msg"].splitlines() == [f"instance 'a' serves, but {sentence}" for sentence in machine.drift["a"]]


def test_servers_that_nobody_supervises_are_no_failure(machine: Machine) -> None:
    machine.beside = ["process 99 of user alice"]
    result = machine.check()
    (warning,) = result["warnings"]
    assert "failed" not in result and warning.endswith("nobody supervises it: process 99 of user alice")
    machine.beside = []
    assert machine.check()["warnings"] == []


def test_only_root_can_tell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Refused("needs root")

    monkeypatch.setattr(sglang_health, "require_root", refuse)
    assert machine.check()["msg"] == "needs root" and machine.asked == []


def test_all_of_a_verdict_is_documented() -> None:
    (documented,) = yaml.safe_load(sglang_health.RETURN).values()
    assert set(documented["contains"]) == {*(field.name for field in dataclasses.fields(Verdict)), "drift"}


def test_a_gpu_that_the_next_start_can_not_use_is_a_failure_though_all_serves(machine: Machine) -> None:
    machine.faults = ["libcuda is of 580.95.05, the kernel module of 580.159.04: install the same"]
    told = machine.check()
    assert told["failed"] and told["verdicts"] == BOTH
    assert told["msg"] == f"the GPUs of this host are not as a start needs them: {machine.faults[0]}"
