#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_found
short_description: Find SGLang servers that were started by hand, and write them as instances
description:
  - Finds every SGLang server of this host that is no instance of this collection, whoever started it and how; with
    nohup, in tmux or screen, by a unit, cron or a container engine. A program is a server if Python itself would start
    one from its command line, not if its command line has such a word.
  - Reads what it was started with and what it is made of, and writes it as an entry of C(sglang_server_instances). The
    options are those of the parser of its own SGLang, which is imported by its own interpreter as its own user, at the
    lowest priority and without a GPU, if nobody but root and that user can change it. Secrets are
    references to variables of a vault.
  - Asks the server at its own port what it runs with, and says what would change under supervision and what can not be
    carried over.
  - Changes nothing, ends nothing. No value of a secret is in the result, so far as its name, its form or SGLang tells.
author: gpuops contributors (@gpuops)
options:
  install_root:
    description: Directory of the releases; one of the same version tells the options if a server's own parser can not.
    type: path
    default: /opt/sglang
  user:
    description: Unprivileged user that instances run as.
    type: str
    default: sglang
  state_dir:
    description: Directory for what the instances write, by which those under supervisord are known.
    type: path
    default: /var/lib/sglang
  supervisor:
    description: What runs instances, as the option of M(gpuops.sglang.sglang_service).
    type: str
    choices: [auto, systemd, supervisord]
    default: auto
  timeout:
    description: Longest wait for the parser of each server, in seconds; all servers together get half an hour.
    type: int
    default: 180
  ask:
    description: Whether to ask the servers what they run with.
    type: bool
    default: true
  pids:
    description: Main processes of the servers to look at; all servers when empty.
    type: list
    elements: int
    default: []
attributes:
  check_mode:
    description: Does the same.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
seealso:
  - module: gpuops.sglang.sglang_health
  - plugin: gpuops.sglang.found_page
    plugin_type: filter
  - plugin: gpuops.sglang.found_variables
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Find what was started by hand
  gpuops.sglang.sglang_found:
    timeout: 60
  register: found

- name: Show it
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: found.servers} | gpuops.sglang.found_page }}"
"""

RETURN = r"""
servers:
  description: The servers, each by its main process.
  type: list
  elements: dict
  returned: success
  contains:
    pid:
      description: Main process.
      type: int
    started:
      description: When it was started, in ticks since the boot; with C(pid) it names this process and no later one.
      type: int
    since:
      description: When it was started, as a time of UTC.
      type: str
      sample: "2026-11-29T19:56:09Z"
    owner:
      description: User that it runs as.
      type: str
    started_by:
      description: How it was started, for example V(nohup over ssh), V(unit llm.service) or V(docker 0123456789ab).
      type: str
    command:
      description: Its command line, word by word; C(***) or C(********) stands for a secret.
      type: list
      elements: str
    working_directory:
      description: Its working directory.
      type: str
    python:
      description: Its interpreter.
      type: str
    sglang_version:
      description: Version of its SGLang; empty if it was not found.
      type: str
    installed_in:
      description: Directory of the packages or sources that its SGLang is in.
      type: str
    install_version:
      description: What C(sglang_install_version) may be for the same SGLang; V(null) if no package index has that.
      type: str
    listens:
      description: What it listens on (C(address), C(port)), with all that it has started.
      type: list
      elements: dict
    gpu_memory:
      description: What it holds of GPUs (C(gpu), C(memory) in MiB), as far as the driver tells.
      type: list
      elements: dict
    logs:
      description: What its standard output and error are, a file, a pipe or a terminal.
      type: list
      elements: str
    environment:
      description: The variables that a server or its libraries read; C(***) stands for a secret.
      type: dict
    instance:
      description: The server as an entry of C(sglang_server_instances); V(null) if its options are not known.
      type: dict
    secrets:
      description: The variables that are to be put into a vault (C(variable)), and where the value stands (C(place)).
      type: list
      elements: dict
    end:
      description: How to end it so that it stays so. A command in it hits no later process of the same number.
      type: str
    live:
      description: What the server itself reports; V(null) if it was not asked or did not tell.
      type: dict
      contains:
        sglang_version:
          description: Version that runs.
          type: str
        options:
          description:
            - Each option that it reports (C(option)), as it was C(requested), C(resolved) by SGLang and C(effective) in
              its first scheduler, and whether that is the C(same).
          type: list
          elements: dict
        differences:
          description: What runs otherwise than requested, in words.
          type: list
          elements: str
        requests:
          description: How many requests run at a time, all schedulers together.
          type: int
        kv_tokens:
          description: How many tokens the KV caches hold, all together.
          type: int
        memory:
          description: GiB of a GPU that its first scheduler tells of.
          type: dict
    not_carried:
      description: Why the same version from a package index may be another SGLang, a sentence each.
      type: list
      elements: str
    changes:
      description: What would change under supervision, a sentence each.
      type: list
      elements: str
    notes:
      description: What was read otherwise than it looks, could not be read, or is left out, a sentence each.
      type: list
      elements: str
gpus:
  description: Each GPU (C(index), C(name), C(total) and C(free) memory in MiB), as far as the driver tells.
  type: list
  elements: dict
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils.found import Search, cards, found_servers
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import CHOICES, choose


def main() -> None:
    """Look, report."""
    module = AnsibleModule(
        argument_spec={
            "install_root": {"type": "path", "default": "/opt/sglang"},
            "user": {"type": "str", "default": "sglang"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "supervisor": {"type": "str", "choices": list(CHOICES), "default": "auto"},
            "timeout": {"type": "int", "default": 180},
            "ask": {"type": "bool", "default": True},
            "pids": {"type": "list", "elements": "int", "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        require_root()
        choose(Path(asked["state_dir"]), asked["supervisor"])
        releases = Path(asked["install_root"]) / "releases"
        search = Search(releases, asked["user"], asked["timeout"], asked["ask"], tuple(asked["pids"]))
        servers = found_servers(search)
    except Refused as refused:
        module.fail_json(msg=str(refused))
    module.exit_json(changed=False, servers=servers, gpus=cards())


if __name__ == "__main__":
    main()
