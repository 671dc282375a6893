# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a supervisor of instances is to the rest: systemd where it is the first process, else supervisord."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ansible_collections.gpuops.sglang.plugins.module_utils import guard

LAUNCH_LINE = "# launch: "
STOPS = 30  # s beyond the drain after which what is left of a server is killed
RESTART_AFTER = 10  # s
NO_RESTART = (1, 2, 3)  # exit statuses that a restart does not cure
STARTS = 5  # in
STARTS_WITHIN = 6  # h
# tqdm rewrites its bar after a carriage return, and a log passes a line on when it ends. SGLang's bars for shards have
# a form of their own, which ends with the unit.
BARS = {"TQDM_BAR_FORMAT": "\n{l_bar}{n_fmt}/{total_fmt}\n", "TQDM_MININTERVAL": "5", "TQDM_UNIT": "it\n"}

# exit statuses of what could not be started (systemd.exec(5)) -> what to do
START_FAILURES = {
    "200": "the server's home can not be entered: its user must be able to pass every folder above it",
    "203": "the release's interpreter can not be run: its user must be able to pass every folder above it",
    "217": "the user does not exist any more: deploy again",
    "226": "this host allows no mount namespaces: in a Proxmox container run 'pct set VMID --features nesting=1'",
}


@dataclass(frozen=True)
class Identity:
    """What the supervisor says of an instance's service now, in systemd's words."""

    active: str  # ActiveState
    sub: str  # SubState
    result: str
    main_pid: int  # 0 when there is no process
    invocation: str
    cgroup: str  # under supervisord one that processes.more_groups tells of
    enabled: bool
    restarts: int
    exit_status: str  # of the last main process, e.g. 'exited 1', 'killed 9'; '' when none ended
    shown: Mapping[str, str]  # all that it says


class LogLine(NamedTuple):
    """A line of a launch's log."""

    at: float  # s of the monotonic clock: the other one may be set back
    text: str
    invocation: str  # which run of the service wrote it, e.g. after a restart; '' for the supervisor's own words


class Supervisor(Protocol):
    """Each name is an instance's; each method that asks the supervisor raises Refused with its answer."""

    @property
    def NAME(self) -> str:
        """systemd or supervisord."""

    @property
    def HIDDEN(self) -> tuple[str, ...]:
        """Folders of this host that a server does not see, as it has others of its own."""

    def unit_name(self, instance: str) -> str:
        """Return what the supervisor calls an instance."""

    def unit_path(self, instance: str) -> Path:
        """Return where the unit of an instance is: the text that says what is to run."""

    def unit_text(
        self, instance: str, launch: str, argv: Sequence[str], environment: Mapping[str, str], secret_env: str | None,
        user: str, home: str, watch: Sequence[str], drain: int,
    ) -> str:  # fmt: skip
        """Return the unit of one launch; `home` is the only place that the server may write to, besides /tmp.

        `secret_env` is the path of a file with more variables; `watch` is the command that tells the supervisor of a
        hung server; requests have `drain` s to finish when the server is stopped.
        """

    def programs(self) -> Mapping[str, str]:
        """Return the programs that stand in the folder of a launch: name -> text."""

    def read_unit(self, instance: str) -> str:
        """Return the installed unit of an instance; empty when there is none."""

    def installed_instances(self) -> list[str]:
        """Return the names of all instances that have a unit of ours on this host."""

    def instance_in(self, cgroups: Sequence[str]) -> str | None:
        """Return the instance of ours whose service has one of these control groups, or None."""

    def install(self, instance: str, text: str) -> None:
        """Put the unit in place and enable it; what runs goes on."""

    def remove(self, instance: str) -> None:
        """Take the unit of a stopped instance away."""

    def enable(self, instance: str) -> None:
        """Start the instance at boot."""

    def disable(self, instance: str) -> None:
        """Do not start the instance at boot."""

    def stop(self, instance: str) -> None:
        """Stop the service and return when it has ended: SIGTERM to the main process, and in the end SIGKILL to all."""

    def start(self, instance: str) -> None:
        """Start the service; raises Refused with what is said when its process can not be run.

        A process that ran and ended is no matter of this.
        """

    def identity(self, instance: str) -> Identity:
        """Return the state of an instance's service."""

    def began(self, identity: Identity) -> float:
        """Return when the main process was started, in s of the monotonic clock."""

    def computed(self, identity: Identity) -> float:
        """Return the s of CPU that the service's processes have had so far; 0 where nobody tells."""

    def drop_ins(self, identity: Identity) -> list[str]:
        """Return the files that change this service beside its unit; an image may have some for all services."""

    def into_scope(self, name: str, pid: int) -> None:
        """Take a process out of what may be ended together with who called it; as far as it goes."""

    def running_launch(self, main_pid: int) -> str | None:
        """Return the launch id in the environment of the running process, or None."""

    def log_of(self, launch: str, count: int, invocation: str = "") -> list[LogLine]:
        """Return the last `count` lines of a launch's log, or of one run of its service, and no others."""

    def log_place(self, launch: str) -> str:
        """Return where an operator finds the whole log of a launch."""

    def log_command(self, instance: str) -> str:
        """Return the command by which an operator sees the log of an instance."""

    def end_command(self, instance: str) -> str:
        """Return the command by which an operator ends an instance for good."""

    def described(self, instance: str) -> Sequence[str]:
        """Return the command that shows all that the supervisor knows of an instance."""


def launch_of(text: str) -> str | None:
    """Return the launch id that a unit carries, or None for a unit that is not ours."""
    lines = [line for line in text.splitlines() if line.startswith(LAUNCH_LINE)]
    return lines[0][len(LAUNCH_LINE) :] if lines else None


def running_launch(main_pid: int) -> str | None:
    """Return the launch id in the environment of the running process, or None."""
    return guard.launch_in(main_pid) or None


def named_in(cgroups: Sequence[str]) -> list[str]:
    """Return the instances that control groups are called after."""
    return [name for cgroup in cgroups for name in re.findall(r"/sglang-([a-z0-9-]+)\.service(?:/|$)", cgroup)]


def by_option(argv: Sequence[str]) -> list[list[str]]:
    """Keep an option and its values together, so that a unit has one option on a line."""
    groups: list[list[str]] = []
    for word in argv:
        if groups and not word.startswith("--"):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def environment_file(variables: Mapping[str, str]) -> str:
    """Return the content of an EnvironmentFile= that gives exactly these variables (systemd.exec(5))."""
    escapes = str.maketrans({letter: f"\\{letter}" for letter in '"\\`$'})
    return "".join(f'{name}="{variables[name].translate(escapes)}"\n' for name in sorted(variables))


def variable_problem(name: str, value: str, place: str = "env") -> str | None:
    """Return why an environment variable that is written under `place` would be ignored or lost, or None."""
    if name == "SGLANG_LAUNCH_ID":
        return f"'{name}' under '{place}' carries the launch id: delete it"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return f"'{name}' under '{place}' is no name of a variable: use letters, digits and '_'"
    return f"'{name}' under '{place}' holds a NUL character: delete it" if "\0" in value else None
