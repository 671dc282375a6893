# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans against runs of SGLang on a real H200, against the cases that are known, and against themselves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.memory import plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import CONTEXT_MIB, LATE_MIB, Gpu, Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import CHANGES, rules_of
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import number
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape, read_shape, shape_of
from conftest import option_words
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).parents[1] / "fixtures" / "memory"
PUBLISHED: dict[str, Any] = json.loads((DATA / "published.json").read_text())
RUNS = {
    f"{file.stem}-{name}": (recorded, run)
    for file in sorted([DATA / "runs.json", *DATA.glob("recorded-*.json")])
    for recorded in [json.loads(file.read_text())]
    for name, run in recorded["runs"].items()
    if run.get("error_kind") != "other"  # SGLang refuses the draft's context, or triton the layers
}
# Digits of the log, and what the first kernels take more of with experts: GiB
LOGGED = 0.03
HYBRID = "qwen36-27b"
EAGLE = {
    "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4, "context_length": 8192,
}  # fmt: skip
VERSIONS = [f"0.5.{patch}" for patch in range(9, 24)]


@cache
def shape(name: str) -> Shape:
    return shape_of(PUBLISHED[name]["config"]) if name in PUBLISHED else read_shape(DATA / f"{name}.json")


def free(gib: float) -> float:
    """What nvidia-smi would tell of a card on which SGLang finds `gib` free before it loads."""
    return gib * 1024 + CONTEXT_MIB


def budget(card: Gpu, found: Plan) -> float:
    """Bytes of the fraction that weights leave."""
    late = LATE_MIB / 1024 if len(found.gpus) == 1 else 0
    before = card.free - found.gpus[0].parts["context"] + late
    return (before * found.fraction - found.weights_gib - late) * 2**30


def pair() -> list[Gpu]:
    """47.4 GiB are free before loading, with `context` of PAIR."""
    return [Gpu("NVIDIA RTX A6000", 49140, 47.9 * 1024)] * 2


PAIR = {"context": 0.5, "weights": 25.9}


def planned_run(recorded: dict[str, Any], run: dict[str, Any]) -> tuple[Plan, Shape]:
    """Plan a run from its command line, and what nvidia-smi or else its log says was free before."""
    args = option_words(run["args"])
    named = {name: shape_of(config) for name, config in recorded.get("models", {}).items()}
    model = named.get(run["model"]) or shape(run["model"])
    before = recorded.get("memory_free_mib") or free(run["avail_before_weights_gib"])
    gpus = [Gpu(recorded["gpu"], recorded["memory_total_mib"], before)] * recorded.get("gpu_count", 1)
    draft = named.get(args.get("speculative-draft-model-path", ""))
    version = run.get("version") or recorded["sglang"]
    return plan(model, args, gpus, version, draft), model


@pytest.mark.parametrize("name", RUNS)
def test_runs_on_a_real_gpu(name: str) -> None:
    recorded, run = RUNS[name]
    found, model = planned_run(recorded, run)
    parts, slots = found.gpus[0].parts, [int(line.split(":")[1].split(",")[0]) for line in run["mamba"]]
    # what the conversion of mxfp4 leaves in pieces is not worked out
    pieces = model.quantization.method == "mxfp4"
    near = 0.015 if pieces else 0.005
    assert found.unknown == ()
    ranks = list(run.get("ranks", {0: run}).values())
    assert len(found.gpus) == len(ranks)
    for one, rank in zip(found.gpus, ranks):
        assert one.parts["weights"] == pytest.approx(rank["weights"][0]["usage_gib"], rel=0.1 if pieces else 0.007)
        before = one.total - one.parts["others"] - one.parts["context"]
        assert before == pytest.approx(rank["avail_before_weights_gib"], abs=LOGGED)
    if "mem_fraction_static" in run:
        assert found.fraction == pytest.approx(run["mem_fraction_static"])
    digits = int(LOGGED * slots[0] / parts["state"]) if slots else 0
    if slots:
        assert found.state_slots == pytest.approx(slots[0], abs=digits)
    if not run["fired_up"]:
        assert found.fits is False
        stage = run.get("error_stage", "pools")
        assert found.failing_stage in (("draft",) if "draft" in stage else ("state", "verify", "cache"))
        return
    assert found.fits
    # SGLang tells those of one scheduler
    requests = run["capacity"]["max_running_requests"] * found.schedulers
    assert found.effective_max_running_requests == pytest.approx(requests, abs=digits)
    tokens, sliding = run["capacity"]["max_total_num_tokens"], run["kv"][0]["tokens"] if run.get("swa") else 0
    unit = LOGGED * tokens / parts["cache"]
    assert found.kv_tokens == pytest.approx(tokens, rel=near, abs=unit)
    assert found.sliding_tokens == pytest.approx(sliding, rel=near)
    # what the log says is left once the target's pools are there, with a draft that is loaded before or after them
    used = sum(parts[part] for part in ("weights", "state", "verify", "requests", "cache"))
    used += sum(one["usage_gib"] for one in run["weights"][1:]) if rules_of(found.version).draft_in_fraction else 0
    left = run["avail_before_weights_gib"] - used
    for logged in run.get("pool_end_avail_gib", ())[:1]:
        assert left == pytest.approx(logged, abs=0.25 + near * parts["cache"])


