# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What real servers of SGLang 0.5.11 on an H200 reported, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.effective import Effective, effective
from conftest import schema_of

SCHEMA = schema_of("0.5.13")  # the options that are compared here are the same in 0.5.11


def info(**state: Any) -> dict[str, Any]:
    """A hybrid model with speculation and 24 state slots: resolved for 48 requests, with room for 4."""
    own = {
        "max_running_requests": 48,
        "max_mamba_cache_size": 24,
        "disable_chunked_prefix_cache": False,
        "page_size": 1,
    }
    scheduler = {
        "effective_max_running_requests_per_dp": 4,
        "max_running_requests": 48,
        "max_mamba_cache_size": 24,
        "disable_chunked_prefix_cache": True,
        "memory_usage": {"weight": 51.05, "kvcache": 45.97, "token_capacity": 753185, "graph": 0},
    }
    return {**own, "internal_states": [{**scheduler, **state}]}


def test_what_was_not_asked_for_is_told_and_no_difference() -> None:
    memory = {"weight": 51.05, "kvcache": 45.97, "graph": 0.0}
    assert effective({"max_mamba_cache_size": 24}, SCHEMA, info()) == Effective(1, (), 4, 753185, memory)


def test_the_memory_is_that_of_the_first_scheduler_as_far_as_it_tells() -> None:
    answer = {
        "internal_states": [{"memory_usage": {"weight": None, "kvcache": "1", "graph": 2}}, *info()["internal_states"]]
    }
    assert effective({}, SCHEMA, answer).memory == {"graph": 2.0}


def test_requests_that_the_memory_does_not_allow() -> None:
    found = effective({"max_running_requests": 48}, SCHEMA, info())
    assert found.differences == ("max_running_requests: requested 48, the memory that is left allows 4",)
    assert effective({"max_running_requests": 48}, SCHEMA, info(), {"max_running_requests": "known"}).differences == ()
    assert effective({"max_running_requests": 4}, SCHEMA, info(max_running_requests=4)).differences != ()  # 48 reported


def test_a_limit_of_several_schedulers_is_that_of_all() -> None:
    states = [{"effective_max_running_requests_per_dp": 2, "memory_usage": {"token_capacity": 100}}] * 3
    answer = {"max_running_requests": 8, "page_size": 16, "dp_size": 3, "internal_states": states}
    # 8 for three schedulers are 2 for each
    assert effective({"max_running_requests": 8}, SCHEMA, answer) == Effective(1, (), 6, 300, {})
    states = [{"effective_max_running_requests_per_dp": 1}] * 3
    (text,) = effective({"max_running_requests": 8}, SCHEMA, {**answer, "internal_states": states}).differences
    assert text.endswith("allows 1 for each scheduler")
    # without attention DP each of them takes them all since 0.5.22
    (text,) = effective({"max_running_requests": 8}, SCHEMA, {**answer, "attn_dp_size": 1}).differences
    assert text.endswith("allows 2 for each scheduler")


def test_tokens_are_a_limit_of_each_scheduler() -> None:
    answer = {"dp_size": 2, "internal_states": [{"memory_usage": {"token_capacity": n}} for n in (100000, 60000)]}
    (text,) = effective({"max_total_tokens": "100k"}, SCHEMA, answer).differences
    assert text.endswith("allows 60000 for each scheduler")
    answer["internal_states"][1]["memory_usage"]["token_capacity"] = 100000
    assert effective({"max_total_tokens": "100k"}, SCHEMA, answer).differences == ()


@pytest.mark.parametrize(
    ("args", "own", "state"),
    [
        ({"max_mamba_cache_size": 48}, {"max_mamba_cache_size": 48, "dp_size": 2}, {"max_mamba_cache_size": 24}),
        (
            {"speculative_num_steps": 3},
            {"speculative_num_steps": 3, "speculative_adaptive": True},
            {"speculative_num_steps": 1},
        ),
        (
            {"load_format": "auto_x"},
            {"load_format": "auto_x", "speculative_draft_load_format": "dummy"},
            {"load_format": "dummy"},
        ),
    ],
)
def test_what_a_scheduler_sets_for_itself_is_no_difference(
    args: dict[str, Any], own: dict[str, Any], state: dict[str, Any]
) -> None:
    assert effective(args, SCHEMA, {**own, "internal_states": [state]}).differences == ()


def test_tokens_are_rounded_to_pages() -> None:
    def found(capacity: int) -> tuple[str, ...]:
        answer = info(memory_usage={"token_capacity": capacity})
        return effective({"max_total_tokens": 4100}, SCHEMA, {**answer, "page_size": 16}).differences

    assert found(4096) == ()
    assert found(2048) == ("max_total_tokens: requested 4100, the memory that is left allows 2048",)


def test_what_a_scheduler_changed_is_a_difference() -> None:
    (text,) = effective({"disable_chunked_prefix_cache": False}, SCHEMA, info()).differences
    assert text == "disable_chunked_prefix_cache: requested False, the scheduler runs with True"
    answer = info()
    answer["internal_states"] = [{}, *answer["internal_states"]]
    (text,) = effective({"disable_chunked_prefix_cache": False}, SCHEMA, answer).differences
    assert text.endswith("scheduler 1 runs with True")


def test_what_the_server_itself_reports_comes_first() -> None:
    answer = {**info(), "disable_chunked_prefix_cache": True}
    (text,) = effective({"disable_chunked_prefix_cache": False}, SCHEMA, answer).differences
    assert text.endswith("the server reports True")


@pytest.mark.parametrize("states", [None, [], [None], ["x"], [{}], [{"memory_usage": None}], [{"memory_usage": []}]])
def test_an_answer_of_another_form_is_tolerated(states: Any) -> None:
    answer = {"max_running_requests": 8, "internal_states": states}
    args = {"max_running_requests": 8, "max_total_tokens": "32k"}
    assert effective(args, SCHEMA, answer) == Effective(1, (), None, None, {})
