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
TIME = random.randrange(10_000, 99_999)  # tells the commands of this run from others on the node

# each host is the same container, entered in its own way by its own command, in which {} is a time of its own
COMMANDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plain": (["sleep", "{}"], {}),
    "deaf": (["sh", "-c", "trap '' HUP INT TERM; sleep {}; sleep {}"], {}),
    "parent": (["sh", "-c", "sh -c 'sleep {} & wait' & wait"], {}),
    "nobody": (["sleep", "{}"], {"ansible_become": True, "ansible_become_user": "nobody"}),
    "terminal": (["sleep", "{}"], {"ansible_pipelining": False, "ansible_ssh_use_tty": True}),
    "strict": (["sleep", "{}"], {"ansible_pct_entry": "strict", "ansible_pipelining": False}),
    "strict-deaf": (["sh", "-c", "trap '' HUP INT TERM; sleep {}; sleep {}"], {"ansible_pct_entry": "strict"}),
}
TIMES = {host: f"{TIME}.{number}" for number, host in enumerate(COMMANDS, start=10)}
DAEMONS = {f"{TIME}.90", f"{TIME}.91"}

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

    def daemons(self) -> Processes:
        asked = {f"sleep {time}" for time in DAEMONS}
        return {pid: words for pid, (_, words) in self.processes().items() if words in asked}

    def commands(self) -> Processes:
        """The commands of COMMANDS with all that was started for them, from the program that leads inside on."""
        table = self.processes()
        found = {pid for pid, (_, words) in table.items() if words in {f"sleep {time}" for time in TIMES.values()}}
        for pid in list(found):
            while pid in table and table[pid][1] != ENTERED:
                pid = table[pid][0]
            found.add(pid)
        found &= table.keys()
        while more := {pid for pid, (parent, _) in table.items() if parent in found} - found:
            found |= more
        return {pid: table[pid][1] for pid in found}


class Task:
    """An ansible-playbook that left daemons in a task, and in the next runs the commands of COMMANDS."""

    def __init__(self, node: Node, folder: Path, **keywords: object) -> None:
        self._node = node
        self.sockets = tempfile.mkdtemp(prefix="pct")  # the path of a socket must be short
        self.found: Processes = {}
        common = variables(
            ansible_connection="gpuops.sglang.pct",
            ansible_pct_vmid=VMID,
            ansible_pipelining=True,
            ansible_python_interpreter="/usr/bin/python3",
            ansible_control_path_dir=self.sockets,
        )
        hosts = {
            host: {**changes, "argv": [word.replace("{}", TIMES[host]) for word in argv]}
            for host, (argv, changes) in COMMANDS.items()
        }
        one, other = DAEMONS
        # the first play has one host, so that all of the second find its SSH connection
        plays = [
            {
                "hosts": "plain",
                "gather_facts": False,
                "tasks": [
                    {"command": f"sleep {one}", "async": 600, "poll": 0},
                    {"shell": f"(setsid sleep {other} </dev/null >/dev/null 2>&1 &)"},
                ],
            },
            {"hosts": "all", "gather_facts": False, "tasks": [{"command": {"argv": "{{ argv }}"}, **keywords}]},
        ]
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
        (folder / "play.yml").write_text(json.dumps(plays))
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

    def runs(self) -> bool:
        self.found = self._node.commands()
        return {f"sleep {time}" for time in TIMES.values()} <= set(self.found.values())

    def has_ended(self) -> bool:
        """Whether nothing is left of what it ran, nor anything that could have come since."""
        table = self._node.processes()
        self.found = {pid: words for pid, words in self.found.items() if table.get(pid, (0, ""))[1] == words}
        return not self.found and not self._node.commands()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="pct") as folder:
        node = Node(folder)
        yield node
        node.close()


@pytest.fixture
def begin(node: Node, tmp_path: Path) -> Iterator[Callable[..., Task]]:
    """Start the playbook and wait until all commands run; nothing of it is left after the test."""
    tasks = []

    def begin(**keywords: object) -> Task:
        task = Task(node, tmp_path, **keywords)
        tasks.append(task)
        assert eventually(task.runs, 60), task.found
        return task

    yield begin
    for task in tasks:
        task.ansible.kill()
        task.ansible.communicate()
    left = {**node.daemons(), **node.commands()}
    if left:
        node.run("kill", "-KILL", *map(str, left))


def ends(node: Node, task: Task) -> None:
    """What the task ran is gone soon, and what the task before left is not."""
    assert eventually(task.has_ended, 20), task.found
    assert {words.split()[1] for words in node.daemons().values()} == DAEMONS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_playbook_that_is_ended(node: Node, begin: Callable[..., Task], number: signal.Signals) -> None:
    task = begin()
    task.ansible.send_signal(number)
    ends(node, task)
    assert task.ansible.wait(timeout=20) != 0


def test_ctrl_c_in_a_terminal(node: Node, begin: Callable[..., Task]) -> None:
    task = begin()
    os.killpg(task.ansible.pid, signal.SIGINT)
    ends(node, task)
    assert task.ansible.wait(timeout=20) != 0


def test_a_task_that_times_out(node: Node, begin: Callable[..., Task]) -> None:
    task = begin(timeout=20)
    output, _ = task.ansible.communicate(timeout=60)
    for host in COMMANDS:
        assert f"fatal: [{host}]: FAILED!" in output, output
    ends(node, task)


def test_the_shared_connection_dies(node: Node, begin: Callable[..., Task]) -> None:
    task = begin()
    (socket,) = Path(task.sockets).iterdir()
    check = ["ssh", "-F", LAB / "ssh/config", "-o", f"ControlPath={socket}", "-O", "check", NODE]
    said = subprocess.run(check, capture_output=True, text=True, check=True).stderr
    os.kill(int(said.partition("pid=")[2].partition(")")[0]), signal.SIGKILL)
    output, _ = task.ansible.communicate(timeout=60)
    for host in COMMANDS:
        assert f"fatal: [{host}]: UNREACHABLE!" in output, output
    assert "the connection to kpro5 broke while a command ran, which kpro5 then ends" in output
    ends(node, task)
