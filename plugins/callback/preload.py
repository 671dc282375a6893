# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: preload
type: aggregate
short_description: Load the connection plugin once for all tasks
description:
  - Ansible runs each task on each host in a process of its own, and each of them reads the connection plugin and all of
    its options anew, which takes a tenth of a second. This callback reads them before, and they are inherited.
  - Without it everything works alike, only slower.
requirements:
  - enable it with C(callbacks_enabled=gpuops.sglang.preload) in C(ansible.cfg)
author: gpuops contributors (@gpuops)
"""

from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import connection_loader


class CallbackModule(CallbackBase):
    """Says nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuops.sglang.preload"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: object) -> None:
        """Read the plugin."""
        connection_loader.get("gpuops.sglang.pct", class_only=True)
