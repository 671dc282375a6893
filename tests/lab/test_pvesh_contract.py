# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's stand-in for Proxmox's `pvesh` answers as the real one does.

Runs against the lab's node over ssh, on configurations of its own (192 and 193), which are never started.
Every expectation of what it reads was given by the sources of pve-manager 9.2.11 and pve-container 6.1.10 for these
configurations, run on the lab's node; what it changes was read in them. None describes the stand-in itself.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from test_pct_contract import Node, Result

# slow as a whole: who does not change the stand-in need not ask
pytestmark = pytest.mark.slow

MARK = "container of the pvesh contract test"
USAGE = "pvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]"
LXC = "/nodes/localhost/lxc"
WARNINGS = """\
vm 192 - unable to parse value of 'weird' - unknown setting 'weird'
vm 192 - unable to parse config: lxc.nonsense.key: 1
"""
CONFIGS = {
    "192": f"""\
#{MARK}
#gr%C3%BCn%3A text
arch: amd64
cores: 4
cpulimit: 1.5
dev0: /dev/nvidia0,mode=0666,uid=0,gid=44,deny-write=1
features: nesting=1,keyctl=yes,mount=nfs;cifs
hostname: gpu
lock: backup
memory: 8192
mp0: local-lvm:vm-192-disk-1,mp=/srv/models,backup=0,size=200G
mp1: /srv/old,mp=/srv/old,ro=1
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:01:92,ip=192.0.2.192/24,type=veth
onboot: yes
ostype: debian
rootfs: local-lvm:vm-192-disk-0,size=32G
swap: 0
tags: gpu;sglang
template: 0
unprivileged: 1
weird: thing
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.environment.runtime: A=1
lxc.nonsense.key: 1
lxc.environment.runtime: B=2
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file

[pve:pending]
delete: mp1,swap,tty
dev1: /dev/nvidiactl
memory: 16384

[before]
#a snapshot
arch: amd64
memory: 512
mp7: /srv/gone,mp=/srv/gone
lxc.prlimit.nofile: 1
""",
    "193": f"""\
#{MARK}
arch: amd64
cpulimit: 2
ostype: debian
rootfs: local:193/x.raw,size=8G
template: 1
""",
}
CURRENT = {
    "arch": "amd64",
    "cores": 4,
    "cpulimit": "1.5",
    "description": f"{MARK}\ngrün: text\n",
    "dev0": "/dev/nvidia0,mode=0666,uid=0,gid=44,deny-write=1",
    "env": "A=1\0B=2",
    "features": "nesting=1,keyctl=yes,mount=nfs;cifs",
    "hostname": "gpu",
    "lock": "backup",
    "lxc": [
        ["lxc.cgroup2.devices.allow", "c 195:* rwm"],
        ["lxc.mount.entry", "/dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file"],
    ],
    "memory": 8192,
    "mp0": "local-lvm:vm-192-disk-1,mp=/srv/models,backup=0,size=200G",
    "mp1": "/srv/old,mp=/srv/old,ro=1",
    "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:01:92,ip=192.0.2.192/24,type=veth",
    "onboot": 1,
    "ostype": "debian",
    "rootfs": "local-lvm:vm-192-disk-0,size=32G",
    "swap": 0,
    "tags": "gpu;sglang",
    "template": 0,
    "unprivileged": 1,
    "weird": "thing",
}
STOPPED = dict.fromkeys(
    ("cpu", "disk", "diskread", "diskwrite", "maxswap", "mem", "netin", "netout", "swap", "uptime"), 0
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="pvesh") as control:
        node = Node(control)
        try:
            for vmid in CONFIGS:
                found = node.sh(f"cat /etc/pve/lxc/{vmid}.conf")
                if found.status == 0 and MARK not in found.out:
                    pytest.fail(f"the lab's node has a container {vmid} that is not this test's")
                node.must(f"cat > /etc/pve/lxc/{vmid}.conf", stdin=CONFIGS[vmid].encode())
            yield node
        finally:
            node.sh("rm -f " + " ".join(f"/etc/pve/lxc/{vmid}.conf" for vmid in CONFIGS))
            node.close()


def pvesh(node: Node, *words: str) -> Result:
    return node.sh(shlex.join(["pvesh", *words]))


