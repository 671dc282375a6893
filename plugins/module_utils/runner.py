# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to run a command on this machine or in a container of it, so that its callers need not know which."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from ansible_collections.gpuops.sglang.plugins.module_utils import pct
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, feed
from ansible_collections.gpuops.sglang.plugins.module_utils.pct_programs import escaped

GRACE = 3.0  # s from SIGTERM to SIGKILL, and from there until a process counts as one that can not be ended
ENDED_INSIDE = 60.0  # s, more than the Perl of pct.Call takes to end a command in its container
WAKE = 0.1  # s between two looks whether a command has ended whose output a daemon of its own holds open
LAST_READS = 16  # of 64 KiB: a pipe holds at most 1 MiB of what an ended command has said

# Runs in the container and becomes the command. All of it comes on stdin, in four lines, since what is on a command
# line can be seen by every user. `read` takes no byte too many, so the command has the rest of stdin for itself.
BECOME = r"""
word() { IFS= read -r gpuops_word || exit; gpuops_word=$(printf %b. "$gpuops_word"); gpuops_word=${gpuops_word%.}; }
word; gpuops_mark=$gpuops_word
word; [ -z "$gpuops_word" ] || cd -- "$gpuops_word" || { echo "$gpuops_mark" >&2; exit 1; }
word; eval "set -- $gpuops_word"
word; eval "$gpuops_word"
exec "$@"
"""

# Variables that some /bin/sh does not let anyone set, or sets again.
SHELLS_OWN = {
    "BASHOPTS", "BASH_VERSINFO", "EUID", "LINENO", "OPTIND", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "UID",
}  # fmt: skip

# What the sentences of pct.Call tell the connection plugin to change -> what it is for a module on the node.
SETTINGS = (
    ("ansible_pct_node_become to sudo, or ansible_pct_node_user to root", "become to true"),
    ("ansible_pct_executable", "pct_executable"),
    ("ansible_pct_", ""),
    ("ansible_host", "the host of the task"),
)


class TimedOut(Exception):
    """A command had to be ended; the text is the whole message, the outputs are what the command had said."""

    def __init__(self, message: str, stdout: bytes, stderr: bytes) -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


@dataclass(frozen=True)
class Finished:
    """How a command ended: 128 + N by signal N, 127 if there is no such program, 126 if it can not be run."""

    code: int
    stdout: bytes
    stderr: bytes


class Runner(Protocol):
    """A place where commands run. `where` names it in messages."""

    @property
    def where(self) -> str: ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        chdir: str | None = None,
        timeout: float | None = None,
    ) -> Finished:
        """Run `argv` to its end. `environment` adds to what is there and may hold secrets; `timeout` is in seconds.

        Refused where commands can not be run; TimedOut when this one and everything below it was ended. What has
        become a daemon goes on, and its later words are not waited for.
        """


@dataclass(frozen=True)
class Here:
    """This machine, as the user that this process is."""

    @property
    def where(self) -> str:
        return os.uname().nodename

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        chdir: str | None = None,
        timeout: float | None = None,
    ) -> Finished:
        _check(self.where, argv, environment or {}, chdir)
        added = {name.encode(): _raw(value) for name, value in (environment or {}).items()}
        if chdir and not os.path.isdir(chdir):
            raise Refused(_no_folder(self.where, argv, chdir))
        finished, left = _run(argv, stdin, {**os.environb, **added}, chdir, timeout, _end_here)
        if left is not None:
            raise TimedOut(_too_long(self.where, argv, timeout, left), finished.stdout, finished.stderr)
        return replace(finished, code=128 - finished.code) if finished.code < 0 else finished


@dataclass(frozen=True)
class InContainer:
    """A container of this node, as its root. This process must be root on the node."""

    vmid: int
    entry: str = "quick"  # or strict
    locked: str = "refuse"  # or enter
    executable: str = pct.PCT

    @property
    def where(self) -> str:
        return f"container {self.vmid} on {self._node}"

    @property
    def _node(self) -> str:
        return os.uname().nodename.partition(".")[0]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        chdir: str | None = None,
        timeout: float | None = None,
    ) -> Finished:
        _check(self.where, argv, environment or {}, chdir)
        for name in SHELLS_OWN.intersection(environment or {}):
            raise Refused(f"{self.where}: the environment variable {name} belongs to the shell itself: take it out")
        call = pct.Call(
            pct.Target(
                self.vmid, self._node, self._node, f"user id {os.geteuid()}",
                executable=self.executable, entry=self.entry, locked=self.locked,
            )
        )  # fmt: skip
        no_folder = f"{call.mark}.no-folder"
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        # a name that begins with a dash is an option to cd, or its last folder
        folder = chdir if not chdir or chdir.startswith("/") else f"./{chdir}"
        words = [no_folder, folder or "", shlex.join(argv), f"export {shlex.join(variables)}" if variables else ""]
        lines = "".join(escaped(word).replace("\n", r"\n") + "\n" for word in words)
        finished, left = _run(call.node_argv(BECOME), lines.encode() + stdin, None, None, timeout, _end_inside)
        reply = (finished.code, finished.stdout, finished.stderr)
        if left is not None:
            raise TimedOut(_too_long(self.where, argv, timeout, left), *call.result(*reply)[1:])
        failure = call.failure(*reply, reached=True)
        if failure and f"{call.mark}.started\n".encode() in finished.stderr:
            raise Refused(
                f"{self.where}: what watches over {argv[0]} on {self._node} was ended from outside, so its result is"
                " lost: see whether it still runs, then run it again"
            )
        if failure:
            for setting, here in SETTINGS:
                failure = failure.replace(setting, here)
            raise Refused(failure)
        code, stdout, stderr = call.result(*reply)
        if stderr.endswith(f"{no_folder}\n".encode()):
            raise Refused(_no_folder(self.where, argv, chdir or ""))
        return Finished(code, stdout, stderr)


