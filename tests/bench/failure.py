#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long it takes from the end of a server that fails while it loads until its diagnosis is on the screen.

    bin/bench failure [ROUNDS]

The end is what systemd writes into the journal; the lab has this machine's clock. The server is the lab's stand-in.
The lab must be up and deployed. Figures are recorded in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from restart import BIN, PROJECT, instances, run

HOME = "/var/lib/sglang/tiny/home"
FAILURE = "STANDIN_FAULT=dies_loading\nSTANDIN_LOAD_SECONDS=6\n"


def in_container(*argv: str) -> str:
    return run("ansible", "ct130", "-m", "ansible.builtin.command", "-a", json.dumps({"argv": argv}))


def delay(*asked: str) -> float:
    """Return the s from the end of the process to the diagnosis."""
    content = json.dumps({"content": FAILURE, "dest": f"{HOME}/standin-next", "owner": "sglang"})
    run("ansible", "ct130", "-m", "ansible.builtin.copy", "-a", content)
    words = [str(BIN / "ansible-playbook"), *asked, "-e", "sglang_server_state=restarted"]
    told = 0.0
    with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as playbook:
        for line in playbook.stdout or ():
            if not told and "the server ended while loading weights" in line:
                told = time.time()
    if not told:
        sys.exit("the launch did not fail")
    journal = in_container("journalctl", "--unit=sglang-tiny", "--output=short-unix", "--no-pager", "--lines=200")
    ends = [line for line in journal.splitlines() if "Main process exited" in line and float(line.split()[0]) < told]
    return told - float(ends[-1].split()[0])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    asked = ["deploy.yml", "-l", "ct130", "-e", instances()]
    run("ansible-playbook", *asked)
    delays = []
    for number in range(1, rounds + 1):
        delays.append(delay(*asked))
        print(f"round {number}: {delays[-1]:.2f} s", flush=True)
    print(f"end to diagnosis: median {statistics.median(delays):.2f} s, {min(delays):.2f} to {max(delays):.2f}")


if __name__ == "__main__":
    main()
