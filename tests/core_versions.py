# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The oldest ansible-core that meta/runtime.yml names and the newest one there is, in environments of their own."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[1]
REQUIRED = yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["requires_ansible"]
(OLDEST,) = re.fullmatch(r">=(2\.\d+)\.0", REQUIRED).groups()  # type: ignore[union-attr]
# the Pythons that a controller of the oldest is supported on, while pip installs it on newer ones too
PYTHONS_OF_OLDEST = ("3.10", "3.11", "3.12")
WHICH = ("oldest", "newest")


def pythons() -> dict[str, Path]:
    """Pythons on this machine that can make a virtual environment: version -> executable, the oldest first."""
    named = [shutil.which(f"python3.{minor}") for minor in range(9, 20)]
    found = {}
    own = Path(sys.base_prefix, "bin/python3")
    for path in [own, *map(Path, filter(None, named)), *Path.home().glob(".pyenv/versions/*/bin/python3")]:
        # a name on PATH may be a shim for a version that is not chosen
        ask = [path, "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
        asked = subprocess.run(ask, capture_output=True, text=True)
        if asked.returncode == 0:
            found.setdefault(asked.stdout.strip(), path)
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[2])))


def environment_of(which: str, config: pytest.Config) -> Path:
    """Return the virtual environment of one of WHICH, made or brought up to date; skips the test without a Python."""
    there = pythons()
    asked, package = list(there)[-1], "ansible-core"
    if which == "oldest":
        package = f"ansible-core=={OLDEST}.*"
        asked = next((version for version in there if version in PYTHONS_OF_OLDEST), "")
        if not asked:
            pytest.skip(f"{package} needs Python {' or '.join(PYTHONS_OF_OLDEST)}, and here is {' and '.join(there)}")
    assert config.cache
    venv = config.cache.mkdir(f"ansible-core-{which}-python{asked}")
    with venv.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (venv / "bin/python").exists():
            subprocess.run([there[asked], "-m", "venv", "--clear", venv], check=True)
        pip = [venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", package], check=True)
    return venv
