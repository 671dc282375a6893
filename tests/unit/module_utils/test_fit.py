# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances on a made-up host with two L40S; models, records and their plans are real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import fit, gpu, host_memory
from ansible_collections.gpuops.sglang.plugins.module_utils.fit import Candidate, Fit, fits
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuMemory, GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

MODELS = Path(__file__).parents[1] / "fixtures/memory"
TOTAL, DRIVER = 46068.0, 198.0
PID = 100


class Machine:
    """Two cards; `runs` starts an instance of it, `stranger` something else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.used = {0: DRIVER, 1: DRIVER}
        self.on_gpus: list[GpuProcess] = []
        self.running: dict[str, int] = {}

    def cards(self) -> list[GpuMemory]:
        return [GpuMemory(index, "NVIDIA L40S", TOTAL, TOTAL - used) for index, used in self.used.items()]

    def identity(self, name: str) -> systemd.Identity:
        pid = self.running.get(name, 0)
        group = f"/system.slice/sglang-{name}.service" if pid else ""
        return systemd.Identity("active", "running", "success", pid, "i", group, True, 0, "", {})

    # what a test asks for

    def runs(self, name: str, sizes: dict[int, float], told: bool = True, **record: Any) -> None:
        """Have an instance run that holds so many MiB; the driver tells of its process or does not."""
        pid = self.running[name] = PID + len(self.running)
        for index, size in sizes.items():
            self.used[index] += size
            group = (f"/system.slice/sglang-{name}.service",)
            if told:
                process = Process(pid, "python", "sglang", 1.0, group, None)
                self.on_gpus.append(GpuProcess(pid, size, index, process))
        launch = f"L{len(self.running)}"
        (systemd.UNIT_FOLDER / f"sglang-{name}.service").write_text(f"{systemd.LAUNCH_LINE}{launch}\n")
        self.kept(name, launch, gpus=list(sizes), **record)

    def kept(self, name: str, launch: str, verdict: dict[str, Any] | None = None, **record: Any) -> None:
        folder = self.state / name / "launches" / launch
        folder.mkdir(parents=True)
        told = {"launch": launch, "number": len(list(folder.parent.iterdir())), "args": {}, "model": self.model()}
        (folder / "launch.json").write_text(json.dumps({**told, **record}))
        if verdict is not None:
            (folder / "verdict.json").write_text(json.dumps({"launch": launch, **verdict}))

    def stranger(self, index: int, size: float) -> None:
        self.used[index] += size
        self.on_gpus.append(GpuProcess(9, size, index, Process(9, "train", "bob", 1.0, ("/user.slice",), None)))

    def model(self, name: str = "qwen3-8b") -> str:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        shutil.copy(MODELS / f"{name}.json", folder / "config.json")
        return str(folder)

    def candidate(self, name: str = "a", model: str = "qwen3-8b", **more: Any) -> Candidate:
        resolved = {"device": "cuda", **more.pop("resolved", {})}
        gpus, env = more.pop("gpus", (0,)), more.pop("env", {})
        args = {"load_format": "dummy", "context_length": 4096, **more}
        path = model if model.startswith(("/", "hub/")) else self.model(model)
        return Candidate(Instance(name, path, "127.0.0.1", 1, gpus, args, env, {}), "0.5.11", resolved)

    def fit(self, name: str = "a", accepted: tuple[str, ...] = (), **more: Any) -> Fit:
        return fits([self.candidate(name, **more)], self.state, accepted)[name]

    def others(self, found: Fit) -> list[float]:
        assert found.plan
        return [one["parts"]["others"] for one in found.plan["gpus"]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(systemd, "UNIT_FOLDER", tmp_path / "units")
    monkeypatch.setattr(systemd, "is_here", lambda: True)
    monkeypatch.setattr(systemd, "identity", made.identity)
    monkeypatch.setattr(gpu, "cards", made.cards)
    monkeypatch.setattr(gpu, "device", lambda: "cuda")
    monkeypatch.setattr(gpu, "processes", lambda: made.on_gpus)
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return made


def meminfo(folder: Path, total: float, free: float) -> None:
    (folder / "proc").mkdir()
    lines = (("MemTotal", total), ("MemFree", 1), ("MemAvailable", free))
    (folder / "proc/meminfo").write_text("".join(f"{name}:    {int(size * 2**20)} kB\n" for name, size in lines))


def test_one_that_fits_is_not_spoken_of(machine: Machine) -> None:
    found = machine.fit()
    assert (found.problems, found.warnings) == ((), ())
    assert found.plan and found.plan["fits"] and found.record
    assert found.record["kv_tokens"] == found.plan["kv_tokens"] > 100_000
    assert machine.others(found) == [pytest.approx(DRIVER / 1024, abs=0.001)]
    assert found.record["free_gib"] == pytest.approx((TOTAL - DRIVER) / 1024, abs=0.001)


def test_one_that_does_not_fit_is_refused_with_what_helps(machine: Machine) -> None:
    found = machine.fit(model="qwen36-27b")
    (problem,) = found.problems
    assert (
        problem.startswith("instance 'a': does not fit: ") and "GiB are missing on each GPU for the weights" in problem
    )
    assert "set 'quantization' to fp8" in problem and "sglang_server_plan" in problem
    assert found.plan and not found.plan["fits"]
    assert found.record and found.record["kv_tokens"] is None


def test_what_another_process_holds_stays_held_and_is_named(machine: Machine) -> None:
    machine.stranger(0, 32000)
    found = machine.fit()
    assert machine.others(found) == [pytest.approx((DRIVER + 32000) / 1024, abs=0.001)]
    assert found.problems and any("31.4 GiB in use by others" in text for text in found.warnings)
    assert not machine.fit(gpus=(1,)).problems


@pytest.mark.parametrize("told", [True, False])
def test_what_its_own_launch_holds_counts_as_free(machine: Machine, told: bool) -> None:
    machine.runs("a", {0: 40000}, told)
    found = machine.fit()
    assert machine.others(found) == [pytest.approx(DRIVER / 1024, abs=0.01)]
    assert not found.problems


@pytest.mark.parametrize("told", [True, False])
def test_what_another_instance_holds_does_not(machine: Machine, told: bool) -> None:
    machine.runs("b", {0: 40000}, told)
    assert machine.fit("a").problems
    assert not machine.fit("b").problems


def test_of_two_whose_processes_are_hidden_each_holds_what_was_planned(machine: Machine) -> None:
    machine.runs("a", {0: 15000}, False, plan={"held_mib": {"0": 15000}})
    machine.runs("b", {0: 25000}, False, plan={"held_mib": {"0": 25000}})
    assert machine.others(machine.fit("a")) == [pytest.approx((DRIVER + 25000) / 1024, abs=0.01)]
    assert machine.others(machine.fit("b")) == [pytest.approx((DRIVER + 15000) / 1024, abs=0.01)]


def test_what_is_started_later_finds_what_is_started_before(machine: Machine) -> None:
    first, second = (machine.candidate(name, mem_fraction_static=0.5) for name in "ab")
    found = fits([first, second], machine.state, ())
    assert found["a"].plan and found["b"].plan
    used = sum(found["a"].plan["gpus"][0]["parts"].values()) - found["a"].plan["gpus"][0]["parts"]["rest"]
    assert machine.others(found["b"]) == [pytest.approx(used, abs=0.01)]
    apart = fits([first, machine.candidate("b", gpus=(1,))], machine.state, ())
    assert machine.others(apart["b"]) == [pytest.approx(DRIVER / 1024, abs=0.001)]


def test_an_old_launch_of_a_later_wave_still_holds_its_memory(machine: Machine) -> None:
    machine.runs("b", {0: 30000})
    found = fits([machine.candidate("a"), machine.candidate("b")], machine.state, ())
    assert machine.others(found["a"]) == [pytest.approx((DRIVER + 30000) / 1024, abs=0.01)]


@pytest.mark.parametrize(
    ("how", "first"),
    [
        ({"gpus": ()}, 1.0),
        ({"gpus": (1,)}, 2.0),
        ({"gpus": (), "env": {"CUDA_VISIBLE_DEVICES": "1,0"}}, 2.0),
        ({"gpus": (), "resolved": {"base_gpu_id": 1}}, 2.0),
        ({"gpus": (0, 1), "resolved": {"base_gpu_id": 1}}, 2.0),
    ],
)
def test_the_gpus_are_those_that_the_server_takes(machine: Machine, how: dict[str, Any], first: float) -> None:
    machine.stranger(0, 1024 - DRIVER)
    machine.stranger(1, 2048 - DRIVER)
    assert machine.others(machine.fit(**how)) == [pytest.approx(first, abs=0.001)]


def test_every_other_gpu(machine: Machine) -> None:
    machine.used.update({2: 1024.0, 3: DRIVER})
    found = machine.fit(gpus=(), tp_size=2, resolved={"gpu_id_step": 2})
    assert machine.others(found) == [pytest.approx(DRIVER / 1024, abs=0.001), pytest.approx(1.0, abs=0.001)]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"model": "hub/m"}, "a name on a hub"),
        ({"gpus": (7,)}, "no GPU 7"),
        ({"gpus": (), "env": {"CUDA_VISIBLE_DEVICES": "GPU-08f6"}}, "CUDA_VISIBLE_DEVICES is GPU-08f6"),
        ({"resolved": {"nnodes": 2}}, "'nnodes'"),
        ({"tp_size": 2}, "need 2 GPUs"),
    ],
)
def test_what_can_not_be_planned_is_said_and_not_refused(machine: Machine, how: dict[str, Any], why: str) -> None:
    found = machine.fit(**how)
    assert (found.problems, found.plan, found.record) == ((), None, None)
    (warning,) = found.warnings
    assert warning.startswith("instance 'a': memory is not planned: ") and why in warning


def test_a_model_that_is_not_understood_is_not_refused(machine: Machine) -> None:
    found = machine.fit(enable_lora=True)
    assert not found.problems and found.plan and found.plan["fits"] is None
    assert any(text.startswith("instance 'a': can not be told: 'enable_lora'") for text in found.warnings)


def test_a_server_on_the_cpu_has_no_plan(machine: Machine) -> None:
    assert machine.fit(resolved={"device": "cpu"}) == Fit()


def test_without_a_gpu_that_is_told_there_is_no_plan(machine: Machine) -> None:
    machine.used.clear()
    found = machine.fit()
    assert found.plan is None and "nvidia-smi tells of no GPU" in found.warnings[0]


def test_requests_that_can_not_run_at_a_time_are_refused_beforehand(machine: Machine) -> None:
    asked = {"model": "qwen36-27b", "quantization": "fp8", "max_running_requests": 200, "mem_fraction_static": 0.85}
    found = machine.fit(**asked)
    assert found.plan and found.plan["fits"]
    effective = found.plan["effective_max_running_requests"]
    (problem,) = found.problems
    assert (
        f"fits, but 200 requests requested, {effective} effective: set 'max_running_requests' to {effective},"
        in problem
    )
    accepted = machine.fit(accepted=("max_running_requests",), **asked)
    assert not accepted.problems and f"{effective} effective" in accepted.warnings[0]
    assert not machine.fit(**{**asked, "max_running_requests": effective}).problems


def test_what_lacks_less_than_a_plan_is_exact_is_tried(machine: Machine) -> None:
    low, high = 0.0, TOTAL - DRIVER
    while high - low > 1:  # the most that another may hold
        middle = (low + high) / 2
        machine.used[0] = DRIVER + middle
        low, high = (low, middle) if machine.fit(mem_fraction_static=0.9).problems else (middle, high)
    machine.used[0] = DRIVER + low
    found = machine.fit(mem_fraction_static=0.9)
    assert found.plan and not found.plan["fits"] and not found.problems
    assert any("closer than a plan is exact" in text for text in found.warnings)
    room = TOTAL - machine.used[0]
    machine.used[0] -= fit.EXACT * TOTAL
    assert machine.fit(mem_fraction_static=0.9).plan["fits"], room  # type: ignore[index]


def test_what_sglang_resolves_otherwise_counts(machine: Machine) -> None:
    plain = machine.fit()
    other = machine.fit(resolved={"mem_fraction_static": 0.5, "page_size": 1})
    same = machine.fit(resolved={"mem_fraction_static": 0.5}, mem_fraction_static=0.7)
    asked = machine.fit(mem_fraction_static=0.5)
    assert plain.plan and other.plan and asked.plan and same.plan
    assert other.plan["kv_tokens"] == asked.plan["kv_tokens"] < same.plan["kv_tokens"] < plain.plan["kv_tokens"]


def good(kv_tokens: int, **measured: float) -> dict[str, Any]:
    return {"kv_tokens": kv_tokens, "measured": measured}


def test_the_next_plan_learns_from_the_last_good_launch(machine: Machine) -> None:
    first = machine.fit()
    assert first.record and first.plan
    args = dict(machine.candidate().instance.args)
    took = {"before": first.record["free_gib"] - 1.2, "weights": first.record["weights_gib"] + 0.5, "graphs": 2.0}
    machine.kept("a", "L1", good(123_456, **took), args=args, plan=first.record)
    machine.kept("a", "L2", args={**args, "tp_size": 2}, plan=first.record)  # was never proved
    next_one = machine.fit()
    assert next_one.plan
    parts = next_one.plan["gpus"][0]["parts"]
    assert (parts["context"], parts["graphs"]) == (pytest.approx(1.2, abs=0.01), 2.0)
    assert parts["weights"] == pytest.approx(took["weights"], abs=0.001)
    assert any(f"said {first.record['kv_tokens']} KV tokens, and there were 123456" in note
               for note in next_one.plan["notes"])  # fmt: skip
    # pools alone differ: what weights take is known, what graphs take is not
    parts = machine.fit(mem_fraction_static=0.6).plan["gpus"][0]["parts"]  # type: ignore[index]
    assert parts["weights"] == pytest.approx(took["weights"], abs=0.001) and parts["graphs"] != 2.0
    # other weights, other model: nothing of it is known but the context of CUDA
    parts = machine.fit(quantization="fp8").plan["gpus"][0]["parts"]  # type: ignore[index]
    assert parts["context"] == pytest.approx(1.2, abs=0.01) and parts["weights"] < first.record["weights_gib"]
    parts = machine.fit(model="qwen36-27b").plan["gpus"][0]["parts"]  # type: ignore[index]
    assert parts["context"] != pytest.approx(1.2, abs=0.01)


def test_a_measurement_that_something_else_has_spoilt_is_not_used(machine: Machine) -> None:
    first = machine.fit()
    assert first.record and first.plan
    args = dict(machine.candidate().instance.args)
    machine.kept("a", "L1", good(1, before=first.record["free_gib"] - 20), args=args, plan=first.record)
    again = machine.fit()
    assert again.plan and again.plan["gpus"] == first.plan["gpus"]


def test_a_cache_in_host_memory_that_the_host_does_not_have(machine: Machine, tmp_path: Path) -> None:
    meminfo(tmp_path, 64, 60)
    assert machine.fit().problems == ()
    (problem,) = machine.fit(resolved={"enable_hierarchical_cache": True, "hicache_size": 100}).problems
    assert "104.4 GiB of host memory" in problem and "'hicache_size'" in problem and "there are 64.0" in problem
    small = machine.fit(resolved={"enable_hierarchical_cache": True, "hicache_size": 40})
    assert small.problems == () and small.warnings == ()


def test_shared_memory_matters_to_several_gpus_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "shared_memory", lambda: 0.0625)
    assert machine.fit().warnings == ()
    (warning,) = machine.fit(gpus=(0, 1), tp_size=2).warnings
    assert "/dev/shm has 0.06 GiB" in warning
