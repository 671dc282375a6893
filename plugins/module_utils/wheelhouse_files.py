# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheels that playbooks/wheelhouse.yml has collected, on a host: a folder, or an archive of it."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

BLOCK = 2**20  # bytes


def folder(label: str, wheelhouse: Path, place: Path, only: str = "") -> Path:
    """Return the folder with the wheels, or with those of the package `only`; an archive is unpacked into `place`."""
    if not wheelhouse.exists():
        raise Refused(f"{label}: there is no {wheelhouse}: make it with playbooks/wheelhouse.yml and copy it here")
    found, wanted = wheelhouse, f"{only}-*.whl" if only else "*.whl"
    if not wheelhouse.is_dir():
        found = place
        place.mkdir(exist_ok=True)
        free, size = shutil.disk_usage(place).free, wheelhouse.stat().st_size  # wheels are compressed already
        if free < size and not only:
            raise Refused(
                f"{label}: {wheelhouse} has {size / 2**30:.1f} GiB, {place} has {free / 2**30:.1f} GiB free: free "
                "some, or unpack it elsewhere and name the folder"
            )
        try:
            _unpack(wheelhouse, place, wanted)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise Refused(f"{label}: {wheelhouse} is damaged: {error}: copy it here again") from error
    if not any(found.glob(wanted)):
        what = f"wheel of {only}" if only else "wheels"
        raise Refused(f"{label}: {wheelhouse} has no {what} in it: make it anew with playbooks/wheelhouse.yml")
    return found


def _unpack(archive: Path, place: Path, wanted: str) -> None:
    with tarfile.open(archive) as members:
        for member in members:
            name = Path(member.name)
            content = members.extractfile(member) if member.isfile() and name.match(wanted) else None
            if content is not None:
                with (place / name.name).open("wb") as file:
                    shutil.copyfileobj(content, file, BLOCK)
