# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA a release's torch is made for, and which driver that needs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

# Major version of CUDA -> first branch of the driver on which programs made with any of its minor versions run.
# Source: NVIDIA, "CUDA Compatibility", chapter "Minor Version Compatibility", table 1; read in November 2026.
FAMILIES = {11: "450", 12: "525", 13: "580"}
# Version of CUDA -> the driver that came out with it, so that nothing of it is missing.
# Source: NVIDIA, "CUDA Toolkit Release Notes" of 13.1, table "CUDA Toolkit and Corresponding Driver Versions".
TOOLKITS = {
    "12.0": "525.60.13", "12.1": "530.30.02", "12.2": "535.54.03", "12.3": "545.23.06", "12.4": "550.54.14",
    "12.5": "555.42.02", "12.6": "560.28.03", "12.8": "570.26", "12.9": "575.51.03", "13.0": "580.65.06",
    "13.1": "590.44.01",
}  # fmt: skip
# what torch brings its CUDA with, most telling first
CARRIERS = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
# The wheels of the compiler; libraries and other headers torch brings itself. Those for CUDA 12 have no nvcc in them.
# Left to the resolver they come newer than torch's headers, and then NVIDIA's headers refuse to be compiled.
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")


def torch_cuda(packages: Iterable[str]) -> str | None:
    """Return e.g. '13.0', the CUDA of the torch among lines like 'torch==2.13.0'; None without CUDA or torch."""
    versions = {name.lower().replace("_", "-"): version for name, _equal, version in map(_split, packages)}
    if "torch" not in versions:
        return None
    build = versions["torch"].partition("+")[2]
    named = re.fullmatch(r"cu(\d\d)(\d)", build)
    if named:
        return f"{named[1]}.{named[2]}"
    if build:
        return None  # +cpu, +rocm7.0
    version = next((versions[name] for name in CARRIERS if name in versions), None)
    return ".".join(version.split(".")[:2]) if version else None


def _split(line: str) -> tuple[str, str, str]:
    return line.split(";")[0].strip().partition("==")


def minimum_driver(cuda: str) -> str | None:
    """Return the first driver, e.g. '580', on which programs made for a version of CUDA run; None for unknown ones."""
    return FAMILIES.get(int(cuda.partition(".")[0]))


def driver_problem(cuda: str | None, driver: str | None) -> str | None:
    """Say why programs made for `cuda` do not run on `driver`; None where they do or one of the two is not known."""
    minimum = minimum_driver(cuda) if cuda else None
    if not minimum or not driver or number(driver) >= number(minimum):
        return None
    best = TOOLKITS.get(cuda or "")
    wanted = f"{minimum} or newer{f' ({best} came out with it)' if best else ''}"
    return f"torch of this release is made for CUDA {cuda}, which needs NVIDIA's driver {wanted}, not {driver}"


def explained(cuda: str | None, driver: str | None) -> str:
    """Say why a release has the torch that it has."""
    if not cuda:
        return "torch of this release is made for no CUDA, as its version or an override says"
    what = f"torch of this release is made for CUDA {cuda}, as SGLang's own requirement says"
    minimum = minimum_driver(cuda)
    if not driver:
        return f"{what}; this host has no NVIDIA driver to compare with"
    return f"{what}; it runs on drivers from {minimum} on, here is {driver}" if minimum else f"{what}; here is {driver}"


def compiler_wheels(cuda: str | None) -> list[str]:
    """Return the requirements that bring the compiler of exactly this CUDA into a release."""
    if not cuda or int(cuda.partition(".")[0]) < 13:
        raise Refused(
            f"torch of this release is made for {f'CUDA {cuda}' if cuda else 'no CUDA'}, for which there are no wheels "
            f"of the compiler: set cuda_toolkit_source to {'packages' if cuda else 'none'}"
        )
    return [f"{name}=={cuda}.*" for name in COMPILER]


def number(version: str) -> tuple[int, ...]:
    """Return a version of the driver for comparison."""
    return tuple(map(int, version.split(".")))
