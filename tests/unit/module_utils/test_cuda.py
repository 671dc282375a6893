# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda
from ansible_collections.gpuops.sglang.plugins.module_utils.cuda import ask_cuda
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_child import harmless, told

pytest_plugins = ["gpu_hosts"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")


def test_cuda_that_works(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CUDA_DEVICES", "8")
    assert ask_cuda("", keep=False) == {
        "result": 0, "name": "CUDA_SUCCESS", "meaning": "CUDA works", "devices": 8, "driver_version": "13.0",
        "library": str(loaded), "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "name", "known"),
    [
        ("999", "CUDA_ERROR_UNKNOWN", True),
        ("802", "CUDA_ERROR_SYSTEM_NOT_READY", True),
        ("803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", True),
        ("31337", "CUresult 31337", False),
    ],
)
def test_cuda_that_fails(loaded: Path, monkeypatch: pytest.MonkeyPatch, result: str, name: str, known: bool) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", result)
    found = ask_cuda("", keep=False)
    assert (found["result"], found["name"], found["devices"], found["error"]) == (int(result), name, None, None)
    assert bool(found["meaning"]) == known


def test_cuda_that_crashes_or_hangs(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CUINIT", "crash")
    found = ask_cuda("", keep=False)
    assert (found["result"], found["error"]) == (None, "its process was ended by SIGSEGV")
    # what it said before is kept
    assert (found["library"], found["driver_version"]) == (str(loaded), "13.0")
    monkeypatch.setenv("STANDIN_CUINIT", "hang")
    monkeypatch.setattr(cuda, "WAIT", 1)
    found = ask_cuda("", keep=False)
    assert (found["result"], found["error"]) == (None, "no answer within 1 s")


def test_cuda_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = ask_cuda("", keep=False)
    assert found["result"] is found["library"] is None
    assert "libcuda.so.1" in found["error"] and "\n" not in found["error"]


def test_gpus_that_are_hidden_from_one_shell_are_not_missing(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = harmless("", 20, "run", "env").stdout.splitlines()
    assert not any(line.startswith("CUDA_VISIBLE_DEVICES") for line in seen)
    assert f"LD_LIBRARY_PATH={loaded.parent}" in seen


def test_asking_cuda_changes_nothing(loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, temporary = tmp_path / "nvidia-uvm", tmp_path / "temporary"
    node.touch(0o600)
    monkeypatch.setenv("STANDIN_CUDA_NODE", str(node))
    monkeypatch.setenv("STANDIN_CUDA_TEMPORARY", str(temporary))
    # the stand-in would, as NVIDIA's library does
    assert (
        subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"]).returncode == 0
    )
    assert node.stat().st_mode & 0o777 == 0o666
    node.chmod(0o600)
    assert ask_cuda("", keep=False)["result"] == 0
    assert node.stat().st_mode & 0o777 == 0o600
    assert not temporary.exists()  # it needs to remove that
    assert ask_cuda("", keep=True)["result"] == 304
    assert temporary.exists()


@pytest.mark.parametrize(
    "argv",
    [
        ("chmod", "0666", "node"),
        ("rm", "-f", "node"),
        ("mv", "node", "other"),
        ("mkdir", "other"),
        ("mknod", "other", "p"),
        ("chown", "0", "node"),
    ],
    ids=lambda argv: argv[0],
)
def test_programs_can_not_mend_devices(tmp_path: Path, argv: tuple[str, ...]) -> None:
    node = tmp_path / "node"
    node.touch(0o600)
    done = harmless("", 20, "run", *(str(tmp_path / word) if word in ("node", "other") else word for word in argv))
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["node"] and node.stat().st_mode & 0o777 == 0o600


def test_what_opening_says(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    lines, error = told("", 20, "open", "/dev/null", str(file), str(tmp_path / "none"), str(tmp_path))
    assert [line["result"] for line in lines] == ["opens", "opens", "ENOENT", "EISDIR"]
    assert error is None


@needs_root
def test_another_user_tries(loaded: Path, open_path: Path) -> None:
    closed = open_path / "closed"
    closed.touch(0o600)
    lines, error = told("nobody", 20, "open", "/dev/null", str(closed))
    assert ([line["result"] for line in lines], error) == (["opens", "EACCES"], None)
    assert ask_cuda("nobody", keep=False)["result"] == 0


@needs_root
def test_a_device_without_a_driver(tmp_path: Path) -> None:
    node = tmp_path / "nvidia-uvm"
    try:
        os.mknod(node, 0o20666, os.makedev(510, 0))
    except OSError:
        pytest.skip("devices can not be made here")
    lines, _error = told("", 20, "open", str(node))
    assert lines == [{"path": str(node), "result": "ENXIO"}]


@needs_root
def test_another_user_has_that_ones_groups_and_no_more() -> None:
    user = pwd.getpwnam("daemon")
    script = "import os; print(os.getuid(), os.geteuid(), os.getgid(), sorted(os.getgroups()))"
    done = harmless("daemon", 20, "run", "/usr/bin/python3", "-c", script)
    groups = sorted(os.getgrouplist(user.pw_name, user.pw_gid))
    assert done.stdout == f"{user.pw_uid} {user.pw_uid} {user.pw_gid} {groups}\n"


def test_a_user_who_went_meanwhile() -> None:
    lines, error = told("nobody-of-that-name", 20, "open", "/dev/null")
    assert lines == [] and error and "nobody-of-that-name" in error
