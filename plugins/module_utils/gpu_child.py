# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Child processes that ask a driver, which may hang or crash them, and that can change nothing."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_probe
from ansible_collections.gpuops.sglang.plugins.module_utils.host import last_lines, run


def harmless(user: str, wait: float, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run gpu_probe with these arguments as `user` ('': as this one); raises TimeoutExpired after `wait` s."""
    # what hides GPUs from one shell is not a property of the host
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return run([sys.executable, "-I", "-", user, *argv], environment, inspect.getsource(gpu_probe), wait)


def told(user: str, wait: float, *argv: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the lines of JSON that gpu_probe prints, and what kept it from its end, or None."""
    try:
        done = harmless(user, wait, *argv)
    except subprocess.TimeoutExpired:
        return [], f"no answer within {wait:g} s"
    lines = []
    for line in done.stdout.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # a library's own words
    if done.returncode < 0:
        return lines, f"its process was ended by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        return lines, " ".join(last_lines(done.stderr, 1)) or f"its process ended with status {done.returncode}"
    return lines, None
