# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the memory of the host itself and /dev/shm are enough for a server; lower bounds, so that a no is certain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/")
GIB = 1024**3
SERVER = 1.3  # GiB: what the HTTP process of 0.5.11 and 0.5.23 held at least; schedulers share part of it
# What SGLang leaves to the host beside a hierarchical cache (0.5.11 mem_cache/memory_pool_host.py,
# HICACHE_HOST_MEMORY_RESERVE_BYTES; 0.5.23 mem_cache/pool_host/base.py)
RESERVE = 10.0
SHARED = 1.0  # GiB of /dev/shm, as the documentation of NCCL advises for containers


def needed(resolved: Mapping[str, Any], ranks: int, cache: float, weights: float) -> tuple[float, str]:
    """Return the GiB of host memory that a server needs at least, and for what.

    `cache` and `weights` are GiB on a GPU as planned, before any part of them is moved to the host.
    """
    parts = {"the server": SERVER}
    offload = min(float(resolved.get("cpu_offload_gb") or 0), weights)
    if offload:
        parts["'cpu_offload_gb'"] = offload * ranks
    if resolved.get("enable_hierarchical_cache"):
        size, ratio = float(resolved.get("hicache_size") or 0), float(resolved.get("hicache_ratio") or 2.0)
        if resolved.get("hicache_host_memory_fraction") is not None and not size:
            ratio = 0.0  # since 0.5.21 a ratio that nobody asks for is lowered until it fits
        name = "'hicache_size'" if size else f"'hicache_ratio' {ratio:g}" if ratio else "the hierarchical cache"
        parts[name] = (size * 1e9 / GIB if size else ratio * cache) * ranks + RESERVE
    told = ", ".join(f"{size:.1f} for {name}" for name, size in parts.items())
    return sum(parts.values()), told


def problem(resolved: Mapping[str, Any], ranks: int, cache: float, weights: float) -> str:
    """Return why the host's memory can not be enough, whatever else runs on it, or ''."""
    need, parts = needed(resolved, ranks, cache, weights)
    total, _free = memory()
    if not total or need <= total:
        return ""
    step = "give the host or container more memory, or ask for less of it"
    return f"the server needs at least {need:.1f} GiB of host memory ({parts}), and there are {total:.1f}: {step}"


def warnings(resolved: Mapping[str, Any], ranks: int, cache: float, weights: float, own: float) -> list[str]:
    """Return what may not be enough; `own` is the GiB that the launch before holds and gives back."""
    told = []
    need, parts = needed(resolved, ranks, cache, weights)
    total, free = memory()
    if total >= need > free + own:
        told.append(
            f"the server needs at least {need:.1f} GiB of host memory ({parts}), and {free + own:.1f} are free: "
            "see what else runs here"
        )
    size = shared_memory()
    if ranks > 1 and size is not None and size < SHARED:
        told.append(
            f"/dev/shm has {size:.2f} GiB, in which {ranks} GPUs are to exchange data: NCCL may fail with 'unhandled "
            f"system error'; make it {SHARED:g} GiB or more (a size option of its mount, docker's --shm-size)"
        )
    return told


def memory() -> tuple[float, float]:
    """Return the GiB of memory that this host or container may use, and those that are free; 0 if not told."""
    try:
        lines = (ROOT / "proc/meminfo").read_text().splitlines()
        told = {
            name: int(size.split()[0]) * 1024 / GIB for name, _colon, size in (line.partition(":") for line in lines)
        }
        total, free = told["MemTotal"], told["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0, 0.0
    group = ROOT / "sys/fs/cgroup"
    try:  # of a container that sees the meminfo of its host
        limit = int((group / "memory.max").read_text()) / GIB
        told_of = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(told_of.get("inactive_file", 0)) + int(told_of.get("active_file", 0))
        used = (int((group / "memory.current").read_text()) - cached) / GIB
    except (OSError, ValueError, KeyError):
        return total, free
    return min(total, limit), min(free, max(0.0, limit - used))


def held(cgroup: str) -> float:
    """Return the GiB that the processes of a control group hold and give back when they end; 0 if not told."""
    try:
        lines = (ROOT / "sys/fs/cgroup" / cgroup.strip("/") / "memory.stat").read_text().splitlines()
        told = dict(line.split() for line in lines)
        return (int(told["anon"]) + int(told["shmem"])) / GIB
    except (OSError, ValueError, KeyError):
        return 0.0


def shared_memory() -> float | None:
    """Return the size of /dev/shm in GiB, or None where it is no file system of its own."""
    folder = ROOT / "dev/shm"
    try:
        if not os.path.ismount(folder):
            return None
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_blocks * told.f_frsize / GIB
