# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands through a real shell and a `pct` that only execs, and the sentences made of what pct, sudo and ssh say."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import pct
from ansible_collections.gpuops.sglang.plugins.module_utils.pct_programs import (
    END,
    escaped,
    fetch_script,
    put_script,
    sent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

NODE = pct.Target(vmid=129, node="kpro5", host="192.0.2.5", login="deploy", entry="strict")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> pct.Target:
    """A target whose pct runs what follows `exec 129 --` here, with the environment and the folder that pct leaves."""
    fake = tmp_path_factory.mktemp("node") / "a pct"
    fake.write_text('#!/bin/sh\n[ "$1 $2 $3" = "exec 129 --" ] || exit 2\nshift 3\ncd /\nexec env -i PATH=/bin "$@"\n')
    fake.chmod(0o755)
    return pct.Target(vmid=129, node="kpro5", host="192.0.2.5", login="root", executable=str(fake), entry="strict")


def ssh(call: pct.Call, command: str | bytes, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """What sshd does with a command line."""
    line = call.remote_command(command if isinstance(command, str) else command.decode(errors="surrogateescape"))
    assert line.isascii(), "pct decodes its arguments by the node's locale"
    done = subprocess.run(["/bin/sh", "-c", line], input=stdin, capture_output=True)
    return done.returncode, done.stdout, done.stderr


def inside(target: pct.Target, command: str | bytes, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    call = pct.Call(target)
    reply = ssh(call, command, stdin)
    assert call.failure(*reply) == ""
    return call.result(*reply)


def cksum(data: bytes) -> str:
    return subprocess.check_output(["cksum"], input=data).decode().strip()


argument = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"0"))
awkward = st.sampled_from(
    [b"", b" ", b"'", b'"', b"\\", b"$HOME", b"`id`", b"a\nb\n", b"--", b"-n", b"!x", b"*", b"~", "größe 模型".encode()]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(argument | awkward, min_size=1, max_size=6))
def test_every_argument_arrives_byte_by_byte(node: pct.Target, arguments: list[bytes]) -> None:
    quoted = b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in arguments)
    code, stdout, stderr = inside(node, b"printf '%s\\0' " + quoted)
    assert (code, stderr) == (0, b"")
    assert stdout.split(b"\0")[:-1] == arguments


@pytest.mark.parametrize("code", [0, 1, 2, 4, 126, 127, 137, 143, 253, 254, 255])
def test_the_exit_code_of_the_command_is_kept(node: pct.Target, code: int) -> None:
    assert inside(node, f"echo out; echo err >&2; exit {code}") == (code, b"out\n", b"err\n")


def test_code_255_leaves_an_unfinished_last_line_alone(node: pct.Target) -> None:
    assert inside(node, "printf 'no newline' >&2; exit 255") == (255, b"", b"no newline")


def test_code_255_is_found_before_what_a_background_process_says_later(node: pct.Target) -> None:
    call = pct.Call(node)
    code, stdout, stderr = ssh(call, "exit 255")
    assert code != 255, "ssh's own code must be free for ssh"
    assert call.result(code, stdout, stderr + b"late\n") == (255, b"", b"late\n")


def test_the_command_gets_stdin(node: pct.Target) -> None:
    data = bytes(range(256)) * 4000
    assert inside(node, "cat", data) == (0, data, b"")


def test_the_command_starts_at_home_with_a_usable_environment(node: pct.Target) -> None:
    _, stdout, _ = inside(node, "echo \"$HOME:$USER:$PATH\"; pwd; kill -l $(sh -c 'kill -PIPE $$'; echo $?)")
    home = subprocess.check_output("eval echo ~root", shell=True, text=True).strip()
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert stdout.decode().splitlines() == [f"{home}:root:{path}", home, "PIPE"]


