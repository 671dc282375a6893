# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver from NVIDIA's installer, a `.run` file; what it can do, it is asked."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import nvidia_packages
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_driver import LIBRARIES, libraries
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run

WAIT = 1800  # s: the module is built on the host's own processors
LOG = Path("/var/log/nvidia-installer.log")
# what it is asked to do, most wanted spelling first; one that an installer does not know is left out
ALWAYS = (("--no-x-check",), ("--no-install-compat32-libs",), ("--no-opengl-files",))
LIBRARIES_ONLY = (
    ("--no-kernel-modules", "--no-kernel-module"),  # the first from 515 on, the second before
    ("--no-nouveau-check",), ("--no-nvidia-modprobe",), ("--no-rebuild-initramfs",), ("--no-systemd",), ("--no-drm",),
)  # fmt: skip
DRIVER = (("--dkms",), ("--no-rebuild-initramfs",))


@dataclass(frozen=True)
class Runfile:
    """An installer and what it says of itself."""

    path: Path
    version: str
    architecture: str

    def __post_init__(self) -> None:
        here = os.uname().machine
        if self.architecture != here:
            raise Refused(
                f"{self.path} is for {self.architecture}, and this host is {here}: set nvidia_driver_runfile to "
                f"NVIDIA-Linux-{here}-{self.version}.run"
            )


def read(path: Path, version: str) -> Runfile:
    """Ask an installer what it is; raises Refused for one that is missing, damaged or not the one of `version`."""
    if not path.is_file():
        raise Refused(f"there is no {path} on this host: put NVIDIA's installer there or correct nvidia_driver_runfile")
    told = _ask(path, "--info")
    label = re.search(r"for Linux-(\w+) (\d{3}\.\d{2,3}(?:\.\d{2})?)", told)
    if not label:
        said = " | ".join(last_lines(told, 2)) or "nothing"
        raise Refused(
            f"{path} is no driver installer of NVIDIA's, to --info it says: {said}: correct nvidia_driver_runfile"
        )
    runfile = Runfile(path, label[2], label[1])
    if runfile.version != version:
        raise Refused(
            f"{path} is the driver {runfile.version}, and {version} is needed: set nvidia_driver_runfile to "
            f"NVIDIA-Linux-{runfile.architecture}-{version}.run ('{{version}}' in its name stands for it)"
        )
    done = _run(path, "--check")
    if done.returncode != 0:
        said = " | ".join(last_lines(done.stderr or done.stdout, 1))
        raise Refused(f"{path} is damaged, {said}: copy it again")
    return runfile


def install(runfile: Runfile, parts: str, flavour: str) -> None:
    """Install `parts` ('libraries' or 'driver'); raises Refused with the installer's own words where it fails."""
    for one in libraries():
        package = nvidia_packages.owner(one["path"]) if one["name"] in LIBRARIES and one["loaded"] else None
        if package:
            raise Refused(
                f"{one['path']} comes from the package {package}, and NVIDIA's installer beside packages leaves a mix: "
                f"set nvidia_driver_source to 'packages', or remove it with 'apt-get remove {package}'"
            )
    options = _options(runfile.path, parts, flavour)
    began = time.time()
    done = _run(runfile.path, "--silent", *options)
    if done.returncode != 0:
        raise Refused(_failure(runfile, done, options, began))


def _options(path: Path, parts: str, flavour: str) -> list[str]:
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", _ask(path, "--advanced-options")))
    wanted = [*ALWAYS, *(LIBRARIES_ONLY if parts == "libraries" else DRIVER)]
    chosen = [name for name in (next((name for name in names if name in known), "") for names in wanted) if name]
    if parts == "libraries" and not {*LIBRARIES_ONLY[0]} & {*chosen}:
        raise Refused(
            f"{path} tells of no option that leaves the kernel module out, which a container can not have: install "
            "the libraries from packages (nvidia_driver_source: packages)"
        )
    if parts == "driver":
        chosen += _flavour(path, known, flavour)
    return chosen


def _flavour(path: Path, known: set[str], flavour: str) -> list[str]:
    if "--kernel-module-type" in known:
        return [f"--kernel-module-type={flavour}"]
    if "--kernel-module-build-directory" in known:
        return [f"--kernel-module-build-directory={'kernel-open' if flavour == 'open' else 'kernel'}"]
    if flavour == "open":
        raise Refused(
            f"{path} has no open kernel module: set nvidia_driver_flavour to 'proprietary', or a newer driver"
        )
    return []


def _failure(runfile: Runfile, done: subprocess.CompletedProcess[str], options: list[str], began: float) -> str:
    words = f"{done.stdout}\n{done.stderr}"
    with contextlib.suppress(OSError):
        if LOG.stat().st_mtime >= began - 1:  # else it is of an earlier run
            words += "\n" + LOG.read_text(encoding="utf-8", errors="replace")
    # the first of its errors is the cause; each may go over several lines and ends with an empty one
    error = re.search(r"ERROR:(.+?)(?:\n\s*\n|\Z)", words, re.DOTALL)
    text = " ".join((error[1] if error else " | ".join(last_lines(words, 2)) or "nothing").split())
    what = f"{runfile.path} {' '.join(options)} ended with status {done.returncode}, saying: {text[:300]}"
    steps = (
        ("kernel source tree", "install the headers of the running kernel"),
        ("nouveau", "restart this host, since nouveau is on the blacklist now"),
        ("loaded in your kernel", "nothing may use the GPUs, nvidia-persistenced neither; else restart this host"),
        ("No space left", "make room in /tmp and /usr"),
    )
    step = next((step for words, step in steps if words.lower() in text.lower()), f"see {LOG}")
    return f"{what}: {step}"


def _ask(path: Path, option: str) -> str:
    done = _run(path, option)
    return done.stdout + done.stderr


def _run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    try:
        return run(["sh", str(path), *options], {**os.environ, "LC_ALL": "C", "TERM": "dumb"}, timeout=WAIT)
    except subprocess.TimeoutExpired:
        raise Refused(f"{path} {' '.join(options)} does not end within {WAIT} s: see {LOG}") from None
