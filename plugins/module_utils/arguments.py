# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator writes for an SGLang server (`args`) and the command line that SGLang gets.

The options come from the schema of the installed release (see schema_probe); no list of options is kept here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, Optional

Schema = Mapping[str, Mapping[str, Any]]

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

FLAG_ACTIONS = ("_StoreTrueAction", "_StoreFalseAction", "_StoreConstAction", "DeprecatedStoreTrueAction",
                "DeprecatedStoreConstAction")  # fmt: skip


class ArgumentProblem(ValueError):
    """An argument that SGLang would refuse or misread; the text names it, its value and the next step."""


def to_argv(args: Mapping[str, Any], schema: Schema) -> list[str]:
    """Return the command-line words for `args`, sorted by option name; `null` leaves an option out.

    Raises ArgumentProblem with every problem found, one after the other.
    """
    words: list[str] = []
    problems: list[str] = []
    for name in sorted(args):
        try:
            words += _option_words(name, args[name], schema)
        except ArgumentProblem as problem:
            problems.append(str(problem))
    if problems:
        raise ArgumentProblem("; ".join(problems))
    return words


def canonical(name: str, schema: Schema) -> Optional[str]:
    """Return the main spelling of the option that `name` (an option or one of its aliases) stands for."""
    flag = "--" + name.replace("_", "-")
    if flag in schema:
        return flag
    return next((main for main, option in schema.items() if flag in option["aliases"]), None)


def secrets_text(secrets: Mapping[str, str]) -> str:
    """Return the content of SGLang's `--config` file: one quoted YAML string for each secret."""
    return "".join(f"{name.replace('_', '-')}: {json.dumps(secrets[name])}\n" for name in sorted(secrets))


def differences(args: Mapping[str, Any], schema: Schema, reported: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Compare what was requested with what the server reports: (options compared, one text for each difference).

    SGLang reports under the names of its ServerArgs fields; up to 0.5.13 an option's argparse `dest` may be another name.
    An option that the server does not report is not counted.
    """
    compared, different = 0, []
    for name in sorted(args):
        flag = canonical(name, schema)
        if args[name] is None or flag is None:
            continue
        names = (name, flag[2:].replace("-", "_"), schema[flag]["dest"])
        field = next((field for field in names if field in reported), None)
        if field is None:
            continue
        compared += 1
        if not _same(args[name], reported[field]):
            different.append(f"{name}: requested {args[name]!r}, the server reports {reported[field]!r}")
    return compared, different


def _option_words(name: str, value: Any, schema: Schema) -> list[str]:
    if name in OWNED:
        raise ArgumentProblem(f"'{name}' is not an argument of an instance: {OWNED[name]}")
    if name in SECRET:
        raise ArgumentProblem(f"'{name}' would be readable in the process list: move it to 'secrets' of the instance")
    flag = canonical(name, schema) if "-" not in name else None
    if flag is None:
        raise ArgumentProblem(f"this SGLang has no option '{name}'{_hint(name, schema)}")
    if value is None:
        return []
    option = schema[flag]
    if option["action"] == "DeprecatedAction":
        raise ArgumentProblem(f"'{name}' was removed from this SGLang: delete it")
    if option["action"] == "BooleanOptionalAction":
        return [flag if _boolean(name, value) else "--no-" + flag[2:]]
    if option["action"] in FLAG_ACTIONS or option["nargs"] == 0:
        return [flag] if _boolean(name, value) else []
    if option["nargs"] in ("*", "+") or isinstance(option["nargs"], int):
        return [flag, *_list_words(name, value, option)]
    if option["nargs"] == "?" and value is True:
        return [flag]
    word = _word(name, value, option)
    # argparse takes a separate word with a leading dash for the next option
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def _list_words(name: str, value: Any, option: Mapping[str, Any]) -> list[str]:
    items = value if isinstance(value, list) else [value]
    if not items and option["nargs"] != "*":
        raise ArgumentProblem(f"'{name}' is an empty list: give at least one value, or delete it")
    words = [_word(name, item, option) for item in items]
    for word in words:
        if word.startswith("-") and option["type"] not in ("int", "float"):
            raise ArgumentProblem(f"'{name}' has the item {word!r}: SGLang's parser takes a leading dash for an option")
    return words


def _word(name: str, value: Any, option: Mapping[str, Any]) -> str:
    if isinstance(value, bool):
        raise ArgumentProblem(f"'{name}' is {str(value).lower()}, but SGLang wants a value ({_wanted(option)})")
    if isinstance(value, (dict, list)):
        if isinstance(value, list) and option["type"] == "str" and not str(option["default"]).startswith(("[", "{")):
            raise ArgumentProblem(f"'{name}' is a list, but SGLang takes one value ({_wanted(option)})")
        word = json.dumps(value, separators=(",", ":"))
    else:
        word = str(value)
    if option["type"] in ("int", "float"):
        try:
            {"int": int, "float": float}[option["type"]](word)
        except ValueError:
            raise ArgumentProblem(f"'{name}' is {word!r}, but SGLang wants {_wanted(option)}") from None
    choices = option["choices"]
    if choices and word not in [str(choice) for choice in choices]:
        raise ArgumentProblem(f"'{name}' is {word!r}, but SGLang wants one of {', '.join(map(str, choices))}")
    return word


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ArgumentProblem(f"'{name}' is {value!r}, but it is a switch: write true or false")


def _wanted(option: Mapping[str, Any]) -> str:
    return {"int": "a whole number", "float": "a number", "loads": "JSON"}.get(str(option["type"]), "text")


def _hint(name: str, schema: Schema) -> str:
    known = [flag[2:].replace("-", "_") for flag in schema]
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.75)
    return f"; did you mean '{near[0]}'?" if near else ": see the options in schema.json of the release"


def _same(requested: Any, reported: Any) -> bool:
    if isinstance(reported, bool) or isinstance(requested, bool):
        return str(requested).lower() == str(reported).lower()
    if isinstance(reported, (int, float)):
        try:
            return float(requested) == float(reported)
        except (TypeError, ValueError):
            return False
    if isinstance(reported, (list, tuple)):
        items = requested if isinstance(requested, list) else [requested]
        return len(items) == len(reported) and all(map(_same, items, reported))
    if isinstance(reported, dict) or isinstance(requested, (dict, list)):
        return _json(requested) == _json(reported)
    return str(requested) == str(reported)


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
