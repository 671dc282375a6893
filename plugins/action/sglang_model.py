# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of sglang_model: show how far the fetching on the host is, and bring home what came of it."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.sglang.plugins.action.sglang_service import AGAIN, LOST, PACE

MODULE = "gpuops.sglang.sglang_model"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the module, then follows what it has begun."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns, in the end."""
        self._variables = dict(task_vars or {})
        result: dict[str, Any] = super().run(tmp, task_vars)
        answer = self._module({**self._task.args, "follow": {"run": ""}})
        if answer.get("run"):
            answer = self._follow(answer["run"])
        for line in answer.get("told", ()):
            self._say(line)
        result.update(answer)
        return result

    def _module(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return dict(self._execute_module(MODULE, module_args=arguments, task_vars=self._variables))

    def _follow(self, run: str) -> dict[str, Any]:
        least, most = PACE
        seen, heard = "", time.monotonic()
        version = self._task.args.get("client_version")
        while True:
            follow = {"run": run, "seen": seen, "least": least, "most": most}
            why = ""
            try:
                answer = self._module({"client_version": version, "follow": follow})
                if "line" in answer:
                    seen, heard = answer["line"], time.monotonic()
                    self._say(seen)
                    continue
                if "models" in answer or not (answer.get("module_stderr") or answer.get("unreachable")):
                    return answer
                why = str(answer.get("module_stderr") or answer.get("msg")).strip()
            except AnsibleConnectionFailure as error:
                why = str(error)
            if time.monotonic() - heard > LOST:
                lost = f"the host does not answer any more: {why}\nWhat was begun goes on there: deploy again to see it"
                return {"failed": True, "msg": lost}
            self._say(f"no answer, the fetching goes on there; asking again: {why.splitlines()[-1] if why else ''}")
            time.sleep(AGAIN)

    def _say(self, text: str) -> None:
        self._display.display(f"{self._variables.get('inventory_hostname', '')} | {text}")
