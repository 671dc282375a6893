# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab decides before it starts anything: packages, images, mirrors, and how it reports a failure."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import images
import lab
import pytest
from paths import LabError, put

INSTALL = "apt-get install -y --no-install-recommends"


class Machine:
    """A machine without the lab's tools, on which `run` only notes the commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.tools: set[str] = set()
        self.fails = ""

    def run(self, *argv: str | Path, **_kwargs: object) -> subprocess.CompletedProcess[str]:
        command = " ".join(map(str, argv))
        self.commands.append(command)
        if self.fails and self.fails in command:
            raise LabError(f"{command} failed")
        if command.startswith(INSTALL):
            self.tools |= set(lab.TOOLS)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine()
    monkeypatch.setattr(lab, "run", made.run)
    monkeypatch.setattr(shutil, "which", lambda tool: tool if tool in made.tools else None)
    monkeypatch.setattr(lab, "SYSTEMD", tmp_path)
    monkeypatch.setattr(lab, "CA_BUNDLE", tmp_path)
    return made


def test_the_network_of_lxc_runs_neither_after_the_installation_nor_at_boot(machine: Machine) -> None:
    lab._install_tools()
    assert machine.commands == [
        "apt-get update",
        "systemctl mask --runtime lxc-net.service lxc.service",
        f"{INSTALL} iproute2 lxc mmdebstrap openssh-client tinyproxy-bin uidmap",
        "systemctl unmask --runtime lxc-net.service lxc.service",
        "systemctl disable lxc-net.service lxc.service",
    ]


def test_the_services_of_an_lxc_that_was_there_are_left_alone(machine: Machine) -> None:
    machine.tools = {"lxc-start"}
    lab._install_tools()
    assert [command for command in machine.commands if "systemctl" in command] == []


def test_without_systemd_no_service_is_asked_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lab, "SYSTEMD", tmp_path / "missing")
    lab._install_tools()
    assert [command for command in machine.commands if "systemctl" in command] == []


def test_a_failed_installation_leaves_no_mask(machine: Machine) -> None:
    machine.fails = INSTALL
    with pytest.raises(LabError, match="apt-get install"):
        lab._install_tools()
    assert machine.commands[-1].startswith("systemctl unmask --runtime")


def test_a_missing_ca_bundle_is_installed(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.tools = set(lab.TOOLS)
    lab._install_tools()
    assert machine.commands == []
    monkeypatch.setattr(lab, "CA_BUNDLE", tmp_path / "missing")
    lab._install_tools()
    assert machine.commands == ["apt-get update", f"{INSTALL} ca-certificates"]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A list whose last entry is the key of the images, each of which is built as an empty folder."""
    keys = ["first"]
    monkeypatch.setattr(images, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(images, "IN_USE", tmp_path / "run/images")
    monkeypatch.setattr(images, "_key", lambda: keys[-1])
    for build in ("_build_base", "_build_shifted", "_build_node"):
        monkeypatch.setattr(images, build, lambda _target, _images: None)
    return keys


def test_images_do_not_change_under_a_lab(recipe: list[str], tmp_path: Path) -> None:
    first = images.build_images()
    assert first["base"] == tmp_path / "images/first/base"
    recipe.append("second")
    assert images.build_images() == first
    shutil.rmtree(tmp_path / "run")  # as `down` does
    assert images.build_images()["base"] == tmp_path / "images/second/base"
    assert [folder.name for folder in (tmp_path / "images").iterdir()] == ["second"]


def test_images_that_were_removed_under_a_lab_are_built_anew(recipe: list[str], tmp_path: Path) -> None:
    images.build_images()
    shutil.rmtree(tmp_path / "images/first")
    recipe.append("second")
    assert images.build_images()["node"] == tmp_path / "images/second/node"


@pytest.mark.parametrize(
    ("targets", "sources"),
    [
        (
            "http://mirror.example/debian/ trixie\nhttps://mirror.example/security trixie-security\n",
            [
                "deb http://mirror.example/debian bookworm main",
                "deb http://mirror.example/debian bookworm-updates main",
                "deb https://mirror.example/security bookworm-security main",
            ],
        ),
        ("mirror+file:///etc/apt/mirrors/debian.list bookworm\ncdrom://[Debian]/ bookworm\n", []),
    ],
)
def test_only_mirrors_that_mmdebstrap_can_read_are_taken(
    monkeypatch: pytest.MonkeyPatch, targets: str, sources: list[str]
) -> None:
    monkeypatch.setattr(images, "run", lambda *_argv: subprocess.CompletedProcess("", 0, targets, ""))
    assert images._sources() == sources


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/ca.crt"),
            "/x/ca.crt: No such file or directory",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "{root}: No space left on device"),
    ],
)
def test_a_failing_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    problem: OSError,
    line: str,
) -> None:
    def fail() -> None:
        raise problem

    monkeypatch.setattr(lab, "ROOT", tmp_path)
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0)
    monkeypatch.setitem(lab.COMMANDS, "up", fail)
    assert lab.main(["up"]) == 1
    assert capsys.readouterr().err == f"lab: {line.format(root=tmp_path)}\n"


def test_the_share_is_filled_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(lab, "SHARE", tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    lab._fill_share()
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[:3]) for line in lines] == [
        "lab: packed torchvision-0.28.0+labstub-py3-none-any.whl",
        "lab: packed triton-3.8.0+labstub1-py3-none-any.whl",
        "lab: no local",
        "lab: made the",
    ]
    assert (tmp_path / "standins/pct").stat().st_mode & 0o777 == 0o755
    lab._fill_share()
    assert capsys.readouterr().out == ""


def test_put_writes_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "folder/file"
    assert put(path, b"1")
    assert not put(path, b"1")
    assert put(path, b"2")
    assert put(path, b"2", 0o755)
    assert path.read_bytes() == b"2"
    assert path.stat().st_mode & 0o777 == 0o755
    assert list(path.parent.iterdir()) == [path]
