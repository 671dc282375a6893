# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SGLang of a found server, read from made-up packages."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.found_installation import Installation, installation
from found_servers import found

CODE = "print(1)\n"


def install(prefix: Path, version: str = "0.5.11", url: dict[str, Any] | None = None) -> Path:
    site = prefix / "lib/python3.11/site-packages"
    about = site / f"sglang-{version}.dist-info"
    about.mkdir(parents=True)
    (site / "sglang").mkdir()
    (site / "sglang/__init__.py").write_text(CODE)
    digest = base64.urlsafe_b64encode(hashlib.sha256(CODE.encode()).digest()).decode().rstrip("=")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    if url:
        (about / "direct_url.json").write_text(json.dumps(url))
    (about / "RECORD").write_text(f"sglang/__init__.py,sha256={digest},{len(CODE)}\n")
    for path in (site / "sglang/__init__.py", about / "RECORD"):
        os.utime(path, (1_000_000, 1_000_000))
    return site


def look(prefix: Path, **more: Any) -> Installation:
    one = found(["--model-path", "m"], **{"python": prefix / "bin/python", "folder": prefix, **more})
    return installation(one, prefix / "proc")


def test_a_published_version_is_carried_over(tmp_path: Path) -> None:
    site = install(tmp_path)
    one = look(tmp_path)
    assert one == Installation("0.5.11", str(site), "", ())
    assert one.published


@pytest.mark.parametrize(
    ("version", "url", "told"),
    [
        (
            "0.5.11",
            {"url": "file:///root/sglang/python", "dir_info": {"editable": True}},
            "editable installation of /root/",
        ),
        ("0.5.11", {"url": "file:///root/sglang.whl", "archive_info": {}}, "installed from /root/sglang.whl, not"),
        ("0.5.11", {"url": "https://u:pw@h/sglang", "vcs_info": {"commit_id": "abc"}}, "from https://h/sglang at abc"),
        ("0.5.11+local", None, "no version of a package index"),
        ("0.5.12.dev3+gabc", None, "no version of a package index"),
        ("0.5.8", None, "older than 0.5.9"),
        ("0.4.9.post1", None, "older than 0.5.9"),
    ],
)
def test_what_can_not_be_carried_over(tmp_path: Path, version: str, url: dict[str, Any] | None, told: str) -> None:
    install(tmp_path, version, url)
    one = look(tmp_path)
    (problem,) = one.problems
    assert one.version == version and told in problem and "pw" not in problem
    assert one.published == ("+" not in version)


def test_files_that_were_changed_are_named(tmp_path: Path) -> None:
    site = install(tmp_path)
    (site / "sglang/__init__.py").write_text("print(2)\n")  # of the same size
    assert look(tmp_path).problems == ("its SGLang 0.5.11 was changed by hand: sglang/__init__.py was changed",)


def test_an_upgrade_under_a_running_server_is_told(tmp_path: Path) -> None:
    site = install(tmp_path)
    os.utime(site / "sglang-0.5.11.dist-info/RECORD")
    (problem,) = look(tmp_path, age=60.0).problems
    assert "installed after it was started" in problem


@pytest.mark.parametrize("by", ["folder", "PYTHONPATH"])
def test_sources_come_before_packages(tmp_path: Path, by: str) -> None:
    site = install(tmp_path)
    sources = tmp_path / "checkout/python"
    (sources / "sglang").mkdir(parents=True)
    where: dict[str, Any] = {"folder": sources} if by == "folder" else {"environment": {"PYTHONPATH": f":{sources}"}}
    assert look(tmp_path, **where).place == str(site)  # a folder without a package in it
    (sources / "sglang/__init__.py").touch()
    one = look(tmp_path, **where)
    assert (one.sources, one.version) == (str(sources), "0.5.11")
    assert str(sources) in one.problems[0]


def test_packages_are_found_by_what_is_loaded(tmp_path: Path) -> None:
    site = install(tmp_path / "user")
    maps = tmp_path / "proc/4711/maps"
    maps.parent.mkdir(parents=True)
    maps.write_text(f"7f00-7f01 r-xp 0 0:1 1  {site}/torch/lib/libtorch.so\n7f00-7f01 r-xp 0 0:1 1 \n")
    assert look(tmp_path).version == "0.5.11"


def test_packages_of_a_container_are_looked_for_in_it(tmp_path: Path) -> None:
    install(tmp_path / "proc/4711/root/opt/venv", "0.5.13")
    words = {"container": "docker 0123", "python": None, "folder": Path("/sgl-workspace")}
    one = found(["--model-path", "m"], **words)
    command = one.command.__class__("/opt/venv/bin/python", (), False, True, ())
    assert installation(found([], **words, command=command), tmp_path / "proc").version == "0.5.13"


def test_damaged_packages_are_no_error(tmp_path: Path) -> None:
    site = install(tmp_path)
    about = site / "sglang-0.5.11.dist-info"
    for content in ("{", "[]", '{"url": 1}'):
        (about / "direct_url.json").write_text(content)
        assert look(tmp_path).version == "0.5.11"
    (about / "METADATA").write_text("x")
    assert look(tmp_path).version in ("", "0.5.11")
    (about / "RECORD").unlink()
    assert look(tmp_path, python=Path("/python")).version == ""


def test_no_installation(tmp_path: Path) -> None:
    one = look(tmp_path)
    assert (one.version, one.published) == ("", False)
    assert "not found" in one.problems[0]
