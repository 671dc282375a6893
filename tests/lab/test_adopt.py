# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that was started by hand becomes an instance: read, proved beside it, its place taken, and back again.

Both are the stand-in; what reads the command line and proves the variables is the real release.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import PROJECT, Run, begin, deploy, eventually
from servers import here, serves
from standin import BOTH_SUPERVISORS, SERVERS, beside
from testinfra.host import Host

pytestmark = pytest.mark.slow

KEY, TOKEN = "planted-7d02aa", "hf_planted7d02aaplanted"
NAME, MODEL = "tiny-qwen3", "/srv/lab/models/tiny-qwen3"
ARGS = {
    "device": "cpu",
    "load_format": "dummy",
    "model_impl": "transformers",
    "max_total_tokens": 4096,
    "max_running_requests": 8,
}
UNIT = """\
[Service]
WorkingDirectory=/root
Environment=PYTHONPATH={servers}
ExecStart={command}
Restart=always
[Install]
WantedBy=multi-user.target
"""
# whether it serves, ten times a second
POLL = """
import sys, time, urllib.request
with open("/root/polled", "w", buffering=1) as file:
    for _ in range(9000):
        try:
            urllib.request.urlopen("http://127.0.0.1:30000/health", timeout=30).close()
            file.write("up\\n")
        except OSError:
            file.write("down\\n")
        time.sleep(0.1)
"""


