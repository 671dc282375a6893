#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_health
short_description: Prove that SGLang instances serve as they were deployed
description:
  - Waits until the service of each instance is healthy; the wait ends at once when its process ends.
  - Proves that the listening socket belongs to the service, that the answers come from the launch that the unit
    carries, that the server and each of its schedulers run with the arguments that were requested, and that tokens
    are generated.
  - Says what was changed by hand since the deployment (unit, command line, packages of the release), and warns of
    SGLang servers that nobody supervises.
  - Of instances on GPUs, looks after driver, libraries, devices and CUDA as M(gpuops.sglang.gpu_info) does, so that
    what an upgrade of the node has broken is found before the next start.
  - Changes nothing that runs. A probe costs one short generation for each instance. The first verdict on a launch is
    kept with its record, and a failed launch can return to one that has a verdict.
author: gpuops contributors (@gpuops)
options:
  instances:
    description: Names of the instances.
    type: list
    elements: str
    required: true
  state_dir:
    description: Directory for what the instances write.
    type: path
    default: /var/lib/sglang
  timeout:
    description: Longest wait for each instance, in seconds.
    type: int
    default: 120
  requests:
    description: What to ask of each server besides a generation of some tokens.
    type: list
    elements: str
    choices: [chat, structured_output]
    default: []
attributes:
  check_mode:
    description: Does the same, but does not keep the verdict.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Prove that the server serves
  gpuops.sglang.sglang_health:
    instances: [qwen36]
    timeout: 3600
"""

RETURN = r"""
verdicts:
  description: What was proved of each instance.
  type: list
  elements: dict
  returned: success
  contains:
    instance:
      description: Name of the instance.
      type: str
    launch:
      description: Id of the launch that the unit, the process and the server's answers carry.
      type: str
    service:
      description: State of the service, for example V(active (running)).
      type: str
    invocation:
      description:
        - The supervisor's id of this run of the service; C(journalctl _SYSTEMD_INVOCATION_ID=ID) is its log.
      type: str
    main_pid:
      description: Main process of the service.
      type: int
    restarts:
      description: How often the supervisor has restarted the service by itself since the launch.
      type: int
    port:
      description: Port whose listening socket belongs to the service.
      type: int
    url:
      description: Where the server answers on its host.
      type: str
    model:
      description: The model that was asked for.
      type: str
    arguments_compared:
      description: Number of requested arguments that the server reports with the requested value.
      type: int
    tokens:
      description: Number of tokens that were generated; 0 for a model that does not generate.
      type: int
    requests:
      description:
        - How many requests the schedulers take at a time, all together, for example V(4 of 48) where SGLang was to take
          48 and has memory for 4; empty if it does not tell.
      type: str
    kv_tokens:
      description: How many tokens the KV caches hold, all together; V(null) if SGLang does not tell.
      type: int
    latency:
      description: Seconds that the generation took.
      type: float
    stages:
      description: Seconds of each stage of the start; empty for a launch that has been proved before.
      type: dict
    memory:
      description: GiB of a GPU that the first scheduler tells of, V(weight), V(kvcache) and V(graph).
      type: dict
    measured:
      description:
        - GiB of the fullest GPU that the log of a new launch tells of, V(before) (free before loading), V(weights),
          V(graphs) and V(left). The next plan uses them.
      type: dict
    planned_kv_tokens:
      description: Tokens that its plan said the KV caches would hold.
      type: int
    drift:
      description: What was changed by hand since the launch was deployed, each with the next step.
      type: list
      elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils.health import (
    REQUESTS,
    Unhealthy,
    Wait,
    beside,
    drift_of,
    gpu_faults,
    verify,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, holder, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import LOCK, LOCK_FOR, keep_verdict
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose


def main() -> None:
    """Verify every instance, then report all that do not serve."""
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "timeout": {"type": "int", "default": 120},
            "requests": {"type": "list", "elements": "str", "choices": sorted(REQUESTS), "default": []},
        },
        supports_check_mode=True,
    )
    verdicts, failures = [], []
    state = Path(module.params["state_dir"])
    try:
        require_root()
    except Refused as refused:
        module.fail_json(msg=str(refused))
    choose(state)
    for name in module.params["instances"]:
        try:
            verdict = verify(state, name, Wait(limit=module.params["timeout"]), module.params["requests"])
            verdict["drift"] = drift_of(state, name)
            verdicts.append(verdict)
            failures += [f"instance '{name}' serves, but {sentence}" for sentence in verdict["drift"]]
            if not module.check_mode and not holder(LOCK, LOCK_FOR):  # a deployment keeps its own
                keep_verdict(state, name, verdict["launch"], verdict)
        except (Unhealthy, Refused) as problem:
            failures.append(str(problem))
    try:
        faults = gpu_faults(state, module.params["instances"])
        failures += [f"the GPUs of this host are not as a start needs them: {fault}" for fault in faults]
    except Refused as problem:
        failures.append(str(problem))
    for label in beside():
        module.warn(f"SGLang runs beside the instances of this host, and nobody supervises it: {label}")
    at_work = holder(LOCK, LOCK_FOR) if failures else None
    if at_work:
        failures.append(f"A deployment is at work, which may be why: {at_work}")
    if failures:
        module.fail_json(msg="\n".join(failures), verdicts=verdicts)
    module.exit_json(changed=False, verdicts=verdicts)


if __name__ == "__main__":
    main()
