# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host's kernel tells of a server that somebody has started: all of it is read, nothing is touched."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import sockets
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_origin import container_of, origin
from ansible_collections.gpuops.sglang.plugins.module_utils.found_trust import changeable
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import (
    PROC,
    command_of,
    process,
    server_of,
    with_descendants,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.server_command import PYTHON, ServerCommand

GONE = " (deleted)"  # the kernel writes it after the path of what is there no more


@dataclass(frozen=True)
class FoundProcess:
    """The main process of a server."""

    pid: int
    started: int  # ticks since the boot: with the pid it names this process and no later one
    age: float  # s
    owner: str
    user: User
    origin: str  # how it was started, e.g. 'nohup'
    container: str | None  # e.g. 'docker 0123456789ab'; its paths are not those of this host
    own_network: bool  # its ports are not those of this host
    own_files: bool  # it may see others under the same paths, as a unit with a /tmp of its own does
    argv: tuple[str, ...]
    command: ServerCommand
    folder: Path  # its working directory
    environment: Mapping[str, str]
    python: Path | None  # its interpreter, of its venv if it has one; None where this host can not run it
    logs: tuple[str, ...]  # what its standard output and error are
    listens: tuple[tuple[str, int], ...]  # address and port, also of what it has started
    family: tuple[int, ...]  # the process and all that it has started
    limits: Mapping[str, str]  # name as in /proc/PID/limits -> soft limit
    bound_to: str | None  # the processors that it may use, e.g. '0-3', where these are not all

    @property
    def since(self) -> str:
        """When it was started."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - self.age))

    def path(self, written: str) -> Path:
        """Return a path as the process means it."""
        return Path(os.path.normpath(self.folder / written))


def found_process(pid: int, proc: Path = PROC) -> FoundProcess | None:
    """Return what is known of a server's main process, or None when it has ended meanwhile or is none.

    OSError: this host's root may not look into it.
    """
    folder = proc / str(pid)
    started = started_at(pid, proc)
    argv = command_of(pid, proc)
    command, known = server_of(pid, proc), process(pid, proc)
    if command is None or known is None or known.age is None:
        return None
    try:
        status = dict(re.findall(r"^(\w+):\t(.*)$", (folder / "status").read_text(errors="replace"), re.MULTILINE))
        environment = _environment((folder / "environ").read_bytes())
        cwd = Path(os.readlink(folder / "cwd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    if started is None or started != started_at(pid, proc):
        return None  # another one has got its number
    # what runs with the rights of another user than its caller's may have any command line
    own = len(set(status["Uid"].split())) == 1
    uid, gid = (int(status[ids].split()[1 if own else 0]) for ids in ("Uid", "Gid"))
    user = User(uid, gid, tuple(map(int, status.get("Groups", "").split())))
    container = container_of(known.cgroups, proc)
    if not container and (_link(folder / "ns/pid") != _link(proc / "self/ns/pid") or not _same_root(folder)):
        container = "another container"
    own_files = _link(folder / "ns/mnt") != _link(proc / "self/ns/mnt")
    python = None if container or own_files or not own else _python(command.python, cwd, environment, folder, uid)
    family = with_descendants(pid, proc)
    return FoundProcess(
        pid=pid,
        started=started,
        age=known.age,
        owner=known.owner,
        user=user,
        origin=container or origin(pid, known.cgroups, environment, status, proc),
        container=container,
        own_network=_link(folder / "ns/net") != _link(proc / "self/ns/net"),
        own_files=own_files,
        argv=tuple(argv),
        command=command,
        folder=cwd,
        environment=environment,
        python=python,
        logs=tuple(dict.fromkeys(filter(None, (_link(folder / "fd" / number) for number in "12")))),
        listens=tuple(sockets.listening(family, proc)),
        family=tuple(family),
        limits=_limits(folder),
        bound_to=_bound_to(status, proc),
    )


def started_at(pid: int, proc: Path = PROC) -> int | None:
    """Return when a process was started, in ticks since the boot, or None when it has ended."""
    try:
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def _environment(content: bytes) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in content.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _python(written: str, cwd: Path, environment: Mapping[str, str], folder: Path, uid: int) -> Path | None:
    """Return the interpreter as it was called, since a venv is known by that, or else the program itself.

    None where it is no longer there, or where others than root and its user could have changed it or its packages.
    """
    running = folder / "exe"
    exe = _link(running)
    if exe.endswith(GONE) or not PYTHON.fullmatch(exe):
        return None
    for candidate in (*_candidates(written, cwd, environment), Path(exe)):
        try:
            if not os.path.samefile(candidate, running):
                continue
        except (OSError, ValueError):
            continue
        return candidate if _is_its_own(candidate, uid) else None
    return None


def _is_its_own(python: Path, uid: int) -> bool:
    """Tell whether nobody but root and its user decides what an interpreter does."""
    prefix = python.parent.parent
    try:
        if changeable(python, uid):
            return False
        packages = [path for path in prefix.glob("lib/python3*/*-packages") if path.exists()]
        settings = [path for path in (prefix / "pyvenv.cfg",) if os.path.lexists(path)]
        return not any(changeable(path, uid) for path in (*settings, *packages))
    except OSError:
        return False


def _candidates(written: str, cwd: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    began_in = [cwd, Path(environment.get("PWD", "/"))]  # it may have gone elsewhere
    if "/" in written:
        yield from (Path(os.path.normpath(folder / written)) for folder in began_in)
    else:
        for folder in environment.get("PATH", "").split(":"):
            yield Path(os.path.normpath(cwd / folder / written))
    if environment.get("VIRTUAL_ENV"):
        yield Path(environment["VIRTUAL_ENV"]) / "bin" / written.rpartition("/")[2]


def _same_root(folder: Path) -> bool:
    try:
        return os.path.samefile(folder / "root", "/")
    except OSError:
        return False


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def _limits(folder: Path) -> dict[str, str]:
    try:
        text = (folder / "limits").read_text()
    except OSError:
        return {}
    return dict(re.findall(r"^(Max [a-z ]+?) {2,}(\w+)", text, re.MULTILINE))


def _bound_to(status: Mapping[str, str], proc: Path) -> str | None:
    """Return the processors of a process, where the first process of this host has others."""
    try:
        first = re.search(r"^Cpus_allowed_list:\t(.*)$", (proc / "1/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    own = status.get("Cpus_allowed_list")
    return own if own and first and own != first[1] else None
