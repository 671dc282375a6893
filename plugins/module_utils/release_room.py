# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much room and time an installation takes, as far as that is known before it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

UNPACKED = 2.4  # times the bytes of the files; SGLang 0.5.11: 3.4 GiB come to 8.0


def refuse_small(root: Path, cache: Path, size: int | None, label: str) -> None:
    """Raise Refused where the file system of `root` can not hold packages whose files have `size` bytes."""
    needed = (size or 0) * UNPACKED
    free = shutil.disk_usage(root).free
    if free >= needed:
        return
    # what is unpacked in the cache already is only linked
    if cache.exists() and os.stat(cache).st_dev == os.stat(root).st_dev:
        needed -= sum(map(_used, cache.glob("archive-*")))
    if free < needed:
        raise Refused(
            f"{label}: its packages take about {needed / 2**30:.1f} GiB, {root} has {free / 2**30:.1f} GiB free: free "
            "some, or set sglang_install_root to a larger file system; nothing was installed"
        )


def _used(folder: Path) -> int:
    total = 0
    for place, _folders, files in os.walk(folder):
        for name in files:
            total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def expected_seconds(root: Path, size: int | None) -> float | None:
    """Return how long an installation of `size` bytes takes at the rate of the last one on this host; None: unknown."""
    records: list[dict[str, Any]] = []
    for path in root.glob("releases/*/release.json"):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    known = [record for record in records if record.get("bytes") and record.get("seconds")]
    if not known or size is None:
        return None
    last = max(known, key=lambda record: record["installed"])
    return float(size / last["bytes"] * last["seconds"])
