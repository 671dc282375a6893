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

from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import TYPES, Compared, compared
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, written_as


@dataclass(frozen=True)
class Effective:
    """What was found; `requests` and `tokens` are None where SGLang does not tell."""

    arguments: int  # requested ones that were compared
    differences: tuple[str, ...]
    requests: int | None  # at a time, of all schedulers together
    tokens: int | None  # that their KV caches hold
    memory: dict[str, float]  # GiB that the first scheduler tells of, e.g. weight, kvcache, graph


def effective(
    args: Mapping[str, Any], schema: Schema, info: Mapping[str, Any], accepted: Collection[str] = ()
) -> Effective:
    """Compare `args` with the answer of /server_info; a difference of an option in `accepted` is none."""
    top = compared(args, schema, info)
    told = [(one.option, f"the server reports {one.reported!r}") for one in top if not one.same]
    states = [state for state in info.get("internal_states") or [] if isinstance(state, Mapping)]
    own = _own_business(info)
    for rank, state in enumerate(states):
        who = f"scheduler {rank}" if len(states) > 1 else "the scheduler"
        told += [
            (one.option, f"{who} runs with {one.reported!r}")
            for one in compared(args, schema, state)
            if not one.same and one.field not in own and not _is_share(one, info)
        ]
    requests = [state.get("effective_max_running_requests_per_dp") for state in states]
    tokens = [_mapping(state.get("memory_usage")).get("token_capacity") for state in states]
    # attention DP divides the requests among the schedulers, and SGLang rounds tokens down to whole pages
    divided, page = _groups(info), int(info.get("page_size") or 1)
    for option, limits, parts, slack in (
        ("max_running_requests", requests, divided, 0),
        ("max_total_tokens", tokens, 1, page - 1),
    ):
        name = written_as(option, args, schema)
        known = [limit for limit in limits if isinstance(limit, (int, float))]
        if name and args[name] is not None and known and min(known) < _whole(args[name]) // parts - slack:
            each = " for each scheduler" if len(states) > 1 else ""
            told.append((name, f"the memory that is left allows {min(known)}{each}"))
    seen = {option: text for option, text in reversed(told) if option not in accepted}
    differences = tuple(f"{option}: requested {args[option]!r}, {seen[option]}" for option in sorted(seen))
    usage = _mapping(states[0].get("memory_usage")) if states else {}
    sizes = {name: usage.get(name) for name in ("weight", "kvcache", "graph")}
    memory = {name: float(size) for name, size in sizes.items() if isinstance(size, (int, float))}
    return Effective(len(top), differences, _sum(requests), _sum(tokens), memory)


def _sum(values: Any) -> int | None:
    numbers = [value for value in values if isinstance(value, (int, float))]
    return int(sum(numbers)) if numbers else None


def _own_business(info: Mapping[str, Any]) -> set[str]:
    """Return fields that a scheduler sets for itself while or after it loads (managers/scheduler.py, adaptive_spec)."""
    fields = set()
    if info.get("speculative_adaptive"):
        fields |= {"speculative_num_steps", "speculative_num_draft_tokens"}
    if info.get("speculative_draft_load_format"):
        fields.add("load_format")
    return fields


def _is_share(one: Compared, info: Mapping[str, Any]) -> bool:
    """Tell whether a scheduler has its share of what was asked for all (mem_cache/kv_cache_configurator.py)."""
    return one.field == "max_mamba_cache_size" and one.reported == _whole(one.requested) // _groups(info)


def _groups(info: Mapping[str, Any]) -> int:
    """Among how many groups of schedulers requests are divided; since 0.5.22 attention DP has a size of its own."""
    return int(info.get("attn_dp_size") or info.get("dp_size") or 1)


def _whole(value: Any) -> int:
    try:
        return int(TYPES["human_readable_int"][0](str(value)))
    except ValueError:
        return 0  # refused long before


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
