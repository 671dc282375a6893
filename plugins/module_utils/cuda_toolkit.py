# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit that the compilers of a release's servers use: where it is, whether it works, what it takes.

    RELEASE/cuda.json   what was proved; the servers' CUDA_HOME
    RELEASE/cuda/       the parts that wheels bring, laid out as programs expect a toolkit; links only

FlashInfer, tvm-ffi and DeepGEMM compile with CUDA_HOME/bin/nvcc, link with CUDA_HOME/lib64 and its stubs, and stop
where the compiler's version is not that of the headers.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_record
from ansible_collections.gpuops.sglang.plugins.module_utils import release_record as releases
from ansible_collections.gpuops.sglang.plugins.module_utils.cuda_versions import compiler_wheels, torch_cuda
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_driver import libraries
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    run,
    writing_below,
)

WAIT = 300  # s for one compilation
# What NVIDIA's apt repository calls the parts; {} e.g. 13-0. curand, cublas and nvrtc are headers that FlashInfer uses.
PACKAGES = (
    "cuda-nvcc-{}", "cuda-cudart-dev-{}", "cuda-cccl-{}", "cuda-nvrtc-dev-{}", "cuda-driver-dev-{}",
    "libcurand-dev-{}", "libcublas-dev-{}",
)  # fmt: skip
HEADERS = ("cuda_runtime.h", "cuda_fp8.h", "nvrtc.h", "curand_kernel.h", "cublasLt.h")
PROBE = """\
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda/std/type_traits>
__global__ void probe(__nv_bfloat16* x) { x[threadIdx.x] = __float2bfloat16(1.0f); }
extern "C" int launched(void) { probe<<<1, 1>>>(nullptr); return cudaGetLastError(); }
"""
# what such a probe ends with -> the next step
STEPS = (
    ("headers are incompatible", "the compiler is of another version than the headers beside it"),
    ("unsupported GNU version", "set cuda_toolkit_packages to a C++ compiler that this CUDA takes"),
    (r"cannot find -lcuda\b", "libcuda.so.1 is missing: have the driver's libraries first (nvidia_driver_source)"),
)


@dataclass(frozen=True)
class Wanted:
    """Which toolkit a release is to have."""

    release: Path
    source: str  # wheels, packages
    cuda: str  # e.g. 13.0

    @property
    def home(self) -> Path:
        """Where it is, or will be."""
        return self.release / "cuda" if self.source == "wheels" else Path(f"/usr/local/cuda-{self.cuda}")

    @property
    def record(self) -> dict[str, str]:
        """What is written down of it when it is proved."""
        return {"home": str(self.home), "version": self.cuda, "source": self.source}


def wanted(release: Path, source: str) -> Wanted:
    """Return the toolkit for the torch of a release; raises Refused where there is none."""
    record = releases.read(release)
    if record is None:
        raise Refused(f"the release {release} is damaged or gone: deploy it again")
    cuda = torch_cuda(record["packages"])
    if cuda is None:
        torch = next((line for line in record["packages"] if line.startswith("torch==")), "no torch")
        raise Refused(f"{release} has {torch}, which is made for no CUDA: set cuda_toolkit_source to 'none' for it")
    return Wanted(release, source, cuda)


def missing(toolkit: Wanted) -> list[str]:
    """Return the distribution's packages that the toolkit needs and this host has not."""
    python = str(toolkit.release / "venv/bin/python")
    found = _python(python)
    packages = []
    if not shutil.which("c++"):
        packages.append("g++")
    if not (toolkit.release / "venv/bin/ninja").exists() and not shutil.which("ninja"):
        packages.append("ninja-build")
    if not Path(found["include"], "Python.h").exists():
        if not found["base"].startswith("/usr/bin/"):
            raise Refused(
                f"the headers of {found['base']} are missing ({found['include']}/Python.h): install that Python with "
                "them, or set sglang_install_python to the distribution's"
            )
        packages.append(f"python{found['version']}-dev")
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        packages.append("libnuma1")
    if toolkit.source == "packages" and version(toolkit.home) != toolkit.cuda:
        packages += [name.format(toolkit.cuda.replace(".", "-")) for name in PACKAGES]
    return packages


