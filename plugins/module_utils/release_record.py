# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded of a release that is there, and what was changed in it since."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options

BLOCK = 2**20  # bytes


def read(path: Path) -> dict[str, Any] | None:
    """Return the record of the complete release in `path`, or None."""
    try:
        record = json.loads((path / "release.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if (path / "venv/bin/python").exists() and schema(path) is not None else None


def schema(path: Path) -> Options | None:
    """Return the options of the release in `path` (main spelling -> facts), or None where there is no release."""
    try:
        content = json.loads((path / "schema.json").read_text(encoding="utf-8"))
        return Options(content["options"], content.get("sglang_version", ""))
    except (OSError, ValueError, KeyError):
        return None


def changes(path: Path) -> list[str]:
    """Return what was changed by hand in the release in `path` since its installation, in words.

    The packages that are there, and SGLang's own files: the size of each, and the content of what was written since.
    """
    record = read(path)
    if record is None:
        return [f"the release {path} is damaged or gone"]
    folders = sorted(path.glob("venv/lib/python3*/site-packages/*.dist-info"))
    present = _versions(folder.name for folder in folders)
    # a record of an earlier version of this collection has the requirements alone
    installed = _versions(record["distributions"] if "distributions" in record else record["packages"])
    found = []
    for name in sorted({*present, *installed}):
        was, now = installed.get(name, ""), present.get(name, "")
        if name not in present:
            found.append(f"package {name} was removed, installed was {was}")
        elif name not in installed:
            found.append(f"package {name} {now} was added")
        elif was not in (now, ""):
            found.append(f"package {name} is {now}, installed was {was}")
    since = (path / "release.json").stat().st_mtime
    for folder in folders:
        if folder.name.startswith("sglang-"):
            found += _changed_files(folder / "RECORD", since)
    return found


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Return name -> version of folders like a_b-1.0.dist-info or of lines like A.b==1.0, all written alike.

    The version of a package that was installed from an address is ''.
    """
    split = re.compile(r"([\w.-]+?)(?:-([^-]+)\.dist-info|==(.+)| @ .+)")
    found = filter(None, map(split.fullmatch, packages))
    return {normal(match[1]): re.sub(r"\b0+(?=\d)", "", (match[2] or match[3] or "").lower()) for match in found}


def normal(name: str) -> str:
    """Return the name of a package as all its spellings have it in common (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _changed_files(record: Path, since: float) -> Iterator[str]:
    """Yield what differs from the RECORD of a distribution."""
    try:
        files = list(rows(record))
    except OSError:
        yield f"{record.parent.name}/RECORD was removed"
        return
    site = str(record.parents[1])
    for name, digest, size in files:
        path = os.path.join(site, name)
        try:
            state = os.stat(path)
        except OSError:
            yield f"{name} was removed"
            continue
        written = state.st_mtime >= since
        if size not in ("", str(state.st_size)) or (written and digest_of(path) != digest):
            yield f"{name} was changed"


def digest_of(path: str) -> str:
    """Return the digest of a file as RECORD has it."""
    return as_record(sha256_of(path))


def sha256_of(path: str | os.PathLike[str]) -> bytes:
    """Return the SHA-256 of a file."""
    whole = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            whole.update(block)
    return whole.digest()


def as_record(value: bytes) -> str:
    """Return a SHA-256 as RECORD writes it."""
    return f"sha256={base64.urlsafe_b64encode(value).decode().rstrip('=')}"


def rows(record: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path, digest and size in bytes of the files of a package that have a digest."""
    for row in csv.reader(record.read_text(encoding="utf-8").splitlines()):
        # the others are RECORD itself, and what Python compiles
        if len(row) == 3 and row[1].startswith("sha256="):
            yield row[0], row[1], row[2]
