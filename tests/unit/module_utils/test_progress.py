# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of real launches of SGLang 0.5.11 on an H200 (fixtures/logs; g8 and q8 are cut), and lines of other releases."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.progress import (
    DRAFT,
    FIRST_STAGE,
    LIMITS,
    STAGES,
    Entry,
    Progress,
    progress,
    shown,
    stage_times,
    usual_times,
)
from conftest import FIXTURES

BEGAN = 1000.0


def log(name: str, up_to: str = "") -> list[Entry]:
    """Read a log up to the first line with these words; its first line with a time came 10 s after the start.

    A bar has no time: it gets that of the line before.
    """
    entries: list[Entry] = []
    first = None
    at = BEGAN
    for line in (FIXTURES / "logs" / f"{name}.log").read_text().splitlines():
        stamp = re.search(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line)
        if stamp:
            seconds = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
            first = first or seconds
            at = BEGAN + 10 + seconds - first
        entries.append(Entry(at, line))
        if up_to and up_to in line:
            return entries
    assert not up_to, f"no line of {name} has {up_to}"
    return entries


def lines(*texts: str, every: float = 10.0) -> list[Entry]:
    """Return entries that came one after the other."""
    return [Entry(BEGAN + every * count, text) for count, text in enumerate(texts, 1)]


def stages(entries: list[Entry]) -> list[str]:
    """Return the stages that an operator sees who looks after every line."""
    seen = [progress(entries[:count], BEGAN).stage for count in range(len(entries) + 1)]
    return [stage for count, stage in enumerate(seen) if not count or stage != seen[count - 1]]


@pytest.mark.parametrize(
    ("name", "up_to", "text"),
    [
        ("seed", "UserWarning", "reading its arguments, for 5 s; 5 s since the start"),
        ("seed", "server_args=", "preparing, for 5 s; 17 s since the start"),
        ("seed", "Init torch distributed begin", "joining its GPUs, for 5 s; 43 s since the start"),
        ("seed", "using attn output gate", "loading weights, for 6 s; 44 s since the start"),
        ("seed", "avail mem=88.07", "sizing its caches, for 5 s; 44 s since the start"),
        ("seed", "Memory pool end. avail mem=35.60", "preparing to compute, for 5 s; 44 s since the start"),
        ("seed", "Load weight begin. avail mem=35.50", "loading draft weights, for 5 s; 44 s since the start"),
        ("seed", "Load weight end. elapsed=0.01", "sizing its caches, for 5 s; 44 s since the start"),
        ("seed", "Memory pool end. avail mem=27.10", "preparing to compute, for 5 s; 44 s since the start"),
        ("seed", "max_total_num_tokens=", "opening its port, for 5 s; 44 s since the start"),
        ("seed", '"GET /health', "serving, for 23 s; 1 min 2 s since the start"),
        ("g8", "  0%|", "capturing graphs, graph 0 of 4, for 5 s; 37 s since the start"),
        ("g8", "bs=8 avail_mem=27.05 GB):  25%", "capturing graphs, graph 1 of 4, for 5 s; 37 s since the start"),
        ("g8", "Capture cuda graph end", "capturing graphs, graph 4 of 4, for 1 min 1 s; 1 min 33 s since the start"),
        ("g8", "The server is fired up", "serving, for 5 s; 1 min 33 s since the start"),
        ("g8", "Uvicorn running", "serving, for 5 s; 1 min 33 s since the start"),
        ("q8", "takes 0.88 s", "capturing graphs, graph 0 of 58, for 35 s; 1 min 8 s since the start"),
        ("q8", "(num_tokens=8192):   2%", "capturing graphs, graph 1 of 58, for 44 s; 1 min 17 s since the start"),
        ("q8", "num_tokens=4): 100%", "capturing graphs, graph 58 of 58, for 44 s; 1 min 17 s since the start"),
        ("q8", "avail_mem=11.83 GB):   2%", "capturing graphs, graph 1 of 58, for 44 s; 1 min 17 s since the start"),
    ],
)
def test_what_is_shown_of_a_real_launch(name: str, up_to: str, text: str) -> None:
    entries = log(name, up_to)
    assert shown(progress(entries, BEGAN), entries[-1].at + 5, BEGAN, {}) == text


