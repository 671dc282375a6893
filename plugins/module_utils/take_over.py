# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that somebody has started by hand, in whose place an instance comes: how it is ended, and started again
where the instance does not serve.

    launch.taken(INSTANCE)    what its start needs, secrets too, for root alone; there while an instance takes its place

It goes with the boot, as the server does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import re
import resource
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import guard, loopback, processes, sockets
from ansible_collections.gpuops.sglang.plugins.module_utils.found_changes import RESTARTS, ending
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import (
    GONE,
    FoundProcess,
    found_process,
    started_at,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import local_url, taken
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import PROC, duration
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import gone
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import STOPS

KILLED = 10  # s that what was killed has to end
ANSWERS = 3600  # s that the old command has to load
LOOK = 1  # s between two looks
WAIT = 5  # s for an answer
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # numbers of system calls, which Python has not all
UNIT_STATES = ("enabled", "disabled")
TOGETHER = (
    "RequiredBy",
    "RequisiteOf",
    "BoundBy",
    "ConsistsOf",
    "WantedBy",
    "UpheldBy",
)  # what stops or starts with it
# options whose value is read at the start
READ = re.compile(
    "--(?:model(?:-path)?|(?:tokenizer|.*-model|lora)-paths?|config|chat-template|ssl-(?:.*file|ca-certs))"
)
LIMITS = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]


