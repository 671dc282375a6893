# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a command line starts an SGLang server, read as Python itself reads its own options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*t?")
WITH_VALUE = "WX"  # options of Python whose value may be the next word
MODULE = "sglang.launch_server"


@dataclass(frozen=True)
class ServerCommand:
    """A command line that starts a server."""

    python: str  # as it was written
    flags: tuple[str, ...]  # of Python
    serve: bool  # `sglang serve` and not the module
    from_path: bool  # Python looks for modules in the working directory first
    words: tuple[str, ...]  # for SGLang


def server_command(argv: Sequence[str]) -> ServerCommand | None:
    """Return how `argv` starts a server, or None for any other program, whatever words it has."""
    if not argv or not PYTHON.fullmatch(argv[0]):
        return None
    flags: list[str] = []
    position = 1
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("-") or word == "-":
            rest = argv[position:]
            serve = word.rpartition("/")[2] == "sglang" and rest[:1] == ["serve"]
            if serve or word.endswith("/sglang/launch_server.py"):
                return ServerCommand(argv[0], tuple(flags), serve, False, tuple(rest[1:] if serve else rest))
            return None
        if word == "--check-hash-based-pycs":
            position += 1
            continue
        letters = "" if word.startswith("--") else word[1:]
        for place, letter in enumerate(letters):
            value = letters[place + 1 :]
            if letter == "c":
                return None
            if letter in ("m", *WITH_VALUE):
                if not value:
                    value = "".join(argv[position : position + 1])
                    position += 1
                if letter == "m":
                    if value != MODULE:
                        return None
                    from_path = not {"-I", "-P"} & set(flags)
                    return ServerCommand(argv[0], tuple(flags), False, from_path, tuple(argv[position:]))
                flags.append(f"-{letter}{value}")
                break
            flags.append(f"-{letter}")
    return None
