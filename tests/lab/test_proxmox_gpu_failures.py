# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be wrong with the GPU of a real container: each is produced, and told with its own cause and remedy.

What NVIDIA's kernel modules show in /proc and /sys is files that are mounted there; library and nvidia-smi stand in.
What is wrong with the driver of a machine or node is in test_nvidia_driver.py, what a token may not in the unit tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from connections import connect, on_node
from gpu_container import HOST, VMID, bootstrap, config, inside
from playbook_runs import deploy

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from gpu_hosts import INFORMATION, MAJORS, VERSION, library  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.slow
SMI = Path(__file__).parents[2] / "molecule/lab/standins/cuda/nvidia-smi"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MISMATCH = """#!/bin/sh
echo 'Failed to initialize NVML: Driver/library version mismatch'
echo 'NVML library version: 580.95'
exit 18
"""
GIVE = "'pct set CTID --devN {},mode=0666', and restart the container"
UVM = "on the node of this container, see that it is there ('nvidia-modprobe -u -c 0'; with nvidia_uvm in"
# name -> what breaks it, what cuInit then returns, what is told
BROKEN = {
    "uvm absent after boot": (
        "umount /dev/nvidia-uvm && rm /dev/nvidia-uvm", 999,
        [f"/dev/nvidia-uvm is missing: {UVM}", "cuInit", "put right first what is told before this"],
    ),
    "majors changed": (
        # not sed -i: a file that is mounted stays the same file
        "sed 's/  1 nvidia-uvm/511 nvidia-uvm/' /proc/devices > /root/devices;"
        " cat /root/devices > /srv/nvidia/devices", 999,
        ["/dev/nvidia-uvm has major 1, but its driver nvidia-uvm has 511 now", GIVE.format("/dev/nvidia-uvm"),
         "cuInit"],
    ),
    "a file in place of a device": (
        "umount /dev/nvidiactl && rm /dev/nvidiactl && touch /dev/nvidiactl", 100,
        ["/dev/nvidiactl is no device but a file", GIVE.format("/dev/nvidiactl"), "cuInit"],
    ),
    "versions differ after the node's upgrade": (
        f"for lib in cuda nvidia-ml; do mv {LIBRARIES}/lib$lib.so.580.159.04"
        f" {LIBRARIES}/lib$lib.so.580.95.05; ln -sf lib$lib.so.580.95.05 {LIBRARIES}/lib$lib.so.1; done; ldconfig;"
        " cp /srv/nvidia/mismatch /usr/bin/nvidia-smi", 803,
        ["x86_64-linux-gnu/libcuda.so.1), but the kernel module is 580.159.04: in this container,"
         " install the libraries of exactly 580.159.04, without a kernel module",
         "libnvidia-ml.so.1 is 580.95.05", "cuInit"],
    ),
    "libraries missing": (
        f"rm {LIBRARIES}/libcuda.so* {LIBRARIES}/libnvidia-ml.so*; ldconfig", 0,
        ["libcuda.so.1 is not found: in this container, install the driver's libraries of exactly 580.159.04",
         "libnvidia-ml.so.1 is not found"],
    ),
    "CUDA fails while nvidia-smi works": (
        "true", 999,
        ["returns 999 CUDA_ERROR_UNKNOWN",
         "on the node of this container, 'rmmod nvidia_uvm' and 'modprobe nvidia_uvm'"],
    ),
    "nouveau has the GPUs": (
        "mv /srv/nvidia/module/nvidia /srv/nvidia/module/nouveau; rm -r /srv/nvidia/proc/nvidia;"
        " printf '#!/bin/sh\\nexit 9\\n' > /usr/bin/nvidia-smi", 100,
        ["the module nouveau is loaded, beside which NVIDIA's can not be: on the node of this container, write"
         " 'blacklist nouveau' into /etc/modprobe.d/nouveau.conf", "cuInit"],
    ),
}  # fmt: skip


