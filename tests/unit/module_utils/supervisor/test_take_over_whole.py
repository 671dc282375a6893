# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The place of a server that was started by hand is taken by real parts: the stand-in, a detached run, supervisord."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import (
    gpu,
    guard,
    processes,
    runs,
    sockets,
    take_over,
)
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Wait
from ansible_collections.gpuops.sglang.plugins.module_utils.host import only_one
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Order
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from conftest import schema_of
from found_servers import free_port
from test_supervisord import PYTHON, USER, until
from test_supervisord import venv as venv  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="supervisord is root's")]
STANDIN = Path(__file__).parents[4] / "molecule/lab/standins/server"
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 4096}


class Machine:
    """A host with a release, and a server that was started by hand."""

    def __init__(self, folder: Path, venv: Path) -> None:
        self.folder, self.port, self.host = folder, free_port(), Host(folder / "release", USER, folder / "state", 5)
        self.supervisor = Supervisord(self.host.state)
        self.supervisor.folder.mkdir(parents=True)
        self.supervisor.venv.symlink_to(venv)
        self.schema = schema_of("0.5.23")
        (self.host.release / "venv/bin").mkdir(parents=True)
        (self.host.release / "venv/bin/python").symlink_to(PYTHON)
        options = {"sglang_version": "0.5.23", "options": dict(self.schema)}
        (self.host.release / "schema.json").write_text(json.dumps(options))
        (self.host.release / "release.json").write_text("{}")
        shutil.copytree(STANDIN, folder / "server")
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text(json.dumps(CONFIG))
        self.log = folder / "sglang.log"
        self.log.write_text("before\n")

    def by_hand(self) -> int:
        words = ["-m", "sglang.launch_server", "--model-path", "model", "--api-key", "geheim", "--port", str(self.port)]
        start = ["setsid", "--fork", "sh", "-c", 'exec nohup "$@" >> sglang.log 2>&1 </dev/null', "sh", PYTHON]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "server"), "HF_TOKEN": "geheim"}
        subprocess.run([*start, *words], cwd=self.folder, env=variables, check=True)
        until(lambda: "fired up" in self.log.read_text(), "it does not serve")
        return self.serving()

    def serving(self) -> int:
        listener = sockets.listeners(self.port)[0].pid
        return next(one.pid for one in processes.servers() if listener in processes.with_descendants(one.pid))

    def begin(self, **env: str) -> str:
        variables = {"PYTHONPATH": str(self.folder / "server"), **env}
        model = str(self.folder / "model")
        asked = Instance("a", model, "127.0.0.1", self.port, (), {}, variables, {"api_key": "other"})
        old = take_over.server_at("a", self.port, 5) or take_over.interrupted("a")
        order = Order("a", (), partial(launches.prepare, asked, self.host, self.schema, {}), old)
        with only_one(launches.LOCK, "starts", 0):
            return runs.begin([order], self.host.state, Wait(stall=60))

    def outcome(self, run: str) -> dict[str, Any]:
        seen: dict[str, str] = {}
        for _look in range(600):
            answer = runs.follow(run, seen, 0.2, 5)
            if answer["outcomes"] is not None:
                (outcome,) = answer["outcomes"]
                return dict(outcome)
            seen = answer["steps"]
        raise AssertionError("it does not end")

    def end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.kill(int((self.supervisor.run / "supervisord.pid").read_text()), signal.SIGKILL)
        self.supervisor.stop("a")
        for listener in sockets.listeners(self.port):
            for pid in processes.with_descendants(listener.pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.supervisor.run, ignore_errors=True)


@pytest.fixture
def machine(venv: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="gpuops-"))  # open to the server's user
    folder.chmod(0o755)
    made = Machine(folder, venv)
    monkeypatch.setattr(gpu, "device", lambda: None)
    monkeypatch.setattr(here, "_chosen", made.supervisor)
    monkeypatch.setattr(processes, "groups", made.supervisor)
    monkeypatch.setattr(runs, "RUNS", folder / "runs")
    monkeypatch.setattr(launches, "LOCK", folder / "lock")
    monkeypatch.setattr(launches, "TAKEN", folder / "runs/taken")
    how = {"python": PYTHON, "environment": {}, "release": "", "start_hook": "", "control": ""}
    made.supervisor.set_up(how, True)
    yield made
    made.end()
    shutil.rmtree(folder)


def facts(pid: int) -> list[bytes]:
    return [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]


def test_a_launch_that_fails_gives_the_place_back_and_one_that_serves_keeps_it(machine: Machine) -> None:
    pid = machine.by_hand()
    before = facts(pid)
    failed = machine.outcome(machine.begin(STANDIN_FAULT="dies_loading"))
    second = machine.serving()
    served = f"by its old command, as process {second}, which answers on port {machine.port}."
    assert failed["problem"].endswith(f"\nServing now: what served before, {served}")
    assert "the server ended while loading weights" in failed["problem"] and "geheim" not in json.dumps(failed)
    assert second != pid and facts(second) == before and not guard.born(pid)
    status = Path(f"/proc/{second}/status").read_text()
    assert int(status.partition("SigIgn:\t")[2].split()[0], 16) & 1 and os.getsid(second) == second
    assert machine.log.read_text().startswith("before\n") and machine.log.read_text().count("fired up") == 2
    assert machine.supervisor.installed_instances() == [] and list(launches.TAKEN.iterdir()) == []

    took = machine.outcome(machine.begin())
    assert took["problem"] == "" and took["serving"] == guard.launch_in(machine.serving()) and not guard.born(second)
    assert list(launches.TAKEN.iterdir()) == []
    assert take_over.server_at("a", machine.port, 5) is None


def test_a_run_that_is_killed_meanwhile_is_made_good_by_the_next(machine: Machine) -> None:
    pid = machine.by_hand()
    before = facts(pid)
    run = machine.begin(STANDIN_LOAD_SECONDS="600")
    until(lambda: not guard.born(pid) and machine.supervisor.identity("a").main_pid, "it is not taken over")
    worker = json.loads((runs.RUNS / f"{run}.json").read_text())["pid"]
    os.kill(worker, signal.SIGKILL)
    until(lambda: not guard.born(worker), "it does not end")
    assert (launches.TAKEN / "a.json").stat().st_mode & 0o777 == 0o600
    until(lambda: take_over.interrupted("a"), "nobody knows of it")
    failed = machine.outcome(machine.begin(STANDIN_FAULT="dies_loading"))
    assert f"as process {machine.serving()}, which answers" in failed["problem"]
    assert facts(machine.serving()) == before and list(launches.TAKEN.iterdir()) == []
