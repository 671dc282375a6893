# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch really took of a GPU, from its own log, and what the next plan learns from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Asked

RANK = re.compile(r"^\[[\d: -]{19}((?: [A-Z]+\d+)*)\]")
# SGLang's GB are GiB (utils/common.py, get_available_gpu_memory)
BEFORE = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")
WEIGHTS = re.compile(r"Load weight end\..* mem usage=([\d.]+) GB")
GRAPHS = re.compile(r"Capture .*graph end\..* mem usage=([\d.]+) GB")
LEFT = re.compile(r"max_total_num_tokens=\d+,.* available_gpu_mem=([\d.]+) GB")
# What may differ between two launches whose weights take the same
POOLS = frozenset((
    "chunked_prefill_size", "context_length", "kv_cache_dtype", "mamba_full_memory_ratio", "mamba_ssm_dtype",
    "max_mamba_cache_size", "max_prefill_tokens", "max_running_requests", "max_total_tokens", "mem_fraction_static",
    "page_size", "swa_full_tokens_ratio",
))  # fmt: skip
# What decides about the context of a rank
RANKS = frozenset((
    "disable_custom_all_reduce", "dp_size", "enable_dp_attention", "ep_size", "pp_size", "pre_warm_nccl", "tp_size",
))  # fmt: skip
CONTEXT = (0.1, 3.0)  # GiB: outside of it something else has used the GPU meanwhile
FAR = 0.25  # share by which weights may be off from the plan: more is something else, too


def measured(lines: Iterable[str]) -> dict[str, float]:
    """Return GiB on the fullest GPU: `before` (free before loading), `weights` of the model itself, `graphs`, `left`.

    What the log does not tell is not there.
    """
    before: dict[str, float] = {}
    weights: dict[str, float] = {}
    graphs: dict[str, float] = {}
    left: dict[str, float] = {}
    for line in lines:
        stamp = RANK.match(line)
        rank = stamp[1] if stamp else ""
        for pattern, sizes in ((BEFORE, before), (WEIGHTS, weights), (LEFT, left)):
            found = pattern.search(line)
            if found:
                sizes.setdefault(rank, float(found[1]))  # a draft is loaded after the model
        found = GRAPHS.search(line)
        if found:
            graphs[rank] = graphs.get(rank, 0.0) + float(found[1])
    told = {
        "before": min(before.values(), default=None),
        "weights": max(weights.values(), default=None),
        "graphs": max(graphs.values(), default=None),
        "left": min(left.values(), default=None),
    }
    return {name: round(size, 3) for name, size in told.items() if size is not None}


def learned(
    state: Path, instance: str, version: str, model: str, args: Mapping[str, Any]
) -> tuple[dict[str, float], list[str]]:
    """Return what the last good launch of the same version and model took, for memory.plan, and how far its plan was
    off, in a sentence; both may be empty.
    """
    try:
        verdicts = launches.earlier_verdicts(state, instance)
    except OSError:  # a login that may not read it
        return {}, []
    for verdict in reversed(verdicts):
        try:
            record = launches.record(state, instance, verdict["launch"])
        except (Refused, KeyError):
            continue
        plan, took = record.get("plan") or {}, verdict.get("measured") or {}
        # the plan of a return is that of the launch that it returned to, when other things were free
        if not record.get("again") and (plan.get("version"), record.get("model")) == (version, model):
            before, now = ({**Asked(one).args, "device": None} for one in (record.get("args") or {}, args))
            differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
            if plan.get("model_bytes") != model_bytes(Path(model)):
                differ.add("model")
            return _usable(plan, took, differ, bool(now.get("cpu_offload_gb"))), _off(plan, verdict)
    return {}, []


def model_bytes(folder: Path) -> int:
    """Return the size of all files of a model, which tells one from another under the same path; 0 if not told."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:
        return 0


def _usable(
    plan: Mapping[str, Any], took: Mapping[str, float], differ: Collection[str], offloads: bool
) -> dict[str, float]:
    usable = {}
    if "before" in took and plan.get("free_gib"):
        context = plan["free_gib"] - took["before"]
        usable = {"context": context} if CONTEXT[0] < context < CONTEXT[1] and RANKS.isdisjoint(differ) else {}
    planned, weights = plan.get("weights_gib"), took.get("weights")
    # what is offloaded is not in it, and a plan takes that off by itself
    if weights and planned and abs(weights / planned - 1) < FAR and POOLS.issuperset(differ) and not offloads:
        usable["weights"] = weights
    if not differ and "graphs" in took:
        usable["graphs"] = took["graphs"]
    return usable


def _off(plan: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[str]:
    planned, real = plan.get("kv_tokens"), verdict.get("kv_tokens")
    if not planned or not real:
        return []
    return [f"the plan of the last launch said {planned} KV tokens, and there were {real} ({real / planned - 1:+.2%})"]
