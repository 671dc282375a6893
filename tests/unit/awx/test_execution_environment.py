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


def pins() -> dict[str, str]:
    """Return package -> version of what the jobs are tested with."""
    return dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "requirements/awx.txt").read_text(), re.M))


def test_it_makes_a_context_with_the_pinned_versions(tmp_path: Path) -> None:
    create = [BIN / "ansible-builder", "create", "--file", DEFINITION, "--context", tmp_path / "context"]
    done = subprocess.run(
        [*create, "--output-filename", "Containerfile"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = (tmp_path / "context/Containerfile").read_text()
    (installed,) = re.findall(r'^ARG ANSIBLE_INSTALL_REFS="(.*)"$', made, re.M)
    packages = dict(word.split("==") for word in installed.split())
    assert packages == {name: pins()[name] for name in ("ansible-core", "ansible-runner")}
    assert (tmp_path / "context/_build/bindep.txt").read_text().split() == ["openssh-clients"]
