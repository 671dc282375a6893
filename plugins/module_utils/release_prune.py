# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases that nothing needs any more."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import only_one, writing_below


def surplus(root: Path, current: Path, state: Path, keep: int) -> list[str]:
    """Return the names of the releases that are more than `keep`, oldest first; 0 keeps all.

    The current one stays, and each that a kept launch was started from, since a rollback needs it.
    """
    if keep <= 0:
        return []
    root, current = root.resolve(), current.resolve()  # it may be known by a link, too
    needed = {current, *_of_launches(state)}
    # one without a record was left by an installation or a removal that was interrupted
    found = sorted((path for path in root.glob("releases/*") if path.is_dir()), key=_installed)
    kept = max(0, keep - 1)
    others = [path for path in found if path != current]
    old = others[: len(others) - kept] if len(others) > kept else []
    return [path.name for path in old if path not in needed]


def _installed(path: Path) -> float:
    try:
        return (path / "release.json").stat().st_mtime
    except OSError:
        return 0.0


def _of_launches(state: Path) -> Iterator[Path]:
    for path in state.glob("*/launches/*/launch.json"):
        try:
            yield Path(json.loads(path.read_text(encoding="utf-8"))["release"]).resolve()
        except (OSError, ValueError, KeyError, TypeError):
            continue


def remove(root: Path, current: Path, state: Path, keep: int) -> list[str]:
    """Remove them, apart from those that a process was started from, and return the names."""
    with writing_below(root), only_one(root / "install.lock", f"installs into {root}", 0):
        gone = []
        for name in surplus(root, current, state, keep):
            path = root / "releases" / name
            if runs_from(path):
                continue
            (path / "release.json").unlink(missing_ok=True)  # half of a release is none
            shutil.rmtree(path)
            gone.append(name)
        return gone


def runs_from(release: Path) -> bool:
    """Tell whether a process runs with the interpreter of a release."""
    release = release.resolve()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            program = Path(os.fsdecode(path.read_bytes().partition(b"\0")[0]))
            # the interpreter itself is a link to that of the system
            if program.is_absolute() and release in (program.parent.resolve() / program.name).parents:
                return True
        except OSError:
            continue  # it has ended
    return False