def test_a_stage_with_the_pools_of_a_layer_more() -> None:
    """gpt-oss on two stages, of which triton refuses the second only once its pools are there: 13 layers and 12."""
    recorded = json.loads((DATA / "recorded-0.5.11-tp2.json").read_text())
    run = recorded["runs"]["pp2-gptoss-triton-refused"]
    found, _model = planned_run(recorded, run)
    assert (found.sliding_tokens, found.kv_tokens) == (
        pytest.approx(run["kv"][0]["tokens"], rel=1e-3),
        pytest.approx(run["kv"][1]["tokens"], rel=1e-3),
    )
    for one, rank in zip(found.gpus, run["ranks"].values()):
        assert one.parts["weights"] == pytest.approx(rank["weights"][0]["usage_gib"], rel=2e-3)
        assert one.parts["cache"] == pytest.approx(
            sum(float(size) for kv in rank["kv"] for size in re.findall(r"([\d.]+) GB", kv["rest"])), rel=2e-3
        )


@pytest.mark.parametrize(
    "args, taken, later",
    [
        ({}, 687, 0),
        ({"dp_size": 2}, 687, 0),
        ({"tp_size": 2}, 1562, 546),
        ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, 1562, 546),
        ({"tp_size": 2, "disable_custom_all_reduce": True}, 1524, 546),
        ({"pp_size": 2}, 1524, 546),
        ({"tp_size": 2, "pre_warm_nccl": True}, 2108, 0),
        ({"pp_size": 2, "pre_warm_nccl": True}, 1524, 546),  # it warms the group of tensor parallelism
    ],
)
def test_what_ranks_take_before_weights_and_after(args: dict[str, Any], taken: int, later: int) -> None:
    """MiB; what is measured of an earlier launch counts for the first, not for the second."""
    cards = [Gpu("NVIDIA H200", 143771, 143156)] * 2
    found = plan(shape("qwen3-8b"), args, cards, "0.5.11")
    known = plan(shape("qwen3-8b"), args, cards, "0.5.11", measured={"context": 1.0})
    assert found.gpus[0].parts["context"] * 1024 == pytest.approx(taken)
    assert known.gpus[0].parts["context"] == 1.0
    for one in (found, known):
        assert (one.gpus[0].parts["rest"] - one.rest_gib) * 1024 == pytest.approx(later)


def test_where_the_failed_runs_fail() -> None:
    gpus = [Gpu("NVIDIA H200", 143771, 143156)]
    low, low2 = (
        plan(shape(HYBRID), option_words(RUNS[f"runs-{name}"][1]["args"]), gpus, "0.5.11") for name in ("low", "low2")
    )
    assert (low.failing_stage, low.state_slots) == ("state", 1)
    assert low2.failing_stage == "verify"  # 27.5 GiB of a budget of 7.4
    assert 20 < low2.missing_gib < 24
    assert low2.verdict.startswith("does not fit: 21.")


def test_from_the_card_alone() -> None:
    """With nothing measured, 139.13 GiB are free before loading on an idle H200, as in its logs."""
    found = plan(shape("qwen3-8b"), {}, [Gpu("NVIDIA H200", 143771)], "0.5.11")
    assert found.kv_tokens == pytest.approx(803502, rel=0.01)


