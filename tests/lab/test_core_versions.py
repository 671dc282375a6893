# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin with the oldest ansible-core that meta/runtime.yml names and with the newest one there is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from connections import variables
from core_versions import WHICH, environment_of
from playbook_runs import PROJECT, environment

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent

Ansible = Callable[..., str]


@pytest.fixture(scope="module", params=WHICH)
def ansible(request: pytest.FixtureRequest) -> Ansible:
    """Run a command of that ansible-core in the checkout and return what it prints."""
    venv = environment_of(request.param, request.config)

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
