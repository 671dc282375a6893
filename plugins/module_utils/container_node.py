# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container needs of its node and Proxmox's API does not give: GPUs, raw keys of LXC, a look at what applies."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.container_config import UNITS, mebibytes, with_raw
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.proxmox_api import device_source
from ansible_collections.gpuops.sglang.plugins.module_utils.runner import InContainer

ROOT = Path("/")
LOCK_WAIT = 10  # s, as long as Proxmox itself waits for the lock of a configuration
# paths of devices that are a GPU of its own, or a part of one
GPU_PATHS = r"/dev/nvidia\d+|/dev/nvidia-caps/nvidia-cap\d+|/dev/dri/renderD\d+"


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a container is to have."""

    numbers: Sequence[int] = ()  # as nvidia-smi and rocm-smi on the node count
    mig: Sequence[dict[str, int]] = ()  # gpu, instance (GI), compute (CI)
    vendor: str = "auto"  # or nvidia, amd
    modeset: bool = False
    group: str = ""  # in the container, by name or number; empty: see `access`
    keys: str = "auto"  # or dev, raw
    only: bool = False  # whether other GPUs go


class Host:
    """The node that this runs on, as root."""

    def __init__(self, name: str) -> None:
        self.name = name

    # ---- GPUs

    def vendor(self, gpus: Gpus) -> str:
        """Return whose GPUs these are."""
        if gpus.vendor != "auto":
            return gpus.vendor
        if (ROOT / "dev/nvidiactl").exists() or (ROOT / "proc/driver/nvidia").exists():
            return "nvidia"
        if (ROOT / "dev/kfd").exists():
            return "amd"
        raise Refused(
            f"{self.name} has neither /dev/nvidiactl nor /dev/kfd, so no GPU for a container: install its driver there"
            " (role nvidia_driver), or run the role proxmox_container with its node step, which loads the modules"
        )

    def gpu_paths(self, gpus: Gpus) -> list[str]:
        """Return the device files that these GPUs need, all of which are there."""
        amd = self.vendor(gpus) == "amd"
        paths = self._amd_paths(gpus) if amd else self._nvidia_paths(gpus)
        missing = [path for path in paths if not self._is_device(path)]
        if missing:
            sources = "; ".join(f"{path}: {device_source(path)}" for path in missing)
            raise Refused(
                f"{self.name} has no {', '.join(missing)}, without which the container would not start: {sources}"
            )
        return paths

    def _nvidia_paths(self, gpus: Gpus) -> list[str]:
        # /proc lists the cards by their PCI address, as nvidia-smi counts; their minor numbers may be in another order
        minors = [
            int(found[1])
            for path in sorted(ROOT.glob("proc/driver/nvidia/gpus/*/information"))
            if (found := re.search(r"(?m)^Device Minor:\s*(\d+)", path.read_text(errors="replace")))
        ]
        numbers = list(dict.fromkeys([*gpus.numbers, *(part["gpu"] for part in gpus.mig)]))
        beyond = [number for number in numbers if minors and number >= len(minors)]
        if beyond:
            raise Refused(
                f"{self.name} has no GPU {', '.join(map(str, beyond))}, it has {len(minors)} (0 to {len(minors) - 1}):"
                " correct proxmox_container_gpus"
            )
        minor = {number: minors[number] if minors else number for number in numbers}
        paths = [f"/dev/nvidia{minor[number]}" for number in numbers]
        paths += ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        if self._is_device("/dev/nvidia-uvm-tools"):  # for profilers alone
            paths.append("/dev/nvidia-uvm-tools")
        if gpus.modeset:
            paths.append("/dev/nvidia-modeset")
        for part in gpus.mig:
            instance = f"gpu{minor[part['gpu']]}/mig/gi{part['instance']}"
            paths += [self._capability(f"{instance}{name}/access") for name in ("", f"/ci{part['compute']}")]
        return list(dict.fromkeys(paths))

    def _capability(self, name: str) -> str:
        path = ROOT / "proc/driver/nvidia/capabilities" / name
        try:
            found = re.search(r"DeviceFileMinor:\s*(\d+)", path.read_text(errors="replace"))
        except OSError:
            found = None
        if not found:
            raise Refused(
                f"{self.name} has no MIG instance {name.rpartition('/')[0]}: see 'nvidia-smi mig -lci' there and"
                " correct proxmox_container_mig"
            )
        return f"/dev/nvidia-caps/nvidia-cap{found[1]}"

    def _amd_paths(self, gpus: Gpus) -> list[str]:
        folders = sorted((ROOT / "sys/class/kfd/kfd/topology/nodes").glob("*"), key=lambda path: int(path.name))
        minors = []
        for folder in folders:
            try:
                words = dict(line.split() for line in (folder / "properties").read_text().splitlines() if line.strip())
            except (OSError, ValueError):
                continue
            if int(words.get("simd_count", 0)) > 0 and int(words.get("drm_render_minor", 0)) > 0:
                minors.append(int(words["drm_render_minor"]))
        beyond = [number for number in gpus.numbers if number >= len(minors)]
        if beyond or gpus.mig:
            what = f"GPU {', '.join(map(str, beyond))}" if beyond else "MIG, which NVIDIA's cards alone have"
            raise Refused(f"{self.name} has no {what}; it has {len(minors)} AMD GPUs: correct proxmox_container_gpus")
        return ["/dev/kfd", *(f"/dev/dri/renderD{minors[number]}" for number in gpus.numbers)]

    def _is_device(self, path: str) -> bool:
        try:
            mode = os.stat(ROOT / path.lstrip("/")).st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)

    def raw_device(self, path: str) -> list[tuple[str, str]]:
        """Return the raw keys that bring in a device where Proxmox has no devN; its numbers are those of this boot."""
        number = os.stat(ROOT / path.lstrip("/")).st_rdev
        place = path.lstrip("/")
        return [
            ("lxc.cgroup2.devices.allow", f"c {os.major(number)}:{os.minor(number)} rwm"),
            ("lxc.mount.entry", f"{path} {place} none bind,optional,create=file"),
        ]

    # ---- the container from outside

    def group(self, vmid: int, name: str) -> int:
        """Return the number of a group in a running container."""
        done = InContainer(vmid).run(["getent", "group", name], timeout=60)
        fields = done.stdout.decode(errors="replace").strip().split(":")
        if done.code or len(fields) < 3 or not fields[2].isdigit():
            raise Refused(
                f"container {vmid} on {self.name} has no group {name}, to which its GPUs are to belong: make it there"
                f" ('groupadd --system {name}'), or set proxmox_container_gpu_group to a number or another group"
            )
        return int(fields[2])

    def raw(self, vmid: int, asked: Sequence[tuple[str, str]], change: bool) -> tuple[list[str], list[str]]:
        """Bring raw keys into the container's file: (lines that go, lines that come). `change`: do it, else only tell.

        They are written as Proxmox writes the file, under its lock and at once.
        """
        path = ROOT / f"etc/pve/lxc/{vmid}.conf"
        if not change:
            return with_raw(_text(path), asked)[1:]
        with self._lock(vmid):
            text, gone, come = with_raw(_text(path), asked)
            if come:
                # the cluster file system takes neither chmod nor chown
                partial = path.with_name(f"{path.name}.tmp.{os.getpid()}")
                with partial.open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                partial.rename(path)
        return gone, come

    @contextmanager
    def _lock(self, vmid: int) -> Iterator[None]:
        path = ROOT / f"run/lock/lxc/pve-config-{vmid}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + LOCK_WAIT
        with path.open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise Refused(
                            f"container {vmid} on {self.name}: another task holds its configuration ({path}) for more"
                            f" than {LOCK_WAIT} s: wait for it, then run again"
                        ) from None
                    time.sleep(0.2)
            yield

    def not_in_effect(self, pid: int, asked: Sequence[tuple[str, str]]) -> list[str]:
        """Return the raw keys that a container, whose init is `pid`, has not been started with."""
        process = ROOT / f"proc/{pid}"
        limits = (process / "limits").read_text()
        mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
        waiting = []
        for key, value in asked:
            words = value.split()
            if key == "lxc.prlimit.memlock":
                found = re.search(r"(?m)^Max locked memory\s+\S+\s+(\S+)", limits)
                applies = found is not None and found[1] == value
            elif key == "lxc.mount.entry" and words[1] == "dev/shm":
                size = next((mount[3] for mount in reversed(mounts) if mount[1] == "/dev/shm"), "")
                applies = _size(size) == _size(words[3])
            elif key == "lxc.mount.entry":
                applies = any(mount[1] == f"/{words[1]}" for mount in mounts)
            else:
                continue  # rules of a cgroup can not be read; they come with the mounts above
            if not applies:
                waiting.append(f"{key} {words[1]}" if key == "lxc.mount.entry" else key)
        return waiting


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _size(options: str) -> float | None:
    """The size among the options of a tmpfs in bytes."""
    found = re.search(r"(?:^|,)size=(\d+)([kmgKMG]?)(?:,|$)", options)
    return int(found[1]) * UNITS[found[2].upper()] if found else None


def raw_limits(shm: str, memlock: str) -> list[tuple[str, str]]:
    """The raw keys for the size of /dev/shm and the memory that may be locked; an empty text asks for nothing."""
    asked = []
    try:
        if memlock:
            unlimited = memlock == "unlimited"
            asked.append(("lxc.prlimit.memlock", memlock if unlimited else str(mebibytes(memlock) * UNITS["M"])))
        if shm:
            size = f"size={mebibytes(shm)}m"
            asked.append(("lxc.mount.entry", f"tmpfs dev/shm tmpfs rw,nosuid,nodev,{size},create=dir 0 0"))
    except ValueError as problem:
        raise Refused(f"shm '{shm}', memlock '{memlock}': {problem}") from None
    return asked


def access(vendor: str, gid: int | None) -> dict[str, Any]:
    """Who in the container may open the devices.

    Without a group those of NVIDIA are for everybody, as its driver makes them; AMD's belong to a group everywhere.
    """
    if gid is not None:
        return {"mode": "0660", "gid": gid}
    return {"mode": "0666"} if vendor == "nvidia" else {}
