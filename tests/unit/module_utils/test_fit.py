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
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, host_memory, launch
from ansible_collections.gpuops.sglang.plugins.module_utils.fit import Candidate, Fit, corrected, fits
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuMemory, GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Search
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import read_shape
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import LAUNCH_LINE, Identity

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
        self.names: dict[int, str] = {}

    def cards(self) -> list[GpuMemory]:
        names = {index: self.names.get(index, "NVIDIA L40S") for index in self.used}
        return [GpuMemory(index, names[index], TOTAL, TOTAL - used) for index, used in self.used.items()]

    def identity(self, name: str) -> Identity:
        pid = self.running.get(name, 0)
        group = f"/system.slice/sglang-{name}.service" if pid else ""
        return Identity("active", "running", "success", pid, "i", group, True, 0, "", {})

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
        (systemd.UNIT_FOLDER / f"sglang-{name}.service").write_text(f"{LAUNCH_LINE}{launch}\n")
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
        path = model if model.startswith(("/", "hub/")) else self.model(model)
        version, secrets = more.pop("version", "0.5.11"), more.pop("secrets", {})
        args = {"load_format": "dummy", "context_length": 4096, **more}
        return Candidate(Instance(name, path, "127.0.0.1", 1, gpus, args, env, secrets), version, resolved)

    def fit(
        self, name: str = "a", accepted: tuple[str, ...] = (), leaving: dict[str, set[int]] | None = None, **more: Any
    ) -> Fit:
        return fits([self.candidate(name, **more)], self.state, accepted, leaving)[name]

    def others(self, found: Fit) -> list[float]:
        assert found.plan
        return [one["parts"]["others"] for one in found.plan["gpus"]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(systemd, "UNIT_FOLDER", tmp_path / "units")
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
    args: dict[str, Any] = {"quantization": "fp8", "speculative_algorithm": "EAGLE", "mem_fraction_static": 0.85}
    many = machine.fit(model="qwen36-27b", version="0.5.22", **args)
    assert many.plan and len(many.plan["levers"]) > 3 and "delete '" not in many.problems[0]  # comes last
    assert found.plan and not found.plan["fits"]
    assert found.record and found.record["kv_tokens"] is None


def test_what_is_ended_for_an_instance_counts_as_free_for_it_alone(machine: Machine) -> None:
    machine.stranger(0, 40000)  # process 9
    machine.on_gpus.append(GpuProcess(10, 2000, 0, None))
    machine.used[0] += 2000
    assert machine.others(machine.fit(leaving={"a": {9}})) == [pytest.approx((DRIVER + 2000) / 1024, abs=0.01)]
    assert machine.fit().problems and machine.fit(leaving={"b": {9}}).problems


def test_what_is_ended_and_of_which_the_driver_tells_nothing_makes_the_plan_unsure(machine: Machine) -> None:
    machine.used[0] += 40000
    found = machine.fit(leaving={"a": {9}})
    assert not found.problems and any("nobody tells how much of GPU 0" in text for text in found.warnings)
    assert machine.fit().problems


def test_what_another_process_holds_stays_held_and_is_named(machine: Machine) -> None:
    machine.stranger(0, 32000)
    found = machine.fit()
    assert machine.others(found) == [pytest.approx((DRIVER + 32000) / 1024, abs=0.001)]
    (problem,) = found.problems  # alone it is shown
    assert "GPU 0 has 31.4 GiB in use by others" in problem and "end what else uses the GPU" in problem
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
        ({"gpus": (), "secrets": {"CUDA_VISIBLE_DEVICES": " 1 "}}, 2.0),
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
        ({"gpus": (), "env": {"CUDA_VISIBLE_DEVICES": "-1"}}, "CUDA_VISIBLE_DEVICES is -1"),
        ({"gpus": (0, 0), "tp_size": 2}, "twice"),
        ({"resolved": {"base_gpu_id": 1}}, "'base_gpu_id' is 1"),
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
    assert found.plan is None and "nvidia-smi tells the memory of no GPU" in found.warnings[0]


def test_requests_that_can_not_run_at_a_time_are_refused_beforehand(machine: Machine) -> None:
    asked: dict[str, Any] = {
        "model": "qwen36-27b",
        "quantization": "fp8",
        "max_running_requests": 200,
        "mem_fraction_static": 0.85,
    }
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
    machine.used[0] -= 0.01 * TOTAL
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
    # of another number of ranks nothing of it is known
    parts = machine.fit(gpus=(0, 1), tp_size=2).plan["gpus"][0]["parts"]  # type: ignore[index]
    assert parts["context"] != pytest.approx(1.2, abs=0.01) and parts["weights"] < first.record["weights_gib"]
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


# what does not work as planned is refused, and nothing else


def test_requests_that_nobody_asked_for_are_not_refused(machine: Machine) -> None:
    """SGLang sets 48 for a draft; it may well be that fewer run."""
    args: dict[str, Any] = {
        "model": "qwen36-27b", "quantization": "fp8", "speculative_algorithm": "EAGLE", "mem_fraction_static": 0.85,
        "version": "0.5.14",
    }  # fmt: skip
    hows: list[dict[str, Any]] = [
        {}, {"max_running_requests": None}, {"resolved": {"max_running_requests": 48, "page_size": 1}},
    ]  # fmt: skip
    for how in hows:
        found = machine.fit(**args, **how)
        assert found.plan and found.plan["verdict"].startswith("fits, but 48 requests requested")
        assert not found.problems
    assert machine.fit(**args, max_running_requests=48).problems


def test_requests_that_can_not_be_divided_among_schedulers_are_no_lack(machine: Machine) -> None:
    found = machine.fit(gpus=(0, 1), dp_size=2, max_running_requests=9)
    assert found.plan and found.plan["effective_max_running_requests"] == 8 and not found.problems


def test_tokens_that_there_is_no_room_for_are_refused_beforehand(machine: Machine) -> None:
    room = machine.fit(mem_fraction_static=0.8).plan["kv_tokens"]  # type: ignore[index]
    (problem,) = machine.fit(mem_fraction_static=0.8, max_total_tokens=room + 50_000).problems
    assert f"set 'max_total_tokens' to {room}" in problem and "the cache has room for fewer" in problem
    for tokens in (room, room - 1000, room + 200):  # the last is as exact as a plan is
        assert not machine.fit(mem_fraction_static=0.8, max_total_tokens=tokens).problems
    paged = machine.fit(mem_fraction_static=0.8, max_total_tokens=64 * 100 + 7, page_size=64)
    assert paged.plan and paged.plan["kv_tokens"] == 64 * 100 and not paged.problems  # whole pages
    asked = machine.fit(accepted=("max_total_tokens",), mem_fraction_static=0.8, max_total_tokens=room + 50_000)
    assert not asked.problems


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"enable_lora": True, "mem_fraction_static": 0.2}, "'enable_lora'"),
        ({"offload_group_size": 4, "model": "qwen36-27b"}, "'offload_group_size'"),
        ({"version": "0.5.99", "mem_fraction_static": 0.2}, "tried all the same, since SGLang 0.5.99 was not read"),
        ({"version": "0.0.0.dev1", "mem_fraction_static": 0.2}, "SGLang 0.0.0.dev1 was not read"),
    ],
)
def test_a_no_that_is_not_certain_is_told_and_tried(machine: Machine, how: dict[str, Any], why: str) -> None:
    found = machine.fit(**how)
    assert found.plan and not found.plan["fits"]
    assert not found.problems and any(why in text for text in found.warnings)


