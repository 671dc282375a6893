# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole hosts: what is told of them and which faults are named."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda, gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_facts import gpu_facts
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from conftest import FIXTURES

if TYPE_CHECKING:
    from gpu_hosts import Host

pytest_plugins = ["gpu_hosts"]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
KERNEL = os.uname().release


def faults(host: Host, user: str | None = None) -> list[str]:
    """Return the faults; each is one line."""
    found: list[str] = gpu_facts(user)["faults"]
    assert all("\n" not in line and line for line in found)
    return found


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuInit returns 999."""
    monkeypatch.setenv("STANDIN_CUINIT", "999")


def test_a_sound_machine(host: Host) -> None:
    found = gpu_facts()
    assert (found["faults"], found["place"]) == ([], {"kind": "machine", "manager": None})
    assert [(one["index"], one["name"], one["compute_capability"]) for one in found["gpus"]] == [
        (0, "NVIDIA H200", "9.0")
    ]
    assert found["driver"]["version"] == "580.159.04" and found["driver"]["flavour"] == "open"
    assert found["driver"]["libraries_match"] is True
    assert (found["cuda"]["result"], found["cuda"]["devices"], found["minors"]) == (0, 1, [0])
    assert {one["path"]: one["open"] for one in found["devices"]}["/dev/nvidia-uvm"] == "opens"
    assert found["pci"] == [{"bus_id": "0000:00:06.0", "vendor": "nvidia", "driver": "nvidia"}]


def test_a_host_without_a_gpu(bare: Host) -> None:
    found = gpu_facts()
    assert found["faults"] == [
        "there is no GPU: none of NVIDIA or AMD is on the PCI bus, no module of theirs is loaded, and there is neither "
        "/dev/nvidia0 nor /dev/kfd: if there should be one, see whether 'lspci -nn' has it"
    ]
    assert (found["gpus"], found["devices"], found["cuda"]["result"], found["remarks"]) == ([], [], None, [])
    bare.write("run/systemd/container", "lxc")
    assert faults(bare)[0].endswith("if there should be one, look on the node of this container")


def test_an_unknown_user_is_refused(host: Host) -> None:
    with pytest.raises(Refused, match="there is no user 'nosuch' on this host: create it, or name one that is there"):
        gpu_facts("nosuch")


def test_devices_that_a_container_was_not_given(host: Host, fails: None) -> None:
    host.write("run/systemd/container", "lxc")
    for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia0"):
        (host.root / "dev" / name).unlink()
    uvm, card, cuda = faults(host)
    assert uvm.startswith(
        "/dev/nvidia-uvm is missing: on the node of this container, see that it is there ('nvidia-modprobe"
    )
    assert uvm.endswith("then 'pct set CTID --devN /dev/nvidia-uvm,mode=0666', and restart the container")
    assert card == (
        "/dev/nvidia0 is missing: on the node of this container, 'pct set CTID --devN /dev/nvidia0,mode=0666', and "
        "restart the container"
    )
    assert " returns 999 CUDA_ERROR_UNKNOWN, mostly as /dev/nvidia-uvm is missing" in cuda
    assert cuda.endswith(": put right first what is told before this")


def test_a_container_need_not_have_every_gpu_of_its_node_but_a_machine(host: Host, fails: None) -> None:
    host.write("proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: \t 1\n")
    assert faults(host)[0].startswith(
        "/dev/nvidia1 is missing: on this machine, 'nvidia-modprobe -c N' for GPU N makes it"
    )
    host.write("run/systemd/container", "lxc")
    assert not any("nvidia1" in line for line in faults(host))


def test_a_major_that_changed_at_the_start(host: Host, fails: None) -> None:
    host.write("run/systemd/container", "lxc")
    host.write("proc/devices", (host.root / "proc/devices").read_text().replace("  1 nvidia-uvm", "511 nvidia-uvm"))
    found = faults(host)
    assert found[0].startswith(
        "/dev/nvidia-uvm has major 1, but its driver nvidia-uvm has 511 now, as it may at each start: on the node of "
    )
    assert found[0].endswith("in place of fixed numbers")


def test_a_wrong_device_is_not_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in needs to remove a file, as NVIDIA's library does, which as root removes wrong devices too."""
    monkeypatch.setenv("STANDIN_CUDA_TEMPORARY", str(host.root / "temporary"))
    assert gpu_facts()["cuda"]["result"] == 0
    host.write("proc/devices", (host.root / "proc/devices").read_text().replace("  1 nvidia-uvm", "511 nvidia-uvm"))
    assert gpu_facts()["cuda"]["result"] == 304
    (host.root / "dev/nvidia-uvm").unlink()
    assert gpu_facts()["cuda"]["result"] == 0


