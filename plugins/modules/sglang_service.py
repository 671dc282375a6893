#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service
short_description: Run the SGLang instances of a host as supervised services
description:
  - Compares the whole desired state of every instance (release, arguments, environment, secrets, running process,
    effective arguments of the live server) in one call, and starts a new launch of each instance that differs.
  - Everything is checked for all instances before the first of them is touched. What a new launch would run with is
    asked of the installed SGLang itself while the old launch serves, as M(gpuops.sglang.sglang_preflight) does.
  - A launch is followed until it is proved to serve, as M(gpuops.sglang.sglang_health) does, and what it is at is shown
    meanwhile. When it fails, the last launch that was proved to serve is started again and proved too, and the task
    fails with the cause, what shows it in that launch's own log, the next step and what serves now.
  - With O(take_over) a server that was started by hand is to an instance what the launch before is. It is ended when
    all is proved, and its command is started again, as it was, when the launch fails.
  - All this happens in a process on the host, which goes on when the connection or the controller is lost. A deployment
    that finds another one at work waits for it and shows what it is at.
  - Each launch has an id, which the unit, the journal, the process and the server's own answers carry.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.sglang.instances.optional
options:
  names:
    description:
      - Names of the instances for the states that start nothing new; those of O(instances) when left out, and with
        V(gathered) all of the host where there are none.
    type: list
    elements: str
  state:
    description:
      - V(started) has each instance run as asked and starts a new launch only where something differs.
      - V(restarted) starts a new launch in any case.
      - V(rolled_back) starts again what an earlier launch was, see O(launch).
      - V(stopped) stops the instances and keeps them from being started at boot. Requests have O(drain_timeout) to
        finish; then it is proved that no process and no GPU memory is left.
      - V(absent) stops them and removes their units, records, caches and secrets. Models and releases stay.
      - V(gathered) changes nothing and returns what is there.
    type: str
    choices: [started, restarted, rolled_back, stopped, absent, gathered]
    default: started
  launch:
    description:
      - The launch that O(state=rolled_back) returns to, of a single instance; the newest good one before the present
        when left out.
    type: str
  release:
    description:
      - Directory of the release to run, as M(gpuops.sglang.sglang_release) returns it. Required for V(started) and
        V(restarted).
    type: path
    required: false
  share_gpus:
    description:
      - Start instances also on GPUs of which processes hold memory that are not of an instance of this host.
      - Without it such a process is named and nothing is stopped.
    type: bool
    default: false
  reload_beside_docker:
    description:
      - Have systemd read its units again although Docker, or another engine with the systemd driver of control groups,
        runs containers with a GPU on this host, which may lose it by that (C(Failed to initialize NVML)).
      - Without it such a container is named and nothing is touched.
    type: bool
    default: false
  drain_timeout:
    description: Seconds that running requests have to finish when a server is stopped.
    type: int
    default: 60
  stall_timeout:
    description:
      - Seconds without a sign of progress after which a launch counts as failed. When left out, each stage of the start
        has a limit of its own, from 10 minutes to 40 where kernels are compiled, and four times that for what computes.
    type: int
  awaited_models:
    description:
      - Directories of models that are fetched before instances are started, as M(gpuops.sglang.sglang_model) does.
      - In check mode an instance of one that is not there is compared, and SGLang is not asked about it.
    type: list
    elements: str
    default: []
  keep_launches:
    description: How many launches of an instance are kept for a return, the newest good one always among them.
    type: int
    default: 5
  supervisor:
    description:
      - What runs the instances. V(auto) is systemd where that is the first process of the host and supervisord has no
        instance on it, else V(supervisord).
      - A host has one. Nothing is started where the other one has instances.
    type: str
    choices: [auto, systemd, supervisord]
    default: auto
  supervisord:
    description: How supervisord comes to a host on which it is the supervisor. It is kept in O(state_dir).
    type: dict
    suboptions:
      python:
        description: Interpreter of the host that its venv is made with.
        type: path
        default: /usr/bin/python3
      environment:
        description: Environment variables of its installation, for example C(PIP_INDEX_URL).
        type: dict
        default: {}
      wheelhouse:
        description: Folder or archive on the host that it is installed from, as in M(gpuops.sglang.sglang_release).
        type: path
      start_hook:
        description:
          - Script that the machine runs when it starts. It gets a line, and is made if there is none.
          - Without it nothing starts supervisord after a restart of the machine.
        type: path
      control:
        description: Where to put C(sglangctl), which operators use on the host, beside the one in O(state_dir).
        type: path
  vmid:
    description:
      - Number of a container of the Proxmox node that the task runs on, in which all this is to be done.
      - The container needs Python, and the node is reached as root, by ssh as the inventory says or locally.
    type: int
  follow:
    description: For the module's own use. The id of a run on the host, and what has been shown of it.
    type: dict
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows the unit file without the launch id; secrets are never shown.
    support: full