def _check(where: str, argv: Sequence[str], environment: Mapping[str, str], chdir: str | None) -> None:
    """Raise Refused for what no program can be given; values are not named, since they may be secrets."""
    program = argv[0] if argv else ""
    if program[:1] in ("", "-"):
        raise Refused(f"{where}: a command begins with the name of a program, not with {program!r}: correct argv")
    for name, value in environment.items():
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refused(
                f"{where}: {name!r} is no name for an environment variable: use letters, digits and '_' alone"
            )
        if "\0" in value:
            raise Refused(f"{where}: the environment variable {name} has a null byte, which none can hold: take it out")
    for word in (*argv, chdir or ""):
        if "\0" in word:
            raise Refused(f"{where}: an argument of {program!r} has a null byte, which none can hold: take it out")


def _no_folder(where: str, argv: Sequence[str], folder: str) -> str:
    return f"{where}: there is no directory {folder} in which {argv[0]} could run: make it, or correct chdir"


def _too_long(where: str, argv: Sequence[str], timeout: float | None, left: str) -> str:
    ended = f"{left} could not be ended" if left else "was ended, with everything that it had started"
    return (f"{where}: {argv[0]} had not finished after {timeout:g} s and {ended}:"
            " find out what it waits for, or set a longer timeout")  # fmt: skip


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _run(
    argv: Sequence[str],
    stdin: bytes,
    environment: Mapping[bytes, bytes] | None,
    chdir: str | None,
    timeout: float | None,
    end: Callable[[subprocess.Popen[bytes]], str],
) -> tuple[Finished, str | None]:
    """Run `argv`; the second value is None, or for a command that took too long what could not be ended of it."""
    try:
        process = subprocess.Popen(
            [_raw(word) for word in argv], env=environment, cwd=_raw(chdir) if chdir else None, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return Finished(code, b"", _raw(f"{argv[0]}: {error.strerror}\n")), None
    # beside the reading, since a command may write before it has read, and read nothing of what it is given
    threading.Thread(target=feed, args=(process.stdin, stdin), daemon=True).start()
    said = {}
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    left = None
    reads = LAST_READS
    with contextlib.ExitStack() as stack:
        open_pipes = stack.enter_context(selectors.DefaultSelector())
        for output in filter(None, (process.stdout, process.stderr)):
            stack.enter_context(output)
            open_pipes.register(output, selectors.EVENT_READ)
            said[output.fileno()] = bytearray()
        while reads:
            if not open_pipes.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(WAKE)
            over = left is not None or process.poll() is not None
            events = open_pipes.select(0 if over else WAKE) if open_pipes.get_map() else []
            for pipe in (event[0].fd for event in events):
                chunk = os.read(pipe, 1 << 16)
                said[pipe] += chunk
                if not chunk:
                    open_pipes.unregister(pipe)
            if over:
                reads = reads - 1 if events else 0
            elif time.monotonic() > deadline:
                left = end(process)
    return Finished(process.poll() or 0, *map(bytes, said.values())), left


class _Process(NamedTuple):
    parent: int
    session: int
    started: bytes  # with the process id it names one process for ever


def _processes() -> dict[int, _Process]:
    """The processes of this machine that run, by their ids."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent, _group, session, *rest = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            if state not in (b"Z", b"X"):
                found[int(name)] = _Process(int(parent), int(session), rest[15])
    return found


def _end_here(process: subprocess.Popen[bytes]) -> str:
    """End the session that `process` leads and everything below it; what is left, empty if nothing is."""
    known: dict[int, _Process] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + GRACE
        while True:
            alive = _family(process.pid, known)
            if not alive:
                process.wait()
                return ""
            for pid in alive - told:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            told |= alive
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    return f"its process {', '.join(map(str, sorted(alive)))}"


def _family(leader: int, known: dict[int, _Process]) -> set[int]:
    """The ids of what runs in the session of `leader` and below it.

    `known` is what earlier calls have found, for a process that has left the session and whose parent has ended.
    """
    running = _processes()
    alive = {pid for pid, process in running.items() if process.session == leader or _same(known.get(pid), process)}
    grown = True
    while grown:
        children = {pid for pid, process in running.items() if process.parent in alive} - alive
        alive |= children
        grown = bool(children)
    known.update((pid, running[pid]) for pid in alive)
    return alive


def _same(one: _Process | None, other: _Process) -> bool:
    return one is not None and one.started == other.started


def _end_inside(process: subprocess.Popen[bytes]) -> str:
    """End the Perl of a pct.Call, which first ends the command in the container; what is left, empty if nothing is."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_INSIDE)
    in_time = process.poll() is not None and not _family(process.pid, {})
    return "" if in_time else _end_here(process) or "in the container it"
