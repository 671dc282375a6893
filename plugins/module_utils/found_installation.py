# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SGLang that a foreign server was started from, read from the files of its packages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import release_record
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import PROC

OLDEST = (0, 5, 9)  # that is supported
SHOWN = 3  # changed files that are named
PUBLISHED = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.post)\d+)?")


@dataclass(frozen=True)
class Installation:
    """What is installed where a server came from."""

    version: str  # '' where it was not found
    place: str  # directory of its packages, or of the sources that it runs from
    sources: str  # directory that Python looks into before its packages, and has SGLang in it; '' if there is none
    problems: tuple[str, ...]  # why an installation of the same version may be another SGLang

    @property
    def published(self) -> bool:
        """Whether the package index may have it."""
        return PUBLISHED.fullmatch(self.version) is not None


def installation(found: FoundProcess, proc: Path = PROC) -> Installation:
    """Find the installed SGLang of a server; its interpreter is not run."""
    root = proc / str(found.pid) / "root" if found.container else Path("/")
    sources = next(
        (str(path) for path in _first_places(found) if (_below(root, path) / "sglang/__init__.py").exists()), ""
    )
    folders = list(dict.fromkeys(_package_folders(found, root, proc)))
    known = next(iter(metadata.distributions(name="sglang", path=[str(folder) for folder in folders])), None)
    version = str((known.metadata.get_all("Version") or [""])[0]) if known else ""
    if sources:
        told = f"it runs from the sources in {sources}, which no package index has: a release of its version is another"
        return Installation(version, sources, sources, (told,))
    if known is None or not version:
        return Installation("", "", "", ("its SGLang was not found among the packages of its interpreter",))
    place = Path(str(known.locate_file("")))
    return Installation(version, str(place), "", tuple(_problems(known, version, place, found)))


def _problems(known: metadata.Distribution, version: str, place: Path, found: FoundProcess) -> Iterator[str]:
    source = _source(known)
    if source.get("dir_info", {}).get("editable"):
        yield f"its SGLang is an editable installation of {_local(source)}, which may have been changed"
    elif source:
        yield f"its SGLang {version} was installed from {_local(source)}, not from a package index"
    if not PUBLISHED.fullmatch(version):
        yield f"SGLang {version} is no version of a package index: choose the published one that is nearest"
    elif tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
        yield f"SGLang {version} is older than {'.'.join(map(str, OLDEST))}, the oldest that is supported: upgrade it"
    record = place / f"sglang-{version}.dist-info" / "RECORD"
    try:
        written = record.stat().st_mtime
    except OSError:
        return
    changed = list(islice(release_record.changed_files(record, written), SHOWN + 1))
    if changed:
        more = ", ..." if len(changed) > SHOWN else ""
        yield f"its SGLang {version} was changed by hand: {', '.join(changed[:SHOWN])}{more}"
    if written > time.time() - found.age:
        yield f"SGLang {version} was installed after it was started: it may run another version"


def _source(known: metadata.Distribution) -> dict[str, Any]:
    """Return where a package was installed from, if not from an index (PEP 610)."""
    try:
        source = json.loads(known.read_text("direct_url.json") or "{}")
    except ValueError:
        return {"url": "an address that can not be read"}
    return source if isinstance(source, dict) else {}


def _local(source: Mapping[str, Any]) -> str:
    """Return where a package was installed from, without what logs in there."""
    address = re.sub(r"://[^/@]*@", "://", str(source.get("url", "an address"))).removeprefix("file://")
    commit = source.get("vcs_info", {}).get("commit_id")
    return f"{address} at {commit}" if commit else address


def _first_places(found: FoundProcess) -> Iterator[Path]:
    """Yield the directories that Python looks into before those of its packages."""
    if found.command.from_path:
        yield found.folder
    if not {"-I", "-E"} & set(found.command.flags):
        yield from (found.path(entry) for entry in found.environment.get("PYTHONPATH", "").split(":") if entry)


def _package_folders(found: FoundProcess, root: Path, proc: Path) -> Iterator[Path]:
    python = found.python or found.path(found.command.python)
    yield from sorted(_below(root, python.parent.parent).glob("lib/python3*/*-packages"))
    # what it has loaded, also where no prefix tells
    try:
        maps = (proc / str(found.pid) / "maps").read_text(errors="replace")
    except OSError:
        return
    for folder in sorted(set(re.findall(r" (/.*?/(?:site|dist)-packages)/", maps))):
        yield _below(root, Path(folder))


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else root / path
