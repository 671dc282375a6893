# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the instance of a container is, and what its server tells."""

from __future__ import annotations

import json

from testinfra.host import Host

UNIT = "sglang-tiny.service"
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


def main_pid(host: Host) -> int:
    return int(host.check_output("systemctl show --property=MainPID --value %s", UNIT))


def serves(host: Host) -> bool:
    return host.run("python3 -c %s http://127.0.0.1:30000/health", GET).rc == 0


def launch(host: Host) -> str:
    answer = json.loads(host.check_output("python3 -c %s http://127.0.0.1:30000/model_info", GET))
    return str(answer["weight_version"])
