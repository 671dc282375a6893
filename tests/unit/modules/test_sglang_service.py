# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import secret_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.modules import sglang_service
from conftest import parser_of

ENTRY = {"name": "a", "model": "/srv/m", "host": "127.0.0.1", "port": 30000, "gpus": [0], "args": {}}


def test_values_that_are_no_text_become_text() -> None:
    instance = sglang_service._instance({**ENTRY, "env": {"A": 1, "B": True}, "secrets": {"api_key": 4711}})
    assert instance.env == {"A": "1", "B": "True"}
    assert instance.secrets == {"api_key": "4711"}
    assert instance.gpus == (0,)


def test_null_does_not_become_the_word_none() -> None:
    instance = sglang_service._instance({**ENTRY, "env": {"A": None, "B": ""}, "secrets": {"api_key": None}})
    assert instance.env == {"B": ""}
    assert len(secret_problems(instance.secrets, describe(parser_of("0.5.23")))) == 1
