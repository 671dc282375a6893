# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exact sizes of a model's weights from the headers of its safetensors files; no weight is read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.model_files import HEADER_LIMIT, INDEX
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape, Stored, read_shape
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import (
    ATTENTION,
    DENSE,
    KEYS,
    SLIDING_KEYS,
    TENSOR,
    VISION,
    WHOLE,
    table_of,
)

LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
# The first that a name has decides; what has none is held whole
DIVIDED = (
    (
        re.compile(r"norm|e_score|\.gate\.|gate_inp|router|shared_expert_gate|q_a_proj|kv_a_proj|indexer|[fg]_a_proj"),
        WHOLE,
    ),
    (re.compile(r"\.experts\.|shared_expert"), TENSOR),
    (re.compile(r"(attn|attention)\.[kv]_proj\."), KEYS),
    (re.compile(r"attn|attention|mixer|mamba|\.conv\.|[qo]_proj"), ATTENTION),
    (re.compile(r"mlp|feed_forward|ffn|_proj"), DENSE),
)
SEEN = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|vit|multi_modal_projector|mm_projector|embed_vision)\.")
HALVES = ("F64", "F32", "F16", "BF16")  # loaded as the model's own type, except for what scales and states need
KEPT = re.compile(r"scale|A_log|dt_bias|e_score|zero|(^|\.)D$")


def read_model(path: Path) -> Shape:
    """Read a model's directory, with exact sizes if its files are there; ValueError as in read_shape."""
    shape = read_shape(path)
    folder = path if path.is_dir() else path.parent
    files = sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith((".", "consolidated")))
    told = _index(folder / INDEX)
    lacking = sorted(set(told.get("weight_map", {}).values()) - {file.name for file in files})
    if lacking or not files:
        return _checked(shape, folder, told) if told else shape
    try:
        stored = _stored(shape, [tensor for file in files for tensor in _tensors(file)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"the weights in {folder} can not be read ({error}): sizes are from config.json alone"
        return replace(shape, unknown=(*shape.unknown, why))
    return replace(shape, stored=stored)


def _index(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("weight_map"), dict) else {}


def _checked(shape: Shape, folder: Path, told: dict[str, Any]) -> Shape:
    """Without the files, an index still tells what all of them take."""
    total = told.get("metadata", {}).get("total_size") if isinstance(told.get("metadata"), dict) else None
    ends = shape.vocabulary * shape.hidden * shape.dtype * (1 if shape.tied else 2)
    towers = sum(tower.weights for tower in shape.towers) * shape.dtype
    planned = sum(size for layer in table_of(shape) for _how, size in layer) + ends + towers
    if not isinstance(total, (int, float)) or total <= planned * 1.25:
        return shape
    why = f"the index in {folder} tells of {total / 2**30:.1f} GiB, and config.json explains {planned / 2**30:.1f}"
    return replace(shape, unknown=(*shape.unknown, why))


def _tensors(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, type, number of elements and bytes of each tensor of a file."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= HEADER_LIMIT:
            raise ValueError(f"{path.name} is no safetensors file")
        header = json.loads(file.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            yield name, tensor["dtype"], prod(tensor["shape"]), last - first


def _stored(shape: Shape, tensors: list[tuple[str, str, int, int]]) -> Stored:
    layers: list[dict[str, float]] = [{} for _layer in range(shape.layers)]
    rest: dict[str, float] = {}
    draft: dict[str, float] = {}
    embedding = head = 0.0
    for name, kind, elements, size in tensors:
        size = elements * shape.dtype if kind in HALVES and not KEPT.search(name) else size
        found, seen = LAYER.search(name), SEEN.search(name)
        layer = int(found.group(1)) if found else -1
        drafted = not seen and (re.search(r"(^|\.)(mtp|nextn)\b", name) or layer >= shape.layers)
        if "lm_head" in name or name.endswith("embed_out.weight"):
            head += 0 if drafted else size
        elif re.search(r"embed_tokens|word_embeddings|wte|shared_head\.head", name) and not seen:
            embedding += 0 if drafted else size
        elif seen:
            rest[VISION] = rest.get(VISION, 0) + size
        else:
            how = next((how for words, how in DIVIDED if words.search(name)), WHOLE)
            mixer = shape.mixers[layer] if 0 <= layer < shape.layers else ""
            how = SLIDING_KEYS if how == KEYS and mixer == "sliding" else how
            into = draft if drafted else layers[layer] if mixer else rest
            into[how] = into.get(how, 0) + size
            if "kv_b_proj.weight" in name and shape.latent:  # kept a second time, see model_weights
                into[ATTENTION] = into.get(ATTENTION, 0) + (elements * shape.dtype if "scale" not in name else 0)
    items = tuple(tuple(sorted(one.items())) for one in layers)
    return Stored(
        items, embedding, 0.0 if shape.tied else head, tuple(sorted(rest.items())), tuple(sorted(draft.items()))
    )
