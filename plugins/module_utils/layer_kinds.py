# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer of a model mixes tokens with and what feeds forward after it, as config.json describes it.

A mixer is full (each token keeps keys and values), sliding (the last tokens do), linear (a state of one size), both
(full and linear side by side) or none; a feed is dense, moe or none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BYTES = {"float64": 8, "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
KINDS = {
    "full_attention": "full", "attention": "full", "*": "full", "sliding_attention": "sliding",
    "chunked_attention": "sliding", "linear_attention": "linear", "mamba": "linear", "mamba2": "linear", "M": "linear",
    "conv": "linear", "kda": "linear", "mlp": "none", "-": "none", "moe": "none", "E": "none",
}  # fmt: skip
# Keys with numbers that change no size counted here; another one that looks like a size makes the reading uncertain.
SIZELESS = re.compile(
    r"token|_id$|_ids$|index|layers_to_transform|theta|factor|dropout|range|coef|limit|scal|multiplier|cap|window_layers"
    r"|version|topk|top_k|per_tok|chunk|beam|return_seq|n_group$|pretraining_tp|rotary|initial_context|logits"
    r"|original_max|freq|nextn|layer_offset|layer_period|expert_offset|kernel_size|ep_size|image|video|num_labels|section"
    r"|max_position|num_experts_per|moe_router|position_embeddings|layer_norm_eps|use_|pad_|no_rope|anyres|media|vocab"
    r"|task_|temperature"
)
SIZES = re.compile(
    r"layer|head|dim|hidden|intermediate|expert|rank|state|kernel|block|group|width|depth|size|num_|^n_|loop|attn|ffn|config"
)
# What is read elsewhere
READ_APART = re.compile(
    r"quantization_config|compression_config|eagle_config|(text|llm|language|vision|audio|tower|sound|vit)_config$"
)
# Architectures that SGLang gives a cache of latents (configs/model_config.py, _derive_model_shapes)
LATENT = re.compile(
    r"(Eagle3)?(DeepseekV2|DeepseekV3|DeepseekV32|DeepseekV4|DeepseekVL2|Glm4MoeLite|GlmMoeDsa|HYV4|DotsVLM|MistralLarge3"
    r"|GigaChat35|MiniCPM3|KimiLinear|SarvamMLA|BailingMoeV2_5|BailingMoeV3|LongcatFlash)ForCausalLM(NextN|Eagle)?"
    r"|(Pixtral|KimiK25|KimiVL|KimiK3)ForConditionalGeneration"
)


class Reader:
    """Reads keys of a configuration, and knows which it was never asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.asked: set[str] = set()

    def any(self, *keys: str) -> Any:
        self.asked.update(keys)
        return next((self.config[key] for key in keys if self.config.get(key) is not None), None)

    def number(self, *keys: str, default: int = 0) -> int:
        value = self.any(*keys)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]  # the same for each layer
        return int(value) if isinstance(value, (int, float)) and value > 0 else default

    def unread(self) -> list[str]:
        """Return keys of counts that look like sizes and that nobody asked for."""
        return sorted(
            key
            for key, value in self.config.items()
            if key not in self.asked
            and _counts(value)
            and SIZES.search(key)
            and not SIZELESS.search(key)
            and not READ_APART.search(key)
        )


def _counts(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(_counts(one) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


@dataclass(frozen=True)
class Latent:
    """Latent attention (MLA): a token keeps `kv_rank` + `rope` values, for all heads together."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    index_heads: int = 0  # of the sparse indexer (DSA), if there is one
    index_dim: int = 0


@dataclass(frozen=True)
class Linear:
    """A mixer with a state of one size: gdn, mamba2, kda, or conv, which keeps only the last inputs."""

    kind: str
    heads: int
    head_dim: int
    groups: int  # key heads
    state: int  # width of a key
    kernel: int
    ssm_bytes: int


@dataclass(frozen=True)
class Experts:
    """A feed of experts; `shared` is the width of those that every token takes, together."""

    count: int
    width: int
    shared: int
    gated: bool  # the shared ones have a gate
    biased: bool


def latent_of(read: Reader, architecture: str, unknown: list[str]) -> Latent | None:
    ranks = [read.number(key) for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")]
    sparse = [read.number(key) for key in ("index_n_heads", "index_head_dim")]
    read.any("qk_head_dim")
    if not ranks[1] or read.any("use_mla") is False:
        return None
    if architecture and not LATENT.fullmatch(architecture):
        unknown.append(f"how {architecture} keeps keys and values of low rank is not understood")
    q_rank, kv_rank, nope, rope = ranks
    return Latent(q_rank, kv_rank, nope, rope, read.number("v_head_dim"), *sparse)


def linear_of(read: Reader) -> Linear | None:
    """The state as SGLang's own configurations make it (0.5.11 srt/configs/: qwen3_next.py, nemotron_h.py,
    falcon_h1.py, granitemoehybrid.py, kimi_linear.py, lfm2.py; state types: mamba_utils.py, mamba2_state_dtype)."""
    ssm = BYTES.get(str(read.any("mamba_ssm_dtype")), 4)
    kda = read.any("linear_attn_config")
    if isinstance(kda, dict) and {"num_heads", "head_dim"} <= kda.keys():
        heads, dim = int(kda["num_heads"]), int(kda["head_dim"])
        return Linear("kda", heads, dim, heads, dim, int(kda.get("short_conv_kernel_size", 4)), ssm)
    gdn = [
        read.number(f"linear_{key}") for key in ("num_value_heads", "value_head_dim", "num_key_heads", "key_head_dim")
    ]
    kernel = read.number("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "d_conv", default=4)
    if all(gdn):
        return Linear("gdn", gdn[0], gdn[1], gdn[2], gdn[3], kernel, ssm)
    heads, state = read.number("mamba_num_heads", "mamba_n_heads"), read.number("ssm_state_size", "mamba_d_state")
    head_dim, groups = (
        read.number("mamba_head_dim", "mamba_d_head"),
        read.number("n_groups", "mamba_n_groups", default=1),
    )
    width = read.number("mamba_d_ssm") or read.number("expand", "mamba_expand") * read.number("hidden_size")
    if heads and state and (head_dim or width):
        return Linear("mamba2", heads, head_dim or width // heads, groups, state, kernel, ssm)
    if read.number("conv_L_cache"):
        read.any("conv_dim", "conv_dim_out", "block_dim")
        return Linear("conv", 1, read.number("hidden_size"), 0, 0, read.number("conv_L_cache"), ssm)
    return None


def experts_of(read: Reader) -> Experts | None:
    count = read.number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    width = read.number("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
    shared = read.number(
        "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim", "share_expert_dims"
    )
    one = read.number("moe_shared_expert_intermediate_size")
    several = read.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    if count < 2:
        return None
    width = width or read.number("intermediate_size")
    if read.any("model_type") == "llama4_text":  # one shared expert, which no key tells
        shared = shared or width
    gated = shared > 0 and str(read.any("model_type")).startswith(("qwen2_moe", "qwen3_next", "qwen3_5_moe"))
    return Experts(count, width, shared or several * (one or width), gated, read.any("model_type") == "gpt_oss")


def mixers_of(read: Reader, count: int, linear: Linear | None, unknown: list[str]) -> tuple[str, ...]:
    kinds = read.any("layers_block_type", "hybrid_override_pattern", "layer_types")
    interval, chunk = read.number("full_attention_interval"), read.number("attention_chunk_size")
    pattern, windows = (
        read.any("hybrid_layer_pattern"),
        read.number("sliding_window_pattern", "_sliding_window_pattern"),
    )
    kda, full_ids = read.any("linear_attn_config"), read.any("full_attn_idxs")
    every: Sequence[int] = range(count)
    if read.number("mamba_d_ssm"):  # Falcon-H1: attention and state side by side
        return ("both",) * count
    if isinstance(kinds, (list, str)) and len(kinds) >= count:
        strange = sorted({str(kind) for kind in kinds} - KINDS.keys())
        unknown += [f"layers of the kind '{kind}' are not understood" for kind in strange]
        return tuple(KINDS.get(str(kind), "full") for kind in kinds[:count])
    if isinstance(kda, dict) and isinstance(kda.get("kda_layers"), list):
        return tuple("linear" if layer + 1 in kda["kda_layers"] else "full" for layer in every)  # counted from 1
    if linear and interval:
        return tuple("linear" if (layer + 1) % interval else "full" for layer in every)
    if isinstance(pattern, list) and len(pattern) >= count:
        return tuple("sliding" if pattern[layer] == 1 else "full" for layer in every)
    if linear and isinstance(full_ids, list):
        return tuple("full" if layer in full_ids else "linear" for layer in every)
    if linear:
        unknown.append("config.json does not say which layers have attention and which a state")
    if chunk:
        return tuple("sliding" if (layer + 1) % 4 else "full" for layer in every)
    if windows > 1 and read.number("sliding_window"):
        return tuple("sliding" if (layer + 1) % windows else "full" for layer in every)
    return ("full",) * count


def feeds_of(read: Reader, count: int, experts: Experts | None) -> tuple[str, ...]:
    kinds = read.any("layers_block_type", "hybrid_override_pattern")
    if isinstance(kinds, (list, str)) and len(kinds) >= count and not {"mlp", "-", "moe", "E"}.isdisjoint(kinds):
        return tuple({"mlp": "dense", "-": "dense", "moe": "moe", "E": "moe"}.get(str(kind), "none") for kind in kinds)
    dense, step = (
        read.number("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
        read.number("decoder_sparse_step", default=1),
    )
    step = read.number("interleave_moe_layer_step", "moe_layer_interval", default=step)
    only = read.any("mlp_only_layers") or ()
    listed = read.any("moe_layers", "moe_layers_enum")
    kinds, freq = read.any("mlp_layer_types"), read.any("moe_layer_freq")
    if not experts:
        return ("dense",) * count

    def sparse(layer: int) -> bool:
        if isinstance(kinds, list) and layer < len(kinds):
            return str(kinds[layer]) in ("sparse", "moe")
        if isinstance(listed, str):
            return str(layer) in listed.split(",")
        if isinstance(listed, list) and listed:
            return layer in listed
        if isinstance(freq, list) and layer < len(freq):
            return bool(freq[layer])
        often = freq if isinstance(freq, int) and freq > 1 else 0
        return layer >= dense and layer not in only and (layer % often == 0 if often else (layer + 1) % step == 0)

    return tuple("moe" if sparse(layer) else "dense" for layer in range(count))
