# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_table
short_description: Show the answers of a preflight as a table
description:
  - Turns what M(gpuops.sglang.sglang_preflight) returned for several hosts into lines of aligned text, one for each
    requested option, and below them what the plan of GPU memory says and one for each warning.
options:
  _input:
    description: Host name to list of instances.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the answer
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: checked.instances} | gpuops.sglang.preflight_table }}"
"""

RETURN = r"""
_value:
  description: The table.
  type: str
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.table import aligned

HEADINGS = ["host", "instance", "option", "requested", "resolved", "verdict", "remark"]
WIDEST = 40  # characters of a value


def preflight_table(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return one line for each requested option of each instance below headings, then its plan and warnings."""
    rows, warnings = [HEADINGS], []
    for host in sorted(answers):
        for instance in answers[host]:
            for option in instance["options"] or [{"option": "(none)"}]:
                values = [_short(option.get(key)) for key in ("requested", "resolved")]
                remark = "; ".join(filter(None, (option.get("by"), option.get("why"), option.get("instead"))))
                name, verdict = option["option"], option.get("verdict", "-")
                rows.append([host, instance["name"], name, *values, verdict, remark])
            where = f"{host} {instance['name']}"
            warnings += [f"{where}: SGLang warns: {text}" for text in instance["warnings"]]
            if instance.get("plan"):
                warnings.append(f"{where}: plan: {_planned(instance['plan'])}")
            warnings += [f"{host}: {text}" for text in instance.get("plan_warnings", ())]
    return "\n".join([aligned(rows), *warnings])


def _planned(plan: Mapping[str, Any]) -> str:
    figures = (
        f"; {plan['kv_tokens']} KV tokens, {plan['effective_max_running_requests']} requests at a time"
        if plan["fits"]
        else ""
    )
    return f"{plan['verdict']}{figures}"


def _short(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


class FilterModule:
    """The filter gpuops.sglang.preflight_table."""

    def filters(self) -> dict[str, Callable]:
        return {"preflight_table": preflight_table}
