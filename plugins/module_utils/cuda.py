# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CUDA itself says on this host."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_child import told

WAIT = 60  # s: without persistence each of eight GPUs is woken up first
STUCK_WAIT = 10  # s: what hung once is not waited for that long again
# CUresult of cuda.h -> its name and what it means here
RESULTS = {
    0: ("CUDA_SUCCESS", "CUDA works"),
    1: ("CUDA_ERROR_INVALID_VALUE", "the driver's library was asked for what it does not know"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "there is not enough memory of the host or of the GPU even to begin"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "the driver's library could not initialize"),
    34: ("CUDA_ERROR_STUB_LIBRARY", "a stub that programs are linked with was loaded in place of the driver's library"),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is used exclusively by another process, or its use is prohibited"),
    100: (
        "CUDA_ERROR_NO_DEVICE",
        "no GPU can be used, mostly as /dev/nvidiactl or /dev/nvidiaN is missing or not permitted",
    ),
    101: ("CUDA_ERROR_INVALID_DEVICE", "a GPU was asked for that is not there"),
    102: ("CUDA_ERROR_DEVICE_NOT_LICENSED", "a virtual GPU has no licence"),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "the GPU has an uncorrectable memory error"),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink has an uncorrectable error"),
    304: ("CUDA_ERROR_OPERATING_SYSTEM", "a system call failed, for example on a device or on a temporary file"),
    800: ("CUDA_ERROR_NOT_PERMITTED", "the operation is not permitted"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "the operation is not supported on this system"),
    802: (
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "a daemon that this system needs is not ready: with NVSwitch the fabric manager",
    ),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the driver's library and its kernel module are of versions that do not go together",
    ),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "a library newer than the kernel module was loaded (forward compatibility), which this GPU does not support",
    ),
    805: ("CUDA_ERROR_MPS_CONNECTION_FAILED", "the MPS control daemon does not answer"),
    806: ("CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server does not answer"),
    807: ("CUDA_ERROR_MPS_SERVER_NOT_READY", "the MPS server is not ready"),
    808: ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the MPS server has no room for another client"),
    809: ("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the MPS server has no connection left"),
    999: ("CUDA_ERROR_UNKNOWN", "mostly as /dev/nvidia-uvm is missing, stale or not permitted, or a GPU is lost"),
}


def ask_cuda(user: str, keep: bool, stuck: bool = False) -> dict[str, Any]:
    """Return what cuInit says to `user` ('': to this one).

    With `keep` it can not remove files either. It needs that, but as root it would remove a device that is wrong, with
    which it fails anyway. `stuck`: the driver already let something else wait in vain.

    `result`, `name` and `meaning` of the CUresult, `devices` counted, `driver_version` of CUDA, the `library` that was
    loaded; without a result `error` says why.
    """
    lines, error = told(user, STUCK_WAIT if stuck else WAIT, "cuda", *(["keep"] if keep else []))
    facts: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    result = facts.get("result")
    name, meaning = RESULTS.get(result, (None, None)) if result is not None else (None, None)
    return {
        "result": result,
        "name": facts.get("name") or name or (None if result is None else f"CUresult {result}"),
        "meaning": meaning,
        "devices": facts.get("count"),
        "driver_version": facts.get("version"),
        "library": facts.get("library"),
        "error": facts.get("error") or (error if result is None else None),
    }
