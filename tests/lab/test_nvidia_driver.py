# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role nvidia_driver on real Debian systems, with packages named as NVIDIA's and an installer that stands in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debian_root import CLOSED, OPEN, Key, Package, Root, build_repository

VERSIONS = ("590.44.01", "590.48.01")
LIBS = "usr/lib/x86_64-linux-gnu"
STANDIN = Path(__file__).resolve().parents[2] / "molecule/lab/standins/driver/installer.sh"


KERNEL = os.uname().release  # a root has the kernel of this machine
POSTINST = f"""#!/bin/sh
mkdir -p /lib/modules/{KERNEL}/updates/dkms
echo "{{version}}" >/lib/modules/{KERNEL}/updates/dkms/nvidia.ko
echo "updates/dkms/nvidia.ko:" >/lib/modules/{KERNEL}/modules.dep
"""
# the kernel's own tools, for modules that are text
MODINFO = f"#!/bin/sh\ncat /lib/modules/{KERNEL}/updates/dkms/nvidia.ko\n"
MODPROBE = """#!/bin/sh
mkdir -p /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  $(modinfo)  Release Build" >/proc/driver/nvidia/version
"""


def packages() -> Iterator[Package]:
    """Yield the driver's packages in each version as NVIDIA's repository for Debian has them."""
    for version in VERSIONS:
        full = f"{version}-1"
        for name, library in (
            ("libcuda1", "libcuda.so"),
            ("libnvidia-ml1", "libnvidia-ml.so"),
            ("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so"),
        ):
            more = {}
            if name == "libcuda1":
                more = {
                    "Depends": f"libnvidia-ptxjitcompiler1 (= {full})",
                    "Recommends": f"nvidia-kernel-dkms (= {full}) | nvidia-kernel-open-dkms (= {full})",
                }
            files, links = {f"{LIBS}/{library}.{version}": ""}, {f"{LIBS}/{library}.1": f"{library}.{version}"}
            yield Package(name, full, more, files, links)
        needs = f"libcuda1 (= {full}), libnvidia-ml1 (= {full})"
        smi = {"usr/bin/nvidia-smi": "#!/bin/sh\nexit 9\n"}
        yield Package("nvidia-driver-cuda", full, {"Depends": needs, "Conflicts": "nvidia-smi"}, smi)
        module = {"DEBIAN/postinst": POSTINST.format(version=version)}
        yield Package("nvidia-kernel-open-dkms", full, {"Depends": "dkms"}, module)
    yield Package("dkms", "1", {}, {"usr/sbin/dkms": "#!/bin/sh\n"})
    for name in ("gcc", "make"):
        yield Package(name, "1")
    yield Package(f"linux-headers-{KERNEL}", "1", {}, {f"lib/modules/{KERNEL}/build/Makefile": ""})


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "nvidia"
    build_repository(folder, list(packages()), key)
    return folder


@pytest.fixture
def container(tmp_path: Path, repository: Path, debian12: str) -> Root:
    """A container of Debian 12 with that repository in a folder, and no way to another."""
    root = Root(debian12, tmp_path / "container")
    root.put("run/systemd/container", "lxc")
    return offline(root, repository)


@pytest.fixture
def machine(tmp_path: Path, repository: Path, debian12: str) -> Root:
    """The same as a machine, whose kernel's tools know modules that are text."""
    return as_machine(Root(debian12, tmp_path / "machine"), repository)


@pytest.fixture
def machine13(tmp_path: Path, repository: Path, debian13: str) -> Root:
    """One of Debian 13."""
    return as_machine(Root(debian13, tmp_path / "machine"), repository)


def as_machine(root: Root, repository: Path) -> Root:
    for name, text in (("modinfo", MODINFO), ("modprobe", MODPROBE), ("update-initramfs", "#!/bin/sh\n")):
        root.put(f"usr/local/sbin/{name}", text, 0o755)
    for folder in ("modprobe.d", "modules-load.d"):
        root.put(f"etc/{folder}/none", "")
    return offline(root, repository)


def offline(root: Root, repository: Path) -> Root:
    root.put("etc/apt/sources.list", "")
    shutil.copytree(repository, root.put("srv/nvidia"))
    return root


def asked(key: Key, **more: Any) -> dict[str, Any]:
    repository = {"uris": ["file:/srv/nvidia"], "key": key.public}
    return {"nvidia_driver_source": "packages", "nvidia_driver_repository": repository, **more}


def installer(root: Root, version: str, architecture: str = "x86_64") -> str:
    """Put NVIDIA's installer's stand-in on a root and return its path there."""
    text = STANDIN.read_text().replace("@VERSION@", version).replace("@ARCHITECTURE@", architecture)
    root.put(f"srv/NVIDIA-Linux-{architecture}-{version}.run", text)
    return f"/srv/NVIDIA-Linux-{architecture}-{{version}}.run"


