# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin against the lab: a node behind a real sshd, with an unprivileged and a privileged container."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible import constants
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.playbook.play_context import PlayContext
from ansible_collections.gpuops.sglang.plugins.connection import pct
from ansible_collections.gpuops.sglang.plugins.doc_fragments.ssh_options import ModuleDocFragment

HERE = Path(__file__).resolve().parent
LAB = Path(os.environ.get("GPUOPS_LAB_DIR", "/var/lib/gpuops-lab"))
NODE = "10.98.0.5"
CONTAINERS = [129, 130]
UNTOUCHED = hashlib.sha256(bytes(range(256)) * 20_000).hexdigest()


def on_node(command: str) -> str:
    return subprocess.check_output(["ssh", "-F", LAB / "ssh/config", "kpro5", command], text=True)


def variables(**changes: object) -> dict[str, object]:
    return {
        "ansible_host": NODE,
        "pct_node": "kpro5",
        "ansible_ssh_common_args": f"-F {LAB}/ssh/config",
        "ansible_user": "root",
        **changes,
    }


@pytest.fixture(scope="module", autouse=True)
def _options() -> None:
    """What Ansible's plugin loader does with the documentation and its fragment."""
    options = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    for name, option in yaml.safe_load(pct.DOCUMENTATION)["options"].items():
        options[name] = {**options.get(name, {}), **option}
    constants.config.initialize_plugin_configuration_definitions("connection", "pct", options)
    pct.Connection._load_name = "pct"


def connect(vmid: int, **changes: object) -> pct.Connection:
    connection = pct.Connection(PlayContext())
    connection.set_options(var_options=variables(ansible_pct_vmid=vmid, **changes))
    return connection


@pytest.fixture(params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> pct.Connection:
    return connect(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "copied"])
def test_ansibles_own_actions(tmp_path: Path, pipelining: bool) -> None:
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump(
            {
                "all": {
                    "hosts": {f"ct{vmid}": {"ansible_pct_vmid": vmid} for vmid in CONTAINERS},
                    "vars": variables(
                        ansible_connection="gpuops.sglang.pct",
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


def test_a_command_lands_in_its_container(container: pct.Connection) -> None:
    name = on_node(f"pct exec {container.get_option('vmid')} -- hostname").encode()
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


def test_large_outputs_and_inputs(container: pct.Connection) -> None:
    data = bytes(range(256)) * 20_000
    command = "sha256sum; head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero"
    code, stdout, stderr = container.exec_command(command, data)
    assert (code, stderr == bytes(3_000_000)) == (0, True)
    assert stdout == f"{UNTOUCHED}  -\n".encode() + bytes(3_000_000)


def test_a_pipe_that_breaks_ends_its_writer(container: pct.Connection) -> None:
    assert container.exec_command("(yes; echo $? >&2) | head -n 1") == (0, b"y\n", b"141\n")


@pytest.mark.parametrize("name", ["a b", "it's", 'say "hi"', "two\nlines", "größe 模型", "-n", "$HOME", "n" * 255])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0\r\n" + name.encode())
    connection = connect(129)
    connection.put_file(str(tmp_path / name), f"/root/{name}")
    connection.fetch_file(f"/root/{name}", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / name).read_bytes()
    assert connection.exec_command('rm -- /root/"$(cat)"', name.encode())[0] == 0


def test_empty_and_large_files(container: pct.Connection, tmp_path: Path) -> None:
    for size in (0, 50_000_000):
        with (tmp_path / "here").open("wb") as here:
            here.truncate(size)
        container.put_file(str(tmp_path / "here"), "/root/large")
        container.fetch_file("/root/large", str(tmp_path / "back"))
        assert (tmp_path / "back").stat().st_size == size
    assert container.exec_command("ls -A /root/.gpuops*; rm /root/large")[1] == b""


def test_a_full_disk_is_an_error_and_keeps_the_old_file(container: pct.Connection, tmp_path: Path) -> None:
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


def test_a_missing_file_is_an_error(container: pct.Connection, tmp_path: Path) -> None:
    with pytest.raises(AnsibleError, match=r"cannot read /nowhere in container 1\d\d on kpro5: .*No such file"):
        container.fetch_file("/nowhere", str(tmp_path / "back"))


def test_a_terminal_on_demand() -> None:
    assert connect(129).exec_command("tty")[1] == b"not a tty\n"
    code, stdout, _ = connect(129, ansible_ssh_use_tty=True).exec_command("tty; echo err >&2; exit 255")
    assert (code, stdout.startswith(b"/dev/pts/"), stdout.split()[1:]) == (255, True, [b"err"])


def test_a_connection_can_be_reset(container: pct.Connection) -> None:
    container.exec_command("true")
    container.reset()
    assert container.exec_command("echo again")[1] == b"again\n"


@pytest.fixture
def stopped() -> Iterator[int]:
    on_node("cp /etc/pve/lxc/130.conf /etc/pve/lxc/191.conf")
    yield 191
    on_node("rm /etc/pve/lxc/191.conf")


def failure(vmid: int, in_data: bytes | None = None, **changes: object) -> str:
    with pytest.raises(AnsibleConnectionFailure) as caught:
        connect(vmid, **changes).exec_command("true", in_data)
    return str(caught.value)


@pytest.mark.parametrize("in_data", [None, b"x" * 5_000_000])
def test_a_stopped_container(stopped: int, in_data: bytes | None) -> None:
    assert failure(stopped, in_data) == "container 191 on kpro5 is stopped: start it with 'pct start 191' on kpro5"


def test_a_container_that_is_not_there() -> None:
    assert failure(999).startswith("there is no container 999 on kpro5: see 'pct list' on kpro5")


def test_a_number_that_is_none() -> None:
    assert failure(99) == "container 99 on kpro5: pct does not accept the number 99: correct ansible_pct_vmid"


def test_a_node_without_pct() -> None:
    assert failure(129, ansible_pct_executable="/opt/pct").startswith("container 129 on kpro5: kpro5 has no /opt/pct:")


def test_a_node_that_does_not_answer() -> None:
    text = failure(129, ansible_host="10.98.0.250", ansible_ssh_timeout=2)
    assert text.startswith(
        "container 129 on kpro5 is out of reach, because ssh to kpro5 (10.98.0.250) failed: ssh: connect"
    )


def test_a_login_that_is_not_root() -> None:
    assert failure(129, ansible_user="ops").startswith(
        "container 129 on kpro5: pct on kpro5 needs root and ran as ops:"
    )
    text = failure(129, ansible_user="guest", ansible_pct_node_become="sudo")
    assert text.startswith(
        "container 129 on kpro5: sudo on kpro5 does not let guest run /usr/sbin/pct without a password"
    )
    sudo = connect(129, ansible_pct_node_user="ops", ansible_pct_node_become="sudo")
    assert sudo.exec_command("whoami; echo $HOME ${SUDO_USER-none}; pwd") == (0, b"root\n/root none\n/root\n", b"")
