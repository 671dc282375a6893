# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in real processes, and what is said of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import model_runs
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

Tell = Callable[[str], None]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(systemd, "into_scope", lambda *_: None)  # no test changes this host


def waiting(go: Path, outcome: dict[str, Any]) -> Callable[[Tell], dict[str, Any]]:
    def work(tell: Tell) -> dict[str, Any]:
        tell(f"m: 1 of 2, process {os.getpid()}")
        for _number in range(1200):
            if go.exists():
                return outcome
            time.sleep(0.05)
        return {}

    return work


def line_of(run: str) -> str:
    seen = model_runs.follow(run, "begins", 0, 60)
    return str(seen["line"])


def test_work_is_followed_to_its_end(tmp_path: Path) -> None:
    run = model_runs.begin(waiting(tmp_path / "go", {"models": ["m"]}))
    line = line_of(run)
    assert line.startswith("m: 1 of 2") and f"process {os.getpid()}" not in line
    assert model_runs.follow(run, line, 0, 0.3) == {"line": line}
    (tmp_path / "go").touch()
    for _time in range(2):  # as often as it is asked
        assert model_runs.follow(run, line, 60, 60) == {"outcome": {"models": ["m"]}}
    assert (model_runs.RUNS / f"{run}.json").stat().st_mode & 0o777 == 0o600


def test_what_is_refused_and_what_breaks_is_the_outcome() -> None:
    def refuse(_tell: Tell) -> dict[str, Any]:
        raise Refused("no room")

    def crash(_tell: Tell) -> dict[str, Any]:
        raise KeyError("a defect")

    assert model_runs.follow(model_runs.begin(refuse), "begins", 60, 60)["outcome"] == {
        "failed": True,
        "msg": "no room",
    }
    assert "KeyError: 'a defect'" in model_runs.follow(model_runs.begin(crash), "begins", 60, 60)["outcome"]["msg"]


def test_who_asks_later_is_told_no_secret() -> None:
    secret = 'planted-"1'

    def refuse(tell: Tell) -> dict[str, Any]:
        tell(f"with {secret}")
        raise Refused(f"pip says {secret}")

    run = model_runs.begin(refuse, {secret})
    assert model_runs.follow(run, "begins", 60, 60)["outcome"]["msg"] == "pip says ********"
    assert "planted" not in (model_runs.RUNS / f"{run}.json").read_text()


def test_work_that_was_ended_is_told(tmp_path: Path) -> None:
    run = model_runs.begin(waiting(tmp_path / "go", {}))
    os.kill(int(line_of(run).split()[-1]), signal.SIGKILL)
    with pytest.raises(Refused, match="was ended before its end: deploy again, which goes on"):
        model_runs.follow(run, line_of(run), 60, 60)
    with pytest.raises(Refused, match="knows nothing of the run f00"):
        model_runs.follow("f00", "", 0, 0)
