# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch does while it loads, from what it has logged so far, and whether it still moves."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import NamedTuple

from ansible_collections.gpuops.sglang.plugins.module_utils.processes import duration

FIRST_STAGE = "reading its arguments"
DRAFT = "loading draft weights"  # begins as the weights do, once those have been loaded
SERVING = "serving"

# Words that begin a stage -> what the server does from there on (research on SGLang 0.5.4 to 0.5.23).
STAGES = (
    (r"server_args=", "preparing"),
    (r"Init (?:torch distributed|parallel) begin", "joining its GPUs"),
    (r"Load weight begin", "loading weights"),
    (r"Load weight end", "sizing its caches"),
    (r"Memory pool end|KV Cache is allocated", "preparing to compute"),
    (r"DeepGEMM JIT|DeepGEMM warmup|Running FlashInfer autotune", "compiling kernels"),
    (r"Capture .*graph begin|(?:Capturing|Compiling num tokens) .*%\|", "capturing graphs"),
    (r"max_total_num_tokens=\d", "opening its port"),
    (r"Application startup complete", "trying a first request"),
    (r"The server is fired up", SERVING),
)

Times = Mapping[str, float]  # stage -> s
# Stages in their order, and what is too long without a sign of progress even for a slow host.
LIMITS: Times = {
    FIRST_STAGE: 600,  # imports, of which nothing is logged: up to 150 s were measured on two busy cores
    "preparing": 600,  # each process imports everything anew: another 150 s
    "joining its GPUs": 900,  # torch gives up waiting for other ranks or hosts after 600
    "loading weights": 1200,  # a shard of 10 GB takes 1000 s at 10 MB/s; quantizing what was read is silent
    DRAFT: 1200,
    "sizing its caches": 600,  # seconds, but caches in host memory are pinned at a few GB/s
    "preparing to compute": 1200,  # the first start compiles kernels here without a word
    "compiling kernels": 2400,  # DeepGEMM itself speaks of 10 to 20 min
    "capturing graphs": 1200,  # the first graph compiles kernels: 55 s on an H200, far more with few cores
    "opening its port": 600,  # other ranks may still compile
    "trying a first request": 900,  # SGLang ends itself after 600
    SERVING: 900,  # without an answer of its /health
}
ORDER = tuple(LIMITS)
AGAIN = (DRAFT, "compiling kernels", "capturing graphs")  # a server may return to these
NEXT = {stage: {*ORDER[place:], *AGAIN} - {stage} for place, stage in enumerate(ORDER[:-1])}
RECENT = 50  # different lines: what comes again among so few, e.g. a complaint of each rank, is no progress
NOUNS = {"loading weights": "shard", DRAFT: "shard", "compiling kernels": "kernel", "capturing graphs": "graph"}

# A bar of tqdm: 'what: 25%|##  | 1/4 [...', '25%|1/4' in the form that the unit asks for, '25% Completed | 1/4 [...'
BAR = re.compile(r"\d%[^|]*\|(?:[^|]*\|)?\s*(\d+)/(\d+)(?![\w.])")
# A bar ends with a carriage return, or another process writes its line straight after it.
END = re.compile(r"[\r\n]+|(?=\[\d{4}-\d\d-\d\d \d\d:)")
STAMP = re.compile(r"^\[[\d: -]{19}((?: [A-Z]+\d+)*)\]")
# What a look at the server's health makes it log: that request has one token, its own first one has more.
PROBED = re.compile(r'INFO: +\S+ - "|Prefill batch.*#new-token: 1,|HEALTH_CHECK|Health check failed')


class Entry(NamedTuple):
    """A line of a launch's log."""

    at: float  # s of the monotonic clock
    text: str


@dataclass(frozen=True)
class Progress:
    """How far a launch is."""

    stage: str  # e.g. 'loading weights'
    step: str  # e.g. 'shard 3 of 12'; '' if the log tells none
    since: float  # s of the monotonic clock at which the stage began
    moved: float  # the same of the last sign of progress


def progress(entries: Sequence[Entry], began: float) -> Progress:
    """Return how far the launch is that began at `began` s of the monotonic clock."""
    return [*_follow(entries, began)][-1]


def stage_times(entries: Sequence[Entry], began: float, ended: float) -> dict[str, float]:
    """Return the s that each stage took in a launch watched until `ended`, in order; serving is none of them."""
    visits = [key for key, _lines in groupby((known.since, known.stage) for known in _follow(entries, began))]
    times: dict[str, float] = {}
    for (since, stage), (until, _next) in zip(visits, [*visits[1:], (ended, "")]):
        times[stage] = times.get(stage, 0.0) + until - since
    return {stage: round(time, 1) for stage, time in times.items() if stage != SERVING}


def usual_times(earlier: Sequence[Times]) -> dict[str, float]:
    """Return the median s per stage of earlier launches' stage_times()."""
    stages = dict.fromkeys(stage for times in earlier for stage in times)
    return {stage: median(times[stage] for times in earlier if stage in times) for stage in stages}


def shown(progress: Progress, now: float, began: float, usual: Times) -> str:
    """Return one line for the operator; `usual` is empty where nothing is known of earlier launches."""
    what = ", ".join(filter(None, (progress.stage, progress.step)))
    stage = duration(now - progress.since) + _usually(usual.get(progress.stage, 0))
    return f"{what}, for {stage}; {duration(now - began)} since the start{_usually(sum(usual.values()))}"


def _follow(entries: Sequence[Entry], began: float) -> Iterator[Progress]:
    """Yield what is known at the start and after each line. Of several ranks the lowest tells: only it has bars."""
    lines = [(at, *_parts(line)) for at, text in entries for line in END.split(text) if line.strip()]
    lowest = min((rank for _at, rank, _said in lines if rank), default="")
    known = Progress(FIRST_STAGE, "", began, began)
    weights, recent = False, deque[str](maxlen=RECENT)
    yield known
    for at, rank, said in lines:
        shown_bar = BAR.search(said)
        key = rank + said[: shown_bar.end() if shown_bar else None]  # a bar's times and rates change without progress
        if key not in recent and not PROBED.search(said):
            recent.append(key)
            known = replace(known, moved=at)
        stage = next((name for words, name in STAGES if rank in ("", lowest) and re.search(words, said)), "")
        if stage == "loading weights":
            stage, weights = DRAFT if weights else stage, True
        if stage in NEXT.get(known.stage, ()):
            known = Progress(stage, "", at, at)
        if shown_bar:
            known = replace(known, step=f"{NOUNS.get(known.stage, 'step')} {shown_bar[1]} of {shown_bar[2]}")
        yield known


def _parts(line: str) -> tuple[str, str]:
    """Return the rank that wrote a line, e.g. ' TP0', or '', and the line without it and the time."""
    stamp = STAMP.match(line)
    return (stamp[1], line[stamp.end() :]) if stamp else ("", line)


def _usually(seconds: float) -> str:
    return f" (usually {duration(seconds)})" if seconds >= 1 else ""