def test_the_known_pair() -> None:
    """0.5.9 without radix cache keeps 48 slots and copies for 48 requests, whatever the fraction; 8 requests fit."""
    model = shape(HYBRID)
    for fraction, missing in ((0.85, 2.8), (0.88, 1.4)):
        found = plan(model, {**EAGLE, "tp_size": 2, "mem_fraction_static": fraction}, pair(), "0.5.9", measured=PAIR)
        assert (found.fits, found.failing_stage, found.state_slots, found.requested) == (False, "state", 48, 48)
        assert found.missing_gib == pytest.approx(missing, abs=0.1)
    args = {**EAGLE, "tp_size": 2, "mem_fraction_static": 0.85, "max_running_requests": 8}
    found = plan(model, args, pair(), "0.5.9", measured=PAIR)
    assert (found.fits, found.effective_max_running_requests) == (True, 8)
    assert found.kv_tokens == pytest.approx(378_000, rel=0.01)


def test_the_same_pair_later() -> None:
    args = {**EAGLE, "tp_size": 2, "mem_fraction_static": 0.85}
    found = plan(shape(HYBRID), args, pair(), "0.5.23", measured=PAIR)
    assert (found.fits, found.state_slots, found.effective_max_running_requests) == (True, 39, 7)
    assert found.verdict == "fits, but 48 requests requested, 7 effective"
    parts = found.gpus[0].parts
    assert found.kv_tokens == pytest.approx(207_000, rel=0.01)
    assert parts["verify"] < 2.4  # that is counted; convolution windows are shared


@pytest.mark.parametrize(
    "version, fraction",
    [("0.5.9", 0.7787), ("0.5.11", 0.7592), ("0.5.14", 0.7981), ("0.5.16", 0.7934), ("0.5.23", 0.7934)],
)
def test_the_default_fraction(version: str, fraction: float) -> None:
    """As SGLang itself resolved it for a card of 97887 MiB."""
    found = plan(shape(HYBRID), EAGLE, [Gpu("RTX PRO 6000", 97887)], version)
    assert found.fraction == pytest.approx(fraction, abs=5e-5)


def test_one_card_of_96_gb() -> None:
    card = [Gpu("RTX PRO 6000", 97887)]
    assert plan(shape(HYBRID), EAGLE, card, "0.5.11").failing_stage == "verify"
    args = {**EAGLE, "max_running_requests": 8, "mamba_scheduler_strategy": "extra_buffer"}
    found = plan(shape(HYBRID), args, card, "0.5.11")
    assert (found.fits, found.effective_max_running_requests) == (True, 8)
    assert found.kv_tokens == pytest.approx(138_000, rel=0.03)


@pytest.mark.parametrize("version, said", [("0.5.9", False), ("0.5.11", True), ("0.5.14", False)])
def test_a_draft_that_is_refused(version: str, said: bool) -> None:
    found = plan(shape(HYBRID), {**EAGLE, "max_running_requests": 2}, [Gpu("RTX PRO 6000", 97887)], version)
    assert found.fits
    assert ("SGLang refuses a draft" in found.verdict) is said


def test_latent_attention_is_whole_on_each_gpu() -> None:
    """(512 + 64) values in 27 layers, in two bytes or one."""
    card = [Gpu("H100", 81559)] * 2
    args = {"mem_fraction_static": 0.8, "page_size": 1}
    one = plan(shape("deepseek-v2-lite"), args, card, "0.5.11")
    two = plan(shape("deepseek-v2-lite"), {**args, "tp_size": 2}, card, "0.5.11")
    half = plan(shape("deepseek-v2-lite"), {**args, "kv-cache-dtype": "fp8_e4m3"}, card, "0.5.11")
    assert one.kv_tokens == int(budget(card[0], one) / (576 * 27 * 2))
    assert half.kv_tokens == pytest.approx(2 * one.kv_tokens, abs=2)
    assert two.kv_tokens == int(budget(card[0], two) / (576 * 27 * 2))


