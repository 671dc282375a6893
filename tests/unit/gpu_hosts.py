# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a GPU: files as its kernel shows them, an nvidia-smi, and a libcuda.so.1 that is really loaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu

SOURCE = Path(__file__).parents[2] / "molecule/lab/standins/cuda/libcuda.c"
BUSY = Path(__file__).parent / "fixtures/gpu/h200-busy.xml"
# of a real H200; the majors are those of /dev/null, which stands for every device here
VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)
GCC version:  gcc version 15.3.0 (GCC)
"""
INFORMATION = """Model: 		 NVIDIA H200
IRQ:   		 41
GPU UUID: 	 GPU-79f77a03-f5e8-aefa-7f77-328bf40fdf43
Bus Type: 	 PCIe
Bus Location: 	 0000:00:06.0
Device Minor: 	 0
GPU Excluded:	 No
"""
MAJORS = """Character devices:
  1 mem
  1 nvidia
  1 nvidiactl
  1 nvidia-uvm
241 nvidia-caps

Block devices:
  7 loop
"""
UUID = "GPU-79f77a03-f5e8-aefa-7f77-328bf40fdf43"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library, built; in a folder that everybody can enter."""
    folder = tmp_path_factory.mktemp("cuda")
    file = folder / "libcuda.so.580.159.04"
    command = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(file),
        str(SOURCE),
    ]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler to build the stand-in for libcuda.so.1 with")
    subprocess.run([compiler, *command], check=True)
    (folder / "libcuda.so.1").symlink_to(file.name)
    (folder / "libnvidia-ml.so.580.159.04").touch()
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.159.04")
    _let_others_in(folder)
    return file


def _let_others_in(folder: Path) -> None:
    """pytest's folders are closed to other users, and it makes one more for each of several processes."""
    for place in (folder, *folder.parents):
        if place.stat().st_mode & 0o001:
            break
        place.chmod(0o755)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that other users may enter."""
    _let_others_in(tmp_path)
    return tmp_path


@pytest.fixture
def loaded(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in is what the loader finds."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    return library


class Host:
    """The tree of a host, and programs in its PATH."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, root / "programs"
        for folder in ("dev", "sys/module", "programs"):
            (root / folder).mkdir(parents=True)
        for tool in ("sh", "cat", "sleep"):
            found = shutil.which(tool, path="/bin:/usr/bin:/sbin:/usr/sbin")
            if found:
                (self.programs / tool).symlink_to(found)

    def write(self, path: str, text: str) -> Path:
        """Write a file of the tree."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def program(self, name: str, script: str) -> None:
        """Put a shell script into PATH."""
        self.write(f"programs/{name}", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def node(self, *names: str) -> None:
        """Make devices that can be opened."""
        for name in names:
            place = self.root / "dev" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to("/dev/null")

    def module(self, *names: str) -> None:
        """Load modules."""
        for name in names:
            (self.root / "sys/module" / name).mkdir()

    def pci(self, bus_id: str, driver: str | None, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        """Put a device on the PCI bus."""
        self.write(f"sys/bus/pci/devices/{bus_id}/vendor", f"{vendor}\n")
        self.write(f"sys/bus/pci/devices/{bus_id}/class", f"{kind}\n")
        if driver:
            (self.root / f"sys/bus/pci/devices/{bus_id}/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def smi(self, log: str | Path = BUSY, capabilities: str = f"0, {UUID}, 9.0", more: str = "") -> None:
        """Make an nvidia-smi that answers; `log` is XML or a file of it, `more` shell code before."""
        file = log if isinstance(log, Path) else self.write("smi.xml", log)
        self.program(
            "nvidia-smi",
            f"""{more}
case "$*" in
'-q -x') cat {file};;
'--query-gpu=index,uuid,compute_cap --format=csv,noheader,nounits') echo '{capabilities}';;
*) echo "unknown: $*" >&2; exit 2;;
esac""",
        )


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine without a GPU."""
    host = Host(tmp_path / "host")
    monkeypatch.setattr(gpu, "ROOT", host.root)
    monkeypatch.setenv("PATH", str(host.programs))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return host


@pytest.fixture
def host(bare: Host, loaded: Path) -> Host:
    """A machine with one H200 that works."""
    bare.write("proc/driver/nvidia/version", VERSION)
    bare.write("proc/driver/nvidia/gpus/0000:00:06.0/information", INFORMATION)
    bare.write("proc/devices", MAJORS)
    bare.node("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1")
    bare.module("nvidia", "nvidia_uvm")
    bare.pci("0000:00:06.0", "nvidia")
    bare.smi()
    return bare
