# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of an SGLang server, read back into what an operator would write, as argparse itself reads it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import hints
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import (
    NEGATIVE_NUMBER,
    OWNED,
    SECRET,
    TYPES,
    ArgumentProblem,
    option_words,
    secret_problems,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, name_of

# What may hold a password; it stays a secret where it came from a file and not from the process list.
MAYBE_SECRET = ("hicache_storage_backend_extra_config", "model_loader_extra_config", "watermark_config")
HELP = ("--help", "-h")

# Returns a --config file as YAML reads it; OSError or ValueError: it can not be read.
ConfigReader = Callable[[str], Any]


@dataclass
class CommandLine:
    """What a command line says; with `problems` the rest is what could be read all the same."""

    args: dict[str, Any] = field(default_factory=dict)
    owned: dict[str, Any] = field(default_factory=dict)  # options that are not for `args`, e.g. model_path
    secrets: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # SGLang would refuse it, or an operator can not write it
    notes: list[str] = field(default_factory=list)  # what was read otherwise than it looks


@dataclass(frozen=True)
class _Word:
    """How argparse takes a word: as an option (`spellings` that it may stand for) or else as a value."""

    text: str
    is_option: bool = False
    spellings: tuple[str, ...] = ()
    explicit: str | None = None  # the value after '='


def from_argv(
    words: Sequence[str], schema: Schema, read_config: ConfigReader | None = None, serve: bool = False
) -> CommandLine:
    """Read the words after `python -m sglang.launch_server`, or with `serve` those after `sglang serve`.

    No value of an unknown option or of a secret is in a problem or a note.
    """
    line = CommandLine()
    words = _served(list(words)) if serve else list(words)
    from_file, words = _configured(words, schema, read_config, line)
    flags = _flags(schema)
    taken = [_taken(word, flags) for word in [*from_file, *words]]
    settings: dict[str, tuple[str, Any, bool]] = {}  # dest -> main spelling, value, from the file
    for spelling, value, position in _settings(taken, flags, schema, line):
        flag, option = flags[spelling], schema[flags[spelling]]
        if option["action"] == "DeprecatedAction":
            line.notes.append(f"'{spelling}' does nothing in this SGLang: it is left out")
        elif flag == "--config":
            line.notes.append("'--config' counts only as a word of its own before the file: SGLang ignores this one")
        else:
            if option["action"] == "BooleanOptionalAction":
                value = not spelling.startswith("--no-")
            try:
                if name_of(flag) not in SECRET:  # the text of a problem holds the value
                    option_words(name_of(flag), flag, value, schema)
            except ArgumentProblem as problem:
                line.problems.append(str(problem))
                continue
            # the last one counts, also of two options that set the same thing
            settings[option["dest"]] = (flag, value, position < len(from_file))
    for flag, value, in_file in settings.values():
        name = name_of(flag)
        if name in SECRET or (in_file and name in MAYBE_SECRET):
            line.secrets[name] = value if isinstance(value, str) else json.dumps(value)
        else:
            (line.owned if name in OWNED else line.args)[name] = value
    line.problems += secret_problems(line.secrets, schema)
    return line


def model_type(words: Sequence[str]) -> str:
    """Return what `sglang serve` is told to serve; 'auto' where it finds that out itself."""
    told = "auto"
    for position, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == "--model-type":
            told = value if equals else "".join(words[position + 1 : position + 2])
    return told


def _served(words: list[str]) -> list[str]:
    """Return what `sglang serve` hands on: without --model-type, and a first word that is the model as an option."""
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--model-type":
            next(rest, None)
        elif not word.startswith("--model-type="):
            left.append(word)
    return ["--model-path", *left] if left and not left[0].startswith("-") else left


def _configured(
    words: list[str], schema: Schema, read_config: ConfigReader | None, line: CommandLine
) -> tuple[list[str], list[str]]:
    """Return the words that SGLang makes of its --config file, and the others, which it puts behind them."""
    if "--config" not in words:
        return [], words
    position = words.index("--config")
    path, others = "".join(words[position + 1 : position + 2]), words[:position] + words[position + 2 :]
    if "--config" in others or not path:
        line.problems.append("'--config' is there twice or without a file: SGLang takes one file")
        return [], words[:position]
    if PurePosixPath(path).suffix.lower() not in (".yaml", ".yml"):
        line.problems.append(f"'--config' is {path!r}: SGLang takes a file whose name ends in .yaml or .yml")
        return [], others
    if read_config is None:
        line.problems.append(f"'--config' is {path!r}, which was not read: give its content too")
        return [], others
    try:
        content = read_config(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no YAML"  # YAML's own text quotes the file
        line.problems.append(f"'--config' is {path!r}, which can not be read ({why}): correct the file")
        return [], others
    if content is None:
        return [], others
    if not isinstance(content, Mapping):
        line.problems.append(f"'--config' is {path!r}, which holds no mapping: write one 'option: value' a line")
        return [], others
    return [word for key, value in content.items() for word in _config_words(str(key), value, schema)], others


def _config_words(key: str, value: Any, schema: Schema) -> list[str]:
    if isinstance(value, bool):
        flag = canonical(key, schema)
        if flag and schema[flag]["action"] == "_StoreTrueAction":
            return [f"--{key}"] if value else []
        return [f"--{key}", str(value).lower()]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value, default=str) if isinstance(value, Mapping) else str(value)]


