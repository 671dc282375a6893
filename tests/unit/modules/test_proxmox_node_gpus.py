# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's unit for the devices of GPUs, with a systemctl that keeps what it is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, node_gpus
from ansible_collections.gpuops.sglang.plugins.modules import proxmox_node_gpus
from conftest import call_module

# a start makes the devices, as the unit does with nvidia-modprobe
SYSTEMCTL = """#!/bin/sh
cd {root}
case "$*" in
'show --property=UnitFileState,ActiveState {unit}')
    echo "UnitFileState=$(cat enabled 2>/dev/null)"
    echo "ActiveState=$(cat active 2>/dev/null || echo inactive)" ;;
daemon-reload) ;;
'enable {unit}') echo enabled > enabled ;;
'restart {unit}')
    if [ -e broken ]; then echo "Job for {unit} failed." >&2; exit 1; fi
    echo active > active
    touch dev/nvidiactl dev/nvidia-uvm dev/nvidia0 ;;
*) echo "unknown: $*" >&2; exit 2 ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Proxmox node with one GPU."""
    root = tmp_path / "node"
    for folder in ("dev", "etc/modules-load.d", "etc/systemd/system", "usr/bin", "proc/driver/nvidia/gpus/0"):
        (root / folder).mkdir(parents=True)
    (root / "usr/bin/nvidia-modprobe").touch()
    (root / "proc/driver/nvidia/gpus/0/information").write_text("Device Minor: \t 0\n")
    programs = {
        "systemctl": SYSTEMCTL.format(root=root, unit=node_gpus.NAME),
        "journalctl": "#!/bin/sh\necho 'NVIDIA-SMI has failed'\n",
    }
    for name, text in programs.items():
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu, "ROOT", root)
    monkeypatch.setattr(proxmox_node_gpus, "require_root", lambda: None)
    return root


def module(**asked: Any) -> dict[str, Any]:
    return call_module(proxmox_node_gpus, asked)


def test_it_is_done_once(node: Path) -> None:
    shown = module(_ansible_check_mode=True)
    assert shown["changed"] and not (node / node_gpus.UNIT).exists()
    done = module()
    files = ["/etc/modules-load.d/gpuops-nvidia.conf", f"/{node_gpus.UNIT}"]
    assert shown["changes"] == done["changes"]
    assert done["changes"][:2] == files == [one["after_header"] for one in done["diff"]]
    assert (node / "enabled").exists() and (node / "dev/nvidia-uvm").exists()
    unit = (node / node_gpus.UNIT).read_text()
    assert (
        "Before=pve-guests.service\n" in unit
        and "-exec /usr/bin/nvidia-modprobe -f {} \\;\n" in unit
        and "-m\n" not in unit
    )
    again = module()
    assert (again["changed"], again["changes"], again["diff"]) == (False, [], [])


@pytest.mark.parametrize("gone", ["nvidia-uvm", "nvidiactl", "nvidia0"])
def test_a_device_that_has_gone_is_made_again(node: Path, gone: str) -> None:
    module()
    (node / "dev" / gone).unlink()
    assert module()["changes"] == [f"{node_gpus.NAME} started: /dev/{gone} has gone"]
    assert (node / "dev" / gone).exists() and not module()["changed"]


def test_what_differs_is_written_and_started_again(node: Path) -> None:
    module()
    assert module(modeset=True)["changes"][-1].endswith("started: to make the device files")
    assert "ExecStart=/usr/bin/nvidia-modprobe -m\n" in (node / node_gpus.UNIT).read_text()
    (node / "enabled").unlink()
    assert module(modeset=True)["changes"] == [f"{node_gpus.NAME} enabled"]


def test_a_node_without_the_driver_is_left_alone(node: Path) -> None:
    (node / "usr/bin/nvidia-modprobe").unlink()
    assert module()["changes"] == []


def test_a_driver_that_makes_no_devices_is_told_in_the_units_words(node: Path) -> None:
    (node / "broken").touch()
    message = module()["msg"]
    assert f"restart {node_gpus.NAME} failed on this node" in message and "NVIDIA-SMI has failed" in message
