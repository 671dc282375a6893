# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu


@pytest.mark.parametrize(
    ("nodes", "device"),
    [
        ([], None),
        (["nvidiactl", "nvidia-uvm"], None),  # the driver without a GPU
        (["nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"], "cuda"),
        (["kfd"], "cuda"),
    ],
)
def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[str], device: str | None) -> None:
    (tmp_path / "dev").mkdir()
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert gpu.device() == device


def test_another_driver_is_another_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    seen = []
    for text in ("580.65", "580.95", "580.95"):
        version.write_text(text)
        seen.append(gpu.inventory())
    assert seen[0] != seen[1] == seen[2]
