# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a launch failed, from its own log: the first cause and not its echoes, what shows it, and the next step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema
from ansible_collections.gpuops.sglang.plugins.module_utils.progress import FIRST_STAGE, SERVING, STAGES
from ansible_collections.gpuops.sglang.plugins.module_utils.remedies import known_remedy, remedy

EVIDENCE = 10  # lines
CONTINUED = 12  # lines that may belong to a cause

TRACEBACK = "Traceback (most recent call last)"
# After a traceback's head the first line like this says what was raised; INFO: and the like are of another writer.
EXCEPTION = re.compile(r"^(?![A-Z]+:)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")
# What ends a server and is no exception of Python's, or is written into a line of the log.
ENDING = re.compile(
    r"^[\w. -]+: error: |\[Errno 98\]|Could not load any common_ops|crashed with exit code -9"
    r"|watchdog timeout(?!.*soft=True)|Initialization failed\. warmup error|Port is already in use|ninja: build stopped"
    r"|^Fatal Python error|oom-kill"
)
# What a server may recover from: it is the cause only where there is no other.
TROUBLE = re.compile(r"Health check failed\.")
# They follow from the cause: another process says that one has ended.
ECHO = re.compile(
    r"[Rr]eceived sigquit|SIGQUIT received|scheduler died during initialization|Please see the error messages above"
    r"|PID terminated with|Triggering SIGQUIT|^EOFError|^BrokenPipeError|^ConnectionResetError|^SystemExit"
)
CHAIN = re.compile(r"direct cause of the following exception|During handling of the above exception")
MEMORY = re.compile(r"Load weight (?:begin|end)|Memory pool end|Cache is allocated|avail(?:able)?_?(?:gpu_)? ?mem")
TIME = re.compile(r"^\[[\d: -]+(?: [A-Z]+\d+)*\] ?")


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a failure."""

    stage: str  # what the server was doing, e.g. 'loading weights'
    cause: str  # one line in the program's own words; '' if the log has none
    evidence: tuple[str, ...]  # lines of this launch's log
    remedy: str


def diagnose(text: str, schema: Schema, gpu_memory: float | None = None) -> Diagnosis:
    """Read the log of one launch. The lines of several ranks may be mixed in it. `gpu_memory` is a GPU's, in GiB."""
    lines = [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]
    position = _cause(lines)
    before = lines if position is None else lines[: position + 1]
    said = "\n".join(before)
    # what a server said at its start has gone out of sight when it has served for long
    first = SERVING if re.search("(?:Prefill|Decode) batch", said) else FIRST_STAGE
    stage = next((name for pattern, name in reversed(STAGES) if re.search(pattern, said)), first)
    if position is None:
        return Diagnosis(stage, "", tuple(lines[-EVIDENCE:]), "")
    cause = TIME.sub("", lines[position])
    step = _memory_remedy(cause, before, gpu_memory) or known_remedy(_words(lines, position), schema)
    return Diagnosis(stage, cause, tuple(_evidence(lines, position)), step or remedy(cause, schema))


def _cause(lines: Sequence[str]) -> int | None:
    """Return the position of the line that says what went wrong first.

    A rank that fails says so before its traceback. A traceback without that word may have been caught: of those only
    the last can be what ended the server. Of exceptions that came of one another the first counts that has a remedy.
    """
    last, trouble, head, chain = None, None, "", [-1]
    for position, line in enumerate(lines):
        bare = TIME.sub("", line)
        if position <= chain[-1]:
            continue
        if TRACEBACK in line:
            head = line
        elif ENDING.search(bare):
            return position
        elif TROUBLE.search(bare):
            trouble = position
        elif head and EXCEPTION.match(bare) and not ECHO.search(bare):
            chain = _chain(lines, position)
            known = (one for one in chain if known_remedy(TIME.sub("", lines[one]), {}))
            last = next(known, chain[-1])
            if "hit an exception" in head or ENDING.search(TIME.sub("", head)):
                return last
            head = ""
    return trouble if last is None else last


