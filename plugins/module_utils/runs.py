# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run: the launch protocol in a process of its own on the host, which goes on when who asked for it is gone.

RUNS/ID.json    what the run is at, and in the end what came of it
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import guard, progress
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.background import in_background
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Wait, entries_of, usual_of
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, name_holder, write_whole
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Order, Outcome, Tell, carry_out
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose, supervisor

RUNS = Path("/run/gpuops-sglang")
KEPT = 20  # runs whose outcome can still be asked for
LOG_LINES = 2000
WAKE = 0.2  # s
LOOK = 2  # s between two looks at the log


def begin(orders: Sequence[Order], state: Path, wait: Wait) -> str:
    """Carry out `orders` in a process that this one's end does not touch, and return the id of the run.

    The process takes over the locks of this one.
    """
    # what it is made of goes away with the module that began it
    from ansible_collections.gpuops.sglang.plugins.module_utils import diagnosis, memory_log  # noqa: F401

    launches.watcher()
    supervisor().programs()
    return _detach(state, lambda tell: carry_out(orders, state, wait, tell))


def _detach(state: Path, work: Callable[[Tell], list[Outcome]]) -> str:
    RUNS.mkdir(mode=0o700, exist_ok=True)
    for old in sorted(RUNS.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()
    run = secrets.token_hex(6)
    in_background(lambda begun: _work(run, state, work, begun))
    return run


def _work(run: str, state: Path, work: Callable[[Tell], list[Outcome]], begun: Callable[[], None]) -> None:
    path = RUNS / f"{run}.json"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for the command of a server that was started by hand too
    name_holder(launches.LOCK, run)
    content: dict[str, Any] = {
        "pid": os.getpid(), "born": guard.born(os.getpid()), "state": str(state), "supervisor": supervisor().NAME,
        "at": {}, "outcomes": None, "crash": "",
    }  # fmt: skip

    one_by_one = threading.Lock()

    def tell(instance: str, phase: str, launch: str | None, problem: str = "") -> None:
        problem = problem or content["at"].get(instance, {}).get("problem", "")
        with one_by_one:
            content["at"][instance] = {"phase": phase, "launch": launch, "since": time.monotonic(), "problem": problem}
            write_whole(path, json.dumps(content), 0o600)

    supervisor().into_scope(f"gpuops-{run}", os.getpid())
    write_whole(path, json.dumps(content), 0o600)
    begun()
    try:
        content["outcomes"] = [asdict(outcome) for outcome in work(tell)]
    except Exception:
        content.update(outcomes=[], crash=traceback.format_exc(limit=-4))
    write_whole(path, json.dumps(content), 0o600)


def follow(run: str, seen: Mapping[str, str], least: float, most: float) -> dict[str, Any]:
    """Return what a run is at: at once when it has ended or a launch has failed, after `least` s when it differs from
    `seen`, or after `most`.

    `outcomes` is None while it works; `shown` is instance -> a line for the operator, `steps` what to give as `seen`.
    Raises Refused where the run has ended without an outcome.
    """
    began = time.monotonic()
    looked = began - LOOK
    while True:
        content = _read(run)
        if content["outcomes"] is not None:
            if content["crash"]:
                raise Refused(f"the deployment's process on the host failed: {content['crash']}")
            return {"outcomes": content["outcomes"], "shown": {}, "steps": {}}
        if guard.born(content["pid"]) != content["born"] and _read(run)["outcomes"] is None:
            raise Refused(
                f"the deployment's process {content['pid']} on the host was ended before it had a result: deploy "
                "again, which takes up what is there"
            )
        marks = {f"{name} failed": "told" for name, at in content["at"].items() if at.get("problem")}
        news = {name: at["problem"] for name, at in content["at"].items() if at.get("problem")}
        if not marks.items() <= seen.items():
            return {"outcomes": None, "shown": news, "steps": {**seen, **marks}}
        now = time.monotonic()
        if now > began + least and now > looked + LOOK:
            looked, state = now, Path(content["state"])
            choose(state, content["supervisor"])  # who follows a run knows neither
            found = {name: _line(state, name, at) for name, at in content["at"].items()}
            steps = {**marks, **{name: step for name, (step, _line) in found.items()}}
            if steps != dict(seen) or now > began + most:
                return {
                    "outcomes": None,
                    "shown": {name: told[1] for name, told in found.items()},
                    "steps": steps,
                }
        time.sleep(WAKE)


def _line(state: Path, instance: str, at: Mapping[str, Any]) -> tuple[str, str]:
    """Return what tells one step from the next, and the line for the operator."""
    if at["phase"] == "loading":
        with contextlib.suppress(Exception):  # what can not be looked at now goes on all the same
            return _loading(state, instance, at)
    return at["phase"], f"{at['phase']} launch {at['launch']}" if at["launch"] else at["phase"]


def _loading(state: Path, instance: str, at: Mapping[str, Any]) -> tuple[str, str]:
    now, identity = time.monotonic(), supervisor().identity(instance)
    began = supervisor().began(identity) or at["since"]
    seen = progress.progress(entries_of(at["launch"], identity.invocation, LOG_LINES), began)
    return f"{seen.stage} {seen.step}", progress.shown(seen, now, began, usual_of(state, instance))


def _read(run: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((RUNS / f"{run}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"this host knows nothing of the run {run}, perhaps it was restarted: deploy again") from error
    return content
