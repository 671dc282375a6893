#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways into a container compared: 20 trivial tasks of one play, and a file of 64 MiB.

    bin/bench connection [ROUNDS]

A start of the lab's pct costs 1.3 s of CPU here, as measured on the real one. All ways run in turn, so a change of the
machine's load meets all; a figure is the median of the rounds' ratios. The way of community.proxmox takes minutes, so
it runs once, beside one more run over the quick way. The lab must be up. Figures are recorded in docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "tests/lab"))

from connections import LAB, NODE, connect, login_of_container, on_node, way_in  # noqa: E402

VMID = 129
TASKS = 20
SIZE = 64 << 20
COST = "/etc/gpuops-lab/pct-start-cost"
PLAY = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.ping": {}}] * TASKS}]


def ways(work: Path) -> dict[str, dict[str, object]]:
    """The connection variables of each way into the same container."""
    common = {"ansible_python_interpreter": "/usr/bin/python3", "ansible_control_path_dir": str(work)}
    return {
        **{way: way_in(way, VMID, **common) for way in ("ssh", "quick", "strict")},
        "community": {
            **common,
            "ansible_connection": "community.proxmox.proxmox_pct_remote",
            "ansible_host": NODE,
            "ansible_user": "root",
            "ansible_private_key_file": str(LAB / "ssh/id_ed25519"),
            "ansible_host_key_checking": False,
            "proxmox_vmid": VMID,
        },
    }


def play(work: Path, way: dict[str, object]) -> float:
    """Run the play over one way and return its wall time in seconds."""
    (work / "play.yml").write_text(json.dumps(PLAY))
    (work / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"container": {}}, "vars": way}}))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", work / "hosts.yml", work / "play.yml"]
    return timed(lambda: run(command))


def run(command: list[str | Path]) -> None:
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def timed(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


@contextlib.contextmanager
def cost_of_pct(seconds: float) -> Iterator[None]:
    on_node(f"mkdir -p {Path(COST).parent}; echo {seconds} >{COST}")
    try:
        yield
    finally:
        on_node(f"rm {COST}")


def tasks(work: Path, rounds: int) -> None:
    """Time the play over each way."""
    way = ways(work)
    for name in ("ssh", "quick"):
        play(work, way[name])  # opens the shared SSH connection
    taken: dict[str, list[float]] = {name: [] for name in ("ssh", "quick", "strict")}
    for number in range(1, rounds + 1):
        for name, times in taken.items():
            times.append(play(work, way[name]))
        print(f"round {number}: " + ", ".join(f"{name} {times[-1]:.1f} s" for name, times in taken.items()), flush=True)
    report(f"{TASKS} tasks: quick / ssh", taken["quick"], taken["ssh"])
    report(f"{TASKS} tasks: strict / quick", taken["strict"], taken["quick"])
    quick, community = play(work, way["quick"]), play(work, way["community"])
    print(f"{TASKS} tasks: community.proxmox / quick: {community / quick:.1f} ({community:.0f} s to {quick:.1f} s)")


def file(work: Path, rounds: int) -> None:
    """Time a file into the container and back against scp to the node and back."""
    here, back = work / "here", work / "back"
    here.write_bytes(bytes(range(256)) * (SIZE // 256))
    container = connect(VMID, ansible_control_path_dir=str(work))
    container.exec_command("true")
    scp = ["scp", "-q", "-F", LAB / "ssh/config", "-o", "ControlMaster=auto", "-o", f"ControlPath={work}/scp"]
    scp += ["-o", "ControlPersist=60"]
    to_node, from_node = [*scp, here, "kpro5:/root/there"], [*scp, "kpro5:/root/there", back]
    run(to_node)
    taken: dict[str, list[float]] = {name: [] for name in ("scp in", "put", "scp out", "fetch")}
    for _ in range(rounds):
        taken["scp in"].append(timed(lambda: run(to_node)))
        taken["put"].append(timed(lambda: container.put_file(str(here), "/root/there")))
        taken["scp out"].append(timed(lambda: run(from_node)))
        taken["fetch"].append(timed(lambda: container.fetch_file("/root/there", str(back))))
    report("64 MiB: put / scp", taken["put"], taken["scp in"])
    report("64 MiB: fetch / scp", taken["fetch"], taken["scp out"])
    container.exec_command("rm /root/there")
    on_node("rm", "/root/there")


def report(what: str, ours: list[float], theirs: list[float]) -> None:
    ratios = [one / other for one, other in zip(ours, theirs)]
    print(
        f"{what}: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        f" ({statistics.median(ours):.2f} s to {statistics.median(theirs):.2f} s)"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as work, login_of_container(VMID):
        file(Path(work), rounds)
        with cost_of_pct(1.3):
            tasks(Path(work), rounds)


if __name__ == "__main__":
    main()
