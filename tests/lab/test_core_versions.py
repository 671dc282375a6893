# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin with the oldest ansible-core that meta/runtime.yml names and with the newest one there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from connections import variables
from playbook_runs import PROJECT, environment

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
REQUIRED = yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["requires_ansible"]
(OLDEST,) = re.fullmatch(r">=(2\.\d+)\.0", REQUIRED).groups()  # type: ignore[union-attr]
# the Pythons that a controller of the oldest is supported on, while pip installs it on newer ones too
PYTHONS_OF_OLDEST = ("3.10", "3.11", "3.12")

Ansible = Callable[..., str]


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


@pytest.fixture(scope="module", params=["oldest", "newest"])
def ansible(request: pytest.FixtureRequest) -> Ansible:
    """Run a command of that ansible-core in the checkout and return what it prints."""
    there = pythons()
    asked, package = list(there)[-1], "ansible-core"
    if request.param == "oldest":
        package = f"ansible-core=={OLDEST}.*"
        asked = next((version for version in there if version in PYTHONS_OF_OLDEST), "")
        if not asked:
            pytest.skip(f"{package} needs Python {' or '.join(PYTHONS_OF_OLDEST)}, and here is {' and '.join(there)}")
    assert request.config.cache
    venv = request.config.cache.mkdir(f"ansible-core-{request.param}-python{asked}")
    if not (venv / "bin/python").exists():
        subprocess.run([there[asked], "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--upgrade", package], check=True)

    def run(command: str, *words: str | Path) -> str:
        done = subprocess.run(
            [venv / "bin" / command, *words],
            cwd=PROJECT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    print(run("ansible", "--version"))
    return run


def test_documentation(ansible: Ansible) -> None:
    said = ansible("ansible-doc", "-t", "connection", "gpuops.sglang.pct")
    assert {"ansible_pct_vmid", "ansible_pipelining", "ansible_ssh_private_key_file"} <= set(said.split())
    assert "[WARNING]" not in said


@pytest.mark.parametrize("entry", ["quick", "strict"])
def test_ansibles_own_actions(ansible: Ansible, tmp_path: Path, entry: str) -> None:
    other = "strict" if entry == "quick" else "quick"
    hosts = {
        "ct129": {"ansible_pct_vmid": 129, "ansible_pct_entry": entry, "ansible_pipelining": True},
        "ct130": {"ansible_pct_vmid": 130, "ansible_pct_entry": other, "ansible_pipelining": False},
    }
    common = variables(
        ansible_connection="gpuops.sglang.pct",
        ansible_python_interpreter="/usr/bin/python3",
        work=str(tmp_path),
    )
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20_000)
    (tmp_path / "script").write_text('#!/bin/sh\nprintf %s "$1"\n')
    ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", HERE / "connection_pct.yml")
    for host in hosts:
        fetched = (tmp_path / f"{host} fetched").read_bytes()
        assert sha256(fetched).digest() == sha256((tmp_path / "binary").read_bytes()).digest()
