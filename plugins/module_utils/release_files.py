# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of an installed release against the digests that its packages have of them.

uv links what it installs to its cache, which other releases are linked to as well, and trusts what it once unpacked
there. So each file is read after an installation, which tells a damaged cache, and what somebody may come to edit gets
a copy of its own. Libraries stay linked: nobody edits them, and they are four fifths of the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import as_record, digest_of, rows

EDITED = (".py", ".json", ".sh", ".yaml", ".yml", ".jinja")
# scripts begin with the path of their interpreter, and uv notes from where a package came
HOSTS_OWN = re.compile(r"^\.\./\.\./\.\./bin/|\.dist-info/(direct_url|uv_cache)\.json$")
AT_ONCE = 200  # files that a thread gets at a time
File = tuple[str, tuple[str, ...]]  # path, and each digest that a package has of it
Found = tuple[str, tuple[str, ...], str]  # and the digest that it has, or 'no file'


@dataclass(frozen=True)
class Damage:
    """A file that is not what its package has brought."""

    package: str  # name-version, as its folder is called
    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path} of {self.package}: expected {self.expected}, found {self.found}"


@contextlib.contextmanager
def checked(site: Path) -> Iterator[Checking]:
    """Read all files below a site-packages beside what else is done."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)  # some packages bring the same file, with other content
    for folder in sorted(site.glob("*.dist-info")):
        # a package without one was not installed by uv
        if (folder / "RECORD").exists():
            for name, digest, _size in rows(folder / "RECORD"):
                owners[os.path.normpath(site / name)][digest] = re.sub(r"\.dist-info$", "", folder.name)
    files = [(path, tuple(digests)) for path, digests in owners.items()]
    parts = [files[place : place + AT_ONCE] for place in range(0, len(files), AT_ONCE)]
    # threads, as processes would need /dev/shm, which some rented containers do not have
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        yield Checking(str(site), owners, [pool.submit(_check, part) for part in parts])
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Checking:
    """A check that is under way."""

    site: str
    owners: dict[str, dict[str, str]]
    running: list[Future[list[Found]]]

    def _found(self) -> Iterator[Found]:
        return (one for part in self.running for one in part.result())

    def damage(self) -> list[Damage]:
        """Wait for its end and return what it has found; raises OSError where a copy can not be written."""
        return [
            Damage(self.owners[path][digests[0]], path, digests[0], state)
            for path, digests, state in self._found()
            if state not in digests
        ]

    def digest(self) -> str:
        """Return one digest of all files and their contents, apart from what differs from host to host."""
        whole = hashlib.sha256()
        states = {path: state for path, _digests, state in self._found()}
        for path, digests in sorted(self.owners.items()):
            name = os.path.relpath(path, self.site)
            if not HOSTS_OWN.search(name):
                whole.update(f"{name} {states.get(path) or next(iter(digests))}\n".encode())
        return whole.hexdigest()


def _check(files: Sequence[File]) -> list[Found]:
    """Return the files that are damaged, and those of which packages have more than one digest."""
    told = []
    for path, digests in files:
        try:
            state = os.lstat(path)
            own = path.endswith(EDITED) and state.st_nlink > 1
            found = _own(path, state) if own else digest_of(path)
        except FileNotFoundError:
            found = "no file"
        if found not in digests or digests[1:]:
            told.append((path, digests, found))
    return told


def _own(path: str, state: os.stat_result) -> str:
    """Replace a file by a copy of itself, and return its digest."""
    with open(path, "rb", buffering=0) as file:
        content = file.read()
    copy = f"{path}.own"
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, state.st_mode & 0o777)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(content)
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))  # byte code that is there already is of this time
    os.rename(copy, path)
    return as_record(hashlib.sha256(content).digest())


def packages(damage: Iterable[Damage]) -> list[str]:
    """Return the names of the packages whose files are damaged."""
    return sorted({one.package.rpartition("-")[0] for one in damage})
