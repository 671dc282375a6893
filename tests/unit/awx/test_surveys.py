# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Surveys and the playbooks' own rules: they agree, and no bad answer passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.sglang.plugins.module_utils.answers import RULES, answer_problems
from awx_api import answer_problems as awx_says
from awx_runs import ROOT, objects, run

TEMPLATES = objects("awx_templates")
QUESTIONS = [(template, question) for template in TEMPLATES for question in template["survey"]]
TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch evaluated') }}"
HOSTILE = [
    TEMPLATE,
    "{% if true %}tiny{% endif %}",
    "{# #}tiny",
    "$(id)",
    "`id`",
    "tiny; id",
    "tiny\nid",
    "../tiny",
    "-x",
]
BAD: dict[str, list[Any]] = {
    "text": [*HOSTILE, "x y", "x" * 500, 1.5, {"a": 1}],
    "integer": [*HOSTILE, "", None, "x", 1.5, -1, 10**10, True, []],
    "multiplechoice": [*HOSTILE, "", None, "nonsense", 0, []],
    "multiselect": [*HOSTILE, "", None, "nonsense", ["nonsense"], ["chat", "nonsense"]],
}
# what the options of roles are called in a survey
TYPES = {"int": "integer", "list": ("text", "multiselect"), "bool": "multiplechoice", "str": ("text", "multiplechoice")}


def cases() -> list[Any]:
    return [
        pytest.param(question, value, id=f"{template['name']}-{question['variable']}-{value!r:.30}")
        for template, question in QUESTIONS
        for value in BAD[question["type"]]
    ]


@pytest.mark.parametrize(("question", "value"), cases())
def test_no_bad_answer_passes_and_the_variable_is_named(question: dict[str, Any], value: Any) -> None:
    name = question["variable"]
    (said,) = answer_problems({name: value})
    assert said.startswith(f"{name} is ")
    if question["type"] != "text" or not isinstance(value, str) or len(value) == 500:
        (refused,) = awx_says({"required": False, **question}, {name: value})
        assert f"'{name}'" in refused


@pytest.mark.parametrize(("template", "question"), QUESTIONS, ids=lambda one: one.get("variable"))
def test_a_survey_allows_what_the_variable_may_be(template: dict[str, Any], question: dict[str, Any]) -> None:
    name, kind = question["variable"], question["type"]
    rule = RULES[name]
    if kind == "integer":
        assert (rule.least, rule.most) == (question["min"], question["max"])
        for value in (question["min"], question["max"]):
            assert answer_problems({name: value}) == []
        for value in (question["min"] - 1, question["max"] + 1):
            assert (
                answer_problems({name: value}) != [] and awx_says({"required": False, **question}, {name: value}) != []
            )
    elif kind != "text":
        assert set(question["choices"]) <= set(rule.choices)
        assert rule.several == (kind == "multiselect")
    for role in ("sglang_server", "sglang_health"):
        entries = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]
        for option in (entry["options"][name] for entry in entries.values() if name in entry.get("options", {})):
            assert kind in TYPES[option["type"]], name
            assert set(question.get("choices", ())) <= {*option.get("choices", question.get("choices", ()))}
            # what is left open comes as nothing, which a role takes only where the option has no default of its own
            judged = ArgumentSpecValidator({name: option}).validate({name: None})
            assert kind != "text" or judged.error_messages == []
    readers = [ROOT / template["playbook"], *ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/vars/*.yml")]
    assert any(name in path.read_text() for path in readers), "nobody reads it"


def test_surveys_ask_for_all_that_is_judged_and_nothing_else() -> None:
    assert {question["variable"] for _, question in QUESTIONS} == RULES.keys()
    # a default would be for all hosts of a job, and take the place of what the inventory says of each
    assert [question["variable"] for _, question in QUESTIONS if "default" in question] == []


@pytest.mark.parametrize(
    "good",
    [
        {"sglang_server_only": ""},
        {"sglang_server_only": None},
        {"sglang_server_only": "tiny,qwen36"},
        {"sglang_server_only": ["tiny"]},
        {"adopt_pids": "1,4711"},
        {"adopt_pids": [4711]},
        {"sglang_server_rollback_launch": "20261129T195609Z-9e696e"},
        {"sglang_server_share_gpus": True},
        {"sglang_server_share_gpus": "false"},
        {"sglang_health_timeout": "60"},
        {"sglang_health_requests": ["chat"]},
        {"sglang_server_instances": "{{ judged_by_its_role }}"},
    ],
    ids=str,
)
def test_what_an_operator_writes_is_taken(good: dict[str, Any]) -> None:
    assert answer_problems(good) == []


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    box = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sglang": {"hosts": {"box": box}}}))
    return tmp_path / "hosts.yml"


@pytest.mark.parametrize("unsafe", [True, False], ids=["as AWX passes it", "where AWX evaluates answers"])
def test_a_template_is_refused_and_not_evaluated(tmp_path: Path, inventory: Path, unsafe: bool) -> None:
    template = TEMPLATE.replace("evaluated", str(tmp_path / "evaluated"))
    answers = {"sglang_health_instances": template}
    job = run(tmp_path / "job", "playbooks/health.yml", answers, inventory, unsafe=unsafe)
    assert job.status != 0
    assert "sglang_health_instances is " in job.output and "a template is no answer" in job.output, job
    assert not (tmp_path / "evaluated").exists()


def test_each_playbook_judges_its_answers_first() -> None:
    for template in TEMPLATES:
        plays = yaml.safe_load((ROOT / template["playbook"]).read_text())
        if "ansible.builtin.import_playbook" in plays[0]:
            plays = yaml.safe_load((ROOT / plays[0]["ansible.builtin.import_playbook"]).read_text())
        play = plays[0]
        assert "sglang" in play["hosts"]
        first = [*play.get("pre_tasks", []), *play.get("tasks", [])][0]
        assert first["ansible.builtin.import_tasks"] == "tasks/check_answers.yml", template["name"]
