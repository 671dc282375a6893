# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gpuops.sglang.plugins.filter import instance_problems as problems_plugin
from ansible_collections.gpuops.sglang.plugins.filter import preflight_table as preflight_plugin
from ansible_collections.gpuops.sglang.plugins.filter import result_table as table_plugin

VERDICT = {
    "instance": "qwen36",
    "launch": "20260101T000000Z-abcdef",
    "service": "active (running)",
    "port": 30000,
    "model": "/srv/models/Qwen3.6-27B",
    "arguments_compared": 7,
    "tokens": 8,
    "invocation": "not shown",
}


@pytest.mark.parametrize(("plugin", "name"), [(problems_plugin, "instance_problems"), (table_plugin, "result_table")])
def test_a_filter_plugin_offers_the_filter_of_its_name(plugin: object, name: str) -> None:
    assert list(plugin.FilterModule().filters()) == [name]  # type: ignore[attr-defined]


def test_instance_problems_judges_a_list() -> None:
    judge = problems_plugin.FilterModule().filters()["instance_problems"]
    assert judge([{"name": "a", "model": "m", "port": 30000}]) == []
    assert len(judge([{"name": "a", "model": "m"}])) == 1


def table(verdicts: dict[str, list[dict[str, object]]]) -> list[str]:
    return str(table_plugin.FilterModule().filters()["result_table"](verdicts)).split("\n")


def test_every_instance_of_every_host_has_a_line_below_the_headings() -> None:
    short = {**VERDICT, "instance": "g", "port": 1024, "model": "m"}
    lines = table({"ct130": [VERDICT], "b200": [], "ct129": [VERDICT, short]})
    headings, *rows = lines
    assert [row.split()[:2] for row in rows] == [
        ["b200", "(none)"],
        ["ct129", "qwen36"],
        ["ct129", "g"],
        ["ct130", "qwen36"],
    ]
    for heading, value in {
        "host": "ct130",
        "instance": "qwen36",
        "launch": "20260101T000000Z-abcdef",
        "service": "active (running)",
        "port": "30000",
        "model": "/srv/models/Qwen3.6-27B",
        "arguments as asked": "7",
        "tokens": "8",
    }.items():
        column = f"  {headings}".index(f"  {heading}")  # a heading begins after two spaces
        assert rows[-1][column:].startswith(value)
    assert "not shown" not in "".join(lines)
    assert all(line == line.rstrip() for line in lines)


def test_a_host_without_an_instance_has_dashes() -> None:
    assert table({"b200": []})[1].split() == ["b200", "(none)", *["-"] * 10]


def test_no_host_gives_the_headings() -> None:
    assert len(table({})) == 1


@pytest.mark.parametrize(
    ("kv_tokens", "planned", "shown"),
    [(1000, 990, "1000 (planned +1.0%)"), (1000, 1010, "1000 (planned -1.0%)"), (1000, None, "1000"), (None, 990, "-")],
)
def test_how_far_a_plan_was_off_stands_beside_the_tokens(
    kv_tokens: int | None, planned: int | None, shown: str
) -> None:
    headings, row = table({"h": [{**VERDICT, "kv_tokens": kv_tokens, "planned_kv_tokens": planned}]})
    assert row[headings.index("KV tokens") :].split("  ")[0] == shown


def test_a_plan_and_its_warnings_stand_below_the_options() -> None:
    answer = {"name": "a", "options": [], "warnings": ["W"], "plan": None, "plan_warnings": []}
    fits = {"verdict": "fits, but tight", "fits": True, "kv_tokens": 7, "effective_max_running_requests": 2}
    not_fits = {"verdict": "does not fit", "fits": False, "kv_tokens": 0, "effective_max_running_requests": 0}
    show = preflight_plugin.FilterModule().filters()["preflight_table"]
    answers = [answer, {**answer, "plan": fits, "plan_warnings": ["P"]}, {**answer, "plan": not_fits}]
    assert show({"h": answers}).split("\n")[4:] == [
        "h a: SGLang warns: W",
        "h a: SGLang warns: W",
        "h a: plan: fits, but tight; 7 KV tokens, 2 requests at a time",
        "h: P",
        "h a: SGLang warns: W",
        "h a: plan: does not fit",
    ]
