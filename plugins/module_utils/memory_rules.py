# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How releases of SGLang differ in what they do with GPU memory, as data: each change with where it can be read.

Read in 0.5.9 to 0.5.23. An older release is planned as 0.5.9, a newer one as 0.5.23, and the plan says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

OLDEST, NEWEST = (0, 5, 9), (0, 5, 23)

# Which architectures get a pool of their own for sliding layers (configs/model_config.py, is_hybrid_swa_model); in all
# others a sliding layer keeps as much as a full one. Gemma 2 and 3 never do (disable_hybrid_swa_memory).
_SLIDING_9 = ("Llama4ForConditionalGeneration", "GptOssForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM")
_SLIDING_11 = (*_SLIDING_9, "MiMoV2ForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
_SLIDING_12 = (*_SLIDING_11, "LagunaForCausalLM")
_SLIDING_13 = (*_SLIDING_12, "Step3p7ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")
_SLIDING_16 = (*_SLIDING_13, "MellumForCausalLM", "UnlimitedOCRForCausalLM")
_SLIDING_18 = (*_SLIDING_16, "MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration")
_SLIDING_19 = (*_SLIDING_18, "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM")
# Multimodal architectures whose prefill is captured in graphs (configs/model_config.py)
_VISION_16 = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
_VISION_18 = (*_VISION_16, "KimiK25ForConditionalGeneration", "MuseGlimmerForConditionalGeneration")
_VISION_19 = (*_VISION_18, "Cohere2VisionForConditionalGeneration", "PaddleOCRVLForConditionalGeneration")
# Which architectures do not tell SGLang the layers of a pipeline stage: their weights are divided, but each stage has
# pools for all layers (model_executor/model_runner.py, getattr(self.model, "start_layer", 0); from 0.5.16 on
# model_runner_components/layer_setup.py, of classes in srt/models/ without start_layer)
_UNDIVIDED_17 = (
    "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "MiniMaxM2ForCausalLM", "SolarForCausalLM",
    "OrionForCausalLM", "DeciLMForCausalLM", "Qwen2_5_VLForConditionalGeneration", "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration", "GlmOcrForConditionalGeneration", "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration", "HYV4ForCausalLM", "GigaChat35ForCausalLM",
)  # fmt: skip
_UNDIVIDED_10 = (*_UNDIVIDED_17, "KimiLinearForCausalLM")
_UNDIVIDED_9 = (
    *_UNDIVIDED_10, "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
)  # fmt: skip
# Pools that are not worked out here (DSV4PoolConfigurator, MiniMax sparse, QSA)
NOT_PLANNED = re.compile(
    r"DeepseekV4|MiniMaxM3|KimiK3|Inkling|Qwen4Exp|Glm5Next|BailingMoeV2_5|BailingMoeV3|LongcatFlash"
)

# Whose draft is their own checkpoint even if no draft is named (arg_groups/speculative_hook.py, _handle_eagle_family)
OWN_DRAFTS = re.compile(
    r"(DeepseekV32|DeepseekV3|DeepseekV4|Glm4Moe|Glm4MoeLite|GlmMoeDsa|BailingMoe|BailingMoeV2|BailingMoeV2_5|MistralLarge3"
    r"|HYV3|HYV4)ForCausalLM|PixtralForConditionalGeneration"
)

# Below which memory of the smallest GPU (MiB): chunked_prefill_size, cuda_graph_max_bs for tp below 4, and from 4 on
Classes = tuple[tuple[float, int, int, int], ...]
_CLASSES: Classes = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)


@dataclass(frozen=True)
class Rules:
    """One release; the defaults are those of 0.5.9. Sizes are MiB."""

    version: tuple[int, ...] = OLDEST
    classes: Classes = _CLASSES
    draft_reserve: int = 2048  # what mem_fraction_static leaves for an EAGLE draft
    standalone_reserve: int = 6144
    draft_in_fraction: bool = False  # draft weights and its cache come out of mem_fraction_static
    unnamed_draft_counts: bool = False  # the draft's cache is counted if only 'num_nextn_predict_layers' tells of it
    vision_draft_layers: str = "all"  # of the text that are counted as the draft's where no key tells: all, or one
    sliding_draft_counts: bool = False  # the draft's cache is counted with pools for sliding layers, too
    verify_for: str = "requested"  # requests that states for verification are kept for: requested, or capped
    padding: int = 0  # slots counted beside those that are used
    pipeline_share: bool = False  # a pipeline stage is charged its own layers' states only
    undivided: tuple[str, ...] = _UNDIVIDED_9  # whose pipeline stages have pools for all layers
    sliding_stage_more: bool = True  # with pools for sliding layers, a stage has them for the next stage's first, too
    yarn_thrice: bool = True  # positions of latent attention that are stretched are kept three times
    prefill_graphs: str = "opt in"  # or piecewise, breakable
    vision_graphs: tuple[str, ...] = ()
    prefill_within_context: bool = False
    graphs_off_free: bool = False  # nothing is reserved for decode graphs that are disabled
    graphs_within_requests: bool = False
    multimodal_reserve: int = 0
    cap_by_tokens: str = "none"  # at most half as many requests as tokens: none, default, always
    cap_by_estimate: bool = False  # requested ones are held to tokens / context * 512, at least 2048
    extra_buffer_slots: str = "draft"  # whether one or two more slots a request depend on draft, or on overlap
    automatic_strategy: str = "no_buffer"
    no_buffer_draft: str = "radix off"  # what no_buffer with a draft comes to: that, silently, or refused
    kda_extra_buffer: bool = False
    draft_overlaps: bool = False  # a draft leaves the overlap schedule on
    window_copies_shared: bool = False  # copies of convolution windows for verification overlap each other
    scaled_latent: bool = False  # the scales of an fp8 cache of sparse latent attention are counted
    sliding: tuple[str, ...] = _SLIDING_9
    sliding_by_requests: bool = False  # without radix cache, the sliding pool is sized for the requests
    sliding_checked: bool = False  # a sliding pool smaller than its window is refused


