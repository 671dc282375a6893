# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages were found a short time ago, in the cache: containers of a node ask the index once and get the same.

Only of a day that is over, and where nothing but the words of the question decides the answer.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, write_whole
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import LOGIN, Steps

FOLDER = "locks"  # in the cache
COUNTS = 3600  # s
INDEXES = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"}
# the variables of uv that decide nothing about what is found
HOW = {"UV_CACHE_DIR", "UV_CONCURRENT_DOWNLOADS", "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT", "UV_LINK_MODE", "UV_NATIVE_TLS",
       "UV_NO_CONFIG", "UV_PYTHON_DOWNLOADS", "UV_SYSTEM_CERTS"}  # fmt: skip
ELSEWHERE = re.compile(r"[@/]|^\s*-", re.MULTILINE)  # in requirements: what is not in an index
INTERPRETER = "import platform, sys; print(sys.version, platform.machine(), platform.libc_ver())"


def place(
    steps: Steps, uv: str, python: str, options: Sequence[str], cutoff: str, wanted: Sequence[str]
) -> Path | None:
    """Return the file of the cache for what is found by this question; None where none is kept."""
    given = {name: value for name, value in steps.environment.items() if name.startswith("UV_")}
    overrides, cache = given.pop("UV_OVERRIDE", ""), given.get("UV_CACHE_DIR")
    indexes = {name: given.pop(name) for name in sorted(INDEXES & given.keys())}
    try:
        words = [*wanted, "over", Path(overrides).read_text(encoding="utf-8") if overrides else ""]
    except (OSError, ValueError):
        return None  # uv reads what is several, or an address
    over = "" < cutoff < str(datetime.datetime.now(datetime.timezone.utc).date())
    if not (cache and over) or options or given.keys() - HOW or ELSEWHERE.search("\n".join(words)):
        return None
    addresses = " ".join(indexes.values()).split()
    # a name that all may read is no place for a login, not even for a digest of it
    if not all(re.search(r"(^|=)https?://", address) and not LOGIN.search(address) for address in addresses):
        return None
    interpreter = steps.run("asking the interpreter", [python, "-c", INTERPRETER])
    question = json.dumps([words, cutoff, indexes, interpreter, Path(uv).parts[-3:]])
    return Path(cache, FOLDER, f"{hashlib.sha256(question.encode()).hexdigest()[:32]}.toml")


def read(path: Path | None) -> str:
    """Return what was found; empty where it is not kept or counts no more."""
    with contextlib.suppress(OSError, ValueError):
        if path and path.stat().st_mtime > time.time() - COUNTS:
            return path.read_text(encoding="utf-8")
    return ""


def keep(path: Path | None, found: str) -> None:
    """Write down what was found and remove what counts no more; a cache that can not take it does without."""
    if path is None or LOGIN.search(found):
        return
    with contextlib.suppress(OSError, Refused):
        path.parent.mkdir(exist_ok=True)
        for other in path.parent.iterdir():
            if other.stat().st_mtime < time.time() - COUNTS:
                other.unlink()
        write_whole(path, found)


def forget(steps: Steps) -> None:
    """Have all be looked for again: something of it could not be installed."""
    shutil.rmtree(Path(steps.environment["UV_CACHE_DIR"], FOLDER), ignore_errors=True)
