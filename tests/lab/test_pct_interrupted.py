# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A task that ends before its command does: the command ends too, whoever it runs as, and daemons go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connections import LAB, NODE, variables
from playbook_runs import PLAYBOOK, PROJECT, environment, eventually

pytestmark = pytest.mark.slow

VMID = 129
ENTERED = f"gpuops.sglang.pct {VMID}"  # what the program on the node that leads inside calls itself
SECONDS = random.randrange(10_000, 99_999)  # tells the commands of this run from others on the node
BEFORE = [f"sleep {SECONDS}.90", f"sleep {SECONDS}.91"]  # what goes on after the task that started it
ELSEWHERE = f"sleep {SECONDS}.92"  # on the node itself

# each host is the same container, entered in its own way by its own command, in which {} is a sleep of its own
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("{}", {}),
    "deaf": ("sh -c 'trap \"\" HUP INT TERM; {}; {}'", {}),
    "parent": ("sh -c '(sh -c \"{} & wait\") & wait'", {}),
    "nobody": ("{}", {"ansible_become": True, "ansible_become_user": "nobody"}),
    "terminal": ("{}", {"ansible_pipelining": False, "ansible_ssh_use_tty": True}),
    "strict": ("{}", {"ansible_pct_entry": "strict", "ansible_pipelining": False}),
    "strict-deaf": ("sh -c 'trap \"\" HUP INT TERM; {}; {}'", {"ansible_pct_entry": "strict"}),
}
SLEEPS = {host: f"sleep {SECONDS}.{number}" for number, host in enumerate(COMMANDS, start=10)}
HOSTS: dict[str, dict[str, Any]] = {
    host: {**changes, "words": command.replace("{}", SLEEPS[host])} for host, (command, changes) in COMMANDS.items()
}
# the last worker that is started, which Ansible leaves alone when it is killed
HOSTS["node"] = {"ansible_connection": "ansible.builtin.ssh", "words": ELSEWHERE}
DAEMONS = [
    {"command": BEFORE[0], "async": 600, "poll": 0},
    {"shell": f"(setsid {BEFORE[1]} </dev/null >/dev/null 2>&1 &)"},
]

Task = dict[str, Any]
Processes = dict[int, str]  # pid -> words


class Node:
    """The lab's node, asked through one SSH connection."""

    def __init__(self, folder: str) -> None:
        self._ssh = ["ssh", "-F", str(LAB / "ssh/config"), "-o", f"ControlPath={folder}/node"]
        subprocess.run([*self._ssh, "-fNM", "kpro5"], check=True)

    def close(self) -> None:
        subprocess.run([*self._ssh, "-O", "exit", "kpro5"], check=True, capture_output=True)

    def run(self, *argv: str) -> str:
        return subprocess.run([*self._ssh, "kpro5", *argv], stdout=subprocess.PIPE, check=True, text=True).stdout

    def processes(self) -> dict[int, tuple[int, str]]:
        """All of the node and its containers: pid -> pid of the parent, words."""
        lines = [line.split(None, 2) for line in self.run("ps", "-ewwo", "pid=,ppid=,args=").splitlines()]
        return {int(pid): (int(parent), words) for pid, parent, words in lines}

    def running(self, *asked: str) -> Processes:
        """The processes with exactly one of these words."""
        return {pid: words for pid, (_, words) in self.processes().items() if words in asked}

    def commands(self) -> Processes:
        """The commands of COMMANDS with all that was started for them, from the program that leads inside on."""
        table = self.processes()
        found = {pid for pid, (_, words) in table.items() if words in SLEEPS.values()}
        for pid in list(found):
            while pid in table and table[pid][1] != ENTERED:
                pid = table[pid][0]
            found.add(pid)
        found &= table.keys()
        while more := {pid for pid, (parent, _) in table.items() if parent in found} - found:
            found |= more
        return {pid: table[pid][1] for pid in found}


class Playbook:
    """A running ansible-playbook."""

    def __init__(self, folder: Path, plays: list[tuple[str, list[Task]]], **changes: object) -> None:
        self.sockets = Path(tempfile.mkdtemp(prefix="pct"))  # the path of a socket must be short
        common = variables(
            ansible_connection="gpuops.sglang.pct",
            ansible_pct_vmid=VMID,
            ansible_pipelining=True,
            ansible_python_interpreter="/usr/bin/python3",
            ansible_control_path_dir=str(self.sockets),
            **changes,
        )
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": HOSTS, "vars": common}}))
        written = [{"hosts": hosts, "gather_facts": False, "tasks": tasks} for hosts, tasks in plays]
        (folder / "play.yml").write_text(json.dumps(written))
        self.ansible = subprocess.Popen(
            [PLAYBOOK, "-i", folder / "hosts.yml", folder / "play.yml"],
            cwd=PROJECT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end_connection(self) -> None:
        """Kill the ssh process that the tasks share."""
        (socket,) = self.sockets.iterdir()
        check = ["ssh", "-F", LAB / "ssh/config", "-o", f"ControlPath={socket}", "-O", "check", NODE]
        said = subprocess.run(check, capture_output=True, text=True, check=True).stderr
        os.kill(int(said.partition("pid=")[2].partition(")")[0]), signal.SIGKILL)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="pct") as folder:
        node = Node(folder)
        yield node
        node.close()