def test_pools_of_sliding_layers() -> None:
    """gpt-oss: 12 layers of each kind with 8 heads of 64; Gemma 3 gets one pool, as if no layer were sliding."""
    card, args = [Gpu("H100", 81559)], {"mem_fraction_static": 0.8}
    found = plan(shape("gpt-oss-20b"), args, card, "0.5.11")
    left = budget(card[0], found)
    assert found.kv_tokens == int(left / (12 * 2048 + 0.8 * 12 * 2048))
    assert found.sliding_tokens == int(found.kv_tokens * 0.8)
    plain = plan(shape("gpt-oss-20b"), {**args, "disable_hybrid_swa_memory": True}, card, "0.5.11")
    assert (plain.kv_tokens, plain.sliding_tokens) == (int(left / (24 * 2048)), 0)
    gemma = plan(shape("gemma-3-27b"), args, card, "0.5.11")
    left = budget(card[0], gemma)
    assert (gemma.kv_tokens, gemma.sliding_tokens) == (int(left / (62 * 16 * 256 * 2)), 0)


def test_sliding_pool_for_the_requests() -> None:
    card = [Gpu("H100", 81559)]
    args = {"mem_fraction_static": 0.8, "disable_radix_cache": True, "max_running_requests": 4}
    found = plan(shape("gpt-oss-20b"), args, card, "0.5.14")
    assert found.sliding_tokens == 4 * (128 + 128 + 1 + 1) + 2 * 8192 + 1
    assert found.kv_tokens > plan(shape("gpt-oss-20b"), args, card, "0.5.13").kv_tokens


def test_a_draft_is_in_the_fraction_since_0_5_14() -> None:
    """With 2.37 GiB of embeddings and as much of a head that it shares only once the pools are sized."""
    card = [Gpu("NVIDIA H200", 143771)]
    args = {**EAGLE, "mem_fraction_static": 0.9, "max_mamba_cache_size": 20, "mamba-scheduler-strategy": "extra_buffer"}
    early, late = (plan(shape(HYBRID), args, card, version) for version in ("0.5.13", "0.5.14"))
    assert (early.kv_tokens - late.kv_tokens) * 65536 / 2**30 == pytest.approx(5.53, abs=0.01)
    assert late.draft_gib == pytest.approx(0.79, abs=0.01)


@pytest.mark.parametrize(
    "model, version, layers, counted",
    [
        (HYBRID, "0.5.17", 16, 64),  # it sees those of the target
        (HYBRID, "0.5.18", 16, 1),
        ("deepseek-v3", "0.5.14", 61, 1),
    ],
)
def test_what_the_cache_of_a_draft_is_counted_as(model: str, version: str, layers: int, counted: int) -> None:
    """A draft in the same checkpoint counts if an argument names it, or with some architectures anyway."""
    cards, named = [Gpu("NVIDIA H200", 143771)] * 16, {"speculative_draft_model_path": "/models/the-same"}
    args = {**EAGLE, "tp_size": 16, "mem_fraction_static": 0.9, "max_mamba_cache_size": 20}
    plain, told = (plan(shape(model), {**args, **more}, cards, version) for more in ({}, named))
    row = plain.kv_tokens if model == HYBRID else plain.kv_tokens * (1 + counted / layers)
    assert told.kv_tokens * (1 + counted / layers) == pytest.approx(row, rel=1e-3)


def test_a_late_draft_may_find_no_room() -> None:
    """Up to 0.5.13 it comes after the pools, with embeddings of its own that are dropped only then: 5.5 GiB."""
    card = [Gpu("RTX PRO 6000", 97887)]
    args = {**EAGLE, "max_running_requests": 2, "mamba-scheduler-strategy": "extra_buffer", "mem_fraction_static": 0.95}
    found = plan(shape(HYBRID), args, card, "0.5.13")
    assert (found.fits, found.failing_stage) == (False, "draft")
    assert plan(shape(HYBRID), {**args, "mem_fraction_static": 0.85}, card, "0.5.13").fits


def test_weights_that_do_not_fit() -> None:
    found = plan(shape("llama31-8b"), {}, [Gpu("RTX 3060", 12288)], "0.5.11")
    assert (found.failing_stage, found.kv_tokens) == ("weights", 0)
    assert found.missing_gib == pytest.approx(15.02 - (12 * 0.9957 - 0.67), abs=0.05)
    assert found.verdict.startswith("does not fit: 3.7 GiB are missing on each GPU for the weights")


