# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gpuops.sglang.plugins.filter import plan_bars as plugin


def test_every_instance_of_every_host_is_shown_though_one_could_not_be_planned() -> None:
    (name,) = plugin.FilterModule().filters()
    shown = plugin.FilterModule().filters()[name](
        {
            "ct130": [{"item": "b", "failed": True, "msg": "there is no model"}, {"item": "c", "bars": "fits\n|ww|"}],
            "ct129": [{"item": "a", "bars": "does not fit\n|w|"}],
            "gone": [],
        }
    )
    assert name == "plan_bars"
    assert shown.split("\n\n") == [
        "ct129 a: does not fit\n|w|",
        "ct130 b: no plan: there is no model",
        "ct130 c: fits\n|ww|",
        "gone: nothing was planned: it has no instances, or gave no answer",
    ]
