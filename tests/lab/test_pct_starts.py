# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a play starts pct, each start of which costs a node more than a second of CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from connections import on_node, variables

PROJECT = Path(__file__).resolve().parents[2]
COUNTING = "/usr/local/sbin/counting-pct"
STARTS = "/run/pct-starts"


@pytest.fixture(autouse=True)
def _counting() -> Iterator[None]:
    """Another pct on the node, first in its login's PATH too, that notes each start for container 129."""
    script = f'#!/bin/sh\n[ "$2" != 129 ] || echo "$1" >>{STARTS}\nexec /usr/sbin/pct "$@"\n'
    on_node(f"cat >{COUNTING}; chmod 755 {COUNTING}; ln -s counting-pct /usr/local/sbin/pct", stdin=script.encode())
    yield
    on_node(f"rm -f {COUNTING} /usr/local/sbin/pct {STARTS}")


@pytest.mark.parametrize(("entry", "starts"), [("strict", ["exec"] * 5), ("quick", [])])
def test_a_module_task_starts_pct_once_or_never(tmp_path: Path, entry: str, starts: list[str]) -> None:
    tasks = [{"ansible.builtin.ping": {}}, {"ansible.builtin.command": "true"}, {"ansible.builtin.stat": {"path": "/"}}]
    tasks += [{"ansible.builtin.raw": "true"}, {"ansible.builtin.ping": {}, "become": True, "become_user": "nobody"}]
    hosts = variables(
        ansible_connection="gpuops.sglang.pct",
        ansible_pct_vmid=129,
        ansible_pct_entry=entry,
        ansible_pct_executable=COUNTING,
        ansible_python_interpreter="/usr/bin/python3",
    )
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"container": {}}, "vars": hosts}}))
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    ansible = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [ansible, "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert on_node(f"cat {STARTS} 2>/dev/null || :").split() == starts
