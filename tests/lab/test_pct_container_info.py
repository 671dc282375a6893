# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on the lab's node: the running containers 129 and 130, and a configuration 192 that is never started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connections import LAB, SSH

PROJECT = Path(__file__).parents[2]
MARK = "container of the pct_container_info test"
SCRATCH = "/root/pct-container-info"
STARTS = f"{SCRATCH}/starts"
# what runs in place of pvesh; each test may put something before its last line
COUNTED = f'#!/bin/sh\necho "$2" >> {STARTS}\n'
REAL = 'exec /usr/bin/pvesh "$@"\n'
PYTHON = f'#!/bin/sh\nPATH={SCRATCH}:$PATH exec /usr/bin/python3 "$@"\n'
CONFIG = f"""\
#{MARK}
#gr%C3%BCn
arch: amd64
cores: 4
dev0: /dev/nvidia0,mode=0666,gid=44,deny-write=1
dev1: path=/dev/nvidiactl
features: nesting=1,keyctl=1
hostname: gpu
lock: backup
memory: 8192
mp0: local-lvm:vm-192-disk-1,mp=/srv/models,backup=0,size=200G
mp1: /srv/old,mp=/srv/old,ro=1
net0: name=eth0,bridge=vmbr0,firewall=1,hwaddr=BC:24:11:00:01:92,ip=192.0.2.192/24,tag=20,type=veth
onboot: 1
ostype: debian
rootfs: local-lvm:vm-192-disk-0,size=32G
swap: 0
tags: gpu;sglang
unprivileged: 1
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.prlimit.memlock: unlimited

[pve:pending]
delete: mp1
memory: 16384

[before]
arch: amd64
dev9: /dev/null
lxc.prlimit.nofile: 1
memory: 512
"""


