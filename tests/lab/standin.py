# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in server in place of SGLang in container 130, whose starts cost next to nothing."""

from __future__ import annotations

import json
from typing import Any

from playbook_runs import deploy, lab_instances
from servers import UNIT, launch, serves
from testinfra.host import Host

SERVERS = "/srv/lab/standins/server"
HOME = "/var/lib/sglang/tiny/home"
LAUNCHES = "/var/lib/sglang/tiny/launches"
INSTANCE = {**lab_instances()[0], "env": {"PYTHONPATH": SERVERS}}
RESTART = {"sglang_server_state": "restarted"}


def asked(**changed: Any) -> dict[str, Any]:
    """Extra vars that ask for the stand-in with something changed in the instance."""
    return {"sglang_server_instances": [{**INSTANCE, **changed}]}


def next_start(host: Host, **variables: Any) -> None:
    """What the next start of the stand-in does, and no later one."""
    lines = "".join(f"STANDIN_{name}={value}\n" for name, value in variables.items())
    host.check_output("printf %%s %s > %s/standin-next && chown -R sglang %s", lines, HOME, HOME)


def record(host: Host, name: str = "launch") -> dict[str, Any]:
    text = host.check_output("cat %s/%s/%s.json", LAUNCHES, launch(host), name)
    content: dict[str, Any] = json.loads(text)
    return content


def converges(host: Host) -> None:
    """The next run repairs what is to be repaired, and the one after it has nothing to do."""
    again = deploy("-l", "ct130", extra=asked())
    assert again.status == 0, again
    assert serves(host)
    if again.count("ct130", "changed"):
        more = deploy("-l", "ct130", extra=asked())
        assert more.status == 0 and more.count("ct130", "changed") == 0, more


def launch_in_unit(host: Host) -> str:
    return str(host.check_output("sed -n 's/^# launch: //p' /etc/systemd/system/%s", UNIT))


def is_proved(host: Host) -> bool:
    return serves(host) and host.file(f"{LAUNCHES}/{launch_in_unit(host)}/verdict.json").exists
