# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.modules import sglang_support_bundle
from conftest import call_module, run_module

LAUNCH = "20260101T000000Z-abcdef"
NEVER = "never-to-be-seen"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host with the records of one failed launch, and the programs that the module runs."""
    if os.geteuid() != 0:
        pytest.skip("the module is root's")
    programs, launch = tmp_path / "bin", tmp_path / "state/a/launches" / LAUNCH
    programs.mkdir()
    entry = {"MESSAGE": f"got {NEVER}, tp_size=2", "__MONOTONIC_TIMESTAMP": "1"}
    for name, told in {"systemctl": "MainPID=0", "journalctl": json.dumps(entry), "nvidia-smi": "no devices"}.items():
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    launch.mkdir(parents=True)
    (launch / "launch.json").write_text("{}")
    (launch / "secrets.yaml").write_text(f'api-key: "{NEVER}"\n')
    (tmp_path / "archives").mkdir()
    return {"instances": ["a"], "state_dir": str(tmp_path / "state"), "path": str(tmp_path / "archives")}


def test_the_archive_is_reported(asked: dict[str, Any]) -> None:
    result = call_module(sglang_support_bundle, asked)
    path = Path(result["path"])
    assert result["changed"] and result["size"] == path.stat().st_size
    assert path.parent == Path(asked["path"])
    with tarfile.open(path) as archive:
        assert [name.partition("/")[2] for name in archive.getnames()] == result["files"]
        top = archive.getnames()[0].partition("/")[0]
        log = archive.extractfile(f"{top}/instances/a/launches/{LAUNCH}/log.txt")
        assert log is not None and log.read() == b"got ********, tp_size=2"


def test_check_mode_says_what_would_be_in_it(asked: dict[str, Any]) -> None:
    result, _logged = run_module("sglang_support_bundle", {**asked, "_ansible_check_mode": True})
    assert result["changed"] and (result["path"], result["size"]) == (None, None)
    assert {"README.txt", f"instances/a/launches/{LAUNCH}/launch.json"} <= set(result["files"])
    assert list(Path(asked["path"]).iterdir()) == []


def test_an_unknown_instance_is_refused(asked: dict[str, Any]) -> None:
    result, _logged = run_module("sglang_support_bundle", {**asked, "instances": ["b", "a"]})
    assert result["failed"] and result["msg"].startswith("there is no instance 'b' on this host: name one of a")
    empty = {**asked, "state_dir": f"{asked['state_dir']}/none", "instances": ["c"]}
    result, _logged = run_module("sglang_support_bundle", empty)
    assert result["msg"].startswith("there is no instance 'c' on this host: ")


def test_a_folder_that_is_not_there_is_named(asked: dict[str, Any]) -> None:
    result, _logged = run_module("sglang_support_bundle", {**asked, "path": f"{asked['path']}/none"})
    assert result["failed"] and result["msg"].startswith(f"can not write {asked['path']}/none")
