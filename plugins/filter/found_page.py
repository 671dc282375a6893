# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: found_page
short_description: Show found SGLang servers as text for a terminal
description:
  - Turns what M(gpuops.sglang.sglang_found) returned for several hosts into a table, and a page for each server with
    what it runs with, what can not be carried over, and what would change under supervision.
options:
  _input:
    description: Host name to list of found servers; V(false) in its place says that the host was not looked at.
    type: dict
    required: true
seealso:
  - plugin: gpuops.sglang.found_variables
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show what runs
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: found.servers} | gpuops.sglang.found_page }}"
"""

RETURN = r"""
_value:
  description: The page.
  type: str
"""

from collections.abc import Callable

from ansible_collections.gpuops.sglang.plugins.module_utils.found_page import page


class FilterModule:
    """The filter gpuops.sglang.found_page."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"found_page": page}
