#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the facts of eight GPUs cost beside nvidia-smi itself: gpu_facts() in a fresh process, to one that does nothing.

    bin/bench gpu [ROUNDS]

The host is a tree of files; its nvidia-smi prints a file at once, so what is left is this collection's own time.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit"), str(TESTS.parent / ".dev")]
from gpu_hosts import BUSY, INFORMATION, MAJORS, SOURCE, UUID, VERSION, Host  # noqa: E402

GPUS = 8
FACTS = """
import sys
from pathlib import Path
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, gpu_facts
gpu.ROOT = Path(sys.argv[1])
facts = gpu_facts.gpu_facts()
assert (len(facts["gpus"]), facts["faults"]) == (int(sys.argv[2]), []), facts["faults"]
"""


def uuid(number: int) -> str:
    return f"{UUID[:-1]}{number}"


def host(root: Path) -> dict[str, str]:
    """Make a host with eight GPUs and return the environment that has its programs."""
    made = Host(root)
    made.write("proc/driver/nvidia/version", VERSION)
    made.write("proc/devices", MAJORS)
    made.module("nvidia", "nvidia_uvm")
    made.node("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(GPUS)))
    head, gpu, tail = re.fullmatch(r"(.*?)(<gpu id=.*</gpu>)(.*)", BUSY.read_text(), re.DOTALL).groups()  # type: ignore
    gpus = ""
    for number in range(GPUS):
        information = INFORMATION.replace("Device Minor: \t 0", f"Device Minor: \t {number}")
        made.write(f"proc/driver/nvidia/gpus/0000:0{number}:06.0/information", information)
        made.pci(f"0000:0{number}:06.0", "nvidia")
        one = re.sub(r"GPU-[0-9a-f-]{36}", uuid(number), gpu).replace(":00:06.0", f":0{number}:06.0")
        gpus += one.replace("<minor_number>0<", f"<minor_number>{number}<")
    made.smi(head + gpus + tail, "\n".join(f"{number}, {uuid(number)}, 9.0" for number in range(GPUS)))
    library = root / "cuda/libcuda.so.580.159.04"
    library.parent.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, SOURCE], check=True)
    (library.parent / "libcuda.so.1").symlink_to(library.name)
    for name in ("libnvidia-ml.so.580.159.04", "libnvidia-ml.so.1"):
        (library.parent / name).touch()
    more = {"LD_LIBRARY_PATH": str(library.parent), "STANDIN_CUDA_DEVICES": str(GPUS)}
    return {**os.environ, **more, "PATH": f"{made.programs}:/usr/bin:/bin", "PYTHONPATH": str(TESTS.parent / ".dev")}


def seconds(environment: dict[str, str], *arguments: str) -> float:
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", *arguments], env=environment, check=True)
    return time.monotonic() - begin


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        environment = host(Path(folder, "host"))
        took = []
        for number in range(1, rounds + 1):
            nothing = seconds(environment, "pass")
            took.append(seconds(environment, FACTS, str(Path(folder, "host")), str(GPUS)) - nothing)
            print(f"round {number}: {took[-1]:.2f} s more than the {nothing:.2f} s of a process that does nothing")
    print(f"facts of {GPUS} GPUs: median {statistics.median(took):.2f} s, {min(took):.2f} to {max(took):.2f}")


if __name__ == "__main__":
    main()