def answer(node: Node, path: str, *words: str) -> Any:
    result = pvesh(node, "get", path, *words, "--output-format", "json")
    assert result.status == 0, result
    assert (result.out[-1], result.out.count("\n")) == ("\n", 1)
    return json.loads(result.raw)


def same(found: Any, wanted: Any) -> bool:
    """Equal, and 1 is neither "1" nor true."""
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


# ---- what it tells


def test_the_list_has_the_state_of_all_containers(node: Node) -> None:
    listed = {entry["vmid"]: entry for entry in answer(node, LXC)}
    assert same(
        listed[192],
        {
            **STOPPED,
            "cpus": 4,
            "lock": "backup",
            "maxdisk": 32 * 2**30,
            "maxmem": 8 * 2**30,
            "name": "gpu",
            "status": "stopped",
            "tags": "gpu;sglang",
            "type": "lxc",
            "vmid": 192,
        },
    )
    # a limit of CPUs is text, and there is memory without a setting
    assert same(
        listed[193],
        {
            **STOPPED,
            "cpus": "2",
            "maxdisk": 8 * 2**30,
            "maxmem": 512 * 2**20,
            "name": "CT193",
            "status": "stopped",
            "template": 1,
            "type": "lxc",
            "vmid": 193,
        },
    )


def test_a_running_container_has_more(node: Node) -> None:
    (running,) = (entry for entry in answer(node, LXC) if entry["vmid"] == 129)
    assert (running["status"], running["name"]) == ("running", "ct129")
    assert running["pid"] == int(node.must("lxc-info -n 129 -p -H"))
    blocks, size = node.must(f"stat -f -c '%b %S' /proc/{running['pid']}/root/").split()
    assert running["maxdisk"] == int(blocks) * int(size)
    assert 0 < running["disk"] <= running["maxdisk"]
    assert 0 < running["uptime"] <= float(node.must("cat /proc/uptime").split()[0])


def test_a_configuration_without_its_pending_changes(node: Node) -> None:
    config = answer(node, f"{LXC}/192/config", "--current", "1")
    digest = node.must("sha1sum /etc/pve/lxc/192.conf").split()[0]
    assert same(config, {**CURRENT, "digest": digest})


def test_a_configuration_has_its_pending_changes_taken_in(node: Node) -> None:
    config = answer(node, f"{LXC}/192/config")
    # swap is to be deleted as well, and stays because it is 0
    wanted = {**CURRENT, "digest": config["digest"], "dev1": "/dev/nvidiactl", "memory": 16384}
    del wanted["mp1"]
    assert same(config, wanted)


def test_pending_lists_all_but_raw_keys(node: Node) -> None:
    items = {item.pop("key"): item for item in answer(node, f"{LXC}/192/pending")}
    digest = node.must("sha1sum /etc/pve/lxc/192.conf").split()[0]
    wanted: dict[str, dict[str, Any]] = {key: {"value": value} for key, value in CURRENT.items() if key != "lxc"}
    wanted["digest"] = {"value": digest}
    wanted["dev1"] = {"pending": "/dev/nvidiactl"}
    wanted["memory"]["pending"] = 16384
    wanted["mp1"]["delete"] = wanted["swap"]["delete"] = 1
    wanted["tty"] = {"delete": 2}  # a deletion of what is not there counts as forced
    assert same(items, wanted)


def test_what_can_not_be_read_is_said_on_stderr(node: Node) -> None:
    for path in (f"{LXC}/192/config", LXC):
        result = pvesh(node, "get", path, "--output-format", "json")
        assert (result.status, result.error) == (0, WARNINGS)


def test_the_node_goes_by_its_own_name_too(node: Node) -> None:
    name = node.must("hostname -s").strip()
    assert answer(node, f"/nodes/{name}/lxc/193/config") == answer(node, "nodes/localhost//lxc/193/config/")


def test_pretty_json(node: Node) -> None:
    result = pvesh(node, "get", f"{LXC}/193/config", "--output-format=json-pretty")
    assert result.out.startswith('{\n   "arch" : "amd64",\n   "cpulimit" : "2",\n   "description" : ')
    assert result.out.endswith("\n}\n")


@pytest.mark.parametrize("words", [["--nooutput", "get", LXC], ["get", LXC, "--quiet"]])
def test_it_can_be_silent(node: Node, words: list[str]) -> None:
    result = pvesh(node, *words, "--output-format", "json")
    assert (result.status, result.out) == (0, "")


