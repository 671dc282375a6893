# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single parts: where libraries are found, and what is said of a device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_driver
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_node_faults import node_faults
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place, find_place

if TYPE_CHECKING:
    from gpu_hosts import Host

pytest_plugins = ["gpu_hosts"]
MACHINE, NODE, LXC, DOCKER = Place("machine"), Place("node"), Place("container", "lxc"), Place("container", "docker")
GIVE = "on the node of this container, 'pct set CTID --devN /dev/nvidia0,mode=0666', and restart the container"


def fault(place: Place, **facts: Any) -> str:
    """Return what is said of /dev/nvidia0."""
    node = {
        "path": "/dev/nvidia0", "type": "character", "driver": "nvidia", "major": 195, "minor": 0,
        "expected_major": 195, "mode": "0666", "owner": "root", "group": "root", "permitted": True, "open": "opens",
        **facts,
    }  # fmt: skip
    return " ".join(node_faults(node, "sglang", place))


def test_a_sound_device_is_not_told() -> None:
    assert fault(LXC) == fault(MACHINE, expected_major=None) == fault(MACHINE, open=None) == ""


@pytest.mark.parametrize(
    ("place", "facts", "said"),
    [
        (
            LXC,
            {"open": "EPERM"},
            f"/dev/nvidia0 (195:0) can not be opened by 'sglang', EPERM: its control group does not permit it: {GIVE}",
        ),
        (
            DOCKER,
            {"open": "EPERM"},
            "/dev/nvidia0 (195:0) can not be opened by 'sglang', EPERM: its control group does not permit it: a "
            "'systemctl daemon-reload' on its host takes devices away: have the container started with its GPUs again "
            "('--gpus all', or '--device /dev/nvidia0')",
        ),
        (
            MACHINE,
            {"open": "EPERM"},
            "/dev/nvidia0 (195:0) can not be opened by 'sglang', EPERM: its control group does not permit it: see "
            "DevicePolicy and DeviceAllow of the unit that this runs in, on this machine",
        ),
        (
            LXC,
            {"open": "EACCES", "mode": "0660", "group": "video"},
            "/dev/nvidia0 can not be opened by 'sglang', EACCES (mode 0660, owner root, group video): add 'sglang' to "
            f"the group video, or {GIVE}",
        ),
        (
            LXC,
            {"open": None, "permitted": False, "mode": "0660", "owner": "nobody", "group": "nogroup"},
            "/dev/nvidia0 can not be opened by 'sglang', EACCES (mode 0660, owner nobody, group nogroup): " + GIVE,
        ),
        (
            MACHINE,
            {"open": "ENXIO"},
            "/dev/nvidia0 (195:0) can not be opened by 'sglang', ENXIO: nothing drives it: see whether its module is "
            "loaded and its GPU is alive on this machine",
        ),
        (
            NODE,
            {"open": "EIO"},
            "/dev/nvidia0 (195:0) can not be opened by 'sglang', EIO: look for NVRM or "
            "amdgpu in 'journalctl -k' on this node",
        ),
        (
            LXC,
            {"path": "/dev/kfd", "open": "EINVAL", "major": 235, "expected_major": 235},
            "/dev/kfd (235:0) can not be opened by 'sglang', EINVAL: look for NVRM or amdgpu in 'journalctl -k' on the "
            "node of this container",
        ),
        (
            MACHINE,
            {"path": "/dev/kfd", "open": "EACCES", "mode": "0660", "group": "render"},
            "/dev/kfd can not be opened by 'sglang', EACCES (mode 0660, owner root, group render): add 'sglang' to the "
            "group render",
        ),
    ],
)
def test_what_is_said_of_a_device(place: Place, facts: dict[str, Any], said: str) -> None:
    assert fault(place, **facts) == said


@pytest.mark.parametrize(
    ("path", "text", "place"),
    [
        ("run/systemd/container", "lxc\n", LXC),
        (".dockerenv", "", DOCKER),
        ("run/.containerenv", "engine=podman", Place("container", "podman")),
        ("proc/1/environ", "HOME=/\0container=lxc\0TERM=linux\0", LXC),
        ("usr/bin/pveversion", "", NODE),
        ("etc/hostname", "b200", MACHINE),
    ],
)
def test_what_a_host_is(bare: Host, path: str, text: str, place: Place) -> None:
    bare.write(path, text)
    assert find_place() == place


def test_the_loaders_order_of_libraries(bare: Host, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = bare.root / "first", bare.root / "other"
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin:/bin")
    assert ldconfig
    (bare.programs / "ldconfig").symlink_to(ldconfig)
    for folder, version in ((first, "580.95.05"), (other, "570.133.20")):
        folder.mkdir()
        shutil.copy(library, folder / f"libcuda.so.{version}")
        (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    bare.write("etc/ld.so.conf", f"{first}\n{other}\n")
    cache = bare.root / "etc/ld.so.cache"
    subprocess.run(
        [ldconfig, "-X", "-C", cache, "-f", bare.root / "etc/ld.so.conf"], check=True, stderr=subprocess.PIPE
    )

    def seen() -> list[tuple[str, bool]]:
        return [(one["version"], one["loaded"]) for one in gpu_driver.libraries() if one["name"] == "libcuda.so.1"]

    assert seen() == [("580.95.05", True), ("570.133.20", False)]
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{library.parent}")
    assert seen() == [("580.159.04", True), ("580.95.05", False), ("570.133.20", False)]
    cache.unlink()
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert seen() == []
    usual = bare.root / "usr/lib/x86_64-linux-gnu"
    usual.mkdir(parents=True)
    (usual / "libcuda.so.1").symlink_to(library)
    assert seen() == [("580.159.04", True)]


def test_a_library_of_forward_compatibility_is_not_a_mismatch(bare: Host, library: Path, monkeypatch: Any) -> None:
    folder = bare.root / "usr/local/cuda/compat"
    folder.mkdir(parents=True)
    shutil.copy(library, folder / "libcuda.so.590.44.01")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.590.44.01")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    bare.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon\n")
    (one,) = gpu_driver.libraries()
    assert (one["version"], one["compatibility"], gpu_driver.driver()["libraries_match"]) == ("590.44.01", True, None)