def _flags(schema: Schema) -> dict[str, str]:
    """Return every spelling that the parser knows -> the main spelling of its option."""
    flags = dict.fromkeys(HELP, HELP[0])
    for main, option in schema.items():
        for spelling in (main, *option["aliases"]):
            flags[spelling] = main
            if option["action"] == "BooleanOptionalAction":
                flags["--no-" + spelling[2:]] = main
    return flags


def _taken(word: str, flags: Mapping[str, str]) -> _Word:
    if not word.startswith("-") or word == "-":
        return _Word(word)
    if word in flags:
        return _Word(word, True, (word,))
    head, equals, explicit = word.partition("=")
    value = explicit if equals else None
    if equals and head in flags:
        return _Word(head, True, (head,), value)
    if word.startswith("--"):
        spellings = tuple(flag for flag in flags if flag.startswith(head)) if word != "--" else ()
        if spellings:
            return _Word(head, True, spellings, value)
    elif word.startswith("-h"):
        return _Word("-h", True, ("-h",))
    if NEGATIVE_NUMBER.fullmatch(word.removesuffix("\n")) or " " in word:
        return _Word(word)
    return _Word(head, True)


def _settings(
    taken: Sequence[_Word], flags: Mapping[str, str], schema: Schema, line: CommandLine
) -> Iterator[tuple[str, Any, int]]:
    """Yield the spelling, the value and the position of each option that has what it needs."""
    position, awaited = 0, False  # awaited: the last option is a secret without its value
    while position < len(taken):
        word, begin, awaiting = taken[position], position, awaited
        awaited = False
        position += 1
        if word.text == "--" and word.is_option:
            line.problems.append("'--' ends the options, and SGLang takes nothing else: delete it and what follows")
            return
        values = []
        while position < len(taken) and not taken[position].is_option:
            values.append(taken[position].text)
            position += 1
        if not word.is_option:
            # only before the first option: what comes later was counted to the option before it
            _strays([word.text, *values], "the beginning", line)
        elif awaiting and not word.spellings:
            continue  # probably that value, with a dash in front
        elif len(word.spellings) != 1:
            line.problems.append(_no_option(word, flags, schema))
        elif flags[word.spellings[0]] == HELP[0]:
            line.problems.append(f"'{word.text}' asks for help and starts no server: delete it")
        else:
            spelling = word.spellings[0]
            flag = flags[spelling]
            if spelling != word.text:
                line.notes.append(f"'{word.text}' is short for '{spelling}'")
            if word.explicit is not None:
                given, rest = [word.explicit], values
            else:
                most = {0: 0, None: 1, "?": 1}.get(schema[flag]["nargs"], len(values))
                given, rest = values[:most], values[most:]
            secret = name_of(flag) in (*SECRET, *MAYBE_SECRET)
            _strays(["..."] * len(rest) if secret else rest, f"'{spelling}'", line)
            problem, value = _value(given, schema[flag], explicit=word.explicit is not None)
            if problem:
                line.problems.append(f"'{spelling}' {problem}")
                awaited = secret
            else:
                yield spelling, value, begin


def _strays(words: Sequence[str], where: str, line: CommandLine) -> None:
    line.problems += [f"the word {word!r} after {where} belongs to no option: delete it" for word in words]


def _no_option(word: _Word, flags: Mapping[str, str], schema: Schema) -> str:
    if word.spellings:
        return f"'{word.text}' may stand for {', '.join(sorted(word.spellings)[:8])}: write one in full"
    dashed = word.text.replace("_", "-")
    if dashed in flags:
        return f"'{word.text}' has underscores, SGLang's command line wants '{dashed}'"
    return hints.unknown_option(word.text, schema)


def _value(words: Sequence[str], option: Mapping[str, Any], explicit: bool) -> tuple[str | None, Any]:
    """Return what is wrong with the number of words, or the value that an operator would write for them."""
    nargs = option["nargs"]
    if nargs == 0:
        return ("is a switch and takes no value: delete what follows '='" if explicit else None), True
    if nargs in ("*", "+"):
        problem = None if words or nargs == "*" else "wants at least one value: give it or delete the option"
        return problem, [_natural(word, option) for word in words]
    if not words:
        return (None, True) if nargs == "?" else ("wants a value: give it or delete the option", None)
    return None, _natural(words[0], option)


def _natural(word: str, option: Mapping[str, Any]) -> Any:
    """Return a word as YAML would hold it; what is no such value, or would not come back as it was, stays text."""
    kind = option["type"]
    is_json = kind in TYPES and TYPES[kind][0] is json.loads
    if (
        is_json
        or (isinstance(option["default"], str) and option["default"].startswith(("[", "{")))
        or (option["action"] == "LoRAPathAction" and word.strip().startswith("{"))
    ):
        try:
            value = json.loads(word)
        except (ValueError, RecursionError):
            return word
        return value if isinstance(value, (dict, list)) else word
    if kind not in TYPES:
        return word
    try:
        if kind != "float" or re.fullmatch(r"0|-?[1-9]\d*", word):
            return int(word)
        number = float(word)
    except ValueError:
        return word
    return number if math.isfinite(number) and "e" not in repr(number) else word
