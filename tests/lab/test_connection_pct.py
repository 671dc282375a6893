# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin against the lab: a node behind a real sshd, with an unprivileged and a privileged container."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase
from connections import CONTAINERS, ENTRIES, connect, on_node, variables

HERE = Path(__file__).resolve().parent
UNTOUCHED = hashlib.sha256(bytes(range(256)) * 20_000).hexdigest()


@pytest.fixture(params=[(vmid, entry) for vmid in CONTAINERS for entry in ENTRIES], ids=str)
def container(request: pytest.FixtureRequest) -> ConnectionBase:
    vmid, entry = request.param
    return connect(vmid, ansible_pct_entry=entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "copied"])
def test_ansibles_own_actions(tmp_path: Path, pipelining: bool, entry: str) -> None:
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump(
            {
                "all": {
                    "hosts": {f"ct{vmid}": {"ansible_pct_vmid": vmid} for vmid in CONTAINERS},
                    "vars": variables(
                        ansible_connection="gpuops.sglang.pct",
                        ansible_pct_entry=entry,
                        ansible_pipelining=pipelining,
                        ansible_python_interpreter="/usr/bin/python3",
                        work=str(tmp_path),
                    ),
                }
            }
        )
    )
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20_000)
    (tmp_path / "script").write_text('#!/bin/sh\nprintf %s "$1"\n')
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", tmp_path / "hosts.yml", HERE / "connection_pct.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(HERE.parent.parent / "ansible.cfg")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for vmid in CONTAINERS:
        fetched = (tmp_path / f"ct{vmid} fetched").read_bytes()
        assert hashlib.sha256(fetched).hexdigest() == UNTOUCHED


def test_a_command_lands_in_its_container(container: ConnectionBase) -> None:
    name = on_node("pct", "exec", str(container.get_option("vmid")), "--", "hostname").encode()
    assert container.exec_command("hostname; whoami; pwd; echo $HOME") == (0, name + b"root\n/root\n/root\n", b"")


@pytest.mark.parametrize("in_data", [None, b"x"])
@pytest.mark.parametrize("code", [0, 1, 2, 4, 127, 254, 255])
def test_exit_codes(code: int, in_data: bytes | None) -> None:
    assert connect(129).exec_command(f"echo out; echo err >&2; exit {code}", in_data) == (code, b"out\n", b"err\n")


def test_a_killed_command_ends_with_its_signal() -> None:
    assert connect(130).exec_command("sh -c 'kill -KILL $$'")[0] == 137


def test_every_byte_of_an_argument() -> None:
    odd = "".join(map(chr, range(1, 0x180))) + "\\'\"$HOME `id` 模型 -- -n"
    quoted = "'" + odd.replace("'", "'\\''") + "'"
    assert connect(129).exec_command(f"printf %s {quoted}") == (0, odd.encode(), b"")


def test_large_outputs_and_inputs(container: ConnectionBase) -> None:
    data = bytes(range(256)) * 20_000
    command = "sha256sum; head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero"
    code, stdout, stderr = container.exec_command(command, data)
    assert (code, stderr == bytes(3_000_000)) == (0, True)
    assert stdout == f"{UNTOUCHED}  -\n".encode() + bytes(3_000_000)


def test_a_pipe_that_breaks_ends_its_writer(container: ConnectionBase) -> None:
    assert container.exec_command("(yes; echo $? >&2) | head -n 1") == (0, b"y\n", b"141\n")


@pytest.mark.parametrize("name", ["a b", "it's", 'say "hi"', "two\nlines", "größe 模型", "-n", "$HOME", "n" * 255])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0\r\n" + name.encode())
    connection = connect(129)
    connection.put_file(str(tmp_path / name), f"/root/{name}")
    connection.fetch_file(f"/root/{name}", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / name).read_bytes()
    assert connection.exec_command('rm -- /root/"$(cat)"', name.encode())[0] == 0


def test_empty_and_large_files(container: ConnectionBase, tmp_path: Path) -> None:
    for size in (0, 50_000_000):
        with (tmp_path / "here").open("wb") as here:
            here.truncate(size)
        container.put_file(str(tmp_path / "here"), "/root/large")
        container.fetch_file("/root/large", str(tmp_path / "back"))
        assert (tmp_path / "back").stat().st_size == size
    assert container.exec_command("ls -A /root/.gpuops*; rm /root/large")[1] == b""


def test_a_full_disk_is_an_error_and_keeps_the_old_file(container: ConnectionBase, tmp_path: Path) -> None:
    assert container.exec_command("mkdir /root/full && mount -t tmpfs -o size=1m tmpfs /root/full")[0] == 0
    try:
        container.exec_command("echo old >/root/full/file")
        (tmp_path / "here").write_bytes(bytes(3_000_000))
        with pytest.raises(
            AnsibleError, match=r"cannot write /root/full/file in container 1\d\d on kpro5: .*No space left"
        ):
            container.put_file(str(tmp_path / "here"), "/root/full/file")
        assert container.exec_command("cat /root/full/*; ls -A /root/full") == (0, b"old\nfile\n", b"")
    finally:
        container.exec_command("umount /root/full; rmdir /root/full")


def test_a_missing_file_is_an_error(container: ConnectionBase, tmp_path: Path) -> None:
    with pytest.raises(AnsibleError, match=r"cannot read /nowhere in container 1\d\d on kpro5: .*No such file"):
        container.fetch_file("/nowhere", str(tmp_path / "back"))


def test_a_terminal_on_demand() -> None:
    assert connect(129).exec_command("tty")[1] == b"not a tty\n"
    code, stdout, _ = connect(129, ansible_ssh_use_tty=True).exec_command("tty; echo err >&2; exit 255")
    assert (code, stdout.startswith(b"/dev/pts/"), stdout.split()[1:]) == (255, True, [b"err"])


def test_a_connection_can_be_reset(container: ConnectionBase) -> None:
    container.exec_command("true")
    container.reset()
    assert container.exec_command("echo again")[1] == b"again\n"
