# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of a model on one GPU: what tensor and pipeline parallelism divide, and what each GPU holds whole.

How parts are divided follows SGLang's models (0.5.11 srt/models/: llama.py, qwen3_5.py, deepseek_v2.py, kimi_linear.py,
gpt_oss.py, qwen3_vl.py, and srt/layers/attention/mamba/mamba.py). All sizes are bytes, as torch's allocator takes them
from the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ansible_collections.gpuops.sglang.plugins.module_utils.layer_kinds import Experts, Latent, Linear
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape
from ansible_collections.gpuops.sglang.plugins.module_utils.quantization import online

# How a part is divided: over the GPUs of attention; the same, but no key-value head in two; of groups of states, which
# are repeated where they do not divide; over all tensor parallel ones; the same, filled up; over those that dense feeds
# are not kept from; not at all; and what encodes pictures or sound.
ATTENTION, KEYS, SLIDING_KEYS, GROUPS, TENSOR, EXPERTS, DENSE, WHOLE, VISION = (
    "attention", "keys", "sliding keys", "groups", "tensor", "experts", "dense", "whole", "vision"
)  # fmt: skip
# Parts of one tensor, by the first of them
FUSED = {
    "self_attn.k_proj": "self_attn.q_proj", "self_attn.v_proj": "self_attn.q_proj",
    "self_attn.kv_a_proj_with_mqa": "self_attn.q_a_proj",
}  # fmt: skip
# Whose embeddings are whole on each GPU (srt/models/gemma3_causal.py, Gemma3TextScaledWordEmbedding)
WHOLE_EMBEDDING = re.compile(r"Gemma(3|3n|4|4Unified)For(CausalLM|ConditionalGeneration)")
# Which have a head on each pipeline stage, unless it is tied to the embeddings (srt/models/)
HEAD_ON_EACH_STAGE = re.compile(
    r"(Apertus|Arcee|BailingMoE|BailingMoe|BailingMoeV2|Beam|Exaone4|ExaoneMoE|ExaoneMoe|Glm4Moe|Glm4MoeLite|GptOss"
    r"|GraniteMoeHybrid|IQuestCoder|InternLM3|Llama|Llama4|Mellum|Ministral3|Mistral|Mixtral|OPT|Phi3|Qwen2Moe|Qwen3Moe"
    r"|SarvamMLA|SarvamMoE|TeleFLM)ForCausalLM"
)
MIB = 1 << 20
MXFP4_MULTIPLE = 64  # that the width of experts is filled up to (srt/layers/quantization/mxfp4.py, create_weights)
Table = tuple[tuple[tuple[str, float], ...], ...]  # for each layer: how divided, bytes


@dataclass(frozen=True)
class Layout:
    """How the GPUs share a model. `attention` is the tensor parallel size of attention (tp, over the groups of DP)."""

    tp: int = 1
    pp: int = 1
    attention: int = 1
    head_by_attention: bool = False  # enable_dp_lm_head
    whole_vision: bool = False  # mm_enable_dp_encoder
    whole_dense: bool = False  # moe_dense_tp_size 1


