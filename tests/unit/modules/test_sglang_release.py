# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import run_module


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("https_proxy", "http://user:never-1@proxy.example.com:3128", "http://user:********@proxy.example.com:3128"),
        (
            "UV_INDEX",
            "own=https://user:never-1@index.example.com/simple",
            "own=https://user:********@index.example.com",
        ),
        ("PIP_EXTRA_INDEX_URL", "https://u:never-1@a.example.com/ https://u:never%402@b.example.com/", "********@b."),
        ("https_proxy", "http://[broken", "http://[broken"),
        ("no_proxy", "127.0.0.1:80,user@example.com", "127.0.0.1:80,user@example.com"),
    ],
)
def test_the_password_of_an_address_is_not_shown(tmp_path: Path, name: str, value: str, shown: str) -> None:
    asked = {
        "version": "0.5.23",
        "root": str(tmp_path),
        "python": sys.executable,
        "uv_version": "0.13.9",
        "environment": {name: value},
        "_ansible_check_mode": True,
        "_ansible_no_log": False,
    }
    result, logged = run_module("sglang_release", asked)
    assert "never" not in str(result)
    assert "never" not in logged
    assert shown in result["invocation"]["module_args"]["environment"][name]
    if os.geteuid() == 0:
        assert result["missing"] and result["path"].startswith(f"{tmp_path}/releases/0.5.23-")
    else:
        assert result["msg"].startswith("needs root on this host")


@pytest.mark.skipif(os.geteuid() != 0, reason="the module needs root")
def test_a_release_of_an_earlier_version_of_this_collection_counts(tmp_path: Path) -> None:
    asked = {"version": "0.5.23", "root": str(tmp_path), "python": sys.executable, "uv_version": "0.13.9"}
    path = Path(run_module("sglang_release", {**asked, "_ansible_check_mode": True})[0]["path"])
    (path / "venv/bin").mkdir(parents=True)
    (path / "venv/bin/python").touch()
    (path / "schema.json").write_text('{"options": {}}')
    (path / "release.json").write_text('{"name": "x", "packages": ["sglang==0.5.23"]}')
    result, _logged = run_module("sglang_release", asked)
    assert (result["changed"], result["packages"], result["lock"]) == (False, ["sglang==0.5.23"], "")


@pytest.mark.skipif(os.geteuid() != 0, reason="the module needs root")
def test_surplus_releases_are_told_and_removed(tmp_path: Path) -> None:
    asked = {"version": "0.5.23", "root": str(tmp_path), "python": sys.executable, "uv_version": "0.13.9", "keep": 1}
    asked["state_dir"] = str(tmp_path / "state")
    old = tmp_path / "releases/0.5.9-00000000"
    old.mkdir(parents=True)
    looked = {**asked, "_ansible_check_mode": True}
    assert run_module("sglang_release", looked)[0]["surplus"] == [old.name]
    assert run_module("sglang_release", {**looked, "state": "pruned"})[0]["changed"] and old.exists()
    assert run_module("sglang_release", {**asked, "state": "pruned"})[0]["surplus"] == [old.name] and not old.exists()
    assert not run_module("sglang_release", {**asked, "state": "pruned"})[0]["changed"]
