# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is proved of a release before it counts as one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, run
from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import normal
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import Steps

REQUIRED = re.compile(r" requires `([\w.-]+)")


def imported(steps: Steps, python: str, probe: str) -> dict[str, Any]:
    """Return what the interpreter of a release tells after it has loaded the server."""
    told = steps.run("importing the server", [python, "-I", "-"], probe)
    # packages may write to standard output when they are imported, and when the interpreter ends
    described, _end = json.JSONDecoder().raw_decode(told[told.index('{"sglang_version"') :])
    found: dict[str, Any] = described
    return found


def pins(steps: Steps, uv: str, python: str, overrides: Sequence[str]) -> None:
    """Raise Refused where a package does not have what it requires, apart from what the overrides replace."""
    done = run([uv, "pip", "check", "--python", python], steps.environment, inherited=steps.inherited)
    replaced = {normal(re.split(r"[\s;=<>!~\[@]", line.strip(), maxsplit=1)[0]) for line in overrides}
    wrong = []
    for line in (done.stdout + done.stderr).splitlines():
        required = REQUIRED.search(line)
        if line.startswith("The package ") and not (required and normal(required[1]) in replaced):
            wrong.append(line)
    if wrong:
        raise Refused(
            f"{steps.label}: {'; '.join(wrong[:5])}: take another sglang_install_date or sglang_install_lock, or say "
            "what is meant in sglang_install_overrides"
        )


def loaded(told: dict[str, Any], driver: str | None) -> list[str]:
    """Return what could not be proved here; raises Refused where the kernels do not load beside a driver."""
    kernels = told.get("kernels", "")
    if kernels == "loaded":
        return []
    if driver and kernels:
        raise Refused(
            f"sgl_kernel does not load beside the driver {driver}: {kernels}: install the libraries that it names, or "
            "set sglang_install_version to one for this driver"
        )
    if not kernels:
        return []  # not a part of this release
    server = told.get("server", "").strip().partition("\n")[0][:300]
    what = "that the server and its kernels load" if server else "that the kernels load"
    why = f"{kernels}; the server: {server}" if not kernels.startswith(server) else kernels
    return [f"not proved: {what}: this host has no NVIDIA driver ({why})"]