class Answer:
    """What one ad-hoc run of the module gave."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.text = done.stdout + done.stderr
        verdict, _, result = done.stdout.partition("=> ")
        self.failed = "FAILED!" in verdict
        self.result: dict[str, Any] = json.loads(result)

    @property
    def message(self) -> str:
        assert self.failed, self.text
        message: str = self.result["msg"]
        return message

    @property
    def containers(self) -> dict[int, dict[str, Any]]:
        assert self.result["changed"] is False, self.text
        assert self.result["node"] == "kpro5"
        return {container["vmid"]: container for container in self.result["containers"]}


def on_node(command: str, stdin: str = "") -> str:
    return subprocess.run([*SSH, "kpro5", command], input=stdin, stdout=subprocess.PIPE, text=True, check=True).stdout


def ask(
    *options: str, host: str = "kpro5", user: str = "root", python: str = f"{SCRATCH}/python", **asked: Any
) -> Answer:
    variables = {
        "ansible_ssh_common_args": f"-F {LAB}/ssh/config",
        "ansible_user": user,
        "ansible_python_interpreter": python,
    }
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible"), "-i", f"{host},", "all", "-e", json.dumps(variables)),
            *("-m", "gpuops.sglang.pct_container_info", *(("-a", json.dumps(asked)) if asked else ()), *options),
        ],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        capture_output=True,
        text=True,
    )
    return Answer(done)


def starts() -> list[str]:
    """The paths that pvesh was started for since the last call."""
    return on_node(f"cat {STARTS}; rm {STARTS}").split()


def put_pvesh(*before: str) -> None:
    lines = "".join(f"{line}\n" for line in before)
    on_node(f"cat > {SCRATCH}/pvesh", COUNTED + lines + REAL)


@pytest.fixture(scope="module", autouse=True)
def _scratch() -> Iterator[None]:
    on_node(f"mkdir -p {SCRATCH} && cat > {SCRATCH}/python && touch {SCRATCH}/pvesh && chmod 755 {SCRATCH}/*", PYTHON)
    yield
    on_node(f"rm -r {SCRATCH}")


@pytest.fixture(autouse=True)
def _container() -> Iterator[None]:
    present = on_node("cat /etc/pve/lxc/192.conf 2>/dev/null || true")
    if present and MARK not in present:
        pytest.fail("the lab's node has a container 192 that is not this test's")
    on_node("cat > /etc/pve/lxc/192.conf", CONFIG)
    put_pvesh()
    yield
    on_node(f"rm -f /etc/pve/lxc/192.conf {STARTS}")


def test_a_container_as_data() -> None:
    (container,) = ask(vmids=[192], gather=["config", "pending", "addresses"]).containers.values()
    config = container.pop("config")
    assert container == {
        "vmid": 192,
        "name": "gpu",
        "status": "stopped",
        "lock": "backup",
        "template": False,
        "tags": ["gpu", "sglang"],
        "uptime": 0,
        "cpus": 4.0,
        "maxmem": 8 * 2**30,
        "maxswap": 0,
        "maxdisk": 32 * 2**30,
        "unprivileged": True,
        "devices": {
            "dev0": {"path": "/dev/nvidia0", "mode": "0666", "uid": 0, "gid": 44, "deny_write": True},
            "dev1": {"path": "/dev/nvidiactl", "mode": "0660", "uid": 0, "gid": 0, "deny_write": False},
        },
        "mounts": {
            "rootfs": {"type": "volume", "volume": "local-lvm:vm-192-disk-0", "mp": "/", "options": {"size": "32G"}},
            "mp0": {
                "type": "volume",
                "volume": "local-lvm:vm-192-disk-1",
                "mp": "/srv/models",
                "options": {"backup": False, "size": "200G"},
            },
        },
        "networks": {
            "net0": {
                "name": "eth0",
                "bridge": "vmbr0",
                "firewall": True,
                "hwaddr": "BC:24:11:00:01:92",
                "ip": "192.0.2.192/24",
                "tag": 20,
                "type": "veth",
            }
        },
        "features": {"nesting": True, "keyctl": True},
        "lxc": [["lxc.cgroup2.devices.allow", "c 195:* rwm"], ["lxc.prlimit.memlock", "unlimited"]],
        "pending": [
            {"key": "memory", "value": 8192, "pending": 16384},
            {"key": "mp1", "value": "/srv/old,mp=/srv/old,ro=1", "delete": 1},
        ],
        "addresses": [],
    }
    assert (config["memory"], config["description"], config["onboot"]) == (16384, f"{MARK}\ngrün\n", 1)
    assert config["dev0"] == "/dev/nvidia0,mode=0666,gid=44,deny-write=1"
    assert len(config["digest"]) == 40
    assert not {"mp1", "dev9"} & set(config)


def test_running_containers() -> None:
    containers = ask("--check").containers
    for vmid in (129, 130):
        container = containers[vmid]
        assert (container["status"], container["name"]) == ("running", f"ct{vmid}")
        assert container["addresses"] == [f"10.98.0.{vmid}"]
        assert container["networks"]["net0"]["ip"] == f"10.98.0.{vmid}/24"
        assert container["uptime"] > 0
        assert container["unprivileged"] is (vmid == 129)
    # pvesh was started once for all, and once for each
    lxc = "/nodes/localhost/lxc"
    assert starts() == [lxc, *(f"{lxc}/{vmid}/config" for vmid in sorted(containers))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"gather": []}, 1),
        ({"vmids": [129, 192], "gather": ["addresses"]}, 1),
        ({"vmids": [129, 192, 192], "gather": ["config"]}, 3),
        ({"vmids": [129, 192], "gather": ["config", "pending"]}, 5),
        ({"vmids": []}, 1),
    ],
    ids=["state", "addresses", "config", "config and pending", "no container"],
)
def test_nothing_is_asked_twice_or_in_vain(asked: dict[str, Any], count: int) -> None:
    containers = ask(**asked).containers
    assert len(starts()) == count
    if "vmids" in asked:
        assert list(containers) == sorted(set(asked["vmids"]))
    else:
        assert {129, 130, 192} <= set(containers)
    for container in containers.values():
        assert [kind in container for kind in ("config", "pending", "addresses")] == [
            kind in asked["gather"] for kind in ("config", "pending", "addresses")
        ]


def test_a_container_that_is_not_there_is_an_error() -> None:
    assert ask(vmids=[129, 999, 55]).message == (
        "kpro5 has no container 55, 999: see 'pct list' there, correct vmids or ask the node that has it"
    )
    assert len(starts()) == 1


@pytest.mark.slow
def test_a_container_that_goes_meanwhile_is_missed_only_if_asked_for() -> None:
    put_pvesh("case $2 in */192/config) rm -f /etc/pve/lxc/192.conf; esac")
    assert ask(vmids=[129, 192]).message.startswith("kpro5 has no container 192: ")
    on_node("cat > /etc/pve/lxc/192.conf", CONFIG)
    containers = ask().containers
    assert {129, 130} <= set(containers)
    assert 192 not in containers


@pytest.mark.slow
def test_what_proxmox_can_not_read_is_named_and_left_out() -> None:
    on_node("cat > /etc/pve/lxc/192.conf", CONFIG.replace("net0: name=", "net0: ").replace("cores: 4", "cores: all"))
    answer = ask(vmids=[192])
    (container,) = answer.containers.values()
    assert container["networks"] == {}
    assert container["config"]["net0"].startswith("eth0,bridge=vmbr0")
    warnings = " ".join(answer.text.split())
    assert "configuration of container 192 on kpro5: vm 192 - unable to parse value of 'cores'" in warnings
    assert "unable to parse value of 'net0' - value without key" in warnings


@pytest.mark.slow
def test_a_login_with_a_locale_that_the_node_has_not() -> None:
    put_pvesh('[ "$LC_ALL" = C ] || echo "perl: warning: Setting locale failed." >&2')
    on_node(f"sed -i 's/ exec/ LC_ALL=xx_XX.UTF-8 exec/' {SCRATCH}/python")
    try:
        answer = ask(vmids=[192])
    finally:
        on_node(f"sed -i 's/ LC_ALL=xx_XX.UTF-8//' {SCRATCH}/python")
    assert answer.containers[192]["config"]["description"] == f"{MARK}\ngrün\n"
    assert "WARNING" not in answer.text


@pytest.mark.slow
def test_the_cluster_file_system_is_down() -> None:
    # for this pvesh alone, because others may be at work on the node
    put_pvesh(
        "mkdir -p /etc/gpuops-lab",
        "exec unshare -m sh -c 'mount -t tmpfs none /etc/gpuops-lab && touch /etc/gpuops-lab/pmxcfs-down &&"
        ' exec /usr/bin/pvesh "$@"\' - "$@"',
    )
    assert ask().message == (
        "the cluster file system of kpro5 does not answer (Unable to load access control list: Connection refused):"
        " see 'systemctl status pve-cluster' on kpro5"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("echo Broken; exit", "pvesh get /nodes/localhost/lxc on kpro5 gave no JSON: b'Broken\\n'"),
        ("echo strange >&2; exit 3",
         "pvesh ended with code 3 on kpro5: strange; try 'pvesh get /nodes/localhost/lxc' on kpro5"),
    ],
)  # fmt: skip
def test_a_pvesh_that_fails_otherwise(line: str, message: str) -> None:
    put_pvesh(line)
    assert ask().message == message


@pytest.mark.slow
def test_users_other_than_root_are_refused() -> None:
    answer = ask(user="ops", python="/usr/bin/python3")
    assert answer.message.startswith("needs root on this host, not user id ")


@pytest.mark.slow
def test_another_machine_than_a_node_is_refused() -> None:
    answer = ask(host="rental", python="/usr/bin/python3")
    assert answer.message == "rental is no Proxmox VE node, it has no pvesh: run this on the node of the containers"


@pytest.mark.slow
def test_the_documented_samples_are_what_comes() -> None:
    documentation = subprocess.run(
        [Path(sys.executable).with_name("ansible-doc"), "--json", "gpuops.sglang.pct_container_info"],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
    )
    (module,) = json.loads(documentation.stdout).values()
    documented = module["return"]["containers"]["contains"]
    (container,) = ask(vmids=[192], gather=["config", "pending", "addresses"]).containers.values()
    assert set(container) == set(documented)
    for name, value in container.items():
        sample = documented[name]["sample"]
        assert type(value) is type(sample) or name == "lock", name
        if name in ("devices", "mounts"):
            assert {tuple(sorted(options)) for options in value.values()} == {
                tuple(sorted(options)) for options in sample.values()
            }
