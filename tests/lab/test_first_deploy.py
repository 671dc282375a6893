# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first deployment on Proxmox as a newcomer follows it, command by command: a container 192 on the lab's node.

The inventory is the example with other addresses, the lab's packages and its model.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from connections import LAB, NODE, on_node
from documented import commands
from gpu_container import TEMPLATE
from playbook_runs import PLAYBOOK, PROJECT, Run, environment, lab_instances, lab_profile

EXAMPLE, MINE = PROJECT / "inventories/example", "inventories/mine"
VMID, ADDRESS, KEY = 192, "10.98.0.192", "planted-first-4f1a"
ELSEWHERE = ("bin/setup", ".", "export")
# what a machine of the lab has otherwise than one with GPUs
CONTAINER = {
    "proxmox_container_template": f"local:vztmpl/{TEMPLATE}",
    "proxmox_container_rootfs": "lab:8",
    "proxmox_container_hostname": f"ct{VMID}",
    "proxmox_container_cores": 2,
    "proxmox_container_memory": "4G",
    "proxmox_container_networks": {
        "net0": {"name": "eth0", "bridge": "vmbr0", "ip": f"{ADDRESS}/24", "gw": "10.98.0.1"}
    },
    "proxmox_container_mounts": {"mp0": {"volume": "/srv/lab", "mp": "/srv/lab"}},
    "proxmox_container_gpus": [0],
    "proxmox_container_memlock": "",
}


def mine(folder: Path) -> None:
    """Edit the copy of the example as the page says."""
    hosts = folder / "1-hosts.yml"
    written = yaml.safe_load(hosts.read_text().replace("192.0.2.5", NODE).replace("129", str(VMID)))
    del written["sglang"]["children"]["sglang_bare"]["hosts"]["b200"]
    hosts.write_text(yaml.safe_dump(written, sort_keys=False))
    (folder / "host_vars/b200.yml").unlink()
    variables: dict[str, Any] = yaml.safe_load((folder / "host_vars/ct129.yml").read_text())
    variables |= CONTAINER
    (instance,) = variables["sglang_server_instances"]
    (tiny,) = lab_instances()
    del instance["gpus"]
    instance |= {name: tiny[name] for name in ("model", "args", "env")}
    variables |= {name: value for name, value in lab_profile().items() if name.startswith("sglang_")}
    (folder / "host_vars/ct129.yml").rename(folder / f"host_vars/ct{VMID}.yml")
    (folder / f"host_vars/ct{VMID}.yml").write_text(yaml.safe_dump(variables))


@pytest.fixture
def no_container(gpu_node: None) -> Iterator[None]:
    remove = f"(pct stop {VMID}; rm -rf /etc/pve/lxc/{VMID}.conf /var/lib/lxc/{VMID}; true) 2>/dev/null"
    on_node(remove)
    on_node("nvidia-modprobe")  # as nvidia-smi does, which the page asks for
    yield
    on_node(remove)


@pytest.mark.slow
def test_the_first_deployment(no_container: None, tmp_path: Path) -> None:
    inventory = tmp_path / "mine"
    (tmp_path / "password").write_text("a word")
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\necho "vault_sglang_api_key: {KEY}" >"$1"\n')
    editor.chmod(0o755)
    variables = {
        **environment(),
        "ANSIBLE_INVENTORY": str(inventory),
        "ANSIBLE_SSH_COMMON_ARGS": f"-F {LAB}/ssh/config",  # the page asks for an ssh that works
        "ANSIBLE_VAULT_PASSWORD_FILE": str(tmp_path / "password"),
        "EDITOR": str(editor),
    }
    runs: dict[str, list[Run]] = {}
    for command in commands():
        program, *words = command.words
        if command.page != "docs/first-deploy.md" or program in ELSEWHERE:
            continue
        for was, now in ((MINE, str(inventory)), ("ct129", f"ct{VMID}"), ("192.0.2.129", ADDRESS), ("$KEY", KEY)):
            words = [word.replace(was, now) for word in words]
        words += ["--skip-tty-check"] if program == "ansible-vault" else []  # an editor is opened in a terminal only
        argv = [str(PLAYBOOK.with_name(program)) if program.startswith("ansible") else program, *words]
        done = subprocess.run(
            argv, cwd=PROJECT, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        run = Run(done.returncode, done.stdout + done.stderr)
        if command.form == "playbooks/plan.yml":  # of a host with GPUs tests/unit/docs asks it
            assert run.status != 0 and "no plan: nvidia-smi tells of no GPU on this host" in run.output, run
        else:
            assert run.status == 0, (shlex.join(command.words), run)
        assert KEY not in run.output
        runs.setdefault(command.form, []).append(run)
        if program == "cp":
            mine(inventory)
        if command.form == "playbooks/bootstrap.yml --check":
            assert f"+hostname: ct{VMID}" in run.output and not on_node("ls /etc/pve/lxc").count(str(VMID)), run
    host = f"ct{VMID}"
    first, second = runs["deploy.yml"]
    assert first.count(host, "changed") >= 1 and second.count(host, "changed") == 0, (first, second)
    for run in (first, second, *runs["playbooks/health.yml"]):
        assert [line for line in run.output.splitlines() if line.split()[:2] == [host, "qwen36"]], run
    (answer,) = runs["curl"]
    # curl tells its progress after it
    models, _end = json.JSONDecoder().raw_decode(answer.output, answer.output.index("{"))
    assert models["data"][0]["id"] == "/srv/lab/models/tiny-qwen3"
