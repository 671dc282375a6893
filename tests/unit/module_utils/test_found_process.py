# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess, found_process

SERVER = "python -m sglang.launch_server --model-path m"
ID = "0123456789ab" + "c" * 52


class Proc:
    """A /proc as the kernel writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        for kind in ("mnt", "net", "pid"):
            (root / "self/ns" / kind).symlink_to(f"{kind}:[1]")
        self.add(1, 0, "init", comm="systemd")

    def add(
        self, pid: int, parent: int, command: str = "sh", comm: str = "python", cgroup: str = "/", ignored: int = 0,
        environment: dict[str, str] | None = None, links: dict[str, str] | None = None, cpus: str = "0-7",
        uids: str = "1000\t1000\t1000\t1000",
    ) -> None:  # fmt: skip
        folder = self.root / str(pid)
        for name in ("fd", "ns", "net"):
            (folder / name).mkdir(parents=True)
        files = {
            "stat": f"{pid} ({comm}) S {parent} {' '.join(map(str, range(5, 22)))} 6000 23 24\n",
            "status": f"Uid:\t{uids}\nGid:\t1\t1001\t1\t1\nGroups:\t4 27 \nSigIgn:\t{ignored:016x}\n"
            f"Cpus_allowed_list:\t{cpus}\n",
            "cmdline": "".join(f"{word}\0" for word in command.split()),
            "environ": "".join(f"{name}={value}\0" for name, value in (environment or {}).items()),
            "cgroup": f"0::{cgroup}\n",
            "comm": f"{comm}\n",
            "limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max open files            1024                 524288               files     \n",
        }
        for name, text in files.items():
            (folder / name).write_text(text)
        usual = {"cwd": "/root", "exe": "/usr/bin/python3.11", "root": "/", "ns/net": "net:[1]", "ns/pid": "pid:[1]"}
        usual["ns/mnt"] = "mnt:[1]"
        for name, target in {**usual, **(links or {})}.items():
            (folder / name).symlink_to(target)

    def found(self, pid: int = 50) -> FoundProcess:
        one = found_process(pid, self.root)
        assert one
        return one


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def origin(proc: Proc, parents: tuple[str, ...] = (), **facts: Any) -> str:
    for place, name in enumerate(parents):
        proc.add(40 - place, 39 - place if place < len(parents) - 1 else 1, comm=name)
    proc.add(50, 40 if parents else 1, SERVER, **facts)
    return proc.found().origin


@pytest.mark.parametrize(
    ("wanted", "parents", "facts"),
    [
        ("nohup over ssh", (), {"ignored": 1, "environment": {"SSH_CONNECTION": "x"}}),
        ("nohup", (), {"ignored": 1}),
        ("nohup over ssh", ("bash", "sshd"), {"ignored": 0b1000001}),
        ("an ssh session", ("bash", "sshd-session"), {}),
        ("an ssh session", (), {"environment": {"SSH_CONNECTION": "x"}, "ignored": 0x1000}),
        ("tmux", ("bash", "tmux: server"), {"environment": {"SSH_CONNECTION": "x"}}),
        ("tmux", (), {"environment": {"TMUX": "/tmp/x,1,0"}, "ignored": 1}),
        ("screen", ("bash", "SCREEN"), {}),
        ("screen", (), {"environment": {"STY": "1.pts"}}),
        ("cron", ("sh", "cron"), {}),
        ("cron", (), {"cgroup": "/system.slice/cron.service"}),
        ("supervisord", ("supervisord",), {}),
        ("unit llm.service", (), {"cgroup": "/system.slice/llm.service"}),
        ("unit llm@0.service", ("bash",), {"cgroup": "/system.slice/system-llm.slice/llm@0.service", "ignored": 1}),
        ("unit llm.service", (), {"cgroup": "/user.slice/user-0.slice/user@0.service/app.slice/llm.service"}),
        ("nohup", (), {"cgroup": "/user.slice/user-0.slice/session-3.scope", "ignored": 1}),
        ("nohup", (), {"cgroup": "/system.slice/ssh.service", "ignored": 1}),
        ("docker 0123456789ab", (), {"cgroup": f"/system.slice/docker-{ID}.scope"}),
        ("docker 0123456789ab", (), {"cgroup": f"/docker/{ID}"}),
        ("libpod 0123456789ab", (), {"cgroup": f"/machine.slice/libpod-{ID}.scope/container"}),
        ("kubepods 0123456789ab", (), {"cgroup": f"/kubepods/besteffort/pod1/{ID}"}),
        ("another container", (), {"links": {"ns/pid": "pid:[2]"}, "cgroup": "/system.slice/llm.service"}),
        ("another container", (), {"links": {"root": "/tmp"}}),
        ("a shell or program that has ended", (), {}),
        ("a shell or program that has ended", ("bash",), {}),
    ],
)
def test_how_a_server_was_started(proc: Proc, wanted: str, parents: tuple[str, ...], facts: dict[str, Any]) -> None:
    assert origin(proc, parents, **facts) == wanted


def test_a_host_that_is_a_container_is_none_of_its_own_containers(proc: Proc) -> None:
    (proc.root / "1/cgroup").write_text(f"0::/docker/{ID}\n")
    assert origin(proc, ignored=1, cgroup=f"/docker/{ID}") == "nohup"


def test_what_is_read(proc: Proc) -> None:
    links = {"fd/1": "/root/sglang.log", "fd/2": "/root/sglang.log", "fd/0": "/dev/null", "ns/net": "net:[2]"}
    proc.add(50, 1, SERVER, environment={"A": "b=c", "SGLANG_X": ""}, links=links, cpus="0-3")
    one = proc.found()
    assert (one.pid, one.started, one.argv, one.command.words) == (
        50,
        6000,
        tuple(SERVER.split()),
        ("--model-path", "m"),
    )
    assert (one.user, one.folder, one.environment) == (
        User(1000, 1001, (4, 27)),
        Path("/root"),
        {"A": "b=c", "SGLANG_X": ""},
    )
    assert (one.logs, one.own_network, one.bound_to) == (("/root/sglang.log",), True, "0-3")
    assert one.limits == {"Max open files": "1024"}
    assert (one.path("x"), one.path("/y"), one.path("../z")) == (Path("/root/x"), Path("/y"), Path("/z"))


def test_what_is_no_server_or_has_ended_is_nothing(proc: Proc) -> None:
    proc.add(50, 1, "python my_sglang_proxy.py")
    proc.add(51, 1, SERVER)
    (proc.root / "51/environ").unlink()
    assert [found_process(pid, proc.root) for pid in (50, 51, 52)] == [None] * 3


def test_what_this_host_may_not_look_into_is_not_taken_for_nothing(proc: Proc) -> None:
    proc.add(50, 1, SERVER)
    (proc.root / "50/environ").unlink()
    (proc.root / "50/environ").mkdir()  # can not be read, and is there
    with pytest.raises(OSError):
        found_process(50, proc.root)


LISTENING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_where_a_server_and_what_it_has_started_listen(proc: Proc) -> None:
    proc.add(50, 1, SERVER, links={"fd/5": "socket:[700]", "fd/6": "socket:[701]"})
    proc.add(60, 50, links={"fd/5": "socket:[702]"})
    proc.add(61, 1, links={"fd/5": "socket:[703]"})
    rows = [("0100007F:7530", "0A", 700), ("0100007F:0001", "01", 701), ("00000000:7531", "0A", 702)]
    rows += [("00000000:7532", "0A", 703)]
    (proc.root / "50/net/tcp").write_text(
        LISTENING + "".join(f" 0: {at} 0:0 {state} 0:0 0:0 0 0 0 {inode} 1\n" for at, state, inode in rows)
    )
    six = "00000000000000000000000001000000"
    (proc.root / "50/net/tcp6").write_text(LISTENING + f" 0: {six}:7533 0:0 0A 0:0 0:0 0 0 0 702 1\n")
    one = proc.found()
    assert one.listens == (("0.0.0.0", 30001), ("127.0.0.1", 30000), ("::1", 30003))
    assert one.family == (50, 60)


OWN = "\t".join([str(os.getuid())] * 4)


def interpreters(folder: Path) -> Path:
    """Make two venvs beside an interpreter of the host; return that."""
    exe = folder / "usr/python3.11"
    exe.parent.mkdir()
    exe.touch()
    for name in ("a", "b"):
        (folder / name / "bin").mkdir(parents=True)
        (folder / name / "bin/python").symlink_to(exe)
    (folder / "other").touch()
    return exe


@pytest.mark.parametrize(
    ("written", "cwd", "environment", "found"),
    [
        ("{0}/a/bin/python", "", {}, "a/bin/python"),
        ("a/bin/python", "", {}, "a/bin/python"),
        ("../b/bin/python", "/a", {}, "b/bin/python"),
        ("a/bin/python", "/usr", {"PWD": "{0}"}, "a/bin/python"),
        ("python", "", {"PATH": "/nonexistent:{0}/b/bin:{0}/a/bin"}, "b/bin/python"),
        ("python", "/a", {"PATH": "bin"}, "a/bin/python"),
        ("python", "", {"VIRTUAL_ENV": "{0}/a"}, "a/bin/python"),
        ("python", "", {}, "usr/python3.11"),
        ("{0}/gone/bin/python", "", {}, "usr/python3.11"),
    ],
)
def test_the_interpreter_is_that_of_the_venv(
    proc: Proc, tmp_path: Path, written: str, cwd: str, environment: dict[str, str], found: str
) -> None:
    exe = interpreters(tmp_path)
    environment = {name: value.format(tmp_path) for name, value in environment.items()}
    links = {"exe": str(exe), "cwd": f"{tmp_path}{cwd}"}
    proc.add(
        50, 1, f"{written.format(tmp_path)} -m sglang.launch_server", environment=environment, links=links, uids=OWN
    )
    assert proc.found().python == tmp_path / found


@pytest.mark.parametrize("folder", ["a", "a/bin", "a/lib/python3.11/site-packages", "usr"])
def test_an_interpreter_that_others_can_change_is_not_run(proc: Proc, tmp_path: Path, folder: str) -> None:
    exe = interpreters(tmp_path)
    (tmp_path / "a/lib/python3.11/site-packages").mkdir(parents=True)
    words = f"{tmp_path}/a/bin/python -m sglang.launch_server"
    proc.add(50, 1, words, links={"exe": str(exe)}, uids=OWN)
    assert proc.found().python == tmp_path / "a/bin/python"
    (tmp_path / folder).chmod(0o777)
    assert proc.found().python is None


def test_an_interpreter_of_the_same_name_is_not_run(proc: Proc, tmp_path: Path) -> None:
    exe = interpreters(tmp_path)
    (tmp_path / "a/bin/python").unlink()
    (tmp_path / "a/bin/python").touch()
    words = f"{tmp_path}/a/bin/python -m sglang.launch_server"
    proc.add(50, 1, words, links={"exe": str(exe)}, uids=OWN)
    assert proc.found().python == exe


def test_what_has_mounts_of_its_own_is_not_run(proc: Proc, tmp_path: Path) -> None:
    exe = interpreters(tmp_path)
    words = f"{tmp_path}/a/bin/python -m sglang.launch_server"
    cgroup = "/system.slice/llm.service"
    proc.add(50, 1, words, links={"exe": str(exe), "ns/mnt": "mnt:[2]"}, uids=OWN, cgroup=cgroup)
    one = proc.found()
    assert (one.own_files, one.container, one.origin, one.python) == (True, None, "unit llm.service", None)


def test_a_server_under_another_name(proc: Proc, tmp_path: Path) -> None:
    exe = interpreters(tmp_path)
    proc.add(50, 1, "llm -m sglang.launch_server --tp 2", links={"exe": str(exe)}, uids=OWN)
    one = proc.found()
    assert (one.argv[0], one.command.python, one.command.words) == ("llm", str(exe), ("--tp", "2"))


def test_an_interpreter_that_is_gone_or_of_a_container_is_not_run(proc: Proc) -> None:
    proc.add(50, 1, SERVER, links={"exe": "/usr/bin/python3.11 (deleted)"})
    proc.add(51, 1, SERVER, cgroup=f"/docker/{ID}")
    assert [proc.found(pid).python for pid in (50, 51)] == [None, None]
    assert proc.found(51).container == "docker 0123456789ab"


def test_what_runs_with_the_rights_of_another_is_not_run_again(proc: Proc, tmp_path: Path) -> None:
    exe = interpreters(tmp_path)
    words = f"{tmp_path}/a/bin/python -m sglang.launch_server"
    proc.add(50, 1, words, links={"exe": str(exe)}, uids="1000\t0\t0\t0")  # a program with the set-user-ID bit
    proc.add(51, 1, words, links={"exe": "/usr/bin/su"})
    (tmp_path / "c").symlink_to("/usr/bin/env")
    proc.add(52, 1, f"{tmp_path}/c/../a/bin/python -m sglang.launch_server", links={"exe": "/usr/bin/env"})
    assert [proc.found(pid).python for pid in (50, 51, 52)] == [None, None, None]


def test_this_process_is_none() -> None:
    assert found_process(os.getpid()) is None
