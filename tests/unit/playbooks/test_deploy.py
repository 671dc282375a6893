# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deployment judges what is asked before it asks any host, nodes included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
# a login that there is none of, so that a task that reaches for a host shows
NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0}
RIGHT = [{"name": "qwen", "model": "/srv/models/qwen", "port": 30000}]


def output_of(folder: Path, host: str, instances: list[dict[str, Any]], extra: dict[str, Any]) -> str:
    """Return what a deployment says that has a node which asks for a driver; it must fail."""
    groups = {
        "proxmox_nodes": {"hosts": {"pve-kpro5": {**NOWHERE, "nvidia_driver_version": "580.95.05"}}},
        "sglang": {"hosts": {host: NOWHERE}},
        "kpro5": {"hosts": {"pve-kpro5": {}, host: {}}, "vars": {"sglang_server_instances": instances}},
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(groups))
    argv = [Path(sys.executable).with_name("ansible-playbook"), "-i", folder / "hosts.yml", "deploy.yml"]
    done = subprocess.run([*argv, "-e", json.dumps(extra)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("host", "instances", "extra", "said"),
    [
        ("ct129", RIGHT, {"sglang_server_only": "../x"}, "sglang_server_only is "),
        ("kpro5", RIGHT, {}, "kpro5 is both a host and a group"),
        ("ct129", [{"name": "qwen", "port": 30000}], {}, "model"),
    ],
    ids=["answer", "name", "instances"],
)
def test_no_host_is_asked_for_what_is_wrong(
    tmp_path: Path, host: str, instances: list[dict[str, Any]], extra: dict[str, Any], said: str
) -> None:
    output = output_of(tmp_path, host, instances, extra)
    assert said in output and "UNREACHABLE" not in output and "Look after the driver" not in output


def test_the_driver_of_a_node_is_looked_after_where_all_is_right(tmp_path: Path) -> None:
    assert "Look after the driver" in output_of(tmp_path, "ct129", RIGHT, {})
