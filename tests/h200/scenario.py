# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy a model of 27B on a machine with one H200, and do to it what operators and accidents do.

    scenario.py COLLECTION ANSIBLE WORK LIMIT [STEP ...]

COLLECTION is a checkout, ANSIBLE the folder of its ansible-playbook, WORK a folder for inventory, logs and steps.json;
it has models/qwen36-27b (configuration and tokenizer). No step is begun after LIMIT s; the next run goes on with the
next one. Everything is asked of the collection's own playbooks; by hand are only the accidents and the bare launch.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]
COLLECTION, ANSIBLE, WORK = map(Path, sys.argv[1:4])
LIMIT = float(sys.argv[4])
BEGAN = time.monotonic()
URL = "http://127.0.0.1:30000"
STATE = Path("/var/lib/sglang")
CLEAN = {
    "PATH": f"{ANSIBLE}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
ARGS = {
    "load_format": "dummy",
    "context_length": 8192,
    "mem_fraction_static": 0.65,
    "max_running_requests": 16,
    "chunked_prefill_size": 4096,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "cuda_graph_max_bs": 4,
    "disable_piecewise_cuda_graph": True,
    "skip_server_warmup": True,
    "random_seed": 7,
}
HOLD = """
import sys, time, torch
held = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
print("holds", flush=True)
time.sleep(600)
"""


def instance(name: str = "qwen36", port: int = 30000, **changed: object) -> dict[str, object]:
    args = {key: value for key, value in {**ARGS, **changed}.items() if value is not None}
    return {"name": name, "model": str(WORK / "models/qwen36-27b"), "port": port, "gpus": [0], "args": args}


def smi(*query: str) -> str:
    done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


def gpu() -> Found:
    apps = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    used = smi("--query-gpu=memory.used,memory.free", "--format=csv,noheader,nounits")
    return {"used_free_mib": used, "processes_mib": apps.splitlines()}


def told() -> dict[str, str]:
    """What the guard of the instance says."""
    for path in Path("/run/gpuops-sglang").glob("*/guards/sglang-qwen36"):
        lines = path.read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines if "=" in line)
    return {}


def healthy() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_healthy(limit: float, since: float) -> float | None:
    while time.monotonic() < since + limit:
        if healthy():
            return round(time.monotonic() - since, 2)
        time.sleep(0.1)
    return None


def play(name: str, playbook: str, instances: list[dict[str, object]], *more: str, limit: float = 400) -> Found:
    """Run a playbook; its output goes to a file of its own."""
    variables = WORK / "instances.json"
    variables.write_text(json.dumps({"sglang_server_instances": instances}))
    argv = ["ansible-playbook", "-i", str(WORK / "hosts.yml"), playbook, "-e", f"@{variables}", *more]
    return command(name, argv, limit)


