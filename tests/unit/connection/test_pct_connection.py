# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin with an `ssh` that runs the node's command line here, and a `pct` that runs the container's."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.playbook.play_context import PlayContext
from ansible_collections.gpuops.sglang.plugins.connection import pct
from ansible_collections.gpuops.sglang.plugins.doc_fragments.ssh_options import ModuleDocFragment

SSH = """#!/bin/sh
printf '%s\\0' "$@" '
' >>LOG
for word; do host=$command; command=$word; done
case $host in
unreachable) echo "ssh: connect to host unreachable port 22: Connection timed out" >&2; exit 255 ;;
denied) echo "root@denied: Permission denied (publickey)." >&2; exit 255 ;;
busy)
    tries=$(grep -c busy LOG)
    [ "$tries" = 3 ] || { echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255; } ;;
breaking) /bin/sh -c "$command"; echo "Connection to breaking closed by remote host." >&2; exit 255 ;;
esac
exec /bin/sh -c "$command"
"""
PCT = """#!/bin/sh
[ "$1 $3" = "exec --" ] || exit 2
[ "$2" != 191 ] || { echo "container '191' not running!" >&2; exit 255; }
shift 3
"$@"
"""
Connect = Callable[..., pct.Connection]


pytestmark = pytest.mark.usefixtures("pct_options")


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    for name, text in {"ssh": SSH.replace("LOG", str(tmp_path / "log")), "pct": PCT}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def make(host: str = "192.0.2.5", vmid: int = 129, **variables: object) -> pct.Connection:
        connection = pct.Connection(PlayContext())
        connection.set_options(
            var_options={
                "ansible_host": host,
                "ansible_pct_vmid": vmid,
                "pct_node": "kpro5",
                "ansible_pct_executable": str(tmp_path / "pct"),
                "ansible_ssh_executable": str(tmp_path / "ssh"),
                "ansible_ssh_args": "",
                "ansible_pct_entry": "strict",
                **variables,
            }
        )
        return connection

    return make


def ssh_calls(tmp_path: Path) -> list[list[str]]:
    return [line.split("\0") for line in (tmp_path / "log").read_text().split("\0\n\0")[:-1]]


def test_a_command_runs_with_and_without_data(connect: Connect) -> None:
    assert connect().exec_command("echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")
    assert connect().exec_command("cat", in_data=b"\0data" * 9000) == (0, b"\0data" * 9000, b"")


@pytest.mark.parametrize("in_data", [None, b"module"])
def test_a_command_that_ends_with_255_is_not_a_broken_connection(connect: Connect, in_data: bytes | None) -> None:
    command = "echo 'mux_client_hello_exchange: write packet: Broken pipe' >&2; exit 255"
    code, _, stderr = connect().exec_command(command, in_data=in_data)
    assert (code, stderr) == (255, b"mux_client_hello_exchange: write packet: Broken pipe\n")


@pytest.mark.parametrize("in_data", [None, b"x" * 3_000_000])
@pytest.mark.parametrize(
    ("host", "vmid", "sentence"),
    [
        ("192.0.2.5", 191, "container 191 on kpro5 is stopped: start it with 'pct start 191' on kpro5"),
        (
            "unreachable",
            129,
            "ssh to kpro5 (unreachable) failed: ssh: connect to host unreachable port 22: Connection timed",
        ),
        ("breaking", 129, "the connection to kpro5 broke while a command ran"),
    ],
)
def test_what_is_not_the_command_is_a_connection_failure(
    connect: Connect, host: str, vmid: int, sentence: str, in_data: bytes | None
) -> None:
    with pytest.raises(AnsibleConnectionFailure) as caught:
        connect(host, vmid).exec_command("exit 255", in_data=in_data)
    assert sentence in str(caught.value)


