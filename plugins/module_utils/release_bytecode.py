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

    def lay(self) -> bool:
        """Write what is kept beside its sources; return False where nothing is, and forget a damaged bundle."""
        try:
            archive = zipfile.ZipFile(self.path)
        except OSError:
            return False
        except zipfile.BadZipFile:
            self.forget()
            return False
        with archive:
            for entry in archive.infolist():
                try:
                    code = archive.read(entry)
                    magic, flags, _time, _size = HEADER.unpack_from(code)
                except (zipfile.BadZipFile, EOFError, struct.error):
                    self.forget()
                    return False
                source = self.sources.get(entry.filename)
                if source is None or flags != OF_TIME:
                    continue
                state = os.stat(source)
                header = HEADER.pack(magic, flags, int(state.st_mtime) % 2**32, state.st_size % 2**32)
                path = self._compiled(source)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as file:
                    file.write(header + code[HEADER.size :])
        return True

    def forget(self) -> None:
        """Remove what is kept, where that is allowed."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def keep(self) -> None:
        """Keep what was compiled; a cache that can not take it does without."""
        with contextlib.suppress(OSError):
            if self.path.exists():
                return
            self.path.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, suffix=".partial") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, compiled in self._there():
                        archive.write(compiled, name)
                os.chmod(file.name, 0o644)
                os.link(file.name, self.path)  # another container may be quicker
            self._prune()

    def _prune(self) -> None:
        """Remove the oldest bundles, and what one that was killed has left."""
        written = {path: path.stat().st_mtime for path in self.path.parent.iterdir()}
        bundles = sorted((path for path in written if path.suffix == ".zip"), key=written.__getitem__)
        for path in [*bundles[:-KEPT], *(path for path in written if path not in bundles)]:
            if path in bundles or written[path] < time.time() - ABANDONED:
                path.unlink(missing_ok=True)

    def _there(self) -> Iterator[tuple[str, str]]:
        for name, source in self.sources.items():
            compiled = self._compiled(source)
            if os.path.exists(compiled):
                yield name, compiled
