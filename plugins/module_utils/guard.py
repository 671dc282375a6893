# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run by supervisord for one SGLang server, by the release's own interpreter: what systemd does by its unit.

    guard.py UNIT STATE

Starts the server, keeps its log, starts it again where that may help, and ends when nothing of it is left: it is the
reaper of all its descendants. UNIT says what is to run, STATE has what became of it, in systemd's words; who holds the
lock on STATE is the guard of the instance. A guard that finds another one at work waits for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import resource
import secrets
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

SUBREAPER, NO_NEW_PRIVILEGES, PARENT_DEATH = 36, 38, 1  # prctl(2)
CLEAN = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)  # systemd.service(5): no failure
SIZE = 4096  # bytes of STATE, which is written in place: a full disk does not hold it up
LINE = 1 << 16  # bytes after which a line of the log is cut
LOG = 1 << 25  # bytes of a log after which another one begins; one older is kept
PAUSE = 0.05  # s
FINAL = ("inactive", "failed")
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')


def parse(text: str) -> dict[str, list[list[str]]]:
    """Return key -> the words of each of its lines in a unit; a line that begins with a blank goes on with the last."""
    found: dict[str, list[list[str]]] = {}
    last: list[str] = []
    for line in text.split("\n"):
        words = [json.loads(word) if word.startswith('"') else word for word in WORD.findall(line)]
        if line.startswith(" "):
            last += words
        elif words and not line.startswith("#"):
            key, *last = words
            found.setdefault(key, []).append(last)
    return found


def variables_of(content: str) -> dict[str, str]:
    """Return the variables of a file of secrets, as systemd reads it; interface.environment_file() writes it."""
    found = re.findall(r'^(\w+)="((?:[^"\\]|\\.)*)"$', content, re.MULTILINE | re.DOTALL)
    return {name: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for name, value in found}


def read_state(path: Path) -> dict[str, str]:
    """Return what a guard has written of itself; empty where none was."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def boot() -> str:
    """Return what tells this boot of the machine, or of the container that it is, from others: numbers begin anew."""
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{kernel} {born(1)} {os.stat('/proc/self/ns/pid').st_ino}"


def stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on (proc(5)), [] when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def born(pid: int) -> str:
    """Return what tells a process from a later one with its number; '' when it has ended."""
    fields = stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def written(state: Mapping[str, str]) -> bytes:
    """Return the content of STATE that read_state() gives back."""
    return "".join(f"{name}={value}\n" for name, value in state.items()).encode().ljust(SIZE - 1) + b"\n"


def guard_of(state: Mapping[str, str]) -> int:
    """Return the process of the guard that a state is of, 0 when it has ended."""
    pid = int(state.get("GuardPID") or 0)
    return pid if pid and state.get("Boot") == boot() and born(pid) == state.get("GuardBorn") else 0


def everything() -> dict[int, list[str]]:
    """Return number -> fields of all processes that are there, also of those that nobody has waited for."""
    found = {pid: stat(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    return {pid: fields for pid, fields in found.items() if fields}


def descendants(parent: int, there: Mapping[int, list[str]]) -> set[int]:
    """Return the children of a process and all below them."""
    family: set[int] = set()
    generation = {parent}
    while generation:
        generation = {pid for pid, fields in there.items() if int(fields[1]) in generation} - family
        family |= generation
    return family


def launch_in(pid: int) -> str:
    """Return the launch that a process says in its environment that it is of."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"SGLANG_LAUNCH_ID="):
                return variable.partition(b"=")[2].decode(errors="replace")
    return ""


def leftovers(launches: Collection[str], state: Mapping[str, str], there: Mapping[int, list[str]]) -> set[int]:
    """Return what is alive of an instance whose guard was killed: by the launch in the environment, which a process may
    overwrite to have another title, or by the session of the main process and its user.
    """
    main = state.get("MainPID") or "0"
    leader = there.get(int(main))
    ours = main != "0" and state.get("Boot") == boot() and (not leader or leader[19] == state.get("MainBorn"))
    found = set()
    for pid, fields in there.items():
        with contextlib.suppress(OSError):
            in_session = ours and fields[3] == main and str(os.stat(f"/proc/{pid}").st_uid) == state.get("MainUser")
            if fields[0] not in "ZX" and (in_session or launch_in(pid) in launches):
                found.add(pid)
    return found


