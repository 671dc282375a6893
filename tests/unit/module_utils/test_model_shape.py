# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What configurations of published models come to, and what is said about ones that are not understood."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.checkpoint_sizes import read_model
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import read_shape, shape_of
from ansible_collections.gpuops.sglang.plugins.module_utils.model_weights import (
    Layout,
    draft_on_gpu,
    on_stage,
    parameters,
    reserved,
    separate_draft,
)

DATA = Path(__file__).parents[1] / "fixtures" / "memory"
# What the publishers of the weights tell, with the shapes in their config.json
PUBLISHED: dict[str, Any] = json.loads((DATA / "published.json").read_text())
SMALL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 128,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 512, "rope_theta": 10000,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    shape = shape_of(PUBLISHED[name]["config"])
    assert shape.unknown == ()
    assert parameters(shape) == pytest.approx(PUBLISHED[name]["parameters"], rel=0.001)


def test_the_hybrid_with_its_draft_and_encoder() -> None:
    shape = read_shape(DATA / "qwen36-27b.json")
    assert shape.unknown == ()
    assert parameters(shape) == pytest.approx(27_356_728_560, rel=1e-5)  # counted in the instantiated model
    assert Counter(shape.mixers) == {"linear": 48, "full": 16}
    assert shape.multimodal
    loaded, kept = draft_on_gpu(shape, Layout())
    assert loaded / 2**30 == pytest.approx(5.53, abs=0.01)  # an H200's log
    assert kept / 2**30 == pytest.approx(0.79, abs=0.01)


