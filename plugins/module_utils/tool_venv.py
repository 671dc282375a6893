# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A venv that holds one tool of ours, and its steps."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run

# what every download begins with; the operator's variables come on top
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

# the password of each address in e.g. a proxy, UV_INDEX (NAME=URL) or PIP_EXTRA_INDEX_URL (several)
LOGIN = re.compile(r"://[^/\s:@]*:([^/\s]+)@")


def passwords(environment: Mapping[str, str]) -> list[str]:
    """Return the passwords in the addresses of variables: a proxy or an index may carry a login."""
    return [password for value in environment.values() for password in LOGIN.findall(value)]


def make_venv(home: Path, python: str, requirement: str, environment: Mapping[str, str], label: str) -> None:
    """Install `requirement` (NAME==VERSION) into a new venv `home` of the interpreter `python`."""
    tool = requirement.partition("==")[0]
    step(label, f"making {tool}'s venv", [python, "-m", "venv", "--clear", str(home)], environment, home.parent)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    step(label, f"installing {tool}", [*pip, requirement], environment, home.parent)


def step(
    label: str, what: str, argv: Sequence[str], environment: Mapping[str, str], place: Path, stdin: str = ""
) -> str:
    """Return what a command writes, or raise Refused with its last words and, where it matters, the room in `place`."""
    try:
        done = run(argv, environment, stdin)
    except OSError as error:
        raise Refused(f"{label}: {what} failed: can not run {argv[0]}: {error.strerror}") from error
    if done.returncode == 0:
        return done.stdout
    said = " | ".join(last_lines(done.stderr or done.stdout, 5))
    present = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(present).free / 2**30
    hint = f"; {present} has {free:.1f} GiB free" if "No space left" in said or free < 1 else ""
    raise Refused(f"{label}: {what} failed with exit status {done.returncode}: {said}{hint}")
