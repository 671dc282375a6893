# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes that are offered lead where they say, in the known cases and in generated ones."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Lever, Search, Wanted, levers
from ansible_collections.gpuops.sglang.plugins.module_utils.memory import plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import shape_of
from ansible_collections.gpuops.sglang.plugins.module_utils.proposal import propose
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import ARGS, EAGLE, HYBRID, MODELS, PUBLISHED, VERSIONS, pair, shape

H200 = [Gpu("NVIDIA H200", 143771, 143156)]


def changed(args: dict[str, Any], lever: Lever) -> dict[str, Any]:
    args = {**args, lever.option: lever.value}
    return {name: value for name, value in args.items() if value is not None}


def named(found: list[Lever]) -> dict[str, Any]:
    return {lever.option: lever.value for lever in found}


def test_the_known_pair_needs_fewer_requests_not_a_larger_fraction() -> None:
    args = {**EAGLE, "tp_size": 2, "mem_fraction_static": 0.85}
    found = levers(shape(HYBRID), args, pair(), "0.5.9")
    assert found[0].option == "max_running_requests"
    assert 30 <= found[0].value < 48
    assert str(found[0]).startswith("set 'max_running_requests' to ")
    assert "mem_fraction_static" not in named(found)


def test_copies_for_all_requests_that_were_asked_for() -> None:
    args = {**EAGLE, "mem_fraction_static": 0.42, "mamba-scheduler-strategy": "extra_buffer"}
    first, *_others = levers(shape(HYBRID), args, H200, "0.5.11")
    assert (first.option, first.value) == ("max_running_requests", 3)
    assert first.plan.effective_max_running_requests == 3


def test_slots_that_hold_requests_back() -> None:
    """24 slots were taken for 24 GB in a real launch; the lever keeps the operator's own spelling."""
    args = {
        **EAGLE, "mem_fraction_static": 0.92, "mamba-scheduler-strategy": "extra_buffer", "max-mamba-cache-size": 24,
        "max_running_requests": 48,
    }  # fmt: skip
    found = named(levers(shape(HYBRID), args, H200, "0.5.11"))
    assert found["max-mamba-cache-size"] >= 48 * 5
    assert "max_running_requests" not in found


def test_weights_that_do_not_fit_want_gpus_or_fewer_bytes() -> None:
    found = named(levers(shape(HYBRID), {"context_length": 32768}, [Gpu("NVIDIA RTX A6000", 49140)] * 4, "0.5.11"))
    assert found == {"tp_size": 2, "quantization": "fp8"}
    assert named(levers(shape(HYBRID), {}, [Gpu("NVIDIA RTX A6000", 49140)], "0.5.11")) == {"quantization": "fp8"}


def test_a_fraction_that_is_too_high_goes_down() -> None:
    args = {**EAGLE, "max_running_requests": 2, "mamba-scheduler-strategy": "extra_buffer", "mem_fraction_static": 0.95}
    found = named(levers(shape(HYBRID), args, [Gpu("RTX PRO 6000", 97887)], "0.5.13"))
    assert found["mem_fraction_static"] < 0.95


def test_a_context_that_is_wanted() -> None:
    card = [Gpu("NVIDIA RTX 4090", 24564)]
    assert plan(shape("qwen3-8b"), {}, card, "0.5.11").kv_tokens < 40960
    found = named(levers(shape("qwen3-8b"), {}, card, "0.5.11", Wanted(context=32768)))
    assert found["kv_cache_dtype"] == "fp8_e4m3"
    assert 0.8 < found["mem_fraction_static"] <= 0.95
    old = named(levers(shape("qwen3-8b"), {}, [Gpu("NVIDIA GeForce RTX 3090", 24576)], "0.5.11", Wanted(context=32768)))
    assert old["kv_cache_dtype"] == "fp8_e5m2"  # the other one is unknown to that generation


