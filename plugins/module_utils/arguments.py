# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator writes for an SGLang server (`args`) and the command line that SGLang gets (see command_line for
the way back).

The options come from the schema of the installed release (see schema_probe); no list of options is kept here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, choices_of

# Options that the deployment sets itself -> where an operator says what they should be.
OWNED = {
    "config": "put secrets under 'secrets' of the instance",
    "host": "set 'host' of the instance",
    "model": "set 'model' of the instance",
    "model_path": "set 'model' of the instance",
    "port": "set 'port' of the instance",
    "weight_version": "it carries the launch id",
}
# Options whose values must not be seen in a process list.
SECRET = ("admin_api_key", "api_key", "ssl_keyfile_password")

# The only words with a leading dash that argparse takes for a value of their own
NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")

# What SGLang stores for a value that it takes for another, so that nothing was changed: (option, written) -> stored.
NORMALISED: dict[tuple[str, str], Any] = {
    ("kv_cache_dtype", "bf16"): "bfloat16",
    ("quantization", "unquant"): None,
    ("speculative_algorithm", "NEXTN"): "EAGLE",
    ("speculative_draft_model_quantization", "unquant"): None,
    ("tool_call_parser", "glm45"): "glm",
    ("tool_call_parser", "qwen25"): "qwen",
}

# Actions that store a constant, or a record of SGLang's own making, in place of the value.
REPLACING = ("DeprecatedStoreConstAction", "LoRAPathAction")

UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _human_readable_int(text: str) -> int:
    """Return the number that SGLang makes of e.g. 32768, 32k (32000), 1.5k or 32Ki (32768)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)", text.strip())
    if not match:
        return int(text)
    number, unit = match.groups()
    return int(number) * UNITS[unit] if unit.endswith("i") else int(Decimal(number) * UNITS[unit])


# Types of SGLang's parser -> what reads such a value (ValueError: it is none) and how an operator calls it.
TYPES: dict[str, tuple[Callable[[str], Any], str]] = {
    "float": (float, "a number"),
    "human_readable_int": (_human_readable_int, "a whole number, as in 32768, 32k or 32Ki"),
    "int": (int, "a whole number"),
    "json_list_type": (json.loads, "JSON"),
    "loads": (json.loads, "JSON"),
    "parse_cuda_graph_config_arg": (json.loads, "JSON"),
}


class ArgumentProblem(ValueError):
    """An argument that SGLang would refuse or misread; the text names it, its value and the next step."""


def to_argv(args: Mapping[str, Any], schema: Schema) -> list[str]:
    """Return the command-line words for `args`, sorted by option name; `null` leaves an option out.

    Raises ArgumentProblem with every problem found, one after the other.
    """
    words, problems = _words(args, schema)
    if problems:
        raise ArgumentProblem("; ".join(problems.values()))
    return words


def argument_problems(args: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Return the option -> one sentence for each thing that SGLang would refuse or misread."""
    return _words(args, schema)[1]


def _words(args: Mapping[str, Any], schema: Schema) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    problems: dict[str, str] = {}
    setters: dict[str, str] = {}
    for name in sorted(args):
        try:
            flag = _flag(name, schema)
            own_words = [] if args[name] is None else option_words(name, flag, args[name], schema)
        except ArgumentProblem as problem:
            problems[name] = str(problem)
            continue
        other = setters.setdefault(schema[flag]["dest"], name) if own_words else name
        if other != name:
            problems[name] = f"'{other}' and '{name}' set the same thing in this SGLang: keep one of them"
        words += own_words
    return words, problems


def option_words(name: str, flag: str, value: Any, schema: Schema) -> list[str]:
    """Return the words for one option, whose main spelling is `flag`; ArgumentProblem names it `name`."""
    option = schema[flag]
    if option["action"] == "BooleanOptionalAction":
        return [flag if _boolean(name, value) else "--no-" + flag[2:]]
    if option["nargs"] == 0:
        return [flag] if _boolean(name, value) else []
    option = {**option, "choices": choices_of(flag, schema)}
    if option["nargs"] in ("*", "+"):
        return [flag, *_list_words(name, value, option)]
    if option["nargs"] == "?" and value is True:
        return [flag]
    word = _word(name, value, option)
    # argparse takes a separate word with a leading dash for the next option
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def secrets_text(secrets: Mapping[str, str]) -> str:
    """Return the content of SGLang's `--config` file: one quoted YAML string for each secret."""
    return "".join(f"{name.replace('_', '-')}: {json.dumps(secrets[name])}\n" for name in sorted(secrets))


def secret_problems(secrets: Mapping[str, str], schema: Schema) -> list[str]:
    """Return one sentence for each secret that SGLang would refuse, ignore or misread; no value is in the text."""
    problems = []
    for name in sorted(secrets):
        flag = canonical(name, schema) if "-" not in name and name not in OWNED else None
        if flag is None or schema[flag]["action"] != "_StoreAction" or schema[flag]["nargs"] is not None:
            problems.append(f"'{name}' under 'secrets' is no option of this SGLang with one value: correct the name")
        elif not secrets[name]:
            problems.append(f"the secret '{name}' is empty, so SGLang would run without it: set it or delete it")
        elif secrets[name].startswith("-") or not (secrets[name].isascii() and secrets[name].isprintable()):
            problems.append(f"the secret '{name}' begins with '-' or is not plain ASCII on one line: use another value")
    return problems


@dataclass(frozen=True)
class Compared:
    """A requested option beside the ServerArgs field in which SGLang reports it."""

    option: str
    field: str
    requested: Any
    reported: Any
    same: bool  # 'auto' leaves the choice to SGLang: whatever it takes is the same


