# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a TCP port of this host, from /proc (root sees every process)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A process that listens on a port; `pid` is 0 when no process of this host's /proc owns the socket."""

    pid: int
    command: str
    cgroups: tuple[str, ...]

    @property
    def label(self) -> str:
        """The process in a message."""
        return f"process {self.pid} ({self.command[:120]})" if self.pid else "another namespace's process"

    def in_cgroup(self, cgroup: str) -> bool:
        """Tell whether the process is in `cgroup` (e.g. /system.slice/sglang-a.service) or below it."""
        return bool(cgroup) and any(path == cgroup or path.startswith(f"{cgroup}/") for path in self.cgroups)


def listeners(port: int, proc: Path = Path("/proc")) -> list[Listener]:
    """Return every listener on `port`, of IPv4 and IPv6, on any address."""
    inodes = _listening_inodes(port, proc)
    found = [] if not inodes else [_process(pid, proc) for pid in _owners(inodes, proc)]
    return found or [Listener(0, "", ())] * bool(inodes)


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # a host without IPv6 has no tcp6
        for fields in map(str.split, lines):
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _owners(inodes: set[str], proc: Path) -> list[int]:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    owners = []
    for pid in sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit()):
        try:
            descriptors = os.listdir(proc / str(pid) / "fd")
        except OSError:
            continue  # it ended meanwhile
        for descriptor in descriptors:
            try:
                if os.readlink(proc / str(pid) / "fd" / descriptor) in wanted:
                    owners.append(pid)
                    break
            except OSError:
                continue
    return owners


def _process(pid: int, proc: Path) -> Listener:
    try:
        command = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        cgroups = [line.split(":", 2)[2] for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
    except OSError:
        command, cgroups = "", []
    return Listener(pid, command, tuple(cgroups))