def test_nothing_is_offered_that_can_not_be_proved() -> None:
    strange = shape_of({**PUBLISHED["llama31-8b"]["config"], "num_kv_shared_layers": 3})
    assert levers(strange, {}, [Gpu("RTX 3060", 12288)], "0.5.11") == []
    assert propose(strange, H200, "0.5.11", 8192, 4) is None
    fits = levers(shape("qwen3-8b"), {}, H200, "0.5.11")
    assert fits == []
    assert levers(shape("qwen3-8b"), {}, H200, "0.5.11", Wanted(context=50000)) == []  # the model knows 40960


CASES = {
    "name": st.sampled_from(MODELS),
    "args": ARGS,
    "total": st.sampled_from([12282, 24564, 49140, 97887, 143771]),
    "version": st.sampled_from(VERSIONS),
    "count": st.sampled_from([1, 2, 4]),
}


@given(**CASES, concurrency=st.sampled_from([0, 0, 8, 64]), context=st.sampled_from([0, 0, 8192]))
@settings(max_examples=120, deadline=None)
def test_a_lever_planned_again_fits(
    name: str, args: dict[str, Any], total: int, version: str, count: int, concurrency: int, context: int
) -> None:
    args = {**args, **(EAGLE if args["speculative"] else {})}
    args.pop("speculative")
    gpus, wanted = [Gpu("card", total)] * count, Wanted(context, concurrency)
    for lever in levers(shape(name), args, gpus, version, wanted):
        again = plan(shape(name), changed(args, lever), gpus, version)
        assert again.fits
        assert again.effective_max_running_requests >= concurrency
        assert again.context >= context
        assert again.kv_tokens >= context
        assert again == lever.plan
        assert args.get(lever.option) != lever.value


@pytest.mark.parametrize(
    "name, cards, context, concurrency, used",
    [
        ("qwen3-8b", [Gpu("NVIDIA RTX 4090", 24564)] * 2, 32768, 4, 1),
        (HYBRID, [Gpu("NVIDIA RTX A6000", 49140)] * 4, 32768, 16, 2),
        ("deepseek-v3", [Gpu("NVIDIA H200", 143771)] * 8, 16384, 8, 8),
        ("gpt-oss-20b", [Gpu("NVIDIA RTX 4090", 24564)], 16384, 4, 1),
        ("qwen3-30b-a3b", [Gpu("NVIDIA L40S", 46068)] * 4, 40960, 32, 4),
    ],
)
def test_arguments_for_what_is_wanted(name: str, cards: list[Gpu], context: int, concurrency: int, used: int) -> None:
    found = propose(shape(name), cards, "0.5.11", context, concurrency)
    assert found is not None
    args, planned = found
    again = plan(shape(name), args, cards, "0.5.11")
    assert again == planned
    assert (again.fits, again.full_requests >= concurrency, again.context) == (True, True, context)
    assert args["tp_size"] == used


def test_what_can_not_be_had() -> None:
    assert propose(shape("deepseek-v3"), [Gpu("NVIDIA L40S", 46068)] * 8, "0.5.11", 4096, 1) is None
    assert propose(shape("qwen3-8b"), H200, "0.5.11", 10**6, 1) is None


def test_what_is_given_stays() -> None:
    found = propose(shape(HYBRID), [Gpu("NVIDIA RTX A6000", 49140)] * 4, "0.5.23", 32768, 8, {"tp": 4, **EAGLE})
    assert found is not None
    assert (found[0]["tp_size"], found[0]["speculative_algorithm"]) == (4, "EAGLE")


def test_what_was_measured_counts_for_changes_that_leave_it_as_it_is() -> None:
    measured = {"context": 1.5, "weights": 20.0, "graphs": 9.0}
    search = Search(shape("qwen3-8b"), {}, H200, "0.5.11", None, measured)

    def parts(**changes: Any) -> list[bool]:
        found = search.plan(**changes).gpus[0].parts
        return [found[name] == pytest.approx(size) for name, size in measured.items()]

    assert parts() == parts(mem_fraction_static=0.7) == [True, True, True]
    assert parts(cuda_graph_max_bs_decode=8) == parts(chunked_prefill_size=2048) == [True, True, False]
    assert parts(quantization="fp8") == [True, False, False]
