# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done about a driver, on files that look like those of machines, nodes and containers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, processes
from ansible_collections.gpuops.sglang.plugins.module_utils import nvidia_driver as nvidia
from ansible_collections.gpuops.sglang.plugins.module_utils import nvidia_packages as packages
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.nvidia_driver import Asked, Facts

CONTAINER, MACHINE, NODE = Place("container", "lxc"), Place("machine"), Place("node")


def driver(loaded: str | None = None, on_disk: str | None = None, **libraries: str) -> dict[str, Any]:
    """Return what gpu_driver.driver() would, with these libraries' versions."""
    names = {"cuda": "libcuda.so.1", "ml": "libnvidia-ml.so.1"}
    found = [
        {"name": names[key], "path": f"/usr/lib/{names[key]}", "version": version, "loaded": True,
          "compatibility": False}
        for key, version in libraries.items()
    ]  # fmt: skip
    return {"version": loaded, "version_on_disk": on_disk, "libraries": found, "nouveau_loaded": False,
            "secure_boot": False, "headers": True, "kernel": "6.8.12-4-pve"}  # fmt: skip


def facts(place: Place, found: Mapping[str, Any], machine: str = "x86_64", family: str = "debian") -> Facts:
    return Facts(place, found, machine, "Debian GNU/Linux 12 (bookworm)" if family else "Alpine Linux", family, True)


def same(version: str) -> dict[str, Any]:
    return driver(version, version, cuda=version, ml=version)


def test_a_container_follows_its_node_whatever_version_is_asked_for() -> None:
    verdict = nvidia.judge(facts(CONTAINER, same("590.48.01")), Asked("580.95.05", "packages", "13.0"))
    assert (verdict.todo, verdict.mismatch, verdict.told) == ("", "", [])
    found = driver("590.48.01", None, cuda="580.95.05", ml="580.95.05")
    verdict = nvidia.judge(facts(CONTAINER, found), Asked("580.95.05", "packages"))
    assert (verdict.todo, verdict.version) == ("libraries", "590.48.01")
    assert verdict.told == []  # it is put right


def test_a_container_without_a_gpu_needs_no_driver() -> None:
    found = replace(facts(CONTAINER, driver("525.60.13")), gpus=False)
    assert nvidia.judge(found, Asked(source="packages", cuda="13.0")) == nvidia.Verdict()


def test_one_library_of_two_is_enough_for_a_mismatch() -> None:
    found = driver("590.48.01", None, cuda="590.48.01", ml="580.95.05")
    assert nvidia.mismatch(facts(CONTAINER, found)) == (
        "libnvidia-ml.so.1 is 580.95.05 (/usr/lib/libnvidia-ml.so.1), but the kernel module is 590.48.01"
    )
    assert nvidia.mismatch(facts(CONTAINER, driver(None, None, cuda="580.95.05"))) == ""  # no module, nothing to match


def test_a_mismatch_without_a_source_is_told_with_the_next_step() -> None:
    verdict = nvidia.judge(facts(CONTAINER, driver("590.48.01", None, cuda="580.95.05", ml="580.95.05")), Asked())
    assert verdict.todo == "libraries"
    assert verdict.told[0].endswith("CUDA can not start with that: set nvidia_driver_source, and deploy again")


def test_a_machine_that_asks_for_nothing_is_left_alone() -> None:
    for found in (driver(), same("580.95.05")):
        verdict = nvidia.judge(facts(MACHINE, found), Asked(source="packages"))
        assert (verdict.todo, verdict.reboot, verdict.told) == ("", "", [])


def test_a_restart_is_pending_while_another_module_is_loaded_than_installed() -> None:
    found = driver("580.95.05", "590.48.01", cuda="590.48.01", ml="590.48.01")
    for asked in (Asked(), Asked("590.48.01", "packages")):
        verdict = nvidia.judge(facts(NODE, found), asked)
        assert verdict.todo == ""
        assert verdict.reboot == "reboot pending: the kernel module 580.95.05 is loaded, and 590.48.01 is installed"


