# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host knows of a process, for a message that says which one to end."""

from __future__ import annotations

import os
import pwd
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ansible_collections.gpuops.sglang.plugins.module_utils.server_command import (
    PYTHON,
    ServerCommand,
    server_command,
)

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
SHOWN = 200  # characters of a command
NAME = r"[\w.-]*(?:key|token|passw|secret|auth|credential|pwd)[\w.-]*"
# NAME=VALUE, NAME: VALUE, or --NAME and the value after it, in words that end with a NUL or within one, as of 'sh -c'
SECRET = re.compile(rf"(?<![\w.-])({NAME}[=:]|-{NAME}[\0\s]+(?!--))[^\0]+", re.IGNORECASE)
# in an address or a header
LOGIN = re.compile(r"(://[^/\s:@\0]*:)[^\s\0]+(?=@)|(Bearer |Basic )[^\s\0]+", re.IGNORECASE)


class Groups(Protocol):
    """What tells of groups of processes where control groups do not."""

    def groups_of(self, pid: int) -> list[str]:
        """Return the groups that a process is in."""

    def in_group(self, group: str) -> list[int]:
        """Return the processes in a group."""


groups: Groups | None = None


@dataclass(frozen=True)
class Process:
    """A process that this host sees."""

    pid: int
    command: str  # without what looks like a secret
    owner: str  # name of the user, or the number where this host has no name for it
    age: float | None  # s since it was started
    cgroups: tuple[str, ...]
    container: int | None  # of the Proxmox node that this host is

    def in_cgroup(self, cgroup: str) -> bool:
        """Tell whether the process is in `cgroup` (e.g. /system.slice/sglang-a.service) or below it."""
        return bool(cgroup) and any(path == cgroup or path.startswith(f"{cgroup}/") for path in self.cgroups)

    @property
    def label(self) -> str:
        """The process in a message."""
        age = "" if self.age is None else f", for {duration(self.age)}"
        where = "" if self.container is None else f", in container {self.container}"
        return f"process {self.pid} of user {self.owner} ({self.command}){age}{where}"


def process(pid: int, proc: Path = PROC) -> Process | None:
    """Return what is known of a process, or None when it has ended or is hidden."""
    folder = proc / str(pid)
    try:
        name, _bracket, stat = (folder / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        status = (folder / "status").read_text(errors="replace")
        with (folder / "cmdline").open("rb") as file:
            command = _shown(file.read(5 * SHOWN).decode(errors="replace"))
        cgroups = [line.split(":", 2)[2] for line in (folder / "cgroup").read_text(errors="replace").splitlines()]
    except OSError:
        return None
    cgroups += groups.groups_of(pid) if groups and proc == PROC else []
    found = [re.match(r"/lxc(?:\.monitor)?/(\d+)(?:/|$)", cgroup) for cgroup in cgroups]
    container = next((int(match[1]) for match in found if match), None)
    # not of /proc/uptime: that of a container counts from the container's own start
    started = int(stat.split()[19]) / os.sysconf("SC_CLK_TCK")
    age = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    uid = int(re.findall(r"^Uid:\t\d+\t(\d+)", status, re.MULTILINE)[0])
    return Process(pid, command or f"[{name}]", _owner(uid, container), age, tuple(cgroups), container)


def in_cgroup(cgroup: str, root: Path = CGROUPS) -> list[int]:
    """Return the processes in a control group, e.g. /system.slice/sglang-a.service, and below it."""
    pids: set[int] = set()
    path = cgroup.strip("/")
    # version 2 alone, beside version 1, and systemd's own hierarchy of version 1
    for base in (root, root / "unified", root / "systemd") if path else ():
        for folder, _folders, _files in os.walk(base / path):
            try:
                pids.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
            except OSError:
                continue  # it went meanwhile, or holds single threads only
    if groups:
        pids.update(groups.in_group(cgroup))
    return sorted(pids - {0})  # 0 is one that this host does not see


def servers(proc: Path = PROC) -> list[Process]:
    """Return the SGLang servers that run on this host, whoever started them; not those of a node's containers."""
    pids = {pid for pid in _pids(proc) if server_of(pid, proc)}
    # what a server has forked has its command line
    first = [pid for pid in sorted(pids) if parent_of(pid, proc) not in pids]
    return [one for one in (process(pid, proc) for pid in first) if one and one.container is None]


def server_of(pid: int, proc: Path = PROC) -> ServerCommand | None:
    """Return how a process was started as a server, or None for any other."""
    argv = command_of(pid, proc)
    # the first word may be any name, as of 'exec -a'
    program = "" if argv and PYTHON.fullmatch(argv[0]) else _link(proc / str(pid) / "exe")
    return server_command(argv, program.removesuffix(" (deleted)"), lambda: _link(proc / str(pid) / "cwd"))


def command_of(pid: int, proc: Path = PROC) -> list[str]:
    """Return the words of a process's command line; none when it has ended."""
    try:
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.removesuffix("\0").split("\0") if text else []


def parent_of(pid: int, proc: Path = PROC) -> int:
    """Return the parent of a process; 0 when it has none or has ended."""
    try:
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def with_descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return a process and all that it has started, as far as they still belong to it."""
    children: dict[int, list[int]] = {}
    for other in _pids(proc):
        children.setdefault(parent_of(other, proc), []).append(other)
    found = [pid]
    for one in found:
        found += children.pop(one, ())
    return found


def _link(path: Path) -> str:
    """Return where a link leads; '' where this host does not tell."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _pids(proc: Path) -> list[int]:
    return sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())


def duration(seconds: float) -> str:
    """Return a time as people say it, in its two largest units: '45 s', '3 min 20 s', '2 days 4 h'."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(place for place, (count, _unit) in enumerate(parts) if count)
    return " ".join(
        f"{count} {('day' if count == 1 else 'days') if unit == 'd' else unit}"
        for count, unit in parts[first : first + 2]
        if count
    )


def _shown(command: str) -> str:
    """Return the words of a command line, each ended by a NUL, as one line that tells no secret."""
    text = LOGIN.sub(r"\1\2***", SECRET.sub(r"\1***", command))
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= SHOWN else f"{plain[: SHOWN - 1]}…"


def _owner(uid: int, container: int | None) -> str:
    if container is not None and uid != 0:
        return str(uid)  # the names of this host are not those of the container
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
