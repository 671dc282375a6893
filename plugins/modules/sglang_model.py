#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model
short_description: Have models on a host, whole and verified
description:
  - Fetches models from a hub with its own client, C(huggingface_hub), copies them from other hosts with C(rsync) over
    C(ssh), and verifies models that are on the host already.
  - A model that is fetched is a directory in O(store). It comes into a hidden directory beside it and gets its name
    when every file is verified (size, hash as the hub has it, headers and index of safetensors). It is not changed
    afterwards; another revision is another model. A file that is damaged or gone is fetched again, the very same one.
  - What an interrupted run has fetched is kept, and the next one goes on within the file.
  - A revision is asked of the hub once and its commit recorded. A model that is there needs no network any more.
  - A record has size, time of change, inode and hash of each file, so the next run reads none that is the same.
  - What is fetched is shown in bytes and with its rate. It goes on when the connection or the controller is lost.
author: gpuops contributors (@gpuops)
options:
  models:
    description: The models to have.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the model, and of its directory in O(store).
        type: str
        required: true
      repo:
        description: Repository of the hub, for example V(Qwen/Qwen3-8B).
        type: str
        default: ""
      revision:
        description: Branch, tag or commit; what a branch was when the model was fetched stays.
        type: str
        default: main
      path:
        description:
          - Directory of a model that is there already, also on a mount that is read only, in place of a repository.
          - It is verified and never changed. Its files are hashed with O(verify=full) alone, and compared from then on.
        type: str
        default: ""
      copy_from:
        description:
          - Directory of a model on another host, in place of a repository, as V([USER@]HOST:/PATH) or
            V(ssh://[USER@]HOST[:PORT]/PATH). It is fetched from there as from a hub, and never changed there.
          - With the record of a model that was fetched, each file must have its size and hash. Without one the
            structure is verified, and the hashes are those of what came.
          - Links are followed within the directory, and from a snapshot in a hub's cache to its files. Any other is
            refused.
        type: str
        default: ""
      allow:
        description:
          - Patterns of the files to fetch, as the hub's client takes them, for example V(*Q4_K_M.gguf).
          - Without them all are fetched but other forms of the weights where there are safetensors (C(*.bin), C(*.pth),
            C(*.gguf), C(original/), C(onnx/) and the like).
        type: list
        elements: str
        default: []
      ignore:
        description: Patterns of files not to fetch.
        type: list
        elements: str
        default: []
      trust_remote_code:
        description: Accept a model that brings Python code, which a server with this option of SGLang would run.
        type: bool
        default: false
  store:
    description: Directory that holds the fetched models; several hosts may share it.
    type: path
    default: /srv/models
  remove:
    description:
      - Names of fetched models to remove. One that an instance of this host serves or would return to is refused.
    type: list
    elements: str
    default: []
  verify:
    description: V(quick) reads files whose size, time or inode has changed, V(full) reads all.
    type: str
    choices: [quick, full]
    default: quick
  endpoint:
    description: Address of the hub.
    type: str
    default: https://huggingface.co
  token:
    description:
      - Token for private and gated repositories. It is given to the client through a pipe alone.
      - Without pipelining Ansible writes it, as all arguments, into a file of the host for the time of the task.
    type: str
    default: ""
  ssh_key:
    description:
      - Private key for O(models[].copy_from), without a passphrase; the keys and the agent of root when left out.
      - It is given to ssh in a file of memory alone, which ends with the copying.
      - Without pipelining Ansible writes it, as all arguments, into a file of the host for the time of the task.
    type: str
    default: ""
  ssh_known_hosts:
    description: Lines of a C(known_hosts) with the keys of these hosts; root's own when left out.
    type: str
    default: ""
  environment:
    description: Variables of everything that downloads from the hub, for example a proxy or C(PIP_INDEX_URL).
    type: dict
    default: {}
  root:
    description: Directory below which the client is installed, in a virtual environment of its own.
    type: path
    default: /opt/sglang
  python:
    description: Interpreter of the host for the client, Python 3.10 or newer.
    type: path
    default: /usr/bin/python3
  client_version:
    description: Exact version of C(huggingface_hub).
    type: str
    required: true
  state_dir:
    description: Directory of the records of the host's instances, and of models that are not in a store of its own.
    type: path
    default: /var/lib/sglang
  follow:
    description: For the module's own use. The id of a run on the host, and what has been shown of it.
    type: dict
attributes:
  check_mode:
    description: Says what would be fetched, its size, and how long it would take at the rate of an earlier transfer.
    support: full
  diff_mode:
    description: Shows the models that would come or go.
    support: full
notes:
  - Files come over plain HTTP, not by the hub's Xet protocol, of which a single file may have 50 GB.
"""

EXAMPLES = r"""
- name: Have two models, one of them on a mount
  gpuops.sglang.sglang_model:
    client_version: 2.4.0
    token: "{{ vault_hub_token }}"
    models:
      - name: Qwen3-8B
        repo: Qwen/Qwen3-8B
        revision: b968826d9c46dd6066d109eabc6255188de91218
      - name: Qwen3.6-27B
        path: /mnt/models/Qwen3.6-27B

- name: Copy one from another host
  gpuops.sglang.sglang_model:
    client_version: 2.4.0
    ssh_key: "{{ vault_models_key }}"
    ssh_known_hosts: kpro5 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5...
    models:
      - name: Qwen3-8B
        copy_from: models@kpro5:/srv/models/Qwen3-8B

- name: Remove one that nothing serves
  gpuops.sglang.sglang_model:
    client_version: 2.4.0
    remove: [Qwen2.5-7B]
"""

RETURN = r"""
models:
  description: What is known of each model.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the model.
      type: str
    path:
      description: Its directory.
      type: str
    commit:
      description: Commit of its repository; empty for a model that was there already, or copied without a record.
      type: str
    copy_from:
      description: Where it was copied from.
      type: str
      returned: where it was copied
    files:
      description: How many files it has.
      type: int
    size:
      description: Size of all its files in bytes.
      type: int
    code:
      description: Its files of Python code, and code of other repositories that it names.
      type: list
      elements: str
    fetched_files:
      description:
        - How many files were fetched; with check mode how many would be, 0 where C(unknown) says why that is not known.
      type: int
    unknown:
      description:
        - Why it can not be told what would be fetched, before the host has what the hub's client needs, or rsync and
          ssh.
      type: str
      returned: in check mode, where it is so
    fetched_size:
      description: Size in bytes of the files that C(fetched_files) counts.
      type: int
    usual_seconds:
      description: Seconds that fetching them takes at the rate of an earlier transfer; V(null) where none is known.
      type: int
    damaged:
      description: What was wrong with the files that were fetched again.
      type: list
      elements: str
told:
  description: Lines on what was damaged and fetched again; with check mode on what would be fetched.
  type: list
  elements: str
  returned: success
removed:
  description: Names of the models that were removed.
  type: list
  elements: str
  returned: success
"""

import inspect
import json
import re
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    hub_client,
    launch,
    model_copy,
    model_runs,
    model_store,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub
from ansible_collections.gpuops.sglang.plugins.module_utils.instance_spec import SecretiveModule
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose, supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import launch_of
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import passwords

MODEL_SPEC = {
    "name": {"type": "str", "required": True},
    "repo": {"type": "str", "default": ""},
    "revision": {"type": "str", "default": "main"},
    "path": {"type": "str", "default": ""},
    "copy_from": {"type": "str", "default": ""},
    "allow": {"type": "list", "elements": "str", "default": []},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "trust_remote_code": {"type": "bool", "default": False},
}


def main() -> None:
    """Begin what takes long in a process of its own where somebody follows it, else do it here."""
    module = SecretiveModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "default": [], "options": MODEL_SPEC},
            "store": {"type": "path", "default": "/srv/models"},
            "remove": {"type": "list", "elements": "str", "default": []},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "default": "", "no_log": True},
            "ssh_key": {"type": "str", "default": "", "no_log": True},
            "ssh_known_hosts": {"type": "str", "default": ""},
            "environment": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/sglang"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "client_version": {"type": "str", "required": True},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "follow": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    follow = module.params["follow"] or {}
    try:
        require_root()
        result = model_runs.follow(**follow) if follow.get("run") else _begin(module, detached=bool(follow))
    except Refused as refused:
        module.fail_json(msg=str(refused))
    result = result.get("outcome") or result
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**{"changed": False, **result})


def _begin(module: SecretiveModule, detached: bool) -> dict:
    asked, change = module.params, not module.check_mode
    environment = {name: str(value) for name, value in asked["environment"].items()}
    secrets = {*passwords(environment), *filter(None, (asked["token"], asked["ssh_key"]))}
    module.no_log_values.update(secrets)
    models = [
        model_store.Model(**{**model, "allow": tuple(model["allow"]), "ignore": tuple(model["ignore"])})
        for model in asked["models"]
    ]
    problems = model_store.problems_of(models, asked["remove"])
    if problems:
        raise Refused("; ".join(problems))
    hub = Hub(
        asked["endpoint"].rstrip("/"), asked["client_version"], inspect.getsource(hub_client), Path(asked["root"]),
        asked["python"], asked["token"], environment,
    )  # fmt: skip
    ssh = model_copy.Ssh(asked["ssh_key"], asked["ssh_known_hosts"])
    place = model_store.Place(Path(asked["store"]), Path(asked["state_dir"]) / ".models", hub, ssh)
    used = _used(Path(asked["state_dir"])) if asked["remove"] else {}
    removed = model_store.remove(asked["remove"], place, used, change)
    full = asked["verify"] == "full"

    def work(tell: model_store.Tell) -> dict:
        return model_store.all_of(models, place, removed, full, change, tell)

    if detached and change and (full or not all(model_store.is_settled(model, place) for model in models)):
        return {"run": model_runs.begin(work, secrets)}
    return work(lambda _line: None)


def _used(state: Path) -> dict:
    """Return instance and launch -> paths in its model and arguments, of what serves and of what it would return to."""
    used = {}
    choose(state)
    for name in supervisor().installed_instances():
        present = launch_of(supervisor().read_unit(name))
        for one in filter(None, (present, launch.last_good(state, name, present))):
            record = launch.record(state, name, one)
            # a draft model, a tokenizer or an adapter may be from the store too, e.g. 'NAME=/PATH'
            paths = re.findall(r"/[^\s\"',=]+", json.dumps([record["model"], record["args"]]))
            used[f"launch {one} of instance '{name}'"] = paths
    return used


if __name__ == "__main__":
    main()