@dataclass(repr=False)  # it has secrets
class OldServer:
    """All that ending and starting it again needs. Texts are as os.fsdecode() makes them."""

    instance: str
    port: int
    drain: int  # s that its requests have to finish
    label: str  # for messages
    boot: str
    pid: int
    started: str  # ticks since the boot
    family: dict[str, str]  # pid -> when it was started, of all that it has started and itself
    unit: str  # of systemd; '' for a process that no unit runs
    enabled: bool  # the unit, at boot
    program: str
    argv: list[str]
    environment: dict[str, str]
    folder: str
    user: tuple[int, int, list[int]]  # user, group and further groups
    umask: int
    limits: list[tuple[int, int, int]]  # limit, soft, hard
    processors: list[int]
    nice: int
    logs: tuple[str, str]  # what its output and errors are
    health: str  # the address that has told of its health; '' where none did
    ended: bool = False  # by this run, or one that was itself ended before it had a result

    def __post_init__(self) -> None:
        self.outputs: list[int] = []

    @property
    def pids(self) -> frozenset[int]:
        """What gives way when it is ended."""
        return frozenset(self._alive())

    def keep(self) -> None:
        """Write down all of it; raises Refused where it is not the process any more that was looked at.

        For a process with one thread: it takes the rights of the server's user for a moment.
        """
        if not self.ended:
            self._refuse_another()
            self._grow()
            folder = taken(self.instance).parent
            with writing_below(folder):
                folder.parent.mkdir(mode=0o700, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
            self._write(False)
        if not self.unit:
            self.outputs = [self._output(place) for place in (0, 1)]

    def forget(self) -> None:
        """Remove what was written down."""
        for descriptor in self.outputs:
            os.close(descriptor)
        self.outputs = []
        taken(self.instance).unlink(missing_ok=True)

    def end(self, tell: Callable[[str], None]) -> None:
        """End it and prove that nothing of it is left; raises Refused."""
        if not self.ended:
            self._refuse_another()
            self._write(True)
        self.ended = True
        tell(f"ending {self.label}")
        ours = {int(pid) for pid in self.family}
        if self.unit:
            self._stop_unit()
        self._terminate()
        gone(self.label, self._alive(), ours | {int(pid) for pid in self.family})
        rival = self.rival()
        if rival:
            raise Refused(f"{self.label} was ended, but {rival}")
        held = sockets.listeners(self.port)
        end = time.monotonic() + KILLED
        while held and not held[0].pid and time.monotonic() < end:  # its socket may outlive it by a moment
            time.sleep(guard.PAUSE)
            held = sockets.listeners(self.port)
        if held:
            raise Refused(f"{self.label} has ended, but its port {self.port} is held by {held[0].label}: end that")

    def again(self, tell: Callable[[str], None]) -> str:
        """Start it as it was started, prove that it answers, and return what serves then; raises Refused."""
        if self._is_there(self.pid, self.started):
            if not self.ended:
                return f"{self.label}, which was left as it is"
            if sockets.listeners(self.port):
                return f"{self.label}, which could not be ended and listens on its port"
            raise Refused(f"{self.label} can not be ended, so that it can not be started again")
        if not self.ended:
            raise Refused(f"{self.label} has ended by itself")
        pid = self._successor()
        if not pid:
            pid = self._start_unit() if self.unit else self._start()
        tell(f"waiting for what served before, process {pid}")
        pid = self._prove(pid)
        what = f"{self.unit}, as process {pid}" if self.unit else f"by its old command, as process {pid}"
        opened = [os.readlink(f"/proc/self/fd/{one}") for one in self.outputs]
        lost = any(now == os.devnull != log for now, log in zip(opened, self.logs))
        silent = "; its output goes nowhere, since its log could not be opened by its user" if lost else ""
        return f"what served before, {what}, which answers on port {self.port}{silent}"

    def rival(self) -> str:
        """Return what has started it again beside the instance, and the next step; '' for nothing."""
        again = self._successor()
        if not again:
            return ""
        below = processes.parent_of(again)
        return (
            f"something, below process {below}, has started the old command again, as process {again}: end what does "
            "that, then that process"
        )

    def _write(self, ended: bool) -> None:
        write_whole(taken(self.instance), json.dumps({**asdict(self), "ended": ended}), 0o600)

    # ending

    def _refuse_another(self) -> None:
        if not self._is_there(self.pid, self.started):
            raise Refused(f"{self.label} has ended meanwhile: look at what runs now, then deploy again")

    def _is_there(self, pid: int, started: str) -> bool:
        return bool(started) and self.boot == guard.boot() and guard.born(pid) == started

    def _alive(self) -> list[int]:
        return [int(pid) for pid, started in self.family.items() if self._is_there(int(pid), started)]

    def _grow(self) -> None:
        """Take note of what its processes have started meanwhile."""
        there = guard.everything()
        for pid in self._alive():
            self.family.update({str(one): there[one][19] for one in guard.descendants(pid, there)})

    def _terminate(self) -> None:
        if self._is_there(self.pid, self.started):
            _send(self.pid, signal.SIGTERM)  # to it alone: SGLang finishes its requests
        end = time.monotonic() + self.drain + STOPS
        while self._is_there(self.pid, self.started) and time.monotonic() < end:
            self._grow()
            time.sleep(guard.PAUSE)
        end = time.monotonic() + KILLED
        while self._alive() and time.monotonic() < end:
            self._grow()
            for pid in self._alive():
                _send(pid, signal.SIGKILL)
            time.sleep(guard.PAUSE)

    def _stop_unit(self) -> None:
        try:
            _systemctl("stop", self.unit, timeout=self.drain + STOPS)
        except subprocess.TimeoutExpired:
            _systemctl("kill", "--signal=SIGKILL", self.unit)
            _systemctl("stop", self.unit, timeout=STOPS)
        if self.enabled:
            _systemctl("disable", self.unit)

    def _successor(self) -> int:
        """Return the process by which somebody else has started it again, 0 if there is none."""
        command = b"\0".join(map(os.fsencode, self.argv)).decode(errors="replace").split("\0")
        same = [one.pid for one in processes.servers() if processes.command_of(one.pid) == command]
        later = [
            pid for pid in same if int(guard.born(pid) or 0) > int(self.started or 0) and str(pid) not in self.family
        ]
        here = PROC / "self/ns/net"  # elsewhere the same command is another server
        return next((pid for pid in later if _is_same(PROC / str(pid) / "ns/net", here)), 0)

    # starting again

    def _start(self) -> int:
        uid, gid, groups = self.user
        try:
            process = subprocess.Popen(
                self.argv, executable=self.program, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=self.outputs[0], stderr=self.outputs[1], start_new_session=True, umask=self.umask,
                user=uid, group=gid, extra_groups=groups,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise Refused(f"the old command can not be started: {self.program} in {self.folder}: {why}") from None
        self.process = process  # a child that has ended stays one until it is waited for
        self.pid, self.started = process.pid, guard.born(process.pid)
        with contextlib.suppress(Refused):
            self._write(True)  # by which the next run knows that it is there
        with contextlib.suppress(OSError, ValueError):
            os.sched_setaffinity(process.pid, self.processors)
            os.setpriority(os.PRIO_PROCESS, process.pid, self.nice)
        for limit, soft, hard in self.limits:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(process.pid, limit, (soft, hard))
        supervisor().into_scope(f"gpuops-returned-{process.pid}", process.pid)
        return process.pid

    def _start_unit(self) -> int:
        if self.enabled:
            _systemctl("enable", self.unit)
        _systemctl("start", "--no-block", self.unit)
        return self._main_pid()

    def _main_pid(self) -> int:
        """Return the main process of the unit when it is there; a unit may have something to do before."""
        began = time.monotonic()
        while time.monotonic() < began + ANSWERS:
            shown = _shown(self.unit)
            pid = int(shown["MainPID"] or 0)
            if pid:
                return pid
            if shown["ActiveState"] in guard.FINAL and time.monotonic() > began + WAIT:
                break
            time.sleep(guard.PAUSE)
        raise Refused(f"{self.unit} does not start again: see journalctl -u {self.unit}")

    def _prove(self, pid: int) -> int:
        """Return who listens on its port, and tells of its health there if that was so before; raises Refused."""
        log = f"journalctl -u {self.unit}" if self.unit else f"its log {self.logs[0]}"
        started = guard.born(pid)
        end = time.monotonic() + ANSWERS
        while time.monotonic() < end:
            if not started or guard.born(pid) != started:
                if not self.unit:
                    raise Refused(f"the old command, started again as process {pid}, has ended: see {log}")
                pid = self._main_pid()  # its unit may start it again
                started = guard.born(pid)
            family = processes.with_descendants(pid)
            if any(one.pid in family for one in sockets.listeners(self.port)) and (
                not self.health or _is_well(self.health)
            ):
                return pid
            time.sleep(LOOK)
        raise Refused(f"the old command, started again as process {pid}, does not answer within {ANSWERS} s: see {log}")

    def _output(self, place: int) -> int:
        """Open what its output (0) or errors (1) went to, with its own rights and no more, to append; else nothing."""
        path = f"/proc/{self.pid}/fd/{place + 1}" if not self.ended else self.logs[place]
        how = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        if self.ended:
            how |= os.O_NOFOLLOW
        opened = -1
        with contextlib.suppress(OSError), _as(*self.user):
            opened = os.open(path, how)
        if opened >= 0 and self.ended and not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            opened = -1
        if opened < 0 and not self.ended:
            copy = _copied(self.pid, place + 1)  # its user may not open what root has redirected it to
            if copy >= 0:
                return copy
        if opened < 0:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(opened, True)
        return opened


def server_at(instance: str, port: int, drain: int) -> OldServer | None:
    """Return the server that somebody has started by hand and that listens on a port; raises Refused with why an
    instance can not take its place.
    """
    holding = {one.pid for one in sockets.listeners(port)}
    for one in processes.servers() if holding - {0} else ():
        if supervisor().instance_in(one.cgroups) or not holding.intersection(processes.with_descendants(one.pid)):
            continue
        label = f"process {one.pid} of user {one.owner}"
        try:
            found = found_process(one.pid)
            if found is None or "SGLANG_LAUNCH_ID" in found.environment:
                return None
            since = "" if one.age is None else f", for {duration(one.age)}"
            label += f" (an SGLang server, started by: {found.origin}{since})"
            why = _obstacle(found, port)
            if not why:
                return _old(found, instance, port, drain, label)
        except OSError as error:
            why = f"it can not be looked into: {error.strerror}"
        raise Refused(f"instance '{instance}': port {port} is held by {label}, whose place can not be taken: {why}")
    return None


def interrupted(instance: str) -> OldServer | None:
    """Return the server that a run has ended which was itself ended before it had a result, or None."""
    try:
        content = json.loads(taken(instance).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    for name in ("user", "logs"):
        content[name] = tuple(content[name])
    old = OldServer(**content)
    if not old.ended or old.boot != guard.boot():
        old.forget()
        return None
    return None if old._is_there(old.pid, old.started) else old


def _obstacle(found: FoundProcess, port: int) -> str:
    """Return why a server can not be ended so that it can be started again, with the next step, or ''."""
    if found.container or found.own_network:
        return f"it is not of this host alone: {ending(found)}" if not found.container else ending(found)
    status = (PROC / str(found.pid) / "status").read_text(errors="replace")
    if any(len(set(ids.split())) > 1 for ids in re.findall(r"^[UG]id:\t(.*)$", status, re.MULTILINE)):
        return "it has the rights of several users: end it"
    why = _obstacle_of_command(found, port)
    if why:
        return why
    if found.origin.startswith("unit "):
        return _obstacle_of_unit(found)
    if RESTARTS.match(found.origin):
        return ending(found)
    if found.own_files:
        return f"it sees other files than this host: {ending(found)}"
    for what, link in (("program", "exe"), ("working directory", "cwd")):
        path = os.readlink(PROC / str(found.pid) / link)
        if path.endswith(GONE):
            return (
                f"its {what} {path.removesuffix(GONE)} is deleted, so that it can not be started again: {ending(found)}"
            )
    return ""


def _obstacle_of_command(found: FoundProcess, port: int) -> str:
    options = list(_options(found.command.words))
    for name, value in options:
        if len(name) > 3 and "--nnodes".startswith(name) and value != "1":
            return f"it is one of {value} nodes, and the others would end with it: end all of them"
        path = value.rpartition("=")[2] if name.startswith("--lora") else value
        if READ.fullmatch(name) and path.startswith("/") and _is_missing(f"{PROC}/{found.pid}/root{path}"):
            return f"its {name} {path} is not there any more, so that it can not be started again: {ending(found)}"
    ports = [value for name, value in options if len(name) > 3 and "--port".startswith(name)]
    own = ports[-1] if ports else "30000"
    if own != str(port) and (ports or not any(name == "--config" for name, _value in options)):
        return f"it listens there beside its own port {own}: choose another port"
    return ""


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each value in a command line with the option that it is of."""
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, word = word.partition("=")
            if not equals:
                continue
        yield name, word


def _copied(pid: int, descriptor: int) -> int:
    """Return a copy of what a process has open to write to, -1 where there is none."""
    libc = ctypes.CDLL(None)
    process = libc.syscall(PIDFD_OPEN, pid, 0)
    if process < 0:
        return -1
    copy: int = libc.syscall(PIDFD_GETFD, process, descriptor, 0)
    os.close(process)
    if copy >= 0 and fcntl.fcntl(copy, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        os.close(copy)
        return -1
    return copy


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # it has ended
        return False


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # not for root, say
        pass
    return False


def _obstacle_of_unit(found: FoundProcess) -> str:
    unit = found.origin[len("unit ") :]
    if not systemd.is_here():
        return ending(found)
    shown = _shown(unit)
    if shown["MainPID"] != str(found.pid):
        return f"it is not the main process of {unit}, which may run other things: {ending(found)}"
    if shown["UnitFileState"] not in UNIT_STATES or shown["Transient"] == "yes":
        return f"{unit} may not be there any more when it was stopped: {ending(found)}"
    if shown["TriggeredBy"]:
        return f"{shown['TriggeredBy']} starts {unit} again: {ending(found)}"
    others = [one for name in TOGETHER for one in shown[name].split() if not one.endswith(".target")]
    return f"{others[0]} is stopped or started together with {unit}: {ending(found)}" if others else ""


def _old(found: FoundProcess, instance: str, port: int, drain: int, label: str) -> OldServer:
    folder, pid = PROC / str(found.pid), found.pid
    argv = (folder / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    environment: dict[str, str] = {}
    for entry in (folder / "environ").read_bytes().split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if name and equals:
            environment.setdefault(name, value)  # getenv() takes the first
    status = (folder / "status").read_text(errors="replace")
    umask = re.search(r"^Umask:\t(\d+)$", status, re.MULTILINE)
    unit = found.origin[len("unit ") :] if found.origin.startswith("unit ") else ""
    old = OldServer(
        instance=instance, port=port, drain=drain, label=label, boot=guard.boot(), pid=pid, started=str(found.started),
        family={str(one): guard.born(one) for one in found.family if guard.born(one)},
        unit=unit, enabled=bool(unit) and _shown(unit)["UnitFileState"] == "enabled",
        program=os.readlink(folder / "exe"), argv=list(map(os.fsdecode, argv)), environment=environment,
        folder=os.readlink(folder / "cwd"), user=(found.user.uid, found.user.gid, list(found.user.groups)),
        umask=int(umask[1], 8) if umask else 0o022, limits=[(one, *resource.prlimit(pid, one)) for one in LIMITS],
        processors=sorted(os.sched_getaffinity(pid)), nice=os.getpriority(os.PRIO_PROCESS, pid),
        logs=(os.readlink(folder / "fd/1"), os.readlink(folder / "fd/2")),
        health=next(filter(_is_well, _addresses(found, port)), ""),
    )  # fmt: skip
    # what was read is of one process
    if started_at(pid) != found.started:
        raise OSError(3, "it has ended meanwhile")
    return old


def _addresses(found: FoundProcess, port: int) -> Iterator[str]:
    for address, other in found.listens:
        if other == port:
            yield from (f"{local_url(address, port, tls)}/health" for tls in (False, True))


def _is_well(url: str) -> bool:
    try:
        with loopback.opener().open(url, timeout=WAIT) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def _as(uid: int, gid: int, groups: list[int]) -> Iterator[None]:
    """Have the rights of a user."""
    own = os.geteuid(), os.getegid(), os.getgroups()
    try:
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(own[0])
        os.setegid(own[1])
        os.setgroups(own[2])


def _shown(unit: str) -> dict[str, str]:
    names = ("MainPID", "ActiveState", "UnitFileState", "Transient", "TriggeredBy", *TOGETHER)
    shown = dict(
        line.partition("=")[::2] for line in _systemctl("show", unit, f"--property={','.join(names)}").split("\n")
    )
    return {name: shown.get(name, "") for name in names}


def _systemctl(*words: str, timeout: float | None = None) -> str:
    done = run(["systemctl", *words], timeout=timeout)
    if done.returncode != 0:
        raise Refused(f"systemctl {' '.join(words)} failed: {' | '.join(last_lines(done.stderr, 3))}")
    return done.stdout
