# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.cards import CARDS, card, find


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("a6000", 49140),
        ("NVIDIA RTX A6000", 49140),
        ("RTX PRO 6000 Blackwell", 97887),
        ("rtx-pro-6000", 97887),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
        ("3090", 24576),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("rtx_5090", 32607),
        ("L40S", 46068),
        ("NVIDIA A100-SXM4-40GB", 40960),
        ("A100 80GB", 81920),
        ("NVIDIA A100 80GB PCIe", 81920),
        ("H100", 81559),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("NVIDIA H100 PCIe", 81559),
        ("H200", 143771),
        ("nvidia h200 NVL", 143771),
        ("B200", 183359),
    ],
)
def test_a_card_by_its_name(name: str, total: int) -> None:
    found = card(name)
    assert (found.total_mib, found.free_mib) == (total, None)


@pytest.mark.parametrize(
    "name",
    [
        "A100",
        "A10",
        "H100 NVL",
        "GH200",
        "GB200",
        "RTX 3090 Ti",
        "RTX 4090 D",
        "RTX 6000 Ada",
        "RTX PRO 6000D",
        "L40",
        "",
    ],
)
def test_a_card_with_another_memory_is_not_taken_for_one_that_is_known(name: str) -> None:
    assert find(name) is None
    with pytest.raises(ValueError, match="memory_total_mib") as error:
        card(name)
    assert repr(name) in str(error.value) and all(one.name in str(error.value) for one in CARDS)


def test_each_card_goes_by_its_own_name_and_says_where_its_memory_was_seen() -> None:
    assert all(find(one.name) is one and one.source for one in CARDS)