class Log:
    """The log of one launch: '[MONOTONIC INVOCATION] line'. What a full disk does not take is counted and left out."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, -1
        self.rest, self.lost, self.torn = b"", 0, False
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            new = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if self.file >= 0:
                os.close(self.file)
            self.file = new

    def feed(self, data: bytes, invocation: str) -> None:
        """Write the lines that are complete; b'' completes the last one."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if self.rest and (not data or len(self.rest) > LINE):
            lines, self.rest = [*lines, self.rest], b""
        if lines and not self._is_in_place():  # somebody has removed it
            self._open()
        for line in lines:
            self._write(line, invocation)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.file), os.stat(self.path))
        except OSError:
            return False

    def say(self, text: str) -> None:
        """Write a line of the guard's own."""
        self._write(text.encode(), "-")

    def _write(self, line: bytes, invocation: str) -> None:
        mark = f"[{time.monotonic():.6f} "
        entry = b"\n" if self.torn else b""
        if self.lost:
            entry += f"{mark}-] guard: {self.lost} lines were lost: the disk did not take them\n".encode()
        entry += f"{mark}{invocation}] ".encode() + line + b"\n"
        try:
            written = os.write(self.file, entry)
            if written == len(entry):
                self.lost, self.torn = 0, False
                if os.fstat(self.file).st_size > LOG:
                    self.path.replace(f"{self.path}.1")
                    self._open()
                return
            self.torn = True
        except OSError:
            pass
        self.lost += 1


