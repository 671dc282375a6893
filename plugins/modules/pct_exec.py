#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: pct_exec
short_description: Run a command in a container from its Proxmox node
description:
  - Runs on the node, as root, and needs nothing in the container but C(/bin/sh) and C(env). A container without Python
    gets it this way, see the role P(gpuops.sglang.container_python#role).
  - For everything else the connection plugin P(gpuops.sglang.pct#connection) runs any module in the container.
  - The command is a list of words, which no shell reads. It runs as root of the container, in root's home directory,
    with the environment of a fresh login and nothing of the node's.
  - What it gets reaches it through pipes alone, and nothing is logged on the node. Only its words can be seen, on its
    own command line, as those of every command.
author: gpuops contributors (@gpuops)
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  argv:
    description: The program and its arguments.
    type: list
    elements: str
    required: true
  stdin:
    description: What the command reads from its standard input.
    type: str
  stdin_add_newline:
    description: Whether O(stdin) is followed by a newline.
    type: bool
    default: true
  strip_empty_ends:
    description: Whether empty lines at the end of the outputs are left out.
    type: bool
    default: true
  chdir:
    description: Directory in the container in which the command starts.
    type: str
  environment:
    description: Variables that are added to the environment of the command.
    type: dict
    default: {}
  secret_environment:
    description:
      - Variables that are added likewise, for what nobody may read, such as a password. The values are shown as
        V(********) wherever they occur in the result, which would make a result with ordinary values, say V(1),
        unreadable. So there are two options.
      - Here a variable wins over one of the same name in O(environment).
    type: dict
    default: {}
  creates:
    description:
      - Path or pattern of the container's shell. Where it exists, the command is not run.
      - It is asked before O(removes), and starts at O(chdir).
    type: str
  removes:
    description: Path or pattern of the container's shell. Where it does not exist, the command is not run.
    type: str
  timeout:
    description:
      - Seconds after which the command is ended in the container, with all its descendants, first by SIGTERM, after
        3 seconds by SIGKILL. The task fails then. What has become a daemon goes on.
    type: int
  exit_codes:
    description: The exit codes of a success. With any other the task fails.
    type: list
    elements: int
    default: [0]
  entry:
    description:
      - How the command enters the container, as for P(gpuops.sglang.pct#connection).
      - V(quick) makes the checks of C(pct exec) itself, V(strict) runs C(pct exec), which costs about a second more.
    type: str
    choices: [quick, strict]
    default: quick
  locked:
    description: What to do when the container has a lock, because a backup, a migration or a snapshot of it runs.
    type: str
    choices: [refuse, enter]
    default: refuse
  pct_executable:
    description: Path of C(pct) on the node, for O(entry=strict).
    type: path
    default: /usr/sbin/pct
attributes:
  check_mode:
    description: Runs nothing but the question whether O(creates) or O(removes) is there.
    details:
      - As with M(ansible.builtin.command), the task is skipped, unless O(creates) or O(removes) tells whether the
        command would run.
    support: partial
  diff_mode:
    description: What a command changes is not known.
    support: none
notes:
  - The task runs on the node, so a play on containers delegates it there.
  - A command changes something, as far as Ansible can know; C(changed_when) says otherwise.
  - Where Ansible itself is interrupted, the command goes on as those of M(ansible.builtin.command) do, at most for
    O(timeout).
"""

EXAMPLES = r"""
- name: Ask a container without Python for its distribution
  gpuops.sglang.pct_exec:
    vmid: 129
    argv: [cat, /etc/os-release]
  delegate_to: pve-kpro5
  changed_when: false

- name: Unpack a model once
  gpuops.sglang.pct_exec:
    vmid: "{{ ansible_pct_vmid }}"
    argv: [tar, -xf, /root/models.tar, -C, /srv/models]
    creates: /srv/models/Qwen3*/config.json
    timeout: 3600
  delegate_to: "pve-{{ pct_node }}"

- name: Fetch a model with a token
  gpuops.sglang.pct_exec:
    vmid: 129
    argv: [/usr/local/bin/fetch-model, Qwen/Qwen3-8B]
    environment:
      https_proxy: http://proxy.example.com:3128
    secret_environment:
      HF_TOKEN: "{{ vault_hf_token }}"
  delegate_to: pve-kpro5
"""

RETURN = r"""
cmd:
  description: The command.
  type: list
  elements: str
  returned: always
rc:
  description:
    - Exit code of the command, 0 for one that was not run. 128 + N for one that was ended by signal N, 127 where there
      is no such program, V(null) where the command was refused or took too long.
  type: int
  returned: always
stdout:
  description: What the command wrote to its standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
  type: str
  returned: always
stderr:
  description: What the command wrote to its standard error, read like C(stdout).
  type: str
  returned: always
stdout_lines:
  description: RV(stdout) as a list of lines.
  type: list
  elements: str
  returned: always
stderr_lines:
  description: RV(stderr) as a list of lines.
  type: list
  elements: str
  returned: always
start:
  description: When the command was started, by the clock of the node; V(null) for one that was not run.
  type: str
  returned: always
end:
  description: When the command ended.
  type: str
  returned: always
delta:
  description: How long the command took.
  type: str
  returned: always
msg:
  description: Why the command was not run, or why the task failed.
  type: str
  returned: always
"""

import datetime
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.pct import end_of
from ansible_collections.gpuops.sglang.plugins.module_utils.runner import Finished, InContainer, Runner, TimedOut

# a pattern is a word of the shell that must not be split
EXISTS = 'IFS=; for path in $1; do if [ -e "$path" ] || [ -L "$path" ]; then exit 0; fi; done; exit 1'


class _Module(AnsibleModule):
    """A module whose arguments are not logged on the host, since stdin and words may be secrets."""

    def _log_invocation(self) -> None:
        pass


def main() -> None:
    """Ask whether the command is to run, run it, judge its exit code."""
    module = _Module(
        argument_spec={
            "vmid": {"type": "int", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "stdin": {"type": "str"},
            "stdin_add_newline": {"type": "bool", "default": True},
            "strip_empty_ends": {"type": "bool", "default": True},
            "chdir": {"type": "str"},
            "environment": {"type": "dict", "default": {}},
            "secret_environment": {"type": "dict", "default": {}, "no_log": True},
            "creates": {"type": "str"},
            "removes": {"type": "str"},
            "timeout": {"type": "int"},
            "exit_codes": {"type": "list", "elements": "int", "default": [0]},
            "entry": {"type": "str", "choices": ["quick", "strict"], "default": "quick"},
            "locked": {"type": "str", "choices": ["refuse", "enter"], "default": "refuse"},
            "pct_executable": {"type": "path", "default": "/usr/sbin/pct"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    container = InContainer(asked["vmid"], asked["entry"], asked["locked"], asked["pct_executable"])
    result: dict[str, Any] = {
        "changed": False, "msg": "", "cmd": asked["argv"], "rc": None, "stdout": "", "stderr": "",
        "start": None, "end": None, "delta": None,
    }  # fmt: skip
    start = datetime.datetime.now()
    try:
        needless = _needless(container, asked)
        if needless:
            result.update(rc=0, msg=f"{'Would' if module.check_mode else 'Did'} not run command since {needless}")
        elif module.check_mode:
            known = asked["creates"] is not None or asked["removes"] is not None
            result.update({"changed": True} if known else {"skipped": True})
            result.update(rc=0, msg="Command would have run if not in check mode")
        else:
            done = _run(container, asked)
            result.update(_report(done, start, asked["strip_empty_ends"]), rc=done.code)
            if done.code not in asked["exit_codes"]:
                said = end_of(done.stderr or done.stdout)
                wanted = " or ".join(map(str, asked["exit_codes"]))
                result["msg"] = (
                    f"{container.where}: {asked['argv'][0]} ended with code {done.code}, not with {wanted}: {said};"
                    f" correct the command, or add {done.code} to exit_codes"
                )
                module.fail_json(**result)
    except TimedOut as late:
        result.update(_report(late, start, asked["strip_empty_ends"]), msg=str(late))
        module.fail_json(**result)
    except Refused as refused:
        module.fail_json(**{**result, "msg": str(refused)})
    module.exit_json(**result)


def _needless(container: Runner, asked: dict[str, Any]) -> str:
    """Why the command is not to be run; empty if it is."""

    def exists(pattern: str) -> bool:
        argv = ["/bin/sh", "-c", EXISTS, "sh", pattern]
        return container.run(argv, chdir=asked["chdir"], timeout=asked["timeout"]).code == 0

    if asked["creates"] is not None and exists(asked["creates"]):
        return f"'{asked['creates']}' exists"
    if asked["removes"] is not None and not exists(asked["removes"]):
        return f"'{asked['removes']}' does not exist"
    return ""


def _run(container: Runner, asked: dict[str, Any]) -> Finished:
    stdin = asked["stdin"] or ""
    if asked["stdin"] is not None and asked["stdin_add_newline"]:
        stdin += "\n"
    variables = {**asked["environment"], **asked["secret_environment"]}
    return container.run(
        asked["argv"],
        stdin=stdin.encode(errors="surrogateescape"),
        # null is no value: as text it would become None
        environment={str(name): "" if value is None else str(value) for name, value in variables.items()},
        chdir=asked["chdir"],
        timeout=asked["timeout"],
    )


def _report(done: Finished | TimedOut, start: datetime.datetime, strip: bool) -> dict[str, Any]:
    end = datetime.datetime.now()
    stdout, stderr = (output.decode(errors="replace") for output in (done.stdout, done.stderr))
    if strip:
        stdout, stderr = stdout.rstrip("\r\n"), stderr.rstrip("\r\n")
    return {
        "changed": True, "stdout": stdout, "stderr": stderr,
        "start": str(start), "end": str(end), "delta": str(end - start),
    }  # fmt: skip


if __name__ == "__main__":
    main()