notes:
  - Where the first process of the host is not systemd, this brings supervisord.
seealso:
  - module: gpuops.sglang.sglang_preflight
  - module: gpuops.sglang.sglang_health
"""

EXAMPLES = r"""
- name: Run a server on two GPUs
  gpuops.sglang.sglang_service:
    release: /opt/sglang/releases/0.5.23-1f3a9c2e
    instances:
      - name: qwen36
        model: /srv/models/Qwen3.6-27B
        port: 30000
        gpus: [0, 1]
        args:
          tp_size: 2
          context_length: 32768

- name: Return to the launch before
  gpuops.sglang.sglang_service:
    state: rolled_back
    names: [qwen36]

- name: What runs in container 129, asked on its node
  gpuops.sglang.sglang_service:
    vmid: 129
    state: gathered
"""

RETURN = r"""
instances:
  description: What was found and done for each instance.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the instance.
      type: str
    launch:
      description:
        - Id of the launch that the unit carries; V(null) for an instance that is not installed.
      type: str
    reasons:
      description: Why something was done; empty when nothing differed. Not with O(state=gathered).
      type: list
      elements: str
    service:
      description: State of the service, for example V(active (running)). With O(state=gathered), as are those below.
      type: str
    running_launch:
      description: Id of the launch in the environment of the running process.
      type: str
    enabled:
      description: Whether it is started at boot.
      type: bool
    main_pid:
      description: Main process of the service; 0 when there is none.
      type: int
    invocation:
      description: The supervisor's id of this run of the service.
      type: str
    restarts:
      description: How often the supervisor has restarted the service by itself since the launch.
      type: int
    proved:
      description: Whether the launch was proved to serve.
      type: bool
    launches:
      description: The kept launches, oldest first (C(launch), C(proved), C(failed)).
      type: list
      elements: dict
    again:
      description: The earlier launch that this one started again.
      type: str
    args:
      description: The arguments that were requested.
      type: dict
    host:
      description: Address that the server listens on.
      type: str
    model:
      description: The model that was asked for.
      type: str
    port:
      description: TCP port of the server.
      type: int
    release:
      description: Directory of its release.
      type: str
verdicts:
  description: What was proved of each instance that serves, as M(gpuops.sglang.sglang_health) returns it.
  type: list
  elements: dict
  returned: when O(state) starts something
supervisor:
  description: What of supervisord was put right; empty under systemd.
  type: list
  elements: str
  returned: when O(state) starts something
started:
  description: Names of the instances of which a launch was started, also when it failed.
  type: list
  elements: str
  returned: when O(state) starts something
gpu_processes:
  description: What computes on the GPUs of this host, with its memory; on a Proxmox node also what its containers run.
  type: list
  elements: str
  returned: with O(state=gathered)
unlisted:
  description: Instances of this host that are not in O(instances); they are left as they are.
  type: list
  elements: str
  returned: when O(state) is V(started) or V(restarted)
