# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver on this host: its kernel module, its libraries, and the GPUs on the PCI bus."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.host import run

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib", "usr/lib/wsl/lib",
)  # fmt: skip
ABI = {"x86_64": "x86-64", "aarch64": "AArch64"}
VERSION = re.compile(r"\b\d{3}\.\d{2,3}(?:\.\d{2})?\b")
VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display, processing accelerator
WAIT = 20  # s for a command of the system
# what the kernel says of a GPU or driver that needs somebody
TROUBLE = re.compile(
    r"NVRM: (?:Xid |API mismatch|.*fallen off the bus|.*RmInitAdapter failed|.*installed in this system|"
    r".*will ignore this GPU)|nvidia.*Unknown symbol|amdgpu.*(?:GPU reset|ring .* timeout)"
)
TROUBLE_LINES = 10


def driver() -> dict[str, Any]:
    """Return the versions of the kernel module and of the libraries, and whether they go together."""
    module, found = kernel_module(), libraries()
    loaded = [one for one in found if one["loaded"] and not one["compatibility"] and one["version"]]
    matches = all(one["version"] == module["version"] for one in loaded) if module["version"] and loaded else None
    return {**module, "libraries": found, "libraries_match": matches}


def kernel_module() -> dict[str, Any]:
    """Return what is known of the modules nvidia and nvidia_uvm, nouveau and amdgpu, loaded and on disk."""
    text = _read("proc/driver/nvidia/version")
    line = text.partition("\n")[0]
    release = os.uname().release
    version = VERSION.search(line)
    return {
        "version": version[0] if version else _read("sys/module/nvidia/version").strip() or None,
        "flavour": None if not line else "open" if "Open Kernel Module" in line else "proprietary",
        "loaded": _loaded("nvidia") or bool(line),
        "uvm_loaded": _loaded("nvidia_uvm"),
        "nouveau_loaded": _loaded("nouveau"),
        "amdgpu": _read("sys/module/amdgpu/version").strip() or ("kernel" if _loaded("amdgpu") else None),
        "kernel": release,
        "version_on_disk": _on_disk(),
        "kernels_with_module": sorted(
            path.parent.name for path in gpu.ROOT.glob("lib/modules/*/modules.dep") if _has(path)
        ),
        "headers": (gpu.ROOT / "lib/modules" / release / "build").exists(),
        "dkms": sorted(path.name for path in gpu.ROOT.glob("var/lib/dkms/nvidia*/*") if VERSION.fullmatch(path.name)),
        "secure_boot": _secure_boot(),
    }


def libraries() -> list[dict[str, Any]]:
    """Return every libcuda.so.1 and libnvidia-ml.so.1, as the loader would search; the first of each is `loaded`."""
    cache = list(_cache())
    found: list[dict[str, Any]] = []
    for name in LIBRARIES:
        searched = [Path(folder, name) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
        searched += [path for path in cache if path.name == name]
        files: dict[Path, Path] = {}
        for path in searched + [gpu.ROOT / folder / name for folder in FOLDERS]:
            if path.exists():
                files.setdefault(path.resolve(), path)
        for place, (file, path) in enumerate(files.items()):
            version = VERSION.search(file.name)
            found.append({
                "name": name, "path": str(path), "file": file.name, "version": version[0] if version else None,
                "loaded": place == 0, "compatibility": "/compat" in str(path) or "/compat" in str(file),
            })  # fmt: skip
    return found


def pci_gpus() -> list[dict[str, Any]]:
    """Return the GPUs on the PCI bus, with the kernel's driver that has each; a container sees all of its node's."""
    found = []
    for device in sorted(gpu.ROOT.glob("sys/bus/pci/devices/*")):
        vendor = VENDORS.get(_text(device / "vendor").strip())
        if vendor and _text(device / "class")[:6] in GPU_CLASSES:
            link = device / "driver"
            kernel_driver = os.path.basename(os.readlink(link)) if link.is_symlink() else None
            found.append({"bus_id": device.name, "vendor": vendor, "driver": kernel_driver})
    return found


def minors() -> list[int]:
    """Return N of each /dev/nvidiaN that the kernel module has a GPU for."""
    texts = (_text(path) for path in gpu.ROOT.glob("proc/driver/nvidia/gpus/*/information"))
    return sorted(int(number) for text in texts for number in re.findall(r"^Device Minor:\s*(\d+)", text, re.MULTILINE))


def kernel_log() -> list[str]:
    """Return the last lines of this boot's kernel log that tell of trouble with a GPU, as far as they can be read."""
    for argv in (["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso"], ["dmesg"]):
        lines = [line.strip() for line in _said(*argv).splitlines() if TROUBLE.search(line)]
        if lines:
            return lines[-TROUBLE_LINES:]
    return []


def _cache() -> Iterator[Path]:
    """Yield what the loader's cache has for this processor."""
    command = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    abi = ABI.get(os.uname().machine, "")
    said = _said(command, "-p", "-C", str(gpu.ROOT / "etc/ld.so.cache")) if command else ""
    for line in said.splitlines():
        match = re.fullmatch(r"\s*\S+ \((.*)\) => (/\S+)", line)
        if match and abi in match[1]:
            yield Path(match[2])


def _has(dependencies: Path) -> bool:
    """Tell whether the modules of a kernel have NVIDIA's among them."""
    return bool(re.search(r"^(?:\S*/)?nvidia(?:-current)?\.ko\S*:", _text(dependencies), re.MULTILINE))


def _on_disk() -> str | None:
    """Return the version of the module that the running kernel would load, or None."""
    if not _has(gpu.ROOT / "lib/modules" / os.uname().release / "modules.dep"):
        return None
    modinfo = shutil.which("modinfo", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    version = VERSION.search(_said(modinfo, "-F", "version", "nvidia")) if modinfo else None
    return version[0] if version else None


def _secure_boot() -> bool | None:
    for path in gpu.ROOT.glob("sys/firmware/efi/efivars/SecureBoot-*"):
        try:
            return path.read_bytes()[-1:] == b"\1"
        except OSError:
            return None
    return None


def _loaded(module: str) -> bool:
    return (gpu.ROOT / "sys/module" / module).is_dir()


def _read(path: str) -> str:
    return _text(gpu.ROOT / path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _said(*argv: str) -> str:
    try:
        return run(argv, {**os.environ, "LC_ALL": "C"}, timeout=WAIT).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
