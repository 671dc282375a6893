# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of each template of awx/objects.yml through ansible-runner, as AWX starts it, against the lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from awx_runs import Job, empty_texts, objects, run
from pct_backend import container
from playbook_runs import PROJECT
from servers import launch, main_pid
from testinfra.host import Host

pytestmark = pytest.mark.slow

PLAYBOOKS = {template["name"]: template["playbook"] for template in objects("awx_templates")}
INVENTORY = PROJECT / "inventories/lab"
Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the job of a template, with `answers` to its survey; AWX passes nothing for what is left open."""
    made: list[Job] = []

    def job(name: str, limit: str, *words: str, check: bool = True, **answers: Any) -> Job:
        done = run(
            tmp_path / f"job {len(made)}",
            PLAYBOOKS[name],
            answers,
            INVENTORY,
            "-l",
            limit,
            *words,
            extra_vars={"support_bundle_folder": str(tmp_path)},
        )
        made.append(done)
        if check:
            assert done.status == 0, done
        # the ends of lines are the terminal's that ansible-runner makes
        plain = done.output.replace("\r\n", "\n")
        assert "\r" not in plain and "\x1b" not in plain and "[WARNING]" not in plain
        return done

    return job


def row(job: Job, host: str) -> list[str]:
    """Return the words of a host's line of the table that the last task shows."""
    (line,) = [line.split() for line in job.last_lines if line.split()[:2] == [host, "tiny"]]
    return line


def test_deploy_changes_nothing_and_tells_the_workflow(start: Start, deployed: None) -> None:
    job = start("SGLang deploy", "kpro5", **empty_texts("SGLang deploy"))
    assert not any(job.changed.values())
    for vmid in (129, 130):
        assert row(job, f"ct{vmid}")[2] == launch(container(vmid))
        (told,) = job.artifacts["sglang_deployed"][f"ct{vmid}"]
        assert (told["instance"], told["launch"]) == ("tiny", launch(container(vmid)))
        assert (told["service"], told["url"]) == ("active (running)", "http://127.0.0.1:30000")


def test_health_by_name_and_with_requests(start: Start, deployed: None) -> None:
    job = start("SGLang health", "ct129", sglang_health_instances="tiny", sglang_health_requests=["chat"])
    assert row(job, "ct129")[2] == launch(container(129))
    assert job.artifacts["sglang_health_found"]["ct129"][0]["launch"] == launch(container(129))
    nothing: dict[str, str] = {}
    for left in (nothing, empty_texts("SGLang health")):
        assert row(start("SGLang health", "ct129", **left), "ct129")[2] == launch(container(129))
    refused = start("SGLang health", "ct129", check=False, sglang_health_instances="other")
    assert refused.status != 0 and "other" in refused.output


def test_preflight_tells_what_sglang_makes_of_the_arguments(start: Start, deployed: None) -> None:
    job = start("SGLang preflight", "ct129", sglang_server_plan="warn")
    assert any(line.split()[:3] == ["ct129", "tiny", "max_total_tokens"] for line in job.last_lines)
    assert job.artifacts["sglang_preflight_found"] == {"ct129": [{"instance": "tiny", "problems": []}]}


def test_plan_for_cards_that_are_not_there(start: Start, deployed: None) -> None:
    answers = {"sglang_plan_card": "NVIDIA H200", "sglang_plan_cards": 1, "sglang_plan_assume_complete": "true"}
    job = start("SGLang plan", "ct129", **answers)
    (told,) = job.artifacts["sglang_planned"]["ct129"]
    assert told["fits"] is True and told["kv_tokens"] > 0
    assert any("H200" in line for line in job.last_lines)


def test_rollback_with_check_mode_names_the_launch(start: Start, ct130: Host) -> None:
    before, present = main_pid(ct130), launch(ct130)
    named = {"sglang_server_rollback_instances": "tiny", "sglang_server_rollback_launch": present}
    job = start("SGLang rollback", "ct130", "--check", **named)
    assert job.changed == {"ct130": 1}
    assert [line.strip() for line in job.last_lines if "returns" in line] == [f"- it returns to launch {present}"]
    named["sglang_server_rollback_launch"] = "20000101T000000Z-000000"
    refused = start("SGLang rollback", "ct130", "--check", check=False, **named)
    assert refused.status != 0
    assert "launch 20000101T000000Z-000000 of instance 'tiny' is not kept" in refused.output
    assert main_pid(ct130) == before


def test_adopt_finds_no_server_of_its_own(start: Start, deployed: None) -> None:
    job = start("SGLang adopt", "ct129", **empty_texts("SGLang adopt"))
    assert not any(job.changed.values())


def test_a_support_bundle_is_brought_to_the_folder(start: Start, deployed: None, tmp_path: Path) -> None:
    job = start("SGLang support bundle", "ct129", support_bundle_instances="tiny")
    (bundle,) = tmp_path.glob("ct129-*.tar.gz")
    assert str(bundle) in job.output


def test_an_instance_is_stopped_and_started_again(start: Start, ct130: Host) -> None:
    stopped = start("SGLang state", "ct130", sglang_server_state="stopped", sglang_server_only="tiny")
    assert stopped.changed == {"ct130": 1}
    assert ct130.run("systemctl is-active sglang-tiny").stdout.strip() == "inactive"
    again = start("SGLang state", "ct130", sglang_server_state="stopped", sglang_server_only="tiny")
    assert again.changed == {"ct130": 0}
    answers = {"sglang_server_state": "started", "sglang_server_only": "tiny"}
    assert start("SGLang state", "ct130", "--check", **answers).artifacts == {}
    other = start("SGLang state", "ct130", check=False, sglang_server_state="started", sglang_server_only="other")
    assert other.status != 0 and "sglang_server_only names other: the instances of ct130 are tiny" in other.output
    started = start("SGLang state", "ct130", sglang_server_state="started", sglang_server_only="tiny")
    assert started.changed == {"ct130": 1}
    assert started.artifacts["sglang_state_done"]["ct130"][0]["launch"] == launch(ct130)
    assert row(start("SGLang health", "ct130"), "ct130")[2] == launch(ct130)