def test_noproxy_stands_before_the_command_only(node: Node) -> None:
    assert pvesh(node, "--noproxy", "get", f"{LXC}/193/config", "--output-format", "json").status == 0
    behind = pvesh(node, "get", f"{LXC}/193/config", "--noproxy", "--output-format", "json")
    assert behind.status == 2
    assert behind.error.startswith(f"{INVALID}noproxy: property is not defined in schema")


# ---- what it refuses

INVALID = "400 Parameter verification failed.\n"
BAD_ID = "vmid: invalid format - value does not look like a valid VM ID\n\n"
NO_INTEGER = "vmid: type check ('integer') failed - got 'abc'\n"
FORMAT = "output-format: value 'xml' does not have a value in the enumeration 'text, json, json-pretty, yaml'\n"
JSON = ["--output-format", "json"]


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["get", f"{LXC}/999/config", *JSON], 2, "Configuration file 'nodes/kpro5/lxc/999.conf' does not exist\n"),
        (["get", f"{LXC}/999/pending", *JSON], 2, "Configuration file 'nodes/kpro5/lxc/999.conf' does not exist\n"),
        (["get", f"{LXC}/99/config", *JSON], 2, f"{INVALID}{BAD_ID}{USAGE}\n"),
        (["get", f"{LXC}/abc/config", *JSON], 2, f"{INVALID}{NO_INTEGER}{USAGE}\n"),
        (["get", f"{LXC}/193/config", "--snapshot", "no", *JSON], 255, "snapshot 'no' does not exist\n"),
        (["get", "/nodes/localhost/nope", *JSON], 1, "No 'get' handler defined for '/nodes/localhost/nope'\n"),
        (["get", f"{LXC}/193/nope", *JSON], 1, f"No 'get' handler defined for '{LXC}/193/nope'\n"),
        (["get", *JSON, LXC], 1, "No 'get' handler defined for '--output-format'\n"),
        (["get"], 2, f"400 not enough arguments\n{USAGE}\n"),
        (["get", LXC, "more"], 2, f"400 too many arguments\n{USAGE}\n"),
        (["get", LXC, "--output-format", "xml"], 2, f"{INVALID}{FORMAT}{USAGE}\n"),
        (["get", LXC, "--current", "1"], 2, f"Unknown option: current\n400 unable to parse option\n{USAGE}\n"),
    ],
)
def test_what_it_refuses(node: Node, words: list[str], status: int, error: str) -> None:
    result = pvesh(node, *words)
    assert (result.status, result.out, result.error) == (status, "", error)


@pytest.mark.parametrize(("words", "reason"), [([], "no command specified"), (["foo"], "unknown command 'pvesh foo'")])
def test_commands_that_it_does_not_have(node: Node, words: list[str], reason: str) -> None:
    result = pvesh(node, *words)
    assert result.status == 255
    assert result.error.startswith(f"ERROR: {reason}\nUSAGE: pvesh <COMMAND> [ARGS] [OPTIONS]\n")


def test_other_nodes_are_looked_up(node: Node) -> None:
    result = pvesh(node, "get", "/nodes/nosuch/lxc", *JSON)
    assert result.status != 0
    assert result.error.startswith("hostname lookup 'nosuch' failed - failed to get address info for: nosuch: ")


def test_other_users_than_root_only_learn_that_a_path_is_wrong(node: Node) -> None:
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups pvesh get"
    refused = node.sh(f"{nobody} {LXC}")
    assert refused.status == 255
    assert refused.error.startswith("ipcc_send_rec[1] failed: ")
    assert "\nUnable to load access control list: " in refused.error
    wrong = node.sh(f"{nobody} /nodes/localhost/nope")
    assert (wrong.status, wrong.error) == (1, "No 'get' handler defined for '/nodes/localhost/nope'\n")


def test_without_the_cluster_file_system_it_tells_nothing(node: Node) -> None:
    # in a file system of this process alone, because others may be at work on the node
    hidden = (
        "mkdir -p /etc/gpuops-lab; unshare -m sh -c 'mount -t tmpfs none /etc/gpuops-lab &&"
        " touch /etc/gpuops-lab/pmxcfs-down && {0}'"
    )
    lines = [f"ipcc_send_rec[{number}] failed: Connection refused\n" for number in (1, 2, 3)]
    error = "".join(lines) + "Unable to load access control list: Connection refused\n"
    for command in (f"pvesh get {LXC}", "pct list"):
        result = node.sh(hidden.format(command))
        assert (result.status, result.out, result.error) == (111, "", error)


