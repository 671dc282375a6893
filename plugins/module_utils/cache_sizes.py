# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a token, a state slot and a draft under verification take in SGLang's pools, in bytes on one GPU.

Sources: up to 0.5.9 srt/model_executor/model_runner_kv_cache_mixin.py, then srt/model_executor/pool_configurator.py and
srt/configs/mamba_utils.py.
"""

from __future__ import annotations

from functools import lru_cache

from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import OWN_DRAFTS, Rules
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Settings
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import stages

CONV_BYTES = 2  # of a value of a convolution's window (SGLANG_MAMBA_CONV_DTYPE)


def pooled(shape: Shape, settings: Settings, rules: Rules) -> list[range]:
    """Return the layers that each pipeline stage has pools for, which need not be those whose weights it has."""
    own = stages(shape.layers, settings.layout.pp)
    if shape.architecture in rules.undivided:
        return [range(shape.layers)] * len(own)
    if settings.sliding and rules.sliding_stage_more:
        return [range(part.start, min(part.stop + 1, shape.layers)) for part in own]
    return own


@lru_cache(maxsize=1024)
def counts(shape: Shape, layers: range) -> tuple[int, int, int]:
    """Return how many layers have full attention, sliding attention, and a state."""
    kinds = [shape.mixers[layer] for layer in layers]
    both = kinds.count("both")
    return kinds.count("full") + both, kinds.count("sliding"), kinds.count("linear") + both


def state_bytes(shape: Shape, settings: Settings, layers: range | None = None) -> tuple[float, float]:
    """Return the bytes of a request's slot in linear layers: convolution windows, and states.

    configs/mamba_utils.py: Mamba2StateShape.create, KimiLinearStateShape.create, mamba_cache_per_req; groups that do
    not divide are repeated for each GPU.
    """
    linear, tp = shape.linear, settings.layout.attention
    if linear is None:
        return 0.0, 0.0
    count = counts(shape, layers or range(shape.layers))[2]
    inner = linear.heads * linear.head_dim
    if linear.kind == "conv":
        return count * inner / tp * (linear.kernel - 1) * CONV_BYTES, 0.0
    groups = linear.groups if linear.groups % tp == 0 else tp
    width = 3 * inner if linear.kind == "kda" else inner + 2 * groups * linear.state
    return (
        count * width / tp * (linear.kernel - 1) * CONV_BYTES,
        count * inner / tp * linear.state * settings.ssm_bytes,
    )


def verify_bytes(shape: Shape, settings: Settings, rules: Rules, requests: int, layers: range) -> float:
    """Return the bytes that are really taken to verify drafts (mem_cache/memory_pool.py, MambaPool): for each request
    and one more, a state and a window for each token; later releases let windows overlap."""
    if not settings.draft or shape.linear is None:
        return 0.0
    windows, states = state_bytes(shape, settings, layers)
    width, tokens = shape.linear.kernel - 1, settings.draft_tokens
    columns = tokens + width - 1 if rules.window_copies_shared and shape.linear.kind != "kda" else tokens * width
    return (requests + 1) * (tokens * states + columns * windows / max(1, width))


def cache_bytes(shape: Shape, settings: Settings, rules: Rules, mixer: str = "full") -> float:
    """Return the bytes that a token takes in one layer (pool_configurator.py, _compute_cell_size).

    Latent: kv_lora_rank + rope, whole on each GPU; sparse attention adds its index. Otherwise heads * (key + value),
    at least one head. fp8 takes 1 byte; fp4 half, with a scale for 16 values; mxfp8 1, with a scale for 32.
    """
    size = shape.dtype if settings.cache == "full" else 1
    latent, tp = shape.latent, settings.layout.attention
    if latent and mixer == "full":
        width = latent.kv_rank + latent.rope
        if latent.index_heads and settings.cache == "fp8" and rules.scaled_latent:
            width = latent.kv_rank + latent.kv_rank // 128 * 4 + 2 * latent.rope
        own = width // 2 + width // 16 if settings.cache == "fp4" else width * size
        return own + (latent.index_dim + latent.index_dim // 128 * 4 if latent.index_heads else 0)
    sliding = mixer == "sliding"
    heads = max(1, (shape.sliding_kv_heads if sliding else shape.kv_heads) // tp)
    key, value = (shape.sliding_head_dim, shape.sliding_value_dim) if sliding else (shape.head_dim, shape.value_dim)
    row = heads * (key + value) * size
    if settings.cache == "fp4":
        return row / 2 + heads * key * 2 / 16
    return row + (row / 32 if settings.cache == "mxfp8" else 0)


def table_bytes(settings: Settings, requests: int) -> int:
    """Return the bytes of the table of each request's tokens, which is not counted in the fraction
    (mem_cache/memory_pool.py, ReqToTokenPool): int32 for the whole context of every request, and of one more."""
    return (requests + 1) * (settings.context + 4 + settings.draft_tokens) * 4


def draft_layers(shape: Shape, draft: Shape | None, settings: Settings) -> int:
    if settings.draft in ("", "NGRAM"):
        return 0
    return draft.layers if draft else shape.draft_layers


def _counted_layers(shape: Shape, draft: Shape | None, settings: Settings, rules: Rules) -> int:
    """Return the layers of a draft that SGLang counts (0.5.14 model_executor/model_runner.py, eagle_draft_num_layers):
    only of one that is named, or that its architecture stands for, and by its key where it has that."""
    if not rules.draft_in_fraction or settings.draft in ("", "NGRAM"):
        return 0
    if draft:
        return draft.layers if draft.nextn is None else draft.nextn
    if not settings.draft_named and not OWN_DRAFTS.fullmatch(shape.architecture):
        return (shape.nextn or 0) if rules.unnamed_draft_counts else 0
    if shape.nextn is None and shape.multimodal and rules.vision_draft_layers == "all":
        return shape.layers
    return shape.draft_layers if shape.nextn is None else shape.nextn


def per_token(
    shape: Shape, draft: Shape | None, settings: Settings, rules: Rules, layers: range
) -> tuple[float, float, float]:
    """Return the bytes of a token in the full layers of a stage, in its sliding layers, and in the draft's.

    Up to 0.5.13 the draft is not counted; then as if its layers were the target's, but for one of its own heads.
    """
    full_count, slide_count, _linear = counts(shape, layers)
    pooled = settings.sliding and slide_count > 0
    full = cache_bytes(shape, settings, rules)
    slide = cache_bytes(shape, settings, rules, "sliding")
    own = full * full_count + (0 if pooled else slide * slide_count)
    counted = _counted_layers(shape, draft, settings, rules) if rules.sliding_draft_counts or not pooled else 0
    more = counted * (full if full_count or pooled else 0)
    return own, slide * slide_count if pooled else 0.0, more
