# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of results is kept for a workflow."""

from __future__ import annotations

from ansible_collections.gpuops.sglang.plugins.filter.artifact import artifact


def test_each_module_s_results_become_short_records() -> None:
    verdict = {"instance": "a", "launch": "L", "url": "http://127.0.0.1:1", "tokens": 8, "memory": {"weight": 1.0}}
    plan = {"item": "b", "fits": False, "verdict": "does not fit", "bars": "...", "levers": [{}]}
    answer = {"name": "c", "problems": ["x"], "resolved": {"model_path": "/m"}}
    assert artifact({"h2": [answer, plan], "h1": [verdict], "h0": []}) == {
        "h0": [],
        "h1": [{"instance": "a", "launch": "L", "url": "http://127.0.0.1:1"}],
        "h2": [
            {"instance": "c", "problems": ["x"]},
            {"instance": "b", "fits": False, "verdict": "does not fit"},
        ],
    }
