# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the probe does around SGLang; with SGLang itself it runs in tests/lab/test_preflight.py."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import preflight_probe
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_probe import (
    listen,
    told,
    trace,
    unread_variables,
)


def test_variables_that_stand_nowhere_are_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, text in {
        "srt/environ.py": b"SGLANG_ENABLE_SPEC_V2 = EnvBool(True)",
        "core.so": b"\x7fELF\0SGLANG_IN_RUST\0",
        "multimodal_gen/env.py": b"SGLANG_OF_PICTURES",
        "test/env.py": b"SGLANG_OF_TESTS",
        "srt/notes.txt": b"SGLANG_IN_A_NOTE",
        "srt/long.py": b"SGLANG_ENABLE_LONGER",
    }.items():
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
    names = ("SGLANG_ENABLE_SPEC_V2", "SGLANG_IN_RUST", "SGLANG_ENABLE_SPECV2", "SGLANG_OF_PICTURES", "SGLANG_OF_TESTS",
             "SGLANG_IN_A_NOTE", "SGLANG_ENABLE_LONG", "HF_HOME_OF_NOBODY", "SGL_IN_RUST")  # fmt: skip
    for name in names:
        monkeypatch.setenv(name, "1")
    unread = unread_variables(tmp_path)
    assert unread.pop("SGLANG_ENABLE_SPECV2") == "SGLANG_ENABLE_SPEC_V2"
    assert unread.keys() == {"SGLANG_OF_PICTURES", "SGLANG_OF_TESTS", "SGLANG_IN_A_NOTE", "SGLANG_ENABLE_LONG"}


class Record:
    def __init__(self) -> None:
        self.a, self.b, self._hidden = 1, [1], 0
        self._handle_first()
        self.b.append(2)
        self._handle_outer()

    def _handle_first(self) -> None:
        self.a = 2

    def _handle_outer(self) -> None:
        self._hidden = 1
        self._handle_inner()
        self.a = 4

    def _handle_inner(self) -> None:
        self.a = 3


def test_each_step_is_credited_with_what_it_changed() -> None:
    steps: list[tuple[str, dict[str, Any]]] = []
    trace(Record, steps)
    Record()
    assert steps == [
        ("_handle_first", {"a": 2}),
        ("__post_init__", {"b": [1, 2]}),
        ("_handle_inner", {"a": 3}),
        ("_handle_outer", {"a": 4}),
    ]


def test_only_sglangs_warnings_are_heard_once_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    factory = logging.getLogRecordFactory()
    messages: list[str] = []
    try:
        listen(messages)
        logging.basicConfig(force=True)  # SGLang does so and drops every handler
        for _twice in range(2):
            logging.getLogger("sglang.srt.x").warning("\x1b[1;33m%s is deprecated.\n Use b\x1b[0m", "a")
        logging.getLogger("sglang.srt.x").info("nothing")
        logging.getLogger("sglang.srt.x").warning("Ignore import error when loading x")
        logging.getLogger("transformers").warning("not SGLang's")
    finally:
        logging.setLogRecordFactory(factory)
    assert messages == ["a is deprecated. Use b"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\n  b"), "ValueError: a b"),
        (AssertionError(), "AssertionError: "),
        (argparse.ArgumentError(None, "unrecognized arguments: --x"), "unrecognized arguments: --x"),
    ],
)
def test_the_words_of_an_error_are_one_line(error: BaseException, text: str) -> None:
    assert told(error) == text


def test_a_release_that_can_not_be_imported_still_gives_a_report() -> None:
    source = Path(preflight_probe.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-", "--model-path", "x"], input=source, capture_output=True, text=True, check=True
    )
    assert '"stage": "import"' in done.stdout and "ModuleNotFoundError: No module named 'sglang'" in done.stdout
