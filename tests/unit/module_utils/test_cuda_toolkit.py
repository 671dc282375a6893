# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The toolkit of a release: NVIDIA's real compiler from the package index, and what it is refused for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_record, cuda_toolkit, cuda_versions
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance, environment

RUNTIME = "nvidia-cuda-runtime==13.0.96"
PACKAGES = ["sglang==0.5.23", "torch==2.14.1", RUNTIME]
SITE = f"venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
NVCC = """#!/bin/sh
echo "Cuda compilation tools, release {}, V13"
"""


def release(folder: Path, packages: list[str] | None = None) -> Path:
    """Make a release of these packages without any file of theirs."""
    (folder / SITE).mkdir(parents=True)
    (folder / "venv/bin").mkdir()
    (folder / "venv/bin/python").symlink_to(sys.executable)
    (folder / "schema.json").write_text('{"options": {}}')
    (folder / "release.json").write_text(json.dumps({"packages": packages or PACKAGES}))
    return folder


def compiler(home: Path, version: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text(NVCC.format(version))
    (home / "bin/nvcc").chmod(0o755)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's compiler and runtime of CUDA 13.0, 150 MB."""
    folder = tmp_path_factory.mktemp("wheels")
    wanted = [*cuda_versions.compiler_wheels("13.0"), RUNTIME]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*pip, *wanted], check=True)
    return folder


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library to link with in place of the driver's."""
    folder = tmp_path / "driver"
    folder.mkdir()
    library = folder / "libcuda.so.590.48.01"
    subprocess.run(["c++", "-shared", "-Wl,-soname,libcuda.so.1", "-o", library, "-x", "c++", "/dev/null"], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


@pytest.mark.slow
def test_the_real_compiler_of_the_wheels_compiles_and_links_as_flashinfer_does(
    tmp_path: Path, wheels: Path, driver: Path
) -> None:
    path = release(tmp_path / "release")
    (path / SITE / "nvidia").symlink_to(wheels / "nvidia")
    toolkit = cuda_toolkit.wanted(path, "wheels")
    assert toolkit.cuda == "13.0"
    with pytest.raises(Refused, match=r"include has no nvrtc\.h, curand_kernel\.h, cublasLt\.h"):
        cuda_toolkit.provide(toolkit)
    # torch brings these, 1 GB of libraries with them
    for name in ("nvrtc.h", "curand_kernel.h", "cublasLt.h"):
        (wheels / "nvidia/cu13/include" / name).touch()
    cuda_toolkit.provide(toolkit)
    home = path / "cuda"
    assert cuda_record.read(path) == {"home": str(home), "version": "13.0", "source": "wheels"}
    instance = Instance("a", "/m", "127.0.0.1", 1, (), {}, {}, {})
    seen = environment(instance, Host(path, "sglang", tmp_path))
    assert seen["CUDA_HOME"] == str(home)
    assert seen["PATH"].split(":")[:2] == [f"{path}/venv/bin", f"{home}/bin"]
    (driver / "libcuda.so.1").unlink()
    with pytest.raises(Refused, match=r"libcuda\.so\.1 is missing: have the driver's libraries first"):
        cuda_toolkit.provide(toolkit)


def test_a_release_without_a_toolkit_gives_its_servers_none(tmp_path: Path) -> None:
    path = release(tmp_path)
    assert cuda_record.variables(path, "/a:/b") == {"PATH": "/a:/b"}
    cuda_record.write(path, {"home": str(tmp_path / "gone"), "version": "13.0", "source": "packages"})
    assert cuda_record.variables(path, "/a:/b") == {"PATH": "/a:/b"}
    compiler(tmp_path / "gone", "13.0")
    assert cuda_record.variables(path, "/a:/b")["CUDA_HOME"] == str(tmp_path / "gone")


def test_a_compiler_of_another_cuda_than_torch_is_refused(tmp_path: Path) -> None:
    path = release(tmp_path)
    compiler(path / SITE / "nvidia/cu13", "13.5")
    toolkit = cuda_toolkit.wanted(path, "wheels")
    with pytest.raises(Refused, match=r"cuda/bin/nvcc is of CUDA 13\.5, and torch of this release needs 13\.0"):
        cuda_toolkit.provide(toolkit)
    assert cuda_record.read(path) == {}


def test_a_release_without_its_compiler_names_the_wheels(tmp_path: Path) -> None:
    toolkit = cuda_toolkit.wanted(release(tmp_path), "wheels")
    with pytest.raises(Refused, match=r"missing or does not run.*nvidia-cuda-nvcc==13\.0\.\*"):
        cuda_toolkit.provide(toolkit)


def test_packages_are_those_of_torchs_cuda(tmp_path: Path) -> None:
    toolkit = cuda_toolkit.wanted(release(tmp_path, ["torch==2.9.1", "nvidia-cuda-runtime-cu12==12.8.90"]), "packages")
    assert str(toolkit.home) == "/usr/local/cuda-12.8"
    assert {"cuda-nvcc-12-8", "cuda-cudart-dev-12-8", "cuda-cccl-12-8"} <= set(cuda_toolkit.missing(toolkit))


def test_a_release_for_no_cuda_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"has torch==2\.13\.0\+cpu, which is made for no CUDA"):
        cuda_toolkit.wanted(release(tmp_path, ["torch==2.13.0+cpu"]), "packages")


def test_headers_are_those_of_the_interpreter_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = release(tmp_path)
    include = tmp_path / "include"
    include.mkdir()
    answer = {"include": str(include), "version": "3.12", "base": "/usr/bin/python3.12"}
    monkeypatch.setattr(cuda_toolkit, "_python", lambda _python: answer)
    toolkit = cuda_toolkit.wanted(path, "wheels")
    assert "python3.12-dev" in cuda_toolkit.missing(toolkit)
    (include / "Python.h").touch()
    assert "python3.12-dev" not in cuda_toolkit.missing(toolkit)
    (include / "Python.h").unlink()
    answer["base"] = "/opt/python/bin/python3.12"
    with pytest.raises(Refused, match=r"the headers of /opt/python/bin/python3\.12 are missing"):
        cuda_toolkit.missing(toolkit)
