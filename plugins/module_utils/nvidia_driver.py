# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether NVIDIA's driver on this host is the wanted one, and what is to be done where it is not.

A container has the kernel module of its node, so its libraries must be of exactly that version. A machine or node has
both, in the version that is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, gpu_driver, processes
from ansible_collections.gpuops.sglang.plugins.module_utils.cuda_versions import driver_problem
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place, find_place
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, run

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # of the kernel -> of Debian's packages
SERVER = re.compile(r"sglang-[a-z0-9-]+\.service")
# the public keys that DKMS signs modules with: Debian's and Ubuntu's
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
STEP = "set nvidia_driver_source, and deploy again"


@dataclass(frozen=True)
class Facts:
    """What there is."""

    place: Place
    driver: Mapping[str, Any]  # of gpu_driver.driver()
    machine: str  # the kernel's architecture
    distribution: str  # e.g. debian
    family: str  # debian, or '' for a distribution whose packages are not known
    gpus: bool  # whether this host has the device of any; a container sees its node's module without one


@dataclass(frozen=True)
class Asked:
    """What the operator wants; '' where nothing is said."""

    version: str = ""
    source: str = ""  # packages, run
    cuda: str = ""  # that the release's torch is made for


@dataclass(frozen=True)
class Verdict:
    """What is to be done and told."""

    todo: str = ""  # libraries, driver
    version: str = ""  # that is wanted
    mismatch: str = ""
    reboot: str = ""  # why one is pending
    told: list[str] = field(default_factory=list)


def gather() -> Facts:
    """Look at this host; nothing is changed, and no library of the driver is loaded."""
    release = _os_release()
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    family = next((name for name in names if name in ("debian", "ubuntu")), "")
    return Facts(
        find_place(),
        gpu_driver.driver(),
        os.uname().machine,
        release.get("PRETTY_NAME") or release.get("ID") or "unknown",
        "debian" if family else "",
        gpu.device() is not None,
    )


def mismatch(facts: Facts) -> str:
    """Say in one line that the driver's libraries are not those of the kernel module; '' where they are.

    Reads files only, so health can ask at any time. Without a kernel module there is nothing to match.
    """
    kernel = facts.driver["version"]
    if not kernel:
        return ""
    found = {one["name"]: one for one in facts.driver["libraries"] if one["loaded"]}
    missing = [name for name in gpu_driver.LIBRARIES if name not in found]
    if missing:
        return f"{missing[0]} is not found {facts.place.here}, and the kernel module is {kernel}"
    for one in found.values():
        if one["version"] != kernel and one["version"] and not one["compatibility"]:
            return f"{one['name']} is {one['version']} ({one['path']}), but the kernel module is {kernel}"
    return ""


def judge(facts: Facts, asked: Asked) -> Verdict:
    """Return what is to be done; raises Refused where that can not work."""
    driver, place = facts.driver, facts.place
    if place.contained and not facts.gpus:
        return Verdict()
    wrong = mismatch(facts)
    if place.contained:
        wanted, todo = driver["version"] or "", "libraries" if wrong else ""
        reboot = ""
    else:
        wanted, reboot = asked.version, _pending(facts, asked.version)
        todo = "driver" if wanted and installed(driver, "driver") != wanted else ""
    told = [f"{wrong}: {_told_step(facts, asked)}"] if wrong and not reboot and not (todo and asked.source) else []
    if todo == "driver" and not asked.source:
        raise Refused(f"nvidia_driver_version asks for {wanted}, but nvidia_driver_source says not from where: {STEP}")
    if todo and asked.source:
        _refuse(facts, asked)
    if not any(one["compatibility"] and one["loaded"] for one in driver["libraries"]):
        problem = driver_problem(asked.cuda, wanted or driver["version"])
        if problem:
            raise Refused(f"{problem}: {_upgrade(place)}")
    return Verdict(todo, wanted, wrong, reboot, told)


def installed(driver: Mapping[str, Any], parts: str) -> str | None:
    """Return the one version of the parts on disk, 'libraries' or 'driver'; None where they are missing or differ."""
    versions = {one["name"]: one["version"] for one in driver["libraries"] if one["loaded"]}
    halves = {versions.get(name) for name in gpu_driver.LIBRARIES}
    if parts == "driver":
        halves.add(driver["version_on_disk"])
    return halves.pop() if len(halves) == 1 else None


