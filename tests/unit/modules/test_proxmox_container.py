# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module against a fake Proxmox VE API with its real schema: over HTTPS with a token, by a pvesh as root@pam."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import container, container_node, proxmox_api
from ansible_collections.gpuops.sglang.plugins.modules import proxmox_container
from conftest import call_module
from fakepve import FakePve

SECRET = "planted-0a1b2c3d-4e5f"
TOKEN = "ops@pve!deploy"
TEMPLATE = "local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst"
VM_RIGHTS = ("VM.Audit", "VM.Allocate", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Options", "VM.Config.Disk",
             "VM.Config.Network", "VM.PowerMgmt")  # fmt: skip
NEW = {
    "template": TEMPLATE,
    "rootfs": "local-lvm:32",
    "hostname": "ct129",
    "cores": 8,
    "memory": "64G",
    "swap": "0",
    "features": {"nesting": True},
    "networks": {"net0": {"name": "eth0", "bridge": "vmbr0", "ip": "192.0.2.129/24", "gw": "192.0.2.1"}},
    "mounts": {"mp0": {"volume": "/srv/models", "mp": "/srv/models", "ro": True}},
    "tags": ["SGLang", "gpu"],
    "onboot": True,
    "startup": "order=5",
}
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def cluster(fakepve: FakePve) -> FakePve:
    """Nodes kpro5 and kpro6, a template, and a token with every right but those that no token has."""
    fakepve.nodes.clear()
    fakepve.add_node("kpro5")
    fakepve.add_node("kpro6")
    fakepve.storages["local"].setdefault("volumes", {})[TEMPLATE.partition(":")[2]] = {
        "content": "vztmpl",
        "format": "tzst",
        "size": 1,
    }
    fakepve.apitokens[TOKEN] = SECRET
    fakepve.grant(TOKEN, "/", "Sys.Audit", "Datastore.Audit", "Datastore.AllocateSpace", "Datastore.AllocateTemplate",
                  "SDN.Use", *VM_RIGHTS)  # fmt: skip
    return fakepve


