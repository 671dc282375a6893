# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done so that the instances of a host are in a state, and what they are in."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    docker_gpus,
    gpu,
    health,
    release_record,
    sockets,
)
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import NAME
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Old, Order, stop
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import launch_of

Leaving = Mapping[str, Collection[int]]  # instance -> processes that are ended for it
NOW = health.Wait(limit=0)
FAILED_AGAIN = (
    "The launch before it was asked to be the same and has failed too: change what is asked, or have it started anew "
    "by sglang_server_state=restarted."
)


class GpuHeld(Refused):
    """A GPU is held by what is not of this host's instances."""


@dataclass
class Plan:
    """What was found, and what is to be done about it."""

    instances: list[dict[str, Any]] = field(default_factory=list)  # name, launch, reasons
    orders: list[Order] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)  # of those that are to be left alone
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diff: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """How instances are to be started."""

    host: Host
    accept_changes: Mapping[str, Any]
    share_gpus: bool
    plan: str  # refuse, warn or skip: what a plan comes to that says that an instance does not fit
    reload_beside_docker: bool
    restart: bool
    change: bool  # False: nothing is written down
    take_over: bool = False  # end servers that were started by hand where they hold the ports of instances


def started(instances: Sequence[Instance], asked: Asked) -> Plan:
    """Return the plan for instances that are to run as asked; raises Refused before anything is touched."""
    host, plan = asked.host, Plan()
    schema = release_record.schema(host.release)
    olds = old_servers(instances, asked.take_over, host.drain)
    leaving = {name: old.pids for name, old in olds.items()}
    for instance in instances:
        old = olds.get(instance.name)
        if old and not old.ended and not asked.restart and launches.failed_so(instance, host, schema):
            raise Refused(
                f"instance '{instance.name}' is just what has failed before, so that {old.label} is not ended for it: "
                "change the instance, or insist by -e sglang_server_state=restarted"
            )
        launches.check(instance, host, schema, leaving.get(instance.name, ()))
    compared = {one.name: launches.compare(one, host, schema, asked.accept_changes) for one in instances}
    if schema is None and instances and asked.change:
        raise Refused(f"there is no release in {host.release}: install it with sglang_release first")
    reasons = {name: list(one.reasons) for name, one in compared.items()}
    for name, found in reasons.items():
        if asked.restart:
            found.append("a restart is asked for")
        elif found in ([], ["not enabled"]):  # the latter needs no other launch
            if found:
                docker_gpus.refuse_reload(asked.reload_beside_docker)
            if found and asked.change:
                supervisor().enable(name)
            _look(name, asked, plan, found, olds.get(name))
    for name, old in olds.items():
        if not old.ended:
            reasons[name].append(f"it takes the place of {old.label}")
            plan.notes.append(f"instance '{name}' takes the place of {old.label}, which is ended for that")
    differing = [one for one in instances if reasons[one.name] not in ([], ["not enabled"])]
    away = [one for one in differing if one.model in host.awaited and not launches.is_there(one)]
    plan.notes += [
        f"instance '{one.name}': its model {one.model} is still to be fetched, so SGLang was not asked about it"
        for one in away
        if schema is not None
    ]
    differing = [one for one in differing if one not in away]
    told = _proved(differing, asked, schema, plan.notes, leaving) if schema is not None else {}
    for instance in instances:
        one, found = compared[instance.name], reasons[instance.name]
        plan.instances.append({"name": instance.name, "launch": one.launch, "reasons": found})
        if instance in differing and schema is not None:
            prepare = partial(launches.prepare, instance, host, schema, told[instance.name])
            plan.orders.append(Order(instance.name, instance.gpus, prepare, olds.get(instance.name)))
        if one.before != one.after:
            unit = str(supervisor().unit_path(instance.name))
            headers = {"before_header": unit, "after_header": unit}
            from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker

            mask = Masker()  # what stood under 'env' may have been a secret
            plan.diff.append({"before": mask(one.before), "after": mask(one.after), **headers})
    return plan


def old_servers(instances: Sequence[Instance], take_over: bool, drain: int) -> dict[str, Old]:
    """Return name -> the server that was started by hand and is ended, or was by an earlier run, for an instance."""
    found: dict[str, Old] = {}
    for one in instances:
        if not (take_over or launches.taken(one.name).exists()):
            continue
        # a module is compiled anew in each run, and most runs have no need of it
        from ansible_collections.gpuops.sglang.plugins.module_utils.take_over import interrupted, server_at

        runs = bool(supervisor().read_unit(one.name)) and supervisor().identity(one.name).main_pid
        old = server_at(one.name, one.port, drain) if take_over and not runs else None
        old = old or interrupted(one.name)
        if old:
            found[one.name] = old
    return found


