# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's command line and answers, as recorded of its releases, for tests that have no SGLang.

fixtures/sglang_options.json: read from the argparse parsers of the wheels; bin/option-history explains and extends it.
fixtures/answers.json: parts of what real servers answered.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from ansible import constants
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuops.sglang.plugins.module_utils import processes
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, systemd
from hypothesis import settings

settings.register_profile("unit", deadline=None)  # a busy machine is no defect
settings.load_profile("unit")

FIXTURES = Path(__file__).parent / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, help="random moments at which an installation or a transfer is killed")


VERSIONS = ("0.5.9", "0.5.13", "0.5.18", "0.5.23")
OPTION_HISTORY = Path(__file__).parents[2] / "bin/option-history"


def human_readable_int(value: str) -> int:
    """As in SGLang's srt/utils/common.py."""
    units = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if match is None:
        return int(value)
    number, unit = match.groups()
    if unit.endswith("i") and "." in number:
        raise argparse.ArgumentTypeError("Decimals are not allowed with IEC suffixes")
    return int(Decimal(number) * units[unit])


def json_list_type(value: str) -> Any:
    return json.loads(value)


def nullable_str(value: str) -> str | None:
    return None if not value or value == "None" else value


def parse_cuda_graph_backend_arg(raw: str) -> str:
    return raw


def parse_cuda_graph_config_arg(raw: str) -> dict[str, dict[str, Any]]:
    return json.loads(raw)


class DeprecatedAction(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, nargs: int = 0, **facts: Any) -> None:
        super().__init__(option_strings, dest, nargs=nargs, **facts)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        parser.error(f"{option_string} is deprecated")


class DeprecatedStoreTrueAction(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, default: Any = False, **facts: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=True, default=default, **facts)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, True)


class DeprecatedStoreConstAction(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, const_value: Any, **facts: Any) -> None:
        self.const_value = const_value
        super().__init__(option_strings, dest, **facts)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, self.const_value)


class DeprecatedAliasStoreAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values)


class LoRAPathAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        paths = [path.strip() for path in values]
        setattr(namespace, self.dest, [json.loads(path) if path.startswith("{") else path for path in paths])


ACTIONS: dict[str, Any] = {
    "_StoreAction": "store",
    "_StoreTrueAction": "store_true",
    "BooleanOptionalAction": argparse.BooleanOptionalAction,
    **{
        action.__name__: action
        for action in (
            DeprecatedAction,
            DeprecatedStoreTrueAction,
            DeprecatedStoreConstAction,
            DeprecatedAliasStoreAction,
            LoRAPathAction,
        )
    },
}
TYPES: dict[str, Any] = {
    "float": float,
    "int": int,
    "loads": json.loads,
    "str": str,
    **{
        function.__name__: function
        for function in (
            human_readable_int,
            json_list_type,
            nullable_str,
            parse_cuda_graph_backend_arg,
            parse_cuda_graph_config_arg,
        )
    },
}


def add_option(parser: argparse.ArgumentParser, flag: str, facts: dict[str, Any]) -> None:
    """Add one recorded option."""
    facts = dict(facts)
    facts["help"] = "Deprecated." if facts.pop("deprecated", False) else None
    action = facts.pop("action", "_StoreAction")
    spellings = [flag, *facts.pop("aliases", [])]
    facts.setdefault("dest", flag[2:].replace("-", "_"))
    if action == "DeprecatedStoreConstAction":
        facts.setdefault("nargs", None if "choices" in facts else 0)
        facts["const_value"] = facts.pop("const")
    if "type" in facts:
        facts["type"] = TYPES[facts["type"]]
    parser.add_argument(*spellings, action=ACTIONS[action], **facts)


@cache
def option_history() -> Any:
    """Return bin/option-history as a module."""
    module = types.ModuleType("option_history_script")
    module.__file__ = str(OPTION_HISTORY)
    exec(compile(OPTION_HISTORY.read_text(encoding="utf-8"), OPTION_HISTORY, "exec"), module.__dict__)
    return module


