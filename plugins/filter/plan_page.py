# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: plan_page
short_description: Show memory plans as an HTML page
description:
  - Turns what M(gpuops.sglang.sglang_plan) returned for the instances of several hosts into one HTML page, with a bar
    for each GPU, the figures, what would help, and what is not known.
  - The page needs nothing but itself. It has no script, loads nothing, and what hosts told is text in it, never markup.
  - An instance that could not be planned has its error instead, and a host without results a line that says so.
options:
  _input:
    description: Host name to list of results, whose C(item) is the name of the instance.
    type: dict
    required: true
seealso:
  - plugin: gpuops.sglang.plan_bars
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Plan the instances
  gpuops.sglang.sglang_plan:
    model: "/srv/models/{{ item }}"
  loop: [Qwen3-8B, Qwen3.6-27B]
  register: planned

- name: Write a page of the plans
  ansible.builtin.copy:
    content: "{{ {inventory_hostname: planned.results} | gpuops.sglang.plan_page }}"
    dest: /srv/reports/plan.html
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: The page.
  type: str
"""

from collections.abc import Callable

from ansible_collections.gpuops.sglang.plugins.module_utils.plan_page import page


class FilterModule:
    """The filter gpuops.sglang.plan_page."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"plan_page": page}