def _pending(facts: Facts, version: str) -> str:
    driver = facts.driver
    loaded, on_disk = driver["version"], driver["version_on_disk"]
    if driver["nouveau_loaded"] and version and on_disk == version:
        return f"reboot pending: the module nouveau is loaded, and NVIDIA's {on_disk} can not be beside it"
    if loaded and on_disk and loaded != on_disk:
        return f"reboot pending: the kernel module {loaded} is loaded, and {on_disk} is installed"
    return ""


def _told_step(facts: Facts, asked: Asked) -> str:
    if facts.place.contained:
        return "CUDA can not start with that: " + STEP
    return "set nvidia_driver_version and nvidia_driver_source to have one version of both"


def _upgrade(place: Place) -> str:
    if not place.contained:
        return "set nvidia_driver_version to such a one, or install a release for an older CUDA"
    node = "on the node" if place.manager == "lxc" else "where the kernel of this container is looked after"
    return f"upgrade the driver {node} (nvidia_driver_version), or install a release for an older CUDA"


def _refuse(facts: Facts, asked: Asked) -> None:
    """Raise Refused for what is known to fail."""
    if facts.machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise Refused(f"the processor here is {facts.machine}, and NVIDIA's driver is for {known}: leave this host out")
    if asked.source == "packages" and not facts.family:
        raise Refused(
            f"this host is {facts.distribution}, and the driver's packages are known of Debian, Proxmox VE and Ubuntu: "
            "set nvidia_driver_source to 'run' and nvidia_driver_runfile to NVIDIA's installer"
        )
    if not facts.place.contained:
        _refuse_unsigned(facts)


def _refuse_unsigned(facts: Facts) -> None:
    if not facts.driver["secure_boot"]:
        return
    keys = [str(gpu.ROOT / key) for key in SIGNING_KEYS if (gpu.ROOT / key).exists()]
    for key in keys:
        try:
            done = run(["mokutil", "--test-key", key])
        except OSError:
            break
        if "already enrolled" in done.stdout + done.stderr:
            return
    key = keys[0] if keys else f"/{SIGNING_KEYS[0]}"
    make = "" if keys else "'dkms generate_mok' (package dkms), "
    raise Refused(
        f"Secure Boot is on, and no key that DKMS signs modules with is enrolled ({key}), so this kernel will not load "
        f"the driver: {make}'mokutil --import {key}', restart and enrol it at the console, or switch Secure Boot off"
    )


@dataclass(frozen=True)
class User:
    """Who uses the GPUs of this host."""

    label: str
    stop: list[str]  # the argv that stops it; empty where only its owner can


def users() -> list[User]:
    """Return the running servers of this host and of its containers, and what else holds a GPU."""
    found, own = [], []
    root = processes.CGROUPS
    for folder, folders, _files in os.walk(root):
        for name in filter(SERVER.fullmatch, sorted(folders)):
            cgroup = "/" + str(Path(folder, name).relative_to(root))
            if processes.in_cgroup(cgroup, root):
                own.append(cgroup)
                found.append(_server(name, cgroup))
        folders[:] = [name for name in folders if not SERVER.fullmatch(name)]
    for one in gpu.processes():
        if not (one.process and any(map(one.process.in_cgroup, own))):
            found.append(User(one.label, []))
    return found


def _server(unit: str, cgroup: str) -> User:
    container = re.match(r"/(?:unified/|systemd/)?lxc/(\d+)/", cgroup)
    stop = ["systemctl", "stop", unit]
    if not container:
        return User(f"{unit} of this host", stop)
    return User(f"{unit} of container {container[1]}", ["pct", "exec", container[1], "--", *stop])


def refuse_users(found: list[User], stop_servers: bool) -> None:
    """Raise Refused where somebody uses the GPUs who may not, or can not, be stopped."""
    kept = [user for user in found if not (stop_servers and user.stop)]
    if not kept:
        return
    steps = ["set nvidia_driver_stop_servers to stop the servers"] if any(user.stop for user in kept) else []
    steps += ["end what is no server of ours by hand"] if not all(user.stop for user in kept) else []
    labels = ", ".join(user.label for user in kept)
    raise Refused(f"the GPUs are in use, so their driver stays as it is: {labels}: {', and '.join(steps)}")


def _os_release() -> dict[str, str]:
    try:
        text = (gpu.ROOT / "etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {
        name: value.strip("'\"") for name, _equal, value in (line.partition("=") for line in text.splitlines()) if name
    }