def test_a_file_where_a_device_should_be(host: Host, fails: None) -> None:
    (host.root / "dev/nvidia0").unlink()
    host.write("dev/nvidia0", "")
    host.write(".dockerenv", "")
    assert faults(host)[0] == (
        "/dev/nvidia0 is no device but a file, as a mount without its device leaves it: have the container started "
        "with its GPUs again ('--gpus all', or '--device /dev/nvidia0')"
    )


@ROOT_ONLY
def test_devices_that_the_user_may_not_open(host: Host, open_path: Path, fails: None) -> None:
    node = host.root / "dev/nvidia-uvm"
    node.unlink()
    try:
        os.mknod(node, 0o20600, os.makedev(1, 3))
    except OSError:
        pytest.skip("devices can not be made here")
    found = gpu_facts("daemon")
    assert (found["user"], found["tried_by"]) == ("daemon", "daemon")
    assert {one["path"]: (one["open"], one["permitted"]) for one in found["devices"]}["/dev/nvidia-uvm"] == (
        "EACCES",
        False,
    )
    assert found["faults"][0].startswith(
        "/dev/nvidia-uvm can not be opened by 'daemon', EACCES (mode 0600, owner root, group root): on this machine, "
        "write 'options nvidia NVreg_DeviceFileMode=0666'"
    )
    assert node.stat().st_mode & 0o777 == 0o600
    assert gpu_facts()["faults"] == [line for line in gpu_facts()["faults"] if "cuInit" in line]  # root may


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("", "on this machine, install the whole driver in one version, then restart"),
        ("lxc", "in this container, install the libraries of exactly 580.95.05, without a kernel module"),
    ],
)
def test_libraries_of_another_version(host: Host, monkeypatch: pytest.MonkeyPatch, place: str, step: str) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", "803")
    version = host.root / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace("580.159.04", "580.95.05"))
    host.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    if place:
        host.write("run/systemd/container", place)
    cuda, management, last = faults(host)
    assert cuda.startswith("libcuda.so.1 is 580.159.04 (/") and management.startswith(
        "libnvidia-ml.so.1 is 580.159.04 (/"
    )
    assert cuda.endswith(f"but the kernel module is 580.95.05: {step}") and management.endswith(step)
    assert " returns 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" in last
    assert gpu_facts()["driver"]["libraries_match"] is False


def test_libraries_that_are_missing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    found = faults(host)
    assert [line.partition(":")[0] for line in found] == ["libcuda.so.1 is not found", "libnvidia-ml.so.1 is not found"]
    assert "of exactly 580.159.04" in found[0]
    host.write("usr/bin/pveversion", "")
    facts = gpu_facts()  # a node needs none
    assert facts["faults"] == [] and facts["remarks"][0].startswith(
        "this node has no libcuda.so.1, libnvidia-ml.so.1, "
    )


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (
            "echo 'No devices were found'; exit 6",
            "nvidia-smi fails: No devices were found: the kernel module could not start ",
        ),
        (
            "echo 'Unable to determine the device handle for GPU0: 0000:00:06.0: Unknown Error'; exit 15",
            "nvidia-smi fails: Unable to determine the device handle for GPU0: 0000:00:06.0: Unknown Error: a GPU is "
            "lost: on this machine, restart it; ",
        ),
        (
            "echo 'something new' >&2; exit 255",
            "nvidia-smi fails: something new: look for NVRM in 'journalctl -k' on this ",
        ),
        ("exit 1", "nvidia-smi fails: it says nothing: look for NVRM"),
    ],
)
def test_the_words_of_nvidia_smi(host: Host, script: str, fault: str) -> None:
    host.program("nvidia-smi", script)
    assert [line[: len(fault)] for line in faults(host)] == [fault]


