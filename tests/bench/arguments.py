#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the conversion of 100 instances costs, as a multiple of writing the same data as JSON and reading it again.

    PYTHONPATH=.dev:tests/unit .venv/bin/python tests/bench/arguments.py [ROUNDS]

Arguments to words, and words to arguments, with the options of the newest recorded release; no lab is needed. The
figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import to_argv
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import from_argv
from conftest import releases, schema_of

INSTANCES: list[dict[str, Any]] = [
    {
        "attention_backend": "flashinfer",
        "chunked_prefill_size": 4096,
        "context_length": 32768 + number,
        "cuda_graph_bs_decode": [1, 2, 4, 8],
        "enable_metrics": True,
        "json_model_override_args": {"rope_theta": 1000000},
        "kv_cache_dtype": "auto",
        "lora_strict_loading": False,
        "max_running_requests": 8,
        "mem_fraction_static": 0.85,
        "served_model_name": f"model-{number}",
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "tp_size": 2,
        "trust_remote_code": True,
    }
    for number in range(100)
]


def milliseconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    schema = schema_of(list(releases())[-1])
    lines = [to_argv(args, schema) for args in INSTANCES]
    if [from_argv(line, schema).args for line in lines] != INSTANCES:
        sys.exit("what is read back is not what was written")
    ways = {
        "to words": lambda: [to_argv(args, schema) for args in INSTANCES],
        "to arguments": lambda: [from_argv(line, schema) for line in lines],
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        as_json = milliseconds(lambda: [json.loads(json.dumps(args)) for args in INSTANCES])
        for way, work in ways.items():
            times[way].append(milliseconds(work))
            ratios[way].append(times[way][-1] / as_json)
    for way in ways:
        median, ratio = statistics.median(times[way]), ratios[way]
        print(
            f"100 instances {way}: median {median:.1f} ms, {statistics.median(ratio):.1f} times JSON"
            f" ({min(ratio):.1f} to {max(ratio):.1f})"
        )


if __name__ == "__main__":
    main()