def versions(root: Root) -> dict[str, str]:
    """Return package -> version of the driver's installed packages."""
    form = "-f=${Package} ${Version} ${db:Status-Status}\\n"
    lines = root.run("dpkg-query", "-W", form, "*nvidia*", "libcuda*", "dkms").output.splitlines()
    return dict(line.split()[:2] for line in lines if line.endswith(" installed"))


LIBRARIES = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-driver-cuda")


def test_libraries_follow_the_kernel_module_down_too_and_stay(container: Root, key: Key) -> None:
    container.put("etc/apt/sources.list", "deb [trusted=yes] file:/srv/nvidia /\n")
    container.run("sh", "-c", "apt-get -q update && apt-get -q -y --no-install-recommends install nvidia-driver-cuda")
    assert versions(container) == dict.fromkeys(LIBRARIES, "590.48.01-1")
    container.put("etc/apt/sources.list", "")
    container.module = CLOSED.format("590.44.01")
    run = container.role("nvidia_driver", asked(key))
    assert run.status == 0, run.output
    assert versions(container) == dict.fromkeys(LIBRARIES, "590.44.01-1"), run.output
    again = container.role("nvidia_driver", asked(key))
    assert "changed=0" in again.line("ok="), again.output
    # what anybody upgrades stays at the node's version
    assert "0 upgraded" in container.run("apt-get", "-s", "dist-upgrade").output


def test_check_mode_says_it_and_changes_nothing(container: Root, key: Key) -> None:
    container.module = OPEN.format("590.48.01")
    run = container.role("nvidia_driver", asked(key), check=True)
    assert "libraries 590.48.01 from packages" in run.output, run.output
    assert "changed=1" in run.line("ok=")
    assert not (container.folder / "upper/etc/apt/keyrings").exists()


def test_another_key_is_not_believed(container: Root, key: Key, tmp_path: Path) -> None:
    container.module = OPEN.format("590.48.01")
    other = Key(tmp_path / "other")
    other.close()
    run = container.role("nvidia_driver", asked(other))
    assert run.status == 2, run.output
    assert "NO_PUBKEY" in run.output, run.output
    assert versions(container) == {}


def test_a_difference_is_told_where_nothing_says_from_where(container: Root) -> None:
    container.module = OPEN.format("590.48.01")
    run = container.module_run("nvidia_driver_info")
    assert run["todo"] == "libraries" and run["changed"] is False
    assert run["told"] == [
        "libcuda.so.1 is not found in this container, and the kernel module is 590.48.01: "
        "CUDA can not start with that: set nvidia_driver_source, and deploy again"
    ]


def test_a_version_that_the_repository_does_not_have_is_named_with_those_it_has(container: Root, key: Key) -> None:
    container.put("etc/apt/sources.list", "deb [trusted=yes] file:/srv/nvidia /\n")
    assert container.run("apt-get", "update").status == 0
    container.module = OPEN.format("575.57.08")
    run = container.module_run("nvidia_driver_info", source="packages", resolve=True)
    assert "do not have the driver 575.57.08" in run["msg"]
    assert "they have 590.44.01, 590.48.01" in run["msg"]


def test_a_driver_that_is_too_old_for_torch_is_refused(container: Root) -> None:
    container.module = CLOSED.format("570.133.07")
    run = container.module_run("nvidia_driver_info", cuda="13.0")
    assert run["msg"] == (
        "torch of this release is made for CUDA 13.0, which needs NVIDIA's driver 580 or newer "
        "(580.65.06 came out with it), not 570.133.07: upgrade the driver on the node (nvidia_driver_version), "
        "or install a release for an older CUDA"
    )


def test_the_installer_brings_libraries_without_a_kernel_module(container: Root) -> None:
    for version, option in (("470.256.02", "--no-kernel-module"), ("590.48.01", "--no-kernel-modules")):
        container.module = CLOSED.format(version)
        asked = {"path": installer(container, version), "version": version, "parts": "libraries"}
        run = container.module_run("nvidia_runfile", **asked)
        assert run.get("changed") is True, run
        assert option in (container.folder / "upper/var/lib/nvidia/words").read_text().split()
        assert container.module_run("nvidia_driver_info")["todo"] == ""
        assert container.module_run("nvidia_runfile", **asked)["changed"] is False