def test_a_start_costs_what_one_of_pct_costs(node: Node) -> None:
    script = (
        "mount -t tmpfs none /etc/gpuops-lab; TIMEFORMAT='%U %S'; {{ time pvesh get {0} --quiet 2>/dev/null; }} 2>&1"
    )
    measure = script.format(LXC)
    dear = measure.replace("TIMEFORMAT", "echo 0.8 > /etc/gpuops-lab/pct-start-cost; TIMEFORMAT")
    seconds = [
        sum(map(float, node.must(f"mkdir -p /etc/gpuops-lab; unshare -m bash -c {shlex.quote(script)}").split()))
        for script in (measure, dear)
    ]
    assert seconds[0] < 0.8 <= seconds[1]


# ---- what it changes


@pytest.fixture
def stopped(node: Node) -> Iterator[None]:
    """193 as a container that can be changed."""
    node.must("cat > /etc/pve/lxc/193.conf", stdin=CONFIGS["193"].replace("template: 1\n", "").encode())
    yield
    node.must("cat > /etc/pve/lxc/193.conf", stdin=CONFIGS["193"].encode())


def test_a_change_is_made_without_a_word(node: Node, stopped: None) -> None:
    node.must("sed -i 's/local:193.x.raw/lab:base/' /etc/pve/lxc/193.conf")
    result = pvesh(node, "set", f"{LXC}/193/config", "--memory=1024", "--tags=a", "--delete=cpulimit", *JSON)
    assert (result.status, result.out, result.error) == (0, "", "")
    config = answer(node, f"{LXC}/193/config")
    assert (config["memory"], config["tags"]) == (1024, "a") and "cpulimit" not in config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dev0=/dev/nosuch,mode=0666"], "Device /dev/nosuch does not exist\n"),
        (["--memory=64G"], "400 Parameter verification failed.\nmemory: type check ('integer') failed - got '64G'\n"),
        (["--nonsense=1"], "Unknown option: nonsense\n400 unable to parse option\n"),
        (["--lxc.prlimit.memlock=1"], "Unknown option: lxc.prlimit.memlock\n400 unable to parse option\n"),
        (["--digest=" + "0" * 40, "--cores=1"],
         "detected modified configuration - file changed by other user? Try again.\n"),
    ],
    ids=["device", "unit", "unknown", "raw", "digest"],
)  # fmt: skip
def test_changes_that_it_refuses(node: Node, stopped: None, words: list[str], said: str) -> None:
    before = node.must("cat /etc/pve/lxc/193.conf")
    result = pvesh(node, "set", f"{LXC}/193/config", *words, *JSON)
    assert result.status != 0 and result.error.startswith(said), result
    assert node.must("cat /etc/pve/lxc/193.conf") == before


def test_a_locked_container_is_not_changed(node: Node) -> None:
    result = pvesh(node, "set", f"{LXC}/192/config", "--cores=1", *JSON)
    assert (result.status, result.error) == (255, f"{WARNINGS}CT is locked (backup)\n")


def test_a_task_that_fails_leaves_status_zero_and_tells_by_its_own(node: Node) -> None:
    result = pvesh(node, "create", f"{LXC}/193/status/start", *JSON)
    assert result.status == 0
    task = json.loads(result.out.splitlines()[-1])
    assert task.startswith("UPID:kpro5:") and task.endswith(":vzstart:193:root@pam:")
    status = answer(node, f"/nodes/localhost/tasks/{task}/status")
    assert (status["status"], status["exitstatus"]) == ("stopped", "you can't start a CT if it's a template")
    log = answer(node, f"/nodes/localhost/tasks/{task}/log", "--limit", "50")
    assert log[-1]["t"] == "TASK ERROR: you can't start a CT if it's a template"


def test_a_number_that_is_taken(node: Node) -> None:
    words = ["--vmid=193", "--ostemplate=local:vztmpl/x.tar.zst", "--rootfs=lab:1"]
    result = pvesh(node, "create", LXC, *words, *JSON)
    assert result.status != 0 and result.error.startswith("CT 193 already exists on node 'kpro5'"), result