def test_a_container_that_lost_its_gpus(host: Host, fails: None) -> None:
    host.write("run/systemd/container", "docker")
    host.program("nvidia-smi", "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert "a container loses its GPUs when 'systemctl daemon-reload' runs on its host" in faults(host)[0]


def test_proprietary_modules_for_a_new_gpu(host: Host) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jan 1 00:00:00 UTC 2026\n"
    host.write("proc/driver/nvidia/version", text)
    host.program("nvidia-smi", "echo 'No devices were found'; exit 6")
    assert gpu_facts()["driver"]["flavour"] == "proprietary"
    assert (
        "GPUs from Blackwell on need the open flavour of the kernel modules, and these are proprietary"
        in faults(host)[0]
    )
    line = (
        "NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:2bb5) installed in this system requires use of the NVIDIA "
        "open kernel modules."
    )
    host.pci("0000:07:00.0", "nvidia")
    host.smi()
    host.program("dmesg", f"echo '[    5.1] {line}'; echo '[    6.0] eth0: up'")
    found = gpu_facts()
    assert found["kernel_log"] == [f"[    5.1] {line}"]
    assert found["faults"] == [
        f"GPU 0000:07:00.0 is on the PCI bus, but does not answer nvidia-smi: [    5.1] {line}: GPUs from Blackwell on "
        "need the open flavour of the kernel modules"
    ]


def test_nvidia_smi_that_is_missing_or_hangs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.programs / "nvidia-smi").unlink()
    assert faults(host) == [
        "there is no nvidia-smi in PATH: on this machine, install the driver's utilities of exactly 580.159.04"
    ]
    host.program("nvidia-smi", "exec sleep 600")
    monkeypatch.setattr(gpu, "SMI_WAIT", 1)
    assert [line[:40] for line in faults(host)] == ["nvidia-smi does not answer within 20 s, "]


def test_a_driver_that_let_nvidia_smi_wait_is_not_waited_for_as_long_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", "hang")
    monkeypatch.setattr(cuda, "STUCK_WAIT", 0.5)
    monkeypatch.setattr(gpu, "SMI_WAIT", 0.5)
    host.program("nvidia-smi", "exec sleep 60")
    assert gpu_facts()["cuda"]["error"] == "no answer within 0.5 s"


def test_little_memory_that_may_be_locked_is_told_in_a_container_with_several_gpus(host: Host) -> None:
    host.write("proc/1/limits", "Limit   Soft   Hard   Units\nMax locked memory   8388608   8388608   bytes\n")
    host.smi(re.sub("(<gpu id=.*</gpu>)", r"\1\1", (FIXTURES / "gpu/h200-busy.xml").read_text(), flags=re.DOTALL))
    assert not any("may lock" in line for line in gpu_facts()["remarks"])  # a machine's root may raise it
    host.write("run/systemd/container", "lxc")
    assert any(line.startswith("services of this container may lock 8 MiB") for line in gpu_facts()["remarks"])
    host.write("proc/1/limits", "Max locked memory   unlimited   unlimited   bytes\n")
    assert not any("may lock" in line for line in gpu_facts()["remarks"])


def test_a_gpu_that_fell_off_the_bus(host: Host) -> None:
    host.pci("0000:07:00.0", "nvidia")
    said = "Unable to determine the device handle for GPU1: 0000:07:00.0: Unknown Error"
    host.smi(more=f"echo '{said}' >&2")
    host.program("dmesg", "echo '[ 99.9] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.'")
    found = gpu_facts()
    assert found["faults"] == [
        f"GPU 0000:07:00.0 is on the PCI bus, but does not answer nvidia-smi: {said}: on this machine, restart it; if "
        "it comes again, look at power, cooling and the slot"
    ]
    assert found["remarks"] == [
        "the kernel has told of Xid 79 of GPU 0000:07:00 since its start, the GPU has fallen off the bus: restart the "
        "machine; if it comes again, look at power, cooling and the slot ([ 99.9] NVRM: Xid (PCI:0000:07:00): 79, "
        "pid=1, GPU has fallen off the bus.)"
    ]
    host.write("run/systemd/container", "lxc")  # which sees all GPUs of its node, but has not all
    assert faults(host)[0].startswith("nvidia-smi does not reach every GPU: Unable")


def unloaded(host: Host) -> None:
    """The modules are not loaded; nvidia-smi says so."""
    shutil.rmtree(host.root / "proc/driver")
    for name in ("nvidia", "nvidia_uvm"):
        (host.root / "sys/module" / name).rmdir()
    host.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n")
    host.program(
        "nvidia-smi", 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9'
    )


def test_modules_that_the_running_kernel_has_not(host: Host, fails: None) -> None:
    unloaded(host)
    host.write("lib/modules/6.0.0-1-old/modules.dep", "updates/dkms/nvidia.ko.zst: kernel/drivers/video/backlight.ko\n")
    host.write(f"lib/modules/{KERNEL}/modules.dep", "kernel/net/nvidia-net.ko:\n")
    host.write("var/lib/dkms/nvidia/580.159.04/source", "")
    first, *others = faults(host)
    assert first == (
        f"there is no module nvidia for the running kernel {KERNEL}, only for 6.0.0-1-old: on this machine, install "
        f"its headers (proxmox-headers-{KERNEL} or linux-headers-{KERNEL}), then 'dkms "
        f"autoinstall', which builds 580.159.04"
    )
    assert len(others) == 1 and "cuInit" in others[0]  # neither devices nor nvidia-smi's words are told besides
    host.write(f"lib/modules/{KERNEL}/build/Makefile", "")
    shutil.rmtree(host.root / "var/lib/dkms")
    assert faults(host)[0].endswith("on this machine, install NVIDIA's driver")


