# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sum against the system's own cksum."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.cksum import cksum, cksum_of
from hypothesis import given, settings
from hypothesis import strategies as st


def real(data: bytes) -> str:
    return subprocess.check_output(["cksum"], input=data).decode().strip()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=5))
def test_pieces_have_the_sum_of_the_whole(chunks: list[bytes]) -> None:
    assert cksum(chunks) == real(b"".join(chunks))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536, (1 << 20) - 1, 1 << 20, 3_000_001])
def test_a_file_has_the_sum_that_cksum_says(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    (tmp_path / "file").write_bytes(data)
    assert cksum_of(str(tmp_path / "file")) == real(data)