class Guard:
    """One server and all that it has started."""

    def __init__(self, unit: Path, state: Path) -> None:
        self.source, self.unit = unit, parse(unit.read_text(encoding="utf-8"))
        self.launches = Path(self._one("folder")).parent
        self.path, self.file = state, os.open(state, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.state: dict[str, str] = {}
        self.stopping, self.main, self.status, self.invocation = False, 0, 0, "-"
        self.wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _one(self, key: str) -> str:
        return self.unit[key][0][0]

    def tell(self, **changed: object) -> None:
        """Write down what has changed."""
        self.state.update({name: str(value) for name, value in changed.items()})
        with contextlib.suppress(OSError):  # the server goes on
            os.pwrite(self.file, written(self.state), 0)

    def run(self) -> int:
        """Guard the server until its end, and return its exit status."""
        before = self._take_over()
        if before.get("ActiveState") in FINAL and before.pop("Waited", ""):
            return int(before.get("Status") or 0)
        self.log = Log(Path(self._one("folder"), "log"))
        self.output, self.input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.output, False)
        libc = ctypes.CDLL(None, use_errno=True)
        for option in (SUBREAPER, NO_NEW_PRIVILEGES):
            if libc.prctl(option, 1, 0, 0, 0):
                raise OSError(ctypes.get_errno(), f"prctl {option}")
        self._limits()
        parent = f"{os.getppid()} {born(os.getppid())}"
        # one that was killed goes on counting; a machine or a supervisord that was started anew begins anew
        again = before.get("ActiveState") not in (None, *FINAL) and before.get("Parent") == parent
        starts = [float(one) for one in before.get("Starts", "").split()] if again else []
        # by them alone the next guard knows what is left, should this one be killed before that is gone
        known = ("MainPID", "MainBorn", "MainUser")
        last = {name: before.get(name, "") for name in known} if before.get("Boot") == boot() else {}
        self.tell(
            ActiveState="activating", SubState="start-pre", Result="success", **last, Starts=" ".join(map(str, starts)),
            InvocationID="", Began=0, ExitStatus="", Status=0, NRestarts=before.get("NRestarts", 0) if again else 0,
            Launch=self._one("launch"), Parent=parent, GuardPID=os.getpid(), GuardBorn=born(os.getpid()), Boot=boot(),
        )  # fmt: skip
        self._end(lambda there: leftovers([path.name for path in self.launches.iterdir()], before, there))
        self.tell(MainPID=0, MainBorn="", MainUser="")
        if again:
            self.log.say("guard: an earlier guard was killed, and what it guarded")
        restart = again
        while not self.stopping:
            most, within = map(float, self.unit["starts-at-most"][0])
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            starts = [one for one in starts if one > now - within]
            if len(starts) >= most:
                self.tell(ActiveState="failed", SubState="failed", Result="start-limit-hit", Starts="")
                return int(self.state["Status"])
            if restart and not self._pause(float(self._one("restart-after"))):
                break
            starts.append(time.clock_gettime(time.CLOCK_BOOTTIME))
            self.tell(Starts=" ".join(map(str, starts)), NRestarts=int(self.state["NRestarts"]) + restart)
            restart = True
            self._serve(libc)
            if not self._restarts():
                return int(self.state["Status"])
        self.tell(ActiveState="inactive", SubState="dead", Result="success", Starts="")
        return 0

    def _take_over(self) -> dict[str, str]:
        """Wait for the lock, and return what the guard before has left; 'Waited' is in it where one was at work."""
        waited = asked = False
        while True:
            before = read_state(self.path)
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return {**read_state(self.path), **({"Waited": "yes"} if waited else {})}
            except BlockingIOError:
                waited = waited or bool(guard_of(before))  # else it is held to be written, or the guard has just begun
            if self.stopping and not asked and guard_of(before):
                asked = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(guard_of(before), signal.SIGTERM)
            time.sleep(PAUSE)

    def _limits(self) -> None:
        for limit, wanted in ((resource.RLIMIT_NOFILE, 1048576), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)):
            try:
                resource.setrlimit(limit, (wanted, wanted))
            except (OSError, ValueError):  # without the capability as much as is allowed
                hard = resource.getrlimit(limit)[1]
                resource.setrlimit(limit, (hard, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    def _pause(self, seconds: float) -> bool:
        self.tell(ActiveState="activating", SubState="auto-restart", MainPID=0)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.stopping:
            self._wait(min(1, seconds))
        return not self.stopping

    def _serve(self, libc: ctypes.CDLL) -> None:
        """Start the server, and return when nothing of it is left; `status` is that of its end (wait(2))."""
        self.invocation, self.main = secrets.token_hex(8), 0
        try:
            self.main = self._spawn(libc)
        except KeyError:
            self.status = 217 << 8
        except subprocess.SubprocessError:
            self.status = 200 << 8
        except OSError as error:
            self.log.say(f"guard: the server can not be run: {error}")
            self.status = 203 << 8
        killed_at = float("inf")
        while self.main:
            if self.stopping and self.state["ActiveState"] == "active":
                self.tell(ActiveState="deactivating", SubState="stop-sigterm")
                os.kill(self.main, signal.SIGTERM)  # to it alone: SGLang finishes its requests
                killed_at = time.monotonic() + self._patience()
            if time.monotonic() > killed_at:
                break
            self._wait(1)
        self._end(lambda there: descendants(os.getpid(), there))
        self._wait(0)
        self.log.feed(b"", self.invocation)

    def _patience(self) -> float:
        """Return the s that the server has to end; the unit in place may be that of the next launch, which has less."""
        limits = [self._one("kill-after")]
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            limits.append(parse(self.source.read_text(encoding="utf-8"))["kill-after"][0][0])
        return min(map(float, limits))

    def _spawn(self, libc: ctypes.CDLL) -> int:
        user, home, guard = pwd.getpwnam(self._one("user")), self._one("home"), os.getpid()
        environment = {
            "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell, "LANG": "C.UTF-8",
            "INVOCATION_ID": self.invocation, **dict(self.unit["variable"]),
        }  # fmt: skip
        for (path,) in self.unit.get("secrets", ()):
            environment.update(variables_of(Path(path).read_bytes().decode()))

        def last() -> None:
            os.chdir(home)
            libc.prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)

        own: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid}
        own["extra_groups"] = os.getgrouplist(user.pw_name, user.pw_gid)

        def begin(argv: list[str], **more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv, env={**environment, **more}, stdin=subprocess.DEVNULL, stdout=self.input, stderr=self.input,
                start_new_session=True, umask=0o077, preexec_fn=last, **own,
            )  # fmt: skip

        server = begin(self.unit["start"][0])
        server.returncode = 0  # it is waited for here
        self.tell(
            ActiveState="active", SubState="running", InvocationID=self.invocation, Began=time.monotonic(),
            MainPID=server.pid, MainBorn=born(server.pid), MainUser=user.pw_uid,
        )  # fmt: skip
        for argv in self.unit.get("watch", ()):
            with contextlib.suppress(OSError, subprocess.SubprocessError):  # without it the server goes on
                begin(argv, MAINPID=str(server.pid)).returncode = 0
        return server.pid

    def _wait(self, seconds: float) -> None:
        """Pass on what the server says and take note of what has ended, for at most `seconds`."""
        ready = select.select([self.output, self.wake], [], [], seconds)[0]
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 1024)
        if self.output in ready:
            with contextlib.suppress(BlockingIOError):
                for _turn in range(64):
                    self.log.feed(os.read(self.output, LINE), self.invocation)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self.main:
                    self.main, self.status = 0, status

    def _end(self, whom: Callable[[Mapping[int, list[str]]], set[int]]) -> None:
        """Kill until nothing is left."""
        while True:
            self._wait(0)
            left = whom(everything())
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(PAUSE)

    def _restarts(self) -> bool:
        """Write down how the server ended, and tell whether it is to be started again."""
        killed = os.WIFSIGNALED(self.status)
        number = os.WTERMSIG(self.status) if killed else os.WEXITSTATUS(self.status)
        how = "dumped" if killed and os.WCOREDUMP(self.status) else "killed" if killed else "exited"
        good = number in CLEAN if killed else number == 0
        again = not (good or self.stopping) and (killed or str(number) not in self.unit["restart-never"][0])
        failed = not (good or self.stopping)
        self.tell(
            MainPID=0, ExitStatus=f"{how} {number}", Status=128 + number if killed else number,
            Result="success" if not failed else "signal" if killed else "exit-code",
        )  # fmt: skip
        self.log.say(f"guard: the server has ended ({how} {number})")
        if not again:
            self.tell(
                ActiveState="failed" if failed else "inactive", SubState="failed" if failed else "dead", Starts=""
            )
        return again


def main() -> None:
    """Guard, and end as one that was killed where this fails beside a server: supervisord starts another one then."""
    guard = Guard(Path(sys.argv[1]), Path(sys.argv[2]))
    try:
        raise SystemExit(guard.run())
    except Exception:
        traceback.print_exc()
        if guard.main:
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