def test_a_table_for_many_long_requests() -> None:
    """2048 requests of 262144 tokens want 2 GiB beside the fraction (an H200's log shows 0.6 for 4096 of 40960)."""
    args = {"mem_fraction_static": 0.97, "context_length": 262144, "disable_cuda_graph": True}
    model = shape_of({**PUBLISHED["llama31-8b"]["config"], "max_position_embeddings": 262144})
    found = plan(model, {**args, "disable_piecewise_cuda_graph": True}, [Gpu("L40S", 46068)], "0.5.11")
    assert (found.fits, found.failing_stage) == (False, "requests")
    assert plan(model, {**args, "max_running_requests": 64}, [Gpu("L40S", 46068)], "0.5.14").fits


def test_too_few_slots_are_no_lack_of_memory() -> None:
    args = {**EAGLE, "max_mamba_cache_size": 2, "mamba-scheduler-strategy": "extra_buffer", "mem_fraction_static": 0.9}
    found = plan(shape(HYBRID), args, [Gpu("NVIDIA H200", 143771)], "0.5.11")
    assert (found.fits, found.failing_stage, found.missing_gib) == (False, "state", 0)
    assert found.verdict == "does not run: the arguments leave nothing for the states of linear layers"


def test_attention_dp_and_replicas_divide_requests() -> None:
    model, cards = shape("deepseek-v3"), [Gpu("NVIDIA H200", 143771)] * 8
    args = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "max_running_requests": 64}
    found = plan(model, args, cards, "0.5.11")
    assert found.effective_max_running_requests == 64
    assert found.weights_gib > plan(model, {"tp_size": 8}, cards, "0.5.11").weights_gib
    small = plan(shape("qwen3-8b"), {"dp_size": 4, "max_running_requests": 64}, cards, "0.5.11")
    assert (len(small.gpus), small.effective_max_running_requests) == (4, 64)


def test_pipeline_stages_share_the_least_cache() -> None:
    found = plan(shape("llama31-8b"), {"pp_size": 3, "mem_fraction_static": 0.8}, [Gpu("L40S", 46068)] * 3, "0.5.11")
    before = found.gpus[0].total * 0.9957 - found.gpus[0].parts["context"]
    assert found.kv_tokens == pytest.approx((before * 0.8 - found.weights_gib) * 2**30 / (4096 * 11), rel=0.01)
    assert found.gpus[1].parts["weights"] < found.weights_gib  # the first has one layer less, and the embeddings


def test_a_model_in_float32() -> None:
    """`--dtype float32` makes weights and cache of twice the size."""
    plain, wide = (plan(shape("qwen3-8b"), {**args, "max_total_tokens": 4096}, [Gpu("NVIDIA H200", 143771)], "0.5.11")
                   for args in ({}, {"dtype": "float32"}))  # fmt: skip
    assert wide.weights_gib == pytest.approx(2 * plain.weights_gib, rel=0.01)
    assert wide.gpus[0].parts["cache"] == 2 * plain.gpus[0].parts["cache"]


def test_a_draft_that_is_not_worked_out() -> None:
    found = plan(shape("qwen3-8b"), {"speculative_algorithm": "DFLASH"}, [Gpu("NVIDIA H200", 143771)], "0.5.23")
    assert "a draft of the kind 'DFLASH' is not worked out" in found.verdict


@pytest.mark.parametrize("option", ["enable_lora", "enable_hisparse"])
def test_options_that_are_not_planned(option: str) -> None:
    found = plan(shape("qwen3-8b"), {option: True}, [Gpu("NVIDIA H200", 143771)], "0.5.11")
    assert found.fits is None
    assert found.verdict == f"can not be told: '{option}' changes memory in a way that is not planned"


def test_a_model_that_is_not_understood_is_a_lower_bound() -> None:
    strange = shape_of({**PUBLISHED["llama31-8b"]["config"], "num_kv_shared_layers": 3})
    assert plan(strange, {}, [Gpu("NVIDIA H200", 143771)], "0.5.11").fits is None
    assert plan(strange, {}, [Gpu("RTX 3060", 12288)], "0.5.11").fits is False


def test_a_draft_that_is_not_known() -> None:
    args = {"speculative_algorithm": "EAGLE3"}
    found = plan(shape("qwen3-8b"), args, [Gpu("NVIDIA H200", 143771)], "0.5.11")
    assert "the draft model of 'EAGLE3' is not known" in found.verdict
    small = shape_of({**json.loads((DATA / "qwen3-8b.json").read_text()), "num_hidden_layers": 1})
    assert plan(shape("qwen3-8b"), args, [Gpu("NVIDIA H200", 143771)], "0.5.11", draft=small).fits


