# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connection plugins as Ansible loads them, to the lab's containers and to its node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.playbook.play_context import PlayContext
from ansible.plugins.connection import ConnectionBase
from ansible.plugins.loader import connection_loader, init_plugin_loader

LAB = Path(os.environ.get("GPUOPS_LAB_DIR", "/var/lib/gpuops-lab"))
NODE = "10.98.0.5"
CONTAINERS = [129, 130]
ENTRIES = ["quick", "strict"]
WAYS = ["ssh", *ENTRIES]
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
# one login on the node for each user serves all that this process asks there
CONTROL = tempfile.TemporaryDirectory(prefix="pct")
SSH = ["ssh", "-F", str(LAB / "ssh/config"), "-o", "ControlMaster=auto", "-o", "ControlPersist=60",
       "-o", f"ControlPath={CONTROL.name}/%C"]  # fmt: skip
# of containers; the lab writes its own file anew whenever it is started
KNOWN_HOSTS = Path(CONTROL.name, "known_hosts")

init_plugin_loader([str(Path(__file__).resolve().parents[2] / ".dev")])


def on_node(*argv: str, stdin: bytes | None = None) -> str:
    """What `argv` prints on the node; its words are joined by spaces for the node's shell."""
    return subprocess.run([*SSH, "kpro5", *argv], input=stdin, stdout=subprocess.PIPE, check=True).stdout.decode()


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


def way_in(way: str, vmid: int, **changes: Any) -> dict[str, Any]:
    """What an inventory says about a container that is entered by pct, or by ssh within login_of_container."""
    if way == "ssh":
        # pct asks for no terminal either: one merges stderr into stdout
        asked = {"ansible_connection": "ansible.builtin.ssh", "ansible_ssh_use_tty": False}
        asked["ansible_ssh_common_args"] = f"-F {LAB}/ssh/config -o UserKnownHostsFile={KNOWN_HOSTS}"
        return variables(**{"ansible_host": f"10.98.0.{vmid}", **asked, **changes})
    asked = {"ansible_connection": "gpuops.sglang.pct", "ansible_pct_vmid": vmid, "ansible_pct_entry": way}
    return variables(**{**asked, **changes})


def enter(way: str, vmid: int, **changes: object) -> ConnectionBase:
    """The connection to a container by one of the WAYS."""
    asked = way_in(way, vmid, **changes)
    connection = connection_loader.get(asked["ansible_connection"], PlayContext())
    connection.set_options(var_options=asked)
    return connection


@contextlib.contextmanager
def login_of_container(vmid: int) -> Iterator[None]:
    """While it lasts, the lab's key opens the container's own sshd, and ssh knows the container's host key."""
    container = connect(vmid)
    mark = f"test-{os.getpid()}"  # others may do the same at the same time
    words = (
        (LAB / "ssh/id_ed25519.pub").read_text().split(),
        container.exec_command(f"cat {HOST_KEY}")[1].decode().split(),
    )
    key, host_key = (f"{kind} {key} {mark}\n" for kind, key, _ in words)
    stopped = container.exec_command("systemctl is-active ssh")[0] != 0
    container.exec_command("mkdir -pm 700 /root/.ssh; cat >>/root/.ssh/authorized_keys", key.encode())
    if stopped:
        container.exec_command("systemctl start ssh")
    KNOWN_HOSTS.write_text(f"10.98.0.{vmid} {host_key}")
    try:
        yield
    finally:
        enter("ssh", vmid).reset()
        container.exec_command(
            f"cd /root/.ssh; sed -i '/ {mark}$/d' authorized_keys; test -s authorized_keys || rm authorized_keys"
        )
        if stopped:
            container.exec_command("systemctl stop ssh")


def play(
    work: Path, hosts: dict[str, dict[str, Any]], tasks: list[dict[str, Any]], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run tasks on hosts of an inventory that is written to `work`."""
    (work / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    (work / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    ansible = Path(sys.executable).with_name("ansible-playbook")
    return subprocess.run(
        [ansible, "-i", work / "hosts.yml", work / "play.yml", *arguments],
        env={**os.environ, "ANSIBLE_CONFIG": str(Path(__file__).resolve().parents[2] / "ansible.cfg")},
        capture_output=True,
        text=True,
    )