def test_the_installer_is_looked_at_before_it_is_run(container: Root) -> None:
    container.module = OPEN.format("590.48.01")
    wanted = {"version": "590.48.01", "parts": "libraries"}

    def refused(path: str) -> str:
        return str(container.module_run("nvidia_runfile", path=path, **wanted)["msg"])

    assert "there is no /srv/a.run on this host" in refused("/srv/a.run")
    path = installer(container, "590.48.01", "aarch64")
    assert "is for aarch64, and this host is x86_64" in refused(path)
    installer(container, "590.44.01")
    assert "is the driver 590.44.01, and 590.48.01 is needed" in refused("/srv/NVIDIA-Linux-x86_64-590.44.01.run")
    path = installer(container, "590.48.01")
    whole = container.put("srv/NVIDIA-Linux-x86_64-590.48.01.run").read_text()
    container.put("srv/NVIDIA-Linux-x86_64-590.48.01.run", whole[: -len("# end\n")])
    assert "is damaged" in refused(path)
    container.put("srv/something.run", "echo a game")
    assert "is no driver installer" in refused("/srv/something.run")


def test_the_installer_beside_packages_is_refused(container: Root) -> None:
    container.put("etc/apt/sources.list", "deb [trusted=yes] file:/srv/nvidia /\n")
    container.run("sh", "-c", "apt-get -q update && apt-get -q -y --no-install-recommends install nvidia-driver-cuda")
    container.module = OPEN.format("590.44.01")
    run = container.module_run(
        "nvidia_runfile", path=installer(container, "590.44.01"), version="590.44.01", parts="libraries"
    )
    assert "comes from the package libcuda1" in run["msg"]


@pytest.mark.slow
def test_a_machine_gets_driver_and_headers_and_is_told_of_a_restart(machine13: Root, key: Key) -> None:
    machine = machine13
    run = machine.role("nvidia_driver", asked(key, nvidia_driver_version="590.44.01"))
    assert run.status == 0, run.output
    found = versions(machine)
    assert found["nvidia-kernel-open-dkms"] == found["libcuda1"] == "590.44.01-1"
    assert machine.run("dpkg-query", "-W", f"linux-headers-{KERNEL}").status == 0
    assert "blacklist nouveau" in (machine.folder / "upper/etc/modprobe.d/gpuops-nouveau.conf").read_text()

    machine.module = OPEN.format("590.44.01")  # as it was loaded
    run = machine.role("nvidia_driver", asked(key, nvidia_driver_version="590.48.01"))
    assert run.status == 2, run.output
    text = " ".join(run.output.split())
    assert "the kernel module 590.44.01 is loaded, and 590.48.01 is installed: set nvidia_driver_reboot" in text, text
    assert versions(machine)["libcuda1"] == "590.48.01-1"


def test_what_can_not_work_on_a_machine_is_refused_before_anything_changes(machine: Root) -> None:
    wanted = {"version": "590.48.01", "source": "packages"}

    def refused(**more: Any) -> str:
        return str(machine.module_run("nvidia_driver_info", **{**wanted, **more})["msg"])

    assert "nvidia_driver_source says not from where" in refused(source="")
    # its repository is not known yet, so there are no headers
    assert f"there are no headers for the running kernel {KERNEL}" in refused(resolve=True)
    variable = machine.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
    variable.write_bytes(b"\6\0\0\0\1")
    assert "Secure Boot is on, and no key that DKMS signs modules with is enrolled" in refused()
    variable.unlink()
    release = machine.put("etc/os-release", 'ID=alpine\nPRETTY_NAME="Alpine Linux v3.22"\n')
    assert "this host is Alpine Linux v3.22" in refused()
    assert release.exists()


def test_nouveau_is_named_and_on_the_blacklist(machine: Root, key: Key) -> None:
    machine.put("sys/module/nouveau/version", "")
    run = machine.role("nvidia_driver", asked(key, nvidia_driver_version="590.48.01"))
    assert run.status == 2
    assert "the module nouveau has the GPUs of this host" in run.output
    assert "blacklist nouveau" in (machine.folder / "upper/etc/modprobe.d/gpuops-nouveau.conf").read_text()
    assert versions(machine) == {}
    # NVIDIA's installer says it in its own words
    (machine.folder / f"upper/usr/lib/modules/{KERNEL}/build").mkdir(parents=True)
    asked_of = {"path": installer(machine, "590.48.01"), "version": "590.48.01", "parts": "driver"}
    told = machine.module_run("nvidia_runfile", **asked_of)["msg"]
    assert "Nouveau kernel driver is currently in use" in told and told.endswith("on the blacklist now")


def test_the_installers_own_reasons_have_a_next_step(machine: Root) -> None:
    asked_of = {"path": installer(machine, "590.48.01"), "version": "590.48.01", "parts": "driver"}
    told = machine.module_run("nvidia_runfile", **asked_of)["msg"]
    assert "Unable to find the kernel source tree for the currently running kernel. Please make sure" in told
    assert told.endswith("install the headers of the running kernel")
    machine.module = OPEN.format("590.44.01")
    told = machine.module_run("nvidia_runfile", **asked_of)["msg"]
    assert "appears to be already loaded" in told and "nothing may use the GPUs" in told
