# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on real parts: what a deployment changes, and what survives faults."""

from __future__ import annotations

import json
import subprocess

import pytest
from pct_backend import container
from playbook_runs import (
    PROJECT,
    Run,
    deploy,
    environment,
    lab_instances,
    with_args,
)
from servers import GET, launch, main_pid, serves
from standin import record
from testinfra.host import Host

# SGLang finds out only while it loads: these kernels need a GPU
FAILING = with_args(attention_backend="fa3")
TOLD = ("the server ended while ", "Next: ", "Now: the service is ", "journalctl GPUOPS_LAUNCH=", "Serving now: what ")


def test_a_second_run_changes_nothing_and_shows_what_serves(deployed: None) -> None:
    run = deploy("-l", "kpro5")
    assert run.status == 0, run
    for vmid in (129, 130):
        assert run.count(f"ct{vmid}", "changed") == 0
        (row,) = (line.split() for line in run.output.splitlines() if line.split()[:2] == [f"ct{vmid}", "tiny"])
        assert row[2] == launch(container(vmid))
        assert row[3:7] == ["active", "(running)", "30000", "/srv/lab/models/tiny-qwen3"]
        assert int(row[7]) == len(lab_instances()[0]["args"]) + 3  # and host, port, model path
        assert int(row[8]) > 0
    assert "[WARNING]" not in run.output