def command(name: str, argv: list[str], limit: float) -> Found:
    began, log = time.monotonic(), WORK / "logs" / f"{name}.log"
    with log.open("w") as out:
        program = subprocess.Popen(
            argv, cwd=COLLECTION, env=CLEAN, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            code = program.wait(limit)
        except subprocess.TimeoutExpired:
            program.kill()
            code = -9
    text = log.read_text(errors="replace")
    recap = re.findall(r"^h200 +: (.*)$", text, re.MULTILINE)
    found = {
        "rc": code, "seconds": round(time.monotonic() - began, 1), "recap": " ".join(" ".join(recap).split()),
        "pid": told().get("MainPID"), "restarts": told().get("NRestarts"), "gpu": gpu(),
    }  # fmt: skip
    errors = [line for line in text.splitlines() if "[ERROR]" in line or "[WARNING]" in line or "msg:" in line]
    found["said"] = [line.strip()[:1500] for line in errors[:12]]
    return found


def supervisord() -> int:
    return int(next(Path("/run/gpuops-sglang").glob("*/supervisord.pid")).read_text())


def scheduler() -> int:
    """The process that holds the model."""
    pids = [int(line.split(",")[0]) for line in gpu()["processes_mib"]]
    if not pids:
        raise RuntimeError("no process is on the GPU")
    return pids[0]


def launch() -> Found:
    folders = sorted((STATE / "qwen36/launches").iterdir())
    record: Found = json.loads((folders[-1] / "launch.json").read_text())
    return record


def deploy() -> Found:
    return play("deploy", "deploy.yml", [instance()], limit=float(os.environ.get("DEPLOY_LIMIT", "500")))


def again() -> Found:
    return play("again", "deploy.yml", [instance()])


def health() -> Found:
    return play("health", "playbooks/health.yml", [instance()])


def health_requests() -> Found:
    wanted = json.dumps({"sglang_health_requests": ["chat", "structured_output"]})
    return play("health-requests", "playbooks/health.yml", [instance()], "-e", wanted)


def facts(name: str) -> Found:
    argv = ["ansible", "-i", str(WORK / "hosts.yml"), "h200", "-m", "gpuops.sglang.gpu_info"]
    return command(name, argv, 60)


def gpu_info() -> Found:
    return facts("gpu-info")


def plan() -> Found:
    return play("plan", "playbooks/plan.yml", [instance()])


def preflight() -> Found:
    return play("preflight", "playbooks/preflight.yml", [instance()])


def refused_fraction() -> Found:
    return play("refused-fraction", "deploy.yml", [instance(mem_fraction_static=0.37)])


def refused_requests() -> Found:
    return play("refused-requests", "deploy.yml", [instance(max_running_requests=400)])


def refused_twice() -> Found:
    return play("refused-twice", "deploy.yml", [instance(), instance("second", 30001)])


def refused_argument() -> Found:
    return play("refused-argument", "deploy.yml", [instance(mem_fraction_statics=0.7)])


def killed_scheduler() -> Found:
    before, pid, began = told(), scheduler(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    gone = None
    while time.monotonic() < began + 60:
        if told().get("MainPID") != before.get("MainPID"):
            gone = round(time.monotonic() - began, 2)
            break
        time.sleep(0.05)
    up = wait_healthy(200, began)
    found = play("killed-scheduler", "playbooks/health.yml", [instance()])
    found.update(killed=pid, server_ended_after=gone, healthy_after=up, before=before, after=told())
    return found


def orphan() -> Found:
    """A process of nobody holds 40 GiB."""
    python = next((STATE.parent.parent.parent / "opt/sglang/releases").glob("*/venv/bin/python"))
    holder = subprocess.Popen([str(python), "-B", "-c", HOLD, "40"], env=CLEAN, stdout=subprocess.PIPE, text=True)
    try:
        said = holder.stdout.readline().strip() if holder.stdout else ""
        found = {"orphan": holder.pid, "orphan_said": said}
        found["gpu_info"] = facts("orphan-gpu-info")
        found["preflight"] = play("orphan-preflight", "playbooks/preflight.yml", [instance(mem_fraction_static=0.66)])
        found["unchanged"] = play("orphan-unchanged", "deploy.yml", [instance()])
        found["changed"] = play("orphan-changed", "deploy.yml", [instance(mem_fraction_static=0.66)])
        more = json.dumps({"sglang_server_share_gpus": True})
        found["shared"] = play("orphan-shared", "deploy.yml", [instance(mem_fraction_static=0.66)], "-e", more)
    finally:
        holder.kill()
        holder.wait()
    return found


def failed_launch() -> Found:
    before = told()
    found = play("failed-launch", "deploy.yml", [instance(attention_backend="fa3")])
    found.update(before=before, after=told(), healthy=healthy())
    return found


def back() -> Found:
    return play("back", "deploy.yml", [instance()])


def stopped() -> Found:
    return play("stopped", "deploy.yml", [instance()], "-e", "sglang_server_state=stopped")


def bare(number: int, during: Callable[[], Found] | None = None) -> Found:
    """The same command as the service user, by hand."""
    record, user = launch(), pwd.getpwnam("sglang")
    home = STATE / "qwen36/home"
    unit = (STATE / ".supervisor/units/sglang-qwen36.unit").read_text()
    (WORK / "logs/unit.txt").write_text(unit)
    variables: dict[str, str] = {}
    for line in re.findall(r"^variable (.+)$", unit, re.MULTILINE):
        words = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line)
        name, value = (json.loads(word) if word.startswith('"') else word for word in words)
        variables[name] = value
    began = time.monotonic()
    with (WORK / f"logs/bare-{number}-server.log").open("w") as out:
        server = subprocess.Popen(
            record["argv"], env={"USER": "sglang", "LANG": "C.UTF-8", "HOME": str(home), **variables}, cwd=home,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, umask=0o077,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[],
        )  # fmt: skip
    try:
        found: Found = {"pid": server.pid, "healthy_after": wait_healthy(240, began), "gpu": gpu()}
        body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}).encode()
        request = urllib.request.Request(f"{URL}/generate", body, {"Content-Type": "application/json"})
        asked = time.monotonic()
        with urllib.request.urlopen(request, timeout=120) as answer:
            found["answer"] = json.loads(answer.read())["meta_info"]
        found["answer_s"] = round(time.monotonic() - asked, 3)
        if during:
            found["during"] = during()
    finally:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(OSError):
            os.killpg(server.pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while gpu()["processes_mib"] and time.monotonic() < end:
            time.sleep(0.2)
    found["gpu_after"] = gpu()
    return found


def bare_first() -> Found:
    def others() -> Found:
        return {
            "deploy": play("bare-deploy", "deploy.yml", [instance()]),
            "found": play("bare-adopt", "playbooks/adopt.yml", [instance()]),
        }

    return bare(1, others)


def bare_second() -> Found:
    return bare(2)


def bare_third() -> Found:
    return bare(3)


def started() -> Found:
    return play("started", "deploy.yml", [instance()])


def stopped_again() -> Found:
    return play("stopped-again", "deploy.yml", [instance()], "-e", "sglang_server_state=stopped")


def started_again() -> Found:
    return play("started-again", "deploy.yml", [instance()])


def restarted() -> Found:
    return play("restarted", "deploy.yml", [instance()], "-e", "sglang_server_state=restarted")


def learned() -> Found:
    """Another fraction: the plan has learned from the launches before."""
    return play("learned", "deploy.yml", [instance(mem_fraction_static=0.8)])


def rollback() -> Found:
    return play("rollback", "playbooks/rollback.yml", [instance(mem_fraction_static=0.8)])


def guard_killed() -> Found:
    """The server ends with its guard; supervisord starts both again."""
    before, began = told(), time.monotonic()
    os.kill(int(before["GuardPID"]), signal.SIGKILL)
    while told().get("MainPID") in (before["MainPID"], "0") and time.monotonic() < began + 60:
        time.sleep(0.1)
    found = {"before": before, "healthy_after": wait_healthy(200, began)}
    found["health"] = play("guard-killed", "playbooks/health.yml", [instance()])
    return {**found, "after": told()}


def machine_started() -> Found:
    """All that runs is killed, as when a machine restarts; then its hook is run."""
    before = told()
    for pid in (supervisord(), int(before["GuardPID"])):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 60
    while gpu()["processes_mib"] and time.monotonic() < end:
        time.sleep(0.2)
    found: Found = {"before": before, "gpu_before": gpu()}
    began = time.monotonic()
    subprocess.run(["sh", "/root/onstart.sh"], env=CLEAN, check=True, timeout=60)
    found["healthy_after"] = wait_healthy(200, began)
    found["health"] = play("machine-started", "playbooks/health.yml", [instance()])
    return {**found, "after": told()}


def supervisord_killed() -> Found:
    """supervisord is killed, then the guard: the server survives the first, and comes back after the second."""
    before = told()
    os.kill(supervisord(), signal.SIGKILL)
    time.sleep(1)
    found = {"before": before, "serves_without_supervisord": healthy()}
    found["deploy"] = play("supervisord-killed", "deploy.yml", [instance()])
    found["after"] = told()
    return found


def bundle() -> Found:
    return play("bundle", "playbooks/support_bundle.yml", [instance()], "-e", f"support_bundle_folder={WORK}")


def removed() -> Found:
    return play("removed", "deploy.yml", [instance()], "-e", "sglang_server_state=absent")


STEPS = (
    deploy, again, health, health_requests, gpu_info, plan, preflight, refused_fraction, refused_requests,
    refused_twice, refused_argument, killed_scheduler, orphan, back, failed_launch, guard_killed, machine_started,
    supervisord_killed, stopped, bare_first, bare_second, started, stopped_again, bare_third, started_again, restarted,
    learned, rollback, bundle, removed,
)  # fmt: skip


def main() -> None:
    (WORK / "logs").mkdir(exist_ok=True)
    kept = WORK / "steps.json"
    done = json.loads(kept.read_text()) if kept.exists() else {}
    for step in STEPS:
        if step.__name__ in done or (sys.argv[5:] and step.__name__ not in sys.argv[5:]):
            continue
        passed = time.monotonic() - BEGAN
        if passed > LIMIT:
            print(f"{passed:.0f} s: stops before {step.__name__}", flush=True)
            break
        try:
            found = step()
        except Exception:
            found = {"failed": traceback.format_exc()[-1500:]}
        found["at"] = round(passed, 1)
        found["in_all"] = round(time.monotonic() - BEGAN - passed, 1)
        done[step.__name__] = found
        kept.write_text(json.dumps(done, indent=1))
        print(f"{passed:.0f} s {step.__name__}: {json.dumps(found)[:900]}", flush=True)
        if step is deploy and found.get("rc"):
            del done["deploy"]
            kept.write_text(json.dumps(done))
            print((WORK / "logs/deploy.log").read_text()[-5000:], flush=True)
            break


if __name__ == "__main__":
    main()
