# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the connection says when a command can not be run in its container: one sentence, within one task."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase
from connections import ENTRIES, LAB, SSH, connect, on_node

VMID = 191
CONF = f"/etc/pve/lxc/{VMID}.conf"
HERE = f"container {VMID} on kpro5"
STOPPED = f"{HERE} is stopped: start it with 'pct start {VMID}' on kpro5"
MISSING = f"there is no {HERE}: see 'pct list' on kpro5 and correct ansible_pct_vmid, or ansible_host if it moved"


@pytest.fixture(scope="module", autouse=True)
def spare() -> Iterator[None]:
    """A container of these tests' own, like 130 but without an address."""
    on_node(f"grep -v ^net0 /etc/pve/lxc/130.conf >{CONF}; pct start {VMID}")
    yield
    on_node(f"pct stop {VMID}; rm {CONF}")


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def failure(connection: ConnectionBase, in_data: bytes | None = None) -> str:
    with pytest.raises(AnsibleConnectionFailure) as caught:
        connection.exec_command("true", in_data)
    return str(caught.value)


def to(vmid: int, entry: str, **changes: object) -> ConnectionBase:
    return connect(vmid, ansible_pct_entry=entry, **changes)


@pytest.mark.parametrize("in_data", [None, b"x" * 5_000_000])
def test_each_command_knows_whether_the_container_runs(entry: str, in_data: bytes | None) -> None:
    connection = to(VMID, entry)
    boot = connection.exec_command("cat /proc/1/stat")[1]
    on_node(f"pct stop {VMID}")
    assert failure(connection, in_data) == STOPPED
    on_node(f"pct start {VMID}")
    code, again, _ = connection.exec_command("cat /proc/1/stat")
    assert (code, again.split()[21] != boot.split()[21]) == (0, True), "another boot of the same container"


def test_each_command_knows_where_the_container_is(entry: str) -> None:
    connection = to(VMID, entry)
    connection.exec_command("true")
    on_node(f"mkdir -p /etc/pve/nodes/kpro6/lxc; pct stop {VMID}; mv {CONF} /etc/pve/nodes/kpro6/lxc")
    try:
        moved = failure(connection)
    finally:
        on_node(f"mv /etc/pve/nodes/kpro6/lxc/{VMID}.conf {CONF}; rm -r /etc/pve/nodes; pct start {VMID}")
    if entry == "quick":
        assert moved == f"{HERE} is not there any more, it is on kpro6: set ansible_host to the address of kpro6"
    else:
        assert moved.startswith(MISSING)


def test_each_command_knows_whether_the_container_is_locked(entry: str) -> None:
    connection = to(VMID, entry)
    connection.exec_command("true")
    on_node(f"sed -i '1i lock: migrate' {CONF}")
    try:
        assert failure(connection) == (
            f"{HERE} is locked (migrate): wait for the task that holds it (see the task log of kpro5),"
            " or set ansible_pct_locked to enter"
        )
        assert to(VMID, entry, ansible_pct_locked="enter").exec_command("echo in")[1] == b"in\n"
    finally:
        on_node(f"sed -i /^lock:/d {CONF}")
    assert connection.exec_command("echo in")[1] == b"in\n"


def test_the_lock_of_a_snapshot_section_is_none(entry: str) -> None:
    on_node(f"tee -a {CONF}", stdin=b"\n[before]\nlock: snapshot\n")
    try:
        assert to(VMID, entry).exec_command("echo in")[1] == b"in\n"
    finally:
        on_node(f"sed -i '/^$/,$d' {CONF}")


def test_a_suspended_container_is_not_waited_for(entry: str) -> None:
    on_node(f"lxc-freeze -n {VMID}")
    try:
        assert failure(to(VMID, entry)) == (
            f"{HERE} is suspended: wait for the backup that did it, or go on with 'pct resume {VMID}' on kpro5"
        )
    finally:
        on_node(f"lxc-unfreeze -n {VMID}")


def test_entering_needs_no_lock_on_the_configuration_and_what_does_is_told_so(entry: str) -> None:
    """pct exec takes no lock; what pct says where it does is read by the same table."""
    lock = f"/run/lock/lxc/pve-config-{VMID}.lock"
    held = on_node(
        f"mkdir -p /run/lock/lxc; flock {lock} -c 'pct set {VMID} --memory 512 2>&1; lxc-attach -n {VMID} -- true' || :"
    )
    connection = to(VMID, entry)
    connection.exec_command("true")
    assert connection._call.failure(4, b"", held.encode(), reached=True).startswith(
        f"{HERE}: another task on kpro5 holds its configuration: wait for it, then run again"
    )


def test_a_container_that_is_not_there(entry: str) -> None:
    assert failure(to(999, entry)).startswith("there is no container 999 on kpro5: see 'pct list' on kpro5")


def test_a_number_that_is_none() -> None:
    assert failure(to(99, "strict")).endswith("pct does not accept the number 99: correct ansible_pct_vmid")
    assert failure(to(99, "quick")).startswith("there is no container 99 on kpro5")


RENTAL = {"ansible_host": "10.98.0.40", "ansible_port": 2222, "pct_node": "rental"}


