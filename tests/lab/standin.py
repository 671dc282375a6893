# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in server in place of SGLang, whose starts cost next to nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playbook_runs import deploy, eventually, lab_instances
from servers import here, launch, serves
from testinfra.host import Host

SERVERS = "/srv/lab/standins/server"
INSTANCE = {**lab_instances()[0], "env": {"PYTHONPATH": SERVERS}}
RESTART = {"sglang_server_state": "restarted"}
BOTH_SUPERVISORS = pytest.mark.parametrize("standin", ["ct130", "rental"], indirect=True)


def asked(**changed: Any) -> dict[str, Any]:
    """Extra vars that ask for the stand-in with something changed in the instance."""
    return {"sglang_server_instances": [{**INSTANCE, **changed}]}


def next_start(host: Host, **variables: Any) -> None:
    """What the next start of the stand-in does, and no later one."""
    lines = "".join(f"STANDIN_{name}={value}\n" for name, value in variables.items())
    host.check_output("printf %%s %s > %s/standin-next && chown -R sglang %s", lines, here.home, here.home)


def record(host: Host, name: str = "launch") -> dict[str, Any]:
    text = host.check_output("cat %s/%s/%s.json", here.launches, launch(host), name)
    content: dict[str, Any] = json.loads(text)
    return content


def converges(host: Host) -> None:
    """The next run repairs what is to be repaired, and the one after it has nothing to do."""
    again = deploy("-l", here.name, extra=asked())
    assert again.status == 0, again
    assert serves(host)
    if again.count(here.name, "changed"):
        more = deploy("-l", here.name, extra=asked())
        assert more.status == 0 and more.count(here.name, "changed") == 0, more


def launch_in_unit(host: Host) -> str:
    return str(host.check_output("sed -n 's/^# launch: //p' %s", here.unit))


def is_proved(host: Host) -> bool:
    return serves(host) and host.file(f"{here.launches}/{launch_in_unit(host)}/verdict.json").exists


@contextlib.contextmanager
def beside(host: Host, command: str) -> Iterator[None]:
    """Something that somebody has started by hand and left."""
    pid = host.check_output(f"setsid {command} >/dev/null 2>&1 </dev/null & echo $!")
    try:
        yield
    finally:
        host.run("kill %s", pid)


@contextlib.contextmanager
def foreign(host: Host) -> Iterator[None]:
    """A server of somebody else's, of the same user and release, which lives through all that is done."""
    words = f"{interpreter(host)} -m sglang.launch_server --model-path /srv/lab/models/tiny-qwen3 --port 30088"
    clean = "setpriv --reuid sglang --regid sglang --clear-groups env --chdir=/"

    def processes() -> str:
        found = host.check_output("pgrep --full %s", f"^{words}")
        return f"{found} {host.check_output('pgrep --parent %s', found)}"

    with beside(host, f"{clean} PYTHONPATH={SERVERS} {words}"):
        assert eventually(lambda: serves(host, 30088), 180)
        before = processes()
        yield
        assert processes() == before and serves(host, 30088), "what is not ours was ended"


def interpreter(host: Host) -> str:
    """The Python of a release."""
    return str(host.check_output("ls -d %s/releases/*/venv/bin/python", here.root)).split()[0]