def test_a_broken_pipe_ends_a_command_though_pct_ignores_it(node: pct.Target, tmp_path: Path) -> None:
    fake = tmp_path / "pct"
    fake.write_text(f"#!/bin/sh\ntrap '' PIPE\nexec '{node.executable}' \"$@\"\n")
    fake.chmod(0o755)
    ignoring = pct.Target(vmid=129, node="kpro5", host="192.0.2.5", executable=str(fake), entry="strict")
    _, stdout, stderr = inside(ignoring, "(yes; echo $? >&2) | head -n 1")
    assert (stdout, stderr) == (b"y\n", b"141\n")


def test_what_the_node_says_before_the_command_is_not_the_commands() -> None:
    call = pct.Call(NODE)
    noise = f"Warning: x\n{call.mark}.node\nperl: warning: Setting locale failed.\n{call.mark}.started\nmine\n"
    assert call.result(3, b"out", noise.encode()) == (3, b"out", b"mine\n")


def test_a_terminal_merges_both_outputs() -> None:
    call = pct.Call(NODE)
    screen = f"{call.mark}.node\r\n{call.mark}.started\r\r\nout\r\r\n{call.mark}.255\r\r\n".encode()
    assert call.failure(254, screen, b"Connection closed.\r\n") == ""
    assert call.result(254, screen, b"Connection closed.\r\n") == (255, b"out\r\r\n", b"Connection closed.\r\n")


def test_a_command_that_talks_like_pct_is_a_command(node: pct.Target) -> None:
    words = "container '129' not running!"
    assert inside(node, f'echo "{words}" >&2; exit 255') == (255, b"", words.encode() + b"\n")


CT = "container 129 on kpro5"
STOPPED = f"{CT} is stopped: start it with 'pct start 129' on kpro5"
NEEDS_ROOT = (
    f"{CT}: entering it needs root on kpro5 and the login is deploy:"
    " set ansible_pct_node_become to sudo, or ansible_pct_node_user to root"
)
NO_PCT = f"{CT}: kpro5 has no /usr/sbin/pct: check that 192.0.2.5 is the Proxmox VE node, or set ansible_pct_executable"
NO_SHELL = "lxc-attach: 129: 1841 No such file or directory - Failed to exec "
NO_LOCK = "can't lock file '/run/lock/lxc/pve-config-129.lock' - got timeout"
SENTENCES = [
    (2, "Configuration file 'nodes/kpro5/lxc/129.conf' does not exist",
     f"there is no {CT}: see 'pct list' on kpro5 and correct ansible_pct_vmid,"
     " or ansible_host if it moved to another node"),
    (255, "container '129' not running!", STOPPED),
    (1, "lxc-attach: 129: ../src/lxc/attach.c: get_attach_context: 405 Failed to get init pid", STOPPED),
    (4, f"trying to acquire lock...\n{NO_LOCK}",
     f"{CT}: another task on kpro5 holds its configuration: wait for it, then run again ({NO_LOCK})"),
    (255, "ipcc_send_rec[1] failed: Unknown error -1\nUnable to load access control list: Unknown error -1",
     NEEDS_ROOT),
    (255, "please run as root", NEEDS_ROOT),
    (111, "ipcc_send_rec[1] failed: Connection refused\nUnable to load access control list: Connection refused",
     f"{CT}: the cluster file system of kpro5 is down: see 'systemctl status pve-cluster' on kpro5"),
    (2, "400 Parameter verification failed.\nvmid: value must have a minimum value of 100",
     f"{CT}: pct does not accept the number 129: correct ansible_pct_vmid"),
    (127, NO_SHELL, f"{CT} has no /bin/sh that runs: try 'pct enter 129' on kpro5 ({NO_SHELL.strip()})"),
    (127, "bash: line 1: /usr/sbin/pct: No such file or directory", NO_PCT),
    (127, "sh: 1: exec: /usr/sbin/pct: not found", NO_PCT),
    (127, "zsh:1: no such file or directory: /usr/sbin/pct", NO_PCT),
    (1, "sudo: /usr/sbin/pct: command not found", NO_PCT),
    (1, "sudo: a password is required",
     f"{CT}: sudo on kpro5 does not let deploy run /usr/sbin/pct without a password:"
     " add 'deploy ALL=(root) NOPASSWD: /usr/sbin/pct' to its sudoers"),
    (255, "sudo: unable to resolve host kpro5: Name or service not known\ncontainer is STOPPED", STOPPED),
    (127, "bash: line 1: exec: sudo: not found",
     f"{CT}: kpro5 has no sudo: install it, or set ansible_pct_node_user to root"),
    (255, "CT is locked (backup)",
     f"{CT} is locked (backup): wait for the task that holds it (see the task log of kpro5),"
     " or set ansible_pct_locked to enter"),
    (255, "container is FROZEN",
     f"{CT} is suspended: wait for the backup that did it, or go on with 'pct resume 129' on kpro5"),
    (255, "container is STOPPED", STOPPED),
    (255, "container is STARTING", f"{CT} is STARTING: wait until 'pct status 129' on kpro5 says running"),
    (255, "moved to kpro6",
     f"{CT} is not there any more, it is on kpro6: set ansible_host to the address of kpro6"),
    (255, "no cluster file system",
     f"{CT}: the cluster file system of kpro5 is down: see 'systemctl status pve-cluster' on kpro5"),
    (255, "no /etc/pve",
     f"{CT}: kpro5 is no Proxmox VE node (no /etc/pve): check that 192.0.2.5 is the node of the container"),
    (127, "bash: line 1: /usr/bin/perl: No such file or directory",
     f"{CT}: kpro5 is no Proxmox VE node (bash: line 1: /usr/bin/perl: No such file or directory):"
     " check that 192.0.2.5 is the node of the container"),
    (13, "something new",
     f"{CT}: entering it ended with code 13 before the command started: something new;"
     " try 'pct exec 129 -- true' on kpro5"),
    (0, "",
     f"{CT}: entering it ended with code 0 before the command started: no output; try 'pct exec 129 -- true' on kpro5"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "said", "sentence"), SENTENCES)
