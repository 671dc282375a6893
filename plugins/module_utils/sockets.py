# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a TCP port of this host, from /proc (root sees every process)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterable
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


def listening(pids: Iterable[int], proc: Path = PROC) -> list[tuple[str, int]]:
    """Return address and port of each socket that one of these processes listens on, in the network of the first."""
    pids = list(pids)
    held = {link for pid in pids for link in _descriptors(pid, proc)}
    table = _listening(proc / str(pids[0]) / "net") if pids else []
    return sorted({(_address(address), port) for address, port, inode in table if f"socket:[{inode}]" in held})


def _listening_inodes(port: int, proc: Path) -> set[str]:
    return {inode for _address, other, inode in _listening(proc / "net") if other == port}


def _listening(net: Path) -> list[tuple[str, int, str]]:
    """Return address, as the kernel writes it, port and inode of every socket that listens."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = (net / table).read_text().splitlines()[1:]
        except OSError:
            continue  # a host without IPv6 has no tcp6
        for fields in map(str.split, lines):
            if fields[3] == LISTEN:
                address, _colon, port = fields[1].rpartition(":")
                found.append((address, int(port, 16), fields[9]))
    return found


def _address(written: str) -> str:
    """Return e.g. 127.0.0.1 for 0100007F: words of 32 bits in the order of this machine."""
    words = [int(written[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(written), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _owners(inodes: set[str], proc: Path) -> list[int]:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    pids = sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())
    return [pid for pid in pids if wanted & set(_descriptors(pid, proc))]


def _descriptors(pid: int, proc: Path) -> list[str]:
    """Return what the descriptors of a process stand for; none when it has ended."""
    folder = proc / str(pid) / "fd"
    links = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(folder):
            with contextlib.suppress(OSError):
                links.append(os.readlink(folder / descriptor))
    return links
