# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which releases are removed, and which never are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import release_prune
from conftest import running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five releases, 'e' the newest."""
    for age, name in enumerate("edcba"):
        path = tmp_path / "root/releases" / name
        (path / "venv/bin").mkdir(parents=True)
        (path / "release.json").write_text("{}")
        os.utime(path / "release.json", (1e9 - age, 1e9 - age))
    return tmp_path / "root"


def launched(root: Path, release: str, record: str = "") -> None:
    folder = root.parent / f"state/qwen/launches/of-{release}"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(record or json.dumps({"release": str(root / "releases" / release)}))


def left(root: Path) -> str:
    return "".join(sorted(path.name for path in (root / "releases").iterdir()))


@pytest.mark.parametrize(
    ("current", "keep", "gone"), [("e", 3, "ab"), ("e", 1, "abcd"), ("e", 5, ""), ("e", 0, ""), ("a", 3, "bc")]
)
def test_the_newest_and_the_current_one_stay(root: Path, current: str, keep: int, gone: str) -> None:
    asked = (root, root / "releases" / current, root.parent / "state", keep)
    assert release_prune.surplus(*asked) == list(gone)
    assert release_prune.remove(*asked) == list(gone)
    assert left(root) == "".join(sorted(set("abcde") - set(gone)))
    assert release_prune.surplus(*asked) == []


def test_one_that_is_to_be_installed_has_its_place(root: Path) -> None:
    assert release_prune.surplus(root, root / "releases/new", root.parent / "state", 3) == ["a", "b", "c"]


def test_one_that_a_kept_launch_was_started_from_stays(root: Path) -> None:
    launched(root, "b")
    launched(root, "damaged", "{")
    assert release_prune.remove(root, root / "releases/e", root.parent / "state", 2) == ["a", "c"]
    assert left(root) == "bde"


def test_one_that_runs_stays(root: Path) -> None:
    python = root / "releases/a/venv/bin/sleep"
    shutil.copy2("/bin/sleep", python)
    with running(python, "60"):
        assert release_prune.remove(root, root / "releases/e", root.parent / "state", 3) == ["b"]
    assert release_prune.remove(root, root / "releases/e", root.parent / "state", 3) == ["a"]


def test_a_root_that_is_known_by_a_link_is_the_same(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    launched(root, "b")
    python = root / "releases/a/venv/bin/python"
    python.symlink_to("/bin/sleep")  # as the interpreter of a venv is
    with running(python, "60"):
        assert release_prune.remove(link, link / "releases/e", tmp_path / "state", 1) == ["c", "d"]


def test_what_an_interruption_left_goes_first(root: Path) -> None:
    (root / "releases/d/release.json").unlink()
    assert release_prune.remove(root, root / "releases/e", root.parent / "state", 4) == ["d"]
