# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with the files of a model's directory; no weight is read, only the headers that name them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WEIGHTS = (".safetensors", ".bin", ".pt")  # that load_format auto takes
INDEX = "model.safetensors.index.json"  # the only one that SGLang reads
HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
# Quantization methods whose weights must have been quantized before; the others SGLang can apply while it loads.
PREPARED = ("auto-round", "awq", "awq_marlin", "compressed-tensors", "gptq", "gptq_marlin", "marlin", "moe_wna16",
            "qoq", "w4afp8")  # fmt: skip

# One of these holds the vocabulary. Without any, transformers makes a tokenizer with an empty one and says nothing.
VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "*.gguf", "*.py")


def is_model(path: Path) -> bool:
    """Tell whether `path` may be a model: a file (GGUF), a directory with a configuration, or hidden from root."""
    try:
        return path.is_file() or any((path / name).is_file() for name in ("config.json", "params.json"))
    except PermissionError:
        return True  # e.g. on a network file system that trusts no root; the service user is asked later


def weight_problems(folder: Path) -> list[str]:
    """Return one sentence for each thing that keeps the weights in `folder` from being loaded whole."""
    present = {path.name: path for path in folder.iterdir() if path.suffix in WEIGHTS and not path.name.startswith(".")}
    present.pop("training_args.bin", None)
    indexed = _indexed(folder / INDEX)
    if not present and not indexed:
        return [f"{folder} holds no weights ({', '.join(WEIGHTS)}): finish the download"]
    wanted = set(indexed) or {name for name in {*present, *_numbered(present)} if not name.startswith("consolidated")}
    problems = []
    missing = sorted(wanted - present.keys())
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        problems.append(f"{folder} lacks {len(missing)} files of its weights ({shown}): finish the download")
    for name in sorted(wanted & present.keys()):
        problem = None
        if name.endswith(".safetensors"):
            problem = _safetensors_problem(present[name], indexed.get(name, set()))
        if problem:
            problems.append(f"{present[name]} {problem}: fetch it again")
    return problems


def processor_problem(folder: Path) -> str | None:
    """Return a sentence if a model of more than text has nothing that says how to prepare pictures or sound."""
    if any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json", "params.json")):
        return None
    return f"{folder} has no preprocessor_config.json, which a model of more than text needs"


def tokenizer_problem(folder: Path) -> str | None:
    """Return a sentence if `folder` holds no vocabulary of a tokenizer, nor code that may bring one."""
    if any(next(folder.glob(pattern), None) for pattern in VOCABULARIES):
        return None
    return f"{folder} has no file of a tokenizer ({', '.join(VOCABULARIES[:4])}, ...)"


def quantization_problem(folder: Path, quantization: str | None) -> str | None:
    """Return a sentence if `quantization` needs a checkpoint that was quantized before and this one was not."""
    if quantization not in PREPARED:
        return None
    config = mapping(folder / "config.json")
    text = config.get("text_config")
    quantized = [config, text if isinstance(text, dict) else {}]
    if any(part.get(key) for part in quantized for key in ("quantization_config", "compression_config")):
        return None
    if list(folder.glob("*.gguf")) or list(folder.glob("*quant*config*.json")):
        return None
    return f"the weights in {folder} are not quantized, and {quantization} can not do it while loading"


def _indexed(index: Path) -> dict[str, set[str]]:
    """Return file -> its tensors."""
    weights = mapping(index).get("weight_map")
    files: dict[str, set[str]] = {}
    for tensor, file in weights.items() if isinstance(weights, dict) else ():
        files.setdefault(str(file), set()).add(tensor)
    return files


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Yield every name of a row like model-00001-of-00003.safetensors of which one is there."""
    for name in names:
        found = re.fullmatch(r"(.+-)(\d{5})(-of-)(\d{5})(\.\w+)", name)
        if found:
            head, _number, middle, count, ending = found.groups()
            yield from (f"{head}{number:05}{middle}{count}{ending}" for number in range(1, int(count) + 1))


def _safetensors_problem(path: Path, indexed: set[str]) -> str | None:
    """Compare the size of a file with its header: 8 bytes of the header's length, the header, the tensors.

    A header without any of the tensors that the index says are there is of another file.
    """
    if not path.is_file():
        return "is no file, or a link to nowhere"
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(HEADER_LIMIT, size - 8):
            return f"is cut off or no safetensors file ({size} bytes)"
        try:
            header = json.loads(file.read(length))
            tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
            end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return "has a damaged header"
    wanted = 8 + length + end
    if size != wanted:
        return f"has {size} of {wanted} bytes"
    if indexed and tensors and not indexed & tensors.keys():
        return f"is of another model or shard: it has {min(tensors)}, the index expects {min(indexed)}"
    return None


def mapping(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
