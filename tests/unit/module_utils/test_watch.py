# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watcher as a program beside a server of two processes, one of which answers for the other, as SGLang's do."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import watch

WAIT = 30  # s
MANY = 6  # checks
QUICK = ("--interval", "0.05", "--timeout", "10")
SCHEDULER = """\
import os, signal, time

def spin(*_):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass

signal.signal(signal.SIGUSR1, spin)
os.write(1, b"ready")
while os.read(0, 1):
    os.write(1, b"answer")
"""
# writes when each check began and how it ended; any other path is the way it behaves from then on
SERVER = """\
import contextlib, http.server, os, resource, signal, subprocess, sys, time

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
log = open(sys.argv[1], "a", buffering=1)
scheduler = subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[2]], stdin=-1, stdout=-1, bufsize=0)
scheduler.stdout.read(5)
os.set_blocking(scheduler.stdout.fileno(), False)
mode = "/serve"

def answers():
    with contextlib.suppress(BrokenPipeError):
        scheduler.stdin.write(b"?")
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        if scheduler.stdout.read(99):
            return True
        time.sleep(0.01)
    return False

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global mode
        began = time.monotonic()
        if self.path == "/health":
            status = 0 if mode == "/reset" else 200 if mode == "/serve" and answers() else 503
            log.write(f"{began} {status}\\n")
        else:
            mode, status = self.path, 200
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        if mode == "/close":
            server.shutdown()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, scheduler.pid, flush=True)
server.serve_forever(0.05)
server.server_close()
signal.pause()
"""


