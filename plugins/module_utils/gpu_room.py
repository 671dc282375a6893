# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What will be free on the GPUs of this host when a launch starts: what is free now, and what gives way to it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import DRIVER_SHARE
from ansible_collections.gpuops.sglang.plugins.module_utils.planning import IN_USE
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor

Held = dict[int, float]  # index of a GPU -> MiB


class Room:
    """The GPUs of this host by index, and what is free on each, MiB; changes as launches are thought of."""

    def __init__(self, state: Path, leaving: Mapping[str, Collection[int]] | None = None) -> None:
        self.cards = {one.index: one for one in gpu.cards()}
        self.free = {index: one.free for index, one in self.cards.items()}
        self.held, self.unsure = _held(state, self.cards, leaving or {})
        self.taken: set[int] = set()  # of which it is planned and not seen what is free

    def release(self, instance: str) -> None:
        """Count as free what an instance holds that is going to be stopped."""
        for index, size in self.held.pop(instance, {}).items():
            self.free[index] = min(self.free[index] + size, self.cards[index].total)

    def take(self, sizes: Mapping[int, float]) -> None:
        """Count as taken what a launch will hold."""
        for index, size in sizes.items():
            self.free[index] = max(0.0, self.free[index] - size)
            self.taken.add(index)

    def records(self, indices: Sequence[int]) -> list[dict[str, object]]:
        """Return GPUs as planning.Question takes them; ValueError for one that is not there."""
        lacking = [str(index) for index in indices if index not in self.cards]
        if lacking:
            there = ", ".join(map(str, self.cards))
            raise ValueError(f"nvidia-smi tells of no GPU {', '.join(lacking)} on this host: it has {there}")
        return [
            {
                "name": self.cards[index].name,
                "memory_total_mib": self.cards[index].total,
                "memory_free_mib": self.free[index],
                "note": self._note(index),
            }
            for index in indices
        ]

    def _note(self, index: int) -> str:
        used = self.cards[index].total - self.free[index]
        return f"GPU {index} has {used / 1024:.1f} GiB in use by others, which are left alone" if used > IN_USE else ""


def _held(
    state: Path, cards: Mapping[int, gpu.GpuMemory], leaving: Mapping[str, Collection[int]]
) -> tuple[dict[str, Held], dict[str, set[int]]]:
    """Return what each running instance of this host holds, and the GPUs of which nobody tells its part.

    What processes hold that are ended for an instance (`leaving`) counts as the instance's.
    """
    if not cards:
        return {}, {}
    identities = {name: supervisor().identity(name) for name in supervisor().installed_instances()}
    running = {name: one for name, one in identities.items() if one.main_pid}
    held: dict[str, Held] = {name: {} for name in (*running, *leaving)}
    unexplained = {index: one.total * (1 - DRIVER_SHARE) - one.free for index, one in cards.items()}
    told = set()
    used = gpu.processes()
    for one in used:
        name = next((name for name, unit in running.items() if one.process and one.process.in_cgroup(unit.cgroup)), "")
        name = name or next((name for name, pids in leaving.items() if one.pid in pids), "")
        if one.memory is not None and one.gpu in cards:
            unexplained[one.gpu] -= one.memory
            if name:
                told.add((name, one.gpu))
                held[name][one.gpu] = held[name].get(one.gpu, 0.0) + one.memory
    # in a container the driver may tell of no process, or not what it holds
    hidden = [(name, *one) for name in running for one in _planned(state, name, cards) if (name, one[0]) not in told]
    unsure = {name: {*cards} for name in leaving if not used}
    for name, index, planned, most in hidden:
        shared = any(other != name and where == index for other, where, _planned, _most in hidden)
        if shared and planned is None:
            unsure.setdefault(name, set()).add(index)
            continue
        size = min(planned if shared and planned is not None else most, unexplained[index])
        if size > 0:
            held[name][index] = size
            unexplained[index] -= size
    return held, unsure


def _planned(state: Path, instance: str, cards: Iterable[int]) -> list[tuple[int, float | None, float]]:
    """Return the GPUs of the launch that is there, MiB that it was planned to hold, and that it may hold at most.

    Without a plan these are all that the launch sees, with None and no limit.
    """
    try:
        record = launches.record_of(state, instance)
    except (Refused, OSError):
        return []
    plan = record.get("plan") or {}
    held, most = plan.get("held_mib"), plan.get("most_mib") or {}
    if not held:
        return [(index, None, math.inf) for index in record.get("gpus") or cards if index in cards]
    return [
        (int(index), float(size), float(most.get(index, size))) for index, size in held.items() if int(index) in cards
    ]
