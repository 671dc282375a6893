# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the SGLang that a foreign server was started from, as its own parser tells them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import found_probe, release_record, schema_probe
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import Unanswered, run_as
from ansible_collections.gpuops.sglang.plugins.module_utils.found_installation import Installation
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.found_trust import changeable
from ansible_collections.gpuops.sglang.plugins.module_utils.host import last_lines
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options

FACTS = {"action", "aliases", "choices", "default", "dest", "nargs", "type"}  # of an option
MARK = '{"sglang_version"'  # packages may write to standard output when they are imported


@dataclass(frozen=True)
class FoundOptions:
    """A parser, and how it reads a --config file."""

    options: Options
    read_config: Callable[[str], Any] | None
    notes: tuple[str, ...] = ()


def found_options(
    found: FoundProcess, installed: Installation, releases: Path, timeout: float
) -> tuple[FoundOptions | None, str]:
    """Return the options, and why its own parser was not asked ('' where it was).

    Where it can not be, a release in `releases` of the same version tells. `timeout`: s.
    """
    answer, why = _ask(found, installed, timeout)
    if answer is not None:
        return FoundOptions(Options(answer["options"], answer["sglang_version"]), lambda _path: _config(answer)), ""
    for folder in (
        sorted(releases.glob(f"{installed.version}-*")) if installed.version and not installed.sources else ()
    ):
        options = release_record.schema(folder)
        if options is not None and options.version == installed.version:
            return FoundOptions(options, None), f"{why}: the options are those of {folder}"
    return None, why


def config_of(found: FoundProcess) -> str | None:
    """Return the path of its --config file, which SGLang takes as a word of its own alone."""
    words = found.command.words
    if "--config" not in words[:-1]:
        return None
    return str(found.path(words[words.index("--config") + 1]))


def _config(answer: dict[str, Any]) -> Any:
    read = answer["config"]
    if "content" in read:
        return read["content"]
    if read["errno"] is None:
        raise ValueError("no YAML")
    raise OSError(read["errno"], os.strerror(read["errno"]))


def _ask(found: FoundProcess, installed: Installation, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """Run the probe in the server's interpreter, as its user, at the lowest priority and without a GPU."""
    if found.container:
        return None, f"its interpreter is that of {found.container} and was not run"
    if found.own_files:
        return None, "its interpreter was not run, as it sees other files than this host (it has mounts of its own)"
    if found.python is None:
        return None, "its interpreter was not run: it is not there any more, or others than its user can change it"
    if installed.closed:
        return None, f"its SGLang was not run: {installed.closed}"
    asked = {
        "schema_probe": inspect.getsource(schema_probe),
        "path": installed.sources,
        "config": config_of(found),
    }
    try:
        done = run_as(
            found.user, str(found.python), inspect.getsource(found_probe), asked, timeout, environment=_libraries(found)
        )
    except Unanswered as unanswered:
        return None, f"its interpreter {found.python} {unanswered}"
    try:
        answer, _end = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index(MARK) :])
    except (ValueError, RecursionError):
        said = Masker()(" ".join(last_lines(done.stderr, 1)))
        return None, f"its SGLang could not be imported by {found.python} (exit status {done.returncode}): {said}"
    options = answer.get("options")
    if not isinstance(options, dict) or not all(
        isinstance(one, dict) and one.keys() >= FACTS for one in options.values()
    ):
        return None, "its SGLang told no options"
    return answer, ""


def _libraries(found: FoundProcess) -> dict[str, str]:
    """Return where its interpreter looks for libraries, of those folders that nobody else can change."""
    own = []
    for folder in found.environment.get("LD_LIBRARY_PATH", "").split(":"):
        try:
            if folder.startswith("/") and not changeable(Path(folder), found.user.uid):
                own.append(folder)
        except (OSError, ValueError):
            continue
    return {"LD_LIBRARY_PATH": ":".join(own)} if own else {}