@pytest.fixture
def api(cluster: FakePve, fakepve_cafile: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the module over HTTPS."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(proxmox_api, "POLL", 0.01)

    def run(**asked: Any) -> dict[str, Any]:
        given = {"vmid": 129, "via": "api", "node": "kpro5", "url": cluster.url, "user": "ops@pve", "ca_path":
                 fakepve_cafile, "token_id": "deploy", "token_secret": SECRET, **asked}  # fmt: skip
        result = call_module(proxmox_container, given)
        assert SECRET not in str({**result, "invocation": None})
        return result

    return run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's file system: two GPUs of NVIDIA, whose devices are here, and a container's raw keys."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "ttyUSB0"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    (tmp_path / "etc/pve/lxc").mkdir(parents=True)
    monkeypatch.setattr(container_node, "ROOT", tmp_path)
    return tmp_path


class FakePvesh:
    """A pvesh that asks the fake API as root@pam and answers as the real one: JSON last, refusals on stderr."""

    def __init__(self, cluster: FakePve) -> None:
        self._url = cluster.url
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)
        self._headers: dict[str, str] = {}
        login = self._ask("POST", "/access/ticket", {"username": "root@pam", "password": "secret"})
        self._headers = {
            "Cookie": f"PVEAuthCookie={login['ticket']}",
            "CSRFPreventionToken": login["CSRFPreventionToken"],
        }
        self.calls: list[str] = []

    def _ask(self, method: str, path: str, values: dict[str, str]) -> Any:
        form = urllib.parse.urlencode(values)
        body = form.encode() if method in ("POST", "PUT") else None
        url = f"{self._url}/api2/json{path}" + ("" if body is not None or not form else f"?{form}")
        with self._opener.open(urllib.request.Request(url, body, self._headers, method=method)) as answer:
            return json.load(answer)["data"]

    def run(self, argv: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert environment["LC_ALL"] == "C.UTF-8"
        program, verb, path, *options = argv
        assert program.endswith("/pvesh") and options.pop() == "--output-format=json"
        self.calls.append(f"{verb} {path}")
        values = dict(option[2:].split("=", 1) for option in options)
        method = {"get": "GET", "create": "POST", "set": "PUT", "delete": "DELETE"}[verb]
        try:
            answer = self._ask(method, path.replace("/nodes/localhost", "/nodes/kpro5"), values)
        except urllib.error.HTTPError as error:
            told = json.load(error)
            errors = "".join(f"{key}: {why}\n" for key, why in (told.get("errors") or {}).items())
            said = f"{'400 ' if error.code == 400 else ''}{told['message'].strip()}\n{errors}pvesh {verb} <api_path>\n"
            return subprocess.CompletedProcess(argv, 2, "", said)
        task = "what a task says\n" if str(answer).startswith("UPID") else ""
        return subprocess.CompletedProcess(argv, 0, "" if answer is None else f"{task}{json.dumps(answer)}\n", "")


@pytest.fixture
def pvesh(cluster: FakePve, root: Path, monkeypatch: pytest.MonkeyPatch) -> FakePvesh:
    fake = FakePvesh(cluster)
    script = root / "bin/pvesh"
    script.parent.mkdir()
    script.touch(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(proxmox_api, "run", fake.run)
    return fake


@pytest.fixture
def node(pvesh: FakePvesh, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the module on the node."""
    monkeypatch.setattr(proxmox_container, "require_root", lambda: None)
    monkeypatch.setattr(proxmox_api, "POLL", 0.01)
    monkeypatch.setattr(proxmox_api.os, "uname", lambda: os.uname_result(("Linux", "kpro5.lan", "", "", "")))

    def run(**asked: Any) -> dict[str, Any]:
        return call_module(proxmox_container, {"vmid": 129, **asked})

    return run


def effective(root: Path, pid: int | None, memlock: str, shm: str = "12345678k") -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "limits").write_text(f"Max locked memory         {memlock}              {memlock}              bytes\n")
    (folder / "mounts").write_text(f"udev /dev tmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,size={shm} 0 0\n")


# ---- both ways give the same


@pytest.mark.parametrize("way", ["api", "node"])
def test_a_container_is_made_started_and_then_left_alone(
    way: str, cluster: FakePve, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(way)
    asked = NEW if way == "node" else {**NEW, "mounts": {"mp0": {"volume": "local-lvm:100", "mp": "/srv/models"}}}
    tried = run(**asked, _ansible_check_mode=True)
    assert (tried["changed"], tried["created"], tried["started"]) == (True, True, True)
    assert cluster.ct(129) is None

    made = run(**asked)
    assert (made["changed"], made["created"], made["started"], made["restarted"]) == (True, True, True, False)
    config = cluster.ct(129).config
    assert cluster.ct(129).status == "running"
    assert config["memory"] == 65536 and config["swap"] == 0 and config["unprivileged"] == 1
    assert config["features"] == "nesting=1" and config["rootfs"].endswith("size=32G")
    assert made["diff"] == tried["diff"]
    assert "memory: 65536\n" in made["diff"]["after"] and made["diff"]["before"] == ""

    again = run(**asked)
    assert (again["changed"], again["changes"], again["diff"]) == (False, [], {"before": "", "after": ""})

    changed = run(**{**asked, "memory": "128G", "tags": ["sglang", "gpu"]}, _ansible_check_mode=True)
    assert changed["changes"] == ["memory"]
    assert changed["diff"] == {"before": "memory: 65536\n", "after": "memory: 131072\n"}
    assert cluster.ct(129).config["memory"] == 65536
    assert run(**{**asked, "memory": "128G"})["changes"] == ["memory"]
    assert cluster.ct(129).config["memory"] == 131072


@pytest.mark.parametrize("way", ["api", "node"])
def test_a_running_container_is_restarted_only_where_that_is_allowed(
    way: str, cluster: FakePve, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(way)
    cluster.add_ct(129, "ct129", node="kpro5", status="running", config={"features": "keyctl=1", "cores": 2})
    ct = cluster.ct(129)
    before = ct.started_at
    asked = {"features": {"nesting": True}, "cores": 4}
    first = run(**asked)
    assert (first["changes"], first["restart_pending"], first["restarted"]) == (
        ["cores", "features"],
        ["features"],
        False,
    )
    assert ct.config["cores"] == 4 and ct.config["features"] == "keyctl=1" and ct.started_at == before
    second = run(**asked)
    assert (second["changed"], second["restart_pending"]) == (False, ["features"])
    tried = run(**asked, restart=True, _ansible_check_mode=True)
    assert (tried["restarted"], ct.started_at) == (True, before)
    third = run(**asked, restart=True)
    assert (third["changed"], third["restarted"], third["restart_pending"]) == (True, True, [])
    assert ct.config["features"] == "keyctl=1,nesting=1" and ct.started_at > before
    assert run(**asked, restart=True)["changed"] is False


@pytest.mark.parametrize("way", ["api", "node"])
def test_what_stands_in_the_way_is_one_line_with_the_next_step(
    way: str, cluster: FakePve, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(way)

    def message(said: str, **asked: Any) -> None:
        result = run(**asked)
        assert result["failed"] and result["changed"] is False and result["changes"] == []
        assert said in result["msg"], result["msg"]
        assert "\n" not in result["msg"]

    message("there is no container 129 on kpro5: set proxmox_container_template", cores=2)
    missing = "local:vztmpl/debian-13.tar.zst"
    message(f"there is no template {missing} on kpro5, there are {TEMPLATE}: correct", **{**NEW, "template": missing})
    message("'debian' is no template: write STORAGE:vztmpl/FILE", **{**NEW, "template": "debian"})
    message("there is no storage nope: see 'pvesm status' on kpro5", **{**NEW, "rootfs": "nope:8", "mounts": {}})
    message("there is no storage nope", **{**NEW, "template": "nope:vztmpl/x.tar.zst"})
    cluster.add_vm(129, "win", node="kpro6")
    message("129 is the virtual machine win on kpro6 already: choose another number", **NEW)
    cluster.add_ct(130, "llm", node="kpro6")
    message("130 is the container llm on kpro6 already", **NEW, vmid=130)
    cluster.add_ct(131, "locked", node="kpro5", lock="backup")
    message("container 131 on kpro5 is locked (backup): wait for the task", vmid=131, cores=4)
    message("container 131 on kpro5 is locked (backup)", vmid=131, cores=4, _ansible_check_mode=True)
    cluster.add_ct(132, "ha", node="kpro5").ha_state = "stopped"
    message("container 132 on kpro5 is managed by HA", vmid=132)
    cluster.add_ct(133, "base", node="kpro5", template=True)
    message("container 133 on kpro5 is a template", vmid=133)
    cluster.add_ct(134, "broken", node="kpro5").start_error = "startup for container '134' failed"
    message("starting it failed: startup for container '134' failed", vmid=134)
    cluster.add_ct(135, "odd", node="kpro5", status="running")
    message(
        "Proxmox on kpro5 does not know this (nonsense: property is not defined", vmid=135, options={"nonsense": "1"}
    )


@pytest.mark.parametrize("way", ["api", "node"])
def test_a_template_is_downloaded_where_a_url_is_given(
    way: str, cluster: FakePve, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(way)
    cluster.storages["local"]["volumes"].clear()
    mounts: dict[str, Any] = {"mounts": {}}
    if way == "api":
        cluster.grant(TOKEN, "/", "Sys.Audit", "Sys.Modify", "Datastore.Audit", "Datastore.AllocateSpace",
                      "Datastore.AllocateTemplate", "SDN.Use", *VM_RIGHTS)  # fmt: skip
    url = "https://mirror.example.lan/debian.tar.zst"
    made = run(**{**NEW, **mounts}, template_url=url, template_checksum="sha512:" + "0" * 128)
    assert made.get("created"), made
    (download,) = (task for task in cluster.tasklog if task["type"] == "download")
    assert TEMPLATE.partition(":")[2] in cluster.storages["local"]["volumes"], download


@pytest.mark.parametrize("way", ["api", "node"])
def test_a_container_that_does_not_stop_in_time_keeps_running(
    way: str, cluster: FakePve, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(way)
    cluster.add_ct(129, "ct129", node="kpro5", status="running")
    cluster.ct(129).shutdown_secs = 100
    result = run(features={"nesting": True}, restart=True, shutdown_timeout=9)
    assert "did not stop within 9 s (container did not stop" in result["msg"]
    assert (result["changed"], result["changes"], cluster.ct(129).status) == (True, ["features"], "running")


# ---- a token


def test_no_token_may_pass_devices_and_the_message_says_what_may(cluster: FakePve, api: Run) -> None:
    cluster.add_ct(129, "ct129", node="kpro5")
    for asked in ({"gpus": [0]}, {"memlock": "unlimited"}):
        assert "Proxmox lets no API token set them: set proxmox_container_via to node" in api(**asked)["msg"]
    for asked in ({"options": {"dev0": "/dev/nvidia0"}}, {"features": {"fuse": True}}, {"mounts": NEW["mounts"]}):
        message = api(**asked)["msg"]
        assert "root@pam alone and to no API token" in message and "via to node" in message, message


def test_a_token_that_lacks_a_right_or_is_wrong(cluster: FakePve, api: Run) -> None:
    cluster.add_ct(129, "ct129", node="kpro5")
    cluster.grant("ops@pve!look", "/", "VM.Audit")
    cluster.apitokens["ops@pve!look"] = SECRET
    refused = api(token_id="look", cores=8)["msg"]
    assert refused.startswith("container 129 on kpro5: the user or the token") and "VM." in refused
    wrong = api(token_secret="other")["msg"]
    assert wrong.startswith(f"{cluster.url} refused ops@pve!deploy (401")


# ---- the node


def test_gpus_get_devices_that_everybody_in_the_container_may_use(
    cluster: FakePve, node: Run, pvesh: FakePvesh
) -> None:
    cluster.add_ct(129, "ct129", node="kpro5", status="running", config={"dev0": "/dev/ttyUSB0,gid=20"})
    ct = cluster.ct(129)
    result = node(gpus=[1])
    assert result["changes"] == ["dev1", "dev2", "dev3", "dev4"]
    paths = ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [ct.config[f"dev{n}"] for n in range(1, 5)] == [f"{path},mode=0666" for path in paths]
    assert ct.config["dev0"] == "/dev/ttyUSB0,gid=20"
    pvesh.calls.clear()
    assert node(gpus=[1])["changed"] is False
    assert pvesh.calls == ["get /nodes/localhost/lxc/129/status/current", "get /nodes/localhost/lxc/129/pending"]

    by_number = node(gpus=[1], gpu_group="991")
    assert by_number["restart_pending"] == ["dev1", "dev2", "dev3", "dev4"]
    assert by_number["diff"]["before"].splitlines()[0] == "dev1: /dev/nvidia1,mode=0666"
    assert by_number["diff"]["after"].splitlines()[0] == "dev1: /dev/nvidia1,mode=0660,gid=991"


def test_another_gpu_is_named_and_taken_out_only_on_request(cluster: FakePve, node: Run) -> None:
    cluster.add_ct(129, "ct129", node="kpro5", config={"dev7": "/dev/nvidia0"})
    assert "also has dev7: /dev/nvidia0" in node(gpus=[1], state="present")["warnings"][0]
    assert cluster.ct(129).config["dev7"] == "/dev/nvidia0"
    only = node(gpus=[1], gpus_only=True, state="present")
    assert (only["changes"], only["warnings"]) == (["dev7"], [])
    assert "dev7" not in cluster.ct(129).config


def test_a_node_without_the_device_names_what_makes_it(cluster: FakePve, node: Run, root: Path) -> None:
    cluster.add_ct(129, "ct129", node="kpro5")
    (root / "dev/nvidia-uvm").unlink()
    message = node(gpus=[0, 5])["msg"]
    assert "kpro5 has no /dev/nvidia5, /dev/nvidia-uvm, without which the container would not start" in message
    assert "'nvidia-modprobe -u -c 0' makes it (module nvidia_uvm)" in message
    assert "dev0" not in cluster.ct(129).config


def test_numbers_of_gpus_are_those_of_nvidia_smi_and_mig_has_its_capabilities(
    cluster: FakePve, node: Run, root: Path
) -> None:
    cluster.add_ct(129, "ct129", node="kpro5")
    for address, minor in (("0000:01:00.0", 1), ("0000:c1:00.0", 0)):
        folder = root / f"proc/driver/nvidia/gpus/{address}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA A100\nDevice Minor: \t {minor}\n")
    for name, minor in (("gi3", 30), ("gi3/ci0", 31)):
        folder = root / f"proc/driver/nvidia/capabilities/gpu1/mig/{name}"
        folder.mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
        (root / "dev/nvidia-caps").mkdir(exist_ok=True)
        (root / f"dev/nvidia-caps/nvidia-cap{minor}").symlink_to("/dev/null")
    result = node(mig=[{"gpu": 0, "instance": 3}], state="present")
    assert result["changed"], result
    config = cluster.ct(129).config
    assert sorted(value.partition(",")[0] for key, value in config.items() if key.startswith("dev")) == [
        "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
        "/dev/nvidia1", "/dev/nvidiactl",
    ]  # fmt: skip
    assert "no MIG instance gpu1/mig/gi9" in node(mig=[{"gpu": 0, "instance": 9}])["msg"]
    assert "kpro5 has no GPU 2, it has 2 (0 to 1)" in node(gpus=[2])["msg"]


def test_amd_devices_belong_to_the_group_of_the_container(
    cluster: FakePve, node: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (root / "dev").iterdir():
        path.unlink()
    for number, (cores, minor) in enumerate(((0, 0), (304, 129), (304, 128))):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count {cores}\ndrm_render_minor {minor}\n")
    (root / "dev/dri").mkdir()
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        (root / "dev" / name).symlink_to("/dev/null")
    monkeypatch.setattr(container_node.InContainer, "run", lambda _self, argv, **_: Finished(argv))
    cluster.add_ct(129, "ct129", node="kpro5")
    result = node(gpus=[0])
    assert (result["started"], result["changes"], result["restart_pending"]) == (True, ["dev0", "dev1"], [])
    config = cluster.ct(129).config
    assert [config["dev0"], config["dev1"]] == ["/dev/kfd,mode=0660,gid=104", "/dev/dri/renderD129,mode=0660,gid=104"]
    absent = node(gpus=[0], gpu_group="nobodys")["msg"]
    assert "container 129 on kpro5 has no group nobodys" in absent and "groupadd" in absent


class Finished:
    """What `getent group NAME` gives in a container of Debian."""

    def __init__(self, argv: list[str]) -> None:
        found = argv == ["getent", "group", "render"]
        self.code, self.stdout = (0, b"render:x:104:\n") if found else (2, b"")


def test_raw_keys_are_written_to_the_file_and_wait_for_the_next_start(cluster: FakePve, node: Run, root: Path) -> None:
    cluster.add_ct(129, "ct129", node="kpro5", status="running")
    cluster.ct(129).pid = 777
    file = root / "etc/pve/lxc/129.conf"
    file.write_text("arch: amd64\nlxc.cap.drop: sys_rawio\n")
    effective(root, 777, "8388608")
    asked = {"memlock": "unlimited", "shm": "64G"}
    shm = "lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,size=65536m,create=dir 0 0"
    tried = node(**asked, _ansible_check_mode=True)
    assert tried["diff"]["after"] == f"lxc.prlimit.memlock: unlimited\n{shm}\n"
    assert file.read_text() == "arch: amd64\nlxc.cap.drop: sys_rawio\n"
    result = node(**asked)
    assert result["changes"] == ["lxc.mount.entry", "lxc.prlimit.memlock"]
    assert result["restart_pending"] == ["lxc.mount.entry dev/shm", "lxc.prlimit.memlock"]
    assert file.read_text() == f"arch: amd64\nlxc.cap.drop: sys_rawio\nlxc.prlimit.memlock: unlimited\n{shm}\n"
    effective(root, 777, "unlimited", "67108864k")
    again = node(**asked)
    assert (again["changed"], again["restart_pending"]) == (False, [])


def test_before_devn_gpus_are_raw_keys(cluster: FakePve, node: Run, root: Path) -> None:
    cluster.version = "8.0.4"
    cluster.add_ct(129, "ct129", node="kpro5")
    (root / "etc/pve/lxc/129.conf").write_text("arch: amd64\n")
    result = node(gpus=[0], state="present")
    assert result["changes"] == ["lxc.cgroup2.devices.allow", "lxc.mount.entry"]
    lines = (root / "etc/pve/lxc/129.conf").read_text().splitlines()
    assert "lxc.cgroup2.devices.allow: c 1:3 rwm" in lines  # those of /dev/null
    assert "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file" in lines
    assert "dev0" not in cluster.ct(129).config
    assert node(gpus=[0], state="present")["changed"] is False


def test_a_refusal_does_not_hide_what_was_changed_before(
    cluster: FakePve, node: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_ct(129, "ct129", node="kpro5", config={"rootfs": "local-lvm:vm-129-disk-0,size=8G"})
    put = proxmox_api.Pvesh.call

    def late(self: proxmox_api.Pvesh, verb: str, path: str, values: dict[str, Any]) -> Any:
        if path.endswith("/config") and verb == "set":
            put(self, verb, path, values)
            raise proxmox_api.Failed("Device /dev/kfd does not exist")
        return put(self, verb, path, values)

    monkeypatch.setattr(container.Node, "finish", lambda *_: None)
    monkeypatch.setattr(proxmox_api.Pvesh, "call", late)
    result = node(cores=6, rootfs="local-lvm:16", state="present")
    assert (result["changed"], result["changes"]) == (True, ["cores"])
    assert "kpro5 has no /dev/kfd: 'modprobe amdgpu' makes it; changed nevertheless: cores" in result["msg"]


def test_a_volume_grows(cluster: FakePve, node: Run) -> None:
    cluster.add_ct(129, "ct129", node="kpro5", config={"rootfs": "local-lvm:vm-129-disk-0,size=8G"})
    result = node(rootfs="local-lvm:16", state="present")
    assert result["changes"] == ["rootfs"], result
    assert cluster.ct(129).config["rootfs"] == "local-lvm:vm-129-disk-0,size=16G"
    assert node(rootfs="local-lvm:16", state="present")["changed"] is False