class Operator:
    """Somebody with an inventory that says nothing of instances yet, and a server on the host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.inventory = host, folder / "lab"
        shutil.copytree(PROJECT / "inventories/lab", self.inventory)
        (self.inventory / "group_vars/sglang/instances.yml").write_text("sglang_health_timeout: 600\n")
        self.variables = self.inventory / f"host_vars/{here.name}"
        self.variables.mkdir(parents=True, exist_ok=True)
        before = self.variables.with_suffix(".yml")
        if before.exists():
            before.rename(self.variables / "main.yml")
        python = host.check_output("ls -d %s/releases/0.5.23-*/venv/bin/python | tail -n 1", here.root)
        words = [python, "-m", "sglang.launch_server", "--model-path", MODEL, "--api-key", KEY]
        self.command = [*words, *(word for name, value in ARGS.items() for word in (flag(name), str(value)))]

    def run(self, playbook: str = "deploy.yml", **extra: Any) -> Run:
        ran = deploy("-i", str(self.inventory), "-l", here.name, "--diff", playbook=playbook, extra=extra)
        assert "planted" not in ran.output
        return ran

    def start(self) -> int:
        """As in the accounts: over ssh, with nohup."""
        variables = f"HF_TOKEN={TOKEN} PYTHONPATH={SERVERS}"
        line = f"cd /root; {variables} nohup {shlex.join(self.command)} > sglang.log 2>&1 & echo $!"
        shell = self.host.check_output(line)
        assert eventually(lambda: serves(self.host), 60), self.host.run("cat /root/sglang.log").stdout
        # the shell's own child
        pid = self.host.run("pgrep -P %s -f sglang.launch_server", shell).stdout.split()
        return int(pid[0] if pid else shell)

    def facts(self, pid: int) -> dict[str, str]:
        told = {
            name: self.host.check_output("base64 -w0 /proc/%s/%s", str(pid), name) for name in ("cmdline", "environ")
        }
        links = self.host.check_output("cd /proc/%s && readlink cwd exe fd/0 fd/1 fd/2", str(pid))
        return {**told, "links": links, "user": self.host.check_output("stat -c %%u:%%g /proc/%s", str(pid))}

    def is_there(self, pid: int) -> bool:
        return bool(self.host.run("kill -0 %s", str(pid)).rc == 0)

    def adopt(self, **changed: str) -> dict[str, Any]:
        """Have the variables written, put what they need into a vault, and change the environment of the instance."""
        run = self.run("playbooks/adopt.yml", adopt_into=str(self.variables.parent), adopt_overwrite=True)
        assert run.status == 0, run
        path = self.variables / "sglang_adopted.yml"
        text = path.read_text()
        assert "planted" not in text
        written: dict[str, Any] = yaml.safe_load(text)
        (instance,) = written["sglang_server_instances"]
        values = {"api_key": KEY, "HF_TOKEN": TOKEN}
        vault = {template.strip("{ }"): values[name] for name, template in instance["secrets"].items()}
        (self.variables / "vault.yml").write_text(yaml.safe_dump(vault))
        self.now(written, **changed)
        return instance

    def now(self, written: dict[str, Any] | None = None, **changed: str) -> None:
        path = self.variables / "sglang_adopted.yml"
        written = written or yaml.safe_load(path.read_text())
        (instance,) = written["sglang_server_instances"]
        changed_entry = {**instance, "env": {"PYTHONPATH": SERVERS, **changed}}
        path.write_text(yaml.safe_dump({**written, "sglang_server_instances": [changed_entry]}))

    def clean(self) -> None:
        entry = {"name": NAME, "model": MODEL, "port": 30000}
        run = self.run(sglang_server_state="absent", sglang_server_instances=[entry])
        assert run.status == 0, run
        for pid in self.host.run("pgrep -f %s", f"^{self.command[0]} -m sglang.launch_server").stdout.split():
            self.host.run("kill -9 %s", pid)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.fixture
def operator(standin: Host, tmp_path: Path) -> Iterator[Operator]:
    run = deploy("-l", here.name, extra={"sglang_server_state": "absent"})
    assert run.status == 0, run
    made = Operator(standin, tmp_path)
    yield made
    made.clean()


def returned(run: Run, operator: Operator, pid: int) -> int:
    """Return the process that serves again by the old command."""
    assert run.status != 0 and "the server ended while loading weights" in run.output, run
    words = r"Serving now: what served before, by its old command, as process (\d+), which answers on port 30000"
    told = re.search(words, run.output)
    assert told and int(told[1]) != pid and not operator.is_there(pid), run
    assert serves(operator.host) and not operator.host.file(here.unit.replace("tiny", NAME)).exists
    return int(told[1])


@BOTH_SUPERVISORS
def test_a_server_that_was_started_by_hand_becomes_an_instance(operator: Operator) -> None:
    host = operator.host
    pid = operator.start()
    before, log = operator.facts(pid), host.check_output("cat /root/sglang.log")
    other = "python3 -c 'import time; time.sleep(3000)' -m sglang.launch_server --port 30000"
    with beside(host, other), beside(host, f"python3 -c {shlex.quote(POLL)}"):
        others = host.check_output("pgrep -f '^python3 -c import time; time.sleep.3000'").split()
        instance = operator.adopt(STANDIN_FAULT="dies_loading")
        assert {name: instance["args"][name] for name in ARGS} == ARGS
        assert set(instance["args"]) <= {*ARGS, "served_model_name"}
        assert (instance["name"], instance["model"], instance["port"]) == (NAME, MODEL, 30000)
        assert set(instance["secrets"]) == {"api_key", "HF_TOKEN"}

        refused = operator.run()
        assert refused.status != 0 and f"port 30000 is held by process {pid} of user root" in refused.output
        assert "-e sglang_server_take_over=true" in refused.output
        asked = operator.run("playbooks/preflight.yml", sglang_server_take_over=True)
        assert asked.status == 0, asked
        checked = deploy(
            "-i", str(operator.inventory), "-l", here.name, "--check", extra={"sglang_server_take_over": True}
        )
        assert checked.status == 0 and f"takes the place of process {pid} of user root" in checked.output, checked
        polled = host.check_output("sort /root/polled | uniq -c").split()
        assert operator.is_there(pid) and polled[1::2] == ["up"] and int(polled[0]) > 10

        second = returned(operator.run(sglang_server_take_over=True), operator, pid)
        assert operator.facts(second) == before
        assert host.check_output("cat /root/sglang.log").startswith(log)
        assert host.check_output("cat /root/sglang.log").count("The server is fired up") == 2
        assert host.check_output("awk '/^SigIgn/ {print $2}' /proc/%s/status", str(second))[-1] in "13579bdf"
        assert host.run("ls /run/gpuops-sglang/taken").stdout == ""

        operator.now()
        took = operator.run(sglang_server_take_over=True)
        assert took.status == 0 and took.count(here.name, "changed") > 0, took
        assert not operator.is_there(second) and serves(host)
        assert host.run("ls /run/gpuops-sglang/taken").stdout == ""
        again = operator.run(sglang_server_take_over=True)
        assert again.status == 0 and again.count(here.name, "changed") == 0, again
        assert all(operator.is_there(int(one)) for one in others)


@pytest.mark.parametrize("standin", ["rental"], indirect=True)
def test_a_host_whose_process_is_killed_meanwhile_comes_back(operator: Operator) -> None:
    host = operator.host
    pid = operator.start()
    before = operator.facts(pid)
    operator.adopt(STANDIN_LOAD_SECONDS="600")
    process = begin("-i", str(operator.inventory), "-l", here.name, extra={"sglang_server_take_over": True})
    try:
        assert eventually(lambda: not operator.is_there(pid), 120)
        worker = host.check_output("cut -d ' ' -f 1 /run/gpuops-sglang.lock")
        host.check_output("kill -9 %s", worker)
        assert host.check_output("stat -c %%a:%%u /run/gpuops-sglang/taken/%s.json", NAME) == "600:0"
    finally:
        output, _ = process.communicate()
    assert "was ended before it had a result" in output
    operator.now(STANDIN_FAULT="dies_loading")
    run = operator.run()
    assert f"an earlier deployment has ended process {pid} of user root" in " ".join(run.output.split())
    assert operator.facts(returned(run, operator, pid)) == before
    assert host.run("ls /run/gpuops-sglang/taken").stdout == ""


@pytest.mark.parametrize("standin", ["ct130"], indirect=True)
def test_a_unit_is_stopped_and_comes_back_by_its_own_means(operator: Operator) -> None:
    host = operator.host
    text = UNIT.format(servers=SERVERS, command=shlex.join(operator.command))
    host.check_output("printf %%s %s > /etc/systemd/system/llm.service && systemctl daemon-reload", text)
    try:
        host.check_output("systemctl enable --now llm.service")
        assert eventually(lambda: serves(host), 60)
        operator.adopt(STANDIN_FAULT="dies_loading")
        failed = operator.run(sglang_server_take_over=True)
        assert failed.status != 0, failed
        assert "Serving now: what served before, llm.service, as process " in failed.output, failed
        state = "systemctl is-enabled llm.service; systemctl is-active llm.service"
        assert host.run(state).stdout == "enabled\nactive\n"
        operator.now()
        took = operator.run(sglang_server_take_over=True)
        assert took.status == 0 and serves(host), took
        # failed, where it ended by the signal
        assert host.run(state).stdout in ("disabled\ninactive\n", "disabled\nfailed\n")
    finally:
        host.run("systemctl disable --now llm.service; rm /etc/systemd/system/llm.service; systemctl daemon-reload")
