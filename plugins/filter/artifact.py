# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: artifact
short_description: Keep of results what the next job of a workflow can use
description:
  - Turns what M(gpuops.sglang.sglang_health), M(gpuops.sglang.sglang_plan), M(gpuops.sglang.sglang_preflight) or
    M(gpuops.sglang.sglang_service) returned for several hosts into short records for M(ansible.builtin.set_stats).
options:
  _input:
    description: Host name to list of results, one for each instance.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Keep the result for a workflow
  ansible.builtin.set_stats:
    data: {sglang_serves: "{{ {inventory_hostname: checked.verdicts} | gpuops.sglang.artifact }}"}
"""

RETURN = r"""
_value:
  description:
    - Host name to list of records, each with C(instance) and of C(launch), C(service), C(url), C(model), C(fits),
      C(verdict), C(kv_tokens), C(effective_max_running_requests), C(problems) and C(reasons) those that there are.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

KEPT = (
    "launch", "service", "url", "model", "fits", "verdict", "kv_tokens", "effective_max_running_requests", "problems",
    "reasons",
)  # fmt: skip


def artifact(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return one short record for each instance of each host."""
    return {host: [_record(one) for one in results[host]] for host in sorted(results)}


def _record(result: Mapping[str, Any]) -> dict[str, Any]:
    # a module names its instance, a loop has it as its item
    name = next((result[key] for key in ("instance", "name", "item") if key in result), "")
    return {"instance": name, **{key: result[key] for key in KEPT if key in result}}


class FilterModule:
    """The filter gpuops.sglang.artifact."""

    def filters(self) -> dict[str, Callable]:
        return {"artifact": artifact}
