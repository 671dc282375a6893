# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run beside one SGLang server by the release's own interpreter: have the supervisor restart it when it surely hangs.

Goes to the background at once and ends with the server, whose process is $MAINPID (ExecStartPost= of systemd sets it).
A hang is told to $NOTIFY_SOCKET as a watchdog failure; without that socket the server gets the SIGABRT from here.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import os
import signal
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

TICK = 1 / os.sysconf("SC_CLK_TCK")  # s
ABORTS = 30  # s that a server has for the end of its own
IDLE = 0.01  # of a core: processes that compute less do not work on a request


def process(pid: int) -> tuple[int, int, int]:
    """Return parent, CPU time and start of a process, or (0, 0, -1) when there is none or it has ended.

    Times are in ticks. That of children which it has seen end is its own too. The start, counted from the boot, tells
    it from a later process of the same number.
    """
    with contextlib.suppress(OSError):
        state, *numbers = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if state not in "ZX":
            return int(numbers[0]), sum(map(int, numbers[10:14])), int(numbers[18])
    return 0, 0, -1


def lives(pid: int, started: int) -> bool:
    """Tell whether the process that began at `started` has not ended."""
    return process(pid)[2] == started


def work_below(main: int) -> dict[tuple[int, int], int]:
    """Return number and start of each descendant -> its CPU ticks; this process does not count."""
    there = {pid: process(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()}
    family: set[int] = set()
    generation = {main}
    while generation:
        generation = {pid for pid, (parent, _cpu, _start) in there.items() if parent in generation} - family
        family |= generation
    return {(pid, there[pid][2]): there[pid][1] for pid in family}


def failure(options: argparse.Namespace) -> str | None:
    """Ask /health: '' when it answers 200, why when it fails, None for an answer that tells nothing.

    A server that loads or drains answers 503 at once; one whose scheduler does not answer, only after its time-out.
    """
    url, limit, began = options.url, options.timeout, time.monotonic()
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=limit)
    if url.scheme == "https":  # a certificate for the outer name says nothing of a loopback address
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=limit, context=context)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        except socket.timeout:
            return f"no answer within {limit:g} s"
        except (OSError, http.client.HTTPException) as error:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__
    took = time.monotonic() - began
    return f"503 after {took:.1f} s" if status == 503 and took > options.at_once else "" if status == 200 else None


def say(text: str) -> None:
    """Write one line to the log; a log that is gone stops nothing."""
    with contextlib.suppress(OSError):
        os.write(2, f"gpuops watch: {text}\n".encode())


def end(main: int, started: int) -> None:
    """Have the server ended and restarted."""
    with contextlib.suppress(KeyError, OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        address = os.environ["NOTIFY_SOCKET"]
        supervisor.sendto(b"WATCHDOG=trigger", "\0" + address[1:] if address.startswith("@") else address)
        return
    for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped process heeds the one when it goes on
        with contextlib.suppress(ProcessLookupError):
            os.kill(main, number)
    late = time.monotonic() + ABORTS
    while lives(main, started):
        if time.monotonic() > late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(main, signal.SIGKILL)
            return
        time.sleep(0.1)


def watch(main: int, started: int, options: argparse.Namespace) -> None:
    """Check the server until it ends; until its first 200 it loads, and nothing is judged."""
    served, first = False, 0.0
    # the last ones alone: schedulers may have worked before they hung
    failed: collections.deque[tuple[float, dict[tuple[int, int], int]]] = collections.deque(maxlen=options.failures)
    while lives(main, started):
        began = time.monotonic()
        why = failure(options)
        now = time.monotonic()
        if not why:
            if failed and why == "":
                say(f"/health answers again, {now - first:.0f} s after the first failed check")
            served = why == ""  # a server that drains does not come back
            failed.clear()
        elif served and lives(main, started):
            if not failed:
                first = began
                say(f"/health fails: {why}")
            failed.append((now, work_below(main)))
            since, before = failed[0]
            used = TICK * sum(max(0, cpu - before.get(one, 0)) for one, cpu in failed[-1][1].items())
            if len(failed) == options.failures and (used < IDLE * (now - since) or now - first >= options.patience):
                worked = f"its processes used {used:.2f} s of CPU in the last {now - since:.0f} s"
                say(f"the server hangs and is ended: /health fails for {now - first:.0f} s ({why}), {worked}")
                end(main, started)
                began = float("inf")  # no more checks
        # one that loads is asked more often, since it may hang soon after its first answer
        pause = options.interval if served else options.interval / 10
        while time.monotonic() < began + pause and lives(main, started):
            time.sleep(min(1, pause))


def main() -> None:
    """Go to the background and watch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", type=urlsplit, help="of the server, e.g. http://127.0.0.1:30000")
    parser.add_argument("--interval", type=float, default=30, help="s between the starts of two checks")
    parser.add_argument("--timeout", type=float, default=25, help="s for a check; SGLang itself gives up after 20")
    parser.add_argument("--at-once", type=float, default=5, help="s: an earlier 503 is one of loading or draining")
    parser.add_argument("--failures", type=int, default=3, help="checks in a row that must fail")
    parser.add_argument("--patience", type=float, default=600, help="s that checks may fail while schedulers compute")
    options = parser.parse_args()
    number = int(os.environ.get("MAINPID") or 0)
    if not number:
        parser.error("MAINPID is not in the environment: set it to the number of the server's process")
    started = process(number)[2]
    if started >= 0 and not os.fork():
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        watch(number, started, options)


if __name__ == "__main__":
    main()