def compared(args: Mapping[str, Any], schema: Schema, reported: Mapping[str, Any]) -> list[Compared]:
    """Compare what was requested with what SGLang reports; an option that it does not report is left out.

    SGLang reports under the names of its ServerArgs fields, which up to 0.5.13 an option's argparse `dest` may not be.
    """
    found = []
    for name in sorted(args):
        flag = canonical(name, schema)
        if args[name] is None or flag is None:
            continue
        option = schema[flag]
        if option["action"] in REPLACING or (option["nargs"] == "?" and args[name] is True):
            continue
        spellings = [spelling[2:].replace("-", "_") for spelling in (flag, *option["aliases"])]
        field = next((field for field in (name, *spellings, option["dest"]) if field in reported), None)
        if field is not None:
            same = (
                args[name] == "auto"
                or _same(_as_parsed(args[name], option), reported[field])
                or _stored_otherwise(field, args[name], reported)
            )
            found.append(Compared(name, field, args[name], reported[field], same))
    return found


def _stored_otherwise(field: str, written: Any, reported: Mapping[str, Any]) -> bool:
    stored, text = reported[field], str(written)
    if (field, text) in NORMALISED:
        return bool(stored == NORMALISED[field, text])
    if field == "dp_size" and stored == 1:
        # since 0.5.22 attention DP has a size of its own, and enable_dp_attention moves this one there
        return str(reported.get("attn_dp_size")) == text
    if field == "device":
        return bool(text.partition(":")[0] == stored)
    return isinstance(stored, str) and text.replace(", ", ",") == stored


def _flag(name: str, schema: Schema) -> str:
    if name in OWNED:
        raise ArgumentProblem(f"'{name}' is not an argument of an instance: {OWNED[name]}")
    if name in SECRET:
        raise ArgumentProblem(f"'{name}' would be readable in the process list: move it to 'secrets' of the instance")
    flag = canonical(name, schema) if "-" not in name else None
    if flag is None:
        raise ArgumentProblem(_hints().unknown_option(name, schema))
    if schema[flag]["action"] == "DeprecatedAction":
        raise ArgumentProblem(_hints().removed_option(name, schema))
    return flag


def _hints() -> ModuleType:
    # a module is compiled anew in each run, and most runs have nothing to hint at
    from ansible_collections.gpuops.sglang.plugins.module_utils import hints

    return hints


def _list_words(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    items = value if isinstance(value, list) else [value]
    if not items and option["nargs"] != "*":
        raise ArgumentProblem(f"'{name}' is an empty list: give at least one value, or delete it")
    words = [_word(name, item, option) for item in items]
    for word in words:
        if word.startswith("-") and not (option["type"] in TYPES and NEGATIVE_NUMBER.fullmatch(word)):
            raise ArgumentProblem(f"'{name}' has the item {word!r}: SGLang's parser takes a leading dash for an option")
    return words


def _word(name: str, value: Any, option: Mapping[str, Any]) -> str:
    read, wanted = TYPES.get(option["type"], (str, "text"))
    if isinstance(option["default"], str) and option["default"].startswith(("[", "{")):
        read, wanted = json.loads, "JSON"  # SGLang reads it itself, and its words then do not name the option
    if value is None or isinstance(value, bool):
        raise ArgumentProblem(f"'{name}' is {json.dumps(value)}, but SGLang wants a value ({wanted})")
    if isinstance(value, (dict, list)):
        try:
            word = json.dumps(value, separators=(",", ":"))
        except RecursionError:
            raise ArgumentProblem(f"'{name}' is nested too deeply for SGLang: write it flatter") from None
        if isinstance(value, list) and read is str:
            raise ArgumentProblem(f"'{name}' is the list {word}, but SGLang takes one value ({wanted})")
    else:
        word = str(value)
    try:
        read(word)
    except (ValueError, RecursionError):
        raise ArgumentProblem(f"'{name}' is {word!r}, but SGLang wants {wanted}") from None
    choices = option["choices"]
    if choices and word not in map(str, choices):
        near = _hints().nearest_choice(word, choices)
        raise ArgumentProblem(f"'{name}' is {word!r}, but SGLang wants one of {', '.join(map(str, choices))}{near}")
    if "\0" in word or word == "--":
        raise ArgumentProblem(f"'{name}' is {word!r}, which no command line can carry: correct it")
    return word


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ArgumentProblem(f"'{name}' is {value!r}, but it is a switch: write true or false")


def _as_parsed(value: Any, option: Mapping[str, Any]) -> Any:
    """Return what SGLang's parser makes of a value that is written as text."""
    if not isinstance(value, str) or option["type"] not in TYPES:
        return value
    try:
        return TYPES[option["type"]][0](value)
    except ValueError:
        return value


def _same(requested: Any, reported: Any) -> bool:
    if isinstance(requested, (dict, list)) or isinstance(reported, dict):
        requested, reported = _json(requested), _json(reported)
    if isinstance(requested, dict) and isinstance(reported, dict):
        # SGLang adds the defaults to a mapping
        return all(key in reported and _same(requested[key], reported[key]) for key in requested)
    if isinstance(reported, list):
        items = requested if isinstance(requested, list) else [requested]
        return len(items) == len(reported) and all(map(_same, items, reported))
    if isinstance(reported, bool) or isinstance(requested, bool):
        return str(requested).lower() == str(reported).lower()
    if isinstance(reported, (int, float)):
        try:
            return float(requested) == float(reported)
        except (TypeError, ValueError):
            return False
    return str(requested) == str(reported)


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
