# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of a made-up /proc, and of this test's own in the real one."""

from __future__ import annotations

import dataclasses
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import processes
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process, duration, in_cgroup, process

NOW = 100_000.0  # s since the machine started
NOBODY = 3_999_999_999  # a user id without a name


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: NOW}.__getitem__)
    return tmp_path


def make(
    proc: Path,
    pid: int = 4711,
    command: bytes = b"python\0-m\0sglang\0",
    name: str = "python",
    uid: int = NOBODY,
    age: float = 11520,
    cgroup: str = "0::/system.slice/sglang-a.service\n",
) -> None:
    """Make what process() reads, as the kernel writes it."""
    folder = proc / str(pid)
    folder.mkdir()
    started = int((NOW - age) * os.sysconf("SC_CLK_TCK"))
    (folder / "stat").write_text(f"{pid} ({name}) S {' '.join(map(str, range(4, 22)))} {started} 23 24 25\n")
    (folder / "status").write_text(f"Name:\t{name}\nPid:\t{pid}\nUid:\t1\t{uid}\t2\t3\nGid:\t4\t5\t6\t7\n")
    (folder / "cmdline").write_bytes(command)
    (folder / "cgroup").write_text(cgroup)


def test_a_process_is_described(proc: Path) -> None:
    make(proc)
    make(proc, 4712, b"other\0")
    found = process(4711, proc)
    assert found == Process(
        4711, "python -m sglang", str(NOBODY), 11520.0, ("/system.slice/sglang-a.service",), container=None
    )
    assert found.label == f"process 4711 of user {NOBODY} (python -m sglang), for 3 h 12 min"


def test_a_process_of_a_container_is_described_on_its_node(proc: Path) -> None:
    make(proc, cgroup="12:cpu:/\n0::/lxc/129/ns/system.slice/sglang-a.service\n")
    found = process(4711, proc)
    assert found and found.label == (
        f"process 4711 of user {NOBODY} (python -m sglang), for 3 h 12 min, in container 129"
    )


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("/lxc/129/ns/init.scope", 129),
        ("/lxc/129", 129),
        ("/lxc/129/system.slice/ssh.service", 129),
        ("/lxc.monitor/130", 130),
        ("/lxc/129/ns/lxc/5/x", 129),  # a container within a container
        ("/system.slice/lxc/129/x", None),
        ("/lxc/a129/x", None),
        ("/lxc/129a/x", None),
        ("/lxc.monitored/129", None),
        ("/", None),
    ],
)
def test_the_container_is_read_from_the_cgroup(proc: Path, cgroup: str, container: int | None) -> None:
    make(proc, cgroup=f"9:name=systemd:/\n0::{cgroup}\n")
    found = process(4711, proc)
    assert found and found.container == container


def test_the_owner_has_the_name_that_this_host_gives(proc: Path) -> None:
    named = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    make(proc, 1, uid=0)
    make(proc, 2, uid=named.pw_uid)
    # another machine's user of the same number
    make(proc, 3, uid=named.pw_uid, cgroup="0::/lxc/129/ns/x\n")
    make(proc, 4, uid=0, cgroup="0::/lxc/129/ns/x\n")
    owners = [found.owner for found in (process(pid, proc) for pid in (1, 2, 3, 4)) if found]
    assert owners == ["root", pwd.getpwuid(named.pw_uid).pw_name, str(named.pw_uid), "root"]


@pytest.mark.parametrize("name", ["python", "a b", "x) S 1 (y", "(", ""])
def test_the_name_of_a_program_does_not_confuse(proc: Path, name: str) -> None:
    make(proc, name=name, age=60, command=b"")
    found = process(4711, proc)
    assert found and (found.command, found.age) == (f"[{name}]", 60.0)


def test_a_process_is_not_younger_than_nothing(proc: Path) -> None:
    make(proc, age=-5)
    found = process(4711, proc)
    assert found and found.age == 0


