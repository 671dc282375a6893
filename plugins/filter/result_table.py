# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: result_table
short_description: Show the verdicts of a deployment as a table
description:
  - Turns what M(gpuops.sglang.sglang_health) returned for several hosts into lines of aligned text.
options:
  _input:
    description: Host name to list of verdicts; an empty list shows the host without an instance.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the result
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: checked.verdicts} | gpuops.sglang.result_table }}"
"""

RETURN = r"""
_value:
  description: The table.
  type: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.table import aligned

COLUMNS = {
    "host": "host",
    "instance": "instance",
    "launch": "launch",
    "service": "service",
    "port": "port",
    "model": "model",
    "arguments_compared": "arguments as asked",
    "tokens": "tokens",
    "requests": "requests at a time",
    "kv_tokens": "KV tokens",
    "latency": "answer in s",
    "restarts": "restarts",
}


def result_table(verdicts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return one line for each instance, below a line of headings."""
    rows = [list(COLUMNS.values())]
    for host in sorted(verdicts):
        for verdict in verdicts[host] or [{"instance": "(none)"}]:
            shown = {"host": host, **verdict, "kv_tokens": _tokens(verdict)}
            rows.append([str(shown.get(column, "-")) for column in COLUMNS])
    return aligned(rows)


def _tokens(verdict: Mapping[str, Any]) -> str:
    tokens, planned = verdict.get("kv_tokens"), verdict.get("planned_kv_tokens")
    if tokens is None:
        return "-"
    return f"{tokens} (planned {tokens / planned - 1:+.1%})" if planned else str(tokens)


class FilterModule:
    """The filter gpuops.sglang.result_table."""

    def filters(self) -> dict[str, Callable]:
        return {"result_table": result_table}
