# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container 191 from nothing to two GPUs, by the bootstrap playbook; the node's GPUs are fake device files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from connections import NODE, connect, on_node, variables
from playbook_runs import Run, deploy

VMID = 191
HOST = f"ct{VMID}"
CONF = f"/etc/pve/lxc/{VMID}.conf"
TEMPLATE = "gpuops-test_1_amd64.tar.zst"
UNIT = "/etc/systemd/system/gpuops-gpu-devices.service"
# makes device files as NVIDIA's does: at the first use of the driver
MODPROBE = """\
#!/bin/sh
for device in nvidia0 nvidia1 nvidiactl nvidia-uvm; do
    [ -e /dev/$device ] || mknod -m 666 /dev/$device c 1 3
done
"""
WAIT = "apply from its next start on"
MADE = (
    f"{CONF} /var/lib/lxc/{VMID} {UNIT} /etc/modules-load.d/gpuops-nvidia.conf /usr/bin/nvidia-modprobe"
    " /usr/bin/nvidia-smi /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm"
    f" /var/lib/vz/template/cache/{TEMPLATE}"
)
ASKED: dict[str, Any] = {
    "proxmox_container_template": f"local:vztmpl/{TEMPLATE}",
    "proxmox_container_rootfs": "lab:8",
    "proxmox_container_hostname": HOST,
    "proxmox_container_cores": 2,
    "proxmox_container_memory": "1G",
    "proxmox_container_networks": {
        "net0": {"name": "eth0", "bridge": "vmbr0", "ip": f"10.98.0.{VMID}/24", "gw": "10.98.0.1"}
    },
    "proxmox_container_features": {"nesting": True},
    "proxmox_container_tags": ["sglang"],
    "proxmox_container_gpus": [0],
    "proxmox_container_memlock": "",
}


@pytest.fixture(scope="module")
def node() -> Iterator[None]:
    """A node with NVIDIA's programs and a template, and without this container."""
    remove = (
        f"systemctl disable --now gpuops-gpu-devices.service; pct stop {VMID}; rm -rf {MADE};"
        " systemctl daemon-reload; systemctl reset-failed gpuops-gpu-devices.service; true"
    )
    on_node(f"({remove}) 2>/dev/null")
    on_node("mkdir -p /var/lib/vz/template/cache; touch /var/lib/vz/template/cache/" + TEMPLATE)
    on_node(f"cat > /usr/bin/nvidia-modprobe <<'END'\n{MODPROBE}END\nchmod 755 /usr/bin/nvidia-modprobe")
    on_node("printf '#!/bin/sh\\n' > /usr/bin/nvidia-smi; chmod 755 /usr/bin/nvidia-smi")
    yield
    on_node(f"({remove}) 2>/dev/null")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    container = variables(ansible_connection="gpuops.sglang.pct", ansible_pct_vmid=VMID, pct_node="kpro5", **ASKED)
    nodes = {"hosts": {"pve-kpro5": variables(ansible_host=NODE, ansible_python_interpreter="/usr/bin/python3")}}
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"proxmox_nodes": nodes, "sglang": {"hosts": {HOST: container, "ct129": {}}}})
    )
    return tmp_path / "hosts.yml"


def bootstrap(inventory: Path, *arguments: str, **extra: Any) -> Run:
    """What an operator says; the node is not of the limit."""
    return deploy("-i", str(inventory), "-l", HOST, *arguments, playbook="playbooks/bootstrap.yml", extra=extra or None)


def config() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in on_node(f"pct config {VMID}").splitlines())


def inside(command: str) -> tuple[int, str]:
    code, stdout, _ = connect(VMID).exec_command(command)
    return code, stdout.decode().strip()


def init() -> str:
    return on_node(f"lxc-info -n {VMID} -p -H").strip()


@pytest.mark.slow
def test_a_container_from_nothing_to_two_gpus(node: None, inventory: Path) -> None:
    made = bootstrap(inventory)
    assert made.status == 0, made
    found = config()
    assert (found["memory"], found["tags"], found["unprivileged"]) == ("1024", "sglang", "1")
    assert [found[f"dev{n}"] for n in range(3)] == [
        f"/dev/{name},mode=0666" for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
    ]
    assert inside("setpriv --reuid 65534 --clear-groups cat /dev/nvidia0")[0] == 0
    order = on_node(f"systemctl is-enabled gpuops-gpu-devices; grep -c Before=pve-guests.service {UNIT}").split()
    assert order == ["enabled", "1"]

    # a second GPU comes into the running container; the rest waits, and says so
    before = init()
    more = {"proxmox_container_gpus": [0, 1], "proxmox_container_features": {"nesting": True, "fuse": True}}
    changed = bootstrap(inventory, **more, proxmox_container_shm="64M")
    assert changed.status == 0, changed
    assert f"features, lxc.mount.entry dev/shm of container {VMID} {WAIT}" in " ".join(changed.output.split())
    assert init() == before
    assert inside("setpriv --reuid 65534 --clear-groups cat /dev/nvidia1")[0] == 0

    # allowed, it is restarted in an orderly way: what runs in it comes to its end
    stop = "echo stopped > /root/ended"
    inside(f"systemd-run --unit worker --property ExecStop='/bin/sh -c \"{stop}\"' --property Type=exec sleep infinity")
    restarted = bootstrap(inventory, **more, proxmox_container_shm="64M", proxmox_container_restart=True)
    assert restarted.status == 0, restarted
    assert init() != before
    assert inside("cat /root/ended; findmnt -n -o OPTIONS /dev/shm | grep -o size=65536k") == (
        0,
        "stopped\nsize=65536k",
    )
    assert WAIT not in " ".join(restarted.output.split())

    # nothing is left to do; what would be done is shown, as the lines of the configuration
    wider = {**more, "proxmox_container_memory": "2G"}
    shown = bootstrap(inventory, "--check", "--diff", **wider, proxmox_container_shm="64M")
    assert (shown.status, shown.count(HOST, "changed")) == (0, 1), shown
    assert re.findall(r"(?m)^[+-]\w.*", shown.output) == ["-memory: 1024", "+memory: 2048"]