@pytest.mark.parametrize("missing", ["stat", "status", "cmdline", "cgroup"])
def test_a_process_that_ends_meanwhile_is_gone(proc: Path, missing: str) -> None:
    make(proc)
    (proc / "4711" / missing).unlink()
    assert process(4711, proc) is None
    assert process(4712, proc) is None


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["x", "--api-key", "sk-1", "--port", "3"], "x --api-key *** --port 3"),
        (["x", "--api-key=sk-1", "--port", "3"], "x --api-key=*** --port 3"),
        (["x", "--admin-api-key", "a b", "y"], "x --admin-api-key *** y"),
        (["x", "--hf_token=a b", "y"], "x --hf_token=*** y"),
        (["x", "--api-key", "-sk--key=1", "y"], "x --api-key *** y"),
        (["x", "--ssl-keyfile-password", "p"], "x --ssl-keyfile-password ***"),
        (["x", "-Secret", "p"], "x -Secret ***"),
        (["x", "--API-KEY", "p"], "x --API-KEY ***"),
        (["x", "--api-key", "--host", "h"], "x --api-key --host h"),
        (["x", "--api-key"], "x --api-key"),
        (["x", "--skip-tokenizer-init", "--model-path", "m"], "x --skip-tokenizer-init --model-path m"),
        (["env", "HF_TOKEN=a b", "x"], "env HF_TOKEN=*** x"),
        (["sh", "-c", "x --api-key 'a b' --port 3"], "sh -c x --api-key ***"),
        (["sh", "-c", "API_KEY=a x", "y"], "sh -c API_KEY=*** y"),
        (["x", "the", "key", "of", "a", "token"], "x the key of a token"),
        (["x", "my-key", "v"], "x my-key v"),
        (["x", "-H", "Authorization: Bearer a.b@c", "u"], "x -H Authorization:*** u"),
        (["x", "-H", "X-Api-Key: a b", "u"], "x -H X-Api-Key:*** u"),
        (["sh", "-c", "x 'Bearer a@b' 1"], "sh -c x 'Bearer *** 1"),
        (["x", "redis://:p@w/1@h:6379/0", "http://u:pw@h", "y"], "x redis://:***@h:6379/0 http://u:***@h y"),
        (["x", "tcp://10.0.0.1:5000", "http://h/a:b", "u@h"], "x tcp://10.0.0.1:5000 http://h/a:b u@h"),
        (["x", "--auth=user:pw", "--db-pwd", "p", "y"], "x --auth=*** --db-pwd *** y"),
        (["x", "--credentials", "a:b"], "x --credentials ***"),
        (["python", "-c", "a = 1\nb\t= '\x1b[2J'"], "python -c a = 1 b = ' [2J'"),
        (["x", "", "y"], "x y"),
        (["größer"], "größer"),
    ],
)
def test_a_command_is_one_line_without_secrets(proc: Path, argv: list[str], shown: str) -> None:
    make(proc, command="".join(f"{word}\0" for word in argv).encode())
    found = process(4711, proc)
    assert found and found.command == shown


def test_a_command_that_is_no_text_is_no_error(proc: Path) -> None:
    make(proc, command=b"a\xff\0b\0")
    found = process(4711, proc)
    assert found and found.command == "a\ufffd b"


def test_a_long_command_is_cut_and_its_secrets_before_that(proc: Path) -> None:
    make(proc, 1, b"x\0" * 100 + b"y\0")
    make(proc, 2, b"a" * 195 + b"\0--api-key\0" + b"secret" * 100_000)
    make(proc, 3, b"python\0--key\0" + b"s" * 300 + b"\0last\0")
    make(proc, 4, b"a" * 200)
    commands = [found.command for found in (process(pid, proc) for pid in (1, 2, 3, 4)) if found]
    assert commands == ["x " * 99 + "x…", "a" * 195 + " --a…", "python --key *** last", "a" * 200]


