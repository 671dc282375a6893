# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab starts, ends and recovers, and leaves the machine as it was. These tests want no lab to be running."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import LXC_PATH
from paths import BRIDGE, IMAGES, NODE, ROOT, RUN, run

PROJECT = Path(__file__).parents[2]
FOREIGN = "gpuops-test-foreign"


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    """Run bin/lab as a newcomer does."""
    environment = {name: os.environ[name] for name in ("HOME", "PATH", "GPUOPS_LAB_DIR") if name in os.environ}
    done = subprocess.run(
        [str(PROJECT / "bin/lab"), *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def containers() -> str:
    return lab("ssh", "kpro5", "pct", "list").stdout


def machine() -> dict[str, str]:
    """What of this machine the lab could change for good."""
    return {
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "links": "\n".join(sorted(os.listdir("/sys/class/net"))),
        "routes": run("ip", "route").stdout,
        "mounts": Path("/proc/self/mounts").read_text(),
        "names": Path("/etc/resolv.conf").read_text(),
        "firewall": run("iptables-save", check=False).stdout if shutil.which("iptables-save") else "",
        "lab processes": "\n".join(line for line in run("ps", "-eo", "args").stdout.splitlines() if str(ROOT) in line),
    }


@pytest.fixture(autouse=True)
def no_lab() -> Iterator[None]:
    lab("down")
    yield
    lab("down")


@pytest.fixture
def foreign() -> Iterator[None]:
    """A container that is not the lab's, in LXC's own folder; its root filesystem is over one of the lab's images."""
    lab("up")
    base = next(IMAGES.glob("*/base"))
    folder = Path("/var/lib/lxc", FOREIGN)
    (folder / "delta").mkdir(parents=True)
    (folder / "config").write_text(
        f"lxc.uts.name = foreign\nlxc.rootfs.path = overlay:{base}:{folder}/delta\nlxc.net.0.type = empty\n"
        "lxc.apparmor.profile = unconfined\nlxc.init.cmd = /bin/sleep 1000\n"
    )
    try:
        run("lxc-start", "-n", FOREIGN, "-d")
        yield
    finally:
        run("lxc-stop", "-n", FOREIGN, "-k", check=False)
        shutil.rmtree(folder)


def foreign_state() -> str:
    return run("lxc-info", "-n", FOREIGN, "-s", "-H").stdout.strip()


def test_the_lab_leaves_the_machine_as_it_was() -> None:
    before = machine()
    lab("up")
    during = machine()
    assert BRIDGE in during["links"]
    assert during["forwarding"] == before["forwarding"]
    assert during["firewall"] == before["firewall"]
    assert during["names"] == before["names"]
    lab("down")
    assert machine() == before
    assert not RUN.exists()


def test_up_and_down_may_be_said_twice() -> None:
    lab("up")
    first = run("lxc-info", "-P", LXC_PATH, "-n", NODE, "-p", "-H").stdout
    lab("up")
    assert run("lxc-info", "-P", LXC_PATH, "-n", NODE, "-p", "-H").stdout == first
    lab("down")
    lab("down")


def test_two_starts_at_once_make_one_lab() -> None:
    starts = [subprocess.Popen([str(PROJECT / "bin/lab"), "up"], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [start.wait() for start in starts] == [0, 0]
    assert containers().count("running") == 2


def test_the_lab_comes_back_after_a_crash_with_what_it_had_written() -> None:
    lab("up")
    lab("ssh", "kpro5", "pct", "exec", "129", "--", "touch", "/root/written")
    lab("ssh", "kpro5", "sync")
    init = run("lxc-info", "-P", LXC_PATH, "-n", NODE, "-p", "-H").stdout.strip()
    os.kill(int(init), 9)
    os.kill(int((RUN / "tinyproxy.pid").read_text()), 9)
    lab("up")
    assert containers().count("running") == 2
    lab("ssh", "kpro5", "pct", "exec", "129", "--", "test", "-e", "/root/written")


def test_a_foreign_container_is_left_alone(foreign: None) -> None:
    for command in ("up", "down", "up"):
        lab(command)
        assert foreign_state() == "RUNNING"
    assert containers().count("running") == 2
