# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""awx/install.yml with the modules of awx.awx as they are, against a stand-in of AWX's API (tests/awx_api.py)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from awx_api import MODULES, RUNNABLE, TOKEN, Awx, Refused, serving, survey_problems
from awx_runs import BIN, ROOT, environment, objects

pytestmark = pytest.mark.slow

TEMPLATES = [template["name"] for template in objects("awx_templates")]
QUESTION = {"question_name": "?", "type": "text", "variable": "x", "required": False, "choices": ""}


GIVEN = {
    "awx_node_key": "geheim-key-4711",
    "awx_hub_token": "hf_geheim4711",
    "awx_model_key": "geheim-model-key-4711",
    "awx_proxmox_token": "geheim-proxmox-4711",
    "awx_vault_password": "geheim-vault-4711",
    "awx_mail_to": ["ops@example.lan"],
}


class Installed:
    """An AWX on loopback, and awx/install.yml against it."""

    def __init__(self, awx: Awx, url: str) -> None:
        self.awx, self.url = awx, url

    def install(self, given: Mapping[str, Any] | None = None, *words: str) -> tuple[int, str]:
        """Return how many tasks changed something, and the output of a run that ended well."""
        done = subprocess.run(
            [BIN / "ansible-playbook", "awx/install.yml", "-i", "localhost,", "-e", json.dumps(given or {}), *words],
            cwd=ROOT,
            env=environment(CONTROLLER_HOST=self.url, CONTROLLER_OAUTH_TOKEN=TOKEN),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return int(output.rpartition("changed=")[2].split()[0]), output


@pytest.fixture(scope="session")
def documented() -> dict[str, dict[str, Any]]:
    """The options of the modules of awx.awx as their documentation has them: module -> option -> facts."""
    names = [f"awx.awx.{module}" for module in MODULES.values()]
    done = subprocess.run(
        [BIN / "ansible-doc", "--json", *names], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return {module: found[f"awx.awx.{module}"]["doc"]["options"] for module in MODULES.values()}


@pytest.fixture(scope="session")
def installed(documented: Mapping[str, Any]) -> Iterator[Installed]:
    """An AWX into which awx/install.yml has put everything."""
    playbooks = {str(path.relative_to(ROOT)) for path in (ROOT / "deploy.yml", *ROOT.glob("playbooks/*.yml"))}
    awx = Awx(documented, playbooks)
    with serving(awx) as url:
        made = Installed(awx, url)
        changed, output = made.install(GIVEN)
        assert changed > 0 and "[WARNING]" not in output, output
        assert "4711" not in output
        yield made


def names(awx: Awx, path: str) -> list[str]:
    return sorted(one["name"] for one in awx.get(path, {})["results"])


def test_all_is_there(installed: Installed) -> None:
    awx = installed.awx
    assert names(awx, "/api/v2/job_templates/") == sorted(TEMPLATES)
    deploy = awx.named("job_templates", "SGLang deploy")
    assert deploy["playbook"] == "deploy.yml" and deploy["ask_limit_on_launch"] and deploy["ask_job_type_on_launch"]
    assert names(awx, f"{deploy['url']}credentials/") == ["SGLang hub", "SGLang models", "SGLang nodes", "SGLang vault"]
    assert names(awx, f"{deploy['url']}labels/") == ["changes", "sglang"]
    assert names(awx, f"{deploy['url']}notification_templates_error/") == ["SGLang mail"]
    health = awx.named("job_templates", "SGLang health")
    assert not health["ask_job_type_on_launch"]
    assert awx.named("schedules", "SGLang health")["unified_job_template"] == health["id"]
    source = awx.named("inventory_sources", "SGLang project")
    assert source["credential"] == awx.named("credentials", "SGLang Proxmox")["id"]
    # AWX puts the secret in, so the template must arrive as it is written
    injectors = awx.named("credential_types", "SGLang Proxmox token")["injectors"]
    assert injectors == {"env": {"GPUOPS_PROXMOX_TOKEN_SECRET": "{{ token_secret }}"}}
    injectors = awx.named("credential_types", "SGLang model host")["injectors"]
    assert injectors == {"extra_vars": {"sglang_model_ssh_key": "{{ ssh_key }}"}}


def test_the_workflow_goes_from_plan_to_health_by_an_approval(installed: Installed) -> None:
    awx, way = installed.awx, []
    nodes = awx.objects["workflow_job_template_nodes"].values()
    (node,) = [one for one in nodes if one["identifier"] == "plan"]
    while True:
        (runs,) = [
            awx.objects[kind][number]
            for kind in RUNNABLE
            for number in awx.objects[kind]
            if number == node["unified_job_template"]
        ]
        way.append(runs["name"])
        after = awx.get(f"{node['url']}success_nodes/", {})["results"]
        if not after:
            break
        (node,) = after
    assert way == [
        "SGLang plan",
        "SGLang preflight",
        "Deploy after what plan and preflight say",
        "SGLang deploy",
        "SGLang health",
    ]
    assert node["identifier"] == "health"


def test_a_second_run_puts_back_what_was_changed_by_hand_and_changes_nothing_else(installed: Installed) -> None:
    awx = installed.awx
    deploy, plan = (awx.named("job_templates", f"SGLang {name}") for name in ("deploy", "plan"))
    deploy["ask_limit_on_launch"], plan["playbook"] = False, "deploy.yml"
    awx.surveys[plan["url"]]["spec"][1]["max"] = 1000
    gone = awx.linked[f"{deploy['url']}labels/"].pop()
    before = len(awx.writes)
    # credentials stay without their secrets, and keep them when others are given
    changed, output = installed.install({"awx_mail_to": GIVEN["awx_mail_to"], "awx_hub_token": "hf_other4711"})
    assert changed == 1 and "[WARNING]" not in output, output  # one task, with a loop
    assert sorted(awx.writes[before:]) == [
        f"PATCH {plan['url']}",
        f"PATCH {deploy['url']}",
        f"POST {plan['url']}survey_spec/",
        f"POST {deploy['url']}labels/",
    ]
    assert deploy["ask_limit_on_launch"] and plan["playbook"] == "playbooks/plan.yml"
    assert awx.surveys[plan["url"]]["spec"][1]["max"] == 64
    assert gone in awx.linked[f"{deploy['url']}labels/"]
    assert len(awx.linked[f"{deploy['url']}credentials/"]) == 4


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_job_starts_with_the_answers_left_open_or_says_what_is_needed(installed: Installed, name: str) -> None:
    template = installed.awx.named("job_templates", name)
    required = [one["variable"] for one in installed.awx.surveys[template["url"]]["spec"] if one["required"]]
    if required:
        with pytest.raises(Refused) as refused:
            installed.awx.launch(template, {})
        assert len(refused.value.args[0]["variables_needed_to_start"]) == len(required)
    else:
        given = installed.awx.launch(template, {})
        assert given.keys() <= {"support_bundle_folder"}


def test_the_stand_in_passes_an_empty_default_as_awx_does(installed: Installed) -> None:
    template = installed.awx.named("job_templates", "SGLang adopt")
    (question,) = installed.awx.surveys[template["url"]]["spec"]
    try:
        question["default"] = ""
        assert installed.awx.launch(template, {}) == {"adopt_pids": ""}
        question.update(type="integer")
        assert installed.awx.launch(template, {}) == {}
    finally:
        del question["default"]
        question.update(type="text")


def test_what_installs_a_release_is_not_said_to_read(installed: Installed) -> None:
    awx = installed.awx
    preflight = awx.named("job_templates", "SGLang preflight")
    assert names(awx, f"{preflight['url']}labels/") == ["changes", "sglang"]


def test_credentials_that_awx_has_are_used_for_the_repository_and_the_image(installed: Installed) -> None:
    awx = installed.awx
    project, image = awx.named("projects", "SGLang"), awx.named("execution_environments", "SGLang")
    assert "credential" not in project and "credential" not in image
    kind = awx.named("credential_types", "Machine")["id"]
    found = [
        awx.post("/api/v2/credentials/", {"name": name, "credential_type": kind})[1]["id"]
        for name in ("git", "registry")
    ]
    given = {"awx_project_credential": "git", "awx_image_credential": "registry"}
    changed, output = installed.install({"awx_mail_to": GIVEN["awx_mail_to"], **given})
    assert changed == 2, output
    assert [project["credential"], image["credential"]] == found


def test_a_variable_that_no_survey_asks_for_is_not_taken(installed: Installed) -> None:
    with pytest.raises(Refused, match="ansible_connection"):
        installed.awx.launch(installed.awx.named("job_templates", "SGLang health"), {"ansible_connection": "local"})


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "string"},
        {"required": "yes"},
        {"default": 5},
        {"min": "1"},
        {"type": "multiplechoice"},
        {"type": "multiplechoice", "choices": ["a"], "default": "b"},
        {"type": "password", "default": "geheim"},
    ],
    ids=str,
)
def test_the_stand_in_refuses_a_survey_that_awx_would_refuse(broken: dict[str, Any]) -> None:
    survey_problems({"name": "", "description": "", "spec": [QUESTION]})
    with pytest.raises(Refused):
        survey_problems({"name": "", "description": "", "spec": [{**QUESTION, **broken}]})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("playbook", "playbooks/none.yml"),
        ("inventory", 10**6),
        ("forks", "5"),
        ("job_type", "scan"),
        ("ask_limit", True),
    ],
)
def test_the_stand_in_refuses_fields_that_awx_would_refuse(installed: Installed, field: str, value: Any) -> None:
    with pytest.raises(Refused, match=field):
        installed.awx.patch(installed.awx.named("job_templates", "SGLang plan")["url"], {field: value})
