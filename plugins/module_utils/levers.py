# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The smallest single changes that make a plan fit, or reach a wanted concurrency or context; each is planned again
before it is offered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.memory import plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu, Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_rules import rules_of
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import ALIASES, Asked
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape

HIGHEST = 0.95  # mem_fraction_static that is offered
STEP = 0.005
TENSOR = (1, 2, 4, 8, 16)
LAYOUT = frozenset(("tp_size", "pp_size", "quantization"))
# What an earlier launch took -> the changes after which it takes something else
MEASURED_UNDER = {
    "context": {"tp_size", "pp_size"},
    "weights": LAYOUT,
    "graphs": LAYOUT | {"chunked_prefill_size", "cuda_graph_max_bs_decode", "speculative_algorithm"},
}
AMPERE = re.compile(r"\b(A\d{1,4}[GX]?|RTX A\d+|30[5-9]0)\b")  # whose kernels do not know fp8_e4m3


@dataclass(frozen=True)
class Lever:
    """One change; `value` None means to delete the option. `plan` is what it leads to."""

    option: str
    value: Any
    costs: str
    plan: Plan

    def __str__(self) -> str:
        what = f"delete '{self.option}'" if self.value is None else f"set '{self.option}' to {self.value}"
        return f"{what}: {self.costs}"


@dataclass(frozen=True)
class Wanted:
    """What a plan must reach; 0 asks for nothing more than to fit."""

    context: int = 0
    concurrency: int = 0

    def met(self, found: Plan) -> bool:
        if not found.fits or found.tight:
            return False
        if self.context and (found.context < self.context or found.at_once(self.context) < max(1, self.concurrency)):
            return False
        return found.effective_max_running_requests >= self.concurrency


