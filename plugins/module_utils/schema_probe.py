# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run in a release's own interpreter: write the options of its command line as JSON to standard output.

Importing the server compiles SGLang's byte code on the way when root runs it; the service user can not write there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any


def describe(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Return main spelling -> facts of each long option; values that JSON does not know are given as text."""
    options: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        spellings = [flag for flag in action.option_strings if flag.startswith("--")]
        if not spellings or isinstance(action, argparse._HelpAction):
            continue
        kind = type(action).__name__
        if kind == "BooleanOptionalAction":
            spellings = [flag for flag in spellings if not flag.startswith("--no-")]
        options[spellings[0]] = {
            "action": kind,
            "aliases": spellings[1:],
            "choices": None if action.choices is None else [_plain(choice) for choice in action.choices],
            "default": _plain(action.default),
            "deprecated": kind.startswith("Deprecated") or (action.help or "").lower().startswith("deprecated"),
            "dest": action.dest,
            "nargs": action.nargs,
            "required": action.required,
            "type": getattr(action.type, "__name__", None),
        }
    return options


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return str(value)


def kernels() -> str:
    """Return 'loaded', or why SGLang's own kernels do not load; '' where they are not installed."""
    try:
        importlib.import_module("sgl_kernel")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "sgl_kernel":
            return ""
        # the first line says that no library loads, and the last ones what each of them lacks
        lines = [line.strip(" -") for line in str(error).strip().splitlines()] or [""]
        causes = [line for line in lines[1:] if "shared object" in line or "undefined symbol" in line]
        return f"{type(error).__name__}: {'; '.join([lines[0], *causes])[:400]}"
    return "loaded"


def main() -> None:
    """Import the server, as a start does, and print the schema."""
    loaded, server = kernels(), ""
    import sglang

    try:
        importlib.import_module("sglang.srt.entrypoints.http_server")
        importlib.import_module("sglang.srt.models.registry")
    except ImportError as error:
        # a package that is not there has nothing to do with the driver
        if loaded in ("", "loaded") or isinstance(error, ModuleNotFoundError):
            raise
        # some versions do not load without their kernels, nor these without a driver; their options can be told
        server = f"{type(error).__name__}: {error}"
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    told = {"sglang_version": sglang.__version__, "options": describe(parser), "kernels": loaded, "server": server}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
