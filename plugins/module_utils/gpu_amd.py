# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What AMD's tools tell of each GPU, as data: amd-smi, else the older rocm-smi."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import SMI_WAIT
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_smi import holder
from ansible_collections.gpuops.sglang.plugins.module_utils.host import last_lines, run

QUESTIONS = (
    ("list",),
    ("static", "--asic", "--bus", "--vram"),
    ("metric", "--mem-usage"),
    ("process", "--general"),
)
ROCM_QUESTION = ("--showproductname", "--showmeminfo", "vram", "--showbus", "--showuniqueid")
UNITS = {"B": 2**-20, "KB": 2**-10, "MB": 1.0, "GB": 2.0**10}  # of amd-smi -> MiB; its MB are MiB
WORDS = 5


class Unanswered(Exception):
    """A tool gives no answer; holds its state and words."""


def ask() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how AMD's tool fares and the GPUs that it tells of; as gpu_smi.ask() does."""
    facts: dict[str, Any] = {"tool": "amd-smi", "state": "answers", "words": []}
    try:
        merged: dict[int, dict[str, Any]] = {}
        for question in QUESTIONS:
            answer = _json("amd-smi", *question)
            for entry in answer.get("gpu_data", []) if isinstance(answer, dict) else answer:
                merged.setdefault(int(entry["gpu"]), {}).update(entry)
        return facts, [_gpu(index, merged[index]) for index in sorted(merged)]
    except Unanswered as why:
        if why.args[0] != "missing":
            return {**facts, "state": why.args[0], "words": why.args[1]}, []
    try:
        answer = _json("rocm-smi", *ROCM_QUESTION)
        cards = {int(key[4:]): card for key, card in answer.items() if key.startswith("card")}
        return {**facts, "tool": "rocm-smi"}, [_rocm_gpu(index, cards[index]) for index in sorted(cards)]
    except Unanswered as why:
        tool = "amd-smi" if why.args[0] == "missing" else "rocm-smi"
        return {**facts, "tool": tool, "state": why.args[0], "words": why.args[1]}, []


def _json(*argv: str) -> Any:
    try:
        done = run([*argv, "--json"], timeout=SMI_WAIT)
    except OSError as error:
        raise Unanswered("missing", [error.strerror or str(error)]) from None
    except subprocess.TimeoutExpired:
        raise Unanswered("hangs", [f"{argv[0]} does not answer within {SMI_WAIT} s"]) from None
    # warnings may come before the answer
    starts = [place for place in (done.stdout.find("["), done.stdout.find("{")) if place >= 0]
    try:
        return json.loads(done.stdout[min(starts) :]) if starts and not done.returncode else _fail(done)
    except ValueError:
        return _fail(done)


def _fail(done: subprocess.CompletedProcess[str]) -> Any:
    raise Unanswered("fails", last_lines(f"{done.stdout}\n{done.stderr}", WORDS))


def _gpu(index: int, told: dict[str, Any]) -> dict[str, Any]:
    asic, usage = told.get("asic") or {}, told.get("mem_usage") or {}
    total = _mib(usage.get("total_vram"))
    processes = []
    for entry in told.get("process_list") or []:
        info = entry.get("process_info") if isinstance(entry, dict) else None
        if isinstance(info, dict) and str(info.get("pid")).isdigit():  # else it says in words that there is none
            memory = _mib((info.get("memory_usage") or {}).get("vram_mem") or info.get("mem_usage"))
            processes.append(holder(int(info["pid"]), _known(info.get("name")), memory, None))
    return {
        "vendor": "amd",
        "index": index,
        "uuid": _known(told.get("uuid")),
        "name": _known(asic.get("market_name")),
        "pci_bus_id": _known(told.get("bdf") or (told.get("bus") or {}).get("bdf")),
        "compute_capability": _known(asic.get("target_graphics_version")),
        "memory_total": total if total is not None else _mib((told.get("vram") or {}).get("size")),
        "memory_used": _mib(usage.get("used_vram")),
        "memory_free": _mib(usage.get("free_vram")),
        "processes": processes,
    }


def _rocm_gpu(index: int, card: dict[str, str]) -> dict[str, Any]:
    total, used = (card.get(f"VRAM Total{kind} Memory (B)", "") for kind in ("", " Used"))
    sizes = [int(size) / 2**20 if size.isdigit() else None for size in (total, used)]
    names = {key.lower(): value for key, value in card.items()}  # rocm-smi 6 wrote 'Card series', 7 'Card Series'
    return {
        "vendor": "amd",
        "index": index,
        "uuid": _known(card.get("Unique ID")),
        "name": _known(names.get("card series")),
        "pci_bus_id": (_known(card.get("PCI Bus")) or "").lower() or None,
        "compute_capability": _known(names.get("gfx version")),
        "memory_total": sizes[0],
        "memory_used": sizes[1],
        "memory_free": None if sizes[0] is None or sizes[1] is None else sizes[0] - sizes[1],
        "processes": [],
    }


def _known(value: Any) -> str | None:
    return None if value in (None, "", "N/A") else str(value)


def _mib(value: Any) -> float | None:
    """Return MiB of what amd-smi says as {value, unit}, or as a plain number of MB before it had units."""
    number, unit = (value.get("value"), value.get("unit")) if isinstance(value, dict) else (value, "MB")
    return float(number) * UNITS.get(str(unit), 1.0) if isinstance(number, (int, float)) else None
