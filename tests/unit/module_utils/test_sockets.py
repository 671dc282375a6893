# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listeners of a made-up /proc, and of this test's own process in the real one."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.sockets import Listener, listeners

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: {local} {far} {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100 0 0 10 0\n"
LOCAL, ANY, LOCAL6 = "0100007F", "00000000", "00000000000000000000000001000000"


class Proc:
    """A /proc that holds only what a lookup of listeners reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "net").mkdir()
        (path / "net/tcp").write_text(HEADER)
        (path / "self").mkdir()

    def socket(self, port: int, inode: int, address: str = LOCAL, state: str = "0A") -> None:
        table = self.path / "net" / ("tcp" if len(address) == 8 else "tcp6")
        content = table.read_text() if table.exists() else HEADER
        row = ROW.format(local=f"{address}:{port:04X}", far=f"{'0' * len(address)}:0000", state=state, inode=inode)
        table.write_text(content + row)

    def process(self, pid: int, inodes: list[int], cgroup: str, command: str = "python\0-m\0sglang\0") -> None:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/0").symlink_to("/dev/null")
        for number, inode in enumerate(inodes, start=3):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        (folder / "stat").write_text(f"{pid} (python) S{' 1' * 19} 5\n")
        (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
        (folder / "cmdline").write_text(command)
        (folder / "cgroup").write_text(cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_listener_is_found_by_its_socket(proc: Proc) -> None:
    proc.socket(30000, 111)
    proc.process(7, [111], "0::/system.slice/sglang-a.service\n")
    proc.process(8, [112], "0::/system.slice/sglang-b.service\n")
    (found,) = listeners(30000, proc.path)
    assert dataclasses.replace(found, age=None) == Listener(
        7, "python -m sglang", "root", None, ("/system.slice/sglang-a.service",), None
    )
    assert found.in_cgroup("/system.slice/sglang-a.service")


def test_only_listening_sockets_of_this_port_count(proc: Proc) -> None:
    proc.socket(30000, 111, state="01")  # established
    proc.socket(30001, 112)
    proc.socket(30000, 113, state="06")  # in TIME_WAIT
    proc.process(7, [111, 112, 113], "0::/x\n")
    assert listeners(30000, proc.path) == []


@pytest.mark.parametrize("address", [LOCAL, ANY, LOCAL6, "0" * 32])
def test_every_address_counts(proc: Proc, address: str) -> None:
    proc.socket(30000, 111, address)
    proc.process(7, [111], "0::/x\n")
    assert [listener.pid for listener in listeners(30000, proc.path)] == [7]


def test_all_holders_are_found(proc: Proc) -> None:
    proc.socket(30000, 111)
    proc.socket(30000, 112, LOCAL6)
    proc.process(12, [111], "0::/a\n")
    proc.process(7, [1, 112], "0::/b\n")
    proc.process(9, [111], "0::/a\n")  # a child that has inherited it
    assert [listener.pid for listener in listeners(30000, proc.path)] == [7, 9, 12]


def test_a_holder_that_is_not_visible_is_reported_once(proc: Proc) -> None:
    proc.socket(30000, 111)
    proc.socket(30000, 112, LOCAL6)
    assert [listener.pid for listener in listeners(30000, proc.path)] == [0]
    assert not listeners(30000, proc.path)[0].in_cgroup("/")
    assert listeners(30000, proc.path)[0].label == "another namespace's process"


def test_a_process_that_ends_meanwhile_is_no_error(proc: Proc) -> None:
    proc.socket(30000, 111)
    (proc.path / "7").mkdir()  # without fd
    proc.process(8, [111], "0::/x\n")
    assert [listener.pid for listener in listeners(30000, proc.path)] == [8]
    (proc.path / "8/cmdline").unlink()
    assert listeners(30000, proc.path) == []


def test_the_cgroups_of_both_hierarchies_are_read(proc: Proc) -> None:
    proc.socket(30000, 111)
    proc.process(7, [111], "12:cpu,cpuacct:/a:b\n1:name=systemd:/system.slice/x.service\n0::/\n")
    assert listeners(30000, proc.path)[0].cgroups == ("/a:b", "/system.slice/x.service", "/")


def test_a_listener_is_named_in_a_message(proc: Proc) -> None:
    proc.socket(30000, 111)
    proc.process(7, [111], "0::/lxc/129/ns/x\n")
    (found,) = listeners(30000, proc.path)
    assert dataclasses.replace(found, age=200).label == (
        "process 7 of user root (python -m sglang), for 3 min 20 s, in container 129"
    )


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_socket_of_this_process(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError as error:
            pytest.skip(f"{address} can not be used here: {error}")
        port = server.getsockname()[1]
        assert listeners(port) == []  # bound, but not listening
        server.listen()
        (found,) = listeners(port)
        assert found.pid == os.getpid()
        assert found.command.startswith(Path("/proc/self/cmdline").read_text().split("\0")[0])
        assert found.cgroups
        assert found.label.startswith(f"process {os.getpid()} of user {found.owner} ({found.command}), for ")
        assert all(found.in_cgroup(cgroup) for cgroup in found.cgroups)
    assert listeners(port) == []