class Box:
    """The container, and the node's NVIDIA kernel modules as it sees them."""

    def __init__(self, inventory: Path, folder: Path, cuda: Path) -> None:
        self.inventory, self.folder, self.cuda = inventory, folder, cuda

    def put(self, text: str | Path, path: str) -> None:
        file = self.folder / "put"
        file.write_bytes(text.read_bytes() if isinstance(text, Path) else text.encode())
        connect(VMID).put_file(str(file), path)

    def must(self, command: str) -> str:
        code, output = inside(command)
        assert code == 0, output
        return output

    def sound(self) -> None:
        """Make the GPU as it should be, also after a start of the container."""
        unmount = "; ".join(f"umount {path}" for path in ("/proc/driver", "/proc/devices", "/sys/module"))
        self.must(f"({unmount}) 2>/dev/null; rm -rf /srv/nvidia; id sglang >/dev/null 2>&1 || useradd --system sglang")
        self.must(
            "mkdir -p /srv/nvidia/proc/nvidia/gpus/0000:01:00.0 /srv/nvidia/module/nvidia /srv/nvidia/module/nvidia_uvm"
        )
        self.put(VERSION, "/srv/nvidia/proc/nvidia/version")
        self.put(INFORMATION, "/srv/nvidia/proc/nvidia/gpus/0000:01:00.0/information")
        self.put(MAJORS, "/srv/nvidia/devices")
        self.put(MISMATCH, "/srv/nvidia/mismatch")
        self.put(self.cuda, f"{LIBRARIES}/libcuda.so.580.159.04")
        self.put(SMI, "/usr/bin/nvidia-smi")
        self.must(
            f"cd {LIBRARIES} && rm -f libcuda.so.580.95.05 libnvidia-ml.so.580.95.05"
            " && touch libnvidia-ml.so.580.159.04 && ln -sf libcuda.so.580.159.04 libcuda.so.1"
            " && ln -sf libnvidia-ml.so.580.159.04 libnvidia-ml.so.1 && ldconfig"
        )
        self.must("chmod 755 /usr/bin/nvidia-smi /srv/nvidia/mismatch")
        self.must("mount --bind /srv/nvidia/proc /proc/driver && mount --bind /srv/nvidia/devices /proc/devices")
        self.must("mount --bind /srv/nvidia/module /sys/module")

    def restart(self) -> None:
        on_node(f"pct stop {VMID} && pct start {VMID}")
        self.must("systemctl is-system-running --wait || true")
        self.sound()

    def facts(self, result: int = 0, apps: str = "/none") -> dict[str, Any]:
        """Return what gpu_info tells an operator of the server's user; cuInit returns `result`."""
        found = self.folder / "facts.json"
        variables = {"STANDIN_CUINIT": str(result), "STANDIN_GPU_APPS": apps}
        asked = {
            "gpuops.sglang.gpu_info": {"user": "sglang"}, "register": "found", "environment": variables,
        }  # fmt: skip
        kept = {
            "ansible.builtin.copy": {"content": "{{ found }}", "dest": str(found), "mode": "0600"},
            "delegate_to": "localhost",
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        }
        play = [{"hosts": HOST, "gather_facts": False, "tasks": [asked, kept]}]
        (self.folder / "facts.yml").write_text(yaml.safe_dump(play))
        run = deploy("-i", str(self.inventory), playbook=str(self.folder / "facts.yml"))
        assert run.status == 0, run
        told: dict[str, Any] = json.loads(found.read_text())
        return told