@pytest.mark.parametrize(
    "name, kinds",
    [
        ("gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("gemma-3-27b", {"sliding": 52, "full": 10}),
        ("nemotron-h-8b", {"linear": 24, "none": 24, "full": 4}),
        ("kimi-linear", {"linear": 20, "full": 7}),
        ("falcon-h1-7b", {"both": 44}),
        ("llama4-scout", {"sliding": 36, "full": 12}),
        ("qwen3-next-80b", {"linear": 36, "full": 12}),
    ],
)
def test_kinds_of_layers(name: str, kinds: dict[str, int]) -> None:
    assert Counter(shape_of(PUBLISHED[name]["config"]).mixers) == kinds


def test_kinds_of_feeds() -> None:
    feeds = shape_of(PUBLISHED["deepseek-v3"]["config"]).feeds
    assert feeds == ("dense",) * 3 + ("moe",) * 58
    every_other = {**PUBLISHED["qwen3-30b-a3b"]["config"], "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert shape_of(every_other).feeds[:4] == ("dense", "dense", "dense", "moe")


@pytest.mark.parametrize(
    "changed, added",
    [
        # two thirds of 128, in multiples of 32
        (
            {"model_type": "lfm2", "block_ff_dim": 128, "intermediate_size": None, "block_multiple_of": 32},
            -2 * 3 * 64 * 32,
        ),
        ({"model_type": "lfm2", "block_auto_adjust_ff_dim": False}, 0),
        ({"intermediate_size": None, "ffn_hidden_size": [128, 128]}, 0),  # told for each layer
        ({"tie_word_embeddings": True}, -128 * 64),
        ({"tie_word_embeddings": True, "architectures": ["Lfm2ForCausalLM"]}, 0),  # has a head of its own
        ({"architectures": ["FalconH1ForCausalLM"]}, 128 * 64),  # a head of float32
        ({"tie_word_embeddings": True, "architectures": ["FalconH1ForCausalLM"]}, 0),
        (
            {
                "layer_types": ["full_attention", "sliding_attention"],
                "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
            },
            2 * 64 * 4 * 16,
        ),
    ],
)
def test_what_some_models_do_of_their_own(changed: dict[str, Any], added: int) -> None:
    """`added`: weights, of two bytes, of a model of two layers."""
    shape = shape_of({**SMALL, **changed})
    assert shape.unknown == ()
    assert on_stage(shape, Layout(), 0) - on_stage(shape_of(SMALL), Layout(), 0) == 2 * added


def test_memory_comes_in_pieces() -> None:
    """As torch's allocator takes it: from 10 MiB on in steps of 2 MiB, what is smaller from pieces of 20 MiB."""
    mib = 2**20
    assert reserved([10 * mib, 11 * mib]) == 22 * mib
    assert reserved([9 * mib, 9 * mib, 1.5 * mib]) == 20 * mib
    assert reserved([9 * mib] * 3) == 40 * mib
    assert reserved([mib / 4] * 3) == 0.75 * mib
    # 62 layers of Gemma 3: gate and up are 441 MiB each, down 220.5
    shape = shape_of({**PUBLISHED["gemma-3-27b"]["config"], "vision_config": None})
    taken, alone = on_stage(shape, Layout(), 0), parameters(shape) * 2 + shape.positions
    assert (taken - alone) / mib == pytest.approx(62 * 2.5, rel=0.1)


def test_experts_of_mxfp4_are_filled_up() -> None:
    """To a multiple of 64 on each GPU: 2880 on two GPUs are 1440, and take as much as 1472."""
    config = {**PUBLISHED["gpt-oss-20b"]["config"], "quantization_config": {"quant_method": "mxfp4"}}
    told, wider = shape_of(config), shape_of({**config, "intermediate_size": 2944})
    assert on_stage(told, Layout(2, 1, 2), 0) == pytest.approx(on_stage(wider, Layout(2, 1, 2), 0), rel=1e-4)
    assert on_stage(told, Layout(), 0) < 0.99 * on_stage(wider, Layout(), 0)


def test_what_parallelism_divides() -> None:
    shape = shape_of(PUBLISHED["llama31-8b"]["config"])
    one, two = on_stage(shape, Layout(), 0), on_stage(shape, Layout(2, 1, 2), 0)
    assert two == pytest.approx(one / 2, rel=0.01)
    # on 16 GPUs each holds one of 8 key-value heads whole, and the table of positions as always
    keys, table = 32 * 2 * 4096 * 1024 * 2, 131072 * 128 * 4
    more = on_stage(shape, Layout(16, 1, 16), 0) - one / 16
    assert more == pytest.approx(keys / 16 + table * 15 / 16, abs=26 * 2**20)  # small tensors share pieces of 20 MiB
    stages = [on_stage(shape, Layout(1, 3, 1), stage) for stage in range(3)]
    head = 128256 * 4096 * 2  # Llama has one on each stage
    assert sum(stages) == pytest.approx(one + 2 * (head + table), rel=0.01)
    assert stages[2] == stages[1] == pytest.approx(11 / 32 * 6.98e9 * 2 + table + head, rel=0.01)


def test_attention_dp_divides_attention_less() -> None:
    shape = shape_of(PUBLISHED["deepseek-v3"]["config"])
    assert on_stage(shape, Layout(8, 1, 1), 0) > 1.1 * on_stage(shape, Layout(8, 1, 8), 0)


@pytest.mark.parametrize(
    "described, width",
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 1.1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, 0.516),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}, 1.0),
    ],
)  # fmt: skip
def test_quantized_weights(described: dict[str, Any], width: float) -> None:
    config = PUBLISHED["llama31-8b"]["config"]
    plain, small = shape_of(config), shape_of({**config, "quantization_config": described})
    assert small.unknown == ()
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    saved = on_stage(plain, Layout(), 0) - on_stage(small, Layout(), 0)
    assert saved == pytest.approx(linear * (2 - width), rel=0.01)


def test_modules_that_are_not_quantized() -> None:
    config = PUBLISHED["llama31-8b"]["config"]
    described = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0", "re:.*self_attn.*", "*.31.mlp*"]}
    saved = on_stage(shape_of(config), Layout(), 0) - on_stage(
        shape_of({**config, "quantization_config": described}), Layout(), 0
    )
    assert saved == pytest.approx(30 * 3 * 4096 * 14336)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"quantization_config": {"quant_method": "quark"}}, "quantization 'quark' is not known"),
        ({"num_kv_shared_layers": 10}, "'num_kv_shared_layers' of config.json is not understood"),
        ({"layer_types": ["full_attention", "retention"]}, "layers of the kind 'retention' are not understood"),
        ({"tie_word_embeddings": None}, "whether the embeddings are tied"),
        ({"vision_config": {"model_type": "strange"}}, "'vision_config' of config.json is not understood"),
        ({"attn_config": {"kv_n_heads": 8}}, "'attn_config' of config.json is not understood"),
        ({"block_configs": [{"ffn": {"mult": 2}}]}, "'block_configs' of config.json is not understood"),
        ({"num_loops": 2}, "'num_loops' of config.json is not understood"),
        ({"kv_lora_rank": 512}, "how Qwen3ForCausalLM keeps keys and values of low rank"),
    ],
)
def test_what_is_not_understood_is_told(changed: dict[str, Any], said: str) -> None:
    (reason,) = shape_of({**SMALL, **changed}).unknown
    assert said in reason


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "bert"}', "null"])
def test_no_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json") as error:
        read_shape(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="can not be read"):
        read_shape(tmp_path / "other")


