# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role cuda_toolkit on a real Debian 12, with packages named as NVIDIA's; unit tests have the real compiler."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from debian_root import Key, Package, Root, build_repository

RELEASE = "/opt/sglang/releases/0.5.23-1f3a9c2e"
HOME = "usr/local/cuda-13.0"
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; fi
"""


def packages(folder: Path) -> Iterator[Package]:
    """Yield what the toolkit takes, named as in NVIDIA's repository and Debian's."""
    library = folder / "libnuma.so.1"
    subprocess.run(["c++", "-shared", "-o", library, "-x", "c++", "/dev/null"], check=True)
    contents: dict[str, dict[str, str | bytes]] = {
        "cuda-nvcc-13-0": {f"{HOME}/bin/nvcc": NVCC},
        "cuda-cudart-dev-13-0": {f"{HOME}/include/cuda_runtime.h": "", f"{HOME}/include/cuda_fp8.h": ""},
        "cuda-cccl-13-0": {},
        "cuda-driver-dev-13-0": {},
        "cuda-nvrtc-dev-13-0": {f"{HOME}/include/nvrtc.h": ""},
        "libcurand-dev-13-0": {f"{HOME}/include/curand_kernel.h": ""},
        "libcublas-dev-13-0": {f"{HOME}/include/cublasLt.h": ""},
        "g++": {"usr/bin/c++": "#!/bin/sh\n"},
        "ninja-build": {"usr/bin/ninja": "#!/bin/sh\n"},
        "python3.11-dev": {"usr/include/python3.11/Python.h": ""},
        "libnuma1": {"usr/lib/x86_64-linux-gnu/libnuma.so.1": library.read_bytes()},
    }
    for name, files in contents.items():
        yield Package(name, "13.0.88-1", {}, files)
    # a newer one, which is not the one of torch
    yield Package("cuda-nvcc-13-1", "13.1.80-1", {}, {"usr/local/cuda-13.1/bin/nvcc": NVCC})


def test_a_release_gets_the_toolkit_of_its_torchs_cuda(tmp_path: Path, debian12: str, key: Key) -> None:
    root = Root(debian12, tmp_path / "container")
    root.put("etc/apt/sources.list", "")
    build_repository(root.put("srv/cuda"), list(packages(tmp_path)), key)
    root.put(f"{RELEASE[1:]}/schema.json", '{"options": {}}')
    root.put(f"{RELEASE[1:]}/release.json", json.dumps({"packages": ["torch==2.14.1", "cuda-toolkit==13.0.3.0"]}))
    root.put(f"{RELEASE[1:]}/venv/bin/python").symlink_to("/usr/bin/python3")
    asked = {
        "cuda_toolkit_source": "packages",
        "cuda_toolkit_repository": {"uris": ["file:/srv/cuda"], "key": key.public},
        "sglang_install_release": {"path": RELEASE, "missing": False, "cuda_toolkit": ""},
    }
    run = root.role("cuda_toolkit", asked)
    assert run.status == 0, run.output
    record = json.loads(root.put(f"{RELEASE[1:]}/cuda.json").read_text())
    assert record == {"home": f"/{HOME}", "version": "13.0", "source": "packages"}
    assert not root.put("usr/local/cuda-13.1").exists()
    again = root.module_run("cuda_toolkit", release=RELEASE, source="packages")
    assert (again["changed"], again["packages"]) == (False, [])
    # what goes is missed
    root.put(f"{HOME}/bin/nvcc").unlink()
    again = root.module_run("cuda_toolkit", release=RELEASE, source="packages")
    assert "cuda-nvcc-13-0" in again["packages"]
