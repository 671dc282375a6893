# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook adopt.yml on this machine, with a small real server that was started as in the accounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from found_servers import free_port, make_venv, started, tell

ROOT = Path(__file__).parents[3]
KEY, TOKEN = "geheim-api-4711", "hf_geheim4711geheim4711geheim"
TEMPLATE = "{{ lookup('pipe', 'touch /nonexistent/x') }}"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root finds all servers")]


class Controller:
    """A folder with an inventory of this machine."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid, self.variables = pid, folder / "inventory/host_vars"
        self.variables.mkdir(parents=True)
        python = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (folder / "inventory/hosts.yml").write_text(yaml.safe_dump({"sglang": {"hosts": {"box": python}}}))
        self.folder = folder

    def run(self, *words: str) -> tuple[int, str]:
        """Return status and output of a run, in which no secret is, however much is told."""
        pids = ["--extra-vars", json.dumps({"adopt_pids": [self.pid]})]  # other tests start servers too
        argv = [
            "ansible-playbook",
            "-vvv",
            "--diff",
            "--inventory",
            "inventory",
            str(ROOT / "playbooks/adopt.yml"),
            *pids,
        ]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        done = subprocess.run(
            [*argv, *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        assert "4711" not in output.replace(str(self.pid), "")
        return done.returncode, " ".join(output.split())


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    host = tmp_path / "host"
    host.mkdir()
    python = make_venv(tmp_path / "venv", "0.5.13")
    tell(python, {"version": "0.5.13", "context_length": 4096, "api_key": KEY})
    words = [
        "setsid", "--fork", "nohup", str(python), "-m", "sglang.launch_server", "--model-path", "Qwen/Q",
        "--api-key", KEY, "--port", str(free_port()), "--context-length", "4096", "--served-model-name", TEMPLATE,
        "--mamba-scheduler-strategy", "extra_buffer",
    ]  # fmt: skip
    with started(words, host, host / "sglang.log", HF_TOKEN=TOKEN) as pid:
        yield Controller(tmp_path, pid)
        os.kill(pid, 0)  # it serves on


def test_a_server_is_shown_and_written_only_where_asked(controller: Controller) -> None:
    status, output = controller.run()
    assert status == 0 and "changed=0" in output and list(controller.variables.iterdir()) == []
    assert f"process {controller.pid} of user root" in output and "-e adopt_into=FOLDER" in output

    asked = "--extra-vars", "adopt_into=inventory/host_vars"
    (controller.variables / "box").mkdir(mode=0o700)
    file = controller.variables / "box/sglang_adopted.yml"
    status, output = controller.run(*asked)
    assert status == 0 and "deploy.yml -l box -e sglang_server_take_over=true" in output
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]
    text = file.read_text()
    assert "4711" not in text.replace(str(controller.pid), "")
    loaded = yaml.safe_load(text.replace("!unsafe", ""))
    (instance,) = loaded["sglang_server_instances"]
    assert instance["secrets"] == {"HF_TOKEN": "{{ vault_q_hf_token }}", "api_key": "{{ vault_q_api_key }}"}
    assert instance["args"]["mamba_scheduler_strategy"] == "extra_buffer"
    assert f"!unsafe '{TEMPLATE.replace(chr(39), chr(39) * 2)}'" in text

    status, output = controller.run(*asked)
    assert status == 0 and "changed=0" in output
    old = f"a: {KEY}\n"  # which no output may have
    file.write_text(old)
    status, output = controller.run(*asked)
    assert status != 0 and "-e adopt_overwrite=true" in output and file.read_text() == old
    status, output = controller.run(*asked, "--extra-vars", "adopt_overwrite=true")
    assert status == 0 and file.read_text() == text


def test_variables_that_ansible_would_not_read_are_refused(controller: Controller) -> None:
    asked = "--extra-vars", "adopt_into=inventory/host_vars"
    other = controller.variables / "box.yml"
    other.write_text("a: 1\n")
    status, output = controller.run(*asked)
    assert status != 0 and f"{other} and {controller.variables}/box/ would not both be read" in output
    other.write_text("sglang_server_instances: []\n")
    (controller.variables / "box").mkdir()
    other.rename(controller.variables / "box/main.yml")
    status, output = controller.run(*asked)
    assert status != 0 and "has 'sglang_server_instances' in its inventory already" in output
    assert [path.name for path in (controller.variables / "box").iterdir()] == ["main.yml"]


def test_a_host_that_fails_is_not_shown_as_one_without_servers(controller: Controller) -> None:
    hosts = yaml.safe_load((controller.folder / "inventory/hosts.yml").read_text())
    hosts["sglang"]["hosts"]["gone"] = {"ansible_connection": "local", "ansible_python_interpreter": "/nonexistent"}
    (controller.folder / "inventory/hosts.yml").write_text(yaml.safe_dump(hosts))
    status, output = controller.run()
    assert status != 0 and "gone (not looked at)" in output and f"process {controller.pid} of user root" in output
