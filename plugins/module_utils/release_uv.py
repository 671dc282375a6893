# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""uv, which installs the packages of releases, and what it finds on the host."""

from __future__ import annotations

import contextlib
import glob
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import run
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import Steps, make_venv


def get(steps: Steps, python: str, home: Path, version: str, offline: Sequence[str] = ()) -> str:
    """Return the path of uv, installed in a venv of its own; `offline` is what makes pip look into a folder alone."""
    uv = home / "bin/uv"
    try:
        if run([str(uv), "--version"]).stdout.split()[1:2] == [version]:
            return str(uv)
    except OSError:
        pass  # it is not there, or an interrupted installation left a part of it
    make_venv(steps, home, python, f"uv=={version}", offline)
    return str(uv)


def usable_cache(asked: Path, own: Path) -> tuple[Path, str]:
    """Return the cache to use and, where it is not the one that is asked for, why.

    Containers of a node may share one; what a container with other user ids wrote there it alone can change.
    """
    try:
        asked.mkdir(parents=True, exist_ok=True)
        for folder in (asked, *(path for path in asked.iterdir() if path.is_dir())):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        if asked == own:
            raise
        own.mkdir(parents=True, exist_ok=True)
        reason = f"the cache {asked} can not be written ({error.strerror}): {own} is used instead and shares nothing"
        return own, reason
    return asked, ""


def interpreters() -> str:
    """Return the interpreters of this host in words."""
    found = glob.glob("/usr/bin/python3.*") + glob.glob("/usr/local/bin/python3.*")
    with contextlib.suppress(ValueError):
        found.sort(key=lambda path: int(path.rpartition(".")[2]))
    return ", ".join(path for path in found if path.rpartition(".")[2].isdigit()) or "none below /usr/bin"