def test_weights_that_are_too_large_are_so_whatever_else_is_not_understood(machine: Machine) -> None:
    hows: list[dict[str, Any]] = [{"enable_lora": True}, {"version": "0.5.99"}]
    for how in hows:
        assert "for the weights" in machine.fit(model="qwen36-27b", **how).problems[0]


def test_a_configuration_that_a_plan_stumbles_over_stops_nothing(machine: Machine) -> None:
    folder = Path(machine.model())
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] = {"hidden_size": {"a": 1}, "depth": [2]}
    (folder / "config.json").write_text(json.dumps(config))
    found = machine.fit(model=str(folder))
    assert not found.problems and len(found.warnings) == 1 and "\n" not in found.warnings[0]
    assert "memory is not planned" in found.warnings[0] and str(folder) in found.warnings[0]


def test_gpus_are_planned_where_cuda_counts_as_nvidia_smi(machine: Machine) -> None:
    machine.names[1] = "NVIDIA GeForce RTX 3090"
    assert machine.fit().plan  # the unit sees to it
    (warning,) = machine.fit(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}).warnings
    assert "CUDA_DEVICE_ORDER is FASTEST_FIRST" in warning


def test_a_gpu_that_is_full_is_refused(machine: Machine) -> None:
    machine.used[0] = TOTAL
    assert "for the weights" in machine.fit().problems[0]


def test_of_two_without_a_plan_whose_processes_are_hidden_nobody_knows(machine: Machine) -> None:
    machine.runs("a", {0: 20000}, False)
    machine.runs("b", {0: 20000}, False)
    found = machine.fit("a", mem_fraction_static=0.5)
    assert found.plan and any("counts as in use" in note for note in found.plan["notes"])
    assert found.problems == () and any("GPU 0 its running launch holds" in text for text in found.warnings)


