# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The byte code of a release, kept in the cache for the next release of the same files.

What loading the server compiles is more than half of what loading it takes. A bundle is an archive named by the digests
of all source files, which are checked in each installation; of a bundle itself the archive has checksums.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FOLDER = "bytecode"  # in the cache
KEPT = 3  # bundles, of about 180 MB each
ABANDONED = 3600  # s after which nobody writes a bundle any more
OF_TIME = 0  # flags of byte code that counts while its source has the time and size that stand in it (PEP 552)
HEADER = struct.Struct("<4sIII")  # magic number, flags, s, bytes


class Bundle:
    """The byte code of the source files below a site-packages."""

    def __init__(self, cache: Path, site: str, owners: Mapping[str, Iterable[str]], python_version: str) -> None:
        # what two packages bring with other content is of the one or of the other
        sources = {path: tuple(digests) for path, digests in owners.items() if path.endswith(".py")}
        self.suffix = f".cpython-{python_version.replace('.', '')}.pyc"
        self.sources = {
            os.path.relpath(path, site): path
            for path, digests in sources.items()
            # some packages bring byte code themselves, which may be linked to the cache
            if not digests[1:] and self._compiled(path) not in owners
        }
        told = "".join(f"{name} {sources[path][0]}\n" for name, path in sorted(self.sources.items()))
        digest = hashlib.sha256(f"{self.suffix}\n{told}".encode()).hexdigest()
        self.path = cache / FOLDER / f"{digest[:32]}.zip"

    def _compiled(self, source: str) -> str:
        folder, name = os.path.split(source)
        return os.path.join(folder, "__pycache__", name.removesuffix(".py") + self.suffix)

    def lay(self) -> int:
        """Write what is kept beside its sources, and return how much that is; what can not be written is compiled."""
        count = 0
        with contextlib.suppress(OSError):
            for name, code in self._read():
                count += 1
                if name in self.sources and len(code) > HEADER.size:
                    self._lay_one(self.sources[name], code)
        return count

    def _read(self) -> Iterator[tuple[str, bytes]]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                for entry in archive.infolist():
                    yield entry.filename, archive.read(entry)
        except FileNotFoundError:
            pass
        except Exception:  # a few wrong bits can make a reader of archives say anything
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _lay_one(self, source: str, code: bytes) -> None:
        magic, flags, _time, _size = HEADER.unpack_from(code)
        if flags != OF_TIME:
            return
        try:
            state = os.stat(source)
        except FileNotFoundError:
            return  # the check of the files tells
        path = self._compiled(source)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(HEADER.pack(magic, flags, int(state.st_mtime) % 2**32, state.st_size % 2**32))
                file.write(code[HEADER.size :])
        except FileExistsError:
            return  # the installer was asked to compile
        except OSError:
            os.unlink(path)
            raise

    def keep(self, laid: int) -> None:
        """Keep what was compiled, if it is more than was `laid`; a cache that can not take it does without.

        A server that does not load for want of a driver compiles only a part.
        """
        there = list(self._there())
        if len(there) <= laid:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            descriptor, partial = tempfile.mkstemp(".partial", dir=self.path.parent)
            try:
                with open(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                    for name, compiled in there:
                        archive.write(compiled, name)
                os.chmod(partial, 0o644)
                os.replace(partial, self.path)
            finally:
                Path(partial).unlink(missing_ok=True)
            self._prune()

    def _prune(self) -> None:
        """Remove the oldest bundles, and what one that was killed has left."""
        written = {path: path.stat().st_mtime for path in self.path.parent.iterdir()}
        bundles = sorted((path for path in written if path.suffix == ".zip"), key=written.__getitem__)
        abandoned = (path for path in written.keys() - set(bundles) if written[path] < time.time() - ABANDONED)
        for path in [*bundles[:-KEPT], *abandoned]:
            path.unlink(missing_ok=True)

    def _there(self) -> Iterator[tuple[str, str]]:
        for name, source in self.sources.items():
            compiled = self._compiled(source)
            if os.path.exists(compiled):
                yield name, compiled
