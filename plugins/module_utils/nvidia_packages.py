# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver as packages of Debian and Ubuntu: which of their names there are here in exactly one version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run

if TYPE_CHECKING:
    from ansible_collections.gpuops.sglang.plugins.module_utils.nvidia_driver import Facts, Verdict

# How the distributions and NVIDIA's own repositories call the parts; 'a|b' is one or the other, {branch} e.g. 580.
# The libraries are what CUDA needs, without graphics. Sources: NVIDIA's "Driver Installation Guide" (compute-only
# installations), Debian's and Ubuntu's package lists.
NAMINGS: tuple[Mapping[str, Sequence[str]], ...] = (
    {  # Debian, and NVIDIA's repositories for Debian, where nvidia-driver-cuda has taken in nvidia-smi
        "libraries": ("libcuda1", "libnvidia-ml1", "nvidia-smi|nvidia-driver-cuda"),
        "open": ("nvidia-kernel-open-dkms|nvidia-open-kernel-dkms",),
        "proprietary": ("nvidia-kernel-dkms",),
    },
    {  # Ubuntu, and NVIDIA's repositories for Ubuntu up to 580
        "libraries": ("libnvidia-compute-{branch}", "nvidia-utils-{branch}"),
        "open": ("nvidia-dkms-{branch}-open",),
        "proprietary": ("nvidia-dkms-{branch}",),
    },
    {
        "libraries": ("libnvidia-compute-{branch}-server", "nvidia-utils-{branch}-server"),
        "open": ("nvidia-dkms-{branch}-server-open",),
        "proprietary": ("nvidia-dkms-{branch}-server",),
    },
    {  # NVIDIA's repositories for Ubuntu from 590 on
        "libraries": ("libnvidia-compute", "nvidia-utils|nvidia-driver-cuda"),
        "open": ("nvidia-dkms-open",),
        "proprietary": ("nvidia-dkms",),
    },
)
HEADERS = ("proxmox-headers-{kernel}", "pve-headers-{kernel}", "linux-headers-{kernel}")
BUILD = ("dkms", "gcc", "make")
KERNEL_PARTS = "nvidia-*dkms* dkms"


def to_install(verdict: Verdict, asked: Mapping[str, Any], facts: Facts) -> list[str]:
    """Return what apt is to install; from NVIDIA's installer comes the driver itself, but not what builds it."""
    parts = ["libraries"]
    names: list[str] = []
    if verdict.todo == "driver":
        names = [*BUILD, *([] if facts.driver["headers"] else [headers(facts.driver["kernel"])])]
        parts.append(asked["flavour"])
    return names if asked["source"] == "run" else [*names, *choose(verdict.version, parts)]


def choose(version: str, parts: Sequence[str]) -> list[str]:
    """Return what to install, like 'libcuda1=590.48.01-1', for `parts` (libraries, open, proprietary) of one version.

    Raises Refused where apt does not know them in that version.
    """
    branch = version.partition(".")[0]
    namings = [[name.format(branch=branch) for part in parts for name in naming[part]] for naming in NAMINGS]
    names = sorted({name for naming in namings for entry in naming for name in entry.split("|")})
    known = madison(names)
    for naming in namings:
        chosen = [_first(entry, version, known) for entry in naming]
        if all(chosen):
            return [one for one in chosen if one]
    have = sorted({upstream(full) for name in names for full in known.get(name, ()) if not name.endswith("dkms")})
    offered = f"they have {', '.join(have)}" if have else "they have none"
    wanted = " or ".join(" and ".join(naming) for naming in namings[:2])
    raise Refused(
        f"the repositories of this host do not have the driver {version} ({wanted}); {offered}: set "
        "nvidia_driver_repository to one that has it, or nvidia_driver_source to 'run'"
    )


def headers(kernel: str) -> str:
    """Return the package with the headers of a kernel; raises Refused where apt knows none."""
    names = [name.format(kernel=kernel) for name in HEADERS]
    known = madison(names)
    for name in names:
        if known.get(name):
            return name
    raise Refused(
        f"there are no headers for the running kernel {kernel}, which the driver's module is built with: none of "
        f"{', '.join(names)} is in the repositories of this host: enable the one that the kernel came from, or restart "
        "into a kernel whose headers are there"
    )


def madison(names: Sequence[str]) -> dict[str, list[str]]:
    """Return name -> the versions that apt could install, newest first."""
    try:
        done = run(["apt-cache", "madison", *names])
    except OSError as error:
        raise Refused(f"can not ask apt for its packages: {error.strerror}: is this Debian or Ubuntu?") from error
    known: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and not fields[2].endswith(" Sources"):
            known.setdefault(fields[0], []).append(fields[1])
    return known


def upstream(version: str) -> str:
    """Return 590.48.01 of 1:590.48.01-0ubuntu1."""
    return version.partition(":")[2].rpartition("-")[0] if ":" in version else version.rpartition("-")[0] or version


def pins(version: str, contained: bool) -> str:
    """Return apt preferences that hold the driver at one version, its dependencies too, up or down.

    In a container nothing of a kernel module comes in whatever depends on it or recommends it.
    """
    text = (
        "# The driver's parts must be of one version: written by gpuops.sglang.nvidia_driver.\n"
        "Package: *nvidia* libcuda* libnv* firmware-nvidia*\n"
        f"Pin: version /^([0-9]+:)?{re.escape(version)}(-|$)/\n"
        "Pin-Priority: 1001\n"
    )
    if contained:
        text += f"\nPackage: {KERNEL_PARTS}\nPin: version *\nPin-Priority: -1\n"
    return text


def owner(path: str) -> str | None:
    """Return the package that a file belongs to, or None."""
    try:
        done = run(["dpkg-query", "-S", path])
    except OSError:
        return None
    line = next(iter(last_lines(done.stdout, 1)), "")
    return line.partition(":")[0] if done.returncode == 0 else None


def _first(entry: str, version: str, known: Mapping[str, Sequence[str]]) -> str | None:
    for name in entry.split("|"):
        for full in known.get(name, ()):
            if upstream(full) == version:
                return f"{name}={full}"
    return None
