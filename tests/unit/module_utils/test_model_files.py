# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.model_files import (
    is_model,
    processor_problem,
    quantization_problem,
    tokenizer_problem,
    weight_problems,
)


def safetensors(path: Path, sizes: tuple[int, ...] = (8, 4), first: int = 0) -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for number, size in enumerate(sizes, start=first):
        header[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}  # type: ignore[dict-item]
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def shards(folder: Path, count: int, index: bool) -> list[str]:
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    for number, name in enumerate(names):
        safetensors(folder / name, first=2 * number)
    if index:
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {f"t{2 * number}": name for number, name in enumerate(names)}})
        )
    return names


@pytest.mark.parametrize("index", [True, False])
def test_complete_weights_have_no_problem(tmp_path: Path, index: bool) -> None:
    shards(tmp_path, 3, index)
    assert weight_problems(tmp_path) == []


@pytest.mark.parametrize("index", [True, False])
def test_missing_files_are_named(tmp_path: Path, index: bool) -> None:
    names = shards(tmp_path, 6, index)
    for name in names[1:]:
        (tmp_path / name).unlink()
    (problem,) = weight_problems(tmp_path)
    assert "lacks 5 files" in problem and ", ".join(names[1:4]) in problem and names[4] not in problem


def test_a_shard_in_the_place_of_another_is_told(tmp_path: Path) -> None:
    first, second = shards(tmp_path, 2, True)
    (tmp_path / second).write_bytes((tmp_path / first).read_bytes())
    told = f"{tmp_path / second} is of another model or shard: it has t0, the index expects t2: fetch it again"
    assert weight_problems(tmp_path) == [told]


def test_files_of_an_index_alone_are_named(tmp_path: Path) -> None:
    for name in shards(tmp_path, 2, True):
        (tmp_path / name).unlink()
    (problem,) = weight_problems(tmp_path)
    assert "lacks 2 files" in problem and "model-00001-of-00002.safetensors" in problem


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (problem,) = weight_problems(tmp_path)
    assert "holds no weights" in problem and str(tmp_path) in problem


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-1], "has"),
        (lambda data: data + b"x", "has"),
        (lambda data: data[:5], "is cut off"),
        (lambda data: b"", "is cut off"),
        (lambda data: data[:8] + b"[" + data[9:], "damaged header"),
        (lambda data: struct.pack("<Q", 1 << 60) + data[8:], "is cut off"),
        (lambda data: b"<!DOCTYPE html><html>rate limited</html>", "is cut off or no safetensors"),
    ],
)
def test_a_damaged_file_is_found_by_its_header(tmp_path: Path, damage: Any, said: str) -> None:
    names = shards(tmp_path, 2, index=True)
    path = tmp_path / names[0]
    path.write_bytes(damage(path.read_bytes()))
    (problem,) = weight_problems(tmp_path)
    assert str(path) in problem and said in problem


@pytest.mark.parametrize("name", ["pytorch_model.bin.index.json", "consolidated.safetensors.index.json"])
def test_only_the_index_that_sglang_reads_counts(tmp_path: Path, name: str) -> None:
    shards(tmp_path, 2, index=True)
    (tmp_path / name).write_text(json.dumps({"weight_map": {"t": "pytorch_model-00001-of-00002.bin"}}))
    (tmp_path / "._model-00001-of-00002.safetensors").write_bytes(b"mac")
    (tmp_path / "consolidated-00001-of-00002.safetensors").write_bytes(b"")
    assert weight_problems(tmp_path) == []


@pytest.mark.parametrize("index", [True, False])
def test_a_link_to_nowhere_and_a_pipe_are_no_weights(tmp_path: Path, index: bool) -> None:
    names = shards(tmp_path, 2, index)
    (tmp_path / names[0]).unlink()
    (tmp_path / names[0]).symlink_to("gone")
    (tmp_path / names[1]).unlink()
    os.mkfifo(tmp_path / names[1])
    problems = weight_problems(tmp_path)
    assert len(problems) == 2 and all("link to nowhere" in problem for problem in problems)


def test_a_header_that_is_nested_without_end_is_damaged(tmp_path: Path) -> None:
    text = b"[" * 200_000
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (problem,) = weight_problems(tmp_path)
    assert "damaged header" in problem


@pytest.mark.parametrize(
    ("files", "model"), [(["config.json"], True), (["params.json"], True), (["m.gguf"], False), ([], False)]
)
def test_what_may_be_a_model(tmp_path: Path, files: list[str], model: bool) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert is_model(tmp_path) is model
    assert is_model(tmp_path / "m.gguf") is ("m.gguf" in files)


def test_a_model_of_more_than_text_needs_a_processor(tmp_path: Path) -> None:
    assert "preprocessor_config.json" in str(processor_problem(tmp_path))
    (tmp_path / "preprocessor_config.json").touch()
    assert processor_problem(tmp_path) is None


def test_other_formats_count_as_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert weight_problems(tmp_path) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt", "qwen.tiktoken", "tokenization_x.py"])
def test_a_tokenizer_has_a_vocabulary(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert str(tmp_path) in str(tokenizer_problem(tmp_path))
    (tmp_path / name).touch()
    assert tokenizer_problem(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "quantization", "wrong"),
    [
        ({}, "awq", True),
        ({}, "gptq_marlin", True),
        ({}, "fp8", False),  # SGLang can do it while loading
        ({}, None, False),
        ({"quantization_config": {"quant_method": "awq"}}, "awq", False),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "gptq", False),
        ({"text_config": {}}, "gptq", True),
    ],
)
def test_a_method_that_needs_a_quantized_checkpoint(
    tmp_path: Path, config: dict[str, Any], quantization: str | None, wrong: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bool(quantization_problem(tmp_path, quantization)) is wrong