@pytest.mark.parametrize(
    "args, gpus, version, said",
    [
        ({"tp_size": 2}, [Gpu("L40S", 46068)], "0.5.11", "need 2 GPUs, and there are 1"),
        ({}, [], "0.5.11", "there is no GPU"),
        ({}, [Gpu("L40S", 46068)], "latest", "'latest' is no version of SGLang"),
        (
            {"max_running_requests": "many"},
            [Gpu("L40S", 46068)],
            "0.5.11",
            "'max_running_requests': 'many' is no number",
        ),
        ({"mem_fraction_static": "x"}, [Gpu("L40S", 46068)], "0.5.11", "'mem_fraction_static': 'x' is no number"),
    ],
)
def test_what_can_not_be_planned(args: dict[str, Any], gpus: list[Gpu], version: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"GPU|version|number") as error:
        plan(shape("qwen3-8b"), args, gpus, version)
    assert said in str(error.value)


@pytest.mark.parametrize("version, near", [("0.5.4", "0.5.9"), ("0.6.0", "0.5.23")])
def test_a_release_that_was_not_read(version: str, near: str) -> None:
    found = plan(shape("qwen3-8b"), {}, [Gpu("NVIDIA H200", 143771)], version)
    assert f"planned like {near}" in found.notes[0]
    assert found.kv_tokens == plan(shape("qwen3-8b"), {}, [Gpu("NVIDIA H200", 143771)], near).kv_tokens


def test_changes_are_in_order_and_known_to_the_rules() -> None:
    assert [since for since, *_ in CHANGES] == sorted(since for since, *_ in CHANGES)
    assert all(source for *_, source in CHANGES)
    assert rules_of("0.5.12").verify_for == "requested"
    assert rules_of("0.5.13.post1").verify_for == "capped"


MODELS = [HYBRID, "qwen3-8b", "nemotron-h-8b", "gpt-oss-20b", "deepseek-v2-lite", "falcon-h1-7b", "kimi-linear"]
ARGS = st.fixed_dictionaries(
    {
        "mem_fraction_static": st.one_of(st.none(), st.floats(0.05, 0.99)),
        "max_running_requests": st.one_of(st.none(), st.integers(1, 600)),
        "max_mamba_cache_size": st.one_of(st.none(), st.none(), st.integers(1, 400)),
        "disable_radix_cache": st.booleans(),
        "kv_cache_dtype": st.sampled_from([None, "fp8_e4m3", "fp4_e2m1"]),
        "page_size": st.sampled_from([1, 1, 64]),
        "context_length": st.sampled_from([None, 2048, 32768]),
        "speculative": st.booleans(),
        "mamba_radix_cache_strategy": st.sampled_from(["auto", "extra_buffer", "no_buffer"]),
    }
)
CASES = {
    "name": st.sampled_from(MODELS),
    "args": ARGS,
    "total": st.sampled_from([16376, 24564, 49140, 81559, 143771]),
    "version": st.sampled_from(VERSIONS),
}


def planned(name: str, args: dict[str, Any], total: int, version: str, **more: Any) -> Plan:
    args = {**args, **more}
    drafted = EAGLE if args.pop("speculative") else {}
    return plan(shape(name), {**drafted, **args}, [Gpu("card", total)] * 8, version)


@given(**CASES)
@settings(max_examples=300, deadline=None)
def test_parts_are_never_negative_and_add_up(name: str, args: dict[str, Any], total: int, version: str) -> None:
    found = planned(name, args, total, version)
    for one in found.gpus:
        assert min(one.parts.values()) >= 0
        assert sum(one.parts.values()) == pytest.approx(one.total)
    assert found.missing_gib >= 0
    assert bool(found.failing_stage) == (found.effective_max_running_requests == 0)
    if found.fits:
        assert found.kv_tokens > 0
        assert 0 < found.longest_context <= found.context
        assert found.effective_max_running_requests <= (found.requested or 4096)


