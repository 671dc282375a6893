# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a TCP port of this host, from /proc (root sees every process)."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.processes import PROC, Process, process

LISTEN = "0A"


class Listener(Process):
    """A process that listens on a port; `pid` is 0 when no process of this host's /proc owns the socket."""

    @property
    def label(self) -> str:
        """The process in a message."""
        return super().label if self.pid else "another namespace's process"


def listeners(port: int, proc: Path = PROC) -> list[Listener]:
    """Return every listener on `port`, of IPv4 and IPv6, on any address."""
    inodes = _listening_inodes(port, proc)
    pids = _owners(inodes, proc) if inodes else []
    if inodes and not pids:
        return [Listener(0, "", "", None, (), None)]
    # one that has ended meanwhile does not listen
    return [Listener(**vars(found)) for found in (process(pid, proc) for pid in pids) if found]


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
