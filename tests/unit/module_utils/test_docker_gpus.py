# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import docker_gpus
from ansible_collections.gpuops.sglang.plugins.module_utils.docker_gpus import containers, refuse_reload
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord

ID = "1a2b3c4d5e6f" + "0" * 52
DOCKER = f"/system.slice/docker-{ID}.scope"


def running(proc: Path, pid: int, cgroup: str, *devices: str, version: int = 2) -> None:
    folder = proc / str(pid)
    (folder / "root/dev").mkdir(parents=True)
    for name in devices:
        (folder / "root/dev" / name).touch()
    lines = [f"0::{cgroup}"] if version == 2 else [f"12:devices:{cgroup}", f"1:name=systemd:{cgroup}", "0::/"]
    (folder / "cgroup").write_text("\n".join(lines) + "\n")
    fields = " ".join(["S", *["0"] * 18, "100"])
    (folder / "stat").write_text(f"{pid} (python) {fields}\n")
    (folder / "status").write_text("Name:\tpython\nUid:\t0\t0\t0\t0\n")
    (folder / "cmdline").write_bytes(b"python\0train.py\0--api-key\0planted\0")


@pytest.mark.parametrize("version", [1, 2])
def test_a_gpu_container_of_docker_is_named_once(tmp_path: Path, version: int) -> None:
    running(tmp_path, 20, DOCKER, "nvidiactl", "nvidia0", version=version)
    running(tmp_path, 21, DOCKER, "nvidiactl", "nvidia0", version=version)
    (tmp_path / "self").mkdir()
    (tmp_path / "22").mkdir()  # it has just ended
    (found,) = containers(tmp_path)
    assert found.startswith("container 1a2b3c4d5e6f of docker (process 20 of user root (python train.py")
    assert "planted" not in found


@pytest.mark.parametrize(
    ("cgroup", "devices"),
    [
        (DOCKER, ["null"]),  # without a GPU
        (DOCKER, ["nvidiactl", "nvidia-uvm"]),
        (f"/docker/{ID}", ["nvidia0"]),  # Docker's own driver of control groups: systemd leaves it alone
        ("/system.slice/sglang-a.service", ["nvidia0"]),
        (f"/lxc/129/ns{DOCKER}", ["nvidia0"]),  # of the systemd in a container of this node
    ],
)
def test_what_a_reload_does_not_harm(tmp_path: Path, cgroup: str, devices: list[str]) -> None:
    running(tmp_path, 20, cgroup, *devices)
    assert containers(tmp_path) == []


def test_a_reload_beside_one_is_refused_unless_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_gpus, "containers", lambda: [])
    refuse_reload(False)
    monkeypatch.setattr(docker_gpus, "containers", lambda: ["container 1a of docker"])
    refuse_reload(True)
    with pytest.raises(
        Refused, match=r"^this host runs container 1a of docker on a GPU .*Nothing was touched\. Next: "
    ):
        refuse_reload(False)
    monkeypatch.setattr(here, "_chosen", Supervisord(tmp_path))  # it may be that container itself
    refuse_reload(False)
