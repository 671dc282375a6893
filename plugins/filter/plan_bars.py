# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: plan_bars
short_description: Show memory plans as bars
description:
  - Turns what M(gpuops.sglang.sglang_plan) returned for the instances of several hosts into text, one bar for each GPU,
    with the verdict above and what would help below.
  - An instance that could not be planned has its error instead, and a host without results a line that says so.
options:
  _input:
    description: Host name to list of results, whose C(item) is the name of the instance.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan the instances
  gpuops.sglang.sglang_plan:
    model: "/srv/models/{{ item }}"
  loop: [Qwen3-8B, Qwen3.6-27B]
  register: planned

- name: Show the plans
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: planned.results} | gpuops.sglang.plan_bars }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def plan_bars(plans: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a heading and the bars of each instance of each host."""
    texts = []
    for host in sorted(plans):
        if not plans[host]:
            texts.append(f"{host}: nothing was planned: it has no instances, or gave no answer")
        for plan in plans[host]:
            name = f"{host} {plan.get('item', '')}".rstrip()
            texts.append(f"{name}: {plan['bars']}" if "bars" in plan else f"{name}: no plan: {plan.get('msg', '')}")
    return "\n\n".join(texts)


class FilterModule:
    """The filter gpuops.sglang.plan_bars."""

    def filters(self) -> dict[str, Callable]:
        return {"plan_bars": plan_bars}
