# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: instance_problems
short_description: Say what is wrong with a list of instances
description:
  - Judges names, models and ports of a host's instances without asking the host.
options:
  _input:
    description: The value of C(sglang_server_instances).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Refuse a wrong list before anything is changed
  ansible.builtin.assert:
    that: sglang_server_instances | gpuops.sglang.instance_problems | length == 0
"""

RETURN = r"""
_value:
  description: One sentence for each problem; empty when there is none.
  type: list
  elements: str
"""

from collections.abc import Callable

from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems


class FilterModule:
    """The filter gpuops.sglang.instance_problems."""

    def filters(self) -> dict[str, Callable]:
        return {"instance_problems": instance_problems}
