# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import fit, preflight, service
from ansible_collections.gpuops.sglang.plugins.modules import sglang_preflight
from conftest import call_module, run_module

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the module needs root")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (site / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (site / "sglang-0.5.23.dist-info/RECORD").write_text("")
    (tmp_path / "schema.json").write_text('{"options": {}}')
    (tmp_path / "release.json").write_text('{"distributions": ["sglang-0.5.23.dist-info", "torch-2.14.1.dist-info"]}')
    (site / "torch-2.14.1.dist-info").mkdir()
    return tmp_path


def looked(release: Path) -> dict[str, Any]:
    asked = {"instances": [], "release": str(release), "state_dir": str(release / "state"), "user": "nobody"}
    return run_module("sglang_preflight", asked)[0]


def test_a_release_that_nobody_touched_is_not_talked_of(release: Path) -> None:
    assert not looked(release).get("warnings")


def test_a_release_that_was_changed_by_hand_is_told(release: Path) -> None:
    (release / "venv/lib/python3.11/site-packages/torch-2.14.1.dist-info").rmdir()
    assert "was changed by hand: package torch was removed" in str(looked(release)["warnings"])


def test_a_release_that_is_gone_or_damaged_is_refused(release: Path) -> None:
    (release / "schema.json").write_text("{")
    assert looked(release)["msg"] == f"there is no release in {release}: install it with sglang_release first"


def test_a_server_whose_place_is_taken_is_in_nobodys_way(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examined(instance: Any, host: Any, schema: Any, accepted: Any, keep: bool, leaving: Any) -> dict[str, Any]:
        told.append((instance.name, leaving))
        return {"name": instance.name, "sglang_version": "0.5.23", "resolved": {"a": 1}, "problems": []}

    def fits(candidates: Any, state: Path, accepted: Any, leaving: Any) -> dict[str, Any]:
        told.append(leaving)
        return {}

    def old_servers(instances: Any, take_over: bool, drain: int) -> dict[str, Any]:
        return {"b": SimpleNamespace(pids={7})} if take_over else {}

    told: list[Any] = []
    monkeypatch.setattr(preflight, "examined", examined)
    monkeypatch.setattr(fit, "fits", fits)
    monkeypatch.setattr(service, "old_servers", old_servers)
    instances = [{"name": name, "model": "m", "port": port} for name, port in (("a", 30000), ("b", 30001))]
    asked = {"instances": instances, "release": str(release), "state_dir": str(release / "state"), "user": "nobody"}
    call_module(sglang_preflight, asked)
    assert told == [("a", ()), ("b", ()), {}]
    told.clear()
    call_module(sglang_preflight, {**asked, "take_over": True})
    assert told == [("a", ()), ("b", {7}), {"b": {7}}]
