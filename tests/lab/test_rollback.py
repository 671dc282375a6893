# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch that fails after all checks, and the way back, on real SGLang."""

from __future__ import annotations

import json

import pytest
from playbook_runs import Run, deploy, with_args
from test_deploy import UNIT, launch, serves
from testinfra.host import Host

# SGLang finds out only while it loads: these kernels need a GPU
FAILING = with_args(attention_backend="fa3")


def record(host: Host) -> dict[str, object]:
    text: str = host.check_output("cat /var/lib/sglang/tiny/launches/%s/launch.json", launch(host))
    content: dict[str, object] = json.loads(text)
    return content


def is_told(run: Run) -> None:
    """One error, with cause, next step and where the log is."""
    assert run.status != 0
    (error,) = run.errors
    assert "instance 'tiny', launch " in error, run
    for part in ("the server ended while ", "Next: ", "Now: the service is ", "journalctl _SYSTEMD_INVOCATION_ID="):
        assert part in run.output, run


@pytest.mark.slow
def test_a_failed_launch_returns_to_what_served(ct130: Host) -> None:
    before = launch(ct130)
    origin = record(ct130).get("again") or before
    failed = deploy("-l", "ct130", extra=FAILING)
    is_told(failed)
    assert serves(ct130)
    assert record(ct130)["again"] == origin and launch(ct130) != before
    # what serves is what the inventory asks for
    again = deploy("-l", "ct130")
    assert again.status == 0 and again.count("ct130", "changed") == 0, again


@pytest.mark.slow
def test_a_first_launch_that_fails_leaves_nothing_to_return_to(ct130: Host) -> None:
    ct130.check_output("systemctl disable --now %s", UNIT)
    ct130.check_output("rm -r /etc/systemd/system/%s /var/lib/sglang/tiny", UNIT)
    failed = deploy("-l", "ct130", extra=FAILING)
    is_told(failed)
    assert not serves(ct130)
    assert deploy("-l", "ct130").status == 0


@pytest.mark.slow
def test_an_operator_returns_to_the_launch_before_and_deploys_again(ct130: Host) -> None:
    asked = with_args(max_running_requests=4)
    first = record(ct130).get("again") or launch(ct130)
    assert deploy("-l", "ct130", extra=asked).status == 0
    second = launch(ct130)
    back = deploy("-l", "ct130", playbook="playbooks/rollback.yml")
    assert back.status == 0 and back.count("ct130", "changed") == 1, back
    assert record(ct130)["again"] == first
    named = deploy("-l", "ct130", playbook="playbooks/rollback.yml", extra={"sglang_server_rollback_launch": second})
    assert named.status == 0 and record(ct130)["again"] == second, named
    wrong = deploy("-l", "ct130", playbook="playbooks/rollback.yml", extra={"sglang_server_rollback_launch": "x"})
    assert wrong.status != 0 and "launch x of instance 'tiny' is not kept" in wrong.output, wrong
    assert deploy("-l", "ct130").status == 0
