# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of installed files, on small packages with links such as uv makes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import release_files, release_record
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused


def test_files_that_two_packages_bring_are_no_damage(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("one", "two"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "shared.py").write_text(name)
        (info / "RECORD").write_text(f"shared.py,{release_record.digest_of(str(site / 'shared.py'))},3\n")
    digests = set()
    for installed in ("two", "one", "two"):
        (site / "shared.py").write_text(installed)
        with release_files.checked(site, tmp_path) as checking:
            assert checking.damage() == []
        digests.add(checking.digest())
    assert len(digests) == 2  # of what is there
    (site / "shared.py").write_text("three")
    with release_files.checked(site, tmp_path) as checking:
        (damage,) = checking.damage()
    assert "shared.py of one-1.0: expected sha256=" in str(damage) and release_files.packages([damage]) == ["one"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """One package, with a source and a library that have another link, as uv's cache has."""
    info = tmp_path / "site/one-1.0.dist-info"
    info.mkdir(parents=True)
    for name in ("one.py", "one.so"):
        (tmp_path / "site" / name).write_text("one")
        (tmp_path / f"cached-{name}").hardlink_to(tmp_path / "site" / name)
    digest = release_record.digest_of(str(tmp_path / "site/one.py"))
    (info / "RECORD").write_text(f"one.py,{digest},3\none.so,{digest},3\n")
    return tmp_path / "site"


def damaged(site: Path, cache: Path) -> list[str]:
    """Return which files a check finds damaged, and keep what it has read."""
    with release_files.checked(site, cache) as checking:
        found = [Path(damage.path).name for damage in checking.damage()]
        checking.keep()
    return found


def unread(path: str) -> str:
    raise OSError(errno.EIO, "is read", path)


def test_a_library_is_read_once_for_all_releases(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert damaged(site, tmp_path) == []
    (tmp_path / "second").mkdir()
    shutil.copytree(site / "one-1.0.dist-info", tmp_path / "second/one-1.0.dist-info")
    for name in ("one.py", "one.so"):
        (tmp_path / "second" / name).hardlink_to(tmp_path / f"cached-{name}")
    monkeypatch.setattr(release_files, "digest_of", unread)
    assert damaged(tmp_path / "second", tmp_path) == []
    monkeypatch.undo()
    # the digest is still that of its package
    (site / "one-1.0.dist-info/RECORD").write_text("one.so,sha256=another,3\n")
    assert damaged(site, tmp_path) == ["one.so"]


@pytest.mark.parametrize("how", ["written", "replaced", "of its own"])
def test_a_library_that_is_not_the_one_that_was_read_is_read(site: Path, tmp_path: Path, how: str) -> None:
    assert damaged(site, tmp_path) == []
    state = (site / "one.so").stat()
    if how == "written":
        (site / "one.so").write_text("two")
    elif how == "replaced":
        (site / "one.so").rename(tmp_path / "was")
        (site / "one.so").write_text("two")
        (tmp_path / "cached").hardlink_to(site / "one.so")
        os.utime(site / "one.so", ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        (tmp_path / "cached-one.so").unlink()
        (site / "one.so").write_text("two")
        os.utime(site / "one.so", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert damaged(site, tmp_path) == damaged(site, tmp_path) == ["one.so"]


@pytest.mark.parametrize(
    "content", [None, "", "[]", "3", '{"INODE": 3}', '{"INODE": [3, 4]}', '{"INODE": ["3", "4", 5]}']
)
def test_a_record_of_what_was_read_that_is_none_is_no_obstacle(site: Path, tmp_path: Path, content: str | None) -> None:
    if content is None:
        (tmp_path / release_files.READ).mkdir()
    else:
        inode = (site / "one.so").stat().st_ino
        (tmp_path / release_files.READ).write_text(content.replace("INODE", str(inode)))
    (site / "one.so").write_text("two")
    assert damaged(site, tmp_path) == ["one.so"]
    (site / "one.so").write_text("one")
    assert damaged(site, tmp_path) == []


def test_the_record_of_what_was_read_stays_small(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / release_files.READ
    kept.write_text(json.dumps({"1": [3, 4, "sha256=one"], "2": [3, 4, "sha256=two"]}))
    damaged(site, tmp_path)
    assert len(json.loads(kept.read_text())) == 3
    (site / "one.so").touch()
    monkeypatch.setattr(release_files, "READ_FILES", 2)
    damaged(site, tmp_path)
    assert list(json.loads(kept.read_text())) == [str((site / "one.so").stat().st_ino)]


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))


def test_each_of_many_sources_becomes_a_copy(site: Path, tmp_path: Path) -> None:
    names = [f"part{number}.py" for number in range(500)]
    for name in names:
        (site / name).hardlink_to(tmp_path / "cached-one.py")
    digest = release_record.digest_of(str(site / "one.py"))
    (site / "one-1.0.dist-info/RECORD").write_text("".join(f"{name},{digest},3\n" for name in names))
    assert damaged(site, tmp_path) == []
    assert {(site / name).stat().st_nlink for name in names} == {1} and not list(site.glob("*.own"))


def test_a_check_whose_process_is_ended_is_none(site: Path) -> None:
    (site / "one.py").unlink()
    os.mkfifo(site / "one.py")  # which nobody writes to
    before = children()
    with release_files.checked(site, site) as checking:
        for child in children() - before:
            os.kill(child, signal.SIGKILL)
        with pytest.raises(
            Refused, match=f"the files of {site} could not be checked: a process that did it was ended: deploy again"
        ):
            checking.damage()
    assert children() == before


def test_a_copy_that_can_not_be_written_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, _state: os.stat_result) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(release_files, "_own", full)
    with release_files.checked(site, site) as checking, pytest.raises(OSError, match=r"No space left.*one\.py"):
        checking.damage()


def test_what_else_goes_wrong_in_a_check_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(path: str) -> str:
        raise MemoryError(path)

    monkeypatch.setattr(release_files, "digest_of", large)
    with release_files.checked(site, site) as checking, pytest.raises(Refused, match=r"MemoryError\(.*one\.so'\)"):
        checking.damage()


def test_a_check_with_much_to_tell_waits_for_nobody(site: Path, tmp_path: Path) -> None:
    name = "n" * 200
    for number in range(2000):
        (site / f"{name}{number}.so").hardlink_to(tmp_path / "cached-one.so")
    rows = "".join(f"{name}{number}.so,sha256=another,3\n" for number in range(2000))
    (site / "one-1.0.dist-info/RECORD").write_text(rows)
    before = children()
    with release_files.checked(site, site) as checking:
        for child in children() - before:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # though nobody has read what they tell
        assert len(checking.damage()) == 2000


def test_a_caller_that_ignores_its_children_gets_an_answer(site: Path) -> None:
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert damaged(site, site) == []
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_files_whose_inodes_were_exchanged_are_no_damage(site: Path, tmp_path: Path) -> None:
    (site / "two.so").write_text("two")
    os.utime(site / "two.so", ns=(0, (site / "one.so").stat().st_mtime_ns))
    (tmp_path / "cached-two.so").hardlink_to(site / "two.so")
    digests = {name: release_record.digest_of(str(site / name)) for name in ("one.so", "two.so")}
    rows = "".join(f"{name},{digest},3\n" for name, digest in digests.items())
    (site / "one-1.0.dist-info/RECORD").write_text(rows)
    assert damaged(site, tmp_path) == []
    one, two = (str((site / name).stat().st_ino) for name in digests)
    kept = tmp_path / release_files.READ
    known = json.loads(kept.read_text())
    kept.write_text(json.dumps({one: known[two], two: known[one]}))
    assert damaged(site, tmp_path) == [] and json.loads(kept.read_text()) == known


def test_a_check_that_is_left_early_leaves_no_process(site: Path) -> None:
    (site / "one.py").unlink()
    os.mkfifo(site / "one.py")
    before = children()
    with pytest.raises(ZeroDivisionError), release_files.checked(site, site):
        raise ZeroDivisionError
    assert children() == before
