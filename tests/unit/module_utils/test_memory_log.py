# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501
from __future__ import annotations

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_log import measured

# of SGLang 0.5.11 on an H200
HYBRID = """\
[2026-11-29 17:15:10] Load weight begin. avail mem=139.13 GB
[2026-11-29 17:15:11] Load weight end. elapsed=0.37 s, type=Qwen3_5ForConditionalGeneration, avail mem=88.07 GB, mem usage=51.05 GB.
[2026-11-29 17:15:11] Memory pool end. avail mem=35.60 GB
[2026-11-29 17:15:11] Load weight begin. avail mem=35.50 GB
[2026-11-29 17:15:11] Load weight end. elapsed=0.01 s, type=Qwen3_5ForCausalLMMTP, avail mem=29.97 GB, mem usage=5.53 GB.
[2026-11-29 17:15:11] Memory pool end. avail mem=27.10 GB
[2026-11-29 17:15:11] max_total_num_tokens=753185, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4, context_len=8192, available_gpu_mem=31.84 GB
"""
GRAPHS = """\
[2026-11-29 18:07:58] Capture cuda graph begin. This can take up to several minutes. avail mem=12.15 GB
[2026-11-29 18:08:54] Capture cuda graph end. Time elapsed: 55.75 s. mem usage=0.06 GB. avail mem=12.09 GB.
[2026-11-29 17:17:25] Capture piecewise CUDA graph begin. avail mem=12.09 GB
[2026-11-29 17:18:17] Capture piecewise CUDA graph end. Time elapsed: 25.0 s. mem usage=1.29 GB. avail mem=10.80 GB.
"""


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (HYBRID, {"before": 139.13, "weights": 51.05, "left": 31.84}),
        (GRAPHS, {"graphs": 1.35}),
        ("", {}),
    ],
)
def test_what_a_launch_took(log: str, found: dict[str, float]) -> None:
    assert measured(log.splitlines()) == found


def test_of_several_ranks_the_fullest_counts() -> None:
    lines = [
        f"[2026-11-29 17:15:10 {rank}] Load weight {what}"
        for rank, what in (
            ("TP0", "begin. avail mem=46.90 GB"),
            ("TP1", "begin. avail mem=46.80 GB"),
            ("TP1", "end. elapsed=1 s, type=A, avail mem=21 GB, mem usage=25.90 GB."),
            ("TP0", "end. elapsed=1 s, type=A, avail mem=21 GB, mem usage=25.70 GB."),
        )
    ]
    lines += [f"[2026-11-29 17:15:12 TP{rank}] Capture cuda graph end. mem usage=0.{rank + 3} GB." for rank in (0, 1)]
    assert measured(lines) == {"before": 46.8, "weights": 25.9, "graphs": 0.4}
