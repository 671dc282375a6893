#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan costs: one in a fresh process, as a multiple of a module that does nothing, and 10,000 of one model.

    PYTHONPATH=.dev .venv/bin/python tests/bench/plan.py [ROUNDS]

No lab is needed; the times are of the CPU, so that others on the machine matter little.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Search
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import read_shape

MODEL = Path(__file__).parents[1] / "unit/fixtures/memory/qwen36-27b.json"
NOTHING = """
from ansible.module_utils.basic import AnsibleModule
AnsibleModule(argument_spec={}).exit_json(changed=False)
"""
PLAN = """
from ansible_collections.gpuops.sglang.plugins.modules import sglang_plan
sglang_plan.main()
"""
ASKED = {
    "model": str(MODEL), "assume_complete": True, "sglang_version": "0.5.23", "gpus": [{"name": "A6000", "count": 2}],
    "args": {"tp_size": 2, "max_running_requests": 48, "speculative_algorithm": "EAGLE", "context_length": 8192},
}  # fmt: skip


def seconds(program: str, asked: dict[str, object]) -> float:
    """Return the CPU time of a module in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = json.dumps({"ANSIBLE_MODULE_ARGS": asked})
    done = subprocess.run([sys.executable, "-c", program], input=words, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if '"changed": false' not in done.stdout:
        sys.exit(done.stdout + done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    pairs = [(seconds(PLAN, ASKED), seconds(NOTHING, {})) for _ in range(rounds)]
    ratios = [plan / nothing for plan, nothing in pairs]
    print(
        f"a plan with its levers, to a module that does nothing: {statistics.median(ratios):.1f} ({min(ratios):.1f} to "
        f"{max(ratios):.1f} in {rounds} rounds; {statistics.median(plan for plan, _ in pairs):.2f} s of CPU)"
    )
    shape, gpus = read_shape(MODEL), [Gpu("NVIDIA RTX A6000", 49140)] * 2
    search, begin = Search(shape, {"tp_size": 2}, gpus, "0.5.23"), time.process_time()
    told = {
        (plan.kv_tokens, plan.effective_max_running_requests)
        for requests in range(1, 101)
        for step in range(100)
        if (plan := search.planned(max_running_requests=requests, mem_fraction_static=0.5 + step * 0.0045))
    }
    print(f"10000 plans of one model, {len(told)} different: {time.process_time() - begin:.2f} s of CPU")


if __name__ == "__main__":
    main()
