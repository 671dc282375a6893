# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SGLang of a found server, read from made-up packages."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import found_files, found_installation
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_installation import Installation, installation
from found_servers import found

CODE = "print(1)\n"
SYSTEM = found_installation.PYTHON


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
    one = found(["--model-path", "m"], **{"python": prefix / "bin/python", "folder": prefix, "age": 0.0, **more})
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
    assert (one.sources, one.version, one.closed) == (str(sources), "0.5.11", "")
    assert str(sources) in one.problems[0]
    # a variable of Python's own takes it away
    safe = {"environment": {**where.get("environment", {}), "PYTHONSAFEPATH": "1"}}
    assert look(tmp_path, **{**where, **safe}).sources == ("" if by == "folder" else str(sources))


def test_sources_that_others_can_change_are_not_run(tmp_path: Path) -> None:
    install(tmp_path)
    sources = tmp_path / "checkout"
    (sources / "sglang").mkdir(parents=True)
    (sources / "sglang/__init__.py").touch()
    assert look(tmp_path, folder=sources).closed == ""
    for name in ("sglang", ""):
        (sources / name).chmod(0o1777)
        one = look(tmp_path, folder=sources)
        assert (one.sources, one.published) == (str(sources), True) and str(sources / name) in one.closed
    # nor packages
    install(sources / "venv")
    (sources / "venv/lib/python3.11/site-packages/sglang").chmod(0o777)
    assert "can change" in look(sources / "venv").closed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_sources_of_another_user_are_not_run(tmp_path: Path) -> None:
    install(tmp_path)
    sources = tmp_path / "checkout"
    (sources / "sglang").mkdir(parents=True)
    (sources / "sglang/__init__.py").touch()
    os.chown(sources / "sglang/__init__.py", 3_999_999, 0)
    assert "others than its user root can change" in look(tmp_path, folder=sources).closed
    url = {"url": sources.as_uri(), "dir_info": {"editable": True}}
    install(tmp_path / "editable", url=url)
    assert f"can change {sources}" in look(tmp_path / "editable").closed


def test_what_is_newer_than_a_server_was_not_started_from(tmp_path: Path) -> None:
    site = install(tmp_path)
    (tmp_path / "sources/sglang").mkdir(parents=True)
    (tmp_path / "sources/sglang/__init__.py").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/sglang").symlink_to(site / "sglang")
    for name in ("sources", "linked"):
        one = look(tmp_path, folder=tmp_path / name, age=60.0)
        assert (one.sources, one.place) == ("", str(site))
        assert f"the SGLang in {tmp_path / name} is newer than the server" in one.problems[0]


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


@pytest.mark.parametrize("kind", ["pipe", "endless", "long"])
@pytest.mark.parametrize("name", ["METADATA", "RECORD", "direct_url.json", "../sglang/__init__.py"])
def test_a_trap_is_not_walked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    monkeypatch.setattr(found_installation, "WAIT", 30)
    site = install(tmp_path)
    trap = site / "sglang-0.5.11.dist-info" / name
    if name.endswith(".py"):
        (trap.parents[1] / "sglang-0.5.11.dist-info/RECORD").write_text("sglang/__init__.py,sha256=x,\n")
    trap.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(trap)
    elif kind == "endless":
        trap.symlink_to("/dev/zero")
    else:
        trap.touch()
        os.truncate(trap, 1 << 28)
    one = look(tmp_path)
    assert not any("could not be read" in problem for problem in one.problems)
    assert one.version == ("" if name == "METADATA" else "0.5.11")
    if name.endswith(".py"):
        assert "its SGLang 0.5.11 was changed by hand: sglang/__init__.py was changed" in one.problems


def test_only_regular_files_are_opened() -> None:
    with pytest.raises(OSError, match="no regular file"):
        found_files.opened("/dev/null")
    with found_files.opened(__file__) as file:
        assert file.read(1) == b"#"


def test_what_a_record_names_elsewhere_is_not_read(tmp_path: Path) -> None:
    site = install(tmp_path)
    with (site / "sglang-0.5.11.dist-info/RECORD").open("a") as record:
        record.write("../../../bin/sglang,sha256=x,1\n/etc/passwd,sha256=x,1\n")
    os.utime(site / "sglang-0.5.11.dist-info/RECORD", (1_000_000, 1_000_000))
    assert look(tmp_path).problems == ()


@pytest.mark.skipif(os.geteuid() != 0 or not Path(SYSTEM).exists(), reason="only root can be another")
@pytest.mark.parametrize("container", [None, "docker 0123"])
def test_packages_are_read_with_the_rights_of_the_user(container: str | None) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "proc/4711").mkdir(parents=True)
        (place / "proc/4711/root").symlink_to("/")
        site = install(place)
        facts: dict[str, Any] = {
            "user": User(0, 0, ()) if container else User(65534, 65534, ()),
            "container": container,
        }
        assert look(place, **facts).version == "0.5.11"
        (site / "sglang-0.5.11.dist-info/METADATA").chmod(0o600)
        assert look(place, **facts).version == ""
