# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an administrator finds inside a container after a deployment."""

from __future__ import annotations

import json
from typing import Any

UNIT = "sglang-tiny.service"
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


def test_the_service_is_enabled_and_runs_as_an_unprivileged_user(host: Any) -> None:
    service = host.service(UNIT)
    assert service.is_enabled
    assert service.is_running
    main_pid = host.check_output("systemctl show --property=MainPID --value %s", UNIT)
    uid = host.check_output("stat --format=%%u /proc/%s", main_pid)
    assert int(uid) == host.user("sglang").uid != 0


def test_the_port_belongs_to_the_service(host: Any) -> None:
    assert host.socket("tcp://127.0.0.1:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30000").is_listening


def test_the_server_answers_with_the_launch_of_its_unit(host: Any) -> None:
    launch = host.check_output("systemctl show --property=Environment --value %s", UNIT)
    answer = host.check_output("python3 -c %s http://127.0.0.1:30000/model_info", GET)
    assert f"SGLANG_LAUNCH_ID={json.loads(answer)['weight_version']}" in launch


def test_the_release_is_recorded_and_not_writable_by_the_service(host: Any) -> None:
    (record,) = host.check_output("find /opt/sglang/releases -name release.json").split()
    content = json.loads(host.file(record).content_string)
    assert "sglang==0.5.23" in content["packages"]
    assert host.file(record).user == "root"
    assert host.run("runuser -u sglang -- touch %s/x", record.rpartition("/")[0]).rc != 0
