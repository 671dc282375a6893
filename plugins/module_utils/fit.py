# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether instances fit into this host as it is now, before anything is stopped for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import host_memory, planning, protocol
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_room import Room
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Search
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_log import learned
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

EXACT = 0.01  # share of a card by which a plan may be off: what lacks less is not refused
SHOWN = 3  # levers in a message
# What SGLang's own resolution may know better than the plan: it has looked at the host
RESOLVED = ("mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs", "page_size", "kv_cache_dtype",
            "max_running_requests", "speculative_num_draft_tokens", "disable_radix_cache", "disable_overlap_schedule",
            "mamba_scheduler_strategy", "mamba_radix_cache_strategy")  # fmt: skip
OVERRULE = "set sglang_server_plan to warn if you know better"


@dataclass(frozen=True)
class Candidate:
    """An instance that is to be started, and what the preflight found of it."""

    instance: Instance
    version: str
    resolved: Mapping[str, Any]


@dataclass(frozen=True)
class Fit:
    """The answer for one instance: it is not to be started if there are problems."""

    plan: dict[str, Any] | None = None  # as sglang_plan returns it; None where nothing could be planned
    record: Mapping[str, Any] | None = None  # of it, what the record of the launch keeps
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def fits(candidates: Sequence[Candidate], state: Path, accepted: Collection[str]) -> dict[str, Fit]:
    """Return the answer for each instance, by name, in the order in which they are going to be started.

    `accepted` are options of which a change by SGLang is accepted.
    """
    found: dict[str, Fit] = {}
    by_name = {one.instance.name: one for one in candidates}
    on_gpu = [one for one in candidates if one.resolved.get("device") == "cuda"]
    if not on_gpu:
        return {name: Fit() for name in by_name}
    room = Room(state)
    for wave in protocol.waves([protocol.Order(one.instance.name, one.instance.gpus) for one in on_gpu]):
        for order in wave:
            room.release(order.instance)
        for order in wave:
            found[order.instance] = _fit(by_name[order.instance], room, state, accepted)
    return {name: found.get(name, Fit()) for name in by_name}


def _fit(one: Candidate, room: Room, state: Path, accepted: Collection[str]) -> Fit:
    instance = one.instance
    where = f"instance '{instance.name}'"
    if not room.cards:
        return Fit(warnings=(f"{where}: nvidia-smi tells of no GPU, so memory is not planned",))
    try:
        indices = _indices(one, room)
        question = planning.Question(_folder(instance.model), instance.args, one.version, indices=indices)
        question = on_host(question, instance.name, room, state)
        search, _notes = planning.read(question)
    except ValueError as problem:
        return Fit(warnings=(f"{where}: memory is not planned: {problem}",))
    search = corrected(search, one.resolved)
    plan = search.plan()
    indices = indices[: len(plan.gpus)]
    told = planning.told(search, None, [*question.notes, *_others(plan)])
    sizes = {
        index: 1024 * sum(size for part, size in gpu.parts.items() if part not in ("others", "rest"))
        for index, gpu in zip(indices, plan.gpus)
    }
    room.take(sizes)
    record = {
        "version": one.version,
        "verdict": plan.verdict,
        "kv_tokens": plan.kv_tokens * plan.schedulers if plan.fits else None,
        "effective_max_running_requests": plan.effective_max_running_requests if plan.fits else None,
        "weights_gib": round(plan.weights_gib, 3),
        "free_gib": round(min(gpu.free for gpu in search.gpus[: len(plan.gpus)]), 3),
        "held_mib": {str(index): round(size) for index, size in sizes.items()},
        "measured": question.measured,
    }
    problems, warnings = _judged(search, plan, told, accepted)
    refused, more = _of_host(one.resolved, plan, systemd.identity(instance.name).cgroup)
    return Fit(
        plan=told,
        record=record,
        problems=tuple(f"{where}: {text}" for text in [*problems, *refused]),
        warnings=tuple(f"{where}: {text}" for text in [*warnings, *more]),
    )


def on_host(question: planning.Question, instance: str, room: Room, state: Path) -> planning.Question:
    """Return the question for the GPUs of this host as `room` has them, with what was learned of the instance."""
    measured, notes = learned(state, instance, question.version, str(question.model), question.args)
    gpus = room.records(question.indices or list(room.cards))
    return replace(question, gpus=gpus, measured=measured, notes=[*question.notes, *notes])


