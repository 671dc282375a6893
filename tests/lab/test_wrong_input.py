# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wrong input is refused in one clear line, before anything is changed."""

from __future__ import annotations

from typing import Any

import pytest
from playbook_runs import deploy, lab_instances, with_args
from testinfra.host import Host

TINY = lab_instances()[0]


def instance(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**TINY, **changed}.items() if value is not None}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"sglang_server_instances": [instance(model=None)]}, "instance 'tiny' has no model"),
        ({"sglang_server_instances": [instance(port=70000)]}, "instance 'tiny' has the port 70000"),
        pytest.param(
            {"sglang_server_instances": [instance(port=80)]}, "instance 'tiny' has the port 80", marks=pytest.mark.slow
        ),
        (
            {"sglang_server_instances": [instance(), instance(name="other")]},
            "instance 'other' has the port 30000, which instance 'tiny' has too",
        ),
        pytest.param(
            {"sglang_server_instances": [instance(name="Tiny!")]}, "has the name 'Tiny!'", marks=pytest.mark.slow
        ),
        ({"sglang_server_instances": [instance(arg={})]}, "instance 'tiny' has a key 'arg': it may have name, model"),
        (
            with_args(max_running_request=8),
            "no option 'max_running_request': it is short for 'max_running_requests'; write",
        ),
        pytest.param(
            with_args(max_running_requests="many"),
            "'max_running_requests' is 'many', but SGLang wants a whole number",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            with_args(port=1),
            "'port' is not an argument of an instance: set 'port' of the instance",
            marks=pytest.mark.slow,
        ),
        pytest.param(with_args(api_key="x"), "move it to 'secrets' of the instance", marks=pytest.mark.slow),
        pytest.param(
            {"sglang_server_instances": [instance(model="/srv/lab/models/none")]},
            "/srv/lab/models/none has no config.json",
            marks=pytest.mark.slow,
        ),
        ({"sglang_server_instances": [instance(port=22222)], "ansible_pct_vmid": 999}, "container 999"),
        pytest.param({"ansible_host": "10.98.0.250", "ansible_ssh_timeout": 3}, "10.98.0.250", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_input(ct129: Host, extra: dict[str, Any], said: str) -> None:
    run = deploy("-l", "ct129", extra=extra)
    assert run.status != 0
    (error,) = run.errors
    assert said in error, run
    assert run.count("ct129", "changed") == 0
    assert "Traceback" not in run.output


def test_a_login_without_root_is_refused(ct129: Host) -> None:
    run = deploy("-l", "ct129", extra={"ansible_user": "guest"})
    assert run.status != 0
    assert "root" in " ".join(run.errors), run
    assert run.count("ct129", "changed") == 0


def test_a_bare_host_without_root_is_refused() -> None:
    run = deploy("-l", "rental", extra={"ansible_become": True, "ansible_become_user": "nobody"})
    assert run.status != 0
    assert "needs root on this host, not user id 65534: log in as root or set become" in run.output, run


def test_systemd_on_a_host_without_it_is_refused_before_anything() -> None:
    # a release that is not there: nothing is installed for an instance that can not run
    asked = {"sglang_server_supervisor": "systemd", "sglang_install_root": "/opt/unused"}
    run = deploy("-l", "rental", extra=asked)
    assert run.status != 0
    assert "the first process of this host is 'start-machine', not systemd" in run.output, run
    assert run.count("rental", "changed") == 0
