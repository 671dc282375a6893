# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that a host, a container or a Proxmox node tells of its GPUs, and what is wrong with it."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    cuda,
    gpu,
    gpu_amd,
    gpu_devices,
    gpu_driver,
    gpu_smi,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_faults import find_faults
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import find_place
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused


def gpu_facts(user: str | None = None) -> dict[str, Any]:
    """Return the facts, with `faults` and `remarks` of one line each; `user` is who is to use the GPUs.

    Raises Refused where there is no such user.
    """
    account = None if user is None else gpu_devices.pwd_entry(user)
    if user is not None and account is None:
        raise Refused(f"there is no user '{user}' on this host: create it, or name one that is there")
    place, on_bus = find_place(), gpu_driver.pci_gpus()
    devices, untried = gpu_devices.devices(account)
    wrong = any(gpu_devices.is_wrong(one) for one in devices if one["path"] in ("/dev/nvidiactl", "/dev/nvidia-uvm"))
    smi, gpus = gpu_smi.ask()
    stuck = untried is not None or smi["state"] == "hangs"
    amd: dict[str, Any] | None = None
    amd_gpus: list[dict[str, Any]] = []
    if any(one["vendor"] == "amd" for one in on_bus) or (gpu.ROOT / "dev/kfd").exists():
        amd, amd_gpus = gpu_amd.ask()
    facts = {
        "place": asdict(place),
        "user": account.pw_name if account else None,
        "tried_by": gpu_devices.tried_by(account),
        "pci": on_bus,
        "gpus": [*gpus, *amd_gpus],
        "driver": gpu_driver.driver(),
        "cuda": cuda.ask_cuda(gpu_devices.other(account), keep=wrong, stuck=stuck),
        "devices": devices,
        "devices_untried": untried,
        "minors": gpu_driver.minors(),
        "nvidia_smi": smi,
        "amd_smi": amd,
        "shm_mib": _shm(),
        "memlock_mib": _memlock(),
        "kernel_log": gpu_driver.kernel_log(),
    }
    faults, remarks = find_faults(facts, place)
    return {**facts, "faults": faults, "remarks": remarks}


def _memlock() -> float | None:
    """Return the MiB that a service of a container may lock at most, or None where there is no limit.

    That of PID 1, which a container's root can not raise; a unit's LimitMEMLOCK=infinity is clamped to it silently.
    """
    try:
        limits = (gpu.ROOT / "proc/1/limits").read_text()
    except OSError:
        return None
    found = re.search(r"(?m)^Max locked memory\s+\S+\s+(\d+)", limits)
    return int(found[1]) / 2**20 if found else None


def _shm() -> int | None:
    """Return the size in MiB of /dev/shm, through which ranks talk."""
    try:
        found = os.statvfs(gpu.ROOT / "dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize // 2**20
