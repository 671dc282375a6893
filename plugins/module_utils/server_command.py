# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a command line starts an SGLang server, read as Python itself reads its own options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*t?d?(?:-dbg)?")
WITH_VALUE = "WX"  # options of Python whose value may be the next word
MODULE = "sglang.launch_server"
COMMAND = "sglang.cli.main"  # the module of `sglang`
# modules that run the one that their own '-m' names
RUNNERS = ("debugpy", "cProfile", "profile", "coverage", "trace", "pdb", "viztracer")


@dataclass(frozen=True)
class ServerCommand:
    """A command line that starts a server."""

    python: str  # as it was written
    flags: tuple[str, ...]  # of Python
    serve: bool  # `sglang serve` and not the module that it starts
    from_path: bool  # Python looks for modules in the working directory first
    words: tuple[str, ...]  # for SGLang


def server_command(
    argv: Sequence[str], program: str = "", folder: Callable[[], str] = lambda: ""
) -> ServerCommand | None:
    """Return how `argv` starts a server, or None for any other program, whatever words it has.

    `program`: what runs, if the first word does not say that; `folder` tells the working directory.
    """
    python = next((name for name in (*argv[:1], program) if PYTHON.fullmatch(name)), "") if argv else ""
    if not python:
        return None
    flags: list[str] = []
    position = 1
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("-") or word == "-":
            return _script(python, flags, word, argv[position:], folder)
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
                    return _module(python, flags, value, argv[position:], not {"-I", "-P"} & set(flags))
                flags.append(f"-{letter}{value}")
                break
            flags.append(f"-{letter}")
    return None


def _script(
    python: str, flags: Sequence[str], script: str, words: Sequence[str], folder: Callable[[], str]
) -> ServerCommand | None:
    name = script.rpartition("/")[2]
    if name == "sglang" and words[:1] == ["serve"]:
        return ServerCommand(python, tuple(flags), True, False, tuple(words[1:]))
    if name in RUNNERS:  # the command of one
        return _module(python, flags, name, words, True)
    if name == "launch_server.py" and f"/{os.path.normpath(os.path.join(folder(), script))}".endswith(
        "/sglang/launch_server.py"
    ):
        return ServerCommand(python, tuple(flags), False, False, tuple(words))
    return None


def _module(
    python: str, flags: Sequence[str], module: str, words: Sequence[str], from_path: bool
) -> ServerCommand | None:
    words = list(words)
    if module in RUNNERS and "-m" in words:
        position = words.index("-m") + 1
        module, words = "".join(words[position : position + 1]), words[position + 1 :]
    serve = module == COMMAND and words[:1] == ["serve"]
    if module != MODULE and not serve:
        return None
    return ServerCommand(python, tuple(flags), serve, from_path, tuple(words[1:] if serve else words))
