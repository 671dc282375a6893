# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else can change what a process looks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.found_trust import changeable

OWN = os.getuid()
OTHER = 3_999_999
root_only = pytest.mark.skipif(OWN != 0, reason="only root gives files away")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "a/b"
    path.mkdir(parents=True)
    for folder in (path.parent, path):
        folder.chmod(0o755)
    return path


def test_what_is_of_its_user_alone(place: Path) -> None:
    assert changeable(place, OWN) is None


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_all_may_write_to(place: Path, mode: int) -> None:
    place.parent.chmod(mode)
    assert changeable(place, OWN) == place.parent


def test_nobody_replaces_what_is_anothers_in_a_folder_for_all(place: Path) -> None:
    place.parent.chmod(0o1777)
    assert changeable(place, OWN) is None
    assert changeable(place.parent, OWN) == place.parent  # but anybody can add to it


def test_a_link_is_as_safe_as_all_that_it_leads_through(place: Path, tmp_path: Path) -> None:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "on").symlink_to(place)
        (place.parent / name).symlink_to(f"../{name}/on")
    (tmp_path / "open").chmod(0o777)
    assert changeable(place.parent / "shut", OWN) is None
    assert changeable(place.parent / "open", OWN) == Path(place.parent / "../open")


@root_only
def test_what_is_of_another_user(place: Path) -> None:
    os.chown(place, OTHER, 0)
    assert changeable(place, OWN) == place
    assert changeable(place, OTHER) is None


@root_only
def test_a_group_with_others_in_it(place: Path) -> None:
    place.chmod(0o775)
    assert changeable(place, OWN) is None
    os.chown(place, 0, OTHER)
    assert changeable(place, OWN) == place


def test_what_is_not_there_is_an_error(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        changeable(place / "x", OWN)
