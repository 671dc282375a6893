# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was changed by hand since a launch was deployed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import changes
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity

SHOWN = 5  # changes of one thing
WAY = "what is to stay belongs into sglang_server_instances"


def drift(
    kept_unit: str,
    unit_path: Path,
    identity: Identity,
    argv: Sequence[str] | None,
    running: Sequence[str] | None,
    release: Path,
) -> list[str]:
    """Return a sentence with the next step for each thing that was changed by hand since a launch was deployed.

    `kept_unit` is the unit that it was started with; `identity` is what systemd says of the service;
    `argv` is the command line of that unit and `running` that of the process, None where it is not known.
    """
    unit = unit_path.name
    found = []
    edited = _unit_lines(kept_unit, unit_path)
    if edited:
        found.append(f"{unit_path} was changed by hand ({_some(edited)}): deploy again, which undoes it; {WAY}")
    if identity.shown.get("NeedDaemonReload") == "yes":
        found.append(f"{unit} was changed but not reloaded: deploy again, or run 'systemctl daemon-reload'")
    added = supervisor().drop_ins(identity)
    if added:
        found.append(f"{', '.join(added)} changes what {unit} runs: delete it and deploy again; {WAY}")
    if argv is not None and running is not None and list(argv) != list(running):
        place = next(place for place, (one, other) in enumerate(zip_longest(argv, running)) if one != other)
        found.append(
            f"the process of {unit} runs with {_word(running, place)} where the unit has {_word(argv, place)}: "
            f"deploy again; {WAY}"
        )
    edited = changes(release)
    if edited:
        found.append(
            f"the release {release} was changed by hand ({_some(edited)}): to undo it delete its release.json, deploy "
            "again and restart; another version of a package belongs into sglang_install_overrides"
        )
    return found


def _unit_lines(kept: str, path: Path) -> list[str]:
    """Return the lines that a unit file has lost ('-...') and got ('+...')."""
    try:
        present = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["it is gone"]
    if present == kept or not kept:
        return []
    # a module is compiled anew in each run, and in most runs nothing was changed
    import difflib

    from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker

    mask = Masker()  # what somebody has written into it may be anything
    lines = difflib.unified_diff(kept.splitlines(), present.splitlines(), n=0, lineterm="")
    return [mask(line) for line in list(lines)[2:] if not line.startswith("@@")]


def _word(words: Sequence[str], place: int) -> str:
    """Return the word at `place`, after the option that it is a value of, without a secret."""
    from ansible_collections.gpuops.sglang.plugins.module_utils.masking import MASK, Masker, is_secret_name

    if place >= len(words):
        return "nothing"
    word = words[place]
    option = next((before for before in reversed(words[:place]) if before.startswith("--")), "")
    name, equals, _value = word.partition("=")
    if word.startswith("--") or not option:
        return repr(f"{name}={MASK}" if equals and is_secret_name(name) else Masker()(word))
    return repr(f"{option} {MASK if is_secret_name(option) else Masker()(word)}")


def _some(items: Sequence[str]) -> str:
    more = f"; and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more
