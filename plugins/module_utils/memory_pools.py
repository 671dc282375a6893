# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How SGLang divides what its weights leave: states of linear layers, copies of them for drafts, and the KV cache.

Sources: 0.5.9 to 0.5.15 srt/model_executor/model_runner_kv_cache_mixin.py, from 0.5.16 on
srt/mem_cache/kv_cache_configurator.py; from 0.5.11 on srt/model_executor/pool_configurator.py. Everything is per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpuops.sglang.plugins.module_utils.cache_sizes import per_token, pooled, state_bytes
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import Rules
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Settings
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape

GIB = 1 << 30
EVICTION = 128  # tokens (SGLANG_SWA_EVICTION_INTERVAL)
NEVER = 1 << 60  # tokens of a stage without attention


@dataclass(frozen=True)
class Pools:
    """Sizes of the pools, and the budget (GiB) that they were cut from; figures of requests are for one scheduler."""

    budget: float
    slots: int
    state: float  # GiB counted for states
    verify: float  # GiB counted for copies of states
    left: float  # GiB for the cache
    tokens: int
    sliding_tokens: int
    requests: int
    ratio: int  # slots for a request
    states: bool  # there are linear layers
    least: float  # GiB that one request needs of the budget; infinite where memory does not help

    def longest(self, context: int, window: int) -> int:
        """Return the context that each of all requests can have at the same time."""
        each, own = self.tokens // max(1, self.requests), self.sliding_tokens // max(1, self.requests)
        return min(context, each, own) if self.sliding_tokens and own < window else min(context, each)


def pools_of(
    shape: Shape, draft: Shape | None, settings: Settings, rules: Rules, before: float, weights: float, drafted: float
) -> Pools:
    """Divide what is free `before` loading once `weights` and a draft of `drafted` GiB are loaded, which does not share
    anything with the target yet.

    budget = free after weights - free before * (1 - mem_fraction_static) (_profile_available_bytes); it is negative
    where the weights alone take more than their share.
    """
    budget = before * settings.fraction - weights - (drafted if rules.draft_in_fraction else 0.0)
    budget -= rules.multimodal_reserve / 1024 if shape.multimodal else 0.0
    slots, state, verify = _states(shape, settings, rules, budget)
    left = budget - state - verify
    tokens, sliding = _tokens(shape, draft, settings, rules, left)
    requests = _requests(shape, settings, rules, tokens, slots)
    if rules.sliding_checked and settings.sliding and 0 < sliding <= shape.window + settings.page:
        tokens = 0
    return Pools(budget, max(0, slots), state, verify, left, tokens, sliding, requests if tokens else 0,
                 settings.ratio, shape.linear is not None, _least(shape, draft, settings, rules))  # fmt: skip


