# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of a model as its config.json gives it; what is there and not understood is told, not guessed.

Keys are read, not names of models. A few kinds say by their name alone what others say by a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.layer_kinds import (
    BYTES,
    Experts,
    Latent,
    Linear,
    Reader,
    experts_of,
    feeds_of,
    latent_of,
    linear_of,
    mixers_of,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.quantization import Quantization, quantization

# In the order of SGLang (0.5.11 srt/utils/hf_transformers/common.py, CONTEXT_LENGTH_KEYS)
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups",
            "num_query_groups")  # fmt: skip
# Whose checkpoints have one layer for multi-token prediction that no key tells (configs/model_config.py,
# _config_draft_model)
ONE_DRAFT_LAYER = ("Qwen3NextForCausalLM",)
# Classes that have a head of their own whatever the configuration says (srt/models/)
OWN_HEAD = re.compile(
    r"(Afmoe|Arcee|Beam|Dbrx|Deepseek|Glm4Moe|Glm4MoeLite|GlmMoeDsa|GptOss|Grok1|HYV4|InternLM2|KimiLinear|Lfm2|Lfm2Moe"
    r"|LongcatFlash|Mellum|MiniMaxM2|Mixtral|QuantMixtral|Olmoe|Persimmon|Phi|Qwen2Moe|Qwen3Moe|Qwen3Next|StableLm|Xverse"
    r"|XverseMoe)ForCausalLM|ChatGLMModel|QWenLMHeadModel"
)
TEXTS = ("text_config", "llm_config", "language_config")
TOWERS = ("vision_config", "audio_config", "vision_tower_config", "sound_config", "vit_config")


@dataclass(frozen=True)
class Tower:
    """What encodes pictures or sound; `rated` are its layers and width as SGLang rates pictures by."""

    weights: int
    matrices: tuple[int, ...]  # weights of each of the large ones
    rated: tuple[int, int] | None


@dataclass(frozen=True)
class Stored:
    """Bytes of the weights as the files hold them, and how each part is divided (see model_weights)."""

    layers: tuple[tuple[tuple[str, float], ...], ...]
    embedding: float
    head: float
    rest: tuple[tuple[str, float], ...]
    draft: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)  # one is as good as another only if it is the same: a key of caches
class Shape:
    """A model; `mixers` and `feeds` have one entry for each layer (see layer_kinds)."""

    architecture: str
    model_type: str
    dtype: int  # bytes of a weight that is not quantized
    hidden: int
    vocabulary: int
    tied: bool
    context: int
    mixers: tuple[str, ...]
    feeds: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    sliding_heads: int
    sliding_kv_heads: int
    sliding_head_dim: int
    sliding_value_dim: int
    window: int
    intermediate: int
    gated_feed: bool
    gated_attention: bool
    biased: bool
    norms: int  # vectors of the hidden size in a layer
    latent: Latent | None
    linear: Linear | None
    experts: Experts | None
    towers: tuple[Tower, ...]
    multimodal: bool
    quantization: Quantization
    positions: int  # bytes of the table of rotary positions, which each GPU holds
    stretched: bool  # those of latent attention are, by YaRN
    draft_layers: int  # for multi-token prediction, in the same checkpoint
    nextn: int | None  # the same as 'num_nextn_predict_layers' says it, None without that key
    draft_vocabulary: int  # of an EAGLE3 draft
    unknown: tuple[str, ...]  # why figures are lower bounds
    stored: Stored | None = None

    @property
    def layers(self) -> int:
        return len(self.mixers)


