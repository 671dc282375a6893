# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container from which Python was removed gets it by the bootstrap playbook, from the package mirror, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from connections import NODE, connect, on_node, variables
from playbook_runs import Run, deploy

VMID = 198
CONF = f"/etc/pve/lxc/{VMID}.conf"
PROXY = "http://10.98.0.1:3128"


@pytest.fixture
def bare() -> Iterator[None]:
    """A container like 129 at an address of its own, without Python."""
    on_node(f"sed 's/ct129/ct{VMID}/; s/10.98.0.129/10.98.0.{VMID}/' /etc/pve/lxc/129.conf >{CONF}; pct start {VMID}")
    packages = "dpkg-query -W -f '${Package}\\n' '*python3*'"
    code, _, stderr = connect(VMID).exec_command(f"dpkg --purge --force-depends $({packages}) && ! command -v python3")
    assert code == 0, stderr
    yield
    on_node(f"pct stop {VMID}; rm -r {CONF} /var/lib/lxc/{VMID}")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    container = variables(
        ansible_connection="gpuops.sglang.pct",
        ansible_pct_vmid=VMID,
        ansible_python_interpreter="/usr/bin/python3",
        container_python_environment={"http_proxy": PROXY},
        container_python_secret_environment={"GPUOPS_HIDDEN": "Hidden"},
    )
    nodes = {"hosts": {"pve-kpro5": variables(ansible_host=NODE, ansible_python_interpreter="/usr/bin/python3")}}
    groups = {"proxmox_nodes": nodes, "sglang": {"hosts": {f"ct{VMID}": container, "bare": {}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(groups))
    return tmp_path / "hosts.yml"


def bootstrap(inventory: Path, *arguments: str, **extra: object) -> Run:
    """What an operator says; the node is not of the limit."""
    return deploy(
        "-i", str(inventory), "-l", f"ct{VMID}", *arguments, playbook="playbooks/bootstrap.yml", extra=extra or None
    )


def python() -> str:
    return connect(VMID).exec_command("python3 --version")[1].decode().strip()


@pytest.mark.slow
def test_a_container_gets_python_once(bare: None, inventory: Path) -> None:
    host = f"ct{VMID}"
    shown = bootstrap(inventory, "--check")
    assert (shown.status, shown.count(host, "changed"), python()) == (0, 1, ""), shown
    assert "msg: python3 by apt-get" in shown.output

    refused = bootstrap(inventory, container_python_packages=["libpython3-none"])
    assert (refused.status, python()) == (2, ""), refused
    assert f"container {VMID} on kpro5: apt-get ended with code 100, not with 0: E: Unable to locate" in refused.output

    installed = bootstrap(inventory)
    assert (installed.status, installed.count(host, "failed")) == (0, 0), installed
    assert installed.count(host, "changed") > 0
    version = python().removeprefix("Python ")
    assert f"msg: Python {version} in /usr/bin/python3, from python3 by apt-get" in installed.output

    again = bootstrap(inventory)
    assert (again.status, again.count(host, "changed")) == (0, 0), again
    assert "Hidden" not in shown.output + refused.output + installed.output + again.output


@pytest.mark.slow
def test_a_container_without_a_package_manager_is_refused(bare: None, inventory: Path) -> None:
    connect(VMID).exec_command("mv /usr/bin/apt-get /usr/bin/apt-get.away")
    refused = bootstrap(inventory)
    assert refused.status == 2
    assert (
        f"container {VMID} has no Python 3.9 or newer in /usr/bin/python3, and none of apt-get, dnf, zypper, apk:"
        in " ".join(refused.output.split())
    )


@pytest.mark.slow
def test_a_python_that_is_not_enough_is_refused(bare: None, inventory: Path) -> None:
    connect(VMID).exec_command(
        "printf '#!/bin/sh\\necho 3.6.8\\n' >/usr/local/bin/python3; chmod +x /usr/local/bin/python3"
    )
    refused = bootstrap(
        inventory, container_python_executable="/usr/local/bin/python3", container_python_packages=["libc6"]
    )
    assert refused.status == 2
    assert "has libc6 now, and Python 3.6.8 in /usr/local/bin/python3, where Ansible needs 3.9" in " ".join(
        refused.output.split()
    )


@pytest.mark.slow
def test_a_host_that_is_no_container_is_left_alone(inventory: Path) -> None:
    run = deploy("-i", str(inventory), "-l", "bare", playbook="playbooks/bootstrap.yml")
    assert (run.status, run.count("bare", "skipped"), run.count("bare", "ok")) == (0, 2, 0), run
