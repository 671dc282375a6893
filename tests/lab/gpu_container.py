# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container 191 that the tests make and remove; its node's GPUs are fake device files."""

from __future__ import annotations

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
def gpu_node() -> Iterator[None]:
    """A node with NVIDIA's programs and a template, and without this container, whatever other modules left."""
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


@pytest.fixture(scope="session")
def gpu_inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inventory")
    container = variables(ansible_connection="gpuops.sglang.pct", ansible_pct_vmid=VMID, pct_node="kpro5", **ASKED)
    nodes = {"hosts": {"pve-kpro5": variables(ansible_host=NODE, ansible_python_interpreter="/usr/bin/python3")}}
    (folder / "hosts.yml").write_text(
        yaml.safe_dump({"proxmox_nodes": nodes, "sglang": {"hosts": {HOST: container, "ct129": {}}}})
    )
    return folder / "hosts.yml"


def bootstrap(inventory: Path, *arguments: str, **extra: Any) -> Run:
    """What an operator says; the node is not of the limit."""
    asked = {f"proxmox_container_{name}": value for name, value in extra.items()}
    return deploy("-i", str(inventory), "-l", HOST, *arguments, playbook="playbooks/bootstrap.yml", extra=asked or None)


def config() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in on_node(f"pct config {VMID}").splitlines())


def inside(command: str) -> tuple[int, str]:
    code, stdout, _ = connect(VMID).exec_command(command)
    return code, stdout.decode().strip()


def init() -> str:
    return on_node(f"lxc-info -n {VMID} -p -H").strip()
