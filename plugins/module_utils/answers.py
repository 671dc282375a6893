# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with variables that people answer in a survey or give on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.cards import CARDS
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import NAME

LAUNCH = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
PID = re.compile(r"[1-9]\d{0,9}")
TEMPLATE = re.compile(r"\{[{%#]")
TRUTHS = ("true", "false")


@dataclass(frozen=True)
class Rule:
    """What an answer may be: a whole number from `least` to `most`, one or several of `choices`, or like `pattern`."""

    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    like: str = ""
    several: bool = False

    def problem(self, value: Any) -> str:
        """Return what to answer instead of `value`, or nothing."""
        # what is left open in a survey is an empty text, which Ansible may read as nothing
        if self.pattern is not None and value in ("", None, []):
            return ""
        if isinstance(value, list) and not self.several:
            return "give one"
        words = value if isinstance(value, list) else [value]
        if self.several and isinstance(value, str):
            words = value.split(",")
        if self.least is not None and self.most is not None:
            if all(re.fullmatch(r"\d{1,12}", str(word)) and self.least <= int(word) <= self.most for word in words):
                return ""
            return f"give a whole number from {self.least} to {self.most}"
        if self.pattern is not None:
            return "" if all(self.pattern.fullmatch(str(word)) for word in words) else f"give {self.like}"
        chosen = [str(word).lower() if isinstance(word, bool) else word for word in words]
        return "" if all(word in self.choices for word in chosen) else f"choose of {', '.join(self.choices)}"


NAMES = Rule(pattern=NAME, like="names of instances, with commas between them", several=True)


RULES: dict[str, Rule] = {
    "adopt_pids": Rule(pattern=PID, like="process ids, with commas between them", several=True),
    "sglang_health_instances": NAMES,
    "sglang_health_requests": Rule(choices=("chat", "structured_output"), several=True),
    "sglang_health_timeout": Rule(least=1, most=3600),
    "sglang_plan_assume_complete": Rule(choices=TRUTHS),
    "sglang_plan_card": Rule(choices=tuple(card.name for card in CARDS)),
    "sglang_plan_cards": Rule(least=1, most=64),
    "sglang_plan_concurrency": Rule(least=1, most=100_000),
    "sglang_plan_context": Rule(least=1, most=100_000_000),
    "sglang_server_drain_timeout": Rule(least=0, most=3600),
    "sglang_server_only": NAMES,
    "sglang_server_plan": Rule(choices=("refuse", "warn", "skip")),
    "sglang_server_rollback_instances": NAMES,
    "sglang_server_rollback_launch": Rule(pattern=LAUNCH, like="the id of a launch, as 20261129T195609Z-9e696e"),
    "sglang_server_share_gpus": Rule(choices=TRUTHS),
    "sglang_server_stall_timeout": Rule(least=1, most=86_400),
    "sglang_server_state": Rule(choices=("started", "restarted", "stopped", "absent")),
    "support_bundle_instances": NAMES,
}


def answer_problems(given: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each of `given` that must be corrected; names without a rule are not judged.

    The values are as they were given, so that a template is text that nobody has evaluated.
    """
    problems = []
    for name in sorted(RULES.keys() & given.keys()):
        value = given[name]
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
        said = "a template is no answer" if TEMPLATE.search(str(value)) else RULES[name].problem(value)
        if said:
            problems.append(f"{name} is {shown}: {said}")
    return problems
