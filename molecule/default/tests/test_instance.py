# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an administrator finds on a host after a deployment."""

from __future__ import annotations

import json
from typing import Any

from servers import UNIT, here, launch, main_pid, said


def test_the_service_starts_with_its_machine_and_runs_as_an_unprivileged_user(host: Any) -> None:
    if here.systemd:
        assert host.service(UNIT).is_enabled
    else:
        assert f"{here.state}/.supervisor/sglangctl boot" in host.file("/workspace/onstart.sh").content_string
        assert host.check_output("sglangctl status").split()[:2] == ["sglang-tiny", "RUNNING"]
    assert said(host, "ActiveState") == "active"
    uid = host.check_output("stat --format=%%u /proc/%s", str(main_pid(host)))
    assert int(uid) == host.user("sglang").uid != 0


def test_the_port_belongs_to_the_service(host: Any) -> None:
    assert host.socket("tcp://127.0.0.1:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30000").is_listening


def test_the_server_answers_with_the_launch_of_its_process(host: Any) -> None:
    environment = host.check_output("cat /proc/%s/environ", str(main_pid(host)))
    assert f"SGLANG_LAUNCH_ID={launch(host)}" in environment.split("\0")


def test_the_release_is_recorded_and_not_writable_by_the_service(host: Any) -> None:
    (record,) = host.check_output("find %s/releases -name release.json", here.root).split()
    content = json.loads(host.file(record).content_string)
    assert "sglang==0.5.23" in content["packages"]
    assert host.file(record).user == "root"
    assert host.run("runuser -u sglang -- touch %s/x", record.rpartition("/")[0]).rc != 0