def test_the_stages_of_a_real_launch_have_their_times() -> None:
    times = stage_times(log("g8"), BEGAN, BEGAN + 99)
    assert list(times.items()) == [
        ("reading its arguments", 10.0),
        ("preparing", 19.0),
        ("joining its GPUs", 3.0),
        ("loading weights", 0.0),
        ("sizing its caches", 0.0),
        ("preparing to compute", 0.0),
        ("capturing graphs", 56.0),
        ("opening its port", 0.0),
    ]


def test_a_stage_that_goes_on_counts_up_to_the_end() -> None:
    assert stage_times(lines("server_args={}", every=10.04), BEGAN, BEGAN + 40) == {
        FIRST_STAGE: 10.0,
        "preparing": 30.0,
    }
    assert stage_times([], BEGAN, BEGAN + 7) == {FIRST_STAGE: 7.0}


OLD = """\
[2026-11-29 17:15:10] server_args=ServerArgs(model_path='/srv/m')
[2026-11-29 17:15:10] Init torch distributed begin.
[2026-11-29 17:15:10] Load weight begin. avail mem=139.13 GB
[2026-11-29 17:15:10] Load weight end. elapsed=0.37 s, type=Qwen3ForCausalLM, avail mem=88.07 GB, mem usage=51.05 GB.
[2026-11-29 17:15:10] KV Cache is allocated. #tokens: 753185, K size: 22.99 GB, V size: 22.99 GB
[2026-11-29 17:15:10] Capture cuda graph begin. This can take up to several minutes. avail mem=27.06 GB
[2026-11-29 17:15:10] Capture piecewise CUDA graph begin. avail mem=12.71 GB
[2026-11-29 17:15:10] max_total_num_tokens=753185, chunked_prefill_size=8192, max_prefill_tokens=16384
[2026-11-29 17:15:10] INFO:     Application startup complete.
[2026-11-29 17:15:10] The server is fired up and ready to roll!
"""
NEW = """\
[2026-11-29 17:15:10] server_args={'model_path': '/srv/m'}
[2026-11-29 17:15:10] Init parallel begin.
[2026-11-29 17:15:10] Load weight begin. avail mem=139.13 GB
[2026-11-29 17:15:10] Load weight end. elapsed=0.37 s, type=Qwen3ForCausalLM, avail mem=88.07 GB, mem usage=51.05 GB.
[2026-11-29 17:15:10] Memory pool end. avail mem=27.15 GB
[2026-11-29 17:15:10] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, avail mem=27.06 GB
[2026-11-29 17:15:10] Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4], avail mem=12.71 GB
[2026-11-29 17:15:10] max_total_num_tokens=753185, chunked_prefill_size=8192, max_prefill_tokens=16384
[2026-11-29 17:15:10] Engine startup timings (s): load_weight=0.37, kv_cache_allocation=0.10
[2026-11-29 17:15:10] INFO:     Application startup complete.
[2026-11-29 17:15:10] The server is fired up and ready to roll!
"""


@pytest.mark.parametrize("text", [OLD, NEW])
def test_each_release_shows_the_same_stages(text: str) -> None:
    shown = [FIRST_STAGE, *(name for _, name in STAGES if name != "compiling kernels")]
    assert stages(lines(*text.splitlines())) == shown


def test_a_draft_model_is_loaded_before_the_caches_or_after_them() -> None:
    begin, end, pool = "Load weight begin. avail mem=9.00 GB", "Load weight end. elapsed=1 s", "Memory pool end. avail"
    sizing, ready = "sizing its caches", "preparing to compute"
    after = stages(lines(begin, end, pool, "Init torch distributed begin.", begin, end, pool))
    assert after == [FIRST_STAGE, "loading weights", sizing, ready, DRAFT, sizing, ready]
    before = stages(lines(begin, end, begin, end, begin, end, pool))
    assert before == [FIRST_STAGE, "loading weights", sizing, DRAFT, sizing, DRAFT, sizing, ready]


SHARDS = "Loading safetensors checkpoint shards:  {} Completed | {}/12 [00:01<00:03,  1.00s/it"
GRAPHS = "Capturing batches (bs=8 avail_mem=27.10 GB):  {}|{}/23"


