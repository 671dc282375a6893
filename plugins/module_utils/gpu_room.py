# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What will be free on the GPUs of this host when a launch starts: what is free now, and what gives way to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import DRIVER_SHARE
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

Held = dict[int, float]  # index of a GPU -> MiB


class Room:
    """The GPUs of this host by index, and what is free on each, MiB; changes as launches are thought of."""

    def __init__(self, state: Path) -> None:
        self.cards = {one.index: one for one in gpu.cards()}
        self.free = {index: one.free for index, one in self.cards.items()}
        self.held = _held(state, self.cards)

    def release(self, instance: str) -> None:
        """Count as free what an instance holds that is going to be stopped."""
        for index, size in self.held.pop(instance, {}).items():
            self.free[index] = min(self.free[index] + size, self.cards[index].total)

    def take(self, sizes: Mapping[int, float]) -> None:
        """Count as taken what a launch will hold."""
        for index, size in sizes.items():
            self.free[index] = max(0.0, self.free[index] - size)

    def records(self, indices: Sequence[int]) -> list[dict[str, object]]:
        """Return GPUs as planning.Question takes them."""
        return [
            {
                "name": self.cards[index].name,
                "memory_total_mib": self.cards[index].total,
                "memory_free_mib": self.free[index],
            }
            for index in indices
        ]


def _held(state: Path, cards: Mapping[int, gpu.GpuMemory]) -> dict[str, Held]:
    """Return what each running instance of this host holds."""
    if not cards or not systemd.is_here():
        return {}
    identities = {name: systemd.identity(name) for name in systemd.installed_instances()}
    running = {name: one for name, one in identities.items() if one.main_pid}
    held: dict[str, Held] = {name: {} for name in running}
    unexplained = {index: one.total * (1 - DRIVER_SHARE) - one.free for index, one in cards.items()}
    told = set()
    for one in gpu.processes():
        name = next((name for name, unit in running.items() if one.process and one.process.in_cgroup(unit.cgroup)), "")
        if one.memory is not None and one.gpu in cards:
            unexplained[one.gpu] -= one.memory
            if name:
                told.add((name, one.gpu))
                held[name][one.gpu] = held[name].get(one.gpu, 0.0) + one.memory
    # in a container the driver may tell of no process, or not what it holds
    for name in running:
        planned = _planned(state, name, cards)
        for index in planned:
            others = [other for other in running if other != name and index in _planned(state, other, cards)]
            size = planned[index] or (0.0 if others else unexplained[index])
            if (name, index) not in told and min(size, unexplained[index]) > 0:
                held[name][index] = min(size, unexplained[index])
                unexplained[index] -= held[name][index]
    return held


def _planned(state: Path, instance: str, cards: Iterable[int]) -> Held:
    """Return the GPUs of the launch that is there, and what it was planned to hold; 0 where nothing was planned."""
    try:
        record = launches.record_of(state, instance)
    except (Refused, OSError):
        return {}
    planned = (record.get("plan") or {}).get("held_mib") or {}
    return {index: float(planned.get(str(index), 0.0)) for index in record.get("gpus") or cards if index in cards}
