# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SGLang that a foreign server was started from: its packages are read with the rights of the server's user."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ansible_collections.gpuops.sglang.plugins.module_utils import found_files
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import Unanswered, User, run_as
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.found_trust import changeable
from ansible_collections.gpuops.sglang.plugins.module_utils.host import last_lines
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import PROC

OLDEST = (0, 5, 9)  # that is supported
SHOWN = 3  # changed files that are named
PUBLISHED = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc|\.post)[0-9]+)?")
WAIT = 60  # s that the files of the packages may take
FOLDERS = 64  # of packages that are looked into, of those that it has loaded
MOST = 16 << 20  # bytes of the list of what a process has loaded
PYTHON = "/usr/bin/python3"  # where root's own is not for others
NOT_RUN = (126, 127)  # status of `nice`
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
# what a container calls root is this host's root too, for which the links in its files lead out of it
NOBODY = User(65534, 65534, ())


@dataclass(frozen=True)
class Installation:
    """What is installed where a server came from."""

    version: str  # '' where it was not found
    place: str  # directory of its packages, or of the sources that it runs from
    sources: str  # directory that Python looks into before its packages, and has SGLang in it; '' if there is none
    problems: tuple[str, ...]  # why an installation of the same version may be another SGLang
    closed: str = ""  # why nothing of it may be run

    @property
    def published(self) -> bool:
        """Whether the package index may have it."""
        return PUBLISHED.fullmatch(self.version) is not None


def installation(found: FoundProcess, proc: Path = PROC) -> Installation:
    """Find the installed SGLang of a server; its interpreter is not run."""
    root = proc / str(found.pid) / "root" if found.container or found.own_files else Path("/")
    problems: list[str] = []
    sources = _sources(found, root, problems)
    known: Mapping[str, Any] = {}
    try:
        known = _packages(found, root, proc) or {}
    except Unanswered as why:
        problems.append(f"the packages of its interpreter could not be read: Python {why}")
    version, place = str(known.get("version") or ""), str(Path("/", str(known.get("place") or "")))
    if sources:
        told = f"it runs from the sources in {sources}, which no package index has: a release of its version is another"
        return Installation(version, sources, sources, (told, *problems), _closed(found, sources))
    if not version:
        return Installation("", "", "", (*problems, "its SGLang was not found among the packages of its interpreter"))
    source = known.get("source") or {}
    closed = _closed(found, place) or (_closed(found, _local(source)) if source.get("editable") else "")
    return Installation(version, place, "", (*problems, *_problems(known, version, found)), closed)


def _sources(found: FoundProcess, root: Path, problems: list[str]) -> str:
    """Return where Python finds SGLang before it looks into its packages, as it is without links; '' if nowhere."""
    began = time.time() - found.age
    for path in _first_places(found):
        package = _below(root, path) / "sglang"
        try:
            os.stat(package / "__init__.py")
            own = [os.lstat(package / "__init__.py"), os.lstat(package)]
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in NOT_THERE:
                problems.append(f"whether {path} has an SGLang of its own can not be seen: {error.strerror}")
            continue
        # to import a package writes into its folder, so that only a link tells by its own time
        if max(one.st_ctime for one in own if not stat.S_ISDIR(one.st_mode)) > began + 1:
            problems.append(
                f"the SGLang in {path} is newer than the server and was passed over: it may run what was there before"
            )
            continue
        return str(path) if root != Path("/") else os.path.realpath(path)
    return ""


def _closed(found: FoundProcess, place: str) -> str:
    """Return why a server's SGLang may not be run as its user."""
    for name in ("", "sglang", "sglang/__init__.py"):
        try:
            other = changeable(Path(place, name), found.user.uid)
        except OSError as error:
            if name and error.errno == errno.ENOENT:
                return ""  # an editable installation has it elsewhere
            return f"{Path(place, name)} can not be looked at ({error.strerror})"
        if other:
            return f"others than its user {found.owner} can change {other}"
    return ""


def _packages(found: FoundProcess, root: Path, proc: Path) -> Mapping[str, Any] | None:
    """Return what found_files tells of the SGLang of a server's interpreter."""
    python = found.python or found.path(found.command.python)
    asked = {
        "prefix": str(python.parent.parent).lstrip("/") or ".",
        "folders": [folder.lstrip("/") for folder in _loaded(proc / str(found.pid) / "maps")],
        "shown": SHOWN,
    }
    user = NOBODY if found.container else found.user
    for own in (sys.executable, PYTHON):
        done = run_as(user, own, inspect.getsource(found_files), asked, WAIT, str(root))
        if done.returncode not in NOT_RUN:
            break
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = Masker()(" ".join(last_lines(done.stderr, 1)))
        raise Unanswered(f"ended with status {done.returncode}: {said}") from None
    return answer if isinstance(answer, dict) else None


def _loaded(maps: Path) -> list[str]:
    """Return the folders of packages that a process has loaded from, also where no prefix tells."""
    try:
        with maps.open("rb") as file:
            lines = file.read(MOST).decode(errors="replace").splitlines()
    except OSError:
        return []
    paths = [fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6]
    folders = {
        f"{before}/{kind}"
        for path in paths
        for kind in ("site-packages", "dist-packages")
        for before, inside, _rest in [path.partition(f"/{kind}/")]
        if inside and before.startswith("/")
    }
    return sorted(folders)[:FOLDERS]


def _problems(known: Mapping[str, Any], version: str, found: FoundProcess) -> Iterator[str]:
    source = known.get("source") or {}
    if source.get("editable"):
        yield f"its SGLang is an editable installation of {_local(source)}, which may have been changed"
    elif source:
        yield f"its SGLang {version} was installed from {_local(source)}, not from a package index"
    if not PUBLISHED.fullmatch(version):
        yield f"SGLang {version} is no version of a package index: choose the published one that is nearest"
    elif tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
        yield f"SGLang {version} is older than {'.'.join(map(str, OLDEST))}, the oldest that is supported: upgrade it"
    changed = known.get("changed") or []
    if changed:
        more = ", ..." if len(changed) > SHOWN else ""
        yield f"its SGLang {version} was changed by hand: {', '.join(changed[:SHOWN])}{more}"
    if (known.get("written") or 0) > time.time() - found.age:
        yield f"SGLang {version} was installed after it was started: it may run another version"


def _local(source: Mapping[str, Any]) -> str:
    """Return where a package was installed from, without what logs in there."""
    address = re.sub(r"://[^/@]*@", "://", str(source.get("url")))
    if address.startswith("file://"):
        address = unquote(address[7:])
    return f"{address} at {source['commit']}" if source.get("commit") else address


def _first_places(found: FoundProcess) -> Iterator[Path]:
    """Yield the directories that Python looks into before those of its packages."""
    own = not {"-I", "-E"} & set(found.command.flags)  # Python's variables count
    if found.command.from_path and not (own and found.environment.get("PYTHONSAFEPATH")):
        yield found.folder
    if own:
        yield from (found.path(entry) for entry in found.environment.get("PYTHONPATH", "").split(":") if entry)


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else root / path
