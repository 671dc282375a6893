# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch protocol: replace what runs, follow what was started, prove it, and on failure return to what served.

Whatever happens to the process that does this, the supervisor holds either the old launch or the new one.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, health, processes
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import launch_of

MEMORY_BACK = 120  # s for memory of ended processes; a driver that keeps no state needs long to answer when all ended

Tell = Callable[..., None]  # (instance, phase, launch, and why the launch before failed)


class Old(Protocol):
    """A server that somebody has started by hand, in whose place an instance comes; each method raises Refused."""

    label: str
    ended: bool  # by this run or an earlier one

    @property
    def pids(self) -> Collection[int]:
        """What gives way when it is ended."""

    def keep(self) -> None:
        """Keep what starting it again needs. Not for several threads."""

    def end(self, tell: Callable[[str], None]) -> None:
        """End it and prove that nothing of it is left."""

    def again(self, tell: Callable[[str], None]) -> str:
        """Start it as it was, prove that it answers, and return what serves then."""

    def rival(self) -> str:
        """Return what has started it again beside the instance, '' for nothing."""

    def forget(self) -> None:
        """Remove what was kept."""


@dataclass(frozen=True)
class Order:
    """What is to be done with one instance."""

    instance: str
    gpus: tuple[int, ...] = ()
    prepare: Callable[[], launches.Prepared] | None = None  # None: the launch that is there is followed
    old: Old | None = None


@dataclass
class Outcome:
    """What came of an order."""

    instance: str
    launch: str | None = None  # the one that the unit carries
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
    """Carry out every order; those of one wave load side by side. What failed in one may fail in the next."""
    outcomes: list[Outcome] = []
    for wave in waves(orders):
        if any(outcome.problem for outcome in outcomes):
            why = "was not touched, because another instance of this host has failed"
            for name in (one.instance for one in wave):
                present = launch_of(supervisor().read_unit(name))
                outcomes.append(Outcome(name, present, problem=f"instance '{name}' {why}"))
            continue
        begun = [_Launch(order, state, wait, tell) for order in wave]
        for one in begun:  # once all are stopped: one may get a GPU that another one had
            one.start()
        with ThreadPoolExecutor(len(begun)) as pool:  # the end of one is not to wait for the load of another
            outcomes += pool.map(_Launch.prove, begun)
    return outcomes


