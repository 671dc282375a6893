# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations as Proxmox VE 9 gives them, against what operators ask for."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import container_config
from ansible_collections.gpuops.sglang.plugins.module_utils.container_config import compare
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from hypothesis import given
from hypothesis import strategies as st

CONFIG = {
    "arch": "amd64",
    "cores": 8,
    "description": "the first\n",
    "dev0": "/dev/ttyUSB0,gid=20",
    "dev1": "/dev/nvidia0,gid=0,mode=0666",
    "features": "keyctl=1,nesting=1",
    "hostname": "ct129",
    "memory": 65536,
    "mp0": "local-lvm:vm-129-disk-1,mp=/data,backup=1,size=100G",
    "mp1": "/srv/models,mp=/srv/models,ro=1",
    "nameserver": "192.0.2.53 192.0.2.54",
    "net0": "name=eth0,bridge=vmbr0,gw=192.0.2.1,hwaddr=BC:24:11:00:01:29,ip=192.0.2.129/24,type=veth",
    "ostype": "debian",
    "rootfs": "local-lvm:vm-129-disk-0,size=32G",
    "startup": "order=5,up=30",
    "tags": "gpu;sglang",
    "unprivileged": 1,
}


@pytest.mark.parametrize(
    "asked",
    [
        {"memory": "64G", "cores": "8", "swap": 512, "onboot": False, "protection": "no", "console": True},
        {"memory": "64 GiB", "cpulimit": "0", "hostname": "ct129", "description": "the first"},
        {"memory": "65536", "tags": ["SGLang", "gpu"], "nameserver": ["192.0.2.53", "192.0.2.54"]},
        {"tags": "sglang, gpu", "startup": {"up": 30, "order": "5"}},
        {"startup": "5,up=30", "features": {"nesting": True, "fuse": False}},
        {"net0": {"bridge": "vmbr0", "firewall": False, "hwaddr": "bc:24:11:00:01:29", "link_down": 0}},
        {"net0": "bridge=vmbr0,name=eth0", "mp1": {"volume": "/srv/models", "mp": "/srv/models", "backup": None}},
        {"rootfs": "local-lvm:32", "mp0": {"volume": "local-lvm:100", "mp": "/data", "size": "102400M"}},
        {"dev1": {"path": "/dev/nvidia0", "mode": "0666", "uid": 0, "deny_write": False}},
        {"dev0": {"mode": "0660", "path": "/dev/ttyUSB0"}, "unprivileged": True, "ostype": "debian"},
        {"swap": None, "mp7": None, "features": {"mknod": None}},
    ],
)
def test_what_proxmox_writes_in_another_way_is_no_change(asked: dict[str, Any]) -> None:
    assert not compare(CONFIG, asked)


@pytest.mark.parametrize(
    ("asked", "put"),
    [
        ({"memory": "128G", "cores": 8}, {"memory": "131072"}),
        ({"swap": 0}, {"swap": "0"}),
        ({"onboot": True}, {"onboot": "1"}),
        ({"tags": ["sglang"]}, {"tags": "sglang"}),
        ({"nameserver": "192.0.2.54, 192.0.2.53"}, {"nameserver": "192.0.2.54 192.0.2.53"}),
        ({"features": {"fuse": True}}, {"features": "keyctl=1,nesting=1,fuse=1"}),
        ({"features": {"keyctl": None}}, {"features": "nesting=1"}),
        (
            {"net0": {"ip": "dhcp", "gw": None}},
            {"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:01:29,ip=dhcp,type=veth"},
        ),
        ({"mp1": {"volume": "/tank/models", "mp": "/srv/models"}}, {"mp1": "/tank/models,mp=/srv/models"}),
        ({"mp1": {"ro": False}}, {"mp1": "/srv/models,mp=/srv/models,ro=0"}),
        ({"mp2": {"mp": "/more", "volume": "local-lvm:50"}}, {"mp2": "local-lvm:50,mp=/more"}),
        ({"dev1": {"path": "/dev/nvidia0", "gid": 44}}, {"dev1": "/dev/nvidia0,gid=44,mode=0666"}),
        ({"dev1": {"path": "/dev/nvidia1", "gid": 44}}, {"dev1": "/dev/nvidia1,gid=44"}),
        ({"startup": "order=6"}, {"startup": "6,up=30"}),
        ({"timezone": "Europe/Berlin"}, {"timezone": "Europe/Berlin"}),
    ],
)
def test_exactly_what_differs_is_sent_and_the_rest_of_a_value_is_kept(
    asked: dict[str, Any], put: dict[str, Any]
) -> None:
    assert compare(CONFIG, asked) == container_config.Changes(put=put)