@cache
def releases() -> dict[str, dict[str, dict[str, Any]]]:
    """Return version -> option -> facts of every recorded release."""
    record = json.loads((FIXTURES / "sglang_options.json").read_text(encoding="utf-8"))
    recorded: dict[str, dict[str, dict[str, Any]]] = option_history().expanded(record)
    return recorded


@cache
def parser_of(version: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m sglang.launch_server` in one release."""
    parser = argparse.ArgumentParser(prog="launch_server")
    for flag, facts in releases()[version].items():
        add_option(parser, flag, facts)
    return parser


@cache
def schema_of(version: str) -> Options:
    """Return the options of one release as `release.schema` does."""
    return Options(describe(parser_of(version)), version)


def same_namespace(one: argparse.Namespace, other: argparse.Namespace) -> bool:
    """Tell whether SGLang gets the same: JSON that it reads itself from text may be written in another way."""

    def plain(value: Any) -> str:
        if isinstance(value, str) and value.startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        return repr(value)

    return {key: plain(value) for key, value in vars(one).items()} == {
        key: plain(value) for key, value in vars(other).items()
    }


@pytest.fixture(autouse=True)
def _systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts have systemd, wherever the tests run."""
    monkeypatch.setattr(systemd, "is_here", lambda: True)
    monkeypatch.setattr(systemd, "HIDDEN", ())  # where tests have their models
    monkeypatch.setattr(here, "_chosen", systemd)
    monkeypatch.setattr(processes, "groups", None)


@pytest.fixture(scope="session", params=VERSIONS)
def sglang_parser(request: pytest.FixtureRequest) -> argparse.ArgumentParser:
    """The command line of each recorded release in turn."""
    return parser_of(request.param)


@pytest.fixture(scope="session")
def answers() -> dict[str, Any]:
    """Version -> path -> body, as real servers answered."""
    content: dict[str, Any] = json.loads((FIXTURES / "answers.json").read_text(encoding="utf-8"))
    return content


RUN = """
import sys
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.modules import {name} as module
AnsibleModule.log = lambda self, text, log_args=None: print(text, log_args, file=sys.stderr)
module.main()
"""


def run_module(name: str, asked: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Run a module as a process of its own: (its result, what it would log on the host)."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(name=name)], input=json.dumps({"ANSIBLE_MODULE_ARGS": asked}),
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout)
    return result, done.stderr


def call_module(module: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Run a module in this process, where a test has put something else in place of what it calls."""
    said, warned = io.StringIO(), []
    # Ansible keeps the warnings of all modules of a process together
    with (
        patch_module_args(asked),
        patch.object(AnsibleModule, "warn", lambda _self, text: warned.append(text)),
        contextlib.redirect_stdout(said),
        pytest.raises(SystemExit),
    ):
        module.main()
    result: dict[str, Any] = {**json.loads(said.getvalue()), "warnings": warned}
    return result


@contextlib.contextmanager
def running(*words: str | Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, which has its words and variables a moment after it was started, and kill it in the end."""
    with subprocess.Popen(words, **how) as process:
        try:
            end = time.monotonic() + 60
            while not Path(f"/proc/{process.pid}/environ").read_bytes() and time.monotonic() < end:
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def pct_options() -> None:
    """What Ansible's plugin loader does with the documentation of the connection plugin and its fragment."""
    from ansible_collections.gpuops.sglang.plugins.connection import pct
    from ansible_collections.gpuops.sglang.plugins.doc_fragments.ssh_options import ModuleDocFragment

    options = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    for name, option in yaml.safe_load(pct.DOCUMENTATION)["options"].items():
        options[name] = {**options.get(name, {}), **option}
    constants.config.initialize_plugin_configuration_definitions("connection", "pct", options)
    pct.Connection._load_name = "pct"


def option_words(text: str) -> dict[str, Any]:
    """Return the options of a recorded command line; one without a value is True."""
    words, args = shlex.split(text), {}
    for word, after in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            args[word[2:]] = True if after.startswith("--") else after
    return args
