# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image's definition as ansible-builder reads it; the image is not built, which needs an engine and a registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from awx_runs import BIN, ROOT, environment

DEFINITION = ROOT / "execution-environment.yml"


def pins(name: str, python: str) -> dict[str, str]:
    """Return package -> version of a file of requirements/ for one minor version of Python."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    found = {}
    for package, version, sign, bound in re.findall(
        r'^([\w-]+)==([\d.]+)(?:; python_version (<|>=) "3\.(\d+)")?$', "\n".join(lines), re.M
    ):
        minor = int(python.partition(".")[2])
        if not sign or (minor < int(bound)) == (sign == "<"):
            found[package] = version
    return found


def test_it_makes_a_context_with_the_pinned_versions(tmp_path: Path) -> None:
    create = [BIN / "ansible-builder", "create", "--file", DEFINITION, "--context", tmp_path / "context"]
    done = subprocess.run(
        [*create, "--output-filename", "Containerfile"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = (tmp_path / "context/Containerfile").read_text()
    (python,) = re.findall(r'^ARG PYCMD="/usr/bin/python(3\.\d+)"$', made, re.M)
    (installed,) = re.findall(r'^ARG ANSIBLE_INSTALL_REFS="(.*)"$', made, re.M)
    assert dict(word.split("==") for word in installed.split()) == {
        **pins("run", python),
        "ansible-runner": pins("awx", python)["ansible-runner"],
    }
    assert (tmp_path / "context/_build/bindep.txt").read_text().split() == ["openssh-clients"]