def unfinished(names: Sequence[str]) -> list[str]:
    """Return a sentence for each instance that a run has ended a server for which was ended itself before a result."""
    if not any(launches.taken(name).exists() for name in names):
        return []
    from ansible_collections.gpuops.sglang.plugins.module_utils.take_over import interrupted

    return [
        f"instance '{name}': an earlier deployment has ended {old.label}, which does not serve again; "
        "that server is started again if this deployment starts the instance and fails"
        for name, old in ((name, interrupted(name)) for name in names)
        if old
    ]


def returning(names: Sequence[str], refused: Refused) -> Plan:
    """Return the plan by which servers that an earlier run has ended serve again, since `refused` keeps the instances
    from that; raises `refused` where there is nothing to return to.
    """
    plan = Plan(problems=[str(refused)])
    for name in names:
        if not launches.taken(name).exists():
            continue
        from ansible_collections.gpuops.sglang.plugins.module_utils.take_over import interrupted

        old, unit = interrupted(name), supervisor().read_unit(name)
        if old and not (unit and supervisor().identity(name).main_pid) and not sockets.listeners(old.port):
            plan.orders.append(Order(name, old=old))
            plan.instances.append({"name": name, "launch": launch_of(unit), "reasons": [f"{old.label} comes back"]})
    if not plan.orders:
        raise refused
    return plan


def _look(name: str, asked: Asked, plan: Plan, reasons: list[str], old: Old | None) -> None:
    """Prove that an instance serves whose service is as asked; follow it while it loads, replace it when it hangs."""
    state, launch = asked.host.state, launch_of(supervisor().read_unit(name)) or ""
    for last in (False, True):
        try:
            verdict = health.verify(state, name, NOW)
        except (health.Unhealthy, Refused) as problem:
            what = getattr(problem, "state", "")
            if what == "busy" and launches.is_good(state, name, launch):
                plan.notes.append(str(problem))
            elif isinstance(problem, health.Unhealthy) and what == "" and launches.has_failed(state, name, launch):
                # it was left because there was nothing better; what it lacked, memory of a GPU say, may be there by now
                if launches.failed_again(state, name, launch, asked.accept_changes):
                    plan.problems.append(f"{problem}\n{FAILED_AGAIN}")
                else:
                    reasons.append("it was seen to fail")
            elif what == "loading" or (what != "hung" and not launches.is_good(state, name, launch)):
                plan.orders.append(Order(name, old=old))  # nobody has seen its end: it is proved, or gives way
            elif what != "hung":
                plan.problems.append(str(problem))
            elif not last:
                continue
            else:
                reasons.append("it hangs")
            return
        plan.verdicts.append(verdict)
        if asked.change:
            launches.keep_verdict(state, name, launch, verdict)
            if old:
                old.forget()
        return


def _proved(
    instances: Sequence[Instance], asked: Asked, schema: Any, notes: list[str], leaving: Leaving
) -> dict[str, dict[str, Any]]:
    """Ask SGLang about instances, plan their memory, and return name -> what the record of a launch keeps of that.

    Raises Refused if the answer is no; `notes` gets what is to be known otherwise.
    """
    if not instances:
        return {}
    # a module is compiled anew in each run, and most runs have nothing to ask
    from ansible_collections.gpuops.sglang.plugins.module_utils.fit import Candidate, fits
    from ansible_collections.gpuops.sglang.plugins.module_utils.preflight import preflight

    if not asked.share_gpus:
        refuse_held_gpus([(instance.name, instance.gpus) for instance in instances], leaving)
    answers = [preflight(one, asked.host, schema, asked.accept_changes, asked.change) for one in instances]
    problems = [problem for answer in answers for problem in answer.problems]
    if problems:
        raise Refused("; ".join(problems))
    records = {one.instance: {**one.for_record(), "accept_changes": dict(asked.accept_changes)} for one in answers}
    if asked.plan != "skip":
        candidates = [
            Candidate(instance, answer.version, answer.resolved) for instance, answer in zip(instances, answers)
        ]
        for name, fit in fits(candidates, asked.host.state, asked.accept_changes, leaving).items():
            problems += fit.problems
            notes += fit.warnings
            records[name]["plan"] = fit.record
        if problems and asked.plan == "refuse":
            raise Refused(f"{'; '.join(problems)}. Nothing was stopped")
        notes += problems
    return records