@given(**CASES, fewer=st.integers(1, 300), more=st.integers(1, 300))
@settings(max_examples=300, deadline=None)
def test_more_requests_are_never_more_cache(
    name: str, args: dict[str, Any], total: int, version: str, fewer: int, more: int
) -> None:
    # a default fraction may change with the requests, and with it how many whole states come out
    args = {**args, "mem_fraction_static": args["mem_fraction_static"] or 0.85}
    few = planned(name, args, total, version, max_running_requests=fewer)
    many = planned(name, args, total, version, max_running_requests=fewer + more)
    assert many.kv_tokens <= few.kv_tokens


@given(**CASES, size=st.sampled_from([1, 2, 4]))
@settings(max_examples=300, deadline=None)
def test_more_gpus_are_never_more_memory_on_each(
    name: str, args: dict[str, Any], total: int, version: str, size: int
) -> None:
    """With as much in the pools, that is: what is free becomes cache."""
    args = {**args, "max_total_tokens": 64, "mem_fraction_static": 0.9, "max_mamba_cache_size": 20}
    less, more = (planned(name, args, 143771 * 4, version, tp_size=tp) for tp in (size, size * 2))
    for part in ("weights", "draft", "state", "verify", "cache"):
        assert more.gpus[0].parts[part] <= less.gpus[0].parts[part] + 1e-9
    assert planned(name, args, total, version, tp_size=size * 2).weights_gib <= less.weights_gib


@given(**CASES)
@settings(max_examples=200, deadline=None)
def test_what_is_missing_is_what_helps(name: str, args: dict[str, Any], total: int, version: str) -> None:
    """With that much more within the fraction, pools have room for a request; what is beside them may still not."""
    found = planned(name, args, total, version)
    if found.failing_stage not in ("state", "verify", "cache") or not found.missing_gib:
        return
    drafted = EAGLE if args["speculative"] else {}
    fixed = {**drafted, **{key: value for key, value in args.items() if key != "speculative"}}
    more = (found.missing_gib + 0.01) / found.fraction
    enough = Gpu("card", total + more * 1024 * 1.01, (Gpu("card", total).free + more) * 1024)
    fixed.update(mem_fraction_static=found.fraction, chunked_prefill_size=2048, cuda_graph_max_bs=8)
    again = plan(shape(name), fixed, [enough], version)
    assert again.kv_tokens > 0
    assert again.state_slots > 0 or shape(name).linear is None


@pytest.mark.parametrize("stage", sorted({"weights", "draft", "state", "verify", "cache", "requests", "graphs"}))
def test_every_stage_that_may_fail_has_words(stage: str) -> None:
    found = replace(plan(shape("qwen3-8b"), {}, [Gpu("L40S", 46068)], "0.5.11"), fits=False, failing_stage=stage)
    assert replace(found, missing_gib=1.0).verdict.startswith("does not fit: 1.0 GiB are missing on each GPU for ")
    assert found.verdict.startswith("does not run: the arguments leave nothing for ")


@pytest.mark.parametrize(
    ("written", "value"),
    [("8k", 8e3), ("32Ki", 2**15), ("1M", 1e6), ("2Mi", 2**21), ("1T", 1e12), ("7", 7), (0.5, 0.5)],
)
def test_numbers_are_read_as_sglang_reads_them(written: Any, value: float) -> None:
    assert number(written) == value


@pytest.mark.parametrize("option", ["quantization", "--quantization"])
def test_options_count_however_they_are_written(option: str) -> None:
    found = plan(shape("qwen3-8b"), {option: "fp8"}, [Gpu("L40S", 46068)], "0.5.11")
    assert found.weights_gib < 10 < plan(shape("qwen3-8b"), {}, [Gpu("L40S", 46068)], "0.5.11").weights_gib


def test_what_is_not_understood_may_fit_unless_the_weights_alone_do_not() -> None:
    args = {"enable_lora": True}
    assert plan(shape(HYBRID), args, [Gpu("NVIDIA H200", 143771)], "0.5.11").fits is None
    assert (
        plan(shape(HYBRID), {**args, "mem_fraction_static": 0.1}, [Gpu("NVIDIA H200", 143771)], "0.5.11").fits is None
    )
    assert plan(shape(HYBRID), args, [Gpu("L40S", 46068)], "0.5.11").fits is False
    assert plan(shape(HYBRID), {"offload_group_size": 4}, [Gpu("L40S", 46068)], "0.5.11").fits is None
