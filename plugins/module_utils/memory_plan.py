# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan of GPU memory: the cards, what each of them holds, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

# MiB that CUDA and the first collective take before SGLang measures: 143156 free in nvidia-smi, 139.13 GiB in the log
# (H200, driver 580.159.04, torch 2.11.0+cu130). Other cards were not measured.
CONTEXT_MIB = 687
# MiB of these that are taken only after SGLang measured what the fraction is of: 139.20 GiB, as tokens and fractions of
# the same logs come to, of which 139.13 are left before loading. A rank with others takes nothing that late.
LATE_MIB = 69
# The same of a rank with others: CUDA 528, process group 94, groups with NCCL 902 (two H200 with NVLink, the same
# software, NCCL 2.28.9). More than two ranks were not measured and count like two.
RANKS_MIB = 528 + 94 + 902
# What SGLang's own all-reduce adds to the groups of tensor parallelism, and NCCL's first collective: at the first
# request, or before SGLang measures with --pre-warm-nccl.
ALL_REDUCE_MIB = 38
COLLECTIVE_MIB = 546
# Share of a card that the driver keeps for itself (616 of 143771 MiB), where nobody tells what is free
DRIVER_SHARE = 0.0043
STAGES = ("context", "weights", "draft", "state", "verify", "cache", "requests", "graphs", "rest")


@dataclass(frozen=True)
class Gpu:
    """A card as nvidia-smi tells it; `free_mib` is None for one that is not there yet."""

    name: str
    total_mib: float
    free_mib: float | None = None

    @property
    def free(self) -> float:
        free = self.total_mib * (1 - DRIVER_SHARE) if self.free_mib is None else self.free_mib
        return max(0.0, min(free, self.total_mib)) / 1024


@dataclass(frozen=True)
class OnGpu:
    """What one GPU holds, GiB: `others` (driver and other processes), then STAGES; together they are its memory."""

    name: str
    total: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """`fits` is None where the model is not understood well enough; then sizes are lower bounds."""

    version: str
    fits: bool | None
    failing_stage: str  # of STAGES, or ""
    missing_gib: float  # that the failing stage lacks on each GPU, for one request at least
    gpus: tuple[OnGpu, ...]
    fraction: float
    weights_gib: float
    draft_gib: float
    kv_tokens: int
    sliding_tokens: int
    state_slots: int
    requested: int | None
    effective_max_running_requests: int
    context: int
    longest_context: int  # that each of so many requests can have at once
    window: int  # that sliding layers with a pool of their own need for a request, or 0
    schedulers: int  # each with so many tokens
    rest_gib: float  # for activations, on the fullest GPU, once NCCL has what it takes later
    tight: bool  # that is less than half of what SGLang would reserve for them
    unknown: tuple[str, ...]
    notes: tuple[str, ...]

    def at_once(self, context: int) -> int:
        """Return how many requests can have `context` tokens at the same time."""
        each = self.kv_tokens // max(1, context)
        if self.window:
            each = min(each, self.sliding_tokens // max(1, min(context, self.window)))
        return min(self.effective_max_running_requests, each * self.schedulers)

    @property
    def full_requests(self) -> int:
        """How many requests can have the whole context at the same time."""
        return self.at_once(self.context)

    @property
    def verdict(self) -> str:
        if self.fits is None:
            return f"can not be told: {self.unknown[0]}"
        if not self.fits and not self.missing_gib:
            return f"does not run: the arguments leave nothing for {STAGE_WORDS[self.failing_stage]}"
        if not self.fits:
            stage = STAGE_WORDS[self.failing_stage]
            return f"does not fit: {self.missing_gib:.1f} GiB are missing on each GPU for {stage}"
        if self.requested and self.effective_max_running_requests < self.requested:
            return f"fits, but {self.requested} requests requested, {self.effective_max_running_requests} effective"
        return "fits" + (f", but {self.notes[0]}" if self.notes else "")


STAGE_WORDS = {
    "weights": "the weights", "draft": "the draft model", "state": "the states of linear layers",
    "verify": "the copies of states that a draft is verified with", "cache": "the KV cache",
    "requests": "the tables of requests", "graphs": "CUDA graphs",
}  # fmt: skip