def test_retries_are_for_the_network_not_for_a_refused_login(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        connect("unreachable", ansible_ssh_retries=1).exec_command("true")
    assert len(ssh_calls(tmp_path)) == 2
    with pytest.raises(AnsibleConnectionFailure):
        connect("denied", ansible_ssh_retries=1).exec_command("true")
    assert len(ssh_calls(tmp_path)) == 3


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the connection would have waited."""
    waited: list[float] = []
    monkeypatch.setattr(pct.time, "sleep", waited.append)
    return waited


def test_a_login_that_is_dropped_is_tried_again(connect: Connect, tmp_path: Path, pauses: list[float]) -> None:
    assert connect("busy").exec_command("cat", in_data=b"data" * 9000) == (0, b"data" * 9000, b"")
    assert len(ssh_calls(tmp_path)) == 3
    assert len(pauses) == 2
    with pytest.raises(AnsibleConnectionFailure, match="Connection closed by remote host"):
        connect("busy").exec_command("true")
    assert len(ssh_calls(tmp_path)) == 3 + 7
    assert sum(pauses) < 60


def test_a_password_for_a_host_whose_key_is_not_known(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshpass = tmp_path / "sshpass"
    sshpass.write_text("#!/bin/sh\nexit 6\n")
    sshpass.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    password = {"ansible_password": "planted", "ansible_host_key_checking": False}
    with pytest.raises(AnsibleConnectionFailure, match=r"ssh to kpro5 .* failed: the host key is not") as caught:
        connect(ansible_ssh_password_mechanism="sshpass", **password).exec_command("true")
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 255])
def test_a_code_of_the_command_is_none_of_sshpass(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    sshpass = tmp_path / "sshpass"
    sshpass.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    sshpass.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    connection = connect(
        ansible_password="planted",
        ansible_host_key_checking=False,
        ansible_ssh_password_mechanism="sshpass",
        ansible_ssh_retries=2,
    )
    command = f"echo run >>'{tmp_path}/runs'; echo out; exit {code}"
    assert connection.exec_command(command, b"data") == (code, b"out\n", b"")
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("variables", "login"),
    [
        ({}, None),
        ({"ansible_user": "deploy"}, "deploy"),
        ({"ansible_user": "root", "ansible_pct_node_user": "deploy"}, "deploy"),
    ],
)
def test_the_login_is_for_the_node_and_root_is_inside(
    connect: Connect, tmp_path: Path, variables: dict[str, str], login: str | None
) -> None:
    connection = connect(**variables)
    connection.exec_command("true")
    users = [word for word in ssh_calls(tmp_path)[0] if word.startswith("User=")]
    assert users == ([f'User="{login}"'] if login else [])
    assert connection.get_option("remote_user") == "root"


def test_containers_of_a_node_share_a_master(connect: Connect, tmp_path: Path) -> None:
    for vmid in (129, 130):
        connect(
            vmid=vmid, ansible_ssh_args="-o ControlPersist=60s", ansible_control_path_dir=str(tmp_path)
        ).exec_command("")
    paths = [[word for word in call if word.startswith("ControlPath")] for call in ssh_calls(tmp_path)]
    assert paths[0] == paths[1] != []


def test_a_terminal_is_asked_for_only_on_demand(connect: Connect, tmp_path: Path) -> None:
    connect().exec_command("true")
    connect(ansible_ssh_use_tty=True).exec_command("true")
    assert ["-tt" in call for call in ssh_calls(tmp_path)] == [False, True]


def test_reset_ends_the_master_of_the_login(connect: Connect, tmp_path: Path) -> None:
    connect(ansible_user="deploy").reset()
    assert [(call[-3:], 'User="deploy"' in call) for call in ssh_calls(tmp_path)[:1]] == [
        (["-O", "check", "192.0.2.5"], True)
    ]


@pytest.mark.parametrize("data", [b"", bytes(range(256)) * 20_000])
def test_a_file_goes_in_and_comes_back(connect: Connect, tmp_path: Path, data: bytes) -> None:
    here, there, back = tmp_path / "-here 'x'", tmp_path / '-there\n"y"', tmp_path / '-back "$z"'
    here.write_bytes(data)
    connect().put_file(str(here), str(there))
    assert there.read_bytes() == data
    back.write_bytes(b"older")
    connect().fetch_file(str(there), str(back))
    assert back.read_bytes() == data
    assert not list(tmp_path.glob(".gpuops*"))


@pytest.mark.parametrize("may", [True, False], ids=["owner", "writer"])
def test_a_fetched_file_keeps_who_may_read_it(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    (tmp_path / "there").write_bytes(b"secret")
    (tmp_path / "there").chmod(0o600)
    connect().fetch_file(str(tmp_path / "there"), str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    (tmp_path / "old").write_bytes(b"older")
    (tmp_path / "old").chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    if not may:
        monkeypatch.setattr(pct.os, "chown", denied)
    connect().fetch_file(str(tmp_path / "there"), str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old").read_bytes() == b"secret"
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.glob(".gpuops*"))


def denied(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(("place", "why"), [("folder", "it is no file"), ("no/file", "No such file or directory")])
def test_a_place_here_that_can_not_be_written_names_itself(
    connect: Connect, tmp_path: Path, place: str, why: str
) -> None:
    (tmp_path / "there").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    with pytest.raises(AnsibleError, match=rf"^cannot write {tmp_path}/{place} on the controller: {why}$"):
        connect().fetch_file(str(tmp_path / "there"), str(tmp_path / place))


def test_a_file_that_is_not_here_is_not_sent(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(AnsibleFileNotFound, match="nowhere does not exist"):
        connect().put_file(str(tmp_path / "nowhere"), str(tmp_path / "there"))


def test_a_file_that_cannot_be_written_names_itself(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"data" * 1000)
    with pytest.raises(
        AnsibleError, match=r"cannot write .*/no/there in container 129 on kpro5: there is no directory .*/no$"
    ):
        connect().put_file(str(tmp_path / "here"), str(tmp_path / "no" / "there"))


def test_a_copy_that_lost_its_end_is_not_kept(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"data" * 1000)
    (tmp_path / "back").write_bytes(b"older")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        ssh.read_text().replace('exec /bin/sh -c "$command"', '/bin/sh -c "$command" | { head -c 99; cat >/dev/null; }')
    )
    with pytest.raises(
        AnsibleError, match=r"cannot fetch .*/there from container 129 on kpro5: 99 of 4000 bytes arrived"
    ):
        connect().fetch_file(str(tmp_path / "there"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"older"
    assert not list(tmp_path.glob(".gpuops*"))


def test_a_profile_that_talks_is_named(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"data")
    ssh = tmp_path / "ssh"
    ssh.write_text(ssh.read_text().replace("exec /bin/sh", "echo welcome; exec /bin/sh"))
    with pytest.raises(AnsibleError, match=r"12 of 4 bytes arrived: something in the login's shell profile"):
        connect().fetch_file(str(tmp_path / "there"), str(tmp_path / "back"))


def test_a_directory_is_no_file_to_send(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(AnsibleError, match="on the controller is a directory: name a file"):
        connect().put_file(str(tmp_path), str(tmp_path / "there"))


def test_a_file_that_is_not_there_names_itself(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(AnsibleError, match=r"cannot read .*/nowhere in container 129 on kpro5: .*nowhere"):
        connect().fetch_file(str(tmp_path / "nowhere"), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_the_options_are_those_of_the_installed_ssh_plugin() -> None:
    options = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    assert {"private_key_file", "ssh_common_args", "port", "password"} <= set(options)
    assert options["pipelining"]["type"] == "boolean"
    assert {"name": "ansible_ssh_pipelining"} in options["pipelining"]["vars"]
    assert "version_added" not in ModuleDocFragment.DOCUMENTATION


def on_the_node(connect: Connect, host: str = "localhost") -> pct.Connection:
    return connect(host, ansible_pct_node_connection="local", ansible_ssh_executable="/nowhere/ssh")


@pytest.mark.parametrize("in_data", [None, b"\0\r\n" + b"data" * 100_000])
def test_on_the_node_itself_no_ssh_is_needed(connect: Connect, tmp_path: Path, in_data: bytes | None) -> None:
    connection = on_the_node(connect)
    text = "wc -c; echo err >&2; exit 3" if in_data else "echo 0; echo err >&2; exit 3"
    assert connection.exec_command(text, in_data) == (3, b"%d\n" % len(in_data or b""), b"err\n")
    assert connection.exec_command("exit 255") == (255, b"", b"")
    (tmp_path / "here").write_bytes(in_data or b"")
    connection.put_file(str(tmp_path / "here"), str(tmp_path / "there"))
    connection.fetch_file(str(tmp_path / "there"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (in_data or b"")


def test_on_the_node_itself_there_is_no_connection_to_reset(connect: Connect, tmp_path: Path) -> None:
    on_the_node(connect, f"touch {tmp_path}/ran").reset()
    assert not (tmp_path / "ran").exists()


def test_on_the_node_itself_a_command_ends_with_its_playbook(connect: Connect, tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")

    def worker() -> None:
        pct._end_with_playbook.cache_clear()  # what the tests' process asked before it forked
        on_the_node(connect).exec_command(f"echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 7001")

    def playbook() -> None:
        task = forks.Process(target=worker)
        task.start()
        task.join()

    running = forks.Process(target=playbook)
    running.start()
    assert eventually((tmp_path / "pid").exists)
    shell = Path("/proc", (tmp_path / "pid").read_text().strip())
    assert shell.exists()
    running.kill()
    assert eventually(lambda: not shell.exists())


def eventually(happened: Callable[[], bool]) -> bool:
    """Ask until it is true, for at most 20 s."""
    for _ in range(200):
        if happened():
            return True
        time.sleep(0.1)
    return False
