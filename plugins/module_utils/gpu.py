# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of this host as its kernel shows them; no driver library is loaded but by nvidia-smi."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import run

ROOT = Path("/")


def device() -> str | None:
    """Return the device that SGLang is to use here, or None where there is no GPU; AMD's goes by 'cuda' too.

    SGLang by itself takes the CPU without a word when it can not use a GPU.
    """
    return "cuda" if _nvidia() or (ROOT / "dev/kfd").exists() else None


def inventory() -> list[str]:
    """Return what tells one set of GPUs and driver from another, without what changes while they work."""
    texts = [ROOT / "proc/driver/nvidia/version", *sorted(ROOT.glob("proc/driver/nvidia/gpus/*/information"))]
    return [*_nvidia(), *(path.read_text(errors="replace") for path in texts if path.is_file())]


def memory_total() -> float | None:
    """Return the memory of the smallest GPU in GiB, as nvidia-smi tells it, or None."""
    try:
        done = run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
        return min(float(line) for line in done.stdout.split("\n") if line.strip()) / 1024
    except (OSError, ValueError):
        return None


def _nvidia() -> list[str]:
    return sorted(path.name for path in ROOT.glob("dev/nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
