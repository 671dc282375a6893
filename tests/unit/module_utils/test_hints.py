# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hints against the recorded options of every release: what they name must exist there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import option_history
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import ArgumentProblem, to_argv
from ansible_collections.gpuops.sglang.plugins.module_utils.foreign_options import LLAMA_CPP, VLLM
from ansible_collections.gpuops.sglang.plugins.module_utils.hints import REPLACED, removed_option, unknown_option
from ansible_collections.gpuops.sglang.plugins.module_utils.options import canonical, names
from conftest import OPTION_HISTORY, releases, schema_of
from conftest import option_history as script

RECORDED = {line.split()[0] for line in option_history.TABLE.split("\n") if line}
NO_OPTIONS = {"gpus", "false"}


@pytest.mark.parametrize(
    ("version", "name", "sentence"),
    [
        # renamed, either way round
        ("0.5.23", "mamba_scheduler_strategy", ": it was renamed to 'mamba_radix_cache_strategy' in 0.5.14"),
        (
            "0.5.13",
            "mamba_radix_cache_strategy",
            ", which came in 0.5.14 for 'mamba_scheduler_strategy': write 'mamba_s",
        ),
        ("0.5.20", "cuda_graph_bs", ": it was renamed to 'cuda_graph_bs_decode' in 0.5.14"),
        ("0.5.20", "nsa_prefill_backend", ": it was renamed to 'dsa_prefill_backend' in 0.5.13"),
        # removed, with what does its job now
        (
            "0.5.23",
            "enable_prefill_context_parallel",
            ": it was removed in 0.5.20; see 'enable_prefill_cp', which does",
        ),
        (
            "0.5.20",
            "enforce_piecewise_cuda_graph",
            ": it was removed in 0.5.20; write 'cuda_graph_backend_prefill' with the value 'tc_piecewise'",
        ),
        ("0.5.23", "enforce_piecewise_cuda_graph", ": it was removed in 0.5.20; see 'cuda_graph_backend_prefill', "),
        ("0.5.23", "torchao_config", ": it was removed in 0.5.18; delete it"),
        ("0.5.9", "enable_deepep_moe", ": it was removed in 0.5.5; write 'moe_a2a_backend' with the value 'deepep'"),
        # newer than the release
        ("0.5.9", "attn_dp_size", ", it came in 0.5.22: delete it, or install another version"),
        ("0.5.9", "enable_deepep_waterfill", ", it came in 0.5.12 and went in 0.5.16: delete it, or install another"),
        # other servers
        ("0.5.9", "max_model_len", ": for this option of vLLM write 'context_length'"),
        ("0.5.23", "gpu_memory_utilization", ": for this option of vLLM write 'mem_fraction_static' (of weights and"),
        ("0.5.23", "max_num_seqs", ": for this option of vLLM write 'max_running_requests'"),
        ("0.5.23", "enforce_eager", ": for this option of vLLM write 'disable_cuda_graph'"),
        ("0.5.9", "cuda_graph_sizes", ": for this option of vLLM write 'cuda_graph_bs'"),
        ("0.5.23", "cuda_graph_sizes", ": for this option of vLLM write 'cuda_graph_bs_decode'"),
        ("0.5.23", "swap_space", ": this option of vLLM has no counterpart, SGLang computes a retracted request again"),
        ("0.5.5", "limit_mm_per_prompt", ": this is an option of vLLM; SGLang's counterpart, since 0.5.7, is not"),
        ("0.5.23", "n_ctx", ": for this option of llama.cpp write 'context_length' (of one request, "),
        ("0.5.23", "--ctx-size", ": for this option of llama.cpp write 'context_length' (of one request, "),
        ("0.5.23", "n_gpu_layers", ": this option of llama.cpp has no counterpart, SGLang keeps all layers"),
        # spelling
        ("0.5.23", "tp-size", ": write 'tp_size'"),
        ("0.5.23", "TP_SIZE", ": write 'tp_size'"),
        ("0.5.23", "context_len", ": it is short for 'context_length'; write the full name"),
        ("0.5.23", "tp", ": it is short for 'tp_size'; write the full name"),
        ("0.5.23", "tensor_parallel", ": it is short for 'tp_size'; write the full name"),
        ("0.5.23", "max_lora", ": it may be short for 'max_lora_chunk_size', 'max_lora_rank', 'max_loras_per_batch'; "),
        ("0.5.23", "max", ": see the options in schema.json of the release"),
        ("0.5.23", "no_lora_strict_loading", ": write 'lora_strict_loading' with the value false"),
        ("0.5.23", "contxt_length", "; did you mean 'context_length'?"),
    ],
)
def test_a_hint(version: str, name: str, sentence: str) -> None:
    assert unknown_option(name, schema_of(version)).startswith(f"SGLang {version} has no option '{name}'{sentence}")


