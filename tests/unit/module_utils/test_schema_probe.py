# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a real argparse parser, and the probe as a program beside a stand-in of the server's package."""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import schema_probe
from conftest import DeprecatedAction, DeprecatedStoreConstAction, parser_of

PLAIN = {
    "action": "_StoreAction",
    "aliases": [],
    "choices": None,
    "default": None,
    "deprecated": False,
    "dest": "x",
    "nargs": None,
    "required": False,
    "type": None,
}


def described(*spellings: str, **facts: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument(*spellings, **facts)
    return schema_probe.describe(parser)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, {}),
        ({"type": int, "default": 4}, {"type": "int", "default": 4}),
        ({"type": json.loads, "default": {"a": [1, None]}}, {"type": "loads", "default": {"a": [1, None]}}),
        ({"type": functools.partial(int, base=2)}, {}),
        ({"choices": ("a", "b")}, {"choices": ["a", "b"]}),
        ({"choices": {"a": 1, "b": 2}}, {"choices": ["a", "b"]}),
        ({"choices": range(3), "type": int}, {"choices": [0, 1, 2], "type": "int"}),
        ({"choices": [Path("/a")], "default": Path("/a")}, {"choices": ["/a"], "default": "/a"}),
        ({"nargs": "+", "default": ()}, {"nargs": "+", "default": []}),
        ({"nargs": "*", "required": True}, {"nargs": "*", "required": True}),
        ({"nargs": "?", "const": "c"}, {"nargs": "?"}),
        ({"nargs": 2}, {"nargs": 2}),
        ({"dest": "y"}, {"dest": "y"}),
        ({"action": "store_true"}, {"action": "_StoreTrueAction", "default": False, "nargs": 0}),
        ({"action": "store_const", "const": 1}, {"action": "_StoreConstAction", "nargs": 0}),
        ({"action": argparse.BooleanOptionalAction}, {"action": "BooleanOptionalAction", "nargs": 0}),
        ({"action": DeprecatedAction}, {"action": "DeprecatedAction", "nargs": 0, "deprecated": True}),
        (
            {"action": DeprecatedStoreConstAction, "const_value": 1, "nargs": None, "choices": ["a"]},
            {"action": "DeprecatedStoreConstAction", "choices": ["a"], "deprecated": True},
        ),
        ({"help": "Deprecated. Use --y."}, {"deprecated": True}),
        ({"help": argparse.SUPPRESS}, {}),
    ],
)
def test_the_facts_of_an_option(facts: dict[str, Any], told: dict[str, Any]) -> None:
    assert described("--x", **facts) == {"--x": {**PLAIN, **told}}


def test_the_first_long_spelling_is_the_main_one() -> None:
    assert described("-t", "--tp-size", "-u", "--tensor-parallel-size", type=int) == {
        "--tp-size": {**PLAIN, "aliases": ["--tensor-parallel-size"], "dest": "tp_size", "type": "int"}
    }


def test_a_pair_of_switches_is_one_option() -> None:
    (option,) = described("--fast", "--quick", action=argparse.BooleanOptionalAction, default=True).items()
    told = {"action": "BooleanOptionalAction", "aliases": ["--quick"], "default": True, "dest": "fast", "nargs": 0}
    assert option == ("--fast", {**PLAIN, **told})


def test_what_is_no_long_option_is_left_out() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("-q")
    assert schema_probe.describe(parser) == {}


def test_the_description_of_sglang_is_json(sglang_parser: argparse.ArgumentParser) -> None:
    options = schema_probe.describe(sglang_parser)
    assert json.loads(json.dumps(options)) == options
    assert len(options) > 330


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        (None, ""),
        ("x = 1", "loaded"),
        ("raise ImportError('libcuda.so.1: cannot open\\nmore')", "ImportError: libcuda.so.1: cannot open"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_the_program_prints_version_options_and_kernels(tmp_path: Path, kernels: str | None, told: str) -> None:
    if kernels:
        (tmp_path / "sgl_kernel.py").write_text(f"{kernels}\n")
    package = tmp_path / "sglang"
    for module in ("srt/entrypoints/http_server.py", "srt/models/registry.py"):
        (package / module).parent.mkdir(parents=True)
        (package / module).write_text("print('a package greets')\n")
    (package / "__init__.py").write_text("__version__ = '0.5.99'\n")
    (package / "srt/server_args.py").write_text(
        "import sys\n\n\nclass ServerArgs:\n    @staticmethod\n    def add_cli_args(parser):\n"
        "        assert 'sglang.srt.entrypoints.http_server' in sys.modules\n"
        "        parser.add_argument('--tp-size', type=int, default=1)\n"
    )
    source = Path(schema_probe.__file__).read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-"], input=source, capture_output=True, text=True, cwd=tmp_path, check=True)
    option = {**PLAIN, "default": 1, "dest": "tp_size", "type": "int"}
    # what packages print comes before it
    described = done.stdout[done.stdout.index('{"sglang_version"') :]
    assert json.loads(described) == {
        "sglang_version": "0.5.99",
        "options": {"--tp-size": option},
        "kernels": told,
        "server": "",
    }


def test_an_option_that_is_not_there_is_not_described() -> None:
    assert "--help" not in schema_probe.describe(parser_of("0.5.23"))


@pytest.mark.parametrize("kernels", [True, False])
def test_a_server_that_needs_its_kernels_tells_its_options_without_a_driver(tmp_path: Path, kernels: bool) -> None:
    package = tmp_path / "sglang"
    for module in ("srt/entrypoints/http_server.py", "srt/models/registry.py"):
        (package / module).parent.mkdir(parents=True)
        (package / module).write_text("import sgl_kernel\n")
    (package / "__init__.py").write_text("__version__ = '0.5.99'\n")
    (package / "srt/server_args.py").write_text("class ServerArgs:\n    add_cli_args = print\n")
    if kernels:
        (tmp_path / "sgl_kernel.py").write_text("raise ImportError('libcuda.so.1: cannot open')\n")
    source = Path(schema_probe.__file__).read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-"], input=source, capture_output=True, text=True, cwd=tmp_path)
    if kernels:
        assert json.loads(done.stdout[done.stdout.index("{") :])["server"] == "ImportError: libcuda.so.1: cannot open"
    else:  # that is no matter of the driver
        assert done.returncode != 0 and "No module named 'sgl_kernel'" in done.stderr