@pytest.mark.parametrize(
    ("begin", "text", "step"),
    [
        ("Load weight begin", SHARDS.format("25%", 3) + "]", "shard 3 of 12"),
        ("Load weight begin", f"\r{SHARDS.format('0%', 0)}]\r{SHARDS.format('25%', 3)}]\r", "shard 3 of 12"),
        # TQDM_UNIT ends a line within the bar
        ("Load weight begin", f"/s]\r{SHARDS.format('25%', 3)}", "shard 3 of 12"),
        ("Load weight begin", SHARDS.format("25%", 3) + "\n]", "shard 3 of 12"),
        ("Load weight begin", SHARDS.format("25%", 3) + "][2026-11-29 17:15:10 TP1] using 9/9", "shard 3 of 12"),
        ("Load weight begin", "model.safetensors:  10%|1.20G/12.0G", ""),
        ("Load weight begin", "model.safetensors:  10%|120/1.20G", ""),
        ("Capture cuda graph begin", "\r" + GRAPHS.format("22%", 5), "graph 5 of 23"),
        ("Capture cuda graph begin", GRAPHS.format("22%", 5) + "\n", "graph 5 of 23"),
        ("Capture cuda graph begin", GRAPHS.format("22%", "##   | 5") + " [00:54<02:44, 54.74s/it]", "graph 5 of 23"),
        ("server_args=", "Fetching files:  50%|2/4", "step 2 of 4"),
    ],
)
def test_a_bar_tells_the_step(begin: str, text: str, step: str) -> None:
    assert progress(lines(f"{begin} begin", text), BEGAN).step == step


def test_a_line_that_follows_a_bar_at_once_is_one_of_its_own() -> None:
    bar = SHARDS.format("25%", 3)
    entries = lines(
        "[2026-11-29 17:15:10 TP0] Load weight begin. avail mem=9 GB",
        bar + "]",
        bar + "][2026-11-29 17:15:12 TP1] Load weight end. elapsed=1 s",
        bar + "][2026-11-29 17:15:12 TP0] Load weight end. elapsed=1 s",
    )
    assert progress(entries[:3], BEGAN) == Progress("loading weights", "shard 3 of 12", BEGAN + 10, BEGAN + 30)
    assert progress(entries, BEGAN) == Progress("sizing its caches", "", BEGAN + 40, BEGAN + 40)


def test_a_step_ends_with_its_stage() -> None:
    assert progress(lines("Load weight begin", SHARDS.format("100%", 12), "Load weight end"), BEGAN).step == ""


def test_kernels_may_be_compiled_again_and_again() -> None:
    entries = lines(
        "Memory pool end. avail mem=9 GB",
        "Running FlashInfer autotune...",
        "Capture cuda graph begin. avail mem=9 GB",
        GRAPHS.format("0%", 0),
        "Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins)",
        "DeepGEMM warmup:  39%|386/1000",
        GRAPHS.format("4%", 1),
        "Application startup complete.",
        "Try DeepGEMM JIT Compiling for <x> N=1, K=1, num_groups=1 with all Ms.",
        "The server is fired up and ready to roll!",
        "DeepGEMM warmup:  39%|386/1000",
        "Load weight begin. avail mem=9 GB",
    )
    assert stages(entries) == [
        FIRST_STAGE, "preparing to compute", "compiling kernels", "capturing graphs", "compiling kernels",
        "capturing graphs", "trying a first request", "compiling kernels", "serving",
    ]  # fmt: skip
    assert progress(entries[:6], BEGAN).step == "kernel 386 of 1000"
    times = stage_times(entries, BEGAN, BEGAN + 130)
    assert times["compiling kernels"] == 10 + 20 + 10
    assert times["capturing graphs"] == 20 + 10


def test_of_several_ranks_the_lowest_tells_the_stage_and_any_moves() -> None:
    entries = lines(
        "[2026-11-29 17:15:10] server_args={}",
        "[2026-11-29 17:15:10 TP1] Load weight begin. avail mem=9 GB",
        "[2026-11-29 17:15:10 TP0] Load weight begin. avail mem=9 GB",
        "[2026-11-29 17:15:10 TP1] Load weight end. elapsed=1 s",
        "[2026-11-29 17:15:11 TP1] Memory pool end. avail mem=9 GB",
        "[2026-11-29 17:15:12 TP0] Load weight end. elapsed=1 s",
        "[2026-11-29 17:15:13 TP1] Load weight end. elapsed=1 s",
        "[2026-11-29 17:15:14] INFO:     Application startup complete.",
    )
    assert progress(entries[:5], BEGAN) == Progress("loading weights", "", since=BEGAN + 30, moved=BEGAN + 50)
    assert progress(entries[:7], BEGAN) == Progress("sizing its caches", "", since=BEGAN + 60, moved=BEGAN + 60)
    assert progress(entries, BEGAN).stage == "trying a first request"


