#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_preflight
short_description: Ask the installed SGLang what it would make of instances, without starting one
description:
  - Runs SGLang's own parser, resolution and checks in the interpreter of the release, as the service user and with
    the arguments and environment of the instance, and compares the result with what is asked.
  - Looks after what SGLang leaves to the start as well; that the architecture is known, the tokenizer loads, the
    weights are complete, heads and experts can be divided, files that options name are there, the GPU can be used, and
    every variable of SGLang is one that this release reads.
  - Plans the memory of the GPUs as M(gpuops.sglang.sglang_plan) does.
  - Fails if an instance would not serve as asked; the result is complete then too.
  - The answer is kept beside the instance and used again as long as nothing that it depends on has changed.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.sglang.instances
attributes:
  check_mode:
    description: Runs alike, but does not keep the answer.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
seealso:
  - module: gpuops.sglang.sglang_service
"""

EXAMPLES = r"""
- name: See whether the server would run as asked
  gpuops.sglang.sglang_preflight:
    release: /opt/sglang/releases/0.5.23-1f3a9c2e
    instances:
      - name: qwen36
        model: /srv/models/Qwen3.6-27B
        port: 30000
        args:
          context_length: 32768
          schedule_conservativeness: 1.0
    accept_changes:
      schedule_conservativeness: SGLang lowers it for this model, which was measured to be harmless
  register: checked
"""

RETURN = r"""
instances:
  description: The answer for each instance.
  type: list
  elements: dict
  returned: always
  contains:
    name:
      description: Name of the instance.
      type: str
    sglang_version:
      description: Version of SGLang that was asked; empty if the instance is wrong whatever the version is.
      type: str
    cached:
      description: Whether the answer was kept from an earlier run.
      type: bool
    options:
      description: The verdict on each option in C(args).
      type: list
      elements: dict
      contains:
        option:
          description: Its name.
          type: str
        requested:
          description: What is asked.
          type: raw
        resolved:
          description: What SGLang would run with.
          type: raw
        verdict:
          description:
            - V(kept), V(changed) by SGLang, V(accepted) (a change that O(accept_changes) names), V(refused), or
              V(unknown), as SGLang does not tell.
          type: str
        by:
          description: The step of SGLang's resolution that changed it, where it tells.
          type: str
        why:
          description: SGLang's own words about a change, or the cause of a refusal.
          type: str
        instead:
          description: What to write instead, or why the change is accepted.
          type: str
    problems:
      description: All that keeps the instance from serving as asked, each with the next step on one line.
      type: list
      elements: str
    warnings:
      description: What SGLang warned of.
      type: list
      elements: str
    resolved:
      description: Every argument of SGLang as it would run with it; secrets are not in it.
      type: dict
    plan:
      description:
        - What it would hold of the GPUs as they are now, what a running launch of it holds counted as free, in the form
          of what M(gpuops.sglang.sglang_plan) returns. V(null) if it does not run on GPUs or nothing could be planned.
      type: dict
    plan_warnings:
      description: What the plan says beside that, and why there is none.
      type: list
      elements: str
    steps:
      description: What each step of SGLang's resolution set, in order (C(step), C(set)), as far as the release tells.
      type: list
      elements: dict
"""

from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import fit, launch, preflight, release_record, service
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.instance_spec import INSTANCES_SPEC, SecretiveModule
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose

SHOWN = 5  # changes of a release


def main() -> None:
    """Ask for each instance, report all."""
    module = SecretiveModule(argument_spec=INSTANCES_SPEC, supports_check_mode=True)
    asked = module.params
    host = launch.Host(Path(asked["release"]), asked["user"], Path(asked["state_dir"]))
    try:
        require_root()
        choose(host.state)
        problems = instance_problems(asked["instances"])
        schema = release_record.schema(host.release)
        if schema is None:
            problems.append(f"there is no release in {host.release}: install it with sglang_release first")
        if problems or schema is None:
            raise Refused("; ".join(problems))
        instances = [launch.instance_of(entry) for entry in asked["instances"]]
        olds = service.old_servers(instances, asked["take_over"], host.drain)
    except Refused as refused:
        module.fail_json(msg=str(refused), instances=[])
    edited = release_record.changes(host.release)
    if edited:
        more = f"; and {len(edited) - SHOWN} more" if edited[SHOWN:] else ""
        module.warn(f"the release {host.release} was changed by hand: {'; '.join(edited[:SHOWN])}{more}")
    leaving = {name: old.pids for name, old in olds.items()}
    keep, accepted = not module.check_mode, asked["accept_changes"]
    results = [
        preflight.examined(instance, host, schema, accepted, keep, leaving.get(instance.name, ()))
        for instance in instances
    ]
    if asked["plan"] != "skip":
        try:
            _plan(instances, results, host, asked, leaving)
        except Refused as refused:
            module.warn(f"memory is not planned: {refused}")
    wrong = [problem for result in results for problem in result["problems"]]
    if wrong:
        module.fail_json(msg="; ".join(wrong), instances=results)
    module.exit_json(changed=False, instances=results)


def _plan(instances: list, results: list, host: launch.Host, asked: dict, leaving: dict) -> None:
    """Add to each answer whether the instance fits into the GPUs."""
    candidates = [
        fit.Candidate(instance, result["sglang_version"], result["resolved"])
        for instance, result in zip(instances, results)
        if result["resolved"]
    ]
    found = fit.fits(candidates, host.state, asked["accept_changes"], leaving)
    for result in results:
        one = found.get(result["name"], fit.Fit())
        refused = asked["plan"] == "refuse"
        result["plan"] = one.plan
        result["problems"] += one.problems if refused else ()
        result["plan_warnings"] = [*one.warnings, *(() if refused else one.problems)]


if __name__ == "__main__":
    main()
