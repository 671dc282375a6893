# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a foreign server itself reports: asked at its own port, only read, and not waited for."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import loopback
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import compared
from ansible_collections.gpuops.sglang.plugins.module_utils.effective import effective
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema

WAIT = 10  # s for all of an answer: one that is busy answers later
MOST = 16 << 20  # bytes of an answer
PATHS = ("/server_info", "/get_server_info")  # the second until 0.5.5


def ask(url: str, key: str | None) -> tuple[dict[str, Any] | None, str]:
    """Return what the server at `url` reports of itself, or why it does not; `key` is in no text."""
    told: list[tuple[dict[str, Any] | None, str]] = []
    # a socket's own limit is for each of its bytes
    asking = threading.Thread(target=lambda: told.append(_ask(url, key)), daemon=True)
    asking.start()
    asking.join(WAIT)
    return told[0] if told else (None, f"{url} gives no answer within {WAIT} s")


def _ask(url: str, key: str | None) -> tuple[dict[str, Any] | None, str]:
    opener = loopback.opener()
    for path in PATHS:
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        try:
            with opener.open(request, timeout=WAIT) as answer:
                content = json.loads(answer.read(MOST))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                continue
            return None, f"{url}{path} answers {error.code}"
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            slow = "timed out" in str(error)
            return None, f"{url}{path} gives no answer within {WAIT} s" if slow else f"{url}{path} gives no answer"
        return (content, "") if isinstance(content, dict) else (None, f"{url}{path} answers something else")
    return None, f"{url} has neither {' nor '.join(PATHS)}"


def reported(info: Mapping[str, Any], args: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return what was requested beside what the server made of it and what its first scheduler runs with."""
    states = [state for state in info.get("internal_states") or [] if isinstance(state, Mapping)]
    scheduler = {one.option: one.reported for one in compared(args, schema, states[0])} if states else {}
    found = effective(args, schema, info)
    return {
        "sglang_version": str(info.get("version") or ""),
        "options": [
            {
                "option": one.option,
                "requested": one.requested,
                "resolved": one.reported,
                "effective": scheduler.get(one.option, one.reported),
                "same": one.same,
            }
            for one in compared(args, schema, info)
        ],
        "differences": list(found.differences),
        "requests": found.requests,
        "kv_tokens": found.tokens,
        "memory": found.memory,
    }