class _Launch:
    """One order on its way; when it is made, what runs is stopped."""

    def __init__(self, order: Order, state: Path, wait: health.Wait, tell: Tell) -> None:
        self.instance, self.state, self.wait, self.teller = order.instance, state, wait, tell
        self.new = order.prepare is not None
        self.old = order.old
        self.replaced = not self.new or (self.old is not None and self.old.ended)
        self.busy = False
        self.before: str | None = None
        self.outcome = Outcome(order.instance)
        try:
            self.before = self.outcome.launch = launch_of(supervisor().read_unit(order.instance))
            if self.old:
                self.old.keep()
            if order.prepare is not None:
                self._replace(order.prepare(), self.old)
        except Exception as error:
            self.outcome.problem = _told(error)

    def _tell(self, instance: str, phase: str, launch: str | None, problem: str = "") -> None:
        with contextlib.suppress(Exception):  # a launch does not fail because nobody can be told of it
            self.teller(instance, phase, launch, problem)

    def _say(self, phase: str) -> None:
        self._tell(self.instance, phase, None)

    def _replace(self, prepared: launches.Prepared, other: Old | None = None) -> None:
        """Put a launch in the place of what runs, which is stopped."""
        old = supervisor().read_unit(self.instance)
        try:
            supervisor().install(self.instance, prepared.unit)
        except Exception:
            if old and supervisor().read_unit(self.instance) != old:
                supervisor().install(self.instance, old)
            raise
        self.replaced, self.outcome.launch = True, prepared.launch
        if old:
            stop(self.instance, self._tell)
        if other:
            other.end(self._say)
        launches.hand_over(self.state, prepared)

    def _start(self) -> None:
        self._tell(self.instance, "starting", self.outcome.launch)
        supervisor().start(self.instance)
        self._tell(self.instance, "loading", self.outcome.launch)

    def start(self) -> None:
        """Start the new launch, where nothing has failed so far."""
        if not self.new:
            self._tell(self.instance, "loading", self.outcome.launch)
        elif not self.outcome.problem:
            try:
                self._start()
            except Exception as error:
                self.outcome.problem = _told(error)

    def prove(self) -> Outcome:
        """Wait for the verdict, and where it is bad return to the last good launch."""
        try:
            launch = self.outcome.launch or ""
            if launch and not self.outcome.problem:
                self._verify(launch)
            if not self.replaced:
                self.outcome.problem += "\nNothing was stopped."
            elif not (self.outcome.serving or self.busy or launches.is_good(self.state, self.instance, launch)):
                if not self.old:
                    self._return(launch)
                elif not self._return_to(self.old, launch) and self.old.ended:
                    return self.outcome
            if self.old:
                rival = self.old.rival() if self.outcome.serving else ""
                self.old.forget()
                if rival:
                    self.outcome.problem = f"Serving now: launch {launch}, which was proved, but {rival}."
        except Exception as error:  # the other instances' outcomes are not to be lost
            self.outcome.problem += f"\n{_told(error)}"
        return self.outcome

    def _verify(self, launch: str) -> None:
        try:
            self.outcome.verdict = health.verify(self.state, self.instance, self.wait)
            self.outcome.serving = launch
            launches.keep_verdict(self.state, self.instance, launch, self.outcome.verdict)
        except Exception as error:
            self.outcome.problem = _told(error)
            self.busy = getattr(error, "state", "") == "busy"  # what has too much to do is no worse than what was

    def _return(self, failed: str) -> None:
        problem, good = self.outcome.problem, None
        try:
            launches.give_reserve(self.state)
            good = self._good(failed)
        except Exception as error:
            problem += f"\n{_told(error)}"
        why = "there is no earlier launch to return to"
        if good is not None:
            self._tell(self.instance, "returning", good, problem)
            self.outcome.problem = ""
            try:
                self._replace(launches.prepare_again(self.state, self.instance, good))
                self._start()
                self._verify(self.outcome.launch or "")
            except Exception as error:
                self.outcome.problem = _told(error)
            if not (self.outcome.serving or self.busy):
                self._keep_failure(self.outcome.launch or failed, self.outcome.problem)
        self._keep_failure(failed, problem)
        if good is not None:
            if self.outcome.serving:
                known = f"what launch {good} was, as launch {self.outcome.serving}, which was proved"
                self.outcome.problem = f"{problem}\nServing now: {known}. {self.outcome.problem}".rstrip()
                return
            why = f"the return to launch {good} failed too: {self.outcome.problem}"
        self.outcome.problem = f"{problem}\nServing now: nothing that was proved; {why}"
        now = supervisor().identity(self.instance)
        self.outcome.problem += f"\nThe service is left as it is, {now.active} ({now.sub})."

    def _return_to(self, old: Old, failed: str) -> bool:
        """Return to the server in whose place the instance has come, of which nothing but its records stays; tell
        whether that one serves.
        """
        self._tell(self.instance, "returning to what served before", None, self.outcome.problem)
        if failed:
            self._keep_failure(failed, self.outcome.problem)
        try:
            self._clear()
            serving = old.again(self._say)
        except Exception as error:
            why = f"the return to what served before failed too: {_told(error)}"
            if old.ended:
                why += f". What its start needs is kept in {launches.taken(self.instance)} until this host restarts"
            self.outcome.problem += f"\nServing now: nothing that was proved; {why}"
            return False
        self.outcome.problem = f"{self.outcome.problem}\nServing now: {serving}.".lstrip()
        return True

    def _clear(self) -> None:
        """Take the instance away and tell what goes wrong with that; raises only where it still runs."""
        launches.give_reserve(self.state)
        if not supervisor().read_unit(self.instance):
            return
        group = supervisor().identity(self.instance).cgroup
        for step in (supervisor().disable, partial(stop, tell=self._tell), supervisor().remove):
            try:
                step(self.instance)
            except Exception as error:
                if step != supervisor().disable and group and processes.in_cgroup(group):
                    raise
                self.outcome.problem += f"\n{_told(error)}"
        if not supervisor().read_unit(self.instance):
            self.outcome.launch = None

    def _keep_failure(self, failed: str, problem: str) -> None:
        with contextlib.suppress(Exception):  # the report is told anyhow
            log = [line.text for line in supervisor().log_of(failed, health.LOG_LINES)]
            launches.keep_failure(self.state, self.instance, failed, problem, log)

    def _good(self, failed: str) -> str | None:
        """What served until now, else the newest that was proved before."""
        state, name, before = self.state, self.instance, self.before or ""
        if launches.is_good(state, name, before) and launches.again_problem(state, name, before) is None:
            return before
        return launches.last_good(state, name, failed)


def _told(error: Exception) -> str:
    """Return what the operator is told; whatever went wrong, the way back is to be gone."""
    if isinstance(error, (health.Unhealthy, Refused)):
        return str(error)
    return f"this tool failed: {' | '.join(traceback.format_exc(limit=-3).splitlines())}"


def stop(instance: str, tell: Tell) -> None:
    """Stop an instance and prove that nothing of it is left: no process, no memory of a GPU."""
    before = supervisor().identity(instance)
    ours = set(processes.in_cgroup(before.cgroup)) if before.cgroup else set()
    if before.active in ("active", "activating", "deactivating", "reloading"):
        tell(instance, "stopping", supervisor().running_launch(before.main_pid))
    supervisor().stop(instance)
    if not ours:
        return
    gone(f"instance '{instance}'", processes.in_cgroup(before.cgroup), ours)


def gone(what: str, left: Sequence[int], ours: Collection[int]) -> None:
    """Raise Refused where something is left of what was ended: a process, or memory of a GPU that was of `ours`."""
    if left:
        found = processes.process(left[0])
        who = found.label if found else f"process {left[0]}"
        raise Refused(f"{what}: {who} can not be ended: it waits in the kernel, see 'ps -o pid,stat,wchan'")
    end = time.monotonic() + MEMORY_BACK
    while True:
        late = time.monotonic() > end
        try:
            holding = [one for one in gpu.processes() if one.pid in ours]
        except Refused:  # it answers late just after the last process has ended
            if late:
                raise
        else:
            if not holding:
                return
            if late:
                raise Refused(
                    f"{what} has ended, but the driver still counts {holding[0].label}: see dmesg for "
                    "Xid, and reset the GPU or restart the host"
                )
        time.sleep(0.5)
