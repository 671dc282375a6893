# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was proved of the CUDA toolkit of a release, for those who start its servers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import write_whole

NAME = "cuda.json"


def read(release: Path) -> dict[str, str]:
    """Return home, version and source of the toolkit; empty where nothing was proved or its compiler is gone."""
    try:
        record: dict[str, str] = json.loads((release / NAME).read_text(encoding="utf-8"))
        return record if os.access(Path(record["home"], "bin/nvcc"), os.X_OK) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write(release: Path, record: Mapping[str, str]) -> None:
    """Write it down."""
    write_whole(release / NAME, json.dumps(record, indent=1, sort_keys=True))


def variables(release: Path, path: str) -> dict[str, str]:
    """Return what the servers of a release have in their environment, PATH among it, because of their toolkit."""
    home = read(release).get("home")
    # first what the release itself has, ninja for one
    own, _colon, rest = path.partition(":")
    return {"CUDA_HOME": home, "PATH": f"{own}:{home}/bin:{rest}"} if home else {"PATH": path}