def test_modules_that_are_not_loaded(host: Host, fails: None) -> None:
    unloaded(host)
    host.write(f"lib/modules/{KERNEL}/modules.dep", "kernel/drivers/video/nvidia.ko:\n")
    host.program("modinfo", "[ \"$*\" = '-F version nvidia' ] && echo 580.159.04")
    first = "the module nvidia 580.159.04 is on disk but not loaded: on this machine, 'modprobe nvidia' and see"
    assert faults(host)[0].startswith(first)
    secure = host.write("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\0\0\0\1")
    assert "Secure Boot is on, so it must be signed" in faults(host)[0]
    secure.write_text("\x06\0\0\0\0")
    assert "Secure Boot" not in faults(host)[0]
    host.module("nouveau")
    assert faults(host)[0].startswith(
        "the module nouveau is loaded, beside which NVIDIA's can not be: on this machine, "
    )
    host.write("run/systemd/container", "lxc")
    (host.root / "sys/module/nouveau").rmdir()
    assert faults(host)[0] == "the module nvidia is not loaded: run this on the node of this container to see why"


def test_a_gpu_that_is_kept_for_a_virtual_machine(bare: Host) -> None:
    bare.pci("0000:07:00.0", "vfio-pci")
    bare.write("usr/bin/pveversion", "")
    found = faults(bare)
    assert found == [
        "GPU 0000:07:00.0 is kept for a virtual machine by vfio-pci: on this node, take it out of the VM's hostpci and "
        "of 'options vfio-pci ids=' in /etc/modprobe.d, then restart"
    ]


def test_uvm_that_is_not_loaded(host: Host, fails: None) -> None:
    (host.root / "sys/module/nvidia_uvm").rmdir()
    host.write("proc/devices", (host.root / "proc/devices").read_text().replace("  1 nvidia-uvm\n", ""))
    assert faults(host)[0].startswith(
        "the module nvidia_uvm is not loaded, which CUDA needs: on this machine, 'modprobe "
    )
    assert not any(line.startswith("/dev/") for line in faults(host))


@pytest.mark.parametrize(
    ("result", "step"),
    [
        ("802", "on this machine, start nvidia-fabricmanager of exactly 580.159.04"),
        ("804", "take the folder 'compat' of the CUDA toolkit out of LD_LIBRARY_PATH and /etc/ld.so.conf.d"),
        ("34", "take the folder 'stubs' of the CUDA toolkit out of LD_LIBRARY_PATH and /etc/ld.so.conf.d"),
        ("805", "start or end nvidia-cuda-mps-control for this user"),
        (
            "999",
            "on this machine, 'rmmod nvidia_uvm' and 'modprobe nvidia_uvm' while no GPU is in use, else restart it",
        ),
        ("700", "look for NVRM in 'journalctl -k' on this machine"),
    ],
)
def test_what_cuda_alone_says(host: Host, monkeypatch: pytest.MonkeyPatch, result: str, step: str) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", result)
    (line,) = faults(host)
    assert line.startswith("cuInit of /") and f" returns {result} C" in line and line.endswith(f": {step}")


def test_a_cuda_that_crashes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", "crash")
    (line,) = faults(host)
    assert "gives no answer: its process was ended by SIGSEGV: look for 'Xid'" in line
    assert line.endswith("install the libraries of exactly 580.159.04 again on this machine")


def test_a_gpu_that_cuda_does_not_count(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FIXTURES / "gpu/h200-busy.xml").read_text()
    one = text[text.index("\t<gpu ") : text.index("</gpu>") + len("</gpu>\n")]
    other = one.replace("00:06.0", "00:07.0").replace("GPU-79f77a03", "GPU-79f77a04")
    host.smi(text.replace(one, one + other), f"0, {one[one.index('GPU-') : one.index('GPU-') + 40]}, 9.0")
    assert faults(host)[0].startswith("CUDA counts 1 of 2 GPUs as '")
    monkeypatch.setenv("STANDIN_CUDA_DEVICES", "2")
    assert faults(host) == []