@pytest.mark.slow
def test_the_demo_on_a_running_lab_changes_nothing(deployed: None) -> None:
    done = subprocess.run(
        [str(PROJECT / "bin/demo")],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    run = Run(done.returncode, done.stdout + done.stderr)
    assert run.status == 0, run
    assert run.count("ct129", "changed") == run.count("ct130", "changed") == 0


@pytest.mark.slow
def test_health_can_be_asked_alone(deployed: None) -> None:
    run = deploy("-l", "kpro5", playbook="playbooks/health.yml")
    assert run.status == 0, run
    assert run.count("ct129", "changed") == 0
    assert sum(line.split()[:2] == ["ct129", "tiny"] for line in run.output.splitlines()) == 1


def test_check_mode_of_a_converged_host_reports_nothing(deployed: None) -> None:
    run = deploy("-l", "ct129", "--check", "--diff")
    assert run.status == 0, run
    assert run.count("ct129", "changed") == 0
    assert "+++" not in run.output


def test_check_mode_shows_exactly_the_changed_argument(deployed: None) -> None:
    before = main_pid(container(129))
    run = deploy("-l", "ct129", "--check", "--diff", extra=with_args(max_total_tokens=2048))
    assert run.status == 0, run
    assert run.count("ct129", "changed") == 1
    changes = [
        line for line in run.output.splitlines() if line.startswith(("+", "-")) and line[:3] not in ("+++", "---")
    ]
    assert changes == ["-    --max-total-tokens 4096 \\", "+    --max-total-tokens 2048 \\"]
    assert main_pid(container(129)) == before


@pytest.mark.slow
def test_check_mode_of_another_release_installs_nothing(deployed: None) -> None:
    before = main_pid(container(129))
    run = deploy("-l", "ct129", "--check", "--diff", extra={"sglang_install_version": "0.5.22"})
    assert run.status == 0, run
    assert run.count("ct129", "changed") == 2
    assert "+SGLang 0.5.22" in run.output
    assert "+# arguments: compared when the release is installed" in run.output
    assert "    --device cpu" not in run.output
    assert main_pid(container(129)) == before
    assert container(129).run("ls -d /opt/sglang/releases/0.5.22*").stdout == ""


@pytest.mark.slow
def test_a_full_disk_is_said_and_the_next_run_repairs(ct130: Host) -> None:
    ct130.check_output("mkdir -p /mnt/small && mount -t tmpfs -o size=64k tmpfs /mnt/small")
    try:
        before = main_pid(ct130)
        ct130.run("dd if=/dev/zero of=/mnt/small/filler bs=1k")
        run = deploy("-l", "ct130", extra={"sglang_server_state_dir": "/mnt/small"})
        assert run.status != 0
        assert "No space left on device" in run.output and "/mnt/small" in run.output, run
        assert "Traceback" not in run.output
        assert main_pid(ct130) == before, "the running server was touched"
        run = deploy("-l", "ct130", extra={"sglang_install_root": "/mnt/small"})
        assert run.status != 0
        assert "/mnt/small" in run.output and "Traceback" not in run.output, run
        assert main_pid(ct130) == before, "the running server was touched"
    finally:
        ct130.check_output("umount /mnt/small")
    again = deploy("-l", "ct130")
    assert again.status == 0 and again.count("ct130", "changed") == 0, again


@pytest.mark.slow
def test_a_failed_launch_returns_to_what_served(ct130: Host) -> None:
    before = launch(ct130)
    origin = record(ct130).get("again") or before
    failed = deploy("-l", "ct130", extra=FAILING)
    assert failed.status != 0
    (error,) = failed.errors
    assert "instance 'tiny', launch " in error and all(part in failed.output for part in TOLD), failed
    assert serves(ct130)
    assert record(ct130)["again"] == origin and launch(ct130) != before
    # what serves is what the inventory asks for
    again = deploy("-l", "ct130")
    assert again.status == 0 and again.count("ct130", "changed") == 0, again


@pytest.mark.slow
def test_a_changed_argument_is_in_effect_and_a_stale_server_is_not_believed(ct130: Host) -> None:
    before = launch(ct130)
    run = deploy("-l", "ct130", "--diff", extra=with_args(max_running_requests=4))
    assert run.status == 0 and run.count("ct130", "changed") == 1, run
    assert launch(ct130) != before
    info = json.loads(ct130.check_output("python3 -c %s http://127.0.0.1:30000/server_info", GET))
    assert info["max_running_requests"] == 4


@pytest.mark.slow
def test_secrets_are_seen_nowhere(ct130: Host) -> None:
    (instance,) = lab_instances()
    # quotes and backslashes are written otherwise in a Python or JSON text, where a mask would miss them
    secrets = {"api_key": "planted-7f3a9c'\"\\key", "HF_TOKEN": "planted-7f3a9c'\"\\$token"}
    asked = {"sglang_server_instances": [{**instance, "secrets": secrets}]}
    run = deploy("-l", "ct130", "--diff", "-vvv", extra=asked)
    assert run.status == 0, run
    shown = run.output.replace(json.dumps(asked), "")  # -vvv may repeat the command line that a test had to use
    assert "planted-7f3a9c" not in shown
    assert ct130.run("python3 -c %s http://127.0.0.1:30000/v1/models", GET).rc != 0, "the key is not asked for"
    pid = str(main_pid(ct130))
    found = ct130.run("grep -rl planted-7f3a9c /proc/%s/cmdline /etc /opt/sglang /var/lib/sglang /run", pid).stdout
    assert sorted(path.rpartition("/")[2] for path in found.split()) == ["secrets.env", "secrets.yaml"]
    for path, owner in zip(sorted(found.split()), ("root", "sglang")):
        assert ct130.check_output("stat --format='%%a %%U' %s", path) == f"600 {owner}"
    variables = ct130.check_output("cat /proc/%s/environ", pid).split("\0")
    assert f"HF_TOKEN={secrets['HF_TOKEN']}" in variables
    # SGLang itself logs its arguments; nothing else in the host's log may have them
    logged = ct130.check_output("journalctl --no-pager --output=json").splitlines()
    foreign = [line for line in logged if '"_SYSTEMD_UNIT":"sglang-tiny.service"' not in line]
    assert len(foreign) > 10 and not any("planted-7f3a9c" in line for line in foreign)


@pytest.mark.slow
def test_what_a_server_writes_leads_root_nowhere(ct130: Host) -> None:
    ct130.check_output("mkdir -p /root/victim && chmod 700 /root/victim")
    asked = ct130.run(
        "runuser -u sglang -- sh -c 'cd /var/lib/sglang/tiny && rm -rf launches; ln -s /root/victim launches'"
    )
    assert asked.rc != 0
    assert ct130.file("/var/lib/sglang/tiny/launches").is_directory
