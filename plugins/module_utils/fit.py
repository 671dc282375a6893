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
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_log import learned, model_bytes
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import NEWEST, OLDEST, rules_of
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import ALIASES, Asked
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor

EXACT = 0.01  # share of a card by which a plan may be off: what lacks less is not refused
SHOWN = 3  # levers in a message
# What SGLang's own resolution may know better than the plan: it has looked at the host
RESOLVED = (
    "mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs", "cuda_graph_max_bs_decode",
    "disable_cuda_graph", "page_size", "kv_cache_dtype", "max_running_requests", "speculative_num_draft_tokens",
    "disable_radix_cache", "disable_overlap_schedule", "mamba_scheduler_strategy", "mamba_radix_cache_strategy",
)  # fmt: skip
LIMITS = ("max_running_requests", "max_total_tokens")  # a server is refused that does not reach what is asked
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


def fits(
    candidates: Sequence[Candidate], state: Path, accepted: Collection[str],
    leaving: Mapping[str, Collection[int]] | None = None,
) -> dict[str, Fit]:  # fmt: skip
    """Return the answer for each instance, by name, in the order in which they are going to be started.

    `accepted` are options of which a change by SGLang is accepted; `leaving` has the processes that are ended for an
    instance.
    """
    found: dict[str, Fit] = {}
    by_name = {one.instance.name: one for one in candidates}
    on_gpu = [one for one in candidates if one.resolved.get("device") == "cuda"]
    if not on_gpu:
        return {name: Fit() for name in by_name}
    room = Room(state, leaving or {})
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
        return Fit(warnings=(f"{where}: nvidia-smi tells the memory of no GPU, so it is not planned",))
    try:
        indices = _indices(one, room)
        question = planning.Question(_folder(instance.model), instance.args, one.version, indices=indices)
        question = on_host(question, instance.name, room, state)
        with planning.understood(question.model):
            search, used = planning.read(question)
            asked = {option: search.written.get(option, "") for option in LIMITS}
            search = corrected(search, one.resolved, accepted)
            plan = search.plan()
            told = planning.told(search, None, [*question.notes, *used])
    except ValueError as problem:
        return Fit(warnings=(f"{where}: memory is not planned: {problem}",))
    indices = indices[: len(plan.gpus)]
    most = {index: 1024 * (gpu.total - gpu.parts["others"]) for index, gpu in zip(indices, plan.gpus)}
    sizes = {index: most[index] - 1024 * gpu.parts["rest"] for index, gpu in zip(indices, plan.gpus)}
    seen = room.taken.isdisjoint(indices)
    room.take(sizes)
    record = {
        "version": one.version,
        "verdict": plan.verdict,
        "kv_tokens": plan.kv_tokens * plan.schedulers if plan.fits else None,
        "effective_max_running_requests": plan.effective_max_running_requests if plan.fits else None,
        "weights_gib": round(plan.weights_gib, 3),
        "free_gib": round(min(gpu.free for gpu in search.gpus[: len(plan.gpus)]), 3) if seen else None,
        "held_mib": {str(index): round(size) for index, size in sizes.items()},
        "most_mib": {str(index): round(size) for index, size in most.items()},
        "model_bytes": model_bytes(question.model),
        "measured": question.measured,
    }
    asked = {option: name for option, name in asked.items() if name and not {option, name} & {*accepted}}
    doubt = _doubt(plan, room.unsure.get(instance.name, set()) & {*indices})
    problems, warnings = _judged(search, plan, told, asked, used, doubt)
    notes = [note for note in told["notes"] if note not in (*question.notes, *warnings) and note not in plan.verdict]
    warnings += notes
    cgroup = supervisor().identity(instance.name).cgroup
    refused, more = _of_host(one.resolved, search, plan, cgroup)
    return Fit(
        plan=told,
        record=record,
        problems=tuple(f"{where}: {text}" for text in [*problems, *refused]),
        warnings=tuple(f"{where}: {text}" for text in [*warnings, *more]),
    )


def on_host(question: planning.Question, instance: str, room: Room, state: Path) -> planning.Question:
    """Return the question for the GPUs of this host as `room` has them, with what was learned of the instance."""
    measured, notes = learned(state, instance, question.version, str(question.model), question.args)
    indices = question.indices or list(room.cards)
    unsure = sorted(room.unsure.get(instance, set()) & {*indices})
    if unsure:
        notes.append(f"{_untold(unsure)}: all of it counts as in use")
    gpus = room.records(indices)
    return replace(question, gpus=gpus, measured=measured, notes=[*question.notes, *notes])


def _indices(one: Candidate, room: Room) -> list[int]:
    """Return the GPUs of the ranks, in their order; more may be there than there are ranks."""
    instance, resolved = one.instance, one.resolved
    env = {**instance.env, **instance.secret_env}
    visible = env.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    if int(resolved.get("nnodes") or 1) > 1:
        raise ValueError("'nnodes' spreads the server over several hosts")
    if visible and not visible.replace(",", "").isdigit():
        raise ValueError(f"CUDA_VISIBLE_DEVICES is {visible}: use 'gpus' with indices")
    wanted = list(instance.gpus) or [int(index) for index in visible.split(",") if index] or list(room.cards)
    if len({*wanted}) < len(wanted):
        raise ValueError(f"'gpus' has a GPU twice ({', '.join(map(str, wanted))}): name each once")
    order = env.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if order != "PCI_BUS_ID":
        raise ValueError(f"CUDA_DEVICE_ORDER is {order}, which is not how nvidia-smi counts: delete it")
    first = int(resolved.get("base_gpu_id") or 0)
    if first >= len(wanted):
        raise ValueError(f"'base_gpu_id' is {first}, and the server sees {len(wanted)} GPUs")
    return wanted[first :: max(1, int(resolved.get("gpu_id_step") or 1))]


