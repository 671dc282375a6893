# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on reports as SGLang's releases give them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_judge import Judged, judge
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_probe import Report
from conftest import schema_of

BASE = {"device": "cuda", "tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1, "nnodes": 1}


def report(version: str = "0.5.23", **changed: Any) -> Report:
    whole: dict[str, Any] = {
        "version": version, "stage": "model", "error": None, "resolved": dict(BASE), "steps": [], "messages": [],
        "model": {}, "problems": {}, "unread": {},
    }  # fmt: skip
    whole["resolved"].update(changed.pop("resolved", {}))
    return Report(**{**whole, **changed})  # type: ignore[typeddict-item]


def judged(args: dict[str, Any], answer: Report, **more: Any) -> tuple[dict[str, Judged], list[str]]:
    rows, problems = judge(args, schema_of(answer["version"]), answer, more.pop("accepted", {}), **more)
    return {row.option: row for row in rows}, problems


def test_what_sglang_keeps_is_kept() -> None:
    rows, problems = judged({"context_length": "32k", "device": "cuda"}, report(resolved={"context_length": 32000}))
    assert {row.verdict for row in rows.values()} == {"kept"} and problems == []


def test_a_change_names_step_and_words_and_is_refused() -> None:
    answer = report(
        resolved={"page_size": 64},
        steps=[("_handle_a", {"page_size": 16}), ("_handle_b", {"page_size": 64, "x": 1}), ("_handle_c", {"x": 2})],
        messages=["page_size is forced to 64 for this backend.", "Something else."],
    )
    rows, problems = judged({"page_size": 1}, answer)
    row = rows["page_size"]
    assert (row.verdict, row.resolved, row.by) == ("changed", 64, "_handle_b")
    assert row.why == "page_size is forced to 64 for this backend."
    (problem,) = problems
    assert problem == (
        "SGLang 0.5.23 would change 'page_size' from 1 to 64 in _handle_b "
        '("page_size is forced to 64 for this backend."): delete it, which leaves it to SGLang, or accept it with a '
        "reason in sglang_server_accept_changes"
    )


def test_an_accepted_change_is_no_problem_and_keeps_its_reason() -> None:
    rows, problems = judged(
        {"page_size": 1}, report(resolved={"page_size": 64}), accepted={"page_size": "measured, no loss"}
    )
    assert problems == []
    assert (rows["page_size"].verdict, rows["page_size"].instead) == ("accepted", "measured, no loss")


def test_an_option_that_sglang_does_not_report_is_unknown() -> None:
    rows, problems = judged({"lora_paths": ["a=/srv/a"], "device": "cuda"}, report())
    assert rows["lora_paths"].verdict == "unknown" and problems == []


def test_sglangs_refusal_is_put_to_the_option_that_it_names() -> None:
    words = "ValueError: User-specified context_length (9000) is greater than the derived context_length (4096)."
    answer = Report(**{**report(stage="resolve", error=words), "resolved": {}})  # type: ignore[typeddict-item]
    rows, (problem,) = judged({"context_length": 9000, "tp_size": 1}, answer)
    assert rows["context_length"].verdict == "refused" and rows["tp_size"].verdict == "unknown"
    assert words in problem and "set 'context_length' to 4096 or less" in problem


@pytest.mark.parametrize(
    ("args", "resolved", "model", "said"),
    [
        ({"mem_fraction_static": 1.5}, {"mem_fraction_static": 1.5}, {}, "set it between 0 and 1"),
        ({"mem_fraction_static": 0}, {"mem_fraction_static": 0}, {}, "set it between 0 and 1"),
        ({"context_length": 0}, {"context_length": 0}, {}, "'context_length' is 0"),
        ({"max_running_requests": -1}, {"max_running_requests": -1}, {}, "'max_running_requests' is -1"),
        ({"tp_size": 3}, {"tp_size": 3}, {"attention_heads": 2, "key_value_heads": 1}, "set it to one of 1, 2"),
        ({"tp_size": 4}, {"tp_size": 4}, {"attention_heads": 24, "key_value_heads": 6}, "set it to one of 1, 2, 3, 6"),
        (
            {"tp_size": 8, "dp_size": 2},
            {"tp_size": 8, "dp_size": 2, "enable_dp_attention": True},
            {"attention_heads": 6, "key_value_heads": 6},
            "4 for attention",
        ),
        ({"ep_size": 3}, {"ep_size": 3, "tp_size": 3}, {"experts": 128}, "does not divide the model's 128 experts"),
        ({}, {"device": "cpu"}, {}, "would run on the CPU"),
    ],
)
def test_what_sglang_would_only_find_while_loading(
    args: dict[str, Any], resolved: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    rows, (problem,) = judged(args, report(resolved=resolved, model=model))
    assert said in problem
    assert all(row.verdict in ("refused", "kept") for row in rows.values())


@pytest.mark.parametrize(
    ("args", "resolved", "model"),
    [
        ({"tp_size": 4}, {"tp_size": 4}, {"attention_heads": 24, "key_value_heads": 2}),  # shared key-value heads
        (
            {"tp_size": 8, "dp_size": 8},
            {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True},
            {"attention_heads": 3},
        ),
        ({"ep_size": 2}, {"ep_size": 2, "ep_num_redundant_experts": 1}, {"experts": 127}),
        ({"device": "cpu"}, {"device": "cpu"}, {}),
        ({"device": "cpu", "tp_size": 3}, {"device": "cpu", "tp_size": 3}, {"attention_heads": 2}),  # it fills up
        ({"mem_fraction_static": 0.85}, {"mem_fraction_static": 0.85}, {}),
    ],
)
def test_what_is_all_right(args: dict[str, Any], resolved: dict[str, Any], model: dict[str, Any]) -> None:
    assert judged(args, report(resolved=resolved, model=model))[1] == []


@pytest.mark.parametrize(
    ("resolved", "gpus", "wrong"),
    [
        ({"tp_size": 4}, 2, True),
        ({"tp_size": 2}, 2, False),
        ({"tp_size": 2, "dp_size": 2}, 2, True),
        ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, 2, False),
        ({"tp_size": 4, "nnodes": 2}, 2, False),
        ({"tp_size": 4}, None, False),
        ({"tp_size": 4, "device": "cpu"}, 2, False),
        ({"tp_size": 2, "base_gpu_id": 1}, 2, True),
        ({"tp_size": 2, "gpu_id_step": 2}, 3, False),
        ({"tp_size": 2, "gpu_id_step": 2}, 2, True),
    ],
)
def test_more_ranks_than_gpus(resolved: dict[str, Any], gpus: int | None, wrong: bool) -> None:
    _rows, problems = judged({"tp_size": 4, "device": "cpu"}, report(resolved=resolved, model={"gpus": gpus}))
    assert any("ranks" in problem for problem in problems) is wrong


def test_a_variable_without_a_reader_has_a_near_name_or_is_to_be_deleted() -> None:
    unread = {"SGLANG_ENABLE_SPECV2": "SGLANG_ENABLE_SPEC_V2", "SGLANG_MADE_UP": ""}
    _rows, problems = judged({}, report(unread=unread))
    assert problems[0].startswith("SGLang 0.5.23 does not read the variable SGLANG_ENABLE_SPECV2: write SGLANG_ENABLE_")
    assert "delete it from 'env'" in problems[1]
    assert judged({}, report(unread=unread), accepted=dict.fromkeys(unread, "for the proxy"))[1] == []


@pytest.mark.parametrize(
    ("subject", "words", "option", "said"),
    [
        ("tokenizer", "OSError: Can't load tokenizer for '/srv/m'.", "tokenizer_path", "set 'tokenizer_path'"),
        ("architecture", "ValueError: Model architectures ['X'] are not supported for now.", "model", "newer SGLang"),
        ("chat_template", "it is neither a file nor", "chat_template", "correct"),
        ("cuda", "RuntimeError: torch finds no usable CUDA device", "device", "nvidia-smi"),
    ],
)
def test_what_the_start_would_need_is_tried(subject: str, words: str, option: str, said: str) -> None:
    rows, (problem,) = judged({option: "x", "tp_size": 1}, report(problems={subject: words}))
    assert words in problem and said in problem
    if option in rows:
        assert rows[option].verdict == "refused"


@pytest.mark.parametrize(
    ("version", "args", "resolved"),
    [
        ("0.5.23", {"speculative_algorithm": "NEXTN"}, {"speculative_algorithm": "EAGLE"}),
        ("0.5.23", {"tool_call_parser": "qwen25"}, {"tool_call_parser": "qwen"}),
        ("0.5.11", {"quantization": "unquant"}, {"quantization": None}),
        ("0.5.11", {"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "bfloat16"}),
        ("0.5.11", {"device": "cuda:0"}, {"device": "cuda"}),
        ("0.5.23", {"disaggregation_ib_device": "mlx5_0, mlx5_1"}, {"disaggregation_ib_device": "mlx5_0,mlx5_1"}),
        (
            "0.5.23",
            {"dp_size": 8, "enable_dp_attention": True, "tp_size": 8},
            {"dp_size": 1, "attn_dp_size": 8, "enable_dp_attention": True, "tp_size": 8},
        ),
    ],
)
def test_what_is_only_written_otherwise_is_kept(version: str, args: dict[str, Any], resolved: dict[str, Any]) -> None:
    rows, problems = judged(args, report(version, resolved=resolved))
    assert problems == []
    assert {row.verdict for row in rows.values()} == {"kept"}


def test_a_problem_is_put_to_the_name_that_was_written() -> None:
    rows, _problems = judged(
        {"tensor_parallel_size": 3}, report(resolved={"tp_size": 3}, model={"attention_heads": 2, "key_value_heads": 1})
    )
    assert rows["tensor_parallel_size"].verdict == "refused"
