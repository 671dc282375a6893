# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of an installed release against the digests that its packages have of them.

uv links what it installs to its cache, which other releases are linked to as well, and trusts what it once unpacked
there. So each file is read after an installation, which tells a damaged cache, and what somebody may come to edit gets
a copy of its own. Libraries stay linked: nobody edits them, and they are nine tenths of the bytes. One that was read
already for another release is read again when its size or time has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, write_whole
from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import as_record, digest_of, rows

EDITED = (".py", ".json", ".sh", ".yaml", ".yml", ".jinja")
# scripts begin with the path of their interpreter, and uv notes from where a package came
HOSTS_OWN = re.compile(r"^\.\./\.\./\.\./bin/|\.dist-info/(direct_url|uv_cache)\.json$")
PROCESSES = 16  # at most
NICE = 10  # the loading of the server takes as long, by one processor alone
READ = "read.json"  # in the cache
READ_FILES = 500_000  # that it has at most; a release has about 40,000
File = tuple[str, Sequence[str]]  # path, and each digest that a package has of it
Known = dict[str, tuple[int, int, str]]  # inode of a file of the cache -> size in bytes, time in ns, digest


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
def checked(site: Path, cache: Path) -> Iterator[Checking]:
    """Read all files below a site-packages, linked to the cache or not, beside what else is done."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)  # some packages bring the same file, with other content
    for folder in sorted(site.glob("*.dist-info")):
        # a package without one was not installed by uv
        if (folder / "RECORD").exists():
            for name, digest, _size in rows(folder / "RECORD"):
                owners[os.path.normpath(site / name)][digest] = re.sub(r"\.dist-info$", "", folder.name)
    files = [(path, tuple(digests)) for path, digests in owners.items()]
    known = _known(cache)
    count = min(len(os.sched_getaffinity(0)), PROCESSES)
    running: list[_Process] = []
    try:
        for number in range(count):
            running.append(_Process(files[number::count], known))
        yield Checking(str(site), owners, cache, known, running)
    finally:
        for process in running:
            process.end()


@dataclass(frozen=True)
class Checking:
    """A check that is under way."""

    site: str
    owners: dict[str, dict[str, str]]
    cache: Path
    known: Known
    running: list[_Process]

    @cached_property
    def _told(self) -> tuple[dict[str, str], Known]:
        """What the processes have found: path -> digest that it has or 'no file', and what is linked to the cache."""
        found: dict[str, str] = {}
        read: Known = {}
        for process in self.running:
            answer = process.answer()
            if "error" in answer:
                raise OSError(*answer["error"])
            if "found" not in answer:
                why = answer.get("failed", "a process that did it was ended: deploy again")
                raise Refused(f"the files of {self.site} could not be checked: {why}")
            found.update(answer["found"])
            read.update(answer["read"])
        return found, read

    def damage(self) -> list[Damage]:
        """Wait for its end and return what it has found; raises OSError where a copy can not be written."""
        damage = []
        for path, found in sorted(self._told[0].items()):
            if found not in self.owners[path]:
                expected, package = next(iter(self.owners[path].items()))
                damage.append(Damage(package, path, expected, found))
        return damage

    def digest(self) -> str:
        """Return one digest of all files and their contents, apart from what differs from host to host."""
        whole = hashlib.sha256()
        for path, digests in sorted(self.owners.items()):
            name = os.path.relpath(path, self.site)
            if not HOSTS_OWN.search(name):
                whole.update(f"{name} {self._told[0].get(path) or next(iter(digests))}\n".encode())
        return whole.hexdigest()

    def keep(self) -> None:
        """Have the next release of this cache know what was read; a cache that can not take it does without."""
        read = self._told[1]
        if all(self.known.get(inode) == tuple(facts) for inode, facts in read.items()):
            return
        whole = {**_known(self.cache), **read}
        # of two that write at once one may lose, which costs another reading
        with contextlib.suppress(OSError, Refused):
            write_whole(self.cache / READ, json.dumps(whole if len(whole) <= READ_FILES else read))


def _known(cache: Path) -> Known:
    """Return what was read for other releases; of what is no such record nothing counts."""
    try:
        kept = json.loads((cache / READ).read_text(encoding="utf-8"))
        return {inode: (size, time, digest) for inode, (size, time, digest) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


class _Process:
    """One that checks files; threads would take turns, as most of them are small.

    A pool of processes needs /dev/shm, which some rented containers do not have.
    """

    def __init__(self, files: Sequence[File], known: Known) -> None:
        caller = os.getpid()
        self.told = os.memfd_create("told")  # and no pipe, in which it would wait for somebody who reads
        self.pid = os.fork()
        if not self.pid:
            try:
                os.nice(NICE)
                os.write(self.told, json.dumps(_checked(files, known, caller)).encode())
            finally:
                os._exit(0)

    def answer(self) -> dict[str, Any]:
        """Wait for what it has found; nothing where it was ended."""
        with contextlib.suppress(ChildProcessError):  # where the caller was started without an ear for its children
            os.waitpid(self.pid, 0)
        self.pid = 0
        with open(self.told, encoding="utf-8", closefd=False) as told, contextlib.suppress(ValueError):
            told.seek(0)
            answer: dict[str, Any] = json.loads(told.read())
            return answer
        return {}

    def end(self) -> None:
        """End it where nobody has waited for it."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self.told)


def _checked(files: Sequence[File], known: Known, caller: int) -> dict[str, Any]:
    """Check files for as long as the process `caller` lives, and return what was found or what went wrong."""
    found: dict[str, str] = {}
    read: Known = {}
    try:
        for path, digests in files:
            if os.getppid() != caller:
                return {}
            _check(path, digests, known, found, read)
    except OSError as error:
        return {"error": (error.errno, error.strerror, error.filename)}
    except BaseException as error:
        return {"failed": repr(error)}
    return {"found": found, "read": read}


def _check(path: str, digests: Sequence[str], known: Known, told: dict[str, str], read: Known) -> None:
    """Put into `told` the digest of a file that is damaged or has several, into `read` another one of the cache."""
    linked = False
    try:
        state = os.lstat(path)
        linked = state.st_nlink > 1
        if linked and path.endswith(EDITED):
            found, linked = _own(path, state), False
        else:
            size, time, found = known.get(str(state.st_ino), (0, 0, ""))
            if not linked or (size, time) != (state.st_size, state.st_mtime_ns) or found not in digests:
                found = digest_of(path)
    except FileNotFoundError:
        found = "no file"
    if found not in digests or digests[1:]:
        told[path] = found
    elif linked:
        read[str(state.st_ino)] = (state.st_size, state.st_mtime_ns, found)


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