def test_a_refusal_is_one_sentence_with_a_next_step(code: int, said: str, sentence: str) -> None:
    call = pct.Call(NODE)
    assert call.failure(code, b"", f"{call.mark}.node\n{said}\n".encode()) == sentence


def test_ssh_that_does_not_get_there_is_not_pct() -> None:
    said = b"debug1: x\nssh: connect to host 192.0.2.5 port 22: Connection refused\r\ndebug1: y\n"
    assert pct.Call(NODE).failure(255, b"", said) == (
        f"{CT} is out of reach, because ssh to kpro5 (192.0.2.5) failed: ssh: connect to host 192.0.2.5 port 22:"
        " Connection refused; check ansible_host, the key and 'ssh deploy@192.0.2.5'"
    )


@pytest.mark.parametrize("code", [255, -9])
def test_a_connection_that_breaks_is_not_an_exit_code(code: int) -> None:
    call = pct.Call(NODE)
    said = f"{call.mark}.node\n{call.mark}.started\nConnection to 192.0.2.5 closed by remote host.\n".encode()
    assert call.failure(code, b"", said) == (
        f"{CT}: the connection to kpro5 broke while a command ran, which kpro5 then ends: check the network and kpro5,"
        " then run again (Connection to 192.0.2.5 closed by remote host.)"
    )


def test_a_dropped_login_is_one_before_anything_was_said() -> None:
    call = pct.Call(pct.Target(129, "kpro5", "192.0.2.5"))
    dropped = (
        b"kex_exchange_identification: read: Connection reset by peer\r\nConnection reset by 192.0.2.5 port 22\r\n"
    )
    assert call.dropped(255, b"", dropped)
    assert not call.dropped(255, b"", f"{call.mark}.node\n".encode() + dropped)
    assert not call.dropped(255, b"", b"ssh: connect to host 192.0.2.5 port 22: Connection refused\r\n")