def _words(lines: Sequence[str], position: int) -> str:
    """Return the cause with what belongs to it: its further lines, and what a compiler or a warm-up said before."""
    further = []
    for line in lines[position + 1 : position + 1 + CONTINUED]:
        if TIME.match(line) or TRACEBACK in line:
            break
        further.append(line)
    before = lines[max(0, position - 3 * CONTINUED) : position]
    said = [line for line in before if re.search(r"\berror: |warmup error", line)]
    return "\n".join([TIME.sub("", lines[position]), *further, *said])


def _chain(lines: Sequence[str], position: int) -> list[int]:
    """Return the positions of the exceptions that came of the one at `position`, itself first."""
    chain = [position]
    for later in range(position + 1, len(lines)):
        if EXCEPTION.match(TIME.sub("", lines[later])):
            if not any(CHAIN.search(line) for line in lines[chain[-1] + 1 : later]):
                break
            chain.append(later)
    return chain


def _evidence(lines: Sequence[str], position: int) -> Iterator[str]:
    """Yield what the launch said of memory before, where it happened in the program, and the cause."""
    memory = (
        [line for line in lines[:position] if MEMORY.search(line)] if re.search("[Mm]emory", lines[position]) else []
    )
    places = [line for line in lines[:position] if line.lstrip().startswith("File ")][-2:]
    rest = () if memory or places else lines[max(0, position - 3) : position]
    yield from [*memory[: EVIDENCE - 4], *rest, *places, *lines[position : position + 2]][:EVIDENCE]


def _memory_remedy(cause: str, lines: Sequence[str], gpu_memory: float | None) -> str | None:
    """Return the direction for caches that do not fit, from what the log says of the GPU's memory in GiB.

    SGLang may use the share f of what was free before the weights were loaded: what is left for the caches is
    free_after - free_before * (1 - f) (srt/model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes).
    """
    if not re.search(r"Not enough memory\. Please try|Not enough GPU memory for hybrid|leave no GPU memory", cause):
        return None
    # a rank says so of target and draft weights in turn; the last is what was left
    ends = [line for line in lines if "Load weight end." in line]
    rank = TIME.match(ends[-1]) if ends else None
    words = rank.group().split()[2:] if rank else []
    begins = [line for line in lines if "Load weight begin." in line and line.split()[2 : 2 + len(words)] == words]
    before = re.search(r"avail mem=([\d.]+)", begins[0]) if begins else None
    after = re.search(r"avail mem=([\d.]+)", ends[-1]) if ends else None
    fraction = re.search(r"mem_fraction_static'?[=:] ?([\d.]+)", "\n".join(lines))
    if not (before and after and fraction):
        return None
    free, left, share = float(before[1]), float(after[1]), float(fraction[1])
    if gpu_memory and free < 0.9 * gpu_memory:
        return (
            f"end what else holds the GPU, see nvidia-smi: only {free:.1f} of its {gpu_memory:.1f} GiB were free "
            "before the weights were loaded"
        )
    if "leave no GPU memory" in cause:
        return None  # SGLang has reckoned itself
    budget = left - free * (1 - share)
    weights = free - left
    said = f"{free:.1f} GiB were free, the weights took {weights:.1f}, and 'mem_fraction_static' {share:g} leaves"
    if budget > 0.5:
        return (
            f"lower 'max_running_requests': {said} {budget:.1f} for the caches, which what is kept for each request "
            "and its speculation exceeds"
        )
    least = (weights + 1) / free
    if least < 0.95:
        return (
            f"raise 'mem_fraction_static' above {least:.2f}: {said} nothing for the caches; if the GPU has more "
            "memory, see with nvidia-smi which other process holds it"
        )
    return (
        f"{said} nothing for the caches: see with nvidia-smi whether another process holds the GPU, else spread the "
        "weights over more GPUs by 'tp_size' or take a quantized model"
    )
