# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import host
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Held,
    Refused,
    last_lines,
    name_holder,
    only_one,
    require_root,
    run,
    write_whole,
    writing_below,
)


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


def test_a_command_that_does_not_end_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[subprocess.Popen[str]] = []
    really_kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: ended.append(process) or really_kill(process))
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sleep", "600"], timeout=0.1)
    assert [process.returncode for process in ended] == [-signal.SIGKILL]


def test_a_command_that_can_not_be_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: stuck.append(process))
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sleep", "600"], timeout=0.1)
    monkeypatch.undo()
    (process,) = stuck
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_command_that_ends_in_time_is_not_hurried() -> None:
    assert run(["cat"], stdin="in\n", timeout=600).stdout == "in\n"


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


HOLD = """
import sys
from pathlib import Path
from ansible_collections.gpuops.sglang.plugins.module_utils.host import only_one
with only_one(Path(sys.argv[1]), "holds", 0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_that_it_names(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("4711 and more of an earlier holder\n")
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=where
    )
    with holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "held\n"
            with pytest.raises(Refused) as caught, only_one(lock, "starts instances on this host", 0):
                raise AssertionError("two processes hold the lock")
            age = r"for (\d+ min )?\d+ s"
            said = rf"process {holder.pid} still starts instances on this host, {age}: wait for it or end it first"
            assert re.fullmatch(said, str(caught.value))
        finally:
            holder.kill()
    # the lock of a process that was killed is free, whatever is written there
    before = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    with only_one(lock, "starts instances on this host", 0):
        pid, since = lock.read_text().split()
        assert int(pid) == os.getpid() and before <= int(since)
        name_holder(lock, "run")
        assert lock.read_text().split()[::2] == [str(os.getpid()), "run"]


@pytest.mark.parametrize(
    ("holder", "told", "note"),
    [
        ("4711 1000 \n", "process 4711 still works, for 3 min 25 s: wait for it or end it first", None),
        ("4711\n", "process 4711 still works: wait for it or end it first", None),
        ("4711 1000 0a1b\n", "process 4711 still works, for 3 min 20 s: wait for it or end it first", "0a1b"),
    ],
)
def test_a_holder_is_told_with_its_age_and_at_once_where_it_has_left_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str, told: str, note: str | None
) -> None:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(holder)
        other.flush()
        with pytest.raises(Refused) as caught, only_one(tmp_path / "lock", "works", 5):
            pass
    assert str(caught.value) == told
    assert getattr(caught.value, "note", None) == note and isinstance(caught.value, Held) == bool(note)
    assert (clock.now == 100) == bool(note)


def test_a_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), only_one(tmp_path / "lock", "works", 0):
        raise ZeroDivisionError
    with only_one(tmp_path / "lock", "works", 0):
        pass


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    CLOCK_BOOTTIME = 7

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, clock: int) -> float:
        assert clock == self.CLOCK_BOOTTIME
        return 1100 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_lock_is_waited_for_and_not_for_longer_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Refused), only_one(tmp_path / "lock", "works", 5):
            pass
        assert 105 <= clock.now < 106
        really_sleep, start = clock.sleep, clock.now

        def sleep(seconds: float) -> None:
            really_sleep(seconds)
            if clock.now > start + 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr(clock, "sleep", sleep)
        with only_one(tmp_path / "lock", "works", 5):
            assert start + 3 < clock.now < start + 4


def test_a_lock_does_not_pass_to_a_command_that_outlives_its_holder(tmp_path: Path) -> None:
    with only_one(tmp_path / "lock", "works", 0):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with only_one(tmp_path / "lock", "works", 0):
            pass
    finally:
        child.kill()
        child.wait()


def test_root_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_root()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused) as caught:
        require_root()
    assert str(caught.value) == "needs root on this host, not user id 1000: log in as root or set become"


def test_an_error_of_the_file_system_tells_the_place_and_its_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 2**29)
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage)
    place = tmp_path / "not/there"
    with pytest.raises(Refused) as caught, writing_below(place):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(caught.value) == f"can not write {place}: No space left on device; {tmp_path} has 1.50 GiB free"
    with pytest.raises(Refused) as caught, writing_below(place):
        (place / "x").mkdir()
    assert str(caught.value).startswith(f"can not write {place / 'x'}: No such file or directory; {tmp_path} has")
    assert asked == [tmp_path, tmp_path]


def test_other_errors_below_a_place_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), writing_below(tmp_path):
        raise ValueError("x")
    with pytest.raises(Refused, match=r"^as it was$"), writing_below(tmp_path):
        raise Refused("as it was")
