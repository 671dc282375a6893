# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import host_memory

GIB = 1024**3


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    text = f"MemTotal:   {64 * 2**20} kB\nMemFree: 5 kB\nMemAvailable: {48 * 2**20} kB\nHugePages_Total:   0\n"
    (tmp_path / "proc/meminfo").write_text(text)
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return tmp_path


def group(root: Path, limit: str, current: int, **stat: int) -> None:
    folder = root / "sys/fs/cgroup"
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text("".join(f"{name} {size}\n" for name, size in stat.items()))


def test_what_the_kernel_tells(root: Path) -> None:
    assert host_memory.memory() == (64, 48)


def test_a_limit_of_a_container_counts_and_its_file_cache_does_not(root: Path) -> None:
    group(root, str(16 * GIB), 10 * GIB, inactive_file=5 * GIB, active_file=3 * GIB, anon=2 * GIB)
    assert host_memory.memory() == (16, 14)


def test_no_limit_is_none(root: Path) -> None:
    group(root, "max", 10 * GIB, inactive_file=0)
    assert host_memory.memory() == (64, 48)


def test_where_nothing_is_told_nothing_is_refused(root: Path) -> None:
    (root / "proc/meminfo").unlink()
    assert host_memory.memory() == (0, 0)
    assert host_memory.problem({"cpu_offload_gb": 500}, 1, 1, 600) == ""
    assert host_memory.shared_memory() is None


@pytest.mark.parametrize(
    ("resolved", "ranks", "need"),
    [
        ({}, 8, 1.3),
        ({"cpu_offload_gb": 10}, 2, 21.3),
        ({"cpu_offload_gb": 100}, 2, 61.3),  # there are 30 GiB of weights
        ({"enable_hierarchical_cache": False, "hicache_size": 50}, 1, 1.3),
        ({"enable_hierarchical_cache": True, "hicache_size": 0, "hicache_ratio": 2.0}, 1, 1.3 + 2 * 5 + 10),
        ({"enable_hierarchical_cache": True}, 2, 1.3 + 2 * 2 * 5 + 10),
        # 0.5.21 and later: lowered until it fits
        ({"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_host_memory_fraction": 0.8}, 2, 11.3),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_host_memory_fraction": None}, 1, 21.3),
        ({"enable_hierarchical_cache": True, "hicache_size": 8, "hicache_ratio": 2.0}, 2, 1.3 + 16e9 / GIB + 10),
    ],
)
def test_what_a_server_needs_at_least(resolved: dict[str, Any], ranks: int, need: float) -> None:
    assert host_memory.needed(resolved, ranks, 5.0, 30.0)[0] == pytest.approx(need)


def test_a_no_is_of_what_the_host_has_a_warning_of_what_is_free(root: Path) -> None:
    def asked(size: float, own: float = 0) -> tuple[bool, bool]:
        resolved = {"cpu_offload_gb": size}
        told = host_memory.warnings(resolved, 1, 0, 1000, own)
        return bool(host_memory.problem(resolved, 1, 0, 1000)), bool(told)

    assert asked(40) == (False, False)
    assert asked(55) == (False, True)
    assert asked(55, own=10) == (False, False)
    assert asked(63) == (True, False)


def test_what_a_service_holds(root: Path) -> None:
    folder = root / "sys/fs/cgroup/system.slice/sglang-a.service"
    folder.mkdir(parents=True)
    (folder / "memory.stat").write_text(f"anon {2 * GIB}\nfile {9 * GIB}\nshmem {GIB}\n")
    assert host_memory.held("/system.slice/sglang-a.service") == 3
    assert host_memory.held("/system.slice/sglang-b.service") == 0


def test_shared_memory_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "ROOT", Path("/"))
    size = host_memory.shared_memory()
    assert size is None or size > 0