def test_a_schema_without_its_version_has_hints_all_the_same() -> None:
    options = dict(schema_of("0.5.23"))
    assert "renamed to 'mamba_radix_cache_strategy'" in unknown_option("mamba_scheduler_strategy", options)
    assert unknown_option("torchao_config", options).startswith(
        "this SGLang has no option 'torchao_config', it came in"
    )


def test_a_counterpart_that_is_gone_gives_its_successor() -> None:
    later = {flag: option for flag, option in schema_of("0.5.23").items() if flag != "--disable-cuda-graph"}
    sentence = unknown_option("enforce_eager", later)
    assert sentence.endswith(": this is an option of vLLM; write 'cuda_graph_backend_decode' with the value 'disabled'")


def named(sentence: str, asked: str) -> set[str]:
    return set(re.findall(r"'(\w+)'", sentence)) - {asked, *NO_OPTIONS}


@pytest.mark.parametrize("version", releases())
def test_a_hint_names_what_the_release_has(version: str) -> None:
    schema = schema_of(version)
    values = {str(choice) for option in schema.values() for choice in option["choices"] or ()}
    for name in {*RECORDED, *REPLACED, *VLLM, *LLAMA_CPP} - set(names(schema)):
        sentence = unknown_option(name, schema)
        assert "schema.json" not in sentence
        assert "\n" not in sentence
        for other in named(sentence, name):
            assert canonical(other, schema) or other in values, sentence


def test_what_a_newer_version_has_is_said_with_the_version() -> None:
    first: dict[str, str] = {}
    for version in reversed(releases()):
        first.update(dict.fromkeys(names(schema_of(version)), version))
    for version in ("0.5.4", "0.5.9", "0.5.13", "0.5.20"):
        schema = schema_of(version)
        newer = list(releases())[list(releases()).index(version) + 1 :]
        for name in {name for name in RECORDED if first[name] in newer}:
            assert first[name] in unknown_option(name, schema)


def test_the_tables_have_names_of_sglang_only_where_it_has_them() -> None:
    assert not {*VLLM, *LLAMA_CPP} & RECORDED
    counterparts = {name for table in (VLLM, LLAMA_CPP) for found, _remark in table.values() for name in found}
    assert counterparts <= RECORDED
    assert {candidate.partition("=")[0] for found in REPLACED.values() for candidate in found} <= RECORDED
    assert set(REPLACED) <= RECORDED


def test_a_removed_option_that_is_still_read() -> None:
    assert removed_option("collect_tokens_histogram", schema_of("0.5.18")).endswith(
        ": see 'enable_metrics', which does its job"
    )
    assert removed_option("prefill_round_robin_balance", schema_of("0.5.18")).endswith("from this SGLang: delete it")


@pytest.mark.parametrize(
    ("version", "name", "value", "near"),
    [
        ("0.5.23", "attention_backend", "flashinfr", "flashinfer"),
        ("0.5.23", "dtype", "BFloat16", "bfloat16"),
        ("0.5.23", "mamba_radix_cache_strategy", "extra-buffer", "extra_buffer"),
        ("0.5.18", "mamba_scheduler_strategy", "extra_bufer", "extra_buffer"),  # its own parser lets it pass
    ],
)
def test_a_wrong_choice_has_the_nearest(version: str, name: str, value: Any, near: str) -> None:
    with pytest.raises(ArgumentProblem, match=f"'{name}' is '{value}'.*; did you mean '{near}'\\?$"):
        to_argv({name: value}, schema_of(version))
    assert to_argv({name: near}, schema_of(version))


def test_the_history_is_what_the_record_says() -> None:
    source = script().history_text(releases())
    assert (OPTION_HISTORY.parents[1] / "plugins/module_utils/option_history.py").read_text() == source
