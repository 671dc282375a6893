# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: answer_problems
short_description: Say what is wrong with the answers of a survey
description:
  - Judges the extra vars of this run that the surveys of C(awx/) ask for, whether AWX passed them or C(-e). Others, and
    variables of the inventory, are not looked at.
  - They are judged as they were given. A template among them is a problem, and is not evaluated.
options:
  _terms:
    description: Nothing is to be given.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Refuse wrong answers, before anything uses them
  ansible.builtin.assert:
    that: query('gpuops.sglang.answer_problems') | length == 0
"""

RETURN = r"""
_list:
  description: One sentence for each problem; empty when there is none.
  type: list
  elements: str
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.gpuops.sglang.plugins.module_utils.answers import answer_problems


class LookupModule(LookupBase):
    """The lookup gpuops.sglang.answer_problems."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Return one sentence for each problem."""
        return answer_problems(load_extra_vars(self._loader))
