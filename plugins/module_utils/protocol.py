# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch protocol: replace what runs, follow what was started, prove it, and on failure return to what served.

Whatever happens to the process that does this, the supervisor holds either the old launch or the new one.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, health, processes
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

MEMORY_BACK = 30  # s that the driver may take to give the memory of ended processes back

Tell = Callable[..., None]  # (instance, phase, launch)


@dataclass(frozen=True)
class Order:
    """What is to be done with one instance."""

    instance: str
    gpus: tuple[int, ...] = ()
    prepare: Callable[[], launches.Prepared] | None = None  # None: the launch that is there is followed


@dataclass
class Outcome:
    """What came of an order."""

    instance: str
    launch: str | None = None  # the one that was started
    serving: str | None = None  # the one that is proved to serve now
    verdict: dict[str, Any] | None = None  # of that
    problem: str = ""


def waves(orders: Sequence[Order]) -> list[list[Order]]:
    """Put orders that share a GPU into different waves: SGLang takes what it sees free when it starts."""
    found: list[list[Order]] = []
    several = gpu.device() is not None
    for order in orders:
        for wave in found:
            if not several or not any(_share(order, other) for other in wave):
                wave.append(order)
                break
        else:
            found.append([order])
    return found


def _share(one: Order, other: Order) -> bool:
    return not one.gpus or not other.gpus or bool(set(one.gpus) & set(other.gpus))


def carry_out(orders: Sequence[Order], state: Path, wait: health.Wait, tell: Tell) -> list[Outcome]:
    """Carry out every order; those of one wave load side by side."""
    outcomes = []
    for wave in waves(orders):
        begun = [_Launch(order, state, wait, tell) for order in wave]
        outcomes += [one.prove() for one in begun]
    return outcomes


class _Launch:
    """One order on its way; it is begun when it is made."""

    def __init__(self, order: Order, state: Path, wait: health.Wait, tell: Tell) -> None:
        self.instance, self.state, self.wait, self.tell = order.instance, state, wait, tell
        self.before = systemd.launch_of(systemd.read_unit(order.instance))
        self.outcome = Outcome(order.instance, self.before)
        self.replaced = order.prepare is None
        try:
            if order.prepare is not None:
                prepared = order.prepare()
                self.outcome.launch = prepared.launch
                self._replace(prepared)
        except Exception as error:
            self.outcome.problem = _told(error)

    def _replace(self, prepared: launches.Prepared) -> None:
        old = systemd.read_unit(self.instance)
        try:
            systemd.install(self.instance, prepared.unit)
        except Refused:
            if old and systemd.read_unit(self.instance) != old:
                systemd.install(self.instance, old)
            raise
        self.replaced = True
        if old:
            stop(self.instance, self.tell)
        self.tell(self.instance, "starting", prepared.launch)
        systemd.start(self.instance)
        self.tell(self.instance, "loading", prepared.launch)

    def prove(self) -> Outcome:
        """Wait for the verdict, and where it is bad return to the last good launch."""
        launch = self.outcome.launch or ""
        if not self.outcome.problem:
            self._verify(launch)
        if self.outcome.problem and self.replaced and not launches.is_good(self.state, self.instance, launch):
            self._return(launch)
        return self.outcome

    def _verify(self, launch: str) -> None:
        try:
            verdict = health.verify(self.state, self.instance, self.wait)
            launches.keep_verdict(self.state, self.instance, launch, verdict)
            self.outcome.verdict, self.outcome.serving = verdict, launch
        except Exception as error:
            self.outcome.problem = _told(error)

    def _return(self, failed: str) -> None:
        problem = self.outcome.problem
        good = self._good(failed)
        try:
            log = [line.text for line in systemd.log_of(failed, health.LOG_LINES)]
            launches.keep_failure(self.state, self.instance, failed, problem, log)
        except Refused as refused:
            problem += f"\n{refused}"
        if good is None:
            now = systemd.identity(self.instance)
            self.outcome.problem = (
                f"{problem}\nServing now: nothing that was proved. There is no earlier launch to return to; "
                f"the service is left as it is, {now.active} ({now.sub})."
            )
            return
        self.tell(self.instance, "returning", good)
        self.outcome.problem = ""
        try:
            prepared = launches.prepare_again(self.state, self.instance, good)
            self._replace(prepared)
            self._verify(prepared.launch)
        except Exception as error:
            self.outcome.problem = _told(error)
        if self.outcome.problem:
            problem += f"\nServing now: nothing; the return to launch {good} failed too: {self.outcome.problem}"
        else:
            problem += f"\nServing now: what launch {good} was, as launch {prepared.launch}, which was proved."
        self.outcome.problem = problem

    def _good(self, failed: str) -> str | None:
        """What served until now, else the newest that was proved before."""
        state, name, before = self.state, self.instance, self.before
        good = before and before != failed and launches.is_good(state, name, before)
        if good and launches.again_problem(state, name, before or "") is None:
            return before
        return launches.last_good(state, name, failed)


def _told(error: Exception) -> str:
    """Return what the operator is told; whatever went wrong, the way back is to be gone."""
    if isinstance(error, (health.Unhealthy, Refused)):
        return str(error)
    return f"this tool failed: {' | '.join(traceback.format_exc(limit=-3).splitlines())}"


def stop(instance: str, tell: Tell) -> None:
    """Stop an instance and prove that nothing of it is left: no process, no memory of a GPU."""
    before = systemd.identity(instance)
    ours = set(processes.in_cgroup(before.cgroup)) if before.cgroup else set()
    if before.active in ("active", "activating", "deactivating", "reloading"):
        tell(instance, "stopping", systemd.running_launch(before.main_pid))
    systemd.stop(instance)
    if not ours:
        return
    left = processes.in_cgroup(before.cgroup)
    if left:
        found = processes.process(left[0])
        who = found.label if found else f"process {left[0]}"
        raise Refused(
            f"instance '{instance}': {who} can not be ended: it waits in the kernel, see 'ps -o pid,stat,wchan'"
        )
    end = time.monotonic() + MEMORY_BACK
    while True:
        holding = [one for one in gpu.processes() if one.pid in ours]
        if not holding:
            return
        if time.monotonic() > end:
            raise Refused(
                f"instance '{instance}' has ended, but the driver still counts {holding[0].label}: see dmesg for Xid, "
                "and reset the GPU or restart the host"
            )
        time.sleep(0.5)
