# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import launch, model_runs
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from ansible_collections.gpuops.sglang.plugins.modules import sglang_model
from conftest import call_module, run_module
from hub_server import small_model
from ssh_server import new_key

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the module needs root")


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "there"
    folder.mkdir()
    for name, content in small_model().items():
        if "/" not in name:
            (folder / name).write_bytes(content)
    return {
        "models": [{"name": "m", "path": str(folder)}],
        "store": str(tmp_path / "store"),
        "state_dir": str(tmp_path / "state"),
        "root": str(tmp_path / "root"),
        "client_version": "2.4.0",
        "token": "never-1'2",
        "environment": {"https_proxy": "http://user:never-3@proxy.example.com:3128"},
        "_ansible_no_log": False,
    }


def test_a_model_in_place_is_verified(asked: dict[str, Any], tmp_path: Path) -> None:
    result, logged = run_module("sglang_model", asked)
    assert (result["changed"], result["models"][0]["path"]) == (False, str(tmp_path / "there")), result
    assert "never" not in str(result) + logged
    (tmp_path / "there/config.json").unlink()
    result, _logged = run_module("sglang_model", asked)
    assert result["failed"] and result["msg"].startswith(f"{tmp_path / 'there'} has no config.json")


def test_who_follows_gets_a_run_only_where_there_is_work(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runs, "RUNS", Path(asked["state_dir"]) / "runs")
    monkeypatch.setattr(systemd, "into_scope", lambda *_: None)
    begun = call_module(sglang_model, {**asked, "follow": {"run": ""}})
    follow = {"run": begun["run"], "seen": "begins", "least": 60, "most": 60}
    ended = call_module(sglang_model, {"client_version": "2.4.0", "follow": follow})
    assert [one["name"] for one in ended["models"]] == ["m"] and not ended["changed"]
    again = call_module(sglang_model, {**asked, "follow": {"run": ""}})
    assert "run" not in again and again["models"] == ended["models"]
    assert "run" in call_module(sglang_model, {**asked, "verify": "full", "follow": {"run": ""}})


@pytest.mark.parametrize("used", [systemd, Supervisord])
def test_what_an_instance_serves_or_would_return_to_is_not_removed(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, used: Any
) -> None:
    models = {"L2": f"{asked['store']}/new", "L1": f"{asked['store']}/old"}
    monkeypatch.setattr(systemd, "is_here", lambda: used is systemd)
    monkeypatch.setattr(used, "installed_instances", lambda *_self: ["a"])
    monkeypatch.setattr(used, "read_unit", lambda *_name: "# launch: L2\n")
    monkeypatch.setattr(launch, "last_good", lambda _state, _name, _present: "L1")
    args = {"speculative_draft_model_path": f"{asked['store']}/draft", "lora_paths": [f"x={asked['store']}/lora"]}
    monkeypatch.setattr(launch, "record", lambda _state, _name, one: {"model": models[one], "args": args})
    for name, one in (("new", "L2"), ("old", "L1"), ("draft", "L2"), ("lora", "L2")):
        result = call_module(sglang_model, {**asked, "models": [], "remove": [name]})
        assert f"{asked['store']}/{name} is not removed: launch {one} of instance 'a' has" in result["msg"]
    assert call_module(sglang_model, {**asked, "models": [], "remove": ["another"]})["removed"] == []


def test_the_key_of_a_copy_is_in_no_result_and_no_log(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = new_key(tmp_path / "key")
    copied = {"models": [{"name": "m", "copy_from": "ssh://127.0.0.1:1/m"}], "ssh_key": key, "ssh_known_hosts": "a"}
    result, logged = run_module("sglang_model", {**asked, **copied})
    monkeypatch.setattr(model_runs, "RUNS", Path(asked["state_dir"]) / "runs")
    monkeypatch.setattr(systemd, "into_scope", lambda *_: None)
    begun = call_module(sglang_model, {**asked, **copied, "follow": {"run": ""}})
    follow = {"run": begun["run"], "seen": "begins", "least": 60, "most": 60}
    while "msg" not in (ended := call_module(sglang_model, {"client_version": "2.4.0", "follow": follow})):
        follow["seen"] = ended["line"]
    for one in (result, ended):
        assert one["failed"] and one["msg"].startswith(("can not copy ssh://127.0.0.1:1/m: ", "this host has no"))
    runs = "".join(path.read_text() for path in model_runs.RUNS.iterdir())
    assert not any(line in f"{result}{logged}{ended}{runs}" for line in key.splitlines()[1:-1])


def test_a_wrong_list_is_told_whole(asked: dict[str, Any]) -> None:
    result = call_module(sglang_model, {**asked, "models": [{"name": "a"}, {"name": "../b", "repo": "o/b"}]})
    assert (
        result["failed"]
        and "'a' needs exactly one of 'repo', 'path' and 'copy_from'; a model has the name '../b'" in result["msg"]
    )
