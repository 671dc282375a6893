# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connection plugins as Ansible loads them, to the lab's containers and to its node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ansible.playbook.play_context import PlayContext
from ansible.plugins.connection import ConnectionBase
from ansible.plugins.loader import connection_loader, init_plugin_loader

LAB = Path(os.environ.get("GPUOPS_LAB_DIR", "/var/lib/gpuops-lab"))
NODE = "10.98.0.5"
CONTAINERS = [129, 130]
ENTRIES = ["quick", "strict"]

init_plugin_loader([str(Path(__file__).resolve().parents[2] / ".dev")])


def on_node(*argv: str, stdin: bytes | None = None) -> str:
    """What `argv` prints on the node; its words are joined by spaces for the node's shell."""
    ssh = ["ssh", "-F", str(LAB / "ssh/config"), "kpro5", *argv]
    return subprocess.run(ssh, input=stdin, stdout=subprocess.PIPE, check=True).stdout.decode()


def variables(**changes: object) -> dict[str, object]:
    """What an inventory says about a container of the lab's node."""
    return {
        "ansible_host": NODE,
        "pct_node": "kpro5",
        "ansible_ssh_common_args": f"-F {LAB}/ssh/config",
        "ansible_user": "root",
        **changes,
    }


def connect(vmid: int, **changes: object) -> ConnectionBase:
    """The pct connection to a container."""
    connection = connection_loader.get("gpuops.sglang.pct", PlayContext())
    connection.set_options(var_options=variables(ansible_pct_vmid=vmid, **changes))
    return connection
