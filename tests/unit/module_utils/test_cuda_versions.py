# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA of a release and the driver that it needs; the lists are from what uv resolves for three versions of SGLang."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_versions as cuda
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

SGLANG_0_5_9 = ["nvidia-cuda-runtime-cu12==12.8.90", "sgl-kernel==0.3.21", "torch==2.9.1", "triton==3.5.1"]
SGLANG_0_5_14 = ["cuda-toolkit==13.0.2", "nvidia-cuda-nvcc==13.2.86", "nvidia-cuda-runtime==13.0.96", "torch==2.11.0"]
SGLANG_0_5_23 = ["cuda-toolkit==13.0.3.0", "nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-runtime==13.0.96", "torch==2.14.1"]


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        (SGLANG_0_5_9, "12.8"),
        (SGLANG_0_5_14, "13.0"),
        (SGLANG_0_5_23, "13.0"),
        (["torch==2.9.1+cu130", "nvidia-cuda-runtime-cu12==12.8.90"], "13.0"),
        (["torch==2.8.0+cu126"], "12.6"),
        (["torch==2.13.0+cpu", "nvidia-cuda-runtime==13.0.96"], None),
        (["torch==2.9.1+rocm6.4"], None),
        (["torch==2.9.1"], None),
        (["nvidia_cuda_runtime==13.0.96"], None),
        (["Torch==2.14.1 ; python_version > '3'", "cuda_toolkit==13.1.0"], "13.1"),
    ],
)
def test_cuda_of_a_release_is_that_of_its_torch(packages: list[str], version: str | None) -> None:
    assert cuda.torch_cuda(packages) == version


@pytest.mark.parametrize(
    ("version", "driver", "runs"),
    [
        ("13.0", "580.65.06", True),
        ("13.0", "579.99.99", False),
        ("13.1", "580.65.06", True),  # any of 13 runs on 580
        ("13.9", "575.57.08", False),  # also one that came later than this table
        ("12.8", "525.60.13", True),
        ("12.8", "1000.10", True),
        ("12.8", "470.256.02", False),
        ("13.0", None, True),  # no driver is seen here
        (None, "470.256.02", True),
        ("17.0", "470.256.02", True),  # nobody knows yet
    ],
)
def test_a_driver_that_is_too_old_is_told(version: str | None, driver: str | None, runs: bool) -> None:
    problem = cuda.driver_problem(version, driver)
    assert (problem is None) is runs
    if problem:
        assert str(version) in problem and str(driver) in problem
        assert f"driver {cuda.minimum_driver(str(version))} or newer" in problem


def test_the_compiler_is_of_the_same_cuda_as_torch() -> None:
    assert "nvidia-cuda-nvcc==13.0.*" in cuda.compiler_wheels("13.0")
    for version, other in ((None, "none"), ("12.8", "packages")):
        with pytest.raises(Refused, match=f"set cuda_toolkit_source to {other}"):
            cuda.compiler_wheels(version)


def test_every_driver_of_the_table_is_of_a_branch_that_its_family_runs_on() -> None:
    for version, driver in cuda.TOOLKITS.items():
        minimum = cuda.minimum_driver(version)
        assert minimum and cuda.number(driver) >= cuda.number(minimum)