def stages(layers: int, pp: int) -> list[range]:
    """The layers of each pipeline stage (0.5.11 srt/distributed/utils.py, get_pp_indices): the last ones get more."""
    base, more = divmod(layers, pp)
    sizes = [base + (1 if stage >= pp - more else 0) for stage in range(pp)]
    return [range(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(pp)]


@lru_cache(maxsize=1024)
def on_stage(shape: Shape, layout: Layout, stage: int) -> float:
    """Return the bytes of the target's weights on one GPU of a pipeline stage."""
    own = stages(shape.layers, layout.pp)[stage]
    converted = shape.quantization.method == "mxfp4"  # the files do not have what the kernel reads
    table = shape.stored.layers if shape.stored and not converted else table_of(shape)
    total = float(shape.positions)
    total += sum(_share(shape, layout, how) * size for layer in own for how, size in table[layer])
    first, last = stage == 0, stage == layout.pp - 1
    head = _ends(shape)[1]
    if first:
        total += _embedding(shape, layout)
    if (last and not (shape.tied and first)) or (not shape.tied and HEAD_ON_EACH_STAGE.fullmatch(shape.architecture)):
        total += head / (layout.attention if layout.head_by_attention else layout.tp)
    rest = (
        shape.stored.rest
        if shape.stored
        else ((VISION, float(sum(tower.weights for tower in shape.towers) * shape.dtype)),)
    )
    total += sum(_share(shape, layout, how) * size for how, size in rest)
    return total + _unused(shape, layout, own)


def _unused(shape: Shape, layout: Layout, layers: Iterable[int]) -> float:
    """Return the bytes that the allocator takes for layers and encoders beyond their weights."""
    tensors = [size for layer in layers for size in _tensors(shape, layout, shape.mixers[layer], shape.feeds[layer])]
    each = shape.dtype * _share(shape, layout, VISION)
    encoding = [size * each for tower in shape.towers for size in tower.matrices]
    return reserved(tensors) - sum(tensors) + reserved(encoding) - sum(encoding)


@lru_cache(maxsize=1024)
def _tensors(shape: Shape, layout: Layout, mixer: str, feed: str) -> tuple[float, ...]:
    """Return the bytes of each tensor of a layer on one GPU, scales apart, with all of its modules quantized."""
    quant, sums = shape.quantization, dict[str, float]()
    for index, (name, how, size) in enumerate((*_mixer(shape, mixer), *_feed(shape, feed))):
        takes = quant.width and _linear(name) and not (quant.experts_only and ".experts." not in name)
        width = quant.width if takes and quant.width else shape.dtype
        weight = int(2 * width) / 2
        tensor = FUSED.get(name, name) if _linear(name) else f"{name} {index}"
        for part, each in ((tensor, weight), (f"{tensor} scale", width - weight)):
            sums[part] = sums.get(part, 0.0) + size * each * _share(shape, layout, how)
    return tuple(sums.values())


def reserved(tensors: Iterable[float]) -> float:
    """Return the bytes that torch takes from a GPU for tensors: from 10 MiB on a multiple of 2 MiB; those above 1 MiB
    share pieces of 20 MiB, the smallest share well (c10/cuda/CUDACachingAllocator.cpp, get_allocation_size)."""
    total, rooms = 0.0, list[float]()
    for size in tensors:
        if size <= MIB:
            total += size
        elif size >= 10 * MIB:
            total += -(-size // (2 * MIB)) * 2 * MIB
        else:
            room = min((room for room in rooms if room >= size), default=0.0)
            if room:
                rooms.remove(room)
            else:
                total, room = total + 20 * MIB, 20.0 * MIB
            if room - size > MIB:
                rooms.append(room - size)
    return total


@lru_cache(maxsize=1024)
def draft_on_gpu(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Return the bytes of the layers for multi-token prediction in the target's checkpoint: as they are loaded, with
    embeddings and head of their own, and after those of the target are shared (set_embed_and_head)."""
    head = _ends(shape)[1]
    ends = _embedding(shape, layout) + (0 if shape.tied else head / layout.tp)
    if shape.stored and shape.stored.draft:
        own = sum(_share(shape, layout, how) * size for how, size in shape.stored.draft)
    else:
        feed = "moe" if shape.experts and "moe" in shape.feeds else "dense"
        mixer = "sliding" if set(shape.mixers) == {"sliding"} else "full"
        rows = _sized(shape, -1, "full" if mixer != "sliding" else mixer, feed)
        one = sum(_share(shape, layout, how) * size for how, size in rows)
        own = shape.draft_layers * (one + 2 * shape.hidden * shape.hidden * shape.dtype)  # eh_proj, mtp.fc
    return own + ends, own


@lru_cache(maxsize=256)
def separate_draft(shape: Shape, layout: Layout, algorithm: str) -> tuple[float, float]:
    """Return the bytes of a draft model of its own: as loaded, and after sharing (not with STANDALONE).

    EAGLE3 keeps its head, of `draft_vocab_size`, and joins three states of the target; its attention takes two widths
    (0.5.11 srt/models/llama_eagle3.py); EAGLE joins two (llama_eagle.py).
    """
    whole = on_stage(shape, layout, 0)
    if algorithm == "STANDALONE" or shape.stored:
        shared = 0.0 if algorithm == "STANDALONE" else _embedding(shape, layout)
        return whole, whole - shared
    embedding, head = _embedding(shape, layout), _ends(shape)[1]
    square = shape.hidden * shape.hidden * shape.dtype
    if algorithm == "EAGLE3":
        wider = shape.hidden * shape.dtype * (shape.heads + 2 * shape.kv_heads) * shape.head_dim / layout.attention
        own_head = (shape.draft_vocabulary or shape.vocabulary) * shape.hidden * shape.dtype / layout.tp
        drafted = whole - (0 if shape.tied else head / layout.tp) + own_head + wider + 3 * square
        return drafted, drafted - embedding
    drafted = whole + 2 * square
    return drafted, drafted - embedding - (0 if shape.tied else head / layout.tp)


@lru_cache(maxsize=64)
def quantized(shape: Shape, method: str) -> Shape:
    """Return what `--quantization` makes of weights that are not quantized; sizes are then those of config.json."""
    return replace(shape, quantization=online(method), stored=None, unknown=(*shape.unknown, *online(method).unknown))


@lru_cache(maxsize=64)
def in_float32(shape: Shape) -> Shape:
    """Return what `--dtype float32` makes of a model; its cache has that type as well."""
    return replace(shape, dtype=4, stored=None)


@lru_cache(maxsize=64)
def table_of(shape: Shape) -> Table:
    return tuple(tuple(_sized(shape, layer, shape.mixers[layer], shape.feeds[layer])) for layer in range(shape.layers))


def parameters(shape: Shape) -> int:
    """Count the weights of the target, as if nothing were quantized and with no padding."""
    layers = sum(
        size
        for mixer, feed in zip(shape.mixers, shape.feeds)
        for name, _how, size in (*_mixer(shape, mixer), *_feed(shape, feed))
        if name != "copy"
    )
    ends = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return round(layers + ends + sum(tower.weights for tower in shape.towers))


def _ends(shape: Shape) -> tuple[float, float]:
    """Embeddings and head; the vocabulary is filled up to 64 (srt/layers/vocab_parallel_embedding.py). A head that is
    turned to float32 takes tied embeddings with it (srt/models/falcon_h1.py)."""
    size = float(-(-shape.vocabulary // 64) * 64 * shape.hidden * shape.dtype)
    embedding = shape.stored.embedding if shape.stored else size
    head = (shape.stored.head or shape.stored.embedding) if shape.stored else size
    wider = 4 / shape.dtype if shape.architecture == "FalconH1ForCausalLM" else 1
    return embedding * (wider if shape.tied else 1), head * wider


def _embedding(shape: Shape, layout: Layout) -> float:
    return _ends(shape)[0] / (1 if WHOLE_EMBEDDING.fullmatch(shape.architecture) else layout.attention)


def _share(shape: Shape, layout: Layout, how: str) -> float:
    if how == WHOLE:
        return 1.0
    if how == GROUPS and shape.linear and shape.linear.groups % layout.attention:
        return 1.0
    if how == VISION:
        return 1.0 if layout.whole_vision else 1 / layout.tp
    if how == EXPERTS and shape.experts and shape.quantization.method == "mxfp4":
        width = shape.experts.width
        return -(-width // (layout.tp * MXFP4_MULTIPLE)) * MXFP4_MULTIPLE / width
    if how in (TENSOR, EXPERTS):
        return 1 / layout.tp
    if how == DENSE:
        return 1.0 if layout.whole_dense else 1 / layout.tp
    heads = {KEYS: shape.kv_heads, SLIDING_KEYS: shape.sliding_kv_heads}.get(how, 0)
    return max(1, heads // layout.attention) / heads if heads else 1 / layout.attention


def _sized(shape: Shape, layer: int, mixer: str, feed: str) -> Iterator[tuple[str, float]]:
    """Yield how each part of a layer is divided, and its bytes as the checkpoint's quantization leaves them."""
    quant = shape.quantization
    sums: dict[str, float] = {}
    for name, how, size in (*_mixer(shape, mixer), *_feed(shape, feed)):
        linear = _linear(name)
        full = f"model.layers.{layer}.{name}" if layer >= 0 else f"mtp.layers.0.{name}"
        width = quant.width if linear and quant.width and quant.takes(full) else shape.dtype
        sums[how] = sums.get(how, 0.0) + size * (4 if name == "states" else width)
    yield from sums.items()


def _linear(name: str) -> bool:
    return name not in ("norms", "conv1d", "mlp.gate", "copy", "states")


def _mixer(shape: Shape, mixer: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, division and number of weights of what mixes tokens in a layer."""
    hidden = shape.hidden
    if mixer != "none":
        yield "norms", WHOLE, hidden * shape.norms / 2
    if mixer in ("linear", "both") and shape.linear:
        yield from _state(hidden, shape.linear)
    if mixer in ("linear", "none"):
        return
    if shape.latent and mixer != "sliding":
        yield from _latent(hidden, shape.heads, shape.latent)
        return
    sliding = mixer == "sliding"
    keys = shape.sliding_kv_heads if sliding else shape.kv_heads
    dim, value = (shape.sliding_head_dim, shape.sliding_value_dim) if sliding else (shape.head_dim, shape.value_dim)
    heads = shape.sliding_heads if sliding else shape.heads
    queries = heads * dim
    yield "self_attn.q_proj", ATTENTION, hidden * queries * (2 if shape.gated_attention else 1)
    yield "self_attn.k_proj", SLIDING_KEYS if sliding else KEYS, hidden * keys * dim
    yield "self_attn.v_proj", SLIDING_KEYS if sliding else KEYS, hidden * keys * value
    yield "self_attn.o_proj", ATTENTION, heads * value * hidden
    if shape.biased:
        yield "norms", ATTENTION, queries + keys * (dim + value)


def _latent(hidden: int, heads: int, latent: Latent) -> Iterator[tuple[str, str, float]]:
    """0.5.11 srt/models/deepseek_v2.py, DeepseekV2AttentionMLA; kv_b_proj is kept a second time, as w_kc and w_vc
    (srt/models/deepseek_common/deepseek_weight_loader.py, post_load_weights)."""
    queries = heads * (latent.nope + latent.rope)
    if latent.q_rank:
        yield "self_attn.q_a_proj", WHOLE, hidden * latent.q_rank
        yield "self_attn.q_b_proj", ATTENTION, latent.q_rank * queries
    else:
        yield "self_attn.q_proj", ATTENTION, hidden * queries
    up = latent.kv_rank * heads * (latent.nope + latent.value)
    yield "self_attn.kv_a_proj_with_mqa", WHOLE, hidden * (latent.kv_rank + latent.rope)
    yield "self_attn.kv_b_proj", ATTENTION, up
    yield "copy", ATTENTION, latent.kv_rank * heads * latent.nope
    yield "copy", ATTENTION, latent.kv_rank * heads * latent.value
    yield "self_attn.o_proj", ATTENTION, heads * latent.value * hidden
    if latent.index_heads:
        index = latent.index_heads * latent.index_dim
        yield "self_attn.indexer", WHOLE, latent.q_rank * index + hidden * (latent.index_dim + latent.index_heads)


def _state(hidden: int, linear: Linear) -> Iterator[tuple[str, str, float]]:
    inner = linear.heads * linear.head_dim
    if linear.kind == "conv":
        yield "conv.in_proj", ATTENTION, 3 * hidden * hidden
        yield "conv.out_proj", ATTENTION, hidden * hidden
        yield "conv1d", ATTENTION, hidden * linear.kernel
        return
    if linear.kind == "kda":
        yield "self_attn.q_proj", ATTENTION, 3 * hidden * inner
        yield "self_attn.o_proj", ATTENTION, hidden * inner
        yield "self_attn.b_proj", ATTENTION, hidden * linear.heads
        yield "self_attn.f_b_proj", ATTENTION, 2 * linear.head_dim * inner
        yield "self_attn.f_a_proj", WHOLE, 2 * hidden * linear.head_dim
        yield "states", ATTENTION, 3 * inner * linear.kernel + inner
        return
    mixed = inner + 2 * linear.groups * linear.state
    name = "linear_attn" if linear.kind == "gdn" else "mixer"
    if linear.kind == "gdn":
        yield f"{name}.in_proj", ATTENTION, hidden * (mixed + inner)
        yield f"{name}.in_proj_ba", ATTENTION, hidden * 2 * linear.heads
    else:
        yield f"{name}.in_proj", ATTENTION, hidden * (2 * inner + linear.heads)
        yield f"{name}.in_proj", GROUPS, hidden * 2 * linear.groups * linear.state
    yield f"{name}.out_proj", ATTENTION, inner * hidden
    yield "conv1d", ATTENTION, mixed * linear.kernel
    yield "states", ATTENTION, 3 * linear.heads


def _feed(shape: Shape, feed: str) -> Iterator[tuple[str, str, float]]:
    matrices, hidden = (3 if shape.gated_feed else 2), shape.hidden
    if feed != "none":
        yield "norms", WHOLE, hidden * shape.norms / 2
    if feed == "dense":
        yield "mlp.gate_proj", DENSE, (matrices - 1) * hidden * shape.intermediate
        yield "mlp.down_proj", DENSE, hidden * shape.intermediate
    elif feed == "moe" and shape.experts:
        yield from _experts(hidden, matrices, shape.experts)


def _experts(hidden: int, matrices: int, experts: Experts) -> Iterator[tuple[str, str, float]]:
    """Expert parallelism gives each GPU whole experts, tensor parallelism a part of each: the sum is the same."""
    yield "mlp.gate", WHOLE, hidden * experts.count
    yield "mlp.experts.0.gate_proj", EXPERTS, (matrices - 1) * hidden * experts.width * experts.count
    yield "mlp.experts.0.down_proj", EXPERTS, hidden * experts.width * experts.count
    if experts.biased:
        yield "norms", TENSOR, (matrices - 1) * experts.width * experts.count
        yield "norms", WHOLE, hidden * experts.count
    if experts.shared:
        yield "mlp.shared_experts.gate_proj", TENSOR, (matrices - 1) * hidden * experts.shared
        yield "mlp.shared_experts.down_proj", TENSOR, hidden * experts.shared
    if experts.gated:
        yield "mlp.gate", WHOLE, hidden
