# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deployment that can not lie and that nothing leaves half done, with the stand-in server under real supervisors.

What a real SGLang does is told by test_deploy.py; here are the many repetitions.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pct_backend import container
from playbook_runs import PLAYBOOK, PROJECT, begin, deploy, environment, eventually, interrupted
from servers import GET, UNIT, here, launch, log_of, main_pid, said, serves
from standin import (
    BOTH_SUPERVISORS,
    INSTANCE,
    RESTART,
    SERVERS,
    asked,
    beside,
    converges,
    foreign,
    is_proved,
    launch_in_unit,
    next_start,
    record,
)
from testinfra.host import Host

pytestmark = pytest.mark.slow

KEY = "planted-5d1c7e"

LIES = {
    "a value that is clamped": ("clamps:max_running_requests=4", "requested 8, the server reports 4"),
    "a limit that the scheduler caps": ("caps:4", "the memory that is left allows 4"),
    "another launch's answers": ("other_launch", "port 30000 answers for launch"),
    "a start that never happens": ("exit:1", "the server ended while reading its arguments (exited 1)"),
    "a GPU that is full": ("dies_loading", "the server ended while loading weights"),
    "weights that leave nothing": ("no_memory", "Not enough memory"),
    "a start that stands still": ("stops_loading", "it has made no progress for"),
    "a scheduler that hangs after the warm-up": ("hangs_after:1", "it hangs: it has not computed anything"),
}  # fmt: skip


# of a lie that is told by answers alone the supervisor knows nothing
UNDER_BOTH = ("a start that never happens", "a GPU that is full", "a scheduler that hangs after the warm-up")


@pytest.mark.parametrize(
    ("standin", "lie"),
    [*(("ct130", lie) for lie in LIES), *(("rental", lie) for lie in UNDER_BOTH)],
    indirect=["standin"],
)
def test_what_does_not_serve_as_asked_is_told_and_gives_way_to_what_served(standin: Host, lie: str) -> None:
    fault, words = LIES[lie]
    before = launch(standin)
    origin = record(standin).get("again") or before
    next_start(standin, FAULT=fault)
    run = deploy("-l", here.name, extra={**asked(), **RESTART, "sglang_server_stall_timeout": 8})
    assert run.status != 0
    assert words in run.output, run
    assert serves(standin) and launch(standin) != before
    assert record(standin)["again"] == origin
    assert f"Serving now: what launch {before} was, as launch {launch(standin)}, which was proved." in run.output, run
    # evidence and log are of the launch that failed
    newest = standin.check_output("ls --sort=time %s/*/failure.json", here.launches).split()[0]
    failed = Path(newest).parent.name
    assert failed not in (before, launch(standin)) and failed in run.output, run
    told = run.output.split("[ERROR]")[1].split("Serving now: ")[0]
    assert before not in told and launch(standin) not in told
    kept = standin.check_output("cat %s/%s/failure.log", here.launches, failed)
    assert kept and before not in kept


def test_a_key_that_is_not_asked_for_is_told(standin: Host) -> None:
    secret = asked(secrets={"api_key": KEY})
    next_start(standin, FAULT="no_key")
    run = deploy("-l", here.name, extra=secret)
    assert run.status != 0 and "answers without the API key" in run.output, run
    assert KEY not in run.output.replace(json.dumps(secret), "")
    honest = deploy("-l", here.name, extra=secret)
    assert honest.status == 0 and standin.run("python3 -c %s http://127.0.0.1:30000/v1/models", GET).rc != 0, honest
    converges(standin)


def squatter(host: Host, port: int) -> contextlib.AbstractContextManager[None]:
    return beside(host, f"python3 {SERVERS}/squatter.py {port}")


def test_a_squatter_that_answers_200_to_everything_is_named(standin: Host) -> None:
    before = launch(standin)
    with squatter(standin, 30077):
        run = deploy("-l", here.name, extra=asked(port=30077))
        assert run.status != 0
        assert "port 30077 is held by process" in run.output, run
        for part in ("of user root", "squatter.py 30077", ", for "):
            assert part in run.output, run
        assert launch(standin) == before, "the running server was touched"


@BOTH_SUPERVISORS
def test_a_port_that_is_taken_while_the_server_loads(standin: Host) -> None:
    """SGLang says that it is fired up, and owns no port."""
    before = launch(standin)
    next_start(standin, LOAD_SECONDS=12)
    process = begin("-l", here.name, extra=asked(port=30077))
    assert eventually(lambda: loads(standin, before), 180)
    with squatter(standin, 30077):
        output, _ = process.communicate()
        assert process.returncode != 0
        assert "port 30077 is held by process" in output and "squatter.py" in output, output[-4000:]
        assert "Serving now: what launch" in output, output[-4000:]
        assert serves(standin) and launch(standin) != before
    converges(standin)