def test_a_quantization_told_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    )
    quant = read_shape(tmp_path).quantization
    assert (quant.width, quant.kv_cache_fp8) == (1.0, True)


def write_tensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    header, end = {}, 0
    for name, (kind, size, nbytes) in tensors.items():
        header[name] = {"dtype": kind, "shape": size, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)  # headers are read, never the tensors


def tensors_of(layers: int, kind: str = "BF16", size: int = 2) -> dict[str, tuple[str, list[int], int]]:
    shapes = {"model.embed_tokens.weight": [128, 64], "lm_head.weight": [128, 64], "model.norm.weight": [64]}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        shapes |= {
            start + "self_attn.q_proj.weight": [64, 64], start + "self_attn.k_proj.weight": [32, 64],
            start + "self_attn.v_proj.weight": [32, 64], start + "self_attn.o_proj.weight": [64, 64],
            start + "mlp.gate_proj.weight": [128, 64], start + "mlp.up_proj.weight": [128, 64],
            start + "mlp.down_proj.weight": [64, 128], start + "input_layernorm.weight": [64],
            start + "post_attention_layernorm.weight": [64],
        }  # fmt: skip
    return {name: (kind, shape, size * (shape[0] * (shape[1:] or [1])[0])) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind, size", [("BF16", 2), ("F32", 4)])
def test_files_and_configuration_agree(tmp_path: Path, kind: str, size: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    write_tensors(tmp_path / "model.safetensors", tensors_of(2, kind, size))
    read, computed = read_model(tmp_path), shape_of(SMALL)
    assert read.stored is not None
    for layout in (Layout(), Layout(2, 1, 2), Layout(4, 1, 4)):
        # the last norm alone is in no layer
        assert on_stage(read, layout, 0) == pytest.approx(on_stage(computed, layout, 0) + 128)


def test_layers_for_prediction_are_a_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "num_nextn_predict_layers": 1}))
    write_tensors(tmp_path / "model.safetensors", tensors_of(3))
    shape = read_model(tmp_path)
    loaded, kept = draft_on_gpu(shape, Layout())
    assert kept == 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 128)
    assert loaded == kept + 2 * 2 * 128 * 64
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    write_tensors(tmp_path / "model.safetensors", tensors_of(2))
    assert on_stage(shape, Layout(), 0) == on_stage(read_model(tmp_path), Layout(), 0)


def test_an_index_without_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    index = {"metadata": {"total_size": 10**9}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shape = read_model(tmp_path)
    assert shape.stored is None
    assert "tells of 0.9 GiB, and config.json explains 0.0" in shape.unknown[0]
    index["metadata"] = {"total_size": 200_000}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(tmp_path).unknown == ()


@pytest.mark.parametrize("content", [b"", b"12345678", struct.pack("<Q", 4) + b"[1]\n", struct.pack("<Q", 2) + b"{}"])
def test_files_that_are_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "model.safetensors").write_bytes(content)
    shape = read_model(tmp_path)
    if content.endswith(b"{}"):
        assert shape.stored is not None
    else:
        assert "can not be read" in shape.unknown[0]


def test_a_draft_of_its_own_shares_what_it_can() -> None:
    draft = shape_of(
        {**SMALL, "num_hidden_layers": 1, "draft_vocab_size": 32, "architectures": ["LlamaForCausalLMEagle3"]}
    )
    whole, kept = separate_draft(draft, Layout(), "STANDALONE")
    assert whole == kept == on_stage(draft, Layout(), 0)
    loaded, kept = separate_draft(draft, Layout(), "EAGLE")
    assert (loaded - whole, loaded - kept) == (2 * 2 * 64 * 64, 2 * 2 * 128 * 64)
    loaded, kept = separate_draft(draft, Layout(), "EAGLE3")
    assert loaded - kept == 2 * 128 * 64
    assert loaded - whole == 2 * (3 * 64 * 64 + 64 * (4 + 4) * 16) - 2 * 64 * (128 - 32)