@pytest.fixture(scope="module")
def made(gpu_node: None, gpu_inventory: Path, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:  # noqa: F811
    run = bootstrap(gpu_inventory, shm="64M", restart=True)
    assert run.status == 0, run
    yield Box(gpu_inventory, tmp_path_factory.mktemp("box"), library)
    on_node("rm -f /dev/kfd")


@pytest.fixture
def box(made: Box) -> Box:
    if any(inside(f"test -c /dev/{name}")[0] for name in ("nvidia0", "nvidiactl", "nvidia-uvm")):
        made.restart()
    made.sound()
    return made


def told(facts: dict[str, Any], expected: list[str]) -> None:
    """The expected words are in the faults in this order, and each fault has some."""
    faults = "\n".join(facts["faults"])
    places = [faults.find(words) for words in expected]
    assert -1 not in places and places == sorted(places), (expected, faults)
    assert all(any(words in fault for words in expected) for fault in facts["faults"]), faults


def test_nothing_is_wrong(box: Box) -> None:
    facts = box.facts()
    assert facts["faults"] == []
    assert (facts["place"], facts["tried_by"], len(facts["gpus"])) == (
        {"kind": "container", "manager": "lxc"},
        "sglang",
        1,
    )


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told_with_its_remedy(box: Box, name: str) -> None:
    breaks, result, expected = BROKEN[name]
    box.must(breaks)
    told(box.facts(result), expected)


def test_little_shared_and_locked_memory_is_told_where_gpus_talk(box: Box) -> None:
    """A unit that asks for more gets 8 MiB without a word, which is LXC's own doing."""
    asks = "systemd-run --quiet --pipe --property=LimitMEMLOCK=infinity grep 'Max locked memory' /proc/self/limits"
    assert box.must(asks).split()[3:5] == ["8388608", "8388608"]
    box.put("1, 0, 1", "/srv/nvidia/apps")
    shm, locked = box.facts(apps="/srv/nvidia/apps")["remarks"]
    assert shm.startswith(
        "/dev/shm has 64 MiB, which is little for NCCL between 2 GPUs: mount it with 1024 MiB or more"
    )
    assert locked.startswith("services of this container may lock 8 MiB, whatever their LimitMEMLOCK asks")
    assert "write 'lxc.prlimit.memlock: unlimited' into /etc/pve/lxc/CTID.conf, and restart it" in locked


def test_a_device_that_the_servers_user_may_not_open(box: Box) -> None:
    on_node(f"pct set {VMID} --dev0 /dev/nvidia0")  # for root alone, as Proxmox has it by default
    box.restart()
    told(box.facts(100), ["/dev/nvidia0 can not be opened by 'sglang', EACCES (mode 0660, owner root", "cuInit"])
    run = bootstrap(box.inventory, restart=True)
    assert run.status == 0, run
    box.sound()
    assert box.facts()["faults"] == []


def test_a_container_does_not_start_without_a_device_and_what_makes_it_is_asked(box: Box) -> None:
    on_node(f"pct stop {VMID} && rm /dev/nvidia-uvm && mv /usr/bin/nvidia-modprobe /usr/bin/nvidia-modprobe.gone")
    try:
        assert on_node(f"pct start {VMID} 2>/dev/null; echo $?").strip() == "255"
        run = bootstrap(box.inventory)
    finally:
        on_node("mv /usr/bin/nvidia-modprobe.gone /usr/bin/nvidia-modprobe")
    assert run.status != 0
    said = " ".join(run.output.split())
    assert "kpro5 has no /dev/nvidia-uvm, without which the container would not start" in said
    assert "'nvidia-modprobe -u -c 0' makes it (module nvidia_uvm)" in said
    # with the driver whole, the next run has the device made and the container started
    run = bootstrap(box.inventory)
    assert run.status == 0, run
    box.sound()
    assert box.facts()["faults"] == []


def test_a_locked_container_is_not_changed(box: Box) -> None:
    on_node(f"sed -i '1i lock: backup' /etc/pve/lxc/{VMID}.conf")
    try:
        run = bootstrap(box.inventory, memory="2G")
    finally:
        on_node(f"pct unlock {VMID}")
    assert run.status != 0
    said = " ".join(run.output.split())
    assert f"container {VMID} on kpro5 is locked" in said and "backup" in said
    assert config()["memory"] == "1024"


def test_a_device_of_amd_with_another_distributions_group(box: Box) -> None:
    """The number that 'render' has on the node, or in a container of another distribution, is not this one's."""
    on_node("mknod -m 666 /dev/kfd c 1 3")
    gone = ",".join(key for key in config() if key.startswith("dev"))
    on_node(f"pct set {VMID} --delete {gone} && pct set {VMID} --dev0 /dev/kfd,gid=4242")
    box.restart()
    box.must("umount /proc/driver /sys/module && rm /usr/bin/nvidia-smi")
    kfd = next(fault for fault in box.facts(100)["faults"] if "/dev/kfd" in fault)
    assert kfd.startswith("/dev/kfd can not be opened by 'sglang', EACCES (mode 0660, owner root, group 4242)")
    assert "gid=GID" in kfd and "getent group render" in kfd
