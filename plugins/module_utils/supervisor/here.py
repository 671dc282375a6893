# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supervisor of this host's instances."""

from __future__ import annotations

from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Supervisor

_chosen: Supervisor = systemd


def supervisor() -> Supervisor:
    """Return the supervisor that was chosen."""
    return _chosen
