# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import run_module

QUOTED = "never-2'\""
HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"  # what Ansible makes of a text that is a secret and nothing else


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """What goes to a container whose pct runs its commands here."""
    pct = tmp_path / "pct"
    pct.write_text('#!/bin/sh\nshift 3\n"$@"\n')
    pct.chmod(0o755)
    return {"vmid": 129, "entry": "strict", "pct_executable": str(pct), "_ansible_no_log": False}


def test_a_secret_is_not_in_the_result_and_nothing_is_logged(asked: dict[str, Any]) -> None:
    shown = 'echo "$A"; cat; echo "$A" >&2; exit 4'
    result, logged = run_module(
        "pct_exec", {**asked, "argv": ["sh", "-c", shown], "stdin": "never-1", "secret_environment": {"A": QUOTED}}
    )
    assert (result["rc"], result["stdout"], result["stderr"]) == (4, "********\nnever-1", HIDDEN)
    assert "sh ended with code 4, not with 0: ********; correct" in result["msg"]
    assert QUOTED not in str(result)
    assert logged == ""


def test_a_secret_that_comes_too_late_is_not_in_the_result(asked: dict[str, Any]) -> None:
    late = {"argv": ["sh", "-c", 'echo "$A"; exec sleep 600'], "timeout": 2}
    result, logged = run_module("pct_exec", {**asked, **late, "secret_environment": {"A": QUOTED}})
    assert (result["failed"], result["rc"], result["stdout"]) == (True, None, HIDDEN)
    assert "sh had not finished after 2 s and was ended" in result["msg"]
    assert (QUOTED in str(result), logged) == (False, "")


def test_a_variable_that_can_not_be_is_refused_without_its_value(asked: dict[str, Any]) -> None:
    result, logged = run_module("pct_exec", {**asked, "argv": ["true"], "environment": {"A B": "never-1"}})
    assert result["failed"]
    assert result["msg"].endswith(": 'A B' is no name for an environment variable: use letters, digits and '_' alone")
    assert "never" not in result["msg"] + logged
