# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a process was started: by a unit, a container engine, a terminal multiplexer, cron, or somebody's shell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.processes import parent_of

# docker-ID.scope of systemd's driver, /docker/ID of the other, libpod-ID.scope, cri-containerd-ID.scope, ...
CONTAINER = re.compile(r"/(docker|libpod|cri-containerd|crio|nerdctl)[-/]([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?:/|$)")
POD = re.compile(r"/(kubepods)[^\0]*/([0-9a-f]{12})[0-9a-f]{52}(?:/|$)")
UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
# units that start whatever they are told
LOGIN_UNIT = re.compile(r"(?:sshd?|crond?|atd|user(?:@\d+)?|supervisord?|tmux|screen)(?:@.*)?\.service")
# name of a program among the parents -> how that is called
STARTERS = (
    ("tmux: server", "tmux"),
    ("tmux", "tmux"),
    ("screen", "screen"),
    ("supervisord", "supervisord"),
    ("cron", "cron"),
    ("crond", "cron"),
    ("sshd", "an ssh session"),
    ("sshd-session", "an ssh session"),
)
HANGUP = 1  # bit of SIGHUP in a mask of signals


def container_of(cgroups: Sequence[str], proc: Path) -> str | None:
    """Return the container of this host that a process runs in, e.g. 'docker 0123456789ab', or None."""
    try:
        ours = (proc / "1/cgroup").read_text(errors="replace")
    except OSError:
        ours = ""
    for cgroup in cgroups:
        found = CONTAINER.search(cgroup) or POD.search(cgroup)
        if found and found[2] not in ours:  # this host may be a container itself
            return f"{found[1]} {found[2]}"
    return None


def origin(
    pid: int, cgroups: Sequence[str], environment: Mapping[str, str], status: Mapping[str, str], proc: Path
) -> str:
    """Return how a process that is in no container was started, in words."""
    units = [unit for cgroup in cgroups for unit in UNIT.findall(cgroup) if not LOGIN_UNIT.fullmatch(unit)]
    if units:
        return f"unit {units[-1]}"
    starters = list(_starters(pid, proc))
    # one that was left behind has another parent, but the variables of its terminal
    for name, variable in (("tmux", "TMUX"), ("screen", "STY"), ("supervisord", "SUPERVISOR_ENABLED")):
        if name in starters or variable in environment:
            return name
    if "cron" in starters or any("/cron" in cgroup for cgroup in cgroups):
        return "cron"
    over_ssh = "an ssh session" in starters or "SSH_CONNECTION" in environment
    if int(status.get("SigIgn", "0"), 16) & HANGUP:
        return "nohup over ssh" if over_ssh else "nohup"
    return "an ssh session" if over_ssh else "a shell or program that has ended" if not starters else starters[0]


def _starters(pid: int, proc: Path) -> Iterator[str]:
    """Yield what is known among the parents of a process, the nearest first."""
    for _generation in range(64):
        pid = parent_of(pid, proc)
        if pid <= 1:
            return
        try:
            name = (proc / str(pid) / "comm").read_text(errors="replace").strip().lower()
        except OSError:
            return
        yield from (called for program, called in STARTERS if name == program)
