# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Found servers as a page for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.table import aligned

HEADINGS = ("host", "process", "owner", "since", "started by", "SGLang", "model", "port", "GPUs", "log")
Server = Mapping[str, Any]


def page(hosts: Mapping[str, Sequence[Server] | bool]) -> str:
    """Return a table of all servers, and below it what is to be known of each; False: a host was not looked at."""
    rows: list[Sequence[str]] = [HEADINGS]
    parts = []
    for host in sorted(hosts):
        servers = hosts[host]
        if isinstance(servers, bool):
            rows.append((host, "(not looked at)", *[""] * 8))
            continue
        rows += [_row(host, server) for server in servers] or [(host, "(none)", *[""] * 8)]
        parts += ["\n".join(_page(host, server)) for server in servers]
    return "\n\n".join([aligned(rows), *parts])


def _row(host: str, server: Server) -> tuple[str, ...]:
    instance = server["instance"] or {}
    gpus = instance.get("gpus") or sorted({use["gpu"] for use in server["gpu_memory"]})
    cells = (
        host, server["pid"], server["owner"], server["since"], server["started_by"], server["sglang_version"] or "-",
        instance.get("model", "-"), instance.get("port", "-"), ",".join(map(str, gpus)) or "-",
        " ".join(server["logs"]) or "-",
    )  # fmt: skip
    return tuple(one_line(str(cell)) for cell in cells)


def _page(host: str, server: Server) -> Iterator[str]:
    yield one_line(f"{host}, {where(server)}, in {server['working_directory']}:")
    yield f"  {one_line(' '.join(map(_quoted, server['command'])))}"
    live = server["live"]
    if live and live["options"]:
        names = ("option", "requested", "resolved", "effective")
        rows = [names, *([one_line(_value(option[name])) for name in names] for option in live["options"])]
        yield from (f"  {line}" for line in aligned(rows).splitlines())
    groups = {
        "differs from what was requested": live["differences"] if live else (),
        "can not be carried over": server["not_carried"],
        "would change": server["changes"],
        "to know": server["notes"],
        "put into a vault": [f"{one['variable']}: {one['place']}" for one in server["secrets"]],
    }
    for heading, sentences in groups.items():
        yield from _listed(heading, sentences)


def _listed(heading: str, sentences: Iterable[str]) -> Iterator[str]:
    lines = [f"    - {one_line(sentence)}" for sentence in sentences]
    yield from ([f"  {heading}:", *lines] if lines else [])


def where(server: Server) -> str:
    """Say which process a server is."""
    return f"process {server['pid']} of user {server['owner']}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _quoted(word: str) -> str:
    return word if word and not set(word) & set(" '\"\\$`") else json.dumps(str(word))


def one_line(text: str) -> str:
    """Return one line that does nothing to a terminal or a file."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