class Search:
    """Plans changes of one instance."""

    def __init__(
        self, shape: Shape, args: Mapping[str, Any], gpus: Sequence[Gpu], version: str, draft: Shape | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.gpus, self.version, self.draft, self.measured = shape, gpus, version, draft, measured
        self.args = dict(args)
        self.written = {
            ALIASES.get(_plain(name), _plain(name)): name for name, value in args.items() if value is not None
        }

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments with `changes`, under the names of the newest release; None deletes one."""
        args = {
            name: value for name, value in self.args.items() if ALIASES.get(_plain(name), _plain(name)) not in changes
        }
        return {**args, **{name: value for name, value in changes.items() if value is not None}}

    def plan(self, **changes: Any) -> Plan:
        """Plan with `changes`; ValueError with one line where that is no valid launch."""
        stale = {part for part, options in MEASURED_UNDER.items() if not options.isdisjoint(changes)}
        measured = {part: size for part, size in (self.measured or {}).items() if part not in stale}
        return plan(self.shape, self.changed(**changes), self.gpus, self.version, self.draft, measured)

    def planned(self, **changes: Any) -> Plan | None:
        """Plan with `changes`; None where that is no valid launch."""
        try:
            return self.plan(**changes)
        except ValueError:
            return None

    def name(self, option: str) -> str:
        """Return the option as it is written already, or as the release calls it."""
        old = {
            "mamba_radix_cache_strategy": "mamba_scheduler_strategy",
            "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
        }
        early = rules_of(self.version).version < (0, 5, 14)
        return self.written.get(option) or (old.get(option, option) if early else option)

    def lever(self, option: str, value: Any, costs: str, wanted: Wanted) -> Iterator[Lever]:
        found = self.planned(**{option: value})
        if found and wanted.met(found):
            yield Lever(self.name(option), value, costs, found)

    def most(self, option: str, values: Sequence[Any], wanted: Wanted) -> Any:
        """Return the first of `values`, which go from the smallest change to the largest, that reaches it."""
        low, high = 0, len(values) - 1
        if high < 0 or not self._met(option, values[high], wanted):
            # what the largest change does not reach, one between may: more is not always better
            return next(
                (value for value in values[:: max(1, len(values) // 16)] if self._met(option, value, wanted)), None
            )
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._met(option, values[middle], wanted) else (middle + 1, high)
        return values[low]

    def _met(self, option: str, value: Any, wanted: Wanted) -> bool:
        found = self.planned(**{option: value})
        return found is not None and wanted.met(found)


def levers(
    shape: Shape, args: Mapping[str, Any], gpus: Sequence[Gpu], version: str, wanted: Wanted | None = None,
    draft: Shape | None = None, measured: Mapping[str, float] | None = None,
) -> list[Lever]:  # fmt: skip
    """Return single changes that reach `wanted`, the one that costs least first; none if it is reached already, or if
    the model is not understood well enough to prove a change.

    Without `wanted` it is that the arguments fit, with the context that they name; and if they do, that as many
    requests run as they name.
    """
    search = Search(shape, args, gpus, version, draft, measured)
    now, asked = search.planned(), Asked(args)
    if now is None or now.unknown:
        return []
    if wanted is None:
        requests = asked.size("max_running_requests") or 0
        wanted = Wanted(asked.size("context_length") or 0, 0)
        wanted = Wanted(0, requests) if wanted.met(now) else wanted
    if wanted.met(now) or wanted.context > max(now.context, shape.context):
        return []
    return [lever for kind in KINDS for lever in kind(search, now, asked, wanted)]


def of_requests(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    """Fewer requests need fewer states: the most that really run."""
    least, most = max(1, wanted.concurrency), (now.requested or 0) - 1
    if now.failing_stage == "requests" and now.requested is None:
        most = 1024
    if most >= least:
        run = (value for value in range(most, least - 1, -1) if _runs(search, value, wanted))
        value = next(run, None)
        if value:
            costs = f"at most {value} requests at a time, the others wait"
            yield from search.lever("max_running_requests", value, costs, wanted)
    elif now.requested and now.requested < wanted.concurrency:
        yield from search.lever("max_running_requests", wanted.concurrency, "more states, less cache", wanted)


def _runs(search: Search, requests: int, wanted: Wanted) -> bool:
    found = search.planned(max_running_requests=requests)
    return found is not None and wanted.met(found) and found.effective_max_running_requests >= requests


def of_fraction(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    """More for weights and pools, or less where graphs or a draft find no room beside them."""
    steps = range(1, 200)
    up = [round(now.fraction + STEP * step, 3) for step in steps if now.fraction + STEP * step <= HIGHEST]
    down = [round(now.fraction - STEP * step, 3) for step in steps if now.fraction - STEP * step >= 0.1]
    for values, costs in ((up, "less room for activations and graphs"), (down, "less cache")):
        value = search.most("mem_fraction_static", values, wanted)
        if value:
            found = search.planned(mem_fraction_static=value)
            rest = f", {found.rest_gib:.1f} GiB are left for them" if found and values is up else ""
            yield from search.lever("mem_fraction_static", value, costs + rest, wanted)
            return


def of_states(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if search.shape.linear is None:
        return
    slots = asked.size("max_mamba_cache_size")
    if slots:
        yield from search.lever("max_mamba_cache_size", None, "SGLang divides memory between states and cache", wanted)
    if wanted.concurrency or slots:
        start = max(slots or 1, 1)
        values = sorted({max(start + 1, int(start * 1.1**step)) for step in range(1, 80)})
        value = search.most("max_mamba_cache_size", [one for one in values if one < 20000], wanted)
        if value:
            yield from search.lever("max_mamba_cache_size", value, "more memory for states, less for the cache", wanted)
    if asked.text("mamba_ssm_dtype") != "bfloat16" and search.shape.linear.kind in ("gdn", "mamba2", "kda"):
        costs = "states of half the size lose precision over long contexts"
        yield from search.lever("mamba_ssm_dtype", "bfloat16", costs, wanted)
    up, down = [0.9 + 0.3 * step for step in range(1, 31)], [0.9 - 0.05 * step for step in range(1, 17)]
    for ratios in (up, down):
        ratio = None if slots else search.most("mamba_full_memory_ratio", [round(one, 2) for one in ratios], wanted)
        if ratio:
            costs = "more memory for states, less for the cache" if ratio > 0.9 else "more cache, fewer states"
            yield from search.lever("mamba_full_memory_ratio", ratio, costs, wanted)


def _cache(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if asked.text("kv_cache_dtype") in ("", "auto", "bfloat16"):
        kind = "fp8_e5m2" if any(AMPERE.search(gpu.name) for gpu in search.gpus) else "fp8_e4m3"
        yield from search.lever("kv_cache_dtype", kind, "keys and values of half the size, a little accuracy", wanted)
    if now.sliding_tokens and not asked.args.get("swa_full_tokens_ratio"):
        values = [round(0.8 - 0.05 * step, 2) for step in range(1, 15)]
        value = search.most("swa_full_tokens_ratio", values, wanted)
        if value:
            yield from search.lever(
                "swa_full_tokens_ratio", value, "less of what sliding layers can keep for others", wanted
            )


def _context(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if wanted.context > now.context:
        yield from search.lever("context_length", wanted.context, "longer requests take more of the cache", wanted)
    if asked.args.get("max_total_tokens") is not None:
        yield from search.lever("max_total_tokens", None, "the cache takes what memory is left", wanted)


def _graphs(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if now.failing_stage == "graphs" or asked.args.get("mem_fraction_static") is None:
        value = search.most("cuda_graph_max_bs_decode", [256, 128, 64, 32, 16, 8], wanted)
        if value:
            costs = f"batches of more than {value} requests run without graphs, slower"
            yield from search.lever("cuda_graph_max_bs_decode", value, costs, wanted)
        value = search.most("chunked_prefill_size", [4096, 2048], wanted)
        if value:
            yield from search.lever("chunked_prefill_size", value, "long prompts are read in smaller steps", wanted)


def _weights(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    size = asked.at_least_one("tp_size")
    for more in (one for one in TENSOR if one > size and divides(search.shape, one)):
        offered = list(search.lever("tp_size", more, f"takes {more} GPUs", wanted))
        yield from offered
        if offered:
            break
    if not search.shape.quantization.method and not asked.text("quantization"):
        yield from search.lever("quantization", "fp8", "weights of half the size, a little accuracy", wanted)


def _draftless(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if asked.text("speculative_algorithm"):
        costs = "answers come slower; delete the other options of speculative decoding, too"
        yield from search.lever("speculative_algorithm", None, costs, wanted)


def _radixless(search: Search, now: Plan, asked: Asked, wanted: Wanted) -> Iterator[Lever]:
    if search.shape.linear and not asked.on("disable_radix_cache") and "mamba_radix_cache_strategy" not in asked.args:
        costs = "one state for a request instead of several, but nothing of earlier requests is reused"
        yield from search.lever("disable_radix_cache", True, costs, wanted)


def divides(shape: Shape, size: int) -> bool:
    heads = shape.heads % size == 0 if shape.heads else True
    return heads and (shape.kv_heads % size == 0 or size % max(1, shape.kv_heads) == 0)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


# In the order of what they cost whoever uses the server
Kind = Callable[[Search, Plan, Asked, Wanted], Iterator[Lever]]
KINDS: tuple[Kind, ...] = (
    of_requests,
    _context,
    of_fraction,
    of_states,
    _cache,
    _graphs,
    _weights,
    _radixless,
    _draftless,
)
