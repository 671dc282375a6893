# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules share that take the instances of a host (documented in doc_fragments/instances)."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule

INSTANCE = {
    "name": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "required": True},
    "gpus": {"type": "list", "elements": "int", "default": []},
    "args": {"type": "dict", "default": {}},
    "env": {"type": "dict", "default": {}},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
}
INSTANCES: dict[str, Any] = {"type": "list", "elements": "dict", "required": True, "options": INSTANCE}
INSTANCES_SPEC: dict[str, Any] = {
    "instances": INSTANCES,
    "accept_changes": {"type": "dict", "default": {}},
    "plan": {"type": "str", "choices": ["refuse", "warn", "skip"], "default": "refuse"},
    "take_over": {"type": "bool", "default": False},
    "release": {"type": "path", "required": True},
    "user": {"type": "str", "default": "sglang"},
    "state_dir": {"type": "path", "default": "/var/lib/sglang"},
}

SUPERVISORD = {
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "environment": {"type": "dict", "default": {}},
    "wheelhouse": {"type": "path"},
    "start_hook": {"type": "path"},
    "control": {"type": "path"},
}
STATES = ["started", "restarted", "rolled_back", "stopped", "absent", "gathered"]
SERVICE_SPEC = {
    **INSTANCES_SPEC,
    "instances": {**INSTANCES, "required": False, "default": []},
    "release": {"type": "path"},
    "names": {"type": "list", "elements": "str"},
    "state": {"type": "str", "choices": STATES, "default": "started"},
    "launch": {"type": "str"},
    "share_gpus": {"type": "bool", "default": False},
    "reload_beside_docker": {"type": "bool", "default": False},
    "drain_timeout": {"type": "int", "default": 60},
    "stall_timeout": {"type": "int"},
    "awaited_models": {"type": "list", "elements": "str", "default": []},
    "keep_launches": {"type": "int", "default": 5},
    "supervisor": {"type": "str", "choices": ["auto", "systemd", "supervisord"], "default": "auto"},
    "supervisord": {"type": "dict", "options": SUPERVISORD, "apply_defaults": True},
    "vmid": {"type": "int"},
    "follow": {"type": "dict"},
}


class SecretiveModule(AnsibleModule):  # type: ignore[misc]
    """A module whose arguments are not logged on the host; `no_log` of a module gives way to that of the task."""

    def _log_invocation(self) -> None:
        # secrets are masked by value there: one with a quote is written otherwise and missed
        pass
