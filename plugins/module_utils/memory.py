# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a model with its arguments fits into GPUs under a release of SGLang: what each GPU holds, stage by stage.

SGLang measures what is free before it loads weights, and gives weights and pools `mem_fraction_static` of that; the
rest is for graphs, activations and, up to 0.5.13, the draft. Sizes are GiB; formulas name where they can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.cache_sizes import (
    cache_bytes,
    draft_layers,
    per_token,
    pooled,
    state_bytes,
    table_bytes,
    verify_bytes,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import (
    ALL_REDUCE_MIB,
    COLLECTIVE_MIB,
    CONTEXT_MIB,
    LATE_MIB,
    RANKS_MIB,
    Gpu,
    OnGpu,
    Plan,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_pools import GIB, Pools, pools_of
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import (
    NEWEST,
    NOT_PLANNED,
    OLDEST,
    Rules,
    rules_of,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Asked, Settings, settle
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import (
    draft_on_gpu,
    in_float32,
    on_stage,
    quantized,
    separate_draft,
)


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
    asked = Asked(args)
    method = asked.text("quantization")
    if method and not shape.quantization.method:
        shape = quantized(shape, method)
    if asked.text("dtype") in ("float32", "float"):
        shape = in_float32(shape)
    blackwell = any(word in gpus[0].name.upper() for word in ("B200", "B300", "GB200"))
    settings = settle(shape, args, min(gpu.total_mib for gpu in gpus), blackwell, rules)
    one = settings.layout.tp * settings.layout.pp
    ranks = one * (settings.replicas if settings.groups == 1 else 1)
    if len(gpus) < ranks:
        raise ValueError(f"'tp_size', 'pp_size' and 'dp_size' need {ranks} GPUs, and there are {len(gpus)}")
    known, gpus = measured or {}, gpus[:ranks]
    context = known.get("context", _context(settings))
    before = min(gpu.free for gpu in gpus) - context  # SGLang takes the least of all ranks
    late = min(LATE_MIB / 1024, context) if one == 1 else 0.0
    again = 2 * shape.positions if shape.stretched and rules.yarn_thrice else 0
    weights = [
        max(0.0, known.get("weights", (on_stage(shape, settings.layout, stage) + again) / GIB) - settings.offload)
        for stage in range(settings.layout.pp)
    ]
    loaded, kept = _draft(shape, draft, settings)
    shared, kept = loaded - kept, known.get("draft", kept)
    pools = pools_of(shape, draft, settings, rules, before + late, max(weights) + late, kept + shared)
    graphs = known.get("graphs", settings.graphs / 1024)
    wanted = [
        _sizes(shape, draft, settings, rules, pools, stage, context, weights[stage], kept, graphs)
        for stage in range(settings.layout.pp)
    ]
    held = [_on_gpu(gpu, wanted[rank % one // settings.layout.tp]) for rank, gpu in enumerate(gpus)]
    stage, missing = _failure(before, shared, pools, settings, rules, wanted)
    unknown = _unknown(shape, draft, settings, rules)
    collective = 0.0 if one == 1 or settings.warmed else COLLECTIVE_MIB / 1024
    rest = max(0.0, min(on_gpu.parts["rest"] for on_gpu in held) - collective)
    return Plan(
        version=version,
        fits=False if stage and (not unknown or _certain(stage, unknown)) else None if unknown else True,
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
        window=shape.window if pools.sliding_tokens else 0,
        schedulers=settings.replicas,
        rest_gib=rest,
        tight=rest < settings.reserve / 1024 / 2,
        unknown=unknown,
        notes=_notes(shape, rest, settings, pools, rules, bool(stage)),
    )


def _context(settings: Settings) -> float:
    """Return GiB that a rank takes before SGLang measures."""
    if settings.layout.tp * settings.layout.pp == 1:
        return CONTEXT_MIB / 1024
    own = ALL_REDUCE_MIB if settings.layout.tp > 1 and settings.all_reduce else 0
    return (RANKS_MIB + own + (COLLECTIVE_MIB if settings.warmed else 0)) / 1024


def _draft(shape: Shape, draft: Shape | None, settings: Settings) -> tuple[float, float]:
    """Return GiB of a draft as it is loaded, and after it shares what it has in common with the target."""
    if settings.draft in ("", "NGRAM"):
        return 0.0, 0.0
    if draft:
        loaded, kept = separate_draft(draft, settings.layout, settings.draft)
    else:
        loaded, kept = draft_on_gpu(shape, settings.layout) if shape.draft_layers else (0.0, 0.0)
    return loaded / GIB, kept / GIB


def _sizes(
    shape: Shape, draft: Shape | None, settings: Settings, rules: Rules, pools: Pools, stage: int,
    context: float, weights: float, drafted: float, graphs: float,
) -> dict[str, float]:  # fmt: skip
    """Return what each stage takes on a GPU, whether it fits or not."""
    layers = pooled(shape, settings, rules)[stage]
    full, slide, _more = per_token(shape, None, settings, rules, layers)
    row = cache_bytes(draft or shape, settings, rules) * draft_layers(shape, draft, settings)
    tokens = pools.tokens + settings.page if pools.tokens else 0
    return {
        "context": context,
        "weights": weights,
        "draft": drafted + tokens * row / GIB,
        "state": (pools.slots + 1) * sum(state_bytes(shape, settings, layers)) / GIB if pools.slots else 0.0,
        "verify": verify_bytes(shape, settings, rules, pools.requests, layers) / GIB if pools.requests else 0.0,
        "cache": (tokens * full + pools.sliding_tokens * slide) / GIB,
        "requests": table_bytes(settings, pools.requests) / GIB if pools.requests else 0.0,
        "graphs": graphs,
    }


def _on_gpu(gpu: Gpu, sizes: Mapping[str, float]) -> OnGpu:
    """Lay out a GPU; what does not fit any more is cut, so that parts are never negative and add up."""
    total, left = gpu.total_mib / 1024, gpu.free
    parts = {"others": total - left}
    for name, size in sizes.items():
        parts[name] = min(size, left)
        left -= parts[name]
    return OnGpu(gpu.name, total, {**parts, "rest": left})


def _failure(
    before: float, shared: float, pools: Pools, settings: Settings, rules: Rules, wanted: Sequence[Mapping[str, float]]
) -> tuple[str, float]:
    """Return the first stage that fails, in the order of the release, and how many GiB it lacks.

    `shared` is what a draft takes only until it shares embeddings and head with the target.
    """
    weights = max(sizes["weights"] for sizes in wanted)
    if weights > before:
        return "weights", weights - before
    early = rules.draft_in_fraction
    drafted = wanted[0]["draft"] + shared
    if early and weights + drafted > before and not pools.tokens:
        return "draft", weights + drafted - before
    if pools.requests < 1 or pools.tokens < 1:
        least = pools.least if pools.least < float("inf") else pools.budget
        return _short_of(pools, rules), max(0.0, least - pools.budget)
    # the fraction has room for the pools: it is what comes beside them that finds none
    pooled = ("state", "verify", "cache", "requests", "graphs")
    order = ("weights", "draft", *pooled) if early else ("weights", *pooled, "draft")
    for sizes in wanted:
        free = before
        for name in order:
            free -= sizes[name] + (shared if name == "draft" and not early else 0.0)
            if free < 0:
                return name, -free
    return "", 0.0


def _short_of(pools: Pools, rules: Rules) -> str:
    """Name the pool at which the budget ends: copies come first where they are for all that was requested."""
    if rules.verify_for == "requested" and pools.verify > max(0.0, pools.budget):
        return "verify"
    if pools.states and (
        pools.slots < pools.ratio
        or pools.state > pools.budget - (pools.verify if rules.verify_for == "requested" else 0)
    ):
        return "state"
    return "verify" if pools.verify + pools.state > pools.budget and pools.verify else "cache"


def _unknown(shape: Shape, draft: Shape | None, settings: Settings, rules: Rules) -> tuple[str, ...]:
    reasons = [*shape.unknown, *settings.unknown, *(f"draft: {why}" for why in (draft.unknown if draft else ()))]
    if NOT_PLANNED.match(shape.architecture):
        reasons.append(f"the caches of {shape.architecture} are not worked out")
    if settings.draft not in ("", "NGRAM") and not draft and not shape.draft_layers:
        reasons.append(f"the draft model of '{settings.draft}' is not known: its memory is not counted")
    return tuple(dict.fromkeys(reasons))


def _certain(stage: str, unknown: Sequence[str]) -> bool:
    """Tell whether weights do not fit, whatever is not understood: they are a lower bound, unless some are moved."""
    return stage == "weights" and not any("'offload_group_size'" in reason for reason in unknown)


def _notes(shape: Shape, rest: float, settings: Settings, pools: Pools, rules: Rules, failed: bool) -> tuple[str, ...]:
    notes = []
    if rules.version > NEWEST or rules.version < OLDEST:
        near = ".".join(map(str, NEWEST if rules.version > NEWEST else OLDEST))
        notes.append(f"this release was not read: it is planned like {near}")
    if shape.linear and settings.draft and settings.ratio == 3 and rules.no_buffer_draft == "refused":
        notes.append("SGLang refuses a draft with this strategy: set 'mamba_scheduler_strategy' to extra_buffer")
    if failed:
        return tuple(notes)
    if pools.tokens < settings.context:
        notes.append(f"one request can have at most {pools.tokens} of {settings.context} tokens")
    if rest < settings.reserve / 1024 / 2:
        notes.append(
            f"only {rest:.1f} GiB are left for activations, for which SGLang reserves {settings.reserve / 1024:.1f}"
        )
    return tuple(notes)
