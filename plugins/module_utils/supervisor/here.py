# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supervisor of this host's instances."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import processes
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord

CHOICES = ("auto", "systemd", "supervisord")
_chosen: Supervisor = systemd


def supervisor() -> Supervisor:
    """Return the supervisor that was chosen."""
    return _chosen


def refuse_other(state: Path) -> None:
    """Raise Refused where the supervisor that was not chosen has instances.

    It would start them at the next boot beside those of the other, and what chooses by itself would see one of both.
    """
    other: Supervisor = Supervisord(state) if _chosen is systemd else systemd
    names = other.installed_instances() if other is not systemd or systemd.is_here() else []
    if names:
        raise Refused(
            f"instance '{names[0]}' of this host is under {other.NAME}, not {_chosen.NAME}: set "
            f"sglang_server_supervisor to {other.NAME}, or with that remove it first (sglang_server_state: absent)"
        )


def choose(state: Path, wanted: str = "auto") -> Supervisor:
    """Choose the supervisor of the instances below `state`; raises Refused for systemd where it is not.

    By itself it is systemd where that is the first process and supervisord has no instance, as it may have been wanted
    before.
    """
    global _chosen
    other = Supervisord(state)
    if wanted == "systemd" and not systemd.is_here():
        first = Path("/proc/1/comm").read_text().strip()
        raise Refused(f"the first process of this host is '{first}', not systemd: set sglang_server_supervisor to auto")
    if wanted == "systemd" or (wanted == "auto" and systemd.is_here() and not other.installed_instances()):
        _chosen, processes.groups = systemd, None
    else:
        _chosen, processes.groups = other, other
    return _chosen
