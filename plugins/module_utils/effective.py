# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a live server runs with, of what was requested: its own arguments, those of each of its schedulers, and the
limits that a scheduler sets by the memory that was left for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import compared
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical


@dataclass(frozen=True)
class Effective:
    """What was found; `requests` and `tokens` are None where SGLang does not tell."""

    arguments: int  # requested ones that were compared
    differences: tuple[str, ...]
    requests: int | None  # at a time, of all schedulers together
    tokens: int | None  # that their KV caches hold


def effective(
    args: Mapping[str, Any], schema: Schema, info: Mapping[str, Any], accepted: Collection[str] = ()
) -> Effective:
    """Compare `args` with the answer of /server_info; a difference of an option in `accepted` is none."""
    top = compared(args, schema, info)
    told = [(one.option, f"the server reports {one.reported!r}") for one in top if not one.same]
    states = [state for state in info.get("internal_states") or [] if isinstance(state, Mapping)]
    for rank, state in enumerate(states):
        who = f"scheduler {rank}" if len(states) > 1 else "the scheduler"
        told += [
            (one.option, f"{who} runs with {one.reported!r}") for one in compared(args, schema, state) if not one.same
        ]
    requests = _sum(state.get("effective_max_running_requests_per_dp") for state in states)
    tokens = _sum(_mapping(state.get("memory_usage")).get("token_capacity") for state in states)
    for flag, limit, slack in (
        ("--max-running-requests", requests, len(states)),  # each scheduler gets a whole number of them
        ("--max-total-tokens", tokens, len(states) * int(info.get("page_size") or 1)),
    ):
        name = next((name for name in args if canonical(name, schema) == flag and args[name] is not None), None)
        if name and limit is not None and limit <= _number(args[name]) - slack:
            told.append((name, f"the memory that is left allows {limit}"))
    seen = {option: text for option, text in reversed(told) if option not in accepted}
    differences = tuple(f"{option}: requested {args[option]!r}, {seen[option]}" for option in sorted(seen))
    return Effective(len(top), differences, requests, tokens)


def _sum(values: Any) -> int | None:
    numbers = [value for value in values if isinstance(value, (int, float))]
    return int(sum(numbers)) if numbers else None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0  # e.g. 32k: the arguments themselves are compared before


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
