# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values as they stand in configurations of Proxmox, and answers as pvesh of Proxmox VE 9 gives them."""

from __future__ import annotations

import string
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import pct_config
from hypothesis import given
from hypothesis import strategies as st

VALUES: list[tuple[str, str, dict[str, Any]]] = [
    ("dev0", "/dev/nvidia0", {"path": "/dev/nvidia0"}),
    ("dev1", "path=/dev/nvidia-caps/nvidia-cap1,mode=0444", {"path": "/dev/nvidia-caps/nvidia-cap1", "mode": "0444"}),
    (
        "dev17",
        "/dev/dri/renderD128,deny-write=1,gid=104,mode=0660,uid=1000",
        {"path": "/dev/dri/renderD128", "deny-write": True, "gid": 104, "mode": "0660", "uid": 1000},
    ),
    ("rootfs", "local-lvm:vm-129-disk-0,size=32G", {"volume": "local-lvm:vm-129-disk-0", "size": "32G"}),
    ("rootfs", "volume=local:129/vm-129-disk-0.raw,quota=1", {"volume": "local:129/vm-129-disk-0.raw", "quota": True}),
    ("mp0", "/srv/models,mp=/srv/models,ro=1", {"volume": "/srv/models", "mp": "/srv/models", "ro": True}),
    (
        "mp1",
        "mp=/data,tank:subvol-129-disk-1,backup=no,mountoptions=noatime;nodev,replicate=0",
        {
            "volume": "tank:subvol-129-disk-1",
            "mp": "/data",
            "backup": False,
            "mountoptions": "noatime;nodev",
            "replicate": False,
        },
    ),
    (
        "net0",
        "name=eth0,bridge=vmbr0,firewall=1,gw=192.0.2.1,gw6=2001:db8::1,hwaddr=BC:24:11:00:01:29,"
        "ip=192.0.2.129/24,ip6=2001:db8::129/64,mtu=9000,rate=12.5,tag=20,trunks=3;4,type=veth",
        {
            "name": "eth0",
            "bridge": "vmbr0",
            "firewall": True,
            "gw": "192.0.2.1",
            "gw6": "2001:db8::1",
            "hwaddr": "BC:24:11:00:01:29",
            "ip": "192.0.2.129/24",
            "ip6": "2001:db8::129/64",
            "mtu": 9000,
            "rate": "12.5",
            "tag": 20,
            "trunks": "3;4",
            "type": "veth",
        },
    ),
    ("net1", "name=eth1,ip=dhcp,link_down=ON,host-managed=0",
     {"name": "eth1", "ip": "dhcp", "link_down": True, "host-managed": False}),
    ("features", "nesting=1,,keyctl=yes,mount=nfs;cifs", {"nesting": True, "keyctl": True, "mount": "nfs;cifs"}),
    ("features", "", {}),
    ("mp2", "/a,mp=/x=y", {"volume": "/a", "mp": "/x=y"}),
    ("net2", "name=eth2,of-a-later-version=1", {"name": "eth2", "of-a-later-version": "1"}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "options"), VALUES)
