#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it costs to ask SGLang about an instance, as a multiple of the same playbook when the answer was kept.

    bin/bench preflight [ROUNDS]

Both whole commands run in turn, so a change of the machine's load meets both; the figure is the median of the rounds'
ratios. The lab must be up and deployed. Figures are recorded in docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
FORGET = [
    "ansible",
    "ct129",
    "-m",
    "ansible.builtin.file",
    "-a",
    "path=/var/lib/sglang/tiny/preflight.json state=absent",
]
ASK = ["ansible-playbook", "playbooks/preflight.yml", "-l", "ct129"]


def seconds(program: str, *words: str) -> float:
    begin = time.monotonic()
    done = subprocess.run([str(BIN / program), *words], cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return time.monotonic() - begin


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ratios = []
    for number in range(1, rounds + 1):
        seconds(*FORGET)
        asked, kept = seconds(*ASK), seconds(*ASK)
        ratios.append(asked / kept)
        print(f"round {number}: asked {asked:.2f} s, kept {kept:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"asked / kept: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