LOADS = "Load weight begin"


def loads(host: Host, before: str) -> bool:
    """Tell whether a launch after `before` loads its weights."""
    now = launch_in_unit(host)
    return now != before and LOADS in log_of(host, now)


def family(pid: int) -> list[int]:
    """A process of this machine and all below it."""
    below = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *(one for child in map(int, below.stdout.split()) for one in family(child))]


@pytest.mark.parametrize(
    ("standin", "when", "fails"),
    [
        *itertools.product(["ct130"], ["as the task begins", "while it loads"], [False, True]),
        ("rental", "while it loads", True),
    ],
    indirect=["standin"],
)
def test_a_controller_that_is_killed_leaves_a_host_that_serves(standin: Host, when: str, fails: bool) -> None:
    before = launch(standin)
    next_start(standin, LOAD_SECONDS=8, **({"FAULT": "dies_loading"} if fails else {}))
    process = begin("-l", here.name, extra={**asked(), **RESTART})
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("TASK") and "Run the instances" in line:
            break
    if when == "while it loads":
        assert eventually(lambda: loads(standin, before), 180)
    for pid in reversed(family(process.pid)):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)
    process.wait()
    # nobody asks any more, and it is done all the same, or has not begun
    assert eventually(lambda: is_proved(standin), 180)
    if when == "while it loads":
        assert launch(standin) != before
        assert (record(standin).get("again") is not None) == fails
    converges(standin)


def test_a_connection_that_is_cut_is_made_again(standin: Host) -> None:
    before = launch(standin)
    next_start(standin, LOAD_SECONDS=10)
    process = begin("-l", here.name, extra={**asked(), **RESTART})
    assert eventually(lambda: loads(standin, before), 180)
    assert eventually(lambda: ssh_cut(process), 60)
    output, _ = process.communicate()
    assert process.returncode == 0, output[-4000:]
    assert "no answer, the launch goes on there; asking again" in output, output[-4000:]


def ssh_cut(process: subprocess.Popen[str]) -> bool:
    """End an ssh of the playbook, if it has one now."""
    for pid in family(process.pid):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name == "ssh":
                os.kill(pid, signal.SIGKILL)
                return True
    return False


@pytest.mark.stops_a_container
def test_a_container_that_is_stopped_in_the_middle(standin: Host) -> None:
    next_start(standin, LOAD_SECONDS=10)
    process = begin("-l", here.name, extra={**asked(), **RESTART})
    before = launch(standin)
    assert eventually(lambda: loads(standin, before), 180)
    for action in ("stop", "start"):
        done = standin.backend.run_ssh(f"pct {action} 130")
        assert done.rc == 0, done
    output, _ = process.communicate()
    assert process.returncode != 0 and "deploy again" in output, output[-4000:]
    converges(standin)


def test_two_deployments_at_once(standin: Host) -> None:
    next_start(standin, LOAD_SECONDS=25)
    first = begin("-l", here.name, extra={**asked(), **RESTART})
    before = launch(standin)
    assert eventually(lambda: launch_in_unit(standin) != before, 180)
    second = deploy("-l", here.name, extra=asked())
    output, _ = first.communicate()
    assert first.returncode == 0, output[-4000:]
    assert second.status == 0 and second.count(here.name, "changed") == 0, second
    assert "still starts instances on this host, for " in second.output, second


@BOTH_SUPERVISORS
def test_a_disk_that_is_full_touches_nothing(standin: Host) -> None:
    before, pid = launch(standin), main_pid(standin)
    standin.check_output("cp -a %s /tmp/kept && mount -t tmpfs -o size=512k tmpfs %s", here.launches, here.launches)
    try:
        standin.check_output("cp -a /tmp/kept/%s %s/", before, here.launches)
        standin.run("dd if=/dev/zero of=%s/filler bs=1k", here.launches)
        run = deploy("-l", here.name, extra={**asked(), **RESTART})
        assert run.status != 0 and "No space left on device" in run.output, run
        assert main_pid(standin) == pid and launch(standin) == before, "the running server was touched"
    finally:
        standin.check_output("umount --lazy %s; rm -rf /tmp/kept", here.launches)  # a guard may write there
    converges(standin)