def test_a_key_that_is_not_wanted_goes() -> None:
    assert compare(CONFIG, {"startup": None, "mp0": None}).delete == ("mp0", "startup")
    emptied = {"tags": [], "nameserver": "", "features": {"nesting": None, "keyctl": None}}
    assert compare(CONFIG, emptied).delete == ("features", "nameserver", "tags")
    assert not compare({}, emptied)
    assert container_config.creation(emptied) == {}


def test_a_volume_grows_where_it_is() -> None:
    changes = compare(CONFIG, {"rootfs": "local-lvm:64", "mp0": {"volume": "local-lvm:150", "mp": "/data"}})
    assert changes == container_config.Changes(resize={"rootfs": "64G", "mp0": "150G"})
    assert changes.applied(CONFIG)["rootfs"] == "local-lvm:vm-129-disk-0,size=64G"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rootfs": "local-lvm:16"}, "rootfs: local-lvm:16: it has 32G now and a volume only grows"),
        ({"rootfs": "tank:32"}, "rootfs: tank:32: it is on local-lvm:vm-129-disk-0 now: 'pct move-volume'"),
        ({"rootfs": "local-lvm:vm-129-disk-9"}, "a container keeps its root file system"),
        ({"memory": "much"}, "memory: much: it is no amount of memory: write MiB, or a unit as in 64G"),
        ({"memory": True}, "memory: True: it is no amount of memory"),
        ({"cores": "all"}, "cores: all: it is no number"),
        ({"onboot": "perhaps"}, "onboot: perhaps: it is neither 0 nor 1"),
        ({"net1": {"bridge": "vmbr0"}}, "net1: {'bridge': 'vmbr0'}: it needs name"),
        ({"hostname": ["a"]}, "hostname: ['a']: it is one text"),
        ({"unprivileged": False}, "unprivileged: False: it is 1 now, which can not be changed"),
    ],
)
def test_what_can_not_be_done_is_said_with_the_key_and_its_value(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        compare(CONFIG, asked)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


WORDS = st.text("abcdefgh", min_size=1, max_size=6)
FLAG = st.sampled_from([True, False, "1", 0, "no"])
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.integers(16, 10**6) | st.integers(1, 999).map("{}G".format),
        "swap": st.none() | st.integers(0, 10**6),
        "cores": st.none() | st.integers(1, 128),
        "cpulimit": st.integers(0, 128) | st.sampled_from(["1.5", "0"]),
        "onboot": st.none() | FLAG,
        "hostname": WORDS,
        "tags": st.none() | st.lists(WORDS),
        "nameserver": st.lists(WORDS, min_size=1),
        "features": st.dictionaries(st.sampled_from(["nesting", "keyctl", "fuse"]), st.none() | FLAG),
        "net0": st.fixed_dictionaries(
            {}, optional={"ip": WORDS, "gw": st.none() | WORDS, "firewall": FLAG, "tag": st.integers(1, 4094)}
        ),
        "net1": st.fixed_dictionaries({"name": WORDS}, optional={"bridge": WORDS, "link_down": FLAG}),
        "mp1": st.none()
        | st.fixed_dictionaries({"volume": WORDS.map("/{}".format), "mp": WORDS}, optional={"ro": FLAG}),
        "dev1": st.none()
        | st.fixed_dictionaries(
            {"path": st.sampled_from(["/dev/nvidia0", "/dev/kfd"])},
            optional={"mode": st.sampled_from(["0666", "0660"]), "gid": st.integers(0, 9), "deny_write": FLAG},
        ),
        "startup": st.none() | st.fixed_dictionaries({"order": st.integers(0, 9)}, optional={"up": st.integers(0, 9)}),
        "rootfs": st.integers(32, 99).map("local-lvm:{}".format),
    },
)  # fmt: skip


