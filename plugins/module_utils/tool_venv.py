# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of an installation and what their failures come to, and a venv that holds one tool of ours."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    few_inodes,
    last_lines,
    run,
    write_whole,
)

# what every download begins with; the operator's variables come on top
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

NEEDS = "constraints.txt"  # in a venv
UNKNOWN_ISSUER = "invalid peer certificate: UnknownIssuer"  # in the words of uv, which brings certificates of its own

# the password of each address in e.g. a proxy, UV_INDEX (NAME=URL) or PIP_EXTRA_INDEX_URL (several), or a token alone
LOGIN = re.compile(r"://(?:[^/\s:@]*:([^/\s]+)|([^/\s:@]{8,}))@")


def passwords(environment: Mapping[str, str]) -> set[str]:
    """Return the passwords in the addresses of variables: a proxy or an index may carry a login."""
    return {one or other for value in environment.values() for one, other in LOGIN.findall(value)}


@dataclass(frozen=True)
class Steps:
    """Commands of one installation: how they are run, and what one that fails is called."""

    label: str  # e.g. SGLang 0.5.23
    place: Path  # whose free space is told
    environment: Mapping[str, str]
    inherited: tuple[int, ...] = ()  # an orphan of a killed installation holds the lock by these until it ends

    def run(self, what: str, argv: Sequence[str], stdin: str = "") -> str:
        """Return what a command printed; raises Refused with `what` and its last words where it fails."""
        try:
            done = run(argv, self.environment, stdin, inherited=self.inherited)
        except OSError as error:
            raise Refused(f"{self.label}: {what} failed: can not run {argv[0]}: {error.strerror}") from error
        if done.returncode == 0:
            return done.stdout
        said = _said(done.stderr or done.stdout)
        if UNKNOWN_ISSUER in said:
            said += (
                "; where the host's own certificates know it, set UV_SYSTEM_CERTS to 1 in sglang_install_environment"
            )
        raise Refused(f"{self.label}: {what} failed with exit status {done.returncode}: {said}{self._room(said)}")

    def _room(self, said: str) -> str:
        few = few_inodes(self.place)
        free = shutil.disk_usage(self.place).free / 2**30
        told = "No space left" in said or free < 1 or few
        return f"; {self.place} has {free:.1f} GiB free{few}" if told else ""

    def given(self, **variables: str) -> Steps:
        """Return the same with more variables."""
        return replace(self, environment={**self.environment, **variables})


def _said(text: str) -> str:
    """Return uv's error with causes, hints and first warnings, or the last words of another program, in one line."""
    lines = [line.strip() for line in last_lines(text, 1000)]
    start = next((number for number, line in enumerate(lines) if line.startswith("error:")), None)
    if start is None:
        return " | ".join(lines[-5:])
    warnings = [line for line in lines[:start] if line.startswith("warning:")]
    return " | ".join([*warnings[:2], *lines[start:][:12]])


def make_venv(
    steps: Steps, home: Path, python: str, requirement: str, options: Sequence[str] = (), needs: Sequence[str] = ()
) -> None:
    """Install `requirement` (NAME==VERSION) into a new venv `home` of the interpreter `python`.

    `options` are pip's, `needs` the exact versions of what may be installed with it.
    """
    tool = requirement.partition("==")[0]
    steps.run(f"making {tool}'s venv", [python, "-m", "venv", "--clear", str(home)])
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if needs:
        write_whole(home / NEEDS, "".join(f"{line}\n" for line in needs))
        options = [*options, "--constraint", str(home / NEEDS)]
    steps.run(f"installing {tool}", [*pip, *options, requirement])