def test_a_cluster_file_system_that_is_down() -> None:
    # all that is left of it on a node is the folder; on another host, because others are at work on the node
    rental = [*SSH, "rental"]
    subprocess.run([*rental, "mkdir /etc/pve"], check=True)
    try:
        down = failure(to(VMID, "quick", **RENTAL))
    finally:
        subprocess.run([*rental, "rmdir /etc/pve"], check=True)
    assert down == (
        f"container {VMID} on rental: the cluster file system of rental is down:"
        " see 'systemctl status pve-cluster' on rental"
    )


def test_a_host_that_is_no_node() -> None:
    assert failure(to(129, "quick", **RENTAL)).startswith(
        "container 129 on rental: rental is no Proxmox VE node (no /etc/pve): check that 10.98.0.40 is the node"
    )
    assert failure(to(129, "strict", **RENTAL)).startswith("container 129 on rental: rental has no /usr/sbin/pct:")


def test_a_node_without_pct() -> None:
    assert failure(to(129, "strict", ansible_pct_executable="/opt/pct")).startswith(
        "container 129 on kpro5: kpro5 has no /opt/pct:"
    )


def test_a_node_that_does_not_answer(entry: str) -> None:
    text = failure(to(129, entry, ansible_host="10.98.0.250", ansible_ssh_timeout=2))
    assert text.startswith(
        "container 129 on kpro5 is out of reach, because ssh to kpro5 (10.98.0.250) failed: ssh: connect"
    )


def test_a_host_key_that_is_wrong(tmp_path: Path, entry: str) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("10.98.0.5 " + (LAB / "ssh/id_ed25519.pub").read_text())
    args = f"-F {LAB}/ssh/config -o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes -o ControlPath=none"
    text = failure(to(129, entry, ansible_ssh_common_args=args))
    assert text.startswith("container 129 on kpro5 is out of reach, because ssh to kpro5 (10.98.0.5) failed: ")
    assert "Host key verification failed" in text


def test_a_login_that_is_not_root(entry: str) -> None:
    assert failure(to(129, entry, ansible_user="ops")).startswith(
        "container 129 on kpro5: entering it needs root on kpro5 and the login is ops:"
    )
    program = {"quick": "/usr/bin/perl", "strict": "/usr/sbin/pct"}[entry]
    text = failure(to(129, entry, ansible_user="guest", ansible_pct_node_become="sudo"))
    assert text.startswith(
        f"container 129 on kpro5: sudo on kpro5 does not let guest run {program} without a password:"
        f" add 'guest ALL=(root) NOPASSWD: {program}' to its sudoers"
    )
    sudo = to(129, entry, ansible_pct_node_user="ops", ansible_pct_node_become="sudo")
    assert sudo.exec_command("whoami; echo $HOME ${SUDO_USER-none}; pwd") == (0, b"root\n/root none\n/root\n", b"")


@pytest.mark.parametrize("in_data", [b"print(1)", None])
def test_a_container_without_python(entry: str, in_data: bytes | None) -> None:
    command = "/opt/bin/python3 /root/.ansible/tmp/x/AnsiballZ_ping.py"
    with pytest.raises(AnsibleConnectionFailure) as caught:
        to(VMID, entry).exec_command(command, in_data)
    assert str(caught.value).startswith(f"{HERE} has no /opt/bin/python3: install Python there")
    assert to(VMID, entry).exec_command("/opt/bin/python3 x")[0] == 127, "a raw command that is not found is no module"


def test_a_container_without_a_shell(entry: str) -> None:
    shell = on_node(f"pct exec {VMID} -- readlink /bin/sh").strip()
    on_node(f"pct exec {VMID} -- mv /bin/sh /bin/sh.away")
    try:
        text = failure(to(VMID, entry))
    finally:
        on_node(f"pct exec {VMID} -- mv /bin/sh.away /bin/sh")
    assert text.startswith(f"{HERE} has no /bin/sh that runs: try 'pct enter {VMID}' on kpro5"), shell


def test_a_full_disk_a_missing_folder_and_a_read_only_one(entry: str, tmp_path: Path) -> None:
    connection = to(VMID, entry)
    (tmp_path / "here").write_bytes(bytes(3_000_000))
    connection.exec_command("mkdir /run/small /run/fixed; mount -t tmpfs -o size=1m none /run/small")
    connection.exec_command("echo old >/run/small/file; mount -t tmpfs -o ro none /run/fixed")
    try:
        for path, why in (
            ("/run/small/file", "No space left on device"),
            ("/run/none/file", "there is no directory /run/none"),
            ("/run/fixed/file", "Read-only file system"),
            ("/run/small", "it is a directory"),
        ):
            with pytest.raises(AnsibleError, match=rf"^cannot write {path} in {HERE}: .*{why}"):
                connection.put_file(str(tmp_path / "here"), path)
        assert connection.exec_command("cat /run/small/*; ls -A /run/small") == (0, b"old\nfile\n", b"")
    finally:
        connection.exec_command("umount /run/small /run/fixed; rmdir /run/small /run/fixed")


def test_a_command_line_that_is_too_long(entry: str) -> None:
    with pytest.raises(AnsibleError, match=rf"^{HERE}: a command of 200002 characters makes"):
        to(VMID, entry).exec_command(": " + "x" * 200_000)