@given(ASKED)
def test_what_was_changed_is_as_asked(asked: dict[str, Any]) -> None:
    changes = compare(CONFIG, asked)
    after = changes.applied(CONFIG)
    assert not compare(after, asked)
    assert {key: value for key, value in after.items() if key not in changes.keys} == {
        key: value for key, value in CONFIG.items() if key not in changes.keys
    }
    assert set(changes.keys) <= set(asked)


@given(ASKED)
def test_what_was_made_is_as_asked(asked: dict[str, Any]) -> None:
    new = {key: value for key, value in asked.items() if key not in ("net0", "rootfs")}
    assert not compare(container_config.creation(new), new)


def test_the_diff_has_the_lines_that_change_and_no_secret() -> None:
    changes = compare(CONFIG, {"memory": "1G", "env": "TOKEN=hidden", "startup": None})
    assert container_config.lines(CONFIG, changes.keys) == "memory: 65536\nstartup: order=5,up=30\n"
    assert container_config.lines(changes.applied(CONFIG), changes.keys) == "env: (not shown)\nmemory: 1024\n"


# ---- devices


def test_a_device_keeps_its_key_and_a_new_one_gets_the_lowest_that_is_free() -> None:
    devices = [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]
    found = container_config.placed(CONFIG, devices, taken=["dev3"])
    assert {key: value["path"] for key, value in found.items()} == {
        "dev1": "/dev/nvidia0",
        "dev2": "/dev/nvidiactl",
        "dev4": "/dev/nvidia1",
    }
    after = compare(CONFIG, found).applied(CONFIG)
    assert after["dev0"] == CONFIG["dev0"]
    assert not compare(after, container_config.placed(after, devices, taken=["dev3"]))


def test_what_somebody_else_put_there_stays_unless_it_is_a_gpu_and_others_are_to_go() -> None:
    devices = [{"path": "/dev/nvidia1"}]
    assert container_config.others(CONFIG, devices, r"/dev/nvidia\d+") == ["dev1: /dev/nvidia0"]
    assert None not in container_config.placed(CONFIG, devices).values()
    only = container_config.placed(CONFIG, devices, only=r"/dev/nvidia\d+")
    assert only == {"dev1": None, "dev2": {"path": "/dev/nvidia1"}}
    assert compare(CONFIG, only).delete == ("dev1",)


# ---- raw keys

RAW = [
    ("lxc.prlimit.memlock", "unlimited"),
    ("lxc.mount.entry", "tmpfs dev/shm tmpfs size=65536m,create=dir 0 0"),
    ("lxc.cgroup2.devices.allow", "c 195:0 rwm"),
]
FILE = """\
#text: [not a section]
arch: amd64
lxc.cgroup2.devices.allow: c 195:255 rwm
lxc.mount.entry: tmpfs dev/shm tmpfs size=1g,create=dir 0 0
lxc.mount.entry: /srv/x srv/x none bind 0 0

[pve:pending]
memory: 1

[before]
lxc.prlimit.memlock: 1
"""


def test_raw_keys_come_into_the_first_section_and_take_the_place_of_the_same_target() -> None:
    text, gone, come = container_config.with_raw(FILE, RAW)
    assert gone == ["lxc.mount.entry: tmpfs dev/shm tmpfs size=1g,create=dir 0 0"]
    assert come == [f"{key}: {value}" for key, value in RAW]
    head, rest = text.split("\n[pve:pending]\n")
    assert rest == FILE.split("\n[pve:pending]\n")[1]
    assert head.splitlines() == [
        *(line for line in FILE.splitlines()[:5] if line not in gone),
        *come,
    ]
    assert container_config.with_raw(text, RAW) == (text, [], [])


@given(st.permutations(RAW), st.sampled_from(["", "arch: amd64\n", FILE, "[before]\nmemory: 1\n"]))
def test_raw_keys_that_are_there_are_left_alone(asked: list[tuple[str, str]], text: str) -> None:
    once = container_config.with_raw(text, asked)[0]
    assert container_config.with_raw(once, asked) == (once, [], [])
    assert set(filter(None, text.splitlines())) - set(once.splitlines()) <= {FILE.splitlines()[3]}
