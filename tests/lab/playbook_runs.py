# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's commands against the running lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
RECAP = "PLAY RECAP"
CONTROLLER = "10.98.0.1"  # of the lab's bridge
# what a shell starts in the background ignores Ctrl-C, and so would the commands that are started here
signal.signal(signal.SIGINT, signal.default_int_handler)


class Run:
    """What one ansible-playbook printed and did."""

    def __init__(self, status: int, output: str) -> None:
        self.status = status
        self.output = output
        self.recap = output.rpartition(RECAP)[2]

    def count(self, host: str, what: str) -> int:
        """Return a number of the recap, e.g. count('ct129', 'changed')."""
        (line,) = (line for line in self.recap.splitlines() if line.split(":")[0].strip() == host)
        return int(line.partition(f"{what}=")[2].split()[0])

    @property
    def errors(self) -> list[str]:
        """The lines that Ansible prints as errors."""
        return [line for line in self.output.splitlines() if line.startswith("[ERROR]")]

    def __repr__(self) -> str:
        return f"exit {self.status}\n{self.output[-6000:]}"


def environment() -> dict[str, str]:
    """A newcomer's environment: nothing of the machine that the project could come to rely on."""
    kept = {name: os.environ[name] for name in ("HOME", "GPUOPS_LAB_DIR") if name in os.environ}
    return {
        **kept,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }


def begin(
    *arguments: str, playbook: str = "deploy.yml", extra: Mapping[str, Any] | None = None
) -> subprocess.Popen[str]:
    """Start ansible-playbook as an operator does in the checkout."""
    words = [str(PLAYBOOK), playbook, *arguments]
    if extra is not None:
        words += ["--extra-vars", json.dumps(extra)]
    return subprocess.Popen(
        words,
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def deploy(*arguments: str, playbook: str = "deploy.yml", extra: Mapping[str, Any] | None = None) -> Run:
    """Run ansible-playbook to its end."""
    process = begin(*arguments, playbook=playbook, extra=extra)
    output, _ = process.communicate()
    return Run(process.returncode, output)


def interrupted(task: str, after: float, *arguments: str, extra: Mapping[str, Any] | None = None) -> Run:
    """Run ansible-playbook and press Ctrl-C in its terminal `after` seconds into the task whose name has `task`."""
    process = begin(*arguments, extra=extra)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("TASK") and task in line:
            time.sleep(after)
            os.killpg(process.pid, signal.SIGINT)
    return Run(process.wait(), "".join(lines))


def lab_profile() -> dict[str, Any]:
    """Return the lab's profile of sglang_install."""
    profile: dict[str, Any] = yaml.safe_load((PROJECT / "inventories/lab/group_vars/sglang/profile.yml").read_text())
    return profile


def lab_instances() -> list[dict[str, Any]]:
    """Return the instances that the lab's inventory asks for, with literal values."""
    variables = yaml.safe_load((PROJECT / "inventories/lab/group_vars/sglang/instances.yml").read_text())
    instances: list[dict[str, Any]] = variables["sglang_server_instances"]
    for instance in instances:
        instance["env"] = lab_profile()["lab_server_env"]
    return instances


def with_args(**args: Any) -> dict[str, Any]:
    """Return extra vars that ask for the lab's instance with some arguments changed."""
    (instance,) = lab_instances()
    return {"sglang_server_instances": [{**instance, "args": {**instance["args"], **args}}]}


def eventually(happened: Callable[[], bool], limit: float) -> bool:
    """Ask until it is true, at most for `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(1)
    return False
