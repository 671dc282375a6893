# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan for what an operator gives: a model on disk, arguments, and cards that are there or not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.cards import card, find
from ansible_collections.gpuops.sglang.plugins.module_utils.checkpoint_sizes import read_model
from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Lever, Search, Wanted, divides, levers
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu, OnGpu, Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import NEWEST, rules_of
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import ALIASES, Asked
from ansible_collections.gpuops.sglang.plugins.module_utils.model_files import weight_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.plan_bars import bars
from ansible_collections.gpuops.sglang.plugins.module_utils.proposal import propose

MOST_CARDS = 1024
IN_USE = 2048  # MiB of a card that are worth a word; the driver itself takes some hundreds
COUNTED = ("tp_size", "pp_size", "dp_size", "context_length", "max_running_requests", "max_total_tokens",
           "max_mamba_cache_size", "page_size", "speculative_num_draft_tokens")  # fmt: skip
SURE = ("others", "context", "weights")  # parts that do not depend on what is not understood


@dataclass(frozen=True)
class Question:
    """What is to be planned; `gpus` are records of name, memory_total_mib, memory_free_mib, count and a note.

    Without them it is for the GPUs of this host, or those of `indices`.
    """

    model: Path
    args: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""  # the newest that is known
    gpus: Sequence[Mapping[str, Any]] = ()
    indices: Sequence[int] = ()
    assume_complete: bool = False
    context: int = 0
    concurrency: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)  # of an earlier launch, see memory.plan
    notes: Sequence[str] = ()  # of whoever asks

    @property
    def wanted(self) -> Wanted | None:
        return Wanted(self.context, self.concurrency) if self.context or self.concurrency else None


def answer(question: Question) -> dict[str, Any]:
    """Plan, and return what sglang_plan documents; ValueError with one line where there is nothing to plan.

    host.Refused where nvidia-smi hangs.
    """
    with understood(question.model):
        search, notes = read(question)
        return told(search, question.wanted, [*question.notes, *notes])


