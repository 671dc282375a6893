# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A memory plan as text for a terminal: the verdict, a bar for each GPU, what would help."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 100
NAME = 24  # characters of a card's name
LETTERS = {
    "others": ("#", "in use by others"), "context": ("x", "CUDA"), "weights": ("w", "weights"),
    "draft": ("d", "draft model"), "state": ("s", "states"), "verify": ("v", "states to verify drafts"),
    "cache": ("k", "KV cache"), "requests": ("r", "tables of requests"), "graphs": ("g", "graphs"),
    "rest": (".", "left for activations"), "unknown": ("?", "not known"),
}  # fmt: skip


def bars(plan: Mapping[str, Any]) -> str:
    """Return the text for what sglang_plan tells; no line is longer than WIDTH."""
    lines = [*_wrapped(plan["verdict"], ""), *_wrapped(_figures(plan), "")]
    gpus = plan["gpus"]
    for index, gpu in enumerate(gpus):
        lines.append(_bar(index, gpu, gpus))
        if index + 1 == len(gpus) or gpus[index + 1]["parts"] != gpu["parts"]:
            lines += _legend(gpu["parts"], plan["fits"])
    for lever in plan["levers"]:
        lines += _wrapped(f"{_change(lever)}: {lever['costs']}; {_reached(lever)}", "lever: ")
    proposal = plan["proposal"]
    if proposal:
        args = " ".join(f"{name}={_value(value)}" for name, value in proposal["args"].items())
        lines += _wrapped(f"{args}; {_reached(proposal)}", "proposal: ")
    for why in plan["unknown"]:
        lines += _wrapped(why, "not known: ")
    for note in plan["notes"]:
        lines += _wrapped(note, "note: ")
    return "\n".join(lines)


def _figures(plan: Mapping[str, Any]) -> str:
    said = f"SGLang {plan['sglang_version']}, context {plan['context']}"
    if plan["fits"]:
        slots = f", {plan['state_slots']} state slots" if plan["state_slots"] else ""
        said += f": {_reached(plan)}, {plan['longest_context']} tokens for each of them then{slots}"
    return said


def _bar(index: int, gpu: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    names = [_plain(one["name"])[:NAME] for one in gpus]
    number = str(index).rjust(len(str(len(gpus) - 1)))
    head = f"{number} {names[index].ljust(max(map(len, names)))} {gpu['total_gib']:6.1f} GiB |"
    cells, total = WIDTH - len(head) - 1, sum(gpu["parts"].values())
    text, end = "", 0.0
    for name, size in gpu["parts"].items():
        end += size
        text += LETTERS[name][0] * (round(end / total * cells) - len(text))
    return f"{head}{text}|"


def _legend(parts: Mapping[str, float], fits: bool | None) -> list[str]:
    """Say what the letters are and how many GiB each has; a part of nothing is left out."""
    lines = [""]
    for name, size in parts.items():
        if size < 0.05:
            continue
        what = "left where it ends" if name == "rest" and not fits else LETTERS[name][1]
        one = f"{LETTERS[name][0]} {what} {size:.1f}"
        more = f"{lines[-1]}  {one}"
        lines[-1:] = [more] if len(more) <= WIDTH else [lines[-1], f"  {one}"]
    return lines


def _change(lever: Mapping[str, Any]) -> str:
    if lever["value"] is None:
        return f"delete '{lever['option']}'"
    return f"set '{lever['option']}' to {_value(lever['value'])}"


def _reached(plan: Mapping[str, Any]) -> str:
    return f"{plan['kv_tokens']} KV tokens, {plan['effective_max_running_requests']} requests at a time"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _wrapped(text: str, head: str) -> list[str]:
    return textwrap.wrap(_plain(text), WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()
