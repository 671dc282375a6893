#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long clients are without an answer while a deployment restarts an instance, beside `systemctl restart`.

    bin/bench restart [ROUNDS]

A client in the container asks /v1/models every 20 ms; the gap is from its last answer before to its first one after.
Both ways run in turn. The server is the lab's stand-in, whose start costs next to nothing, so that the gap is the way's
own. The lab must be up and deployed. Figures are recorded in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CLIENT = """
import sys, time, urllib.request
end, last, gap = time.monotonic() + 60, None, 0.0
while time.monotonic() < end:
    try:
        urllib.request.urlopen('http://127.0.0.1:30000/v1/models', timeout=1).read()
        now = time.monotonic()
        if last is not None:
            gap = max(gap, now - last)
        if gap > 0.3 and now - last < 0.3:
            break
        last = now
    except OSError:
        pass
    time.sleep(0.02)
print(gap)
"""


def instances() -> str:
    """Extra vars that ask for the stand-in in place of SGLang."""
    variables = yaml.safe_load((PROJECT / "inventories/lab/group_vars/sglang/instances.yml").read_text())
    (instance,) = variables["sglang_server_instances"]
    instance["env"] = {"PYTHONPATH": "/srv/lab/standins/server"}
    return json.dumps({"sglang_server_instances": [instance]})


def run(program: str, *words: str) -> str:
    done = subprocess.run([str(BIN / program), *words], cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return done.stdout


def gap(program: str, *words: str) -> float:
    """Return the s without an answer while a command restarts the server."""
    ask = ["ansible", "ct130", "-m", "ansible.builtin.command", "-a", json.dumps({"argv": ["python3", "-c", CLIENT]})]
    with subprocess.Popen([str(BIN / ask[0]), *ask[1:]], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as client:
        time.sleep(5)  # until it asks
        run(program, *words)
        output, _ = client.communicate()
    return float(output.split()[-1])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    asked = ["deploy.yml", "-l", "ct130", "-e", instances()]
    run("ansible-playbook", *asked)
    differences = []
    for number in range(1, rounds + 1):
        plain = gap("ansible", "ct130", "-m", "ansible.builtin.command", "-a", "systemctl restart sglang-tiny")
        ours = gap("ansible-playbook", *asked, "-e", "sglang_server_state=restarted")
        differences.append(ours - plain)
        print(f"round {number}: systemctl restart {plain:.2f} s, deployment {ours:.2f} s", flush=True)
    low, high = min(differences), max(differences)
    print(f"deployment - systemctl restart: median {statistics.median(differences):.2f} s, {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
