# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small steps on files and processes that the host-side code shares."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ansible_collections.gpuops.sglang.plugins.module_utils.processes import duration

FEW_INODES = 1000


class Refused(Exception):
    """A condition that the operator must change; the text is the whole message: what, its value, the next step."""


class Held(Refused):
    """Another process holds a lock and has noted what for."""

    def __init__(self, text: str, note: str) -> None:
        super().__init__(text)
        self.note = note


def write_whole(path: Path, text: str | bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Write a file so that it is seen either as it was or complete; `owner` is (uid, gid)."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if owner:
                os.fchown(file.fileno(), *owner)
            file.write(text if isinstance(text, bytes) else text.encode())
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise Refused(f"can not write {path}: {error.strerror}") from error


@contextlib.contextmanager
def writing_below(place: Path) -> Iterator[None]:
    """Turn an error of the file system into Refused, with the place and its free space in GiB."""
    try:
        yield
    except OSError as error:
        present = next((path for path in (place, *place.parents) if path.exists()), Path("/"))
        free = shutil.disk_usage(present).free / 2**30
        where = error.filename or place
        raise Refused(
            f"can not write {where}: {error.strerror}; {present} has {free:.2f} GiB free{few_inodes(present)}"
        ) from error


def few_inodes(place: Path) -> str:
    """Return how many inodes are left, in words, where that may be why nothing more can be written."""
    state = os.statvfs(place)
    # some file systems have no fixed number of them
    few = state.f_files and state.f_favail < FEW_INODES
    return f" and {state.f_favail} inodes free, of which each file needs one" if few else ""


@contextlib.contextmanager
def only_one(path: Path, what: str, wait: int) -> Iterator[int]:
    """Hold the lock `path`, which names its holder, or wait at most `wait` s for the process that holds it.

    Yields its descriptor; a child that is given it holds the lock too, as long as it lives. Raises Held at once where
    the holder has left a note, else Refused after the wait.
    """
    with path.open("a+", encoding="utf-8") as lock:
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                held = _held(path, what)
                if held.note:
                    raise held from None
                if time.monotonic() > end:
                    raise Refused(str(held)) from None
                time.sleep(0.2)
        name_holder(path)
        yield lock.fileno()


def holder(path: Path, what: str) -> Held | None:
    """Return who holds the lock `path`, as an error to tell, or None."""
    try:
        with path.open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _held(path, what)
    except OSError:
        pass  # nobody has held it since the boot
    return None


def _held(path: Path, what: str) -> Held:
    pid, since, note = (*path.read_text(encoding="utf-8").split(), "", "", "")[:3]
    age = f", for {duration(_uptime() - float(since))}" if since else ""
    return Held(f"process {pid} still {what}{age}: wait for it or end it first", note)


def name_holder(path: Path, note: str = "") -> None:
    """Write down that this process holds the lock `path`, and a word what for."""
    path.write_text(f"{os.getpid()} {_uptime():.0f} {note}\n", encoding="utf-8")


def _uptime() -> float:
    """Return seconds since the boot, which no change of the clock moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def feed(pipe: IO[bytes], data: bytes) -> None:
    """Write all to an unbuffered pipe and close it; what does not read it says why by its exit status."""
    with contextlib.suppress(OSError), pipe:
        rest = memoryview(data)
        while rest:
            rest = rest[pipe.write(rest) :]


def require_root() -> None:
    """Raise Refused where this process is not root's."""
    if os.geteuid() != 0:
        raise Refused(f"needs root on this host, not user id {os.geteuid()}: log in as root or set become")


def run(
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run an argv list with exactly the given environment (default: that of this process), whatever its status.

    After `timeout` s it is killed and subprocess.TimeoutExpired raised, even when it can not end. It gets the
    descriptors in `inherited` and no others.
    """
    process = subprocess.Popen(
        list(argv), env=None if environment is None else dict(environment), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        pass_fds=inherited,
    )  # fmt: skip
    try:
        output, errors = process.communicate(stdin, timeout)
    except BaseException:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # subprocess.run would wait for ever for what a driver holds in the kernel
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def last_lines(text: str, count: int) -> list[str]:
    """Return the last non-empty lines; a carriage return, as progress bars write it, ends a line too."""
    lines = [line.rstrip() for line in text.replace("\r", "\n").split("\n")]
    return [line for line in lines if line][-count:]
