# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of this host as its kernel shows them; no driver library is loaded but by nvidia-smi."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, run
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process, process

ROOT = Path("/")
SMI_WAIT = 20  # s
STRANGER_MEMORY = 64  # MiB: less is not worth a word
UNSEEN_MEMORY = 1024  # MiB: the driver itself may take some hundreds


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int  # as nvidia-smi tells it
    memory: float | None  # MiB; None where the driver does not tell
    gpu: int  # index, as nvidia-smi counts
    process: Process | None  # None where this host does not see it

    @property
    def label(self) -> str:
        """The process and what it holds, in a message."""
        hidden = f"process {self.pid}, which this host does not see (of the node or of another container)"
        memory = "memory" if self.memory is None else f"{self.memory:.0f} MiB"
        return f"{self.process.label if self.process else hidden}: {memory} of GPU {self.gpu}"


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU in MiB, as nvidia-smi tells it."""

    index: int
    name: str
    total: float
    free: float


def device() -> str | None:
    """Return the device that SGLang is to use here, or None where there is no GPU; AMD's goes by 'cuda' too.

    SGLang by itself takes the CPU without a word when it can not use a GPU.
    """
    return "cuda" if _nvidia() or (ROOT / "dev/kfd").exists() else None


def inventory() -> list[str]:
    """Return what tells one set of GPUs and driver from another, without what changes while they work."""
    texts = [ROOT / "proc/driver/nvidia/version", *sorted(ROOT.glob("proc/driver/nvidia/gpus/*/information"))]
    return [*_nvidia(), *(path.read_text(errors="replace") for path in texts if path.is_file())]


def memory_total() -> float | None:
    """Return the memory of the smallest GPU in GiB, as nvidia-smi tells it, or None."""
    try:
        sizes = [_number(total) for (total,) in _smi("--query-gpu=memory.total")]
    except Refused:
        return None
    return min((size / 1024 for size in sizes if size is not None), default=None)


def cards() -> list[GpuMemory]:
    """Return each GPU of which the driver tells the memory, by index; none without nvidia-smi."""
    found = []
    for index, name, total, free in _smi("--query-gpu=index,name,memory.total,memory.free"):
        sizes = _number(total), _number(free)
        if sizes[0] and sizes[1] is not None:
            found.append(GpuMemory(int(index), name, sizes[0], sizes[1]))
    return sorted(found, key=lambda one: one.index)


def memory_used() -> dict[int, float]:
    """Return the MiB in use on each GPU by its index, whoever uses it; empty without nvidia-smi."""
    used = {int(index): _number(memory) for index, _uuid, memory in _gpus()}
    return {index: memory for index, memory in used.items() if memory is not None}


def indices() -> dict[str, int]:
    """Return the index of each GPU by its UUID; empty without nvidia-smi."""
    return {uuid: int(index) for index, uuid, _memory in _gpus()}


def processes(gpus: Sequence[int] = ()) -> list[GpuProcess]:
    """Return what computes on the GPUs of these indices (none: on any), as far as the driver tells.

    In a container the driver tells the container's own processes only; memory_used() counts those of others too.
    """
    index = indices()
    found = [
        GpuProcess(int(pid), _number(memory), index[uuid], process(int(pid), ROOT / "proc"))
        for pid, memory, uuid in _apps()
        if pid.isdigit() and uuid in index and (not gpus or index[uuid] in gpus)
    ]
    if all(one.process for one in found):
        return found
    # one that was just ending is not one that this host does not see
    still = {pid for pid, _memory, _uuid in _apps()}
    return [one for one in found if one.process or str(one.pid) in still]


def strangers(gpus: Sequence[int], own_cgroups: Sequence[str]) -> list[GpuProcess]:
    """Return what holds memory of these GPUs and is in none of `own_cgroups`."""
    return [
        one
        for one in processes(gpus)
        if (one.memory is None or one.memory >= STRANGER_MEMORY)
        and not (one.process and any(map(one.process.in_cgroup, own_cgroups)))
    ]


def unseen(gpus: Sequence[int] = ()) -> dict[int, float]:
    """Return the MiB of each of these GPUs that are in use and belong to no process that this host sees, if many."""
    held: dict[int, float] = {}
    for one in processes():
        held[one.gpu] = held.get(one.gpu, 0) + (math.inf if one.memory is None else one.memory)
    rest = {index: used - held.get(index, 0) for index, used in memory_used().items() if not gpus or index in gpus}
    return {index: memory for index, memory in rest.items() if memory >= UNSEEN_MEMORY}


def _gpus() -> list[list[str]]:
    return _smi("--query-gpu=index,uuid,memory.used")


def _apps() -> list[list[str]]:
    return _smi("--query-compute-apps=pid,used_memory,gpu_uuid")


def _smi(query: str) -> list[list[str]]:
    """Return the fields of every line that nvidia-smi answers; none where there is no nvidia-smi or it fails."""
    try:
        done = run(["nvidia-smi", query, "--format=csv,noheader,nounits"], timeout=SMI_WAIT)
    except OSError:
        return []
    except subprocess.TimeoutExpired:
        raise Refused(
            f"nvidia-smi does not answer within {SMI_WAIT} s: the driver is stuck; look for 'Xid' in what "
            "'journalctl -k' shows (of a container: on its node), then restart that machine"
        ) from None
    if done.returncode != 0:
        return []
    lines = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return [fields for fields in lines if len(fields) == query.count(",") + 1]


def _number(field: str) -> float | None:
    """Return a number, or None for what the driver does not tell, e.g. '[N/A]'."""
    try:
        return float(field)
    except ValueError:
        return None


def _nvidia() -> list[str]:
    return sorted(path.name for path in ROOT.glob("dev/nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