NAMES = ["a b", "it's", 'say "hi"', "two\nlines", "größe 模型", "-n", "--", "$HOME", "back\\slash", "*", "n" * 255]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", bytes(range(256)) * 999])
def test_files_go_both_ways_under_any_name(node: pct.Target, tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    assert inside(node, put_script(str(path), cksum(data), 0o600), data) == (0, b"", b"")
    assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    code, stdout, stderr = inside(node, fetch_script(str(path)))
    assert (code, stdout, sent(stderr)) == (0, data, (0o600, len(data), cksum(data)))


def test_a_relative_name_may_start_with_a_dash(node: pct.Target, tmp_path: Path) -> None:
    script = f"cd '{tmp_path}' && {{ {put_script('-n', cksum(b'x'))}; }}"
    assert inside(node, script, b"x") == (0, b"", b"")
    assert (tmp_path / "-n").read_bytes() == b"x"


def test_a_file_that_did_not_arrive_whole_leaves_the_old_one(node: pct.Target, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    code, _, stderr = inside(node, put_script(str(path), cksum(b"12345")), b"1234")
    assert (code, stderr) == (1, b"4 of 5 bytes arrived\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_folder_is_not_overwritten(node: pct.Target, tmp_path: Path) -> None:
    assert inside(node, put_script(str(tmp_path), cksum(b"x")), b"x") == (1, b"", b"it is a directory\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_cannot_be_read_is_an_error(node: pct.Target, tmp_path: Path, name: str) -> None:
    code, stdout, stderr = inside(node, fetch_script(f"{tmp_path}/{name}"))
    assert code != 0
    assert (stdout, sent(stderr)) == (b"", (0, -1, ""))


def test_sudo_goes_before_pct(tmp_path: Path, node: pct.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1 $2" = "-n --" ] || exit 9\nshift 2\necho "sudo $*" | head -n 1 >&2\nexec "$@"\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    call = pct.Call(pct.Target(vmid=129, node="kpro5", host="h", sudo=True, executable=node.executable, entry="strict"))
    code, stdout, stderr = ssh(call, "echo x")
    assert f"sudo {node.executable} exec 129 -- /bin/sh -c" in stderr.decode()
    assert call.result(code, stdout, stderr) == (0, b"x\n", b"")


def test_fish_would_take_two_backslashes_for_one() -> None:
    assert escaped("a\\\\b\\n") == r"a\0134\0134b\0134n"


def test_a_link_to_nowhere_is_not_written_to(node: pct.Target, tmp_path: Path) -> None:
    for name, target in {"loop": "loop", "lost": "none/x/y"}.items():
        (tmp_path / name).symlink_to(target)
        assert inside(node, put_script(str(tmp_path / name), cksum(b"x")), b"x") == (
            1, b"", b"it is a link to nowhere\n",
        )  # fmt: skip
        assert os.readlink(tmp_path / name) == target


FORKING = "n=0; while [ $n -lt 5000 ]; do n=$((n + 1)); sleep 60 & sleep 0.02; done"
CLEANING = "trap 'echo cleaned >\"$1\"; exit' TERM; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; while :; do sleep 60; done"


def session(leader: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(sid) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("command", [FORKING, f"trap '' TERM; {FORKING}", CLEANING, DEAF, f"sh -c '{FORKING}' & wait"])
def test_nothing_is_left_of_a_command_that_is_ended(tmp_path: Path, shell: str, command: str) -> None:
    mark = f"pct-{os.urandom(8).hex()}"
    argv = ["/bin/sh", "-c", f"{command}; :", mark, str(tmp_path / "said")]
    with subprocess.Popen(argv, start_new_session=True) as running:
        time.sleep(0.3)
        try:
            subprocess.run([shell, "-c", END, mark[4:]], timeout=60, check=False)
            assert session(running.pid) == []
        finally:
            for pid in session(running.pid):
                os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "said").exists() == (command == CLEANING)
