# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual environment of requirements/awx.txt, and AWX's objects as they are after awx/install.yml."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from awx_api import MODULES, TOKEN, Awx, serving
from awx_runs import BIN, ROOT, environment

GIVEN = {
    "awx_node_key": "geheim-key-4711",
    "awx_hub_token": "hf_geheim4711",
    "awx_proxmox_token": "geheim-proxmox-4711",
    "awx_vault_password": "geheim-vault-4711",
    "awx_mail_to": ["ops@example.lan"],
}


class Installed:
    """An AWX on loopback, and awx/install.yml against it."""

    def __init__(self, awx: Awx, url: str) -> None:
        self.awx, self.url = awx, url

    def install(self, given: Mapping[str, Any] | None = None, *words: str) -> tuple[int, str]:
        """Return how many tasks changed something, and the output of a run that ended well."""
        done = subprocess.run(
            [BIN / "ansible-playbook", "awx/install.yml", "-i", "localhost,", "-e", json.dumps(given or {}), *words],
            cwd=ROOT,
            env=environment(CONTROLLER_HOST=self.url, CONTROLLER_OAUTH_TOKEN=TOKEN),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return int(output.rpartition("changed=")[2].split()[0]), output


@pytest.fixture(scope="session")
def documented() -> dict[str, dict[str, Any]]:
    """The options of the modules of awx.awx as their documentation has them: module -> option -> facts."""
    names = [f"awx.awx.{module}" for module in MODULES.values()]
    done = subprocess.run(
        [BIN / "ansible-doc", "--json", *names], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return {module: found[f"awx.awx.{module}"]["doc"]["options"] for module in MODULES.values()}


@pytest.fixture(scope="session")
def installed(documented: Mapping[str, Any]) -> Iterator[Installed]:
    """An AWX into which awx/install.yml has put everything."""
    playbooks = {str(path.relative_to(ROOT)) for path in (ROOT / "deploy.yml", *ROOT.glob("playbooks/*.yml"))}
    awx = Awx(documented, playbooks)
    with serving(awx) as url:
        made = Installed(awx, url)
        changed, output = made.install(GIVEN)
        assert changed > 0 and "[WARNING]" not in output, output
        assert "4711" not in output
        yield made