_MIXIN = "model_executor/model_runner_kv_cache_mixin.py"
# First release, field, value, where it can be read under srt/
CHANGES: tuple[tuple[tuple[int, ...], str, Any, str], ...] = (
    ((0, 5, 10), "draft_reserve", 4096, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 10), "prefill_graphs", "piecewise", "server_args.py, _handle_piecewise_cuda_graph"),
    ((0, 5, 10), "cap_by_tokens", "default", f"{_MIXIN}, _resolve_max_num_reqs"),
    ((0, 5, 10), "cap_by_estimate", True, f"{_MIXIN}, _resolve_max_num_reqs"),
    ((0, 5, 10), "undivided", _UNDIVIDED_10, "models/qwen3_5.py and qwen3_vl.py, start_layer"),
    ((0, 5, 10), "extra_buffer_slots", "overlap", f"{_MIXIN}, _calculate_mamba_ratio"),
    ((0, 5, 10), "no_buffer_draft", "refused", "server_args.py, _handle_mamba_radix_cache"),
    ((0, 5, 11), "draft_overlaps", True, "environ.py, SGLANG_ENABLE_SPEC_V2"),
    ((0, 5, 11), "sliding", _SLIDING_11, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 12), "sliding", _SLIDING_12, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 13), "sliding", _SLIDING_13, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 13), "verify_for", "capped", f"{_MIXIN}, handle_max_mamba_cache"),
    ((0, 5, 13), "yarn_thrice", False, "layers/rotary_embedding/rope_variant.py, DeepseekScalingRotaryEmbedding"),
    ((0, 5, 13), "prefill_within_context", True, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 14), "draft_in_fraction", True, "managers/scheduler.py, init_model_worker; pool_configurator.py"),
    ((0, 5, 14), "draft_reserve", 0, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 14), "standalone_reserve", 0, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 14), "cap_by_tokens", "always", f"{_MIXIN}, _resolve_max_num_reqs"),
    ((0, 5, 14), "cap_by_estimate", False, f"{_MIXIN}, _resolve_max_num_reqs"),
    ((0, 5, 14), "automatic_strategy", "extra_buffer", "server_args.py, _handle_mamba_radix_cache"),
    ((0, 5, 14), "no_buffer_draft", "", "server_args.py, _handle_mamba_radix_cache"),
    ((0, 5, 14), "sliding_by_requests", True, "model_executor/pool_configurator.py, SWAChunkCapPoolConfigurator"),
    ((0, 5, 14), "window_copies_shared", True, "mem_cache/memory_pool.py, MambaPool"),
    ((0, 5, 15), "sliding_draft_counts", True, "model_executor/pool_configurator.py, HybridSWAPoolConfigurator"),
    ((0, 5, 15), "graphs_off_free", True, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 15), "prefill_graphs", "breakable", "model_executor/cuda_graph_config.py, default_prefill_backend"),
    ((0, 5, 16), "sliding", _SLIDING_16, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 16), "sliding_checked", True, "model_executor/pool_configurator.py, validate_swa_pool_size"),
    ((0, 5, 16), "vision_graphs", _VISION_16, "configs/model_config.py"),
    ((0, 5, 16), "kda_extra_buffer", True, "arg_groups/overrides.py, _MAMBA_EXTRA_BUFFER_ARCHS"),
    ((0, 5, 17), "scaled_latent", True, "model_executor/pool_configurator.py, DefaultPoolConfigurator"),
    ((0, 5, 17), "padding", 1, "mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache"),
    ((0, 5, 17), "undivided", _UNDIVIDED_17, "models/kimi_linear.py, start_layer"),
    ((0, 5, 17), "pipeline_share", True, "mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache"),
    ((0, 5, 17), "prefill_within_context", False, "server_args.py, _handle_gpu_memory_settings"),
    ((0, 5, 18), "vision_draft_layers", "one", "configs/model_config.py, _config_draft_model"),
    ((0, 5, 18), "sliding", _SLIDING_18, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 18), "vision_graphs", _VISION_18, "configs/model_config.py"),
    ((0, 5, 18), "multimodal_reserve", 100, "mem_cache/kv_cache_configurator.py, mm_runtime_reservation_gb"),
    ((0, 5, 19), "sliding", _SLIDING_19, "configs/model_config.py, is_hybrid_swa_model"),
    ((0, 5, 19), "vision_graphs", _VISION_19, "configs/model_config.py"),
    ((0, 5, 20), "unnamed_draft_counts", True,
     "model_executor/model_runner_components/spec_aux_hidden_state.py, _resolve_eagle_aux_hidden_state"),
    ((0, 5, 20), "classes", (_CLASSES[0], (35 * 1024, 4096, 48, 160), *_CLASSES[2:]),
     "arg_groups/memory_hook.py, handle_gpu_memory_settings"),
    ((0, 5, 21), "sliding_stage_more", False, "model_runner_components/layer_setup.py"),
    ((0, 5, 22), "graphs_within_requests", True, "arg_groups/memory_hook.py, handle_gpu_memory_settings"),
)  # fmt: skip


@lru_cache(maxsize=64)
def rules_of(version: str) -> Rules:
    """Return what holds for a release; ValueError if `version` is none."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise ValueError(f"{version!r} is no version of SGLang: give it as in 0.5.11")
    release = tuple(map(int, found.groups()))
    holds = {field: value for since, field, value, _source in CHANGES if since <= release}
    return replace(Rules(), version=release, **holds)
