# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches of this collection on a real H200 (docs/h200.md): what it says of their logs, and what it foretold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.diagnosis import diagnose
from ansible_collections.gpuops.sglang.plugins.module_utils.memory import plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_log import measured
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import shape_of
from ansible_collections.gpuops.sglang.plugins.module_utils.progress import Entry, stage_times
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import LINE
from conftest import schema_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUN = json.loads((FIXTURES / "h200/run.json").read_text(encoding="utf-8"))
LAUNCHES: dict[str, dict[str, Any]] = {one["launch"]: one for one in RUN["launches"]}
# a return is not planned: it is what was there before
PLANNED = [name for name, one in LAUNCHES.items() if one["kv_tokens"] and not one["again"]]
SERVED = "20261130T180806Z-ad0201"
BESIDE = "20261130T181206Z-7ffd01"  # another process held 40 GiB
FAILED = "20261130T181328Z-f894db"


def lines(launch: str) -> list[tuple[float, str, str]]:
    """Return time in s, run of the server, and text of each line."""
    told = (FIXTURES / "h200" / LAUNCHES[launch]["log"]).read_text(encoding="utf-8").splitlines()
    matches = [LINE.fullmatch(line) for line in told]
    return [(float(match[1]), match[2], match[3]) for match in matches if match]


@pytest.mark.parametrize("launch", PLANNED)
def test_the_plan_foretells_what_really_fits(launch: str) -> None:
    """From what was free before it, and what the host had learned then."""
    one = LAUNCHES[launch]
    models = json.loads((FIXTURES / "memory/recorded-0.5.11.json").read_text(encoding="utf-8"))["models"]
    card = Gpu(RUN["gpu"], RUN["memory_total_mib"], one["plan"]["free_gib"] * 1024)
    found = plan(shape_of(models[RUN["model"]]), one["args"], [card], "0.5.11", measured=one["plan"]["measured"])
    assert found.kv_tokens == pytest.approx(one["kv_tokens"], rel=0.001)
    assert found.effective_max_running_requests == one["requests"]


def test_only_what_shares_its_gpu_gets_fewer_requests_than_it_asks_for() -> None:
    assert [
        name for name in PLANNED if LAUNCHES[name]["requests"] != LAUNCHES[name]["args"]["max_running_requests"]
    ] == [BESIDE]


@pytest.mark.parametrize("launch", [SERVED, BESIDE])
def test_what_a_launch_took_is_read_from_its_log(launch: str) -> None:
    run = lines(launch)[0][1]
    found, one = measured(text for _at, other, text in lines(launch) if other == run), LAUNCHES[launch]
    assert found["left"] == one["left_gib"]
    assert found["weights"] == pytest.approx(one["plan"]["weights_gib"], abs=0.01)
    if one["verdict"]:
        assert found == one["verdict"]["measured"]


def test_the_stages_of_a_start_are_read_from_its_log() -> None:
    run = lines(SERVED)[0][1]
    entries = [Entry(at, text) for at, one, text in lines(SERVED) if one == run]
    began, known = LAUNCHES[SERVED]["began"], LAUNCHES[SERVED]["verdict"]["stages"]
    assert stage_times(entries, began, entries[-1].at) == known
    assert known["capturing graphs"] > 40  # kernels are compiled


def test_the_cause_of_a_failed_launch_is_found_among_its_warnings() -> None:
    """A kernel that is missing is warned of three times in each process, also where nothing needs it."""
    found = diagnose("\n".join(text for _at, _run, text in lines(FAILED)), schema_of("0.5.11"))
    assert found.cause == "ImportError: Can not import FA3 in sgl_kernel. Please check your installation."
    assert any("flashattention_backend.py" in line for line in found.evidence)
