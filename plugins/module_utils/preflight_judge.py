# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what SGLang would make of an instance is what the operator asked for, and where it is not, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import Compared, compared
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, name_of, written_as
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_probe import Report
from ansible_collections.gpuops.sglang.plugins.module_utils.remedies import remedy

ACCEPT = "accept it with a reason in sglang_server_accept_changes"
# What the probe tried -> what is wrong where it failed, and the option that an operator would correct.
SUBJECTS = {
    "architecture": ("SGLang {version} can not run the model", "model"),
    "chat_template": ("SGLang {version} can not use the chat template", "chat_template"),
    "cuda": ("SGLang {version} can not use the GPU", "device"),
    "tokenizer": ("SGLang {version} can not load the tokenizer", "tokenizer_path"),
}


@dataclass(frozen=True)
class Judged:
    """One requested option."""

    option: str
    requested: Any
    resolved: Any
    verdict: str  # kept, changed, accepted (a change), refused, or unknown: SGLang does not tell
    by: str = ""  # the step of SGLang that changed it
    why: str = ""
    instead: str = ""


@dataclass(frozen=True)
class Problem:
    """What would keep an instance from serving as asked."""

    option: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.why}: {self.instead}"


def judge(
    args: Mapping[str, Any],
    schema: Schema,
    report: Report,
    accepted: Mapping[str, str],
    found: Sequence[Problem] = (),
) -> tuple[list[Judged], list[str]]:
    """Return the verdict on each requested option, and every problem on one line.

    `accepted` names options and variables -> why a change is accepted, `found` are problems of the model's files.
    """
    asked = compared(args, schema, report["resolved"])
    problems = [*_problems(args, schema, report, accepted, asked), *found]
    refused = {written_as(problem.option, args, schema) or problem.option: problem for problem in problems}
    rows, texts = [], [str(problem) for problem in problems]
    resolved = {one.option: one for one in asked}
    for option in sorted(name for name, value in args.items() if value is not None):
        one = resolved.get(option)
        if option in refused:
            why, instead = refused[option].why, refused[option].instead
            rows.append(Judged(option, args[option], one and one.reported, "refused", why=why, instead=instead))
        elif one is None:
            rows.append(Judged(option, args[option], None, "unknown"))
        else:
            row = _compared(one, report, accepted)
            rows.append(row)
            if row.verdict == "changed":
                by = " ".join(filter(None, (f"in {row.by}" if row.by else "", row.why and f'("{row.why}")')))
                texts.append(
                    f"SGLang {report['version']} would change '{option}' from {row.requested!r} to {row.resolved!r}"
                    f"{by and ' '}{by}: {row.instead}"
                )
    return rows, texts


def _compared(one: Compared, report: Report, accepted: Mapping[str, str]) -> Judged:
    if one.same:
        return Judged(one.option, one.requested, one.reported, "kept")
    by = next((step for step, fields in reversed(report["steps"]) if one.field in fields), "")
    mentions = rf"\b({one.field}|{one.field.replace('_', '-')}|{one.option.replace('_', '-')})\b"
    said = [text for text in report["messages"] if re.search(mentions, text)]
    said = said or [text for text in report["messages"] if one.field.replace("_", " ") in text.lower()]
    verdict = "accepted" if one.option in accepted else "changed"
    # SGLang may make its value of what is asked for, so asking for that value need not give it
    instead = accepted.get(one.option) or f"delete it, which leaves it to SGLang, or {ACCEPT}"
    return Judged(one.option, one.requested, one.reported, verdict, by, " ".join(said), instead)