def test_nouveau_beside_an_installed_driver_means_a_restart() -> None:
    found = {**driver(None, "590.48.01", cuda="590.48.01", ml="590.48.01"), "nouveau_loaded": True}
    assert "the module nouveau is loaded" in nvidia.judge(facts(MACHINE, found), Asked("590.48.01", "run")).reboot


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (facts(MACHINE, same("580.95.05"), machine="ppc64le"), "the processor here is ppc64le"),
        (facts(MACHINE, same("580.95.05"), family=""), "this host is Alpine Linux"),
        (facts(MACHINE, {**same("580.95.05"), "secure_boot": True}), "Secure Boot is on, and no key"),
    ],
)
def test_what_can_not_work_is_refused_only_where_something_is_to_be_done(
    found: Facts, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert nvidia.judge(found, Asked("580.95.05", "packages")).todo == ""
    with pytest.raises(Refused, match=words):
        nvidia.judge(found, Asked("590.48.01", "packages"))


@pytest.mark.parametrize(("answer", "allowed"), [("is already enrolled", True), ("is not enrolled", False)])
def test_secure_boot_takes_modules_that_an_enrolled_key_signs(
    answer: str, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    key = tmp_path / "var/lib/dkms/mok.pub"
    key.parent.mkdir(parents=True)
    key.write_text("a key")
    tool = tmp_path / "mokutil"
    tool.write_text(f'#!/bin/sh\n[ "$*" = "--test-key {key}" ] && echo "$2 {answer}"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = facts(MACHINE, {**same("580.95.05"), "secure_boot": True})
    if allowed:
        assert nvidia.judge(found, Asked("590.48.01", "packages")).todo == "driver"
    else:
        with pytest.raises(Refused, match=f"'mokutil --import {key}'"):
            nvidia.judge(found, Asked("590.48.01", "packages"))


def test_a_driver_too_old_for_torch_is_refused_and_one_that_comes_is_what_counts() -> None:
    old = facts(MACHINE, same("570.133.07"))
    with pytest.raises(Refused, match=r"CUDA 13.0, which needs NVIDIA's driver 580 or newer .*, not 570.133.07"):
        nvidia.judge(old, Asked(cuda="13.0"))
    assert nvidia.judge(old, Asked("590.48.01", "packages", "13.0")).todo == "driver"
    with pytest.raises(Refused, match=r"not 575\.57\.08"):
        nvidia.judge(old, Asked("575.57.08", "packages", "13.0"))


def test_the_compatibility_library_carries_a_newer_cuda() -> None:
    found = driver("570.133.07", None, cuda="580.95.05", ml="570.133.07")
    found["libraries"][0]["compatibility"] = True
    verdict = nvidia.judge(facts(CONTAINER, found), Asked(cuda="13.0"))
    assert (verdict.todo, verdict.told) == ("", [])


def test_running_servers_of_the_host_and_its_containers_are_known_and_nobody_is_stopped_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cgroup, pids in (
        ("system.slice/sglang-own.service", "41\n"),
        ("system.slice/sglang-idle.service", ""),
        ("system.slice/ssh.service", "7\n"),
        ("lxc/129/ns/system.slice/sglang-qwen36.service", "42\n43\n"),
    ):
        (tmp_path / cgroup).mkdir(parents=True)
        (tmp_path / cgroup / "cgroup.procs").write_text(pids)
    monkeypatch.setattr(processes, "CGROUPS", tmp_path)
    stranger = gpu.GpuProcess(99, 1024.0, 0, None)
    monkeypatch.setattr(gpu, "processes", lambda: [])
    found = nvidia.users()
    assert sorted(user.label for user in found) == [
        "sglang-own.service of this host",
        "sglang-qwen36.service of container 129",
    ]
    assert ["pct", "exec", "129", "--", "systemctl", "stop", "sglang-qwen36.service"] in [user.stop for user in found]
    with pytest.raises(Refused, match=r"sglang-qwen36.service of container 129.*set nvidia_driver_stop_servers"):
        nvidia.refuse_users(found, stop_servers=False)
    nvidia.refuse_users(found, stop_servers=True)
    monkeypatch.setattr(gpu, "processes", lambda: [stranger])
    with pytest.raises(Refused, match=r"process 99.*end what is no server of ours by hand") as caught:
        nvidia.refuse_users(nvidia.users(), stop_servers=True)
    assert "qwen36" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "bare"),
    [
        ("590.48.01-1", "590.48.01"),
        ("580.95.05-0ubuntu0.24.04.2", "580.95.05"),
        ("1:590.48.01-1ubuntu1", "590.48.01"),
        ("550.163.01-1~deb12u1", "550.163.01"),
        ("590.48.01", "590.48.01"),
    ],
)
def test_the_drivers_version_in_that_of_a_package(version: str, bare: str) -> None:
    assert packages.upstream(version) == bare


DEBIAN = ("libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-open-kernel-dkms", "nvidia-kernel-dkms")
CASES = {
    # name -> version and what else there is
    "debian": (dict.fromkeys(DEBIAN, "550.163.01-2"), "550.163.01",
               ["libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-open-kernel-dkms"]),
    "nvidia": ({**dict.fromkeys(("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
                              "590.48.01-1"), "nvidia-smi": "550.163.01-2"}, "590.48.01",
               ["libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"]),
    "ubuntu": (dict.fromkeys(("libnvidia-compute-580-server", "nvidia-utils-580-server",
                              "nvidia-dkms-580-server-open"), "580.95.05-0ubuntu0.24.04.2"), "580.95.05",
               ["libnvidia-compute-580-server", "nvidia-utils-580-server", "nvidia-dkms-580-server-open"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_names_are_those_of_the_repository_that_has_the_version(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offered, version, names = CASES[case]
    answer = "".join(f"{name} | {full} | file:/srv ./ Packages\n" for name, full in offered.items())
    monkeypatch.setattr(packages, "run", lambda argv: subprocess.CompletedProcess(argv, 0, answer, ""))
    assert packages.choose(version, ["libraries", "open"]) == [f"{name}={offered[name]}" for name in names]
    with pytest.raises(Refused, match=r"do not have the driver 575\.57\.08"):
        packages.choose("575.57.08", ["libraries"])


def test_headers_are_those_of_the_running_kernel_by_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel, name in (
        ("6.8.12-4-pve", "proxmox-headers-6.8.12-4-pve"),
        ("6.1.0-40-amd64", "linux-headers-6.1.0-40-amd64"),
    ):
        answer = f"{name} | 1 | file:/srv ./ Packages\nlinux-headers-amd64 | 1 | file:/srv ./ Packages\n"
        monkeypatch.setattr(packages, "run", lambda argv, said=answer: subprocess.CompletedProcess(argv, 0, said, ""))
        assert packages.headers(kernel) == name
    with pytest.raises(Refused, match=r"no headers for the running kernel 5.4.1-1-pve.*pve-headers-5.4.1-1-pve"):
        packages.headers("5.4.1-1-pve")
