#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deployment that changes nothing costs, as a multiple of `ansible -m ping` over the same connection.

    bin/bench no_change [ROUNDS]

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
COMMANDS = {
    "ping": [str(BIN / "ansible"), "ct129", "-m", "ansible.builtin.ping"],
    "deploy": [str(BIN / "ansible-playbook"), "deploy.yml", "-l", "ct129"],
}


def seconds(name: str) -> float:
    """Run a command to its end and return its wall time in seconds; a deployment that changes something is an error."""
    begin = time.monotonic()
    done = subprocess.run(COMMANDS[name], cwd=PROJECT, capture_output=True, text=True, check=False)
    taken = time.monotonic() - begin
    if done.returncode != 0 or (name == "deploy" and "changed=0" not in done.stdout):
        sys.exit(f"{name}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return taken


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seconds("ping")  # opens the shared SSH connection
    ratios = []
    for number in range(1, rounds + 1):
        ping, deploy = seconds("ping"), seconds("deploy")
        ratios.append(deploy / ping)
        print(f"round {number}: ping {ping:.2f} s, deploy {deploy:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"no-change deploy / ping: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
