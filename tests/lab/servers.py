# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the instance of a host is, and what its server tells."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from testinfra.host import Host

UNIT = "sglang-tiny.service"
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


class Place:
    """The host that a test is about: container 130, or one without systemd."""

    name = "ct130"

    @property
    def systemd(self) -> bool:
        return self.name != "rental"

    @property
    def state(self) -> str:
        return "/var/lib/sglang" if self.systemd else "/workspace/var/lib/sglang"

    @property
    def root(self) -> str:
        return "/opt/sglang" if self.systemd else "/workspace/opt/sglang"

    @property
    def run(self) -> str:
        """Where supervisord and its guards tell of themselves."""
        return str(Supervisord(Path(self.state)).run)

    @property
    def home(self) -> str:
        return f"{self.state}/tiny/home"

    @property
    def launches(self) -> str:
        return f"{self.state}/tiny/launches"

    @property
    def unit(self) -> str:
        folder = f"{self.state}/.supervisor/units"
        return f"/etc/systemd/system/{UNIT}" if self.systemd else f"{folder}/sglang-tiny.unit"


here = Place()


def said(host: Host, what: str) -> str:
    """What the supervisor says of the instance, in systemd's words."""
    if here.systemd:
        return str(host.check_output("systemctl show --property=%s --value %s", what, UNIT))
    return str(host.check_output("sed -n 's/^%s=//p' %s/guards/sglang-tiny", what, here.run))


def main_pid(host: Host) -> int:
    return int(said(host, "MainPID"))


def log_of(host: Host, launch: str) -> str:
    if here.systemd:
        return str(host.run("journalctl --no-pager --output=cat GPUOPS_LAUNCH=%s", launch).stdout)
    return str(host.run("cat %s/%s/log", here.launches, launch).stdout)


def serves(host: Host, port: int = 30000) -> bool:
    return host.run("python3 -c %s %s", GET, f"http://127.0.0.1:{port}/health").rc == 0


def launch(host: Host) -> str:
    answer = json.loads(host.check_output("python3 -c %s http://127.0.0.1:30000/model_info", GET))
    return str(answer["weight_version"])
