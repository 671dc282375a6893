# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the stand-in, read as SGLang's parser would: with the types of the release's schema.json, or
without one by the look of the values.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def with_config(words: list[str]) -> list[str]:
    """Put what the --config file says before the other words."""
    if "--config" not in words:
        return words
    at = words.index("--config")
    found = []
    for line in Path(words[at + 1]).read_text(encoding="utf-8").splitlines():
        name, _colon, value = line.partition(": ")
        found += [f"--{name}", json.loads(value) if value.startswith('"') else value]
    return [*found, *words[:at], *words[at + 2 :]]


def guess(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def human_readable_int(text: str) -> int:
    number = text.rstrip("".join(UNITS))
    return round(float(number) * UNITS[text[len(number) :]]) if number != text else int(text)


READERS: dict[str | None, Callable[[str], Any]] = {
    "float": float,
    "guess": guess,
    "human_readable_int": human_readable_int,
    "int": int,
    "json_list_type": json.loads,
    "loads": json.loads,
    "parse_cuda_graph_config_arg": json.loads,
}


def guessed(words: list[str]) -> dict[str, Any]:
    """Return a schema of the options that are there."""
    options: dict[str, Any] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, _value = word.partition("=")
            option = {"action": "", "aliases": [], "dest": name[2:].replace("-", "_"), "type": "guess"}
            options[name] = {**option, "nargs": None if equals else 0}
        elif options:
            # no value yet: a switch; one: an option; more: a list
            last = list(options)[-1]
            options[last]["nargs"] = None if options[last]["nargs"] == 0 else "+"
    return options


def read(words: list[str], schema: Path) -> dict[str, Any]:
    """Return field -> value of what was asked for and of all defaults, as /server_info reports it."""
    options = json.loads(schema.read_text(encoding="utf-8"))["options"] if schema.is_file() else guessed(words)
    parser = argparse.ArgumentParser(prog="launch_server.py")
    args: dict[str, Any] = {"api_key": None, "admin_api_key": None, "host": "127.0.0.1", "port": 30000}
    for flag, option in options.items():
        how: dict[str, Any] = {"action": "store_true"}
        if option["action"] == "BooleanOptionalAction":
            how = {"action": argparse.BooleanOptionalAction}
        elif option["nargs"] != 0:
            how = {"nargs": option["nargs"], "type": READERS.get(option["type"], str)}
        parser.add_argument(flag, *option["aliases"], dest=option["dest"], default=argparse.SUPPRESS, **how)
        if option.get("default", argparse.SUPPRESS) != argparse.SUPPRESS:
            args.setdefault(option["dest"], option["default"])
    args |= vars(parser.parse_args(words))
    for name in ("tokenizer_path", "served_model_name"):
        args[name] = args.get(name) or args["model_path"]
    return args
