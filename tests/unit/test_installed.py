# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as it is shipped: built, installed from the built file, used away from this checkout.

With the oldest ansible-core that meta/runtime.yml names and with the newest one there is.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from core_versions import PROJECT, WHICH, environment_of

pytestmark = pytest.mark.slow

CONFIG = PROJECT / "tests/unit/fixtures/memory/qwen3-8b.json"
DOCUMENTED = ("callback", "connection", "filter", "inventory", "lookup", "module")
IMPORT = """
import importlib, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
for name in sys.argv[2:]:
    importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.{name}")
"""
PLAY = {
    "hosts": "localhost",
    "gather_facts": False,
    "tasks": [
        {
            "gpuops.sglang.sglang_plan": {"model": str(CONFIG), "gpus": [{"name": "H200"}], "assume_complete": True},
            "register": "planned",
        },
        {"ansible.builtin.debug": {"msg": "{{ {'here': [planned]} | gpuops.sglang.plan_bars }}"}},
        {"ansible.builtin.include_role": {"name": "gpuops.sglang.sglang_model"}},
    ],
}


class Installed:
    """The collection in a folder of its own, and commands of one ansible-core that see no other."""

    def __init__(self, venv: Path, folder: Path) -> None:
        self.venv, self.folder = venv, folder
        built = self.run("ansible-galaxy", "collection", "build", PROJECT, "--output-path", folder)
        assert "Created collection" in built
        (archive,) = folder.glob("*.tar.gz")
        self.run("ansible-galaxy", "collection", "install", "--offline", "--no-deps", "-p", folder, archive)
        self.place = folder / "ansible_collections/gpuops/sglang"

    def run(self, program: str, *words: str | Path) -> str:
        environment = {
            "PATH": f"{self.venv / 'bin'}:/usr/bin:/bin",
            "HOME": os.environ["HOME"],
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
        }
        argv = [str(self.venv / "bin" / program), *map(str, words)]
        done = subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        # ansible-core warns of a collection of its own
        told = [line for line in done.stderr.splitlines() if "[WARNING]" in line and "/_protomatter' " not in line]
        assert done.returncode == 0 and told == [], f"{shlex.join(argv)}\n{done.stdout[-3000:]}{done.stderr}"
        return done.stdout


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize("which", WHICH)
def test_the_built_collection_works(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    installed = Installed(environment_of(which, request.config), tmp_path)
    plugins = installed.place / "plugins"
    assert not (installed.place / "tests").exists() and not (installed.place / "ansible.cfg").exists()

    told: dict[str, Any] = json.loads(installed.run("ansible-doc", "--metadata-dump", "gpuops.sglang"))["all"]
    for kind in DOCUMENTED:
        shipped = names(plugins / ("modules" if kind == "module" else kind))
        assert {name.rpartition(".")[2] for name in told.get(kind, {})} == shipped
    assert {name.rpartition(".")[2] for name in told["role"]} == {path.name for path in (PROJECT / "roles").iterdir()}

    every = [path.relative_to(plugins).with_suffix("") for path in sorted(plugins.rglob("*.py"))]
    installed.run(
        "python", "-c", IMPORT, tmp_path, *(".".join(path.parts) for path in every if path.stem != "__init__")
    )

    playbooks = [f"gpuops.sglang.{path.stem}" for path in sorted(PROJECT.glob("playbooks/*.yml"))]
    installed.run("ansible-playbook", "--syntax-check", "-i", installed.place / "inventories/example", *playbooks)

    (tmp_path / "play.yml").write_text(yaml.safe_dump([PLAY]))
    said = installed.run("ansible-playbook", "play.yml")
    assert ": fits" in said and "0 NVIDIA H200" in said