def read_shape(path: Path) -> Shape:
    """Read a model's directory or its config.json; ValueError with one line if that is none."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} can not be read ({error.strerror}): name a model's directory") from error
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: fetch it again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no configuration of a model: name a model's directory")
    extra = file.parent / "hf_quant_config.json"
    if not config.get("quantization_config") and extra.is_file():
        try:
            apart = json.loads(extra.read_text(encoding="utf-8"))["quantization"]
            config["quantization_config"] = {"quant_method": "modelopt", **apart}
        except (OSError, ValueError, KeyError, TypeError):
            config["quantization_config"] = {"quant_method": "modelopt"}
    return shape_of(config)


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Describe a configuration; ValueError with one line if it is none of a language model."""
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):  # the part of an omni model that SGLang serves
        config = {**thinker, "architectures": config.get("architectures")}
    text = next((config[key] for key in TEXTS if isinstance(config.get(key), dict)), config)
    read = Reader(text)
    names = config.get("architectures") or read.any("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    model_type = str(read.any("model_type") or config.get("model_type") or "")
    blocks = read.any("layers_block_type", "hybrid_override_pattern")
    hidden, heads = (
        read.number("hidden_size", "n_embd", "d_model"),
        read.number("num_attention_heads", "n_head", "n_heads", "num_heads"),
    )
    count = read.number("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    count = len(blocks) if isinstance(blocks, (list, str)) else count
    vocabulary = read.number("vocab_size", "padded_vocab_size")
    if not (hidden and count and vocabulary):
        lacking = ", ".join(
            key
            for key, value in (("hidden_size", hidden), ("num_hidden_layers", count), ("vocab_size", vocabulary))
            if not value
        )
        raise ValueError(f"config.json has no {lacking}: it is no configuration of a language model that is understood")
    unknown: list[str] = []
    latent, linear, experts = latent_of(read, architecture, unknown), linear_of(read), experts_of(read)
    mixers, feeds = mixers_of(read, count, linear, unknown), feeds_of(read, count, experts)
    if not heads and not {"full", "sliding", "both"}.isdisjoint(mixers):
        unknown.append("config.json does not say how many attention heads there are")
    if not architecture and not model_type:
        unknown.append("config.json names no architecture")
    head_dim = read.number("head_dim", "attention_head_dim", "kv_channels") or (hidden // heads if heads else 0)
    kv_heads = read.number(*KV_HEADS, default=heads)
    value_dim = read.number("v_head_dim", default=head_dim)
    swa = [read.number("swa_num_key_value_heads"), read.number("swa_head_dim"), read.number("swa_v_head_dim")]
    other = read.any("attention_other_setting")  # of sliding layers (0.5.11 srt/models/step3p5.py)
    other = Reader(other if isinstance(other, dict) else {})
    apart = read.number("global_head_dim"), read.number("num_global_key_value_heads")
    if any(apart):  # Gemma 4 names its full layers apart (0.5.11 srt/utils/hf_transformers/config.py, get_config)
        swa = [kv_heads, head_dim, head_dim]
        head_dim, kv_heads, value_dim = apart[0] or head_dim, apart[1] or kv_heads, apart[0] or head_dim
    quant = quantization(config, text)
    unknown += quant.unknown
    towers = tuple(_tower(key, config[key], hidden, unknown) for key in TOWERS if isinstance(config.get(key), dict))
    sliding = read.number("sliding_window", "sliding_window_size", "attention_chunk_size")
    activation = str(read.any("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function"))
    context = read.number(*CONTEXT_KEYS, default=2048)
    nextn, rope = read.any("num_nextn_predict_layers"), read.any("rope_scaling", "rope_parameters")
    draft_layers = read.number("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
    draft_layers = draft_layers or int(architecture in ONE_DRAFT_LAYER)
    dtype = read.any("dtype", "torch_dtype") or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    shape = Shape(
        architecture=architecture,
        model_type=model_type,
        dtype=2
        if "float32" in str(dtype)
        else BYTES.get(str(dtype).rpartition(".")[2], 2),  # SGLang loads float32 as half
        hidden=hidden,
        vocabulary=vocabulary,
        tied=_tied(read, config, architecture, model_type, unknown),
        context=_scaled(context, rope, _turned_apart(read)),
        mixers=mixers,
        feeds=feeds,
        heads=heads,
        kv_heads=1 if read.any("multi_query") and not read.any("new_decoder_architecture") else kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        sliding_heads=read.number("swa_num_attention_heads") or other.number("num_attention_heads") or heads,
        sliding_kv_heads=swa[0] or other.number("num_attention_groups") or kv_heads,
        sliding_head_dim=swa[1] or head_dim,
        sliding_value_dim=swa[2] or swa[1] or value_dim,
        window=sliding,
        intermediate=_dense(read, model_type),
        gated_feed=activation not in ("relu2", "gelu_new", "relu") and model_type != "starcoder2",
        gated_attention=bool(read.any("attn_output_gate")) or model_type == "qwen3_next",
        biased=bool(read.any("attention_bias", "qkv_bias", "add_qkv_bias")) or model_type.startswith("qwen2"),
        norms=4 if model_type.startswith(("gemma2", "gemma3", "gemma4")) else 2,
        latent=latent,
        linear=linear,
        experts=experts,
        towers=towers,
        multimodal=bool(towers) and "ForCausalLM" not in architecture,
        quantization=quant,
        positions=_positions(read, context, latent.rope if latent else head_dim),
        stretched=latent is not None and isinstance(rope, dict) and "factor" in rope,
        draft_layers=draft_layers,
        nextn=nextn if isinstance(nextn, int) else None,
        draft_vocabulary=read.number("draft_vocab_size"),
        unknown=(),
    )
    unknown += [f"'{key}' of config.json is not understood" for key in read.unread()]
    return replace(shape, unknown=tuple(dict.fromkeys(unknown)))


def _dense(read: Reader, model_type: str) -> int:
    """The width of a dense feed; LFM2 takes two thirds of what its configuration says, in whole multiples
    (0.5.11 srt/models/lfm2.py, Lfm2MLP)."""
    width = read.number(
        "intermediate_size_mlp",
        "mlp_intermediate_size",
        "ffn_hidden_size",
        "block_ff_dim",
        "intermediate_size",
        "n_inner",
        "d_ff",
    )
    adjusted, factor = read.any("block_auto_adjust_ff_dim"), read.any("block_ffn_dim_multiplier")
    multiple = read.number("block_multiple_of", default=256)
    if model_type != "lfm2" or adjusted is False:
        return width
    width = int((factor if isinstance(factor, (int, float)) else 1) * int(2 * width / 3))
    return -(-width // multiple) * multiple


def _tied(read: Reader, config: Mapping[str, Any], architecture: str, model_type: str, unknown: list[str]) -> bool:
    said = read.any("tie_word_embeddings", "tie_embedding")
    said = config.get("tie_word_embeddings") if said is None else said
    if OWN_HEAD.fullmatch(architecture):
        return False
    if said is None and not model_type.startswith(("gemma", "cohere")):
        unknown.append("config.json does not say whether the embeddings are tied: they are counted as if they were")
    return said is None or bool(said)


def _scaled(context: int, rope: Any, apart: bool) -> int:
    """The context that SGLang derives (0.5.11 srt/utils/hf_transformers/common.py, get_context_length); it sees no
    factor where kinds of layers turn apart."""
    if (
        not isinstance(rope, dict)
        or apart
        or "original_max_position_embeddings" in rope
        or rope.get("rope_type") == "llama3"
    ):
        return context
    factor = rope.get("factor", 1)
    return int(context * factor) if isinstance(factor, (int, float)) and factor > 0 else context


def _turned_apart(read: Reader) -> bool:
    """Whether sliding layers have positions of their own."""
    rope = read.any("rope_scaling", "rope_parameters")
    return bool(read.any("rope_local_base_freq")) or (isinstance(rope, dict) and "sliding_attention" in rope)


def _positions(read: Reader, context: int, width: int) -> int:
    """Cosines and sines in float32 for each position (0.5.11 srt/layers/rotary_embedding/base.py, RotaryEmbedding);
    none where positions are not turned, two tables where sliding layers turn apart (srt/models/gemma3_causal.py)."""
    rope = read.any("rope_scaling", "rope_parameters")
    part = read.any("partial_rotary_factor") or (rope.get("partial_rotary_factor") if isinstance(rope, dict) else None)
    turned = isinstance(rope, dict) or read.any("rope_theta", "rope_pct") is not None
    if not turned or read.any("mla_use_nope") or read.any("position_embedding_type") == "nope":
        return 0
    if _turned_apart(read):
        return 2 * context * width * 4
    return int(_scaled(context, rope, False) * width * (part if isinstance(part, (int, float)) else 1)) * 4


def _tower(key: str, config: Mapping[str, Any], hidden: int, unknown: list[str]) -> Tower:
    """Count an encoder of transformer layers with its patches, positions and mergers into the text's width."""
    read = Reader(config)
    layers = read.number("depth", "num_hidden_layers", "num_layers", "encoder_layers", "layers", "n_layers")
    width = read.number("embed_dim") if read.number("embed_dim") and read.number("mlp_ratio") else 0
    width = width or read.number("hidden_size", "embed_dim", "d_model", "width", "vt_hidden_size")
    ratio = config.get("mlp_ratio")
    feed = read.number("intermediate_size", "encoder_ffn_dim", "vt_intermediate_size")
    feed = feed or int(width * (ratio if isinstance(ratio, (int, float)) else 4))
    matrices = 3 if str(read.any("hidden_act")) == "silu" else 2
    merge, patch = read.number("spatial_merge_size", default=1), read.number("patch_size")
    into = read.number("out_hidden_size", default=hidden)
    joined, stacks = width * merge * merge, 1 + len(read.any("deepstack_visual_indexes") or ())
    side = read.number("image_size") // patch if patch else 0
    weights = layers * (4 * width * width + matrices * width * feed + 9 * width + feed)
    weights += (
        read.number("in_channels", "in_chans", "num_channels", default=3)
        * patch
        * patch
        * width
        * (read.number("temporal_patch_size", default=1))
    )
    weights += (read.number("num_position_embeddings") or side * side) * width
    mergers = (joined * joined, joined * into) * stacks if merge > 1 else (width * into,)
    weights += sum(mergers)
    blocks = (3 * width * width, width * width, (matrices - 1) * width * feed, width * feed) * layers
    # SGLang reads these two keys only, with these values if one is missing (adjust_mem_fraction_for_vlm)
    rated = int(config.get("num_hidden_layers") or 24), int(config.get("hidden_size") or 1024)
    if not layers or not width:
        unknown.append(f"'{key}' of config.json is not understood: what it describes is not counted")
        weights, blocks, mergers = 0, (), ()
    return Tower(weights, (*blocks, *mergers), rated if key == "vision_config" else None)