@BOTH_SUPERVISORS
def test_a_server_that_ignores_sigterm_is_ended(standin: Host) -> None:
    drain = {"sglang_server_drain_timeout": 1}
    next_start(standin, FAULT="ignores_sigterm")
    assert deploy("-l", here.name, extra={**asked(), **drain}).status == 0
    before, pid = launch(standin), main_pid(standin)
    run = deploy("-l", here.name, extra={**asked(), **drain, **RESTART})
    assert run.status == 0 and launch(standin) != before, run
    assert standin.run("kill -0 %s", str(pid)).rc != 0


def scheduler(host: Host) -> str:
    """The scheduler of the stand-in."""
    return str(host.check_output("pgrep --parent %s --full sglang::scheduler", str(main_pid(host))))


def test_a_scheduler_that_is_killed_while_it_loads(standin: Host) -> None:
    before = launch(standin)
    next_start(standin, LOAD_SECONDS=10)
    process = begin("-l", here.name, extra={**asked(), **RESTART})
    assert eventually(lambda: loads(standin, before), 180)
    standin.check_output("kill -9 %s", scheduler(standin))
    output, _ = process.communicate()
    assert process.returncode != 0 and "the server ended while loading weights" in output, output[-4000:]
    assert serves(standin)
    converges(standin)


@BOTH_SUPERVISORS
def test_a_scheduler_that_is_killed_while_it_serves(standin: Host) -> None:
    before = main_pid(standin)
    standin.check_output("kill -9 %s", scheduler(standin))
    assert eventually(lambda: main_pid(standin) not in (0, before) and serves(standin), 180)
    converges(standin)


@BOTH_SUPERVISORS
def test_a_server_that_hangs_is_restarted_by_its_supervisor(standin: Host) -> None:
    before, pid = launch(standin), main_pid(standin)
    standin.check_output("kill -STOP %s", scheduler(standin))
    assert standin.run("python3 -c %s http://127.0.0.1:30000/v1/models", GET).rc == 0
    hung = deploy("-l", here.name, playbook="playbooks/health.yml", extra={**asked(), "sglang_health_timeout": 5})
    assert hung.status != 0 and "it hangs" in hung.output, hung
    assert eventually(lambda: main_pid(standin) not in (0, pid) and serves(standin), 240)
    assert launch(standin) == before
    assert "the server hangs and is ended" in log_of(standin, before)
    seen = deploy("-l", here.name, playbook="playbooks/health.yml", extra=asked())
    assert seen.status == 0, seen


def test_a_deployment_replaces_a_server_that_hangs(standin: Host) -> None:
    before = launch(standin)
    standin.check_output("kill -STOP %s", scheduler(standin))
    run = deploy("-l", here.name, extra=asked())
    assert run.status == 0 and launch(standin) != before, run


@BOTH_SUPERVISORS
def test_a_configuration_error_is_not_tried_again_and_again(standin: Host) -> None:
    next_start(standin, FAULT="exit:2")
    standin.run(f"systemctl restart {UNIT}" if here.systemd else "sglangctl restart sglang-tiny")
    # while it waits for another start a unit is 'activating'
    assert eventually(lambda: said(standin, "ActiveState") == "failed", 90)
    assert said(standin, "NRestarts") == "0"
    converges(standin)


@BOTH_SUPERVISORS
def test_a_log_that_was_rotated_away(standin: Host) -> None:
    gone = f"rm {here.launches}/{launch(standin)}/log"
    standin.check_output("journalctl --rotate && journalctl --vacuum-time=1s" if here.systemd else gone)
    assert "fired up" not in log_of(standin, launch(standin))
    converges(standin)