PLAIN = Process(7, "python", "ops", None, (), None)


def test_what_is_not_known_is_left_out_of_a_message() -> None:
    assert PLAIN.label == "process 7 of user ops (python)"
    assert dataclasses.replace(PLAIN, container=5).label == "process 7 of user ops (python), in container 5"


@pytest.mark.parametrize(
    ("path", "cgroup", "inside"),
    [
        ("/system.slice/sglang-a.service", "/system.slice/sglang-a.service", True),
        ("/system.slice/sglang-a.service/worker", "/system.slice/sglang-a.service", True),
        ("/system.slice/sglang-ab.service", "/system.slice/sglang-a.service", False),
        ("/system.slice/sglang-a.service2", "/system.slice/sglang-a.service", False),
        ("/system.slice/sglang-ab", "/system.slice/sglang-a", False),
        ("/system.slice", "/system.slice/sglang-a.service", False),
        ("/lxc/129/system.slice/sglang-a.service", "/system.slice/sglang-a.service", False),
        ("/system.slice/sglang-a.service", "", False),  # a service that is not running has no cgroup
        ("", "", False),
    ],
)
def test_being_in_a_cgroup_is_exact(path: str, cgroup: str, inside: bool) -> None:
    assert dataclasses.replace(PLAIN, cgroups=(path,)).in_cgroup(cgroup) is inside
    assert dataclasses.replace(PLAIN, cgroups=("/other", path)).in_cgroup(cgroup) is inside
    assert not PLAIN.in_cgroup(cgroup)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.9, "0 s"),
        (45, "45 s"),
        (59.99, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3599, "59 min 59 s"),
        (7200, "2 h"),
        (7259, "2 h"),
        (11520, "3 h 12 min"),
        (86399, "23 h 59 min"),
        (86400, "1 day"),
        (93600, "1 day 2 h"),
        (187200, "2 days 4 h"),
        (4_000_000, "46 days 7 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def control_group(path: Path, *pids: int) -> None:
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


@pytest.mark.parametrize("hierarchy", ["", "unified", "systemd"])
def test_the_processes_of_a_cgroup_and_below_it(tmp_path: Path, hierarchy: str) -> None:
    root = tmp_path / hierarchy
    control_group(root / "system.slice/sglang-a.service", 12, 7)
    control_group(root / "system.slice/sglang-a.service/worker/one", 9, 0)  # 0: of another pid namespace
    control_group(root / "system.slice/sglang-ab.service", 13)
    control_group(root / "system.slice/sglang-a.service/threads")
    (root / "system.slice/sglang-a.service/threads/cgroup.procs").unlink()
    control_group(root / "pids/system.slice/sglang-a.service", 99)
    assert in_cgroup("/system.slice/sglang-a.service", tmp_path) == [7, 9, 12]
    assert in_cgroup("/system.slice/sglang-b.service", tmp_path) == []


@pytest.mark.parametrize("cgroup", ["", "/"])
def test_a_service_that_does_not_run_has_no_processes(tmp_path: Path, cgroup: str) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    assert in_cgroup(cgroup, tmp_path) == []
    assert in_cgroup("/system.slice/x.service", tmp_path / "none") == []


def test_a_real_process() -> None:
    own = process(os.getpid())
    assert own and own.age is not None
    assert (own.pid, own.owner) == (os.getpid(), pwd.getpwuid(os.geteuid()).pw_name)
    assert own.command.startswith(Path("/proc/self/cmdline").read_text().split("\0")[0])
    assert own.cgroups
    program = "import sys; print('ready', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, "--api-key", "sk-1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout and child.stdout.readline() == "ready\n"
            found = process(child.pid)
            assert found and found.age is not None
            assert found.command == f"{sys.executable} -c {program} --api-key ***"[: processes.SHOWN]
            assert found.age <= own.age + 0.02  # ticks of 10 ms
        finally:
            child.kill()
    assert process(child.pid) is None
