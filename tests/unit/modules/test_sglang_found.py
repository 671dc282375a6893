# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.found import Search
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.modules import sglang_found
from conftest import call_module
from found_servers import detached, make_venv, started


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_is_found_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    asked: list[Search] = []
    monkeypatch.setattr(sglang_found, "found_servers", lambda search: asked.append(search) or [{"pid": 7}])
    monkeypatch.setattr(sglang_found, "cards", lambda: [{"index": 0}])
    monkeypatch.setattr(sglang_found, "require_root", lambda: None)
    how = {"install_root": "/srv/sglang", "user": "llm", "timeout": 5, "ask": False, "pids": [7]}
    result = call_module(sglang_found, {**how, "_ansible_check_mode": check_mode})
    assert (result["changed"], result["servers"], result["gpus"]) == (False, [{"pid": 7}], [{"index": 0}])
    assert asked == [Search(Path("/srv/sglang/releases"), "llm", 5, False, (7,))]


def test_only_root_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Refused("needs root")

    monkeypatch.setattr(sglang_found, "require_root", refuse)
    assert call_module(sglang_found, {})["msg"] == "needs root"


@pytest.mark.skipif(os.geteuid() != 0, reason="root runs it")
def test_all_of_a_server_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documented: dict[str, Any] = yaml.safe_load(sglang_found.RETURN)
    python = make_venv(tmp_path / "venv", "0.5.13")
    monkeypatch.setattr(gpu, "processes", lambda: [])
    words = detached(python, "m")
    with started(words, tmp_path, tmp_path / "log") as pid:
        result = call_module(sglang_found, {"pids": [pid]})
    (server,) = result["servers"]
    assert set(server) == set(documented["servers"]["contains"])
    assert set(server["live"]) == set(documented["servers"]["contains"]["live"]["contains"])
    assert set(result) - {"changed", "warnings", "invocation"} == set(documented)
