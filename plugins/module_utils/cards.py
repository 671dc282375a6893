# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of cards by name, so that hardware can be planned for that is not there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu


@dataclass(frozen=True)
class Card:
    """A card, how its name may be written (see _plain), and its memory as nvidia-smi tells it."""

    name: str
    spelled: str
    total_mib: int
    source: str


# Outputs of nvidia-smi; those in threads on GitHub are named by the thread
CARDS = (
    Card("NVIDIA RTX A6000", r"(rtx )?a6000( 48 ?gb)?", 49140, "of several hosts; with ECC on it is 46068"),
    Card(
        "NVIDIA RTX PRO 6000 Blackwell",
        r"rtx pro 6000( blackwell)?( (max q )?workstation| server)?( edition)?( 96 ?gb)?",
        97887,
        "of Workstation, Max-Q and Server Editions, drivers 580 to 610",
    ),
    Card("NVIDIA GeForce RTX 3090", r"(rtx )?3090( 24 ?gb)?", 24576, "noonghunna/club-3090#390"),
    Card("NVIDIA GeForce RTX 4090", r"(rtx )?4090( 24 ?gb)?", 24564, "RLinf/RLinf#255"),
    Card("NVIDIA GeForce RTX 5090", r"(rtx )?5090( 32 ?gb)?", 32607, "noonghunna/club-3090#1261"),
    Card("NVIDIA L40S", r"l40s( 48 ?gb)?", 46068, "akash-network/provider-configs#99"),
    Card("NVIDIA A100 40GB", r"a100( sxm4?| pcie)? 40 ?gb( pcie)?", 40960, "modal-labs/modal-client#2797"),
    Card("NVIDIA A100 80GB", r"a100( sxm4?| pcie)? 80 ?gb( pcie)?", 81920, "modal-labs/modal-client#2797"),
    Card("NVIDIA H100 80GB", r"h100( sxm5?| pcie)?( 80 ?gb)?( hbm3| pcie)?", 81559, "NVIDIA/nccl#1264"),
    Card("NVIDIA H200", r"h200( sxm5?| nvl)?( 141 ?gb)?( hbm3e)?", 143771, "measured here, driver 580.159.04"),
    Card("NVIDIA B200", r"b200( sxm)?( 180 ?gb)?", 183359, "NVIDIA/TensorRT-LLM#10278"),
)


def find(name: str) -> Card | None:
    """Return the card of this name, e.g. 'a6000', 'H200' or 'NVIDIA A100-SXM4-80GB'; None if there is none."""
    plain = _plain(name)
    return next((card for card in CARDS if re.fullmatch(card.spelled, plain)), None)


def card(name: str) -> Gpu:
    """Return an idle card; ValueError if its memory is not known here."""
    found = find(name)
    if found is None:
        known = ", ".join(one.name for one in CARDS)
        raise ValueError(
            f"the memory of a card {name!r} is not known: give its memory_total_mib, or name one of {known}"
        )
    return Gpu(found.name, found.total_mib)


def _plain(name: str) -> str:
    words = re.sub(r"[-_\s]+", " ", name.lower()).split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "tesla"))
