# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""testinfra on the lab's hosts: inside a container by ssh to its node and lxc-attach, which is what pct ends in.

Its own ansible backend would start a whole Ansible for each question.
"""

from __future__ import annotations

import shlex
import tempfile
from typing import Any

from paths import SSH
from testinfra.backend.base import CommandResult
from testinfra.backend.ssh import SshBackend
from testinfra.host import Host

# one login serves all questions of this process; a socket of its own, since the next lab has another node
CONTROL = tempfile.TemporaryDirectory(prefix="pct")


class PctBackend(SshBackend):
    """Runs every command in one container."""

    NAME = "pct"

    def __init__(self, vmid: int) -> None:
        super().__init__("kpro5", ssh_config=str(SSH / "config"), controlpath=f"{CONTROL.name}/node")
        self.vmid = vmid

    def run(self, command: str, *args: str, **kwargs: Any) -> CommandResult:
        inside = self.get_command(command, *args)
        return self.run_ssh(shlex.join(["lxc-attach", "-n", str(self.vmid), "--", "/bin/sh", "-c", inside]))


def container(vmid: int) -> Host:
    """Return testinfra's view of a container."""
    return Host(PctBackend(vmid))


def bare() -> Host:
    """Return testinfra's view of the host without systemd."""
    return Host(SshBackend("rental", ssh_config=str(SSH / "config"), controlpath=f"{CONTROL.name}/rental"))