def refuse_held_gpus(wanted: Sequence[tuple[str, tuple[int, ...]]], leaving: Leaving | None = None) -> None:
    """Raise GpuHeld where processes that are of none of our instances have memory of a GPU that one is to use.

    Those in `leaving` are ended for it.
    """
    leaving = leaving or {}
    going = {pid for pids in leaving.values() for pid in pids}
    identities = [supervisor().identity(name) for name in supervisor().installed_instances()]
    ours = [identity.cgroup for identity in identities if identity.cgroup]
    running = bool(going) or any(identity.main_pid for identity in identities)
    # what this host does not see may be its own server: older drivers tell a container of no process
    seen = not running or any(
        one.pid in going or (one.process and any(map(one.process.in_cgroup, ours))) for one in gpu.processes()
    )
    found = []
    for name, gpus in wanted:
        others = [one for one in gpu.strangers(gpus, ours) if one.pid not in leaving.get(name, ())]
        told = [one.label for one in others if one.process or seen]
        hidden = gpu.unseen(gpus) if seen and not told else {}
        told += [f"{memory:.0f} MiB of GPU {index} by what this host does not see" for index, memory in hidden.items()]
        if told:
            found.append(f"instance '{name}': its GPU is held by {'; '.join(told)}")
    if found:
        step = "end that where it runs, or let the instance share the GPU by sglang_server_share_gpus"
        raise GpuHeld(f"{'; '.join(found)}. Nothing was stopped. Next: {step}")


def stopped(names: Sequence[str], state: Path, change: bool, remove: bool = False) -> list[dict[str, Any]]:
    """Stop instances, prove it and keep them from the next boot, or `remove` all that there is of them."""
    done = []
    for name in names:
        if not NAME.fullmatch(name):  # it becomes a path, which is removed
            raise Refused(f"'{name}' is no name of an instance: correct 'names'")
        launch = launch_of(supervisor().read_unit(name))
        reasons = []
        if launch is not None:
            identity = supervisor().identity(name)
            reasons += [f"service is {identity.active} ({identity.sub})"] if identity.active != "inactive" else []
            reasons += ["it is started at boot"] if identity.enabled else []
        if launches.taken(name).exists():
            reasons.append("it would return to a server that was started by hand")
        if remove and (launch is not None or (state / name).exists()):
            reasons.append("it is installed")
        if change:
            launches.taken(name).unlink(missing_ok=True)
        if change and reasons:
            if launch is not None:
                supervisor().disable(name)
                stop(name, lambda *_: None)
                if remove:
                    supervisor().remove(name)
            if remove and (state / name).exists():
                with writing_below(state):
                    shutil.rmtree(state / name)
        done.append({"name": name, "launch": launch, "reasons": reasons})
    return done


def rolled_back(names: Sequence[str], state: Path, launch: str | None, share_gpus: bool) -> Plan:
    """Return the plan for instances that are to return to `launch`, or to the last good one before the present."""
    plan = Plan()
    for name in names:
        present = launch_of(supervisor().read_unit(name))
        problem = launches.again_problem(state, name, launch) if launch else None
        again = launch or launches.last_good(state, name, present)
        if problem or again is None:
            raise Refused(problem or f"instance '{name}' has no earlier launch that was proved to serve: deploy it")
        record = launches.record(state, name, again)
        launches.check_ports(name, record["port"], record["args"])
        if not share_gpus:
            refuse_held_gpus([(name, tuple(record.get("gpus", ())))])
        plan.instances.append({"name": name, "launch": present, "reasons": [f"it returns to launch {again}"]})
        plan.orders.append(Order(name, prepare=partial(launches.prepare_again, state, name, again)))
    return plan


def gathered(names: Sequence[str], state: Path) -> list[dict[str, Any]]:
    """Return what is known of instances without asking their servers."""
    found: list[dict[str, Any]] = []
    for name in names:
        launch = launch_of(supervisor().read_unit(name))
        if launch is None:
            found.append({"name": name, "launch": None, "service": "not installed"})
            continue
        identity = supervisor().identity(name)
        try:
            record = launches.record_of(state, name)
        except Refused:
            record = {}
        kept = ("again", "args", "host", "model", "port", "release")
        found.append({
            "name": name,
            "launch": launch,
            "running_launch": supervisor().running_launch(identity.main_pid),
            "service": f"{identity.active} ({identity.sub})",
            "enabled": identity.enabled,
            "main_pid": identity.main_pid,
            "invocation": identity.invocation,
            "restarts": identity.restarts,
            "proved": launches.is_good(state, name, launch),
            "launches": launches.kept(state, name),
            **{key: record.get(key) for key in kept},
        })  # fmt: skip
    return found
