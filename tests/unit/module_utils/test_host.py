# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import host
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run, write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
@pytest.mark.parametrize("wanted", [0o600, 0o640, 0o644])
def test_a_file_has_the_asked_mode_whatever_the_umask(tmp_path: Path, umask: int, wanted: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a", "text\n", wanted)
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == wanted
    assert (tmp_path / "a").read_text() == "text\n"
    assert os.listdir(tmp_path) == ["a"]


def test_another_content_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("a long old text")
    path.chmod(0o666)
    write_whole(path, "größer", 0o600)
    assert path.read_bytes() == "größer".encode()
    assert mode(path) == 0o600


def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    seen = []

    def look(descriptor: int) -> None:
        seen.append((path.read_text(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", look)
    write_whole(path, "newer")
    # the whole text is on its way to the disk before the name points to it
    assert seen == [("old", 5)]
    assert path.read_text() == "newer"


def test_a_secret_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, modes = os.umask(0), []
    really_chmod = os.fchmod

    def look(descriptor: int, wanted: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        really_chmod(descriptor, wanted)

    monkeypatch.setattr(os, "fchmod", look)
    try:
        write_whole(tmp_path / "secret", "sk", 0o600)
    finally:
        os.umask(before)
    assert modes == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_the_owner_is_set(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "x", 0o600, (65534, 65533))
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid, mode(tmp_path / "a")) == (65534, 65533, 0o600)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if call == "fsync" else Path, call, full)
    with pytest.raises(Refused) as caught:
        write_whole(path, "new")
    assert str(caught.value) == f"can not write {path}: No space left on device"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_really_full_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("needs /dev/full")
    really_open = os.open
    monkeypatch.setattr(host.os, "open", lambda path, flags, mode: really_open("/dev/full", os.O_WRONLY))
    monkeypatch.setattr(host.os, "fchmod", lambda *_: None)
    with pytest.raises(Refused, match="No space left on device"):
        write_whole(tmp_path / "a", "text")
    assert os.listdir(tmp_path) == []


def test_what_an_interrupted_write_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".a.partial").write_text("half of anoth")
    (tmp_path / ".a.partial").chmod(0o666)
    write_whole(tmp_path / "a", "x", 0o600)
    assert os.listdir(tmp_path) == ["a"]
    assert mode(tmp_path / "a") == 0o600


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".a.partial").symlink_to(tmp_path / "victim")
    write_whole(tmp_path / "a", "x")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize(("where", "why"), [("missing/a", "No such file or directory"), ("file/a", "Not a directory")])
def test_a_place_that_can_not_be_written_is_named(tmp_path: Path, where: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused) as caught:
        write_whole(tmp_path / where, "x")
    assert str(caught.value) == f"can not write {tmp_path / where}: {why}"


def test_a_command_gets_its_words_and_its_input_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "1")
    program = "import os, sys; print(sys.argv[1:], sorted(os.environ), sys.stdin.read()); sys.exit(3)"
    done = run([sys.executable, "-c", program, "a b", "$HOME", "*"], {"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}, "in\n")
    assert done.stdout == "['a b', '$HOME', '*'] ['LC_CTYPE', 'PATH'] in\n\n"
    assert done.returncode == 3


def test_a_command_without_an_environment_has_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "1")
    assert run([sys.executable, "-c", "import os; print(os.environ['GIVEN'])"]).stdout == "1\n"


def test_output_that_is_no_text_is_no_error() -> None:
    assert run([sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'a\xffb')"]).stdout == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        ("", 3, []),
        ("\n \n\r\n", 3, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb", 5, ["a", "b"]),
        ("a\n\n  b  \n\n", 2, ["a", "  b"]),
        ("10%\r50%\r100%\nerror\n", 3, ["50%", "100%", "error"]),
        ("a\r\nb\r\n", 2, ["a", "b"]),
    ],
)
def test_last_lines(text: str, count: int, lines: list[str]) -> None:
    assert last_lines(text, count) == lines