# Lines of a real launch whose health was looked at
PROBES = (
    "[2026-11-29 17:13:50] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
    "tic start time: 17:13:30. last_heartbeat time: 17:12:39",
    "[2026-11-29 17:14:16] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, full token usage: 0.00, "
    "mamba usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput "
    "(token/s): 0.01",
    "[2026-11-29 17:14:16] Received output for rid='HEALTH_CHECK_1795972386.2252445' but the state was deleted in "
    "TokenizerManager.",
    '[2026-11-29 17:14:19] INFO:     127.0.0.1:54068 - "GET /health HTTP/1.1" 200 OK',
    '[2026-11-29 17:14:19] INFO:     127.0.0.1:54068 - "GET /health HTTP/1.1" 503 Service Unavailable',
)


@pytest.mark.parametrize("probe", PROBES)
def test_what_a_health_probe_causes_is_no_progress(probe: str) -> None:
    entries = lines("[2026-11-29 17:13:05] INFO:     Application startup complete.", probe)
    assert progress(entries, BEGAN).moved == BEGAN + 10
    own = "[2026-11-29 17:14:16] Prefill batch, #new-seq: 1, #new-token: 11, #cached-token: 0, token usage: 0.00"
    assert progress([*entries, Entry(BEGAN + 30, own)], BEGAN).moved == BEGAN + 30


def test_what_was_said_before_is_no_progress() -> None:
    waits = ("[2026-11-29 17:14:1{} TP0] waiting", "[2026-11-29 17:14:1{} TP1] waiting", "still there")
    texts = [wait.format(second) for second in range(5) for wait in waits]
    assert progress(lines(*texts), BEGAN).moved == BEGAN + 30
    bars = [f"Loading shards:  25% Completed | 1/4 [00:0{second}<00:09,  9.00s/it]" for second in range(5)]
    assert progress(lines(*bars), BEGAN).moved == BEGAN + 10
    assert progress(lines(*bars, bars[0].replace("1/4", "2/4")), BEGAN).moved == BEGAN + 60


def test_a_further_bar_of_the_same_words_is_progress() -> None:
    bar = [f"DeepGEMM warmup:  {part}%|{part}0/1000" for part in range(100)]
    assert progress(lines(*bar, bar[0]), BEGAN).moved == BEGAN + 1010


def test_what_is_usual_is_shown_beside_what_is() -> None:
    known = Progress("loading weights", "shard 3 of 12", since=BEGAN + 17, moved=BEGAN + 60)
    usual = {FIRST_STAGE: 12.4, "loading weights": 60.0, "capturing graphs": 67.6}
    text = "loading weights, shard 3 of 12, for 45 s (usually 1 min); 1 min 2 s since the start (usually 2 min 20 s)"
    assert shown(known, BEGAN + 62, BEGAN, usual) == text
    assert shown(known, BEGAN + 62, BEGAN, {}) == "loading weights, shard 3 of 12, for 45 s; 1 min 2 s since the start"
    text = "loading weights, shard 3 of 12, for 10 min; 10 min 17 s since the start (usually 5 s)"
    assert shown(known, BEGAN + 617, BEGAN, {"capturing graphs": 5.0, "loading weights": 0.2}) == text
    assert shown(known, BEGAN + 136.4, BEGAN, {}).endswith("for 1 min 59 s; 2 min 16 s since the start")


def test_usual_is_the_median_of_the_launches_that_had_the_stage() -> None:
    earlier = [{"preparing": 10.0, DRAFT: 7.0}, {"preparing": 90.0}, {"preparing": 20.0, "capturing graphs": 3.0}]
    assert list(usual_times(earlier).items()) == [("preparing", 20.0), (DRAFT, 7.0), ("capturing graphs", 3.0)]
    assert usual_times([]) == {}


def test_each_stage_may_stall() -> None:
    assert [name for name in LIMITS if name != DRAFT] == [FIRST_STAGE, *(name for _, name in STAGES)]


@pytest.mark.parametrize("name", ["err_image_processor", "err_orphan_holds_gpu_not_enough_memory", "low", "low2"])
def test_a_failed_launch_is_shown_on_one_line(name: str) -> None:
    entries = log(name)
    text = shown(progress(entries, BEGAN), entries[-1].at, BEGAN, {})
    assert "opening" not in text and "serving" not in text  # words of a traceback begin no stage
    assert len(text.splitlines()) == 1 and "\r" not in text