def on_node(*words: str) -> dict[str, Any]:
    """What the module answers on the node for container 130, or on the host itself."""
    host, *more = ["pve-kpro5", "vmid=130"] if here.systemd else [here.name, f"state_dir={here.state}"]
    done = subprocess.run(
        [str(PLAYBOOK.with_name("ansible")), host, "--module-name", "gpuops.sglang.sglang_service",
         "--args", " ".join([*more, *words])],
        cwd=PROJECT, env={**environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    content: dict[str, Any] = json.loads(done.stdout.partition("=>")[2])
    return content


@BOTH_SUPERVISORS
def test_the_server_comes_back_after_kill_9(standin: Host) -> None:
    before = main_pid(standin)
    standin.check_output("kill -9 %s", str(before))
    assert eventually(lambda: main_pid(standin) not in (0, before) and serves(standin), 180)
    again = deploy("-l", here.name, extra=asked())
    assert again.status == 0 and again.count(here.name, "changed") == 0, again


@pytest.mark.stops_a_container
def test_the_server_comes_back_with_its_container(standin: Host) -> None:
    for action in ("stop", "start"):
        done = standin.backend.run_ssh(f"pct {action} 130")
        assert done.rc == 0, done
        if action == "stop":
            refused = deploy("-l", here.name, extra=asked())
            assert refused.status != 0 and refused.count(here.name, "unreachable") == 1, refused
            assert "container 130" in refused.output and "pct start 130" in refused.output, refused
    assert eventually(lambda: serves(standin), 240)
    again = deploy("-l", here.name, extra=asked())
    assert again.status == 0 and again.count(here.name, "changed") == 0, again


def lose_machine(host: Host) -> None:
    """What is left when a machine is gone: its disk."""
    daemon = host.check_output("cat %s/supervisord.pid", here.run)
    host.check_output("kill -9 %s %s", daemon, said(host, "GuardPID"))
    assert eventually(lambda: host.run("pgrep --uid sglang").rc == 1, 90)


@pytest.mark.parametrize("standin", ["rental"], indirect=True)
def test_the_server_comes_back_with_its_machine(standin: Host) -> None:
    before = launch(standin)
    lose_machine(standin)
    standin.check_output("/workspace/onstart.sh >/dev/null 2>&1")
    assert eventually(lambda: serves(standin), 180)
    again = deploy("-l", here.name, extra=asked())
    assert again.status == 0 and again.count(here.name, "changed") == 0 and launch(standin) == before, again


@pytest.mark.parametrize("standin", ["rental"], indirect=True)
def test_a_machine_that_is_made_anew_around_its_volume(standin: Host) -> None:
    lose_machine(standin)
    # another user takes the number of the old one
    standin.check_output("userdel sglang && useradd --system filler && rm /usr/local/bin/sglangctl")
    try:
        run = deploy("-l", here.name, extra=asked())
        assert run.status == 0 and serves(standin), run
        assert standin.file(here.home).user == "sglang" and standin.file("/usr/local/bin/sglangctl").exists
    finally:
        standin.run("userdel filler")
    converges(standin)


@pytest.mark.parametrize("standin", ["rental"], indirect=True)
def test_a_server_goes_on_without_supervisord_which_comes_back(standin: Host) -> None:
    pid, daemon = main_pid(standin), standin.check_output("cat %s/supervisord.pid", here.run)
    standin.check_output("kill -9 %s", daemon)
    run = deploy("-l", here.name, extra=asked())
    assert run.status == 0 and run.count(here.name, "changed") == 1, run
    assert main_pid(standin) == pid and serves(standin)
    converges(standin)
    assert main_pid(standin) == pid
    again = deploy("-l", here.name, extra={**asked(), **RESTART})
    assert again.status == 0 and main_pid(standin) != pid, again


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_a_start_whose_playbook_is_interrupted(standin: Host, after: float) -> None:
    next_start(standin, LOAD_SECONDS=4)
    run = interrupted("Run the instances", after, "-l", here.name, extra={**asked(), **RESTART})
    assert run.status != 0, run
    converges(standin)


def test_an_interrupted_look_changes_nothing(standin: Host) -> None:
    before = main_pid(standin)
    run = interrupted("Run the instances", 0.5, "-l", here.name, extra=asked())
    assert run.status != 0, run
    assert eventually(lambda: "sglang_service" not in standin.check_output("ps -eo args"), 180)
    assert main_pid(standin) == before
    converges(standin)
    assert main_pid(standin) == before


def test_a_first_launch_that_fails_leaves_nothing_to_return_to(standin: Host) -> None:
    assert on_node("state=absent", "names=tiny")["changed"]
    standin.check_output("mkdir -p %s", here.home)
    next_start(standin, FAULT="dies_loading")
    run = deploy("-l", here.name, extra=asked())
    assert run.status != 0 and "the server ended while loading weights" in run.output, run
    assert "Serving now: nothing that was proved; there is no earlier launch to return to" in run.output, run
    assert not serves(standin)
    converges(standin)


@BOTH_SUPERVISORS
def test_an_operator_returns_to_the_launch_before(standin: Host) -> None:
    first = record(standin).get("again") or launch(standin)
    changed = asked(args={**INSTANCE["args"], "max_running_requests": 4})
    with foreign(standin):
        assert deploy("-l", here.name, extra=changed).status == 0
        back = deploy("-l", here.name, playbook="playbooks/rollback.yml", extra=asked())
    assert back.status == 0 and back.count(here.name, "changed") == 1, back
    assert record(standin)["again"] == first and launch(standin) in back.output
    converges(standin)


@pytest.mark.parametrize("standin", ["rental"], indirect=True)
def test_an_operator_returns_to_a_named_launch(standin: Host) -> None:
    first = record(standin).get("again") or launch(standin)
    changed = asked(args={**INSTANCE["args"], "max_running_requests": 4})
    assert deploy("-l", here.name, extra=changed).status == 0
    between = launch(standin)
    named = {**asked(), "sglang_server_rollback_launch": first}
    assert deploy("-l", here.name, playbook="playbooks/rollback.yml", extra=named).status == 0
    assert record(standin)["again"] == first
    now = launch(standin)
    next_start(standin, FAULT="dies_loading")
    named["sglang_server_rollback_launch"] = between
    failed = deploy("-l", here.name, playbook="playbooks/rollback.yml", extra=named)
    assert failed.status != 0 and f"Serving now: what launch {now} was" in failed.output, failed
    named["sglang_server_rollback_launch"] = "20200101T000000Z-000000"
    wrong = deploy("-l", here.name, playbook="playbooks/rollback.yml", extra=named)
    assert wrong.status != 0 and "launch 20200101T000000Z-000000 of instance 'tiny' is not kept" in wrong.output, wrong
    converges(standin)


@BOTH_SUPERVISORS
def test_states_of_an_instance_on_its_node(standin: Host) -> None:
    """The same from the node, for a container that is no host of the inventory."""
    with foreign(standin):
        states_of(standin)
    converges(standin)


def states_of(standin: Host) -> None:
    (there,) = on_node("state=gathered")["instances"]
    assert there["launch"] == there["running_launch"] == launch(standin) and there["proved"]
    assert on_node("state=stopped", "names=tiny")["changed"]
    assert not serves(standin)
    assert not on_node("state=stopped", "names=tiny")["changed"]
    (there,) = on_node("state=gathered", "names=tiny")["instances"]
    assert there["service"] == "inactive (dead)" and not there["enabled"] and there["main_pid"] == 0
    assert on_node("state=absent", "names=tiny")["changed"]
    assert not standin.file(here.unit).exists and not standin.file(here.launches).exists
    assert not on_node("state=absent", "names=tiny")["changed"]
    assert on_node("state=gathered")["instances"] == []


@pytest.fixture
def gpu(standin: Host) -> Iterator[Host]:
    """The container with a GPU of which a process in container 129 has memory, as nvidia-smi tells it in each place."""
    node = standin.backend
    pid = node.run_ssh("pgrep --full --oldest sglang.launch_server").stdout.strip()
    inside = f"{scheduler(standin)}, 1000, 0\\n!4711, 40960, 0"
    places = [(standin.run, inside), (node.run_ssh, f"{pid}, 40960, 0")]
    for run, line in places:
        done = run(
            f"cp /srv/lab/standins/cuda/nvidia-smi /usr/local/bin/ && printf '{line}\\n' > /run/standin-gpu-apps"
        )
        assert done.rc == 0, done
    yield standin
    for run, _ in places:
        run("rm -f /usr/local/bin/nvidia-smi /run/standin-gpu-apps")


def test_a_forgotten_process_on_the_gpu_is_named_before_anything_is_stopped(gpu: Host) -> None:
    before, pid = launch(gpu), main_pid(gpu)
    run = deploy("-l", here.name, extra={**asked(), **RESTART})
    assert run.status != 0, run
    assert main_pid(gpu) == pid and launch(gpu) == before, "the running server was touched"
    for part in ("its GPU is held by", "40960 MiB of GPU 0", "Nothing was stopped", "in container 129"):
        assert part in run.output, run
    shared = deploy("-l", here.name, extra={**asked(), **RESTART, "sglang_server_share_gpus": True})
    assert shared.status == 0 and launch(gpu) != before, shared
    assert container(129).check_output("systemctl is-active %s", UNIT) == "active", "what is not ours was ended"


@BOTH_SUPERVISORS
def test_progress_is_shown_line_by_line(standin: Host) -> None:
    next_start(standin, LOAD_SECONDS=15, SHARDS=10)
    run = deploy("-l", here.name, extra={**asked(), **RESTART})
    assert run.status == 0, run
    shown = [line for line in run.output.splitlines() if line.startswith(f"{here.name} | tiny: ")]
    assert any("loading weights, shard " in line and " of 10, for " in line for line in shown), run
    assert "\r" not in run.output
