# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container fetches a model from a hub on the controller."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from connections import NODE, on_node
from hub_server import HubServer, small_model
from paths import SSH
from pct_backend import container
from playbook_runs import CONTROLLER, deploy, lab_instances, lab_profile

REPO = "owner/model"


@pytest.fixture
def folder() -> Iterator[str]:
    """A directory of container 129 and of its node that goes with the test."""
    path = f"/srv/gpuops-models-{uuid.uuid4().hex[:8]}"
    yield path
    container(129).run("rm -rf %s", path)
    on_node("rm", "-rf", path)


@pytest.mark.slow
def test_a_container_fetches_a_model_once(folder: str) -> None:
    files = small_model(size=21_000_000)
    host = container(129)
    with HubServer(CONTROLLER).running() as hub:
        commit = hub.commit(REPO, files)
        asked = {
            "sglang_model_models": [{"name": "small", "repo": REPO}],
            "sglang_model_store": f"{folder}/store",
            "sglang_model_root": f"{folder}/root",
            "sglang_model_endpoint": hub.address,
            "sglang_model_environment": {**lab_profile()["sglang_install_environment"], "no_proxy": CONTROLLER},
        }
        checked = deploy("-l", "ct129", "--check", playbook="playbooks/models.yml", extra=asked)
        assert checked.status == 0 and checked.count("ct129", "changed") == 1, checked
        assert f"ct129 | small: would fetch 7 files of {commit}, 42.0 MB" in checked.output, checked
        assert not host.file(folder).exists and hub.fetched() == {}
        # a whole deployment that is only looked at needs no model
        instances = [{**one, "model": f"{folder}/store/small"} for one in lab_instances()]
        checked = deploy("-l", "ct129", "--check", extra={**asked, "sglang_server_instances": instances})
        assert checked.status == 0 and checked.count("ct129", "changed") == 2, checked
        assert "is still to be fetched, so SGLang was not asked about it" in checked.output, checked
        hub.pace = 0.08
        run = deploy("-l", "ct129", playbook="playbooks/models.yml", extra=asked)
        assert run.status == 0 and run.count("ct129", "changed") == 1, run
        assert "ct129 | small: " in run.output and " of 42.0 MB" in run.output and "B/s" in run.output, run
        assert "\r" not in run.output
        assert sum(hub.fetched().values()) == sum(
            len(content) for name, content in files.items() if not name.endswith((".bin", ".pth")) and name[0] != "."
        )
    # the hub is gone, and a deployment finds the model
    again = deploy("-l", "ct129", extra={**asked, "sglang_model_verify": "full"})
    assert again.status == 0 and again.count("ct129", "changed") == 0, again
    host.check_output("truncate --size=9 %s", f"{folder}/store/small/config.json")
    refused = deploy("-l", "ct129", playbook="playbooks/models.yml", extra=asked)
    assert refused.status != 0 and f"can not fetch {REPO} from {hub.address}" in refused.output, refused
    removed = {**asked, "sglang_model_models": [], "sglang_model_remove": ["small"]}
    run = deploy("-l", "ct129", playbook="playbooks/models.yml", extra=removed)
    assert run.status == 0 and not host.file(f"{folder}/store/small").exists, run


@pytest.mark.slow
def test_a_container_copies_a_model_from_its_node(folder: str, tmp_path: Path) -> None:
    files = small_model(size=21_000_000)
    for name, content in files.items():
        (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "small" / name).write_bytes(content)
    subprocess.run(["scp", "-qr", "-F", SSH / "config", tmp_path / "small", f"kpro5:{folder}"], check=True)
    key = (SSH / "id_ed25519").read_text()
    asked = {
        "sglang_model_models": [{"name": "small", "copy_from": f"root@{NODE}:{folder}", "ignore": ["*.bin", "*.pth"]}],
        "sglang_model_store": f"{folder}/store",
        "sglang_model_ssh_key": key,
        "sglang_model_ssh_known_hosts": (SSH / "known_hosts").read_text(),
    }
    checked = deploy("-l", "ct129", "--check", playbook="playbooks/models.yml", extra=asked)
    assert checked.status == 0 and checked.count("ct129", "changed") == 1, checked
    assert "ct129 | small: would fetch 7 files" in checked.output and ", 42.0 MB" in checked.output, checked
    refused = deploy(
        "-l", "ct129", playbook="playbooks/models.yml", extra={**asked, "sglang_model_ssh_known_hosts": ""}
    )
    assert refused.status != 0 and "Host key verification failed" in refused.output, refused
    run = deploy("-l", "ct129", "-vvv", playbook="playbooks/models.yml", extra=asked)
    assert run.status == 0 and run.count("ct129", "changed") == 1, run
    assert not any(line in run.output for line in key.splitlines() if "-----" not in line)
    host = container(129)
    found = {name: host.file(f"{folder}/store/small/{name}").content for name in files if name.endswith("safetensors")}
    assert found == {name: files[name] for name in found} and len(found) == 2
    on_node("rm", "-r", folder)  # and the source is gone
    again = deploy("-l", "ct129", playbook="playbooks/models.yml", extra=asked)
    assert again.status == 0 and again.count("ct129", "changed") == 0, again
