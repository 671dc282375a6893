#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service
short_description: Run the SGLang instances of a host as supervised services
description:
  - Compares the whole desired state of every instance (release, arguments, environment, secrets, running process) in
    one call, and starts a new launch of each instance that differs.
  - Everything is checked for all instances before the first of them is touched. What a new launch would run with is
    asked of the installed SGLang itself while the old launch serves, as M(gpuops.sglang.sglang_preflight) does.
  - Each launch has an id, which the unit, the process and the server's own answers carry.
author: gpuops contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.sglang.instances
attributes:
  check_mode:
    description: Says what would be started.
    support: full
  diff_mode:
    description: Shows the unit file without the launch id; secrets are never shown.
    support: full
notes:
  - The host needs systemd as its first process.
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
      description: Id of the launch that the unit carries; V(null) in check mode for an instance that is not installed.
      type: str
    reasons:
      description: Why a new launch was started; empty when nothing differed.
      type: list
      elements: str
started:
  description: Names of the instances of which a launch was started, also when the module fails after that.
  type: list
  elements: str
  returned: always
unlisted:
  description: Instances of this host that are not in O(instances); they are left as they are.
  type: list
  elements: str
  returned: success
"""

from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import launch, release
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, only_one, require_root, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.instance_spec import INSTANCES_SPEC, SecretiveModule
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd


def main() -> None:
    """Check all, compare all, start what differs, report."""
    module = SecretiveModule(argument_spec=INSTANCES_SPEC, supports_check_mode=True)
    asked = module.params
    host = launch.Host(Path(asked["release"]), asked["user"], Path(asked["state_dir"]))
    instances = [launch.instance_of(entry) for entry in asked["instances"]]
    results, diff, started = [], [], []
    try:
        _check_host(asked["instances"])
        # an interrupted deployment may still be at work here
        with writing_below(launch.LOCK.parent), only_one(launch.LOCK, launch.LOCK_FOR, launch.LOCK_WAIT):
            schema = release.schema(host.release)
            for instance in instances:
                launch.check(instance, host, schema)
            comparisons = [launch.compare(instance, host, schema, asked["accept_changes"]) for instance in instances]
            if schema is None and not module.check_mode:
                raise Refused(f"there is no release in {host.release}: install it with sglang_release first")
            differing = [instance for instance, compared in zip(instances, comparisons) if compared.reasons]
            proved = _proved(differing, host, schema, module) if schema is not None else {}
            for instance, compared in zip(instances, comparisons):
                launch_id = compared.launch
                if compared.reasons and not module.check_mode:
                    started.append(instance.name)
                    launch_id = launch.start(instance, host, schema or {}, proved[instance.name])
                results.append({"name": instance.name, "launch": launch_id, "reasons": list(compared.reasons)})
                if compared.before != compared.after:
                    unit = str(systemd.UNIT_FOLDER / systemd.unit_name(instance.name))
                    headers = {"before_header": unit, "after_header": unit}
                    diff.append({"before": compared.before, "after": compared.after, **headers})
    except Refused as refused:
        module.fail_json(msg=str(refused), started=started)
    unlisted = sorted(set(systemd.installed_instances()) - {instance.name for instance in instances})
    for name in unlisted:
        module.warn(f"instance '{name}' is on this host but not in sglang_server_instances: it is left as it is")
    changed = any(result["reasons"] for result in results)
    module.exit_json(changed=changed, instances=results, started=started, unlisted=unlisted, diff=diff)


def _proved(instances: list, host: launch.Host, schema: dict, module: SecretiveModule) -> dict:
    """Ask SGLang about instances and return name -> what the record of a launch keeps of it; Refused if it says no."""
    if not instances:
        return {}
    # a module is compiled anew in each run, and most runs have nothing to ask
    from ansible_collections.gpuops.sglang.plugins.module_utils.preflight import preflight

    accepted, keep = module.params["accept_changes"], not module.check_mode
    answers = [preflight(instance, host, schema, accepted, keep) for instance in instances]
    problems = [problem for answer in answers for problem in answer.problems]
    if problems:
        raise Refused("; ".join(problems))
    return {answer.instance: {**answer.for_record(), "accept_changes": accepted} for answer in answers}


def _check_host(instances: list) -> None:
    require_root()
    if instances and not systemd.is_here():
        first = Path("/proc/1/comm").read_text().strip()
        raise Refused(f"the first process of this host is '{first}', not systemd: it can not supervise an instance")
    problems = instance_problems(instances)
    if problems:
        raise Refused("; ".join(problems))


if __name__ == "__main__":
    main()