@pytest.fixture
def begin(node: Node, tmp_path: Path) -> Iterator[Callable[..., Playbook]]:
    """Start a playbook; nothing of it is left after the test."""
    playbooks = []

    def begin(*plays: tuple[str, list[Task]], **changes: object) -> Playbook:
        playbooks.append(Playbook(tmp_path, list(plays), **changes))
        return playbooks[-1]

    yield begin
    for playbook in playbooks:
        playbook.ansible.kill()
        playbook.ansible.wait()
    left = {**node.running(*BEFORE, ELSEWHERE), **node.commands()}
    if left:
        node.run("kill", "-KILL", *map(str, left), "||", ":")  # some may have ended by now


class Commands:
    """The commands of HOSTS while they run in the second play of a playbook, whose first left daemons."""

    def __init__(self, node: Node, begin: Callable[..., Playbook], **keywords: object) -> None:
        self._node = node
        self.found: Processes = {}
        # the first play has one host, so that all of the second find its SSH connection
        task = {"command": "{{ words }}", **keywords}
        self.playbook = begin(("plain", DAEMONS), ("all", [task]))
        self.ansible = self.playbook.ansible
        assert eventually(self._run, 60), self.found

    def _run(self) -> bool:
        self.found = self._node.commands()
        return {*SLEEPS.values()} <= {*self.found.values()} and len(self._node.running(ELSEWHERE)) == 1

    def _have_ended(self) -> bool:
        table = self._node.processes()
        self.found = {pid: words for pid, words in self.found.items() if table.get(pid, (0, ""))[1] == words}
        return not self.found and not self._node.commands()

    def end(self) -> None:
        """Nothing is left of them soon, while what the task before left goes on."""
        assert eventually(self._have_ended, 20), self.found
        assert {*self._node.running(*BEFORE).values()} == {*BEFORE}


@pytest.fixture
def commands(node: Node, begin: Callable[..., Playbook]) -> Callable[..., Commands]:
    return lambda **keywords: Commands(node, begin, **keywords)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_playbook_that_is_ended(commands: Callable[..., Commands], number: signal.Signals) -> None:
    running = commands()
    running.ansible.send_signal(number)
    running.end()
    assert running.ansible.wait(timeout=20) != 0


def test_ctrl_c_in_a_terminal(commands: Callable[..., Commands]) -> None:
    running = commands()
    os.killpg(running.ansible.pid, signal.SIGINT)
    running.end()
    assert running.ansible.wait(timeout=20) != 0


def test_a_task_that_times_out(commands: Callable[..., Commands]) -> None:
    running = commands(timeout=20)
    output, _ = running.ansible.communicate(timeout=60)
    for host in COMMANDS:
        assert f"fatal: [{host}]: FAILED!" in output, output
    running.end()


def test_an_item_that_times_out_does_not_run_beside_the_next(node: Node, begin: Callable[..., Playbook]) -> None:
    first, second = SLEEPS["plain"], SLEEPS["deaf"]
    loop = [{"words": first, "limit": 12}, {"words": second, "limit": 600}]
    begin(("plain", [{"command": "{{ item.words }}", "timeout": "{{ item.limit }}", "loop": loop}]))
    assert eventually(lambda: first in node.commands().values(), 60)
    assert eventually(lambda: second in node.commands().values(), 60)
    assert eventually(lambda: not node.running(first), 20)
    assert node.running(second)


def test_the_shared_connection_dies(commands: Callable[..., Commands]) -> None:
    running = commands()
    running.playbook.end_connection()
    output, _ = running.ansible.communicate(timeout=60)
    for host in COMMANDS:
        assert f"fatal: [{host}]: UNREACHABLE!" in output, output
    assert "the connection to kpro5 broke while a command ran, which kpro5 then ends" in " ".join(output.split())
    running.end()


def test_the_end_of_a_lost_try_is_not_that_of_the_next(node: Node, begin: Callable[..., Playbook]) -> None:
    asked = SLEEPS["plain"]
    playbook = begin(("plain", [{"command": asked}]), ansible_ssh_retries=1)
    assert eventually(lambda: bool(node.running(asked)), 60)
    (lost,) = node.running(asked)
    (entered,) = (pid for pid, words in node.commands().items() if words == ENTERED)
    session = str(node.processes()[entered][0])
    # the node does not hear of the loss until the next try runs, as when a network fails
    node.run("kill", "-STOP", session)
    try:
        playbook.end_connection()
        assert eventually(lambda: len(node.running(asked)) == 2, 60)
    finally:
        node.run("kill", "-CONT", session)
    assert eventually(lambda: entered not in node.processes(), 20)
    assert lost not in node.running(asked)
    assert len(node.running(asked)) == 1