def _folder(model: str) -> Path:
    if not model.startswith("/"):
        raise ValueError(f"'model' is {model}, a name on a hub: download it and name its directory")
    return Path(model)


def corrected(search: Search, resolved: Mapping[str, Any], accepted: Collection[str] = ()) -> Search:
    """Take over what SGLang resolves otherwise than the plan does by itself, so far as it changes the plan.

    What is as planned stays open, for the changes that are looked for. Of what is asked for, SGLang's value counts
    where that is accepted.
    """
    taken: dict[str, Any] = {}
    for name in RESOLVED:
        written = search.written.get(ALIASES.get(name, name))
        if resolved.get(name) is not None and (not written or {name, written} & {*accepted}):
            taken[name] = resolved[name]
    # with SGLang's fraction, so that nothing else seems to count that only goes into the plan's own
    fraction = {name: taken.pop(name) for name in ("mem_fraction_static",) if name in taken}
    for name, value in taken.items():
        trial = _with(search, {name: value})
        if _decisive(_with(trial, fraction)) != _decisive(_with(search, fraction)):
            search = trial
    pinned = _with(search, fraction)
    return search if _decisive(pinned) == _decisive(search) else pinned


def _with(search: Search, values: Mapping[str, Any]) -> Search:
    args = {**search.changed(**{ALIASES.get(name, name): None for name in values}), **values}
    return Search(search.shape, args, search.gpus, search.version, search.draft, search.measured)


def _decisive(search: Search) -> tuple[Any, ...]:
    plan = search.plan()
    return plan.kv_tokens, plan.state_slots, plan.effective_max_running_requests, plan.failing_stage


def _short(plan: Plan, search: Search, asked: Collection[str]) -> dict[str, int]:
    """Return each of LIMITS that was asked for and is not reached -> what it comes to."""
    given = Asked(search.args)
    # requests are divided among schedulers, and tokens are whole pages
    reached = {"max_running_requests": plan.effective_max_running_requests, "max_total_tokens": plan.kv_tokens}
    least = {
        "max_running_requests": (plan.requested or 0) // plan.schedulers * plan.schedulers,
        "max_total_tokens": (given.size("max_total_tokens") or 0) - given.at_least_one("page_size") + 1,
    }
    return {option: reached[option] for option in asked if plan.fits and reached[option] < least[option]}


def _doubt(plan: Plan, unsure: Collection[int]) -> str:
    """Return why a plan that says no is not certain, or ''."""
    if unsure:
        return _untold(sorted(unsure))
    if plan.failing_stage == "weights":  # which are as they are on disk
        return ""
    return "" if OLDEST <= rules_of(plan.version).version <= NEWEST else f"SGLang {plan.version} was not read"


def _untold(gpus: Sequence[int]) -> str:
    return f"nobody tells how much of GPU {', '.join(map(str, gpus))} its running launch holds"


def _judged(
    search: Search, plan: Plan, told: Mapping[str, Any], asked: Mapping[str, str], used: Sequence[str], doubt: str
) -> tuple[list[str], list[str]]:
    """Return what is to be refused and what is to be told.

    `asked` has those of LIMITS that must be reached, as they are written; `used` is what others hold of the GPUs.
    """
    short = _short(plan, search, asked)
    if plan.fits is None:
        return [], [plan.verdict]
    if plan.fits and not short:
        return [], [plan.verdict] if "but" in plan.verdict else []
    steps = [
        f"delete '{one['option']}' ({one['costs']})"
        if one["value"] is None
        else f"set '{one['option']}' to {one['value']} ({one['costs']})"
        for one in told["levers"][:SHOWN]
    ]
    steps += [f"set '{asked[option]}' to {reached}, which is what it comes to" for option, reached in short.items()]
    steps += ["end what else uses the GPU"] if used else []
    tokens = ["the cache has room for fewer than 'max_total_tokens'"] if "max_total_tokens" in short else []
    why = "; ".join([plan.verdict, *tokens, *used])
    text = f"{why}: {', or '.join(steps) or 'choose a smaller model, or GPUs with more memory'}"
    room = [replace(gpu, free_mib=1024 * gpu.free + EXACT * gpu.total_mib) for gpu in search.gpus]
    better = Search(search.shape, search.args, room, search.version, search.draft, search.measured).plan()
    if better.fits and not _short(better, search, asked):
        return [], [f"{text}; that is closer than a plan is exact, so it is tried"]
    if doubt:
        return [], [f"{text}; it is tried all the same, since {doubt}"]
    return [f"{text}, or {OVERRULE}"], []


def _of_host(resolved: Mapping[str, Any], search: Search, plan: Plan, cgroup: str) -> tuple[list[str], list[str]]:
    ranks, cache = len(plan.gpus), max(gpu.parts["cache"] for gpu in plan.gpus)
    whole = search.planned(cpu_offload_gb=None)
    weights = whole.weights_gib if whole else plan.weights_gib
    problem = host_memory.problem(resolved, ranks, cache, weights)
    own = host_memory.held(cgroup) if cgroup else 0.0
    return [problem] if problem else [], host_memory.warnings(resolved, ranks, cache, weights, own)