def version(home: Path) -> str | None:
    """Return e.g. '13.0' of a toolkit's compiler, or None."""
    try:
        done = run([str(home / "bin/nvcc"), "--version"], timeout=WAIT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match[1] if match else None


def provide(toolkit: Wanted) -> None:
    """Lay out what wheels brought, prove that the toolkit compiles and links, and record it for the servers."""
    if toolkit.source == "wheels":
        with writing_below(toolkit.release):
            _lay_out(toolkit)
    found = version(toolkit.home)
    if found != toolkit.cuda:
        raise Refused(
            f"{toolkit.home}/bin/nvcc is {f'of CUDA {found}' if found else 'missing or does not run'}, and torch of "
            f"this release needs {toolkit.cuda}: {_again(toolkit)}"
        )
    absent = [name for name in HEADERS if not (toolkit.home / "include" / name).exists()]
    if absent:
        raise Refused(f"{toolkit.home}/include has no {', '.join(absent)}: {_again(toolkit)}")
    _prove(toolkit)
    cuda_record.write(toolkit.release, toolkit.record)


def _again(toolkit: Wanted) -> str:
    if toolkit.source == "packages":
        return f"see what 'apt-cache policy cuda-nvcc-{toolkit.cuda.replace('.', '-')}' tells"
    pins = " ".join(compiler_wheels(toolkit.cuda))
    return f"the release was made without its wheels ({pins}): make one with cuda_toolkit_source 'wheels'"


def _prove(toolkit: Wanted) -> None:
    """Compile and link as FlashInfer does, without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cu"), Path(folder, "probe.so")
        source.write_text(PROBE, encoding="utf-8")
        home = str(toolkit.home)
        argv = [f"{home}/bin/nvcc", "-shared", "-Xcompiler=-fPIC", "-arch=sm_90", "-o", str(library), str(source)]
        argv += [f"-L{home}/lib64", f"-L{home}/lib64/stubs", "--cudart=shared", "-lcuda"]
        try:
            done = run(argv, {**os.environ, "LC_ALL": "C"}, timeout=WAIT)
        except subprocess.TimeoutExpired:
            raise Refused(f"{home}/bin/nvcc does not end within {WAIT} s on a file of six lines") from None
    if done.returncode != 0:
        lines = f"{done.stdout}\n{done.stderr}"
        errors = [line for line in lines.splitlines() if re.search("error|cannot find", line)] or last_lines(lines, 3)
        step = next((step for words, step in STEPS if re.search(words, lines)), "correct that, and deploy again")
        raise Refused(f"the toolkit {home} does not compile: {' | '.join(errors[:3])}: {step}")


def _lay_out(toolkit: Wanted) -> None:
    """Link what lies in the wheels' folder into a tree as toolkits have it, in place of one that is there."""
    folder = toolkit.home.with_name(".cuda.partial")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib64/stubs").mkdir(parents=True)
    for parts in toolkit.release.glob(f"venv/lib/python3*/site-packages/nvidia/cu{toolkit.cuda.partition('.')[0]}"):
        for name in ("bin", "include", "nvvm"):
            (folder / name).symlink_to(parts / name)
        for path in parts.glob("lib/lib*"):
            (folder / "lib64" / path.name).symlink_to(path)
            plain = folder / "lib64" / f"{path.name.partition('.so')[0]}.so"
            if ".so." in path.name and not os.path.lexists(plain):
                plain.symlink_to(path.name)  # wheels have no name to link with
    driver = next((one["path"] for one in libraries() if one["name"] == "libcuda.so.1" and one["loaded"]), None)
    if driver:
        (folder / "lib64/stubs/libcuda.so").symlink_to(driver)
    shutil.rmtree(toolkit.home, ignore_errors=True)
    folder.rename(toolkit.home)


def _python(python: str) -> Mapping[str, str]:
    """Return where the headers of an interpreter belong, its version and the program it was made from."""
    code = (
        "import json, os, sys, sysconfig; print(json.dumps({'include': sysconfig.get_path('include'), "
        "'version': '%d.%d' % sys.version_info[:2], 'base': os.path.realpath(sys._base_executable)}))"
    )
    done = run([python, "-I", "-c", code])
    if done.returncode != 0:
        raise Refused(f"{python} does not run: {' | '.join(last_lines(done.stderr, 2))}: deploy the release again")
    facts: dict[str, str] = json.loads(done.stdout)
    return facts