def test_what_a_hidden_launch_took_beyond_its_plan_is_its_own(machine: Machine) -> None:
    """Activations are not in 'held_mib'; of what is beyond all that it could have, it is not."""
    machine.runs("a", {0: 40000}, False, plan={"held_mib": {"0": 36000}, "most_mib": {"0": 40000}})
    assert machine.others(machine.fit("a")) == [pytest.approx(DRIVER / 1024, abs=0.01)]
    machine.used[0] += 3000
    assert machine.others(machine.fit("a")) == [pytest.approx((DRIVER + 3000) / 1024, abs=0.01)]


def test_a_hidden_launch_holds_nothing_of_gpus_that_it_was_not_planned_for(machine: Machine) -> None:
    machine.runs("a", {0: 20000}, False, plan={"held_mib": {"0": 20000}})
    record = machine.state / "a/launches/L1/launch.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "gpus": []}))
    machine.used[1] += 30000
    assert machine.others(machine.fit("a", gpus=(1,))) == [pytest.approx((DRIVER + 30000) / 1024, abs=0.01)]


def test_the_record_of_a_plan_is_what_the_next_one_reads(machine: Machine) -> None:
    record = machine.fit().record
    assert record and record["held_mib"].keys() == record["most_mib"].keys() == {"0"}
    assert record["most_mib"]["0"] == pytest.approx(TOTAL - DRIVER, abs=1)
    assert 0 < record["held_mib"]["0"] < record["most_mib"]["0"] and record["model_bytes"] > 0
    later = fits([machine.candidate("a", mem_fraction_static=0.5), machine.candidate("b")], machine.state, ())["b"]
    assert later.record and later.record["free_gib"] is None  # nobody has seen what will be free then


def test_what_is_accepted_is_planned_as_sglang_makes_it(machine: Machine) -> None:
    how: dict[str, Any] = {"resolved": {"mem_fraction_static": 0.5}, "mem_fraction_static": 0.7}
    half = machine.fit(mem_fraction_static=0.5).plan
    plan = machine.fit(accepted=("mem_fraction_static",), **how).plan
    assert half and plan and plan["kv_tokens"] == half["kv_tokens"]


def learn(machine: Machine, name: str = "a", change: Any = None, **took: float) -> Fit:
    """Plan an instance, keep a good launch of that plan which took what is said, and plan again."""
    first = machine.fit(name)
    assert first.record
    args, measured = dict(machine.candidate(name).instance.args), {"before": first.record["free_gib"] - 1.2, **took}
    record = {"args": args, "plan": first.record, **(change or {})}
    machine.kept(name, "L1", good(first.record["kv_tokens"], **measured), **record)
    return machine.fit(name)


def parts(found: Fit) -> dict[str, float]:
    assert found.plan
    told: dict[str, float] = found.plan["gpus"][0]["parts"]
    return told


def test_what_was_measured_is_told_by_the_plan_and_is_no_warning(machine: Machine) -> None:
    found = learn(machine, weights=16.0)
    assert found.warnings == () and any("the plan of the last launch" in note for note in found.plan["notes"])  # type: ignore[index]
    assert found.record and found.record["measured"] == {"context": pytest.approx(1.2), "weights": 16.0}


@pytest.mark.parametrize("change", [{"again": "L0"}, {"model": "/srv/other"}])
def test_nothing_is_learned_from_a_return_or_another_model(machine: Machine, change: dict[str, Any]) -> None:
    before = parts(machine.fit())
    assert parts(learn(machine, change=change, weights=16.0, graphs=2.0)) == before


def test_another_model_under_the_same_path_has_other_weights(machine: Machine) -> None:
    planned = parts(machine.fit())["weights"]
    assert parts(learn(machine, weights=planned + 1))["weights"] == pytest.approx(planned + 1, abs=0.001)
    (Path(machine.model()) / "README.md").write_text("other weights now")
    again = parts(machine.fit())
    assert again["weights"] == planned and again["context"] == pytest.approx(1.2, abs=0.01)


def test_weights_far_from_the_plan_are_something_else(machine: Machine) -> None:
    planned = parts(machine.fit())["weights"]
    assert parts(learn(machine, weights=planned + 12))["weights"] == planned


