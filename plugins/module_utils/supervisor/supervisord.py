# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""supervisord as the supervisor of an instance, where the first process of a host is not systemd.

    STATE/.supervisor/venv-VERSION/        supervisord itself
    STATE/.supervisor/supervisord.conf     its configuration, which includes conf.d/
    STATE/.supervisor/conf.d/NAME.conf     one program for each instance: its guard
    STATE/.supervisor/units/NAME.unit      what is to run: what the guard reads
    STATE/.supervisor/sglangctl            for the operator, and for the machine's start hook
    RUN/supervisord-ID/guards/NAME         what the guard says of it
    RUN/supervisord-ID/socket              where supervisord is asked

STATE may be a volume of a network that knows no sockets, hard links or locks; what ends with the machine is not there.
supervisord starts guards and starts one again that was killed. All else is the guard's: see module_utils/guard.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.client
import inspect
import json
import os
import re
import signal
import socket
import stat
import subprocess
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import guard, wheelhouse_files
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import (
    BARS,
    LAUNCH_LINE,
    NO_RESTART,
    RESTART_AFTER,
    START_FAILURES,
    STARTS,
    STARTS_WITHIN,
    STOPS,
    Identity,
    LogLine,
    by_option,
    launch_of,
    named_in,
    running_launch,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, Steps, make_venv

VERSION = "4.3.0"
RUN = Path("/run/gpuops-sglang")
BEGINS = 120  # s for supervisord, or for a guard until it has started the server
ENDS = 60  # s beyond a unit's own for a guard
MARK = "# gpuops.sglang"
TICK = 1 / os.sysconf("SC_CLK_TCK")  # s
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
LINE = re.compile(r"\[(\d+\.\d+) (\w+|-)\] (.*)", re.DOTALL)
BLOCK = 1 << 16  # bytes
# faults of its interface
BAD_NAME, ALREADY_STARTED, NOT_RUNNING = 10, 60, 70

CONFIGURATION = """\
; Written by gpuops.sglang; a change by hand is undone by the next deploy.
[unix_http_server]
file={run}/socket
chmod=0700

[supervisord]
logfile={folder}/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={run}/supervisord.pid
childlogdir={folder}
nocleanup=true
user=root

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{run}/socket

[include]
files={folder}/conf.d/*.conf
"""
# a guard's exit status is its server's and calls for nothing; one that was killed has none
PROGRAM = """\
; Written by gpuops.sglang; a change by hand is undone by the next deploy.
[program:{name}]
command={command}
autostart={autostart}
autorestart=unexpected
exitcodes={exitcodes}
startsecs=0
stopwaitsecs={wait}
redirect_stderr=true
stdout_logfile={folder}/{name}.out
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=1
"""
CONTROL = """\
#!/bin/sh
# Written by gpuops.sglang; a change by hand is undone by the next deploy.
# sglangctl boot: start supervisord, and by it the instances, unless it runs
# sglangctl log NAME: follow the log of an instance
# sglangctl disable NAME: stop an instance, and do not start it with the machine
# all else is supervisorctl's: status, start, stop, restart sglang-NAME
set -eu
folder={folder}
ctl="{venv}/bin/supervisorctl -c $folder/supervisord.conf"
case ${{1:-status}} in
    boot)
        if $ctl pid >/dev/null 2>&1; then exit 0; fi
        (umask 077; mkdir -p "{run}/guards")
        exec env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 {venv}/bin/supervisord -c "$folder/supervisord.conf" ;;
    log)
        launch=$(sed -n 's/^{mark}//p' "$folder/units/sglang-${{2:?name of an instance}}.unit")
        exec tail -n 100 -F "{state}/$2/launches/$launch/log" ;;
    disable)
        sed -i 's/^autostart=true$/autostart=false/' "$folder/conf.d/sglang-${{2:?name of an instance}}.conf"
        exec $ctl stop "sglang-$2" ;;
    *) exec $ctl "${{@:-status}}" ;;
esac
"""


class Supervisord:
    """supervisord whose files are below the directory `state` of the instances."""

    NAME = "supervisord"
    HIDDEN = ()

    def __init__(self, state: Path) -> None:
        self.state, self.folder = state, state / ".supervisor"
        # a socket's path is short
        self.run = RUN / f"supervisord-{hashlib.sha256(os.fsencode(state)).hexdigest()[:12]}"
        self.socket = self.run / "socket"
        self.venv, self.configuration = self.folder / f"venv-{VERSION}", self.folder / "supervisord.conf"

    def unit_name(self, instance: str) -> str:
        """Return the program of an instance."""
        return f"sglang-{instance}"

    def unit_path(self, instance: str) -> Path:
        """Return what the guard of an instance reads."""
        return self.folder / "units" / f"sglang-{instance}.unit"

    def unit_text(
        self, instance: str, launch: str, argv: Sequence[str], environment: Mapping[str, str], secret_env: str | None,
        user: str, home: str, watch: Sequence[str], drain: int,
    ) -> str:  # fmt: skip
        """Return the unit of one launch: a key on each line and its words, in quotes as in JSON where it needs them."""
        folder = Path(watch[2]).parent
        variables = {"SGLANG_LAUNCH_ID": launch, **BARS, **environment}
        lines: list[Sequence[str]] = [
            ["launch", launch], ["user", user], ["home", home], ["folder", str(folder)],
            ["kill-after", str(drain + STOPS)], ["restart-after", str(RESTART_AFTER)],
            ["restart-never", *map(str, NO_RESTART)], ["starts-at-most", str(STARTS), str(STARTS_WITHIN * 3600)],
            *(["variable", name, variables[name]] for name in sorted(variables)),
            *([["secrets", secret_env]] if secret_env else []),
            ["guard", *watch[:2], str(folder / "guard.py")], ["watch", *watch],
        ]  # fmt: skip
        first, *more = by_option(argv)
        text = "".join(f"{_words(line)}\n" for line in [*lines, ["start", *first]])
        text += "".join(f"    {_words(line)}\n" for line in more)
        return (
            f"# Written by gpuops.sglang; a change by hand is undone by the next deploy.\n{LAUNCH_LINE}{launch}\n{text}"
        )

    def programs(self) -> Mapping[str, str]:
        """Return the guard."""
        return {"guard.py": _guard()}

    def read_unit(self, instance: str) -> str:
        """Return the installed unit of an instance; empty when there is none."""
        return _text(self.unit_path(instance))

    def installed_instances(self) -> list[str]:
        """Return the names of all instances that have a unit of ours on this host."""
        names = [unit.stem[len("sglang-") :] for unit in sorted((self.folder / "units").glob("sglang-*.unit"))]
        return [name for name in names if launch_of(self.read_unit(name))]

    def instance_in(self, cgroups: Sequence[str]) -> str | None:
        """Return the instance whose processes are in one of these groups, or None."""
        return next((name for name in named_in(cgroups) if launch_of(self.read_unit(name))), None)

    def install(self, instance: str, text: str) -> None:
        """Put the unit in place and enable it; what runs goes on."""
        for folder in ("conf.d", "units"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        write_whole(self.unit_path(instance), text)
        self.enable(instance)

    def remove(self, instance: str) -> None:
        """Take the unit of a stopped instance away."""
        for path in (self._program(instance), self.unit_path(instance), self._guard(instance)):
            path.unlink(missing_ok=True)
        if self.runs():
            self._reload(instance)

    def enable(self, instance: str) -> None:
        """Start the instance when supervisord starts, and supervisord when the machine does."""
        self._enable(instance, True)
        self._hook()

    def disable(self, instance: str) -> None:
        """Do not start the instance when supervisord starts."""
        self._enable(instance, False)

    def stop(self, instance: str) -> None:
        """Stop the guard, which stops the server; what an earlier guard has left is killed."""
        if self.runs():
            self._call("stopProcess", self.unit_name(instance), False, but=(BAD_NAME, NOT_RUNNING))
        state = self._said(instance)
        pid = guard.guard_of(state)
        if pid:  # it may be that of an earlier supervisord
            _kill(pid, signal.SIGTERM)
        wait = float(self._unit(instance).get("kill-after", [["0"]])[0][0]) + ENDS
        _until(lambda: not guard.guard_of(self._said(instance)) and not self._is_up(instance), wait)
        end = time.monotonic() + ENDS
        while time.monotonic() < end:
            # a guard that has not ended by now hangs; it goes last, since it alone knows some of what is below it
            left = [*self.members(instance), *filter(None, [guard.guard_of(self._said(instance))])]
            if not left:
                if self.identity(instance).active == "failed":  # an earlier crash: systemd's reset-failed
                    self._forget(instance)
                return
            for pid in left:
                _kill(pid, signal.SIGKILL)
            time.sleep(guard.PAUSE)

    def start(self, instance: str) -> None:
        """Start supervisord where it does not run, and the guard; raises Refused when the server can not be run."""
        name, launch = self.unit_name(instance), launch_of(self.read_unit(instance))
        self._forget(instance)
        self.begin()
        self._reload(instance)
        self._call("startProcess", name, False, but=(ALREADY_STARTED,))

        def begun() -> bool:
            said = self._said(instance)
            return said.get("Launch") == launch and said.get("SubState") != "start-pre"

        told = _until(lambda: begun() or not self._is_up(instance), BEGINS)
        identity = self.identity(instance)
        number = identity.exit_status.rpartition(" ")[2]
        if told and begun() and not (number in START_FAILURES and identity.exit_status.startswith("exited")):
            return
        why = START_FAILURES.get(number, "its guard does not start it")
        said = last_lines(_text(self.folder / f"{name}.out"), 3) if not begun() else []
        said += [line.text for line in self.log_of(launch or "", 3) if begun()]
        raise Refused(f"{name} does not start ({identity.exit_status or identity.sub}): {why}. {' | '.join(said)}")

    def _forget(self, instance: str) -> None:
        """Have the next guard count from the beginning: limits of a crash loop do not hold a new launch back.

        In place, since who holds the lock on this file is the guard; one that is at work goes on.
        """
        with contextlib.suppress(OSError), self._guard(instance).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = ("MainPID", "MainBorn", "MainUser", "Boot")  # by which it knows what is left
            said = {name: value for name, value in self._said(instance).items() if name in kept}
            os.pwrite(file.fileno(), guard.written({"ActiveState": "inactive", "SubState": "dead", **said}), 0)

    def identity(self, instance: str) -> Identity:
        """Return what the guard has written of an instance's server."""
        said = self._said(instance)
        if said and not guard.guard_of(said) and said["ActiveState"] not in guard.FINAL:
            said.update(ActiveState="failed", SubState="failed", Result="guard-killed", MainPID="0", InvocationID="")
        return Identity(
            active=said.get("ActiveState", "inactive"),
            sub=said.get("SubState", "dead"),
            result=said.get("Result", "success"),
            # else it is that of a server before, which is not gone for sure
            main_pid=int(said.get("MainPID") or 0) if said.get("ActiveState") in ("active", "deactivating") else 0,
            invocation=said.get("InvocationID", ""),
            cgroup=_group(instance) if self.read_unit(instance) else "",
            enabled="\nautostart=true\n" in _text(self._program(instance)) and self._hook_is_there(),
            restarts=int(said.get("NRestarts") or 0),
            exit_status=said.get("ExitStatus", ""),
            shown=said,
        )

    def began(self, identity: Identity) -> float:
        """Return when the main process was started, in s of the monotonic clock."""
        return float(identity.shown.get("Began") or 0)

    def computed(self, identity: Identity) -> float:
        """Return the s of CPU that the processes have had so far, with those that they have seen end."""
        name = next(iter(named_in([identity.cgroup])), "")
        fields = [guard.stat(pid) for pid in self.members(name)] if name else []
        return TICK * sum(sum(map(int, one[11:15])) for one in fields if one)

    def drop_ins(self, identity: Identity) -> list[str]:
        """There are none."""
        return []

    def into_scope(self, name: str, pid: int) -> None:
        """A process that has left its session is nobody's here."""

    def running_launch(self, main_pid: int) -> str | None:
        """Return the launch id in the environment of the running process, or None."""
        return running_launch(main_pid)

    def log_of(self, launch: str, count: int, invocation: str = "") -> list[LogLine]:
        """Return the last `count` lines of a launch's log, or of one run of its service, and no others."""
        if not launch:
            return []
        path = self._log(launch)
        lines = _tail(path, count)
        if len(lines) < count:
            lines = _tail(Path(f"{path}.1"), count - len(lines)) + lines
        found = [LINE.fullmatch(line) for line in lines]
        told = [LogLine(float(one[1]), one[3], "" if one[2] == "-" else one[2]) for one in found if one]
        return [line for line in told if line.text.strip() and invocation in ("", line.invocation)]

    def log_place(self, launch: str) -> str:
        """Return the file that is the log of a launch."""
        return str(self._log(launch))

    def log_command(self, instance: str) -> str:
        """Return the command by which an operator sees the log of an instance."""
        return f"{self.folder}/sglangctl log {instance}"

    def end_command(self, instance: str) -> str:
        """Return the command by which an operator ends an instance for good."""
        return f"{self.folder}/sglangctl disable {instance}"

    def described(self, instance: str) -> Sequence[str]:
        """Return the command that shows what the guard says of an instance."""
        return ["cat", str(self._guard(instance))]

    # groups: what control groups tell elsewhere

    def groups_of(self, pid: int) -> list[str]:
        """Return the group that a process is in: of the instance whose guard is above it, or whose launch it names."""
        states = {name: self._said(name) for name in self.installed_instances()}
        guards = {guard.guard_of(said): name for name, said in states.items()}
        above, name = pid, ""
        while above > 1 and not name:
            fields = guard.stat(above)
            above = int(fields[1]) if fields else 0
            name = guards.get(above, "") if above else ""
        launch = "" if name else guard.launch_in(pid)
        if re.fullmatch(r"[\w-]+", launch):
            name = next((path.parents[1].name for path in self.state.glob(f"*/launches/{launch}")), "")
        for orphaned, said in () if name else states.items():
            there = {one: guard.stat(one) for one in (pid, int(said.get("MainPID") or 0))}
            if pid in guard.leftovers((), said, {one: fields for one, fields in there.items() if fields}):
                name = orphaned
        return [_group(name)] if name else []

    def in_group(self, group: str) -> list[int]:
        """Return the processes in a group."""
        return sorted(pid for name in named_in([group]) for pid in self.members(name))

    def members(self, instance: str) -> set[int]:
        """Return the processes of an instance: what is below its guard, and what was left by one that was killed."""
        there, said = guard.everything(), self._said(instance)
        pid = guard.guard_of(said)
        left = guard.leftovers([path.name for path in (self.state / instance / "launches").glob("*")], said, there)
        return (guard.descendants(pid, there) if pid else set()) | left

    # supervisord itself

    def set_up(self, how: Mapping[str, Any], change: bool) -> list[str]:
        """Bring supervisord and what starts it into place, where something lacks; return what did.

        `how` has python and environment (of the installation), release, and wheelhouse, start_hook and control, which
        may be empty.
        """
        hook, control = how["start_hook"] or "", how["control"] or ""
        for path in filter(None, (str(self.state), how["release"], hook)):
            _refuse_others(Path(path))
        script = CONTROL.format(folder=self.folder, run=self.run, state=self.state, venv=self.venv, mark=LAUNCH_LINE)
        files = {
            self.configuration: (CONFIGURATION.format(folder=self.folder, run=self.run), 0o644),
            self.folder / "hook": (hook, 0o644),
        }
        files |= {Path(path): (script, 0o755) for path in (self.folder / "sglangctl", control) if path}
        lacking = [] if self._is_installed() else [f"supervisord {VERSION} is not installed"]
        if lacking and change:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._install(how)
        for path, (text, mode) in files.items():
            if _text(path) != text:
                lacking.append(f"{path} differs")
                if change:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(path, text, mode)
        if hook and not self._hook_is_there():
            lacking.append(f"{hook} does not start supervisord")
        if not self.runs():
            lacking.append("supervisord does not run")
        if change and lacking:
            (self.folder / "conf.d").mkdir(exist_ok=True)
            self._hook()
            self.begin()
        return lacking

    def _install(self, how: Mapping[str, Any]) -> None:
        steps = Steps("supervisord", self.folder, {**CLEAN, **how["environment"]})
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            options: list[str] = []
            if how["wheelhouse"]:
                folder = wheelhouse_files.folder(steps.label, Path(how["wheelhouse"]), Path(place), "supervisor")
                options = ["--no-index", "--find-links", str(folder)]
            make_venv(steps, self.venv, how["python"], f"supervisor=={VERSION}", options)

    def _is_installed(self) -> bool:
        if not any(self.venv.glob(f"lib/python3*/site-packages/supervisor-{VERSION}.dist-info")):
            return False
        if self.runs():
            return True
        try:
            return run([str(self.venv / "bin/supervisord"), "--version"]).stdout.strip() == VERSION
        except OSError:
            return False

    def runs(self) -> bool:
        """Tell whether supervisord answers."""
        try:
            _ask(self.socket, "getSupervisorVersion")
        except (OSError, http.client.HTTPException):
            return False
        except xmlrpc.client.Error as error:
            raise Refused(
                f"supervisord at {self.socket} ends or fails: {error}: wait for its end, then deploy again"
            ) from error
        return True

    def begin(self) -> None:
        """Start supervisord, which leaves this process and its session, unless it runs."""
        if self.runs():
            return
        program = str(self.venv / "bin/supervisord")
        with writing_below(RUN):
            for folder in (RUN, self.run, self.run / "guards"):
                folder.mkdir(mode=0o700, exist_ok=True)
        try:
            done = run([program, "-c", str(self.configuration)], CLEAN, timeout=BEGINS)
        except OSError as error:
            raise Refused(f"supervisord can not be run: {program}: {error.strerror}: deploy again") from error
        except subprocess.TimeoutExpired as error:
            raise Refused(
                f"supervisord does not start within {BEGINS} s: see {self.folder}/supervisord.log, then deploy again"
            ) from error
        if done.returncode != 0 or not _until(self.runs, BEGINS):
            said = " | ".join(last_lines(done.stderr or done.stdout or _text(self.folder / "supervisord.log"), 3))
            raise Refused(f"supervisord does not start: {said}")

    def _reload(self, instance: str) -> None:
        """Let supervisord know the program of a stopped instance as it is now."""
        name = self.unit_name(instance)
        added, changed, removed = self._call("reloadConfig")[0]
        if name in {*changed, *removed}:
            self._call("removeProcessGroup", name)
        if name in {*added, *changed}:
            self._call("addProcessGroup", name)

    def _is_up(self, instance: str) -> bool:
        try:
            info = _ask(self.socket, "getProcessInfo", self.unit_name(instance))
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return False
        return bool(info["statename"] in ("STARTING", "RUNNING", "STOPPING", "BACKOFF"))

    def _call(self, method: str, *words: Any, but: Sequence[int] = ()) -> Any:
        """Ask supervisord; the faults in `but` are no matter."""
        try:
            return _ask(self.socket, method, *words)
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise Refused(f"supervisord does not answer at {self.socket}: {error}: deploy again") from error
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in but:
                return None
            raise Refused(f"supervisord: {method} {' '.join(map(str, words))}: {fault.faultString}") from fault

    def _enable(self, instance: str, start: bool) -> None:
        unit = self._unit(instance)
        text = PROGRAM.format(
            name=self.unit_name(instance),
            command=_words([*unit["guard"][0], str(self.unit_path(instance)), str(self._guard(instance))]),
            autostart=str(start).lower(),
            exitcodes=",".join(map(str, range(256))),
            wait=int(unit["kill-after"][0][0]) + ENDS // 2,
            folder=self.folder,
        )
        write_whole(self._program(instance), text)

    def _unit(self, instance: str) -> dict[str, list[list[str]]]:
        return guard.parse(self.read_unit(instance))

    def _said(self, instance: str) -> dict[str, str]:
        return guard.read_state(self._guard(instance))

    def _program(self, instance: str) -> Path:
        return self.folder / "conf.d" / f"sglang-{instance}.conf"

    def _guard(self, instance: str) -> Path:
        return self.run / "guards" / f"sglang-{instance}"

    def _log(self, launch: str) -> Path:
        return next(self.state.glob(f"*/launches/{launch}/"), self.state / launch) / "log"

    # the machine's start

    def _hook(self) -> None:
        """Have the machine's own start script start supervisord, first of all, since such scripts may not end."""
        if self._hook_is_there():
            return
        path = Path(_text(self.folder / "hook").strip())
        mode, owner = 0o755, (0, 0)
        try:
            text, present = path.read_bytes(), path.stat()
            mode, owner = present.st_mode & 0o7777, (present.st_uid, present.st_gid)
        except FileNotFoundError:
            text = b""
        except OSError as error:
            raise Refused(f"the start hook {path} can not be read: {error.strerror}: put that right first") from error
        # as bytes: it is the operator's, in whatever encoding
        lines = [line for line in (text or b"#!/bin/sh\n").split(b"\n") if not line.endswith(MARK.encode())]
        place = int(b"".join(lines[:1]).startswith(b"#!"))
        lines.insert(place, f"{self.folder}/sglangctl boot || true  {MARK}".encode())
        write_whole(path.resolve(), b"\n".join(lines if lines[place + 1 :] else [*lines, b""]), mode, owner)

    def _hook_is_there(self) -> bool:
        path = _text(self.folder / "hook").strip()
        return not path or f"{self.folder}/sglangctl boot || true  {MARK}\n" in _text(Path(path))


@functools.cache
def _guard() -> str:
    return inspect.getsource(guard)


def _refuse_others(path: Path) -> None:
    """Raise Refused where another user than root could put something else in the place of what root runs there."""
    for place in sorted({path, *path.parents, path.resolve(), *path.resolve().parents}):
        try:
            found = place.lstat()
        except FileNotFoundError:
            continue
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        open_to_others = found.st_mode & 0o022 and not sticky and not stat.S_ISLNK(found.st_mode)
        if found.st_uid != 0 or open_to_others:
            step = f"chmod go-w {place}" if found.st_uid == 0 else f"chown root {place}"
            raise Refused(
                f"root runs what is below {place}, in which user {found.st_uid} or others (mode "
                f"{stat.S_IMODE(found.st_mode):o}) can put something else: '{step}', or another sglang_root"
            )


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _group(instance: str) -> str:
    return f"/gpuops/sglang-{instance}.service"


def _words(words: Sequence[str]) -> str:
    return " ".join(word if PLAIN.fullmatch(word) else json.dumps(word) for word in words)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(guard.PAUSE)
    return True


def _tail(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a file."""
    try:
        with path.open("rb") as file:
            place = file.seek(0, os.SEEK_END)
            data = b""
            while place and data.count(b"\n") <= count:
                step = min(BLOCK, place)
                place = file.seek(place - step)
                data = file.read(step) + data
    except OSError:
        return []
    lines = data.decode(errors="replace").split("\n")[:-1]
    return lines[-count:]


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=BEGINS)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(BEGINS)
        connection.sock.connect(str(self.path))
        return connection


def _ask(path: Path, method: str, *words: Any) -> Any:
    with xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=_Transport(path)) as proxy:
        return getattr(proxy.supervisor, method)(*words)