def test_values_of_real_configurations(key: str, text: str, options: dict[str, Any]) -> None:
    found = pct_config.parse_properties(key, text)
    assert found == options
    assert [type(value) for value in found.values()] == [type(options[name]) for name in found]


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("net0", "eth0", "'eth0' has no name"),
        ("features", "nesting", "'nesting' has no name"),
        ("net0", "name=eth0,=x", "'=x' has no name"),
        ("net0", "name=", "'name=' has no value"),
        ("net0", "name=eth0,name=eth1", "name is given twice"),
        ("mp0", "/a,/b,mp=/c", "volume is given twice"),
        ("mp0", "/a,volume=/b,mp=/c", "volume is given twice"),
        ("mp0", "/a", "it needs mp"),
        ("mp0", "", "it needs volume and mp"),
        ("mp0", "/a=b,mp=/c", "it needs volume"),
        ("dev0", "mode=0666", "it needs path"),
        ("dev0", "/dev/a,gid=render", "gid=render is no whole number"),
        ("dev0", "/dev/a,gid=-1", "gid=-1 is no whole number"),
        ("rootfs", "a:b,acl=maybe", "acl=maybe is neither 0 nor 1"),
    ],
)
def test_what_proxmox_can_not_read_is_refused(key: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        pct_config.parse_properties(key, text)
    assert str(raised.value) == problem


names = st.text(string.ascii_lowercase + "_-", min_size=1).filter(
    lambda name: name not in pct_config.BOOLEANS | pct_config.INTEGERS
)
texts = st.text(st.characters(exclude_characters=",\n", exclude_categories=("Cs",)), min_size=1)


@given(
    options=st.dictionaries(names, texts),
    first=texts.filter(lambda text: "=" not in text and text.strip()),
    data=st.data(),
)
def test_every_option_comes_back_in_any_order(options: dict[str, str], first: str, data: st.DataObject) -> None:
    options.pop("path", None)
    parts = data.draw(st.permutations([first, *(f"{name}={value}" for name, value in options.items())]))
    assert pct_config.parse_properties("dev0", ",".join(parts)) == {"path": first, **options}


@given(key=st.sampled_from(["rootfs", "mp3", "dev0", "net31", "features"]), text=st.text())
def test_any_text_is_read_or_refused(key: str, text: str) -> None:
    try:
        pct_config.parse_properties(key, text)
    except ValueError as problem:
        assert str(problem)


CONFIG = {
    "arch": "amd64",
    "cores": 8,
    "description": "grün\n",
    "dev10": "/dev/nvidia-uvm",
    "dev2": "/dev/nvidia0,mode=0666,gid=44,deny-write=1",
    "digest": "1acd5b884486594f7dbb067dc9b7f38bb3388e9a",
    "features": "nesting=1,mount=nfs",
    "hostname": "ct129",
    "lxc": [["lxc.cgroup2.devices.allow", "c 195:* rwm"], ["lxc.prlimit.memlock", "unlimited"]],
    "memory": 65536,
    "mp0": "/srv/models,mp=/srv/models,ro=1",
    "mp1": "/dev/sdb1,mp=/scratch",
    "mp10": "tank:subvol-129-disk-1,mp=/data,size=1T",
    "net0": "name=eth0,bridge=vmbr0,host-managed=1",
    "onboot": 1,
    "rootfs": "local-lvm:vm-129-disk-0,size=32G",
    "unprivileged": 1,
    "unused0": "local-lvm:vm-129-disk-9",
}


def test_a_configuration_as_data() -> None:
    facts, problems = pct_config.config_facts(CONFIG)
    assert problems == []
    assert facts == {
        "unprivileged": True,
        "devices": {
            "dev2": {"path": "/dev/nvidia0", "mode": "0666", "uid": 0, "gid": 44, "deny_write": True},
            "dev10": {"path": "/dev/nvidia-uvm", "mode": "0660", "uid": 0, "gid": 0, "deny_write": False},
        },
        "mounts": {
            "rootfs": {"type": "volume", "volume": "local-lvm:vm-129-disk-0", "mp": "/", "options": {"size": "32G"}},
            "mp0": {"type": "bind", "volume": "/srv/models", "mp": "/srv/models", "options": {"ro": True}},
            "mp1": {"type": "device", "volume": "/dev/sdb1", "mp": "/scratch", "options": {}},
            "mp10": {"type": "volume", "volume": "tank:subvol-129-disk-1", "mp": "/data", "options": {"size": "1T"}},
        },
        "networks": {"net0": {"name": "eth0", "bridge": "vmbr0", "host_managed": True}},
        "features": {"nesting": True, "mount": "nfs"},
        "lxc": [["lxc.cgroup2.devices.allow", "c 195:* rwm"], ["lxc.prlimit.memlock", "unlimited"]],
        "config": CONFIG,
    }
    assert [list(facts[kind]) for kind in ("devices", "mounts")] == [
        ["dev2", "dev10"],
        ["rootfs", "mp0", "mp1", "mp10"],
    ]


def test_a_configuration_with_nothing_in_it() -> None:
    facts, problems = pct_config.config_facts({})
    assert problems == []
    assert facts == {
        "unprivileged": False, "devices": {}, "mounts": {}, "networks": {}, "features": {}, "lxc": [], "config": {},
    }  # fmt: skip


def test_a_value_that_can_not_be_read_is_named_and_left_out() -> None:
    config = {**CONFIG, "net0": "eth0", "dev2": "mode=0666", "network": "not a key of Proxmox", "mp": "/a"}
    facts, problems = pct_config.config_facts(config)
    assert problems == ["dev2: mode=0666: it needs path", "net0: eth0: 'eth0' has no name"]
    assert (list(facts["devices"]), facts["networks"]) == (["dev10"], {})
    assert facts["config"] == config


LISTED: dict[str, Any] = {
    "cpu": 0, "cpus": 2, "disk": 28032602112, "lock": "backup", "maxdisk": 270553174016, "maxmem": 8589934592,
    "maxswap": 0, "mem": 123456, "name": "ct129", "netin": 5118, "pid": 106, "pressurecpusome": "0.21",
    "status": "running", "swap": 0, "tags": "gpu;sglang", "type": "lxc", "uptime": 1070, "vmid": 129,
}  # fmt: skip


def test_the_state_of_a_container() -> None:
    assert pct_config.state_facts(LISTED) == {
        "vmid": 129,
        "name": "ct129",
        "status": "running",
        "lock": "backup",
        "template": False,
        "tags": ["gpu", "sglang"],
        "uptime": 1070,
        "cpus": 2.0,
        "maxmem": 8589934592,
        "maxswap": 0,
        "maxdisk": 270553174016,
    }


@pytest.mark.parametrize(
    ("name", "given", "fact"),
    [
        ("vmid", "129", 129),  # before pve-container 5.0.8
        ("cpus", "1.5", 1.5),  # from cpulimit
        ("cpus", "x", None),  # from a cpulimit that is none
        ("template", 1, True),
        ("tags", "b,a; c", ["b", "a", "c"]),
        ("lock", None, None),
    ],
)
def test_forms_of_a_value_in_the_list(name: str, given: Any, fact: Any) -> None:
    assert pct_config.state_facts({**LISTED, name: given})[name] == fact


def test_what_only_some_containers_have_may_be_missing() -> None:
    bare = {name: value for name, value in LISTED.items() if name not in ("lock", "tags", "pid")}
    facts = pct_config.state_facts(bare)
    assert (facts["lock"], facts["tags"], facts["template"]) == (None, [], False)


def test_pending_are_only_changes() -> None:
    items: list[dict[str, Any]] = [
        {"key": "swap", "value": 0, "delete": 1},
        {"key": "memory", "pending": 16384, "value": 8192},
        {"key": "ostype", "value": "debian"},
        {"key": "arch", "value": "amd64", "delete": 0},
        {"key": "dev3", "pending": "/dev/z"},
        {"key": "mp9", "delete": 2},
    ]
    changes = pct_config.pending_changes(items)
    assert [item["key"] for item in changes] == ["dev3", "memory", "mp9", "swap"]
    assert changes[1] == {"key": "memory", "pending": 16384, "value": 8192}


CLUSTER_DOWN = """\
ipcc_send_rec[1] failed: Connection refused
ipcc_send_rec[2] failed: Connection refused
ipcc_send_rec[3] failed: Connection refused
Unable to load access control list: Connection refused
"""
WRONG = """\
400 Parameter verification failed.
vmid: invalid format - value does not look like a valid VM ID

pvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]
"""


@pytest.mark.parametrize(
    ("code", "stderr", "sentence"),
    [
        (111, CLUSTER_DOWN,
         "the cluster file system of kpro5 does not answer (Unable to load access control list: Connection refused):"
         " see 'systemctl status pve-cluster' on kpro5"),
        (1, "No 'get' handler defined for '/nodes/x'\n",
         "pvesh on kpro5 does not know /nodes/x: this needs Proxmox VE 8 or newer, see 'pveversion' on kpro5"),
        (2, WRONG,
         "pvesh ended with code 2 on kpro5: vmid: invalid format - value does not look like a valid VM ID;"
         " try 'pvesh get /nodes/x' on kpro5"),
        (-9, "", "pvesh ended with code -9 on kpro5: no output; try 'pvesh get /nodes/x' on kpro5"),
    ],
)  # fmt: skip
def test_errors_of_pvesh_become_one_line(code: int, stderr: str, sentence: str) -> None:
    assert pct_config.refusal("/nodes/x", code, stderr, "kpro5") == sentence
    assert not pct_config.is_gone(stderr)


def test_a_container_that_has_gone_is_told_from_other_failures() -> None:
    warning = "vm 129 - unable to parse value of 'weird' - unknown setting 'weird'\n"
    assert pct_config.is_gone(f"{warning}Configuration file 'nodes/kpro5/lxc/999.conf' does not exist\n")


def test_containers_that_are_not_there_are_named() -> None:
    assert pct_config.missing_containers([5, 999], "kpro5") == (
        "kpro5 has no container 5, 999: see 'pct list' there, correct vmids or ask the node that has it"
    )