def _indices(one: Candidate, room: Room) -> list[int]:
    """Return the GPUs of the ranks, in their order; more may be there than there are ranks."""
    instance, resolved = one.instance, one.resolved
    visible = instance.env.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    if int(resolved.get("nnodes") or 1) > 1:
        raise ValueError("'nnodes' spreads the server over several hosts")
    if visible and not visible.replace(",", "").isdigit():
        raise ValueError(f"CUDA_VISIBLE_DEVICES is {visible}: use 'gpus' with indices")
    wanted = list(instance.gpus) or [int(index) for index in visible.split(",") if index] or list(room.cards)
    lacking = [str(index) for index in wanted if index not in room.cards]
    if lacking:
        raise ValueError(f"nvidia-smi tells of no GPU {', '.join(lacking)} on this host")
    return wanted[int(resolved.get("base_gpu_id") or 0) :: max(1, int(resolved.get("gpu_id_step") or 1))]


def _folder(model: str) -> Path:
    if not model.startswith("/"):
        raise ValueError(f"'model' is {model}, a name on a hub: download it and name its directory")
    return Path(model)


def corrected(search: Search, resolved: Mapping[str, Any]) -> Search:
    """Take over what SGLang resolves otherwise than the plan does by itself, so far as it changes the plan.

    What is as planned stays open, for the changes that are looked for.
    """
    before = _decisive(search.plan())
    for name in RESOLVED:
        if resolved.get(name) is None or name in search.written:
            continue
        args = {**search.args, name: resolved[name]}
        trial = Search(search.shape, args, search.gpus, search.version, search.draft, search.measured)
        found = trial.planned()
        if found is not None and _decisive(found) != before:
            search, before = trial, _decisive(found)
    return search


def _decisive(plan: Plan) -> tuple[Any, ...]:
    return plan.kv_tokens, plan.state_slots, plan.effective_max_running_requests, plan.failing_stage


def _judged(
    search: Search, plan: Plan, told: Mapping[str, Any], accepted: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return what is to be refused and what is to be told."""
    asked = search.written.get("max_running_requests")
    short = bool(
        plan.fits
        and asked
        and plan.requested is not None
        and plan.effective_max_running_requests < plan.requested
        and not {asked, "max_running_requests"} & {*accepted}
    )
    if plan.fits is None:
        return [], [plan.verdict, *told["notes"]]
    if plan.fits and not short:
        return [], [*([plan.verdict] if "but" in plan.verdict else []), *told["notes"]]
    levers = [
        f"delete '{one['option']}' ({one['costs']})"
        if one["value"] is None
        else f"set '{one['option']}' to {one['value']} ({one['costs']})"
        for one in told["levers"][:SHOWN]
    ]
    if short:
        levers.append(f"set '{asked}' to {plan.effective_max_running_requests}, which is what it comes to")
    text = f"{plan.verdict}: {', or '.join(levers) or 'choose a smaller model, or GPUs with more memory'}"
    room = [replace(gpu, free_mib=1024 * gpu.free + EXACT * gpu.total_mib) for gpu in search.gpus]
    better = Search(search.shape, search.args, room, search.version, search.draft, search.measured).plan()
    close = better.fits and (not short or better.effective_max_running_requests >= (plan.requested or 0))
    if close:
        return [], [f"{text}; that is closer than a plan is exact, so it is tried", *told["notes"]]
    return [f"{text}, or {OVERRULE}"], list(told["notes"])


def _others(plan: Plan) -> list[str]:
    return [
        f"GPU of rank {rank} has {gpu.parts['others']:.1f} GiB in use by others, which are left alone"
        for rank, gpu in enumerate(plan.gpus)
        if gpu.parts["others"] * 1024 > planning.IN_USE
    ]


def _of_host(resolved: Mapping[str, Any], plan: Plan, cgroup: str) -> tuple[list[str], list[str]]:
    ranks, cache = len(plan.gpus), max(gpu.parts["cache"] for gpu in plan.gpus)
    weights = plan.weights_gib + float(resolved.get("cpu_offload_gb") or 0)
    problem = host_memory.problem(resolved, ranks, cache, weights)
    own = host_memory.held(cgroup) if cgroup else 0.0
    return [problem] if problem else [], host_memory.warnings(resolved, ranks, cache, weights, own)