def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Server:
    """A process that answers HTTP, and its scheduler."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "checks"
        self.log.touch()
        command = [sys.executable, "-IS", "-c", SERVER, str(self.log), SCHEDULER]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        port, scheduler = self.process.stdout.readline().split()
        self.url = f"http://127.0.0.1:{port}"
        self.scheduler = int(scheduler)

    def become(self, mode: str) -> None:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/{mode}", timeout=WAIT).close()

    def checks(self, status: str) -> list[float]:
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [float(began) for began, ended in rows if ended == status]

    def answer(self, status: str, count: int = MANY) -> None:
        aim = len(self.checks(status)) + count
        until(lambda: len(self.checks(status)) >= aim, f"{self.url} has not answered {status} {count} times")

    def end(self) -> None:
        if self.process.poll() is None:  # as long as it lives, the other's number is nobody else's
            os.kill(self.scheduler, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    yield started
    started.end()


@pytest.fixture
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{getattr(request, 'param', '')}{tmp_path}/notify")
        listener.settimeout(WAIT)
        yield listener


class Watcher:
    """Watches as from ExecStartPost=; its standard error stays open as long as it lives."""

    def __init__(self, server: Server, notify: socket.socket | str | None, *options: str) -> None:
        environment = {"MAINPID": str(server.process.pid), "http_proxy": "http://127.0.0.1:9"}
        if isinstance(notify, socket.socket):
            name = notify.getsockname()
            notify = "@" + name[1:].decode() if isinstance(name, bytes) else name
        if notify is not None:
            environment["NOTIFY_SOCKET"] = notify
        self.stderr, for_it = os.pipe()
        command = [sys.executable, "-I", watch.__file__, server.url, *QUICK, *options]
        done = subprocess.run(command, stdout=-1, stderr=for_it, env=environment, timeout=WAIT, check=True)
        os.close(for_it)
        assert done.stdout == b""
        self.said = ""

    def lines(self, count: int) -> list[str]:
        """Return all lines so far, once there are `count`."""
        until(lambda: self._read() and self.said.count("\n") >= count, f"no line {count} after {self.said!r}")
        return self.said.splitlines()

    def is_silent(self) -> bool:
        return self._read() and not self.said

    def has_ended(self) -> bool:
        until(lambda: not self._read(), "the watcher has not ended")
        os.close(self.stderr)
        return True

    def _read(self) -> bool:
        """Take what there is; False at its end."""
        while select.select([self.stderr], [], [], 0)[0]:
            piece = os.read(self.stderr, 65536).decode()
            self.said += piece
            if not piece:
                return False
        return True


def is_quiet(systemd: socket.socket) -> bool:
    return not select.select([systemd], [], [], 0)[0]


def test_a_healthy_server_is_left_alone(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd)
    server.answer("200")
    assert is_quiet(systemd)
    assert watcher.is_silent()


@pytest.mark.parametrize(
    ("blow", "systemd"),
    [(signal.SIGSTOP, ""), (signal.SIGKILL, ""), (signal.SIGSTOP, "\0")],
    ids=["stopped", "killed", "abstract socket"],
    indirect=["systemd"],
)
def test_a_dead_scheduler_is_a_hang_at_the_third_failure(
    server: Server, systemd: socket.socket, blow: signal.Signals
) -> None:
    watcher = Watcher(server, systemd, "--at-once", "0.05")
    server.answer("200", 2)
    os.kill(server.scheduler, blow)
    assert systemd.recv(99) == b"WATCHDOG=trigger"
    assert len(server.checks("503")) == 3
    first, verdict = watcher.lines(2)
    assert first.startswith("gpuops watch: /health fails: 503 after 0.")
    assert verdict.startswith("gpuops watch: the server hangs and is ended: ")
    time.sleep(0.3)  # of more checks, if there were any
    server.become("serve")  # it lives: ending it is systemd's part
    server.end()
    assert watcher.has_ended()
    assert is_quiet(systemd)
    assert len(server.checks("503")) == 3
    assert len(watcher.said.splitlines()) == 2


def test_a_scheduler_that_computes_is_waited_for_until_it_stops(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd, "--at-once", "0.05", "--failures", "5")
    server.answer("200", 2)
    os.kill(server.scheduler, signal.SIGUSR1)
    server.answer("503", 8)
    assert is_quiet(systemd)
    assert len(watcher.lines(1)) == 1
    os.kill(server.scheduler, signal.SIGSTOP)
    assert systemd.recv(99) == b"WATCHDOG=trigger"


def test_patience_with_a_scheduler_that_computes_ends(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd, "--at-once", "0.05", "--failures", "5", "--patience", "1.2")
    server.answer("200", 2)
    os.kill(server.scheduler, signal.SIGUSR1)
    assert systemd.recv(99) == b"WATCHDOG=trigger"
    assert time.monotonic() - server.checks("503")[0] > 0.9  # five failures take 0.5
    assert len(watcher.lines(2)) == 2


def test_a_recovery_starts_the_count_anew(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd, "--at-once", "0.05", "--failures", "12")
    server.answer("200", 2)
    os.kill(server.scheduler, signal.SIGSTOP)
    server.answer("503", 2)
    os.kill(server.scheduler, signal.SIGCONT)
    server.answer("200", 2)
    assert "answers again" in watcher.lines(2)[1]
    before = len(server.checks("503"))
    os.kill(server.scheduler, signal.SIGSTOP)
    assert systemd.recv(99) == b"WATCHDOG=trigger"
    assert len(server.checks("503")) == before + 12
    assert len(watcher.lines(4)) == 4


def test_a_server_that_drains_and_closes_is_left_alone(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd)
    server.answer("200", 2)
    server.become("drain")
    server.answer("503")
    server.become("reset")
    server.answer("0")
    assert is_quiet(systemd)
    assert watcher.is_silent()


def test_a_server_that_has_never_served_loads(server: Server, systemd: socket.socket) -> None:
    os.kill(server.scheduler, signal.SIGSTOP)
    watcher = Watcher(server, systemd, "--at-once", "0.05")
    server.answer("503")
    assert is_quiet(systemd)
    assert watcher.is_silent()
    os.kill(server.scheduler, signal.SIGCONT)
    server.answer("200", 2)
    os.kill(server.scheduler, signal.SIGSTOP)
    assert systemd.recv(99) == b"WATCHDOG=trigger"


@pytest.mark.parametrize(
    ("mode", "why"), [("close", "Connection refused"), ("reset", "Remote end closed connection without response")]
)
def test_a_process_that_takes_no_requests_hangs(server: Server, systemd: socket.socket, mode: str, why: str) -> None:
    watcher = Watcher(server, systemd)
    server.answer("200", 2)
    server.become(mode)
    assert systemd.recv(99) == b"WATCHDOG=trigger"
    assert f"({why})" in watcher.lines(2)[1]


@pytest.mark.parametrize("notify", [None, "/nonexistent/notify"])
def test_without_systemd_a_server_that_is_stuck_gets_the_signal_from_here(server: Server, notify: str | None) -> None:
    watcher = Watcher(server, notify, "--timeout", "0.3")
    server.answer("200", 3)
    server.process.send_signal(signal.SIGSTOP)
    assert server.process.wait(WAIT) == -signal.SIGABRT
    assert watcher.has_ended()
    assert watcher.said.splitlines()[0] == "gpuops watch: /health fails: no answer within 0.3 s"


def test_it_ends_with_the_server(server: Server, systemd: socket.socket) -> None:
    watcher = Watcher(server, systemd)
    server.answer("200", 2)
    server.process.kill()  # nobody has waited for it yet
    assert watcher.has_ended()
    assert watcher.said == ""
    assert is_quiet(systemd)


def test_a_later_process_of_the_same_number_is_another() -> None:
    pid = os.getpid()
    _, _, started = watch.process(pid)
    assert watch.lives(pid, started)
    assert not watch.lives(pid, started - 1)


def test_a_server_that_does_not_heed_its_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(watch, "ABORTS", 0.3)
    code = "import signal; signal.signal(6, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        watch.end(process.pid, watch.process(process.pid)[2])
        assert process.wait(WAIT) == -signal.SIGKILL


def test_there_is_nothing_to_watch_without_a_process(server: Server) -> None:
    server.end()
    watcher = Watcher(server, None)
    assert watcher.has_ended()
    assert watcher.said == ""


def test_the_process_must_be_named() -> None:
    command = [sys.executable, "-I", watch.__file__, "http://127.0.0.1:9"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2
    assert "MAINPID is not in the environment" in done.stderr
