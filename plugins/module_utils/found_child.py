# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A look with the rights of somebody else: a Python program that can neither stay, nor write much, nor take memory from
what serves."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OUTPUT, ERRORS = 16 << 20, 64 << 10  # bytes; more output is no answer, and of errors the last are kept
LAST = 5  # s that one that was killed has to end
# first of all: where memory is short, the kernel ends this one and not a server
PROGRAM = """with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
exec(compile({source!r}, "<probe>", "exec"))
"""


@dataclass(frozen=True)
class User:
    """As whom a process runs."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Unanswered(Exception):
    """A program that did not run to its end; the text says why, after the name of its interpreter."""


def run_as(
    user: User,
    python: str,
    source: str,
    asked: Mapping[str, Any],
    timeout: float,
    folder: str = "/",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the program `source`, with `asked` as JSON for its only argument, as a user and for at most `timeout` s.

    It begins in `folder`, isolated, at the lowest priority and without a GPU, and has a home that is removed again.
    """
    try:
        home = tempfile.mkdtemp(prefix="gpuops-found-")
    except OSError as error:
        raise Unanswered(f"can not be run: no folder for it ({error.strerror})") from error
    try:
        other: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(home, user.uid, user.gid)
            other = {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": home,
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            **(environment or {}),
        }
        with tempfile.TemporaryFile() as program:
            program.write(PROGRAM.format(source=source).encode())
            program.seek(0)
            process = subprocess.Popen(
                ["nice", "-n", "19", python, "-I", "-B", "-", json.dumps(asked)], cwd=folder, env=variables,
                stdin=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **other,
            )  # fmt: skip
        return _answer(process, timeout)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its path is none"
        raise Unanswered(f"can not be run: {why}") from error
    finally:
        # what it has left may be of any depth
        with contextlib.suppress(RecursionError):
            shutil.rmtree(home, ignore_errors=True)


def _answer(process: subprocess.Popen[bytes], timeout: float) -> subprocess.CompletedProcess[str]:
    end = time.monotonic() + timeout
    try:
        output, errors = _output(process, end)
        process.wait(max(0.0, end - time.monotonic()))
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        raise Unanswered(f"gave no answer within {timeout:g} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it started
        # what a driver holds in the kernel ends later
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def _output(process: subprocess.Popen[bytes], end: float) -> tuple[str, str]:
    """Return all of its standard output and the last of its standard error."""
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
    told = {pipe.fileno(): bytearray() for pipe in pipes}
    output, errors = told
    with selectors.DefaultSelector() as selector:
        for number in told:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for key, _events in selector.select(left):
                block = os.read(key.fd, 1 << 16)
                told[key.fd] += block
                if not block:
                    selector.unregister(key.fd)
            if len(told[output]) > OUTPUT:
                raise Unanswered(f"wrote more than {OUTPUT >> 20} MiB")
            del told[errors][:-ERRORS]
    return told[output].decode(errors="replace"), told[errors].decode(errors="replace")