def test_weights_that_are_offloaded_are_not_taken_off_twice(machine: Machine) -> None:
    args: dict[str, Any] = {"cpu_offload_gb": 2}
    first = machine.fit(**args)
    assert first.record
    kept = {**machine.candidate().instance.args, **args}
    machine.kept("a", "L1", good(1, weights=first.record["weights_gib"]), args=kept, plan=first.record)
    assert parts(machine.fit(**args))["weights"] == parts(first)["weights"]


def test_options_that_are_written_otherwise_or_name_the_device_do_not_differ(machine: Machine) -> None:
    first = machine.fit()
    assert first.record
    kept = {"load-format": "dummy", "context_length": 4096, "device": "cuda", "tp": None}
    machine.kept("a", "L1", good(1, graphs=2.0), args=kept, plan=first.record)
    assert parts(machine.fit())["graphs"] == 2.0


def test_what_may_not_be_read_is_not_learned_from(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> list[Any]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(launch, "earlier_verdicts", closed)
    assert machine.fit().warnings == ()


def test_more_offload_than_there_are_weights_needs_no_more_than_these(machine: Machine, tmp_path: Path) -> None:
    meminfo(tmp_path, 64, 60)
    found = machine.fit(cpu_offload_gb=100, resolved={"cpu_offload_gb": 100})
    assert found.problems == ()
    tmp_path.joinpath("proc/meminfo").write_text(f"MemTotal: {8 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    assert "15.3 for 'cpu_offload_gb'" in machine.fit(cpu_offload_gb=100, resolved={"cpu_offload_gb": 100}).problems[0]


def test_what_its_own_launch_holds_of_host_memory_comes_back(machine: Machine, tmp_path: Path) -> None:
    meminfo(tmp_path, 64, 4)
    how: dict[str, Any] = {"cpu_offload_gb": 5, "resolved": {"cpu_offload_gb": 5}}
    machine.runs("a", {0: 10000})
    assert any("of host memory" in text for text in machine.fit(**how).warnings)
    group = tmp_path / "sys/fs/cgroup/system.slice/sglang-a.service"
    group.mkdir(parents=True)
    (group / "memory.stat").write_text(f"anon {5 * 2**30}\nshmem 0\n")
    assert machine.fit(**how).warnings == ()


def test_what_is_told_of_a_launch_is_all_that_it_holds(machine: Machine) -> None:
    machine.runs("a", {0: 20000})
    machine.used[0] += 10000  # of nobody that is told
    assert machine.others(machine.fit("a")) == [pytest.approx((DRIVER + 10000) / 1024, abs=0.01)]
    machine.used[0] = 15000  # a driver that counts twice what is shared
    assert machine.others(machine.fit("a")) == [pytest.approx(0, abs=0.01)]


def test_what_is_hidden_is_of_who_runs_and_never_more_than_is_in_use(machine: Machine) -> None:
    machine.runs("a", {0: 15000}, False)
    machine.stranger(0, 10000)
    assert machine.others(machine.fit("a")) == [pytest.approx((DRIVER + 10000) / 1024, abs=0.01)]
    machine.running.clear()
    assert machine.others(machine.fit("a")) == [pytest.approx((DRIVER + 25000) / 1024, abs=0.01)]
    machine.runs("b", {1: 15000}, False, plan={"held_mib": {"1": 20000}})
    machine.runs("c", {1: 15000}, False, plan={"held_mib": {"1": 20000}})
    assert machine.others(machine.fit("b", gpus=(1,))) == [pytest.approx((DRIVER + 10000) / 1024, abs=0.01)]
    assert machine.others(machine.fit("c", gpus=(1,))) == [pytest.approx((DRIVER + 20000) / 1024, abs=0.01)]


def test_the_newest_good_launch_is_learned_from(machine: Machine) -> None:
    first = machine.fit()
    assert first.record
    for launch_id, graphs in (("L1", 1.0), ("L2", 2.0)):
        args = dict(machine.candidate().instance.args)
        machine.kept("a", launch_id, good(1, graphs=graphs), args=args, plan=first.record)
    assert parts(machine.fit())["graphs"] == 2.0


@pytest.mark.parametrize("version", ["0.5.11", "0.5.14", "0.5.23"])
def test_what_sglang_fills_in_as_the_plan_does_is_not_taken_over(version: str) -> None:
    """Requests that are filled in after the fraction was derived do not go into the fraction."""
    args = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "context_length": 8192}
    search = Search(read_shape(MODELS / "qwen36-27b.json"), args, [Gpu("NVIDIA H200", 143771)], version)
    filled = {"mem_fraction_static": search.plan().fraction, "max_running_requests": 48, "page_size": 1}
    assert corrected(search, filled) is search
    assert corrected(search, {**filled, "max_running_requests": 3}).args["max_running_requests"] == 3
