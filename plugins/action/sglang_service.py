# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of sglang_service: follow the run on the host, show what it is at, bring home what came of it.

Lines end as all others do, so that a log that is no terminal has them too; there they come at a calmer pace.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import become_loader

MODULE = "gpuops.sglang.sglang_service"
# s: between two lines at least, and at most. The process of a task has no terminal, the one that loads this has.
PACE = (2, 10) if sys.stdout.isatty() else (10, 30)
LOST = 300  # s without an answer of the host after which a run is given up
AGAIN = 5  # s between two tries
PYTHON = "ansible_python_interpreter"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the module, then the run that it has begun."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns, completed by what came of its run."""
        self._variables = dict(task_vars or {})
        # whose connection this is
        self._place = self._variables.get("ansible_delegated_vars", {}).get(self._task.delegate_to, self._variables)
        self._label = self._variables.get("inventory_hostname", "")
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        vmid = arguments.pop("vmid", None)
        if vmid is not None:
            self._enter(vmid)
        ended = ""
        while True:
            answer = self._module(arguments)
            if "busy" not in answer:
                break
            self._say(answer["msg"])
            came = self._follow(answer["busy"])
            # a run that ended without a result is no longer in the way, one of a host that is silent may be
            if "outcomes" not in came and ("started" not in came or answer["busy"] == ended):
                answer = came
                break
            ended = answer["busy"]
        run, problems = answer.pop("run", None), answer.pop("problems", [])
        if answer.get("gpu_held") and self._connection.transport == "gpuops.sglang.pct":
            answer["msg"] += f"\n{self._ask_node()}"
        if run and not answer.get("failed"):
            came = self._follow(run)
            if "outcomes" not in came:
                problems.append(came.get("msg", ""))
            for outcome in came.get("outcomes", ()):
                _complete(answer, problems, outcome)
        if problems:
            answer.update(failed=True, msg="\n".join(problems))
        result.update(answer)
        return result

    def _enter(self, vmid: Any) -> None:
        """Go on in a container of the host that the task runs on."""
        options = {"ansible_pct_vmid": vmid}
        if self._connection.transport == "local":
            options["ansible_pct_node_connection"] = "local"
        if self._connection.become is not None:
            options["ansible_pct_node_become"] = "sudo"
        self._go("gpuops.sglang.pct", options)
        self._label += f", container {vmid}"

    def _go(self, connection: str, changed: Mapping[str, Any]) -> None:
        """Go on over another connection, with the host's own variables and `changed`."""
        other = self._shared_loader_obj.connection_loader.get(
            connection, self._play_context, new_stdin=None, task_uuid=self._task._uuid
        )
        names = C.config.get_plugin_vars("connection", other._load_name)
        options = {name: self._templar.template(self._place[name]) for name in names if name in self._place}
        # as Ansible does it: a task's own limits are not those of a connection, and 'ask-pass' is told to the play
        keys = {**self._task.dump_attrs(), "retries": None, "timeout": self._play_context.timeout}
        if self._play_context.password:
            keys["password"] = self._play_context.password
        other.set_options(task_keys=keys, var_options={**options, **changed})
        self._connection = other
        self._place[PYTHON] = "/usr/bin/python3"  # what was found elsewhere says nothing of this place

    def _ask_node(self) -> str:
        """Return what the node knows of the processes on its GPUs; its container does not see those of others."""
        asked = self._connection.get_option
        user, become, connection = asked("node_user"), asked("node_become"), asked("node_connection")
        self._go(f"ansible.builtin.{connection}", {"ansible_user": user} if user else {})
        if become == "sudo":
            sudo = become_loader.get("sudo")
            sudo.set_options(direct={"become_user": "root"})
            self._connection.set_become_plugin(sudo)
        try:
            answer = self._module({"state": "gathered"})
        except AnsibleError as error:
            answer = {"msg": str(error)}
        lines = answer.get("gpu_processes") or [f"(nothing is known: {answer.get('msg', 'no process computes')})"]
        return "\n  ".join(["On the node:", *lines])

    def _module(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._execute_module(MODULE, module_args=dict(arguments), task_vars=self._variables))

    def _follow(self, run: str) -> dict[str, Any]:
        """Show what a run is at until it has ended; return its outcomes, or a failed result."""
        least, most = PACE
        seen: dict[str, str] = {}
        heard = time.monotonic()
        while True:
            follow = {"run": run, "seen": seen, "least": least, "most": most}
            why = ""
            try:
                answer = self._module({"state": "gathered", "follow": follow})
                if "outcomes" not in answer and "started" not in answer:  # not the module's own words
                    why = str(answer.get("module_stderr") or answer.get("msg") or "").strip() or "nothing came back"
            except AnsibleConnectionFailure as error:
                why = str(error)
            if not why and answer.get("outcomes") is None and not answer.get("failed"):
                for instance, line in answer["shown"].items():
                    self._say(f"{instance}: {line}")
                seen, heard = answer["steps"], time.monotonic()
            elif not why:
                return answer
            elif time.monotonic() - heard > LOST:
                return {
                    "failed": True,
                    "msg": f"the host does not answer any more: {why}\nWhat was begun goes on there: deploy again to "
                    "see what came of it",
                }
            else:
                self._say(f"no answer, the launch goes on there; asking again: {why.splitlines()[-1]}")
                time.sleep(AGAIN)

    def _say(self, text: str) -> None:
        self._display.display(f"{self._label} | {text}")


def _complete(answer: dict[str, Any], problems: list[str], outcome: Mapping[str, Any]) -> None:
    """Put what came of an instance into the module's answer."""
    for instance in answer.get("instances", ()):
        if instance["name"] == outcome["instance"]:
            instance["launch"] = outcome["launch"]
    if outcome["verdict"]:
        answer["verdicts"].append(outcome["verdict"])
    if outcome["problem"]:
        problems.append(outcome["problem"])