"""

from dataclasses import replace
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    docker_gpus,
    gpu,
    health,
    launch,
    runs,
    service,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Held,
    Refused,
    only_one,
    require_root,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.instance_spec import SERVICE_SPEC, SecretiveModule
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose, refuse_other, supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import passwords


def main() -> None:
    """Check all, compare all, hand over what is to be started, report."""
    starts = [("state", state, ["release"]) for state in ("started", "restarted")]
    module = SecretiveModule(argument_spec=SERVICE_SPEC, supports_check_mode=True, required_if=starts)
    try:
        require_root()
        _check_host(module.params)
        if module.params["follow"]:
            result = runs.follow(**module.params["follow"])
        elif module.params["state"] == "gathered":
            names = _names(module.params) or supervisor().installed_instances()
            holding = [one.label for one in gpu.processes()]
            result = {"instances": service.gathered(names, Path(module.params["state_dir"])), "gpu_processes": holding}
        else:
            with writing_below(launch.LOCK.parent), only_one(launch.LOCK, launch.LOCK_FOR, launch.LOCK_WAIT):
                result = _change(module)
    except Held as held:
        module.fail_json(msg=str(held), busy=held.note)
    except service.GpuHeld as held:
        module.fail_json(msg=str(held), started=[], gpu_held=True)
    except Refused as refused:
        module.fail_json(msg=str(refused), started=[])
    module.exit_json(**{"changed": False, **result})


def _change(module: SecretiveModule) -> dict:
    asked, change = module.params, not module.check_mode
    state, names = Path(asked["state_dir"]), _names(asked)
    if asked["state"] in ("stopped", "absent"):
        remove = asked["state"] == "absent"
        done = service.stopped(names, state, False, remove)
        if any(one["reasons"] for one in done):
            docker_gpus.refuse_reload(asked["reload_beside_docker"])
            done = service.stopped(names, state, change, remove)
        return {"changed": any(one["reasons"] for one in done), "instances": done}
    if asked["state"] == "rolled_back":
        plan, unlisted = service.rolled_back(names, state, asked["launch"], asked["share_gpus"]), []
        lacking: list = []
    else:
        host = launch.Host(Path(asked["release"]), asked["user"], state, asked["drain_timeout"], asked["keep_launches"])
        restart, lacking = asked["state"] == "restarted", _set_up(module)
        if not change:  # a start that is not made needs no model
            host = replace(host, awaited=tuple(asked["awaited_models"]))
        taken = ("accept_changes", "share_gpus", "plan", "reload_beside_docker", "take_over")
        how = service.Asked(host, **{name: asked[name] for name in taken}, restart=restart, change=change)
        for sentence in service.unfinished(names):
            module.warn(sentence)
        try:
            plan = service.started([launch.instance_of(entry) for entry in asked["instances"]], how)
        except Refused as refused:
            if not change:
                raise
            plan = service.returning(names, refused)
        unlisted = sorted(set(supervisor().installed_instances()) - set(names))
    if any(order.prepare for order in plan.orders):
        docker_gpus.refuse_reload(asked["reload_beside_docker"])
    for note in plan.notes:
        module.warn(note)
    for name in unlisted:
        module.warn(f"instance '{name}' is on this host but not in sglang_server_instances: it is left as it is")
    run = runs.begin(plan.orders, state, health.Wait(stall=asked["stall_timeout"])) if change and plan.orders else None
    return {
        "changed": bool(lacking) or any(one["reasons"] for one in plan.instances),
        "instances": plan.instances,
        "supervisor": lacking,
        "verdicts": plan.verdicts,
        "problems": plan.problems,
        "started": [order.instance for order in plan.orders if order.prepare] if run else [],
        "unlisted": unlisted,
        "diff": plan.diff,
        "run": run,
    }


def _set_up(module: SecretiveModule) -> list:
    """Bring supervisord into place where it is the supervisor, and return what lacked."""
    used = supervisor()
    if not (isinstance(used, Supervisord) and _names(module.params)):
        return []
    how = {**module.params["supervisord"], "release": module.params["release"]}
    how["environment"] = {name: str(value) for name, value in how["environment"].items()}
    # as addresses of indexes have them
    module.no_log_values.update(passwords(how["environment"]))
    lacking = used.set_up(how, not module.check_mode)
    if lacking and not how["start_hook"] and not module.check_mode:
        module.warn("nothing starts supervisord when this machine restarts: set sglang_server_start_hook")
    return lacking


def _names(asked: dict) -> list:
    return asked["names"] or [entry["name"] for entry in asked["instances"]]


def _check_host(asked: dict) -> None:
    state = Path(asked["state_dir"])
    choose(state, asked["supervisor"])
    if asked["state"] in ("started", "restarted", "rolled_back"):
        refuse_other(state)
    problems = instance_problems(asked["instances"]) if asked["state"] in ("started", "restarted") else []
    if asked["launch"] and len(_names(asked)) != 1:
        problems.append("'launch' is of one instance: name that one alone under 'names'")
    if problems:
        raise Refused("; ".join(problems))


if __name__ == "__main__":
    main()