def _states(shape: Shape, settings: Settings, rules: Rules, budget: float) -> tuple[int, float, float]:
    """Return slots, and GiB for them and for copies of them (handle_max_mamba_cache).

    Slots are what is asked for; or, without radix cache, the requests; or the part of the budget that
    `mamba_full_memory_ratio` gives. Copies are for all requests that were asked for up to 0.5.12, then for those that
    the slots allow, which are found together with the slots.
    """
    slot = _slot(shape, settings, rules)
    if not slot:
        return 0, 0.0, 0.0
    copies = slot * settings.draft_tokens if settings.draft else 0.0
    asked, pad, ratio = _each(settings.requests, settings), rules.padding, settings.ratio
    early = copies * (asked or 0) if rules.verify_for == "requested" else 0.0
    rest, share = budget - early, settings.split / (1 + settings.split)
    if settings.slots is not None:
        slots = settings.slots // settings.groups
    elif not settings.radix and asked is not None:
        slots = asked
    elif rules.verify_for == "requested":
        slots = int(rest * share // slot)
    else:
        slots = int((rest * share - pad * (slot + copies)) // (slot + copies / ratio))
    if rules.verify_for == "requested":
        return slots, slots * slot, early
    capped = slots if settings.slots is None and not settings.radix else min(asked or 0, slots // ratio)
    return slots, (slots + pad) * slot, copies * (max(0, capped) + pad)


def _slot(shape: Shape, settings: Settings, rules: Rules) -> float:
    """GiB of one slot as it is counted: of all layers, or from 0.5.17 on of the largest pipeline stage."""
    if rules.pipeline_share and settings.layout.pp > 1:
        return max(sum(state_bytes(shape, settings, part)) for part in pooled(shape, settings, rules)) / GIB
    return sum(state_bytes(shape, settings)) / GIB


def _each(requests: int | None, settings: Settings) -> int | None:
    return None if requests is None else requests // settings.groups


def _tokens(shape: Shape, draft: Shape | None, settings: Settings, rules: Rules, left: float) -> tuple[int, int]:
    """Return the tokens of the cache, the least of all pipeline stages, and of its pool for sliding layers."""
    page, found = settings.page, []
    for layers in pooled(shape, settings, rules):
        full, slide, more = per_token(shape, draft, settings, rules, layers)
        if not slide:
            cell = int(full + more)
            found.append((int(left * GIB) // cell if cell else NEVER, 0))
        elif not full:
            tokens = int(left * GIB // (slide + more))
            found.append((tokens, tokens))
        elif (
            rules.sliding_by_requests
            and settings.requests
            and not settings.radix
            and settings.chunk > 0
            and settings.asked
        ):
            window = -(-_window_tokens(shape, settings) // page) * page
            found.append((int((left * GIB - window * slide) // (full + more)), window))
        else:
            found.append((int(left * GIB // (full + settings.sliding_ratio * slide + more)), -1))
    tokens = max(0, min(count for count, _slide in found))
    tokens = min(tokens, settings.tokens) if settings.tokens else tokens
    tokens = tokens // page * page if tokens < NEVER else settings.context
    window = max(slide for _count, slide in found)
    if window < 0:
        window = int(tokens * settings.sliding_ratio) // page * page
    return tokens, min(window, tokens) if window else 0


def _window_tokens(shape: Shape, settings: Settings) -> int:
    """0.5.14 SWAChunkCapPoolConfigurator, 0.5.23 compute_swa_request_cap."""
    draft = settings.draft_tokens or 1
    grows = settings.page if not settings.draft else draft * (2 if settings.overlap else 1)
    each = shape.window + EVICTION * draft + settings.page + grows
    chunks = (2 if settings.overlap else 1) * settings.chunk
    return each * max(1, (settings.requests or 1) // settings.replicas) + chunks + settings.page


def _requests(shape: Shape, settings: Settings, rules: Rules, tokens: int, slots: int) -> int:
    """Return how many requests one scheduler runs at a time (_resolve_max_num_reqs)."""
    estimate = max(min(int(tokens / settings.context * 512), 4096), 2048)
    if settings.requests is None:
        requests = min(estimate, tokens // 2) if rules.cap_by_tokens != "none" else estimate
    else:
        requests = settings.requests // settings.replicas
        requests = max(1, requests) if rules.padding else requests
        requests = min(requests, estimate) if rules.cap_by_estimate else requests
        requests = min(requests, tokens // 2) if rules.cap_by_tokens == "always" else requests
    return max(0, min(requests, slots // settings.ratio) if shape.linear else requests)


def _least(shape: Shape, draft: Shape | None, settings: Settings, rules: Rules) -> float:
    """Return the least budget (GiB) with which one request runs; infinite where other arguments do not let it."""
    if settings.requests is not None and settings.requests // settings.replicas < 1 and not rules.padding:
        return float("inf")
    tokens = max(settings.page, 2 if rules.cap_by_tokens != "none" else 1)
    cache = 0.0
    for layers in pooled(shape, settings, rules):
        full, slide, more = per_token(shape, draft, settings, rules, layers)
        windowed = tokens * settings.sliding_ratio * slide
        if slide and rules.sliding_by_requests and settings.asked and not settings.radix and full:
            windowed = (_window_tokens(shape, settings) + settings.page) * slide
        elif slide and rules.sliding_checked and full:
            tokens = max(tokens, int((shape.window + 2 * settings.page) / settings.sliding_ratio) + settings.page)
            windowed = tokens * settings.sliding_ratio * slide
        cache = max(cache, (tokens * (full + more) + windowed) / GIB)
    slot = _slot(shape, settings, rules)
    if not slot:
        return cache
    copies = slot * settings.draft_tokens if settings.draft else 0.0
    asked, pad, ratio = _each(settings.requests, settings), rules.padding, settings.ratio
    fixed = settings.slots // settings.groups if settings.slots is not None else asked
    early = copies * (asked or 0) if rules.verify_for == "requested" else 0.0
    if settings.slots is not None or (not settings.radix and asked is not None):
        slots = fixed or 0
        if slots < ratio:
            return float("inf")
        capped = slots if settings.slots is None else min(asked or 0, slots // ratio)
        later = copies * (capped + pad) if rules.verify_for == "capped" else 0.0
        return early + (slots + pad) * slot + later + cache
    later = copies if rules.verify_for == "capped" else 0.0
    used = (ratio + pad) * slot + later * (1 + pad)
    return early + max(used * (1 + settings.split) / settings.split, used + cache)