@contextlib.contextmanager
def understood(model: Path) -> Iterator[None]:
    """Turn what a plan stumbles over into ValueError with one line: anything may stand in a model's files."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{model} has a value that no plan can be made of ({what}): compare its config.json"
        ) from error


def read(question: Question) -> tuple[Search, list[str]]:
    """Return what is to be planned and what is to be known about its cards; raises as answer does."""
    version = question.version or ".".join(map(str, NEWEST))
    rules_of(version)
    args = _checked(question)
    try:
        shape, draft = _model(question, args)
    except OSError as error:
        where = error.filename or question.model
        raise ValueError(f"{where} can not be read ({error.strerror}): use a login that may read it") from None
    gpus, used = _gpus(question)
    search = Search(shape, args, gpus, version, draft, question.measured)
    ranks = len(search.plan().gpus)
    _divided(shape, args)
    return search, [note for note in used[:ranks] if note]


def told(search: Search, wanted: Wanted | None = None, known: Sequence[str] = ()) -> dict[str, Any]:
    """Plan, look for changes, and return it as plain data."""
    found = search.plan()
    changes = levers(search.shape, search.args, search.gpus, search.version, wanted, search.draft, search.measured)
    proposal = _proposal(search, wanted, found)
    notes = [*found.notes, *_missed(search.shape, wanted, found), *known]
    if wanted and proposal is None and found.fits is not None:
        notes.append("nothing reaches what is wanted on these cards and with what 'args' has")
    if found.fits is None:
        notes.append(f"weights take at least {found.weights_gib:.1f} GiB of a GPU")
    data = _data(found, changes, proposal, notes)
    return {**data, "bars": bars(data)}


def _data(found: Plan, changes: Sequence[Lever], proposal: dict[str, Any] | None, notes: list[str]) -> dict[str, Any]:
    """Return a plan as plain data; what follows from something that is not understood is None."""
    sure = found.fits is not None
    return {
        "sglang_version": found.version,
        "fits": found.fits,
        "verdict": found.verdict,
        "kv_tokens": found.kv_tokens if sure else None,
        "state_slots": found.state_slots if sure else None,
        "effective_max_running_requests": found.effective_max_running_requests if sure else None,
        "requested": found.requested,
        "weights_gib": round(found.weights_gib, 3),
        "draft_gib": round(found.draft_gib, 3),
        "failing_stage": found.failing_stage,
        "missing_gib": round(found.missing_gib, 3),
        "context": found.context,
        "longest_context": found.longest_context if sure else None,
        "levers": [
            {"option": one.option, "value": one.value, "costs": one.costs, **_reached(one.plan)} for one in changes
        ],
        "proposal": proposal,
        "gpus": [
            {"name": one.name, "total_gib": round(one.total, 3), "parts": _parts(one, sure)} for one in found.gpus
        ],
        "notes": notes,
        "unknown": list(found.unknown),
    }


def _reached(found: Plan) -> dict[str, int]:
    return {
        "kv_tokens": found.kv_tokens,
        "effective_max_running_requests": found.effective_max_running_requests,
    }


def _parts(one: OnGpu, sure: bool) -> dict[str, float]:
    parts = one.parts
    if not sure:
        parts = {name: parts[name] for name in SURE}
        parts["unknown"] = one.total - sum(parts.values())
    return {name: round(size, 3) for name, size in parts.items()}


def _checked(question: Question) -> dict[str, Any]:
    """Return the arguments; ValueError for a value with which SGLang would not start."""
    args = {str(name): value for name, value in question.args.items()}
    for name, value in args.items():
        try:
            finite = math.isfinite(float(str(value)))
        except ValueError:
            continue
        if not finite:
            raise ValueError(f"'{name}': {value!r} is no number")
    asked = Asked(args)
    for name in COUNTED:
        size = asked.size(name)
        if size is not None and size < 1:
            raise ValueError(f"'{name}' is {size}: it must be at least 1")
    fraction = asked.share("mem_fraction_static", 0.5)
    if not 0 < fraction < 1:
        raise ValueError(f"'mem_fraction_static' is {fraction:g}: it is a share between 0 and 1")
    for name, size in (("context", question.context), ("concurrency", question.concurrency)):
        if size < 0:
            raise ValueError(f"'{name}' is {size}: it must be at least 1")
    return args


def _model(question: Question, args: Mapping[str, Any]) -> tuple[Shape, Shape | None]:
    """Read the model, and the draft model that the arguments name."""
    asked = Asked(args)
    shape = _read(question.model, question.assume_complete or asked.text("load_format") == "dummy")
    named = asked.text("speculative_draft_model_path") or asked.text("speculative_draft_model")
    folder = question.model if question.model.is_dir() else question.model.parent
    own = (question.model.resolve(), folder.resolve())  # has its draft in the same checkpoint
    if not named or not asked.text("speculative_algorithm") or Path(named).resolve() in own:
        return shape, None
    try:
        return shape, _read(Path(named), True)
    except ValueError as error:
        return replace(shape, unknown=(*shape.unknown, f"the draft model is not counted: {error}")), None


def _read(model: Path, assume_complete: bool) -> Shape:
    if model.is_file() and model.suffix != ".json":
        raise ValueError(f"{model} is no config.json: name a model's directory or its config.json")
    shape = read_model(model)
    problems = weight_problems(model if model.is_dir() else model.parent)
    if problems and not assume_complete:
        raise ValueError(f"{'; '.join(problems)}, or set 'assume_complete' to plan from config.json alone")
    # files that are not all there would count as if they were
    return replace(shape, stored=None) if problems else shape


def _gpus(question: Question) -> tuple[list[Gpu], list[str]]:
    """Return the cards to plan for, and for each what is to be known about it, or an empty text."""
    if question.gpus:
        named = [(one, str(asked.get("note") or "")) for asked in question.gpus for one in _named(asked)]
        return [one for one, _note in named], [note for _one, note in named]
    own = {one.index: one for one in gpu.cards()}
    if not own:
        cards = 'name the cards to plan for in \'gpus\', e.g. [{"name": "H200", "count": 2}]'
        raise ValueError(f"nvidia-smi tells of no GPU on this host: {cards}")
    lacking = [str(index) for index in question.indices if index not in own]
    if lacking:
        there = ", ".join(map(str, own))
        raise ValueError(f"there is no GPU {', '.join(lacking)} on this host: it has {there}")
    used = [own[index] for index in question.indices or own]
    notes = [
        f"GPU {one.index} has {(one.total - one.free) / 1024:.1f} GiB in use now, which are left alone: "
        "name the card in 'gpus' to plan as if it were idle"
        if one.total - one.free > IN_USE
        else ""
        for one in used
    ]
    return [Gpu(one.name, one.total, one.free) for one in used], notes


def _named(asked: Mapping[str, Any]) -> list[Gpu]:
    name, count = str(asked["name"]), asked.get("count")
    total, free = asked.get("memory_total_mib"), asked.get("memory_free_mib")
    count = 1 if count is None else int(count)
    if not 1 <= count <= MOST_CARDS:
        raise ValueError(f"'count' of {name} is {count}: it must be from 1 to {MOST_CARDS}")
    for option, size, least in (("memory_total_mib", total, 1), ("memory_free_mib", free, 0)):
        if size is not None and not (math.isfinite(size) and size >= least):
            raise ValueError(f"'{option}' of {name} is {size:g}: give MiB, as nvidia-smi tells them")
    known = find(name)
    one = card(name) if total is None else Gpu(known.name if known else name, total)
    if free is not None and free > one.total_mib:
        raise ValueError(f"'memory_free_mib' of {name} is {free:g}, more than its {one.total_mib:g} MiB")
    return [replace(one, free_mib=free)] * count


def _divided(shape: Shape, args: Mapping[str, Any]) -> None:
    """Raise ValueError where the heads can not be divided among the GPUs, so that SGLang would not start."""
    asked = Asked(args)
    size = asked.at_least_one("tp_size")
    groups = asked.at_least_one("dp_size") if asked.on("enable_dp_attention") else 1
    if not divides(shape, max(1, size // groups)):
        heads = f"{shape.heads} attention heads and {shape.kv_heads} key-value heads"
        raise ValueError(f"'tp_size' is {size}, by which the model's {heads} can not be divided: choose another")


def _missed(shape: Shape, wanted: Wanted | None, found: Plan) -> list[str]:
    """Say what is wanted beyond a plan that fits."""
    if wanted is None or not found.fits or wanted.met(found):
        return []
    context, requests = wanted.context or 1, max(1, wanted.concurrency)
    if wanted.context > max(shape.context, found.context):
        return [f"a context of {wanted.context} is wanted, and the model has {shape.context}"]
    if wanted.context > found.context:
        return [f"a context of {wanted.context} is wanted, and the arguments have {found.context}"]
    length = f" of {wanted.context} tokens" if wanted.context else ""
    return [f"{requests} requests{length} at a time are wanted, and there is room for {found.at_once(context)}"]


def _proposal(search: Search, wanted: Wanted | None, found: Plan) -> dict[str, Any] | None:
    if wanted is None:
        return None
    given = {name: value for name, value in search.args.items() if value is not None}
    for name in search.args:  # no option is to be there under two names
        plain = name.lstrip("-").replace("-", "_")
        known = ALIASES.get(plain, plain)
        if known in ("tp_size", "context_length", "max_running_requests") and name in given:
            given[known] = given.pop(name)
    context, requests = wanted.context or found.context, max(1, wanted.concurrency)
    # what was measured is of the layout that is asked for now
    proposed = propose(search.shape, search.gpus, search.version, context, requests, given, search.draft)
    if proposed is None:
        return None
    return {"args": proposed[0], "verdict": proposed[1].verdict, **_reached(proposed[1])}
