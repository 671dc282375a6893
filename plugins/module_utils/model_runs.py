# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work on models in a process of its own, which goes on when who asked for it is gone.

RUNS/ID.json    the last line about it, and in the end what came of it
RUNS/ID.lock    held as long as it works
"""

from __future__ import annotations

import json
import os
import secrets
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.background import in_background
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, holder, only_one, write_whole
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

RUNS = Path("/run/gpuops-sglang/models")
KEPT = 20  # whose outcome can still be asked for
WAKE = 0.2  # s
MASK = "********"


def begin(work: Callable[[Callable[[str], None]], dict[str, Any]], secrets_of: Collection[str] = ()) -> str:
    """Do `work`, which is given what takes lines about it and returns a result, and return the id of the run.

    What is told of it has none of `secrets_of` in it: who asks for it later does not know them.
    """
    RUNS.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(RUNS.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()
        old.with_suffix(".lock").unlink(missing_ok=True)
    run = secrets.token_hex(6)
    in_background(lambda begun: _work(run, work, begun, secrets_of))
    return run


def _work(
    run: str,
    work: Callable[[Callable[[str], None]], dict[str, Any]],
    begun: Callable[[], None],
    secrets_of: Collection[str],
) -> None:
    path = RUNS / f"{run}.json"

    def keep(**content: Any) -> None:
        text = json.dumps(content)
        for secret in secrets_of:
            text = text.replace(json.dumps(secret)[1:-1], MASK)
        write_whole(path, text, 0o600)

    with only_one(path.with_suffix(".lock"), "works", 0):
        systemd.into_scope(f"gpuops-{run}", os.getpid())
        keep(line="begins")
        begun()
        try:
            keep(outcome=work(lambda line: keep(line=line)))
        except Refused as refused:
            keep(outcome={"failed": True, "msg": str(refused)})
        except Exception:
            keep(outcome={"failed": True, "msg": f"the process on the host failed: {traceback.format_exc(limit=-4)}"})


def follow(run: str, seen: str, least: float, most: float) -> dict[str, Any]:
    """Return {'outcome'} when a run has ended, else {'line'}: one unlike `seen` after `least` s, any after `most`."""
    began = time.monotonic()
    while True:
        works = holder(RUNS / f"{run}.lock", "works") is not None
        try:
            content: dict[str, Any] = json.loads((RUNS / f"{run}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Refused(
                f"this host knows nothing of the run {run}, perhaps it was restarted: deploy again"
            ) from error
        if "outcome" in content:
            return {"outcome": content["outcome"]}
        if not works:
            raise Refused("the process on the host was ended before its end: deploy again, which goes on where it was")
        waited = time.monotonic() - began
        if waited > most or (waited > least and content["line"] != seen):
            return {"line": content["line"]}
        time.sleep(WAKE)
