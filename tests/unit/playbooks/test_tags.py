# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tags of deploy.yml are those that docs/tags.md names, and each means its part."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# a task that tells the part, and one of the next part
PARTS = {
    "container": ("Make the container what it is asked to be", "Have the models"),
    "driver": ("Look after the driver", "Have the models"),
    "install": ("Judge the instances before a release is installed", "Have the models"),
    "model": ("Have the models", "Run the instances as asked and prove it"),
    "launch": ("Run the instances as asked and prove it", "Have the models"),
}


def listed(*words: str) -> str:
    """Return what ansible-playbook lists of a deployment."""
    argv = [Path(sys.executable).with_name("ansible-playbook"), "-i", "inventories/example", "deploy.yml", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_tags_are_those_that_are_documented() -> None:
    documented = re.findall(r"^\| (\w+) \|", (ROOT / "docs/tags.md").read_text(), re.M)
    found = {tag for tags in re.findall(r"TASK TAGS: \[(.*)\]", listed("--list-tags")) for tag in tags.split(", ")}
    assert found == {*documented, "always"} - {"tag"} == {*PARTS, "always"}


@pytest.mark.parametrize("tag", PARTS)
def test_a_tag_is_its_part_and_no_other(tag: str) -> None:
    own, other = PARTS[tag]
    tasks = listed("--list-tasks", "--tags", tag)
    assert own in tasks and other not in tasks.replace("Have models", "")
    for always in ("Refuse wrong answers", "Refuse a wrong list of instances", "Look for the release"):
        assert always in tasks
