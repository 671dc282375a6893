# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a model with its arguments fits into GPUs under a release of SGLang: what each GPU holds, stage by stage.

SGLang measures what is free before it loads weights, and gives weights and pools `mem_fraction_static` of that; the
rest is for graphs, activations and, up to 0.5.13, the draft. Sizes are GiB; formulas name where they can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.memory_pools import (
    GIB,
    Pools,
    cache_bytes,
    draft_layers,
    per_token,
    pools_of,
    state_bytes,
    verify_bytes,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import (
    NEWEST,
    NOT_PLANNED,
    OLDEST,
    Rules,
    rules_of,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Settings, settle
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import (
    draft_on_gpu,
    on_stage,
    quantized,
    separate_draft,
    stages,
)

# MiB that CUDA and the first collective take before SGLang measures: 143156 free in nvidia-smi, 139.13 GiB in the log
# (H200, driver 580.159.04, torch 2.11.0+cu130). Other cards were not measured.
CONTEXT_MIB = 687
# Share of a card that the driver keeps for itself (616 of 143771 MiB), where nobody tells what is free
DRIVER_SHARE = 0.0043
STAGES = ("context", "weights", "draft", "state", "verify", "cache", "graphs", "rest")


@dataclass(frozen=True)
class Gpu:
    """A card as nvidia-smi tells it; `free_mib` is None for one that is not there yet."""

    name: str
    total_mib: float
    free_mib: float | None = None

    @property
    def free(self) -> float:
        free = self.total_mib * (1 - DRIVER_SHARE) if self.free_mib is None else self.free_mib
        return max(0.0, min(free, self.total_mib)) / 1024


@dataclass(frozen=True)
class OnGpu:
    """What one GPU holds, GiB: `others` (driver and other processes), then STAGES; together they are its memory."""

    name: str
    total: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """`fits` is None where the model is not understood well enough; then sizes are lower bounds."""

    version: str
    fits: bool | None
    failing_stage: str  # of STAGES, or ""
    missing_gib: float  # that the failing stage lacks on each GPU, for one request at least
    gpus: tuple[OnGpu, ...]
    fraction: float
    weights_gib: float
    draft_gib: float
    kv_tokens: int
    sliding_tokens: int
    state_slots: int
    requested: int | None
    effective_max_running_requests: int
    context: int
    longest_context: int  # that each of so many requests can have at once
    full_requests: int  # that can have the whole context at once
    rest_gib: float  # for activations, on the fullest GPU
    unknown: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        if self.fits is None:
            return f"can not be told: {self.unknown[0]}"
        if not self.fits and not self.missing_gib:
            return f"does not run: the arguments leave nothing for {STAGE_WORDS[self.failing_stage]}"
        if not self.fits:
            return f"does not fit: {self.missing_gib:.1f} GiB are missing on each GPU for {STAGE_WORDS[self.failing_stage]}"
        if self.requested and self.effective_max_running_requests < self.requested:
            return f"fits, but {self.requested} requests requested, {self.effective_max_running_requests} effective"
        return "fits" + (f", but {self.notes[0]}" if self.notes else "")


STAGE_WORDS = {
    "weights": "the weights", "draft": "the draft model", "state": "the states of linear layers",
    "verify": "the copies of states that a draft is verified with", "cache": "the KV cache", "graphs": "CUDA graphs",
    "": "",
}  # fmt: skip


def plan(
    shape: Shape,
    args: Mapping[str, Any],
    gpus: Sequence[Gpu],
    version: str,
    draft: Shape | None = None,
    measured: Mapping[str, float] | None = None,
) -> Plan:
    """Plan an instance that gets `gpus`, in the order of its ranks; more than tp * pp of them are left alone.

    `draft` is the shape of a draft model of its own; `measured` has GiB on one GPU of `weights`, `draft`, `graphs` or
    `context` of an earlier launch. ValueError with one line if there are too few GPUs or an argument is no number.
    """
    rules = rules_of(version)
    if not gpus:
        raise ValueError("there is no GPU to plan for: name one")
    method = str(args.get("quantization") or "")
    if method and not shape.quantization.method:
        shape = quantized(shape, method)
    blackwell = any(word in gpus[0].name.upper() for word in ("B200", "B300", "GB200"))
    settings = settle(shape, args, min(gpu.total_mib for gpu in gpus), blackwell, rules)
    one = settings.layout.tp * settings.layout.pp
    ranks = one * (settings.replicas if settings.groups == 1 else 1)
    if len(gpus) < ranks:
        raise ValueError(f"'tp_size', 'pp_size' and 'dp_size' need {ranks} GPUs, and there are {len(gpus)}")
    known, gpus = measured or {}, gpus[:ranks]
    context = known.get("context", CONTEXT_MIB / 1024)
    before = min(gpu.free for gpu in gpus) - context  # SGLang takes the least of all ranks
    weights = [
        max(0.0, known.get("weights", on_stage(shape, settings.layout, stage) / GIB) - settings.offload)
        for stage in range(settings.layout.pp)
    ]
    loaded, kept = _draft(shape, draft, settings)
    kept = known.get("draft", kept)
    pools = pools_of(shape, draft, settings, rules, before, max(weights), kept)
    graphs = known.get("graphs", settings.graphs / 1024)
    held = [
        _on_gpu(gpu, context, weights[rank % one // settings.layout.tp], kept, pools, settings, shape, draft, rules,
                graphs, rank % one // settings.layout.tp)
        for rank, gpu in enumerate(gpus)
    ]  # fmt: skip
    stage, missing = _failure(before, max(weights), max(loaded, kept), kept, pools, settings, rules, graphs, held)
    unknown = _unknown(shape, draft, settings, rules)
    rest = min(one.parts["rest"] for one in held)
    return Plan(
        version=version,
        fits=False if stage else None if unknown else True,
        failing_stage=stage,
        missing_gib=missing,
        gpus=tuple(held),
        fraction=settings.fraction,
        weights_gib=max(weights),
        draft_gib=kept,
        kv_tokens=pools.tokens,
        sliding_tokens=pools.sliding_tokens,
        state_slots=pools.slots,
        requested=settings.requests,
        effective_max_running_requests=0 if stage else pools.requests * settings.replicas,
        context=settings.context,
        longest_context=0 if stage else pools.longest(settings.context, shape.window),
        full_requests=0 if stage else pools.at_once(settings.context, shape.window) * settings.replicas,
        rest_gib=rest,
        unknown=unknown,
        notes=_notes(rest, settings, pools, rules, bool(stage)),
    )


def _draft(shape: Shape, draft: Shape | None, settings: Settings) -> tuple[float, float]:
    """Return GiB of a draft as it is loaded, and after it shares what it has in common with the target."""
    if settings.draft in ("", "NGRAM"):
        return 0.0, 0.0
    if draft:
        loaded, kept = separate_draft(draft, settings.layout, settings.draft)
    else:
        loaded, kept = draft_on_gpu(shape, settings.layout) if shape.draft_layers else (0.0, 0.0)
    return loaded / GIB, kept / GIB


def _on_gpu(
    gpu: Gpu, context: float, weights: float, drafted: float, pools: Pools, settings: Settings, shape: Shape,
    draft: Shape | None, rules: Rules, graphs: float, stage: int,
) -> OnGpu:  # fmt: skip
    """Lay out a GPU; what does not fit any more is cut, so that parts are never negative and add up."""
    layers = stages(shape.layers, settings.layout.pp)[stage]
    full, slide, _more = per_token(shape, None, settings, rules, layers)
    row = cache_bytes(draft or shape, settings, rules) * draft_layers(shape, draft, settings)
    tokens = pools.tokens + settings.page if pools.tokens else 0
    sizes = {
        "context": context,
        "weights": weights,
        "draft": drafted + tokens * row / GIB,
        "state": (pools.slots + 1) * sum(state_bytes(shape, settings, layers)) / GIB if pools.slots else 0.0,
        "verify": verify_bytes(shape, settings, rules, pools.requests, layers) / GIB if pools.requests else 0.0,
        "cache": (tokens * full + pools.sliding_tokens * slide) / GIB,
        "graphs": graphs,
    }
    total, left = gpu.total_mib / 1024, gpu.free
    parts = {"others": total - left}
    for name, size in sizes.items():
        parts[name] = min(size, left)
        left -= parts[name]
    return OnGpu(gpu.name, total, {**parts, "rest": left})


def _failure(
    before: float, weights: float, loaded: float, drafted: float, pools: Pools, settings: Settings, rules: Rules,
    graphs: float, held: Sequence[OnGpu],
) -> tuple[str, float]:  # fmt: skip
    """Return the first stage that fails, in the order of the release, and how many GiB it lacks."""
    if weights > before:
        return "weights", weights - before
    if rules.draft_in_fraction and weights + loaded > before:
        return "draft", weights + loaded - before
    if pools.requests < 1 or pools.tokens < 1:
        least = pools.least if pools.least < float("inf") else pools.budget
        return _short_of(pools, rules), max(0.0, least - pools.budget)
    # beside weights and pools, with nothing cut
    parts = min((one.parts for one in held), key=lambda one: one["graphs"] + one["rest"] + one["draft"])
    free = before - sum(parts[name] for name in ("weights", "state", "verify", "cache"))
    late = max(loaded, drafted) + (parts["draft"] - drafted) if not rules.draft_in_fraction else parts["draft"]
    if graphs > free - (parts["draft"] if rules.draft_in_fraction else 0):
        return "graphs", graphs - free + (parts["draft"] if rules.draft_in_fraction else 0)
    if not rules.draft_in_fraction and settings.draft and late > free - graphs:
        return "draft", late - (free - graphs)
    return "", 0.0


def _short_of(pools: Pools, rules: Rules) -> str:
    """Name the pool at which the budget ends: copies come first where they are for all that was requested."""
    if rules.verify_for == "requested" and pools.verify > max(0.0, pools.budget):
        return "verify"
    if pools.states and (pools.slots < pools.ratio or pools.state > pools.budget - (pools.verify if rules.verify_for == "requested" else 0)):
        return "state"
    return "verify" if pools.verify + pools.state > pools.budget and pools.verify else "cache"


def _unknown(shape: Shape, draft: Shape | None, settings: Settings, rules: Rules) -> tuple[str, ...]:
    reasons = [*shape.unknown, *settings.unknown, *(f"draft: {why}" for why in (draft.unknown if draft else ()))]
    if NOT_PLANNED.match(shape.architecture):
        reasons.append(f"the caches of {shape.architecture} are not worked out")
    if settings.draft not in ("", "NGRAM") and not draft and not shape.draft_layers:
        reasons.append(f"the draft model of '{settings.draft}' is not known: its memory is not counted")
    return tuple(dict.fromkeys(reasons))


def _notes(rest: float, settings: Settings, pools: Pools, rules: Rules, failed: bool) -> tuple[str, ...]:
    notes = []
    if rules.version > NEWEST or rules.version < OLDEST:
        near = ".".join(map(str, NEWEST if rules.version > NEWEST else OLDEST))
        notes.append(f"this release was not read: it is planned like {near}")
    if failed:
        return tuple(notes)
    if pools.tokens < settings.context:
        notes.append(f"one request can have at most {pools.tokens} of {settings.context} tokens")
    if rest < settings.reserve / 1024 / 2:
        notes.append(f"only {rest:.1f} GiB are left for activations, for which SGLang reserves {settings.reserve / 1024:.1f}")
    return tuple(notes)