def _problems(
    args: Mapping[str, Any],
    schema: Schema,
    report: Report,
    accepted: Mapping[str, str],
    asked: Sequence[Compared],
) -> Iterator[Problem]:
    version, resolved = report["version"], report["resolved"]
    if report["error"]:
        where = "the arguments" if report["stage"] in ("parse", "resolve", "check") else f"to go on ({report['stage']})"
        why = f"SGLang {version} refuses {where}: {report['error']}"
        yield Problem(_named(report["error"], args, schema), why, remedy(report["error"], schema))
    for subject, words in report["problems"].items():
        what, option = SUBJECTS[subject]
        yield Problem(option, f"{what.format(version=version)}: {words}", remedy(f"{subject}: {words}", schema))
    for name, near in sorted(report["unread"].items()):
        if name not in accepted:
            instead = f"write {near}" if near else "delete it from 'env'"
            yield Problem(name, f"SGLang {version} does not read the variable {name}", f"{instead}, or {ACCEPT}")
    if resolved:
        yield from _ranges(asked)
        yield from _device(args, resolved, report["model"].get("gpus"))
        if resolved["device"] != "cpu":  # there SGLang fills up with heads of zeros
            yield from _divisions(resolved, report["model"])


def _ranges(asked: Sequence[Compared]) -> Iterator[Problem]:
    for one in asked:
        value = one.reported
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if one.field == "mem_fraction_static" and not 0 < value < 1:
            why = f"'{one.option}' is {value}, but it is the share of the free GPU memory that SGLang takes"
            yield Problem(one.option, why, "set it between 0 and 1, e.g. 0.85, or delete it")
        if one.field in ("context_length", "max_running_requests", "max_total_tokens", "tp_size") and value < 1:
            yield Problem(one.option, f"'{one.option}' is {value}", "set it to 1 or more, or delete it")


def _device(args: Mapping[str, Any], resolved: Mapping[str, Any], gpus: int | None) -> Iterator[Problem]:
    device = str(resolved.get("device"))
    if device == "cpu" and args.get("device") is None:
        why = "SGLang finds no GPU on this host and would run on the CPU"
        yield Problem("device", why, "give it a GPU, or set 'device' to cpu if that is meant")
    groups = 1 if resolved.get("enable_dp_attention") else resolved.get("dp_size") or 1
    ranks = resolved["tp_size"] * resolved["pp_size"] * groups // (resolved.get("nnodes") or 1)
    last = (resolved.get("base_gpu_id") or 0) + (ranks - 1) * (resolved.get("gpu_id_step") or 1)
    if device == "cuda" and gpus and last >= gpus:
        why = f"'tp_size', 'pp_size' and 'dp_size' make {ranks} ranks on this host, and the server sees {gpus} GPUs"
        yield Problem("tp_size", why, f"let them make at most {gpus}, or give the instance more 'gpus'")


def _divisions(resolved: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Problem]:
    """The divisions that SGLang's models assert while they are built (e.g. srt/models/qwen2.py, Qwen2Attention)."""
    apart = resolved.get("attn_dp_size") or (resolved["dp_size"] if resolved.get("enable_dp_attention") else 1)
    apart *= resolved.get("attn_cp_size") or 1
    heads, kv_heads = model.get("attention_heads") or 0, model.get("key_value_heads") or 1
    size = resolved["tp_size"] // apart

    def fits(size: int) -> bool:
        return bool(heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0))

    if heads and size and not fits(size):
        of = f"'tp_size' is {resolved['tp_size']}" + (f", {size} for attention" if apart > 1 else "")
        own = f"{heads} attention heads and {kv_heads} key-value heads"
        sizes = ", ".join(str(one * apart) for one in range(1, 65) if fits(one))
        yield Problem("tp_size", f"{of}, which does not divide the model's {own}", f"set it to one of {sizes}")
    experts, ep_size = model.get("experts"), resolved.get("ep_size") or 1
    total = (experts or 0) + (resolved.get("ep_num_redundant_experts") or 0)
    if experts and ep_size > 1 and total % ep_size:
        why = f"'ep_size' is {ep_size}, which does not divide the model's {total} experts"
        yield Problem("ep_size", why, "set it to a divisor")


def _named(words: str, args: Mapping[str, Any], schema: Schema) -> str:
    """Return the requested option that SGLang's words name, the longest first, or ''."""
    for option in sorted(args, key=len, reverse=True):
        flag = canonical(option, schema)
        spellings = {option, option.replace("_", "-"), name_of(flag) if flag else option}
        if any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", words.replace("--", "")) for one in spellings):
            return option
    return ""
