# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gpuops.sglang.plugins.filter import plan_page as plugin


def test_the_filter_makes_a_page_of_what_was_registered() -> None:
    ((name, make),) = plugin.FilterModule().filters().items()
    text = make({"ct130": [{"item": "b", "failed": True, "msg": "there is no model"}], "gone": []})
    assert name == "plan_page" and text.startswith("<!DOCTYPE html>")
    assert "no plan: there is no model" in text and "<h2>gone</h2>" in text
