# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments that decide about GPU memory, with what a release of SGLang fills in where nothing is asked for.

Arguments may be requested or resolved ones: what is there counts, what is not (or None) is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import Rules
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import Layout

DRAFT_REQUESTS = 48  # max_running_requests with a draft (server_args.py, _handle_speculative_decoding)
ALIASES = {
    "tensor_parallel_size": "tp_size", "tp": "tp_size", "pipeline_parallel_size": "pp_size", "pp": "pp_size",
    "data_parallel_size": "dp_size", "dp": "dp_size", "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode", "attn_dp_size": "dp_size",
}  # fmt: skip
# Options that take GPU memory or change its pools in a way that is not worked out here
NOT_PLANNED = (
    "enable_hisparse", "enable_unified_memory", "enable_linear_replayssm_spec", "enable_gdn_replayssm_spec",
    "enable_lora", "lora_paths", "enable_symm_mem", "enable_two_batch_overlap", "dcp_size", "attn_cp_size",
    "disaggregation_mode", "dllm_algorithm", "enable_int8_mamba_checkpoint", "kv_canary", "ep_num_redundant_experts",
    "enable_multi_layer_eagle", "torchao_config", "offload_group_size", "prefill_only_disable_kv_cache",
)  # fmt: skip
DRAFTS = ("", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM")
FORMATS = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8": "fp8", "fp4_e2m1": "fp4", "mxfp8": "mxfp8"}


@dataclass(frozen=True)
class Settings:
    """What decides; `requests` and `slots` are for all schedulers together, None where SGLang derives them."""

    layout: Layout
    all_reduce: bool  # SGLang's own, if there is tensor parallelism
    warmed: bool  # NCCL takes its memory before SGLang measures, for tensor parallelism only (init_torch_distributed)
    replicas: int  # schedulers among which requests are divided (dp_size)
    groups: int  # those of them that share the GPUs (attention DP)
    fraction: float
    requests: int | None
    asked: bool  # `requests` were asked for, not filled in
    tokens: int | None
    context: int
    page: int
    cache: str  # format of keys and values: full, fp8, fp4, mxfp8
    radix: bool
    ratio: int  # state slots a request needs
    split: float  # states : cache, where SGLang divides
    slots: int | None
    ssm_bytes: int
    draft: str  # algorithm, or ""
    draft_tokens: int
    draft_named: bool  # by an argument
    overlap: bool
    sliding: bool  # sliding layers have a pool of their own
    sliding_ratio: float
    chunk: int
    graphs: float  # MiB, as SGLang estimates them
    reserve: float  # MiB beside the static part, as SGLang estimates it for activations
    offload: float  # GiB of weights in host memory
    unknown: tuple[str, ...]


def number(value: Any) -> float:
    """Read a number as SGLang's options take it, e.g. 8k or 1Mi; ValueError names what it is not."""
    text = str(value).strip().lower()
    unit = next((one for one in ("ki", "mi", "gi", "ti", "k", "m", "g", "t") if text.endswith(one)), "")
    factor = (1024 if unit[1:] else 1000) ** ("kmgt".index(unit[0]) + 1) if unit else 1
    try:
        return float(text.removesuffix(unit)) * factor
    except ValueError:
        raise ValueError(f"{value!r} is no number") from None


class Asked:
    """Arguments under the names of the newest release."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args: dict[str, Any] = {}
        for name, value in args.items():
            if value is not None:
                plain = name.lstrip("-").replace("-", "_")
                self.args[ALIASES.get(plain, plain)] = value

    def size(self, name: str, default: int | None = None) -> int | None:
        value = self.args.get(name)
        if value is None:
            return default
        try:
            return int(number(value))
        except ValueError as error:
            raise ValueError(f"'{name}': {error}") from None

    def at_least_one(self, name: str) -> int:
        return max(1, self.size(name, 1) or 1)

    def share(self, name: str, default: float) -> float:
        try:
            return number(self.args[name]) if self.args.get(name) is not None else default
        except ValueError as error:
            raise ValueError(f"'{name}': {error}") from None

    def on(self, name: str) -> bool:
        return str(self.args.get(name, False)).lower() in ("true", "1", "yes")

    def text(self, name: str) -> str:
        return str(self.args.get(name) or "")


def settle(shape: Shape, args: Mapping[str, Any], smallest_mib: float, blackwell: bool, rules: Rules) -> Settings:
    """Fill in what is not asked for; `smallest_mib` is the memory of the smallest GPU as nvidia-smi tells it."""
    asked = Asked(args)
    tp, pp, replicas = (asked.at_least_one(f"{name}_size") for name in ("tp", "pp", "dp"))
    groups = replicas if asked.on("enable_dp_attention") or "attn_dp_size" in args else 1
    layout = Layout(
        tp, pp, max(1, tp // groups), asked.on("enable_dp_lm_head"), asked.on("mm_enable_dp_encoder"),
        groups > 1 and asked.size("moe_dense_tp_size") == 1,
    )  # fmt: skip
    draft = asked.text("speculative_algorithm").upper().replace("NEXTN", "EAGLE")
    requests = asked.size("max_running_requests")
    radix, overlap, ratio = _slots(shape, asked, draft, rules)
    chunk, graphs, reserve, fraction = _fraction(shape, asked, layout, groups, smallest_mib, draft, rules)
    unknown = [f"'{name}' changes memory in a way that is not planned" for name in NOT_PLANNED
               if asked.text(name) not in ("", "False", "1", "-1", "null", "[]")]  # fmt: skip
    if draft not in DRAFTS:
        unknown.append(f"the memory of a draft of the kind '{draft}' is not worked out")
    return Settings(
        layout=layout,
        all_reduce=not asked.on("disable_custom_all_reduce"),
        warmed=asked.on("pre_warm_nccl") and tp > 1,
        replicas=replicas,
        groups=groups,
        fraction=asked.share("mem_fraction_static", fraction),
        requests=DRAFT_REQUESTS if requests is None and draft else requests,
        asked=requests is not None,
        tokens=asked.size("max_total_tokens"),
        context=asked.size("context_length") or shape.context,
        page=asked.at_least_one("page_size"),
        cache=_cache(shape, asked, blackwell),
        radix=radix,
        ratio=ratio,
        split=asked.share("mamba_full_memory_ratio", 0.9),
        slots=asked.size("max_mamba_cache_size"),
        ssm_bytes={"float32": 4, "bfloat16": 2, "float16": 2}.get(
            asked.text("mamba_ssm_dtype"), shape.linear.ssm_bytes if shape.linear else 4
        ),
        draft=draft,
        draft_tokens=_draft_tokens(shape, asked, draft),
        draft_named=bool(asked.text("speculative_draft_model_path") or asked.text("speculative_draft_model")),
        overlap=overlap,
        sliding=shape.architecture in rules.sliding and not asked.on("disable_hybrid_swa_memory"),
        sliding_ratio=asked.share("swa_full_tokens_ratio", 0.8),
        chunk=chunk,
        graphs=graphs,
        reserve=reserve,
        offload=asked.share("cpu_offload_gb", 0),
        unknown=tuple(unknown),
    )


def _cache(shape: Shape, asked: Asked, blackwell: bool) -> str:
    """0.5.11 model_executor/model_runner.py, configure_kv_cache_dtype, and server_args.py for sparse attention."""
    said = asked.text("kv_cache_dtype")
    if said in ("", "auto"):
        sparse = bool(shape.latent and shape.latent.index_heads)
        return "fp8" if shape.quantization.kv_cache_fp8 or (sparse and blackwell) else "full"
    return FORMATS.get(said, "full")


def _draft_tokens(shape: Shape, asked: Asked, draft: str) -> int:
    """0.5.11 server_args.py, auto_choose_speculative_params; a chain drafts one token less than it verifies."""
    given, steps = asked.size("speculative_num_draft_tokens"), asked.size("speculative_num_steps")
    if not draft:
        return 0
    if given:
        return given
    if steps and (asked.size("speculative_eagle_topk", 1) or 1) == 1:
        return steps + 1
    if draft == "NGRAM":
        return 12
    wide = shape.architecture in ("LlamaForCausalLM", "Grok1ForCausalLM") and draft != "STANDALONE"
    return 8 if wide else 4


def _slots(shape: Shape, asked: Asked, draft: str, rules: Rules) -> tuple[bool, bool, int]:
    """Return radix cache, overlap, and state slots for a request (model_executor/model_runner_kv_cache_mixin.py,
    _calculate_mamba_ratio; 0.5.23 mem_cache/kv_cache_configurator.py): 3, and 1 or 2 to copy states into."""
    radix = not asked.on("disable_radix_cache")
    overlap = not asked.on("disable_overlap_schedule") and (not draft or rules.draft_overlaps)
    if shape.linear is None:
        return radix, overlap, 1
    kind, strategy = shape.linear.kind, asked.text("mamba_radix_cache_strategy") or "auto"
    if kind == "kda" and rules.automatic_strategy == "no_buffer":
        radix = False
    if strategy == "auto":
        able = kind in ("gdn", "mamba2") or (kind == "kda" and rules.kda_extra_buffer)
        strategy = rules.automatic_strategy if able and overlap else "no_buffer"
    if strategy == "no_buffer" and draft and rules.no_buffer_draft == "radix off":
        radix = False
    if not radix:
        return False, overlap, 1
    if strategy == "no_buffer":
        return True, False, 3
    if strategy == "extra_buffer_lazy":
        return True, overlap, 4
    more = draft == "" if rules.extra_buffer_slots == "draft" else overlap
    return True, overlap, 5 if more else 4


def _fraction(
    shape: Shape, asked: Asked, layout: Layout, groups: int, smallest: float, draft: str, rules: Rules
) -> tuple[int, float, float, float]:
    """Return chunked_prefill_size, MiB for graphs, MiB for activations, and the default of mem_fraction_static.

    0.5.11 server_args.py, _handle_gpu_memory_settings; 0.5.23 arg_groups/memory_hook.py, handle_gpu_memory_settings.
    """
    _top, chunk, few, many = next(row for row in rules.classes if smallest < row[0])
    chunk = asked.size("chunked_prefill_size", chunk) or chunk
    batch = asked.size("cuda_graph_max_bs_decode")
    if batch is None:
        batch, requests = (few if layout.tp < 4 else many), asked.size("max_running_requests")
        batch = min(batch, requests) if rules.graphs_within_requests and requests else batch
    off = asked.on("disable_cuda_graph") or asked.text("cuda_graph_backend_decode") == "disabled"
    decode = batch * 2.0
    graphs = 0.0 if off else decode
    activations = 512 + 1.5 * max(chunk if chunk > 0 else asked.size("max_prefill_tokens", 16384) or 0, 2048)
    activations += 128 * layout.tp * layout.pp
    if groups > 1:
        activations += batch * groups * (4.5 if batch > 300 else 3)
    prefill = _prefill_graphs(shape, asked, layout, groups, chunk, rules)
    reserve = activations + prefill + (0 if off and rules.graphs_off_free else decode)
    if smallest > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if draft and draft != "NGRAM":
        reserve += rules.standalone_reserve if draft == "STANDALONE" else rules.draft_reserve
    fraction = round((smallest - reserve) / smallest, 3)
    rated = next((tower.rated for tower in shape.towers if tower.rated), None)
    if shape.multimodal and rated and not asked.on("language_only") and not asked.on("language_model_only"):
        layers, width = rated
        fraction *= 0.95 * max(0.8, min(1.05, 1 - 0.1 * (layers * width**2 / (24 * 1024**2) - 1)))
    return chunk, graphs + prefill, activations, fraction


def _prefill_graphs(shape: Shape, asked: Asked, layout: Layout, groups: int, chunk: int, rules: Rules) -> float:
    """Return MiB for graphs of the prefill; which rules switch them off is in server_args.py (0.5.11
    _handle_piecewise_cuda_graph, 0.5.14 _disable_tc_piecewise_cudagraph_if_incompatible) and, later,
    arg_groups/cuda_graph_hook.py."""
    backend, kind = asked.text("cuda_graph_backend_prefill"), rules.prefill_graphs
    modern = rules.version >= (0, 5, 14)  # the first with both phases in one setting
    latent = shape.latent is not None
    off = asked.on("disable_piecewise_cuda_graph") or asked.on("disable_prefill_cuda_graph") or backend == "disabled"
    off = off or (modern and asked.on("disable_cuda_graph"))
    if kind == "opt in":
        off = not asked.on("enable_piecewise_cuda_graph")
    elif not backend:
        off = off or (shape.multimodal and shape.architecture not in rules.vision_graphs) or layout.pp > 1
        off = off or asked.text("moe_a2a_backend") not in ("", "none")
        if kind == "piecewise":
            off = off or groups > 1 or asked.on("enable_torch_compile") or asked.on("enable_hierarchical_cache")
            off = off or shape.architecture == "Qwen3NextForCausalLM" or bool(latent and shape.latent.index_heads)  # type: ignore[union-attr]
        else:
            off = off or (rules.version < (0, 5, 17) and (latent or groups > 1))
    if off:
        return 0.0
    if latent:
        return 1536.0
    most = min(chunk if chunk > 0 else 2048, asked.size("max_total_tokens") or chunk)
    context = asked.size("context_length")
    most = min(most, context) if rules.prefill_within_context and context else most
    sizes = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
    )
    return 8.0 * len([size for size in (*sizes, *range(4608, most + 1, 512)) if size <= most])
