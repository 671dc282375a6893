# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import STAGES
from ansible_collections.gpuops.sglang.plugins.module_utils.plan_bars import LETTERS, WIDTH, bars
from hypothesis import given
from hypothesis import strategies as st

PARTS = ("others", *STAGES)


def gpu(name: str, **parts: float) -> dict[str, Any]:
    return {"name": name, "total_gib": sum(parts.values()), "parts": parts}


def planned(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "sglang_version": "0.5.11", "fits": True, "verdict": "fits", "kv_tokens": 1000, "state_slots": 24,
        "effective_max_running_requests": 4, "context": 8192, "longest_context": 250, "levers": [], "proposal": None,
        "gpus": list(gpus), "notes": [], "unknown": [], **more,
    }  # fmt: skip


def drawn(text: str) -> list[str]:
    return re.findall(r"\|(.*)\|", text)


def test_a_bar_is_divided_as_the_memory_is() -> None:
    text = bars(planned(gpu("NVIDIA H200", others=10.0, weights=50.0, cache=30.0, rest=10.0)))
    (bar,) = drawn(text)
    shares = {letter: bar.count(letter) / len(bar) for letter in "#wk."}
    assert "".join(sorted(set(bar), key=bar.index)) == "#wk."
    assert all(abs(shares[letter] - share) < 1.5 / len(bar) for letter, share in zip("#wk.", (0.1, 0.5, 0.3, 0.1)))
    assert "w weights 50.0" in text and "k KV cache 30.0" in text


def test_the_verdict_is_above_and_what_helps_below() -> None:
    lever = {"option": "max_running_requests", "value": 8, "costs": "the others wait", "kv_tokens": 5,
             "effective_max_running_requests": 8}  # fmt: skip
    gone = {**lever, "option": "speculative_algorithm", "value": None, "costs": "slower"}
    proposal = {
        "args": {"tp_size": 2, "kv_cache_dtype": "fp8_e4m3"},
        "kv_tokens": 7,
        "effective_max_running_requests": 9,
    }
    text = bars(
        planned(
            gpu("NVIDIA H200", weights=140.0),
            fits=False,
            verdict="does not fit: 3.0 GiB are missing",
            levers=[lever, gone],
            proposal=proposal,
            notes=["look here"],
            unknown=["what is this"],
        )
    )
    first, *middle = text.splitlines()
    assert first == "does not fit: 3.0 GiB are missing" and "1000 KV tokens" not in text
    below = middle[next(row for row, line in enumerate(middle) if "|" in line) + 2 :]
    assert below == [
        "lever: set 'max_running_requests' to 8: the others wait; 5 KV tokens, 8 requests at a time",
        "lever: delete 'speculative_algorithm': slower; 5 KV tokens, 8 requests at a time",
        "proposal: tp_size=2 kv_cache_dtype=fp8_e4m3; 7 KV tokens, 9 requests at a time",
        "not known: what is this",
        "note: look here",
    ]


def test_gpus_that_hold_the_same_share_a_legend() -> None:
    same, other = gpu("NVIDIA H200", weights=100.0, rest=40.0), gpu("NVIDIA H200", weights=90.0, rest=50.0)
    assert bars(planned(same, same)).count("w weights") == 1
    text = bars(planned(same, other))
    assert "w weights 100.0" in text and "w weights 90.0" in text and len(drawn(text)) == 2


def test_each_part_has_a_letter_of_its_own() -> None:
    assert set(PARTS) <= set(LETTERS)
    assert len({letter for letter, _word in LETTERS.values()}) == len(LETTERS)


@given(
    sizes=st.lists(
        st.dictionaries(st.sampled_from(PARTS), st.floats(0, 200), min_size=1).filter(lambda one: any(one.values())),
        min_size=1,
        max_size=12,
    ),
    name=st.text(max_size=60),
    verdict=st.text(max_size=300),
)
def test_no_line_is_too_long_and_all_is_ascii(sizes: list[dict[str, float]], name: str, verdict: str) -> None:
    text = bars(planned(*(gpu(name, **parts) for parts in sizes), verdict=verdict, notes=[verdict]))
    assert text.isascii()
    assert max(map(len, text.split("\n"))) <= WIDTH
