# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run in this host's Python as `python -I -B - ASKED`, from the root of a server's files: write what the packages of
its SGLang tell of it as JSON to standard output.

ASKED is JSON: `prefix` of its interpreter and more `folders` of packages, as seen from that root, and how many changed
files are `shown`. Who owns the files may have put anything in their place, so that only regular ones are opened.
"""

from __future__ import annotations

import base64
import csv
import errno
import glob
import hashlib
import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

MOST = 4 << 20  # bytes of a text
ABOUT = re.compile(r"sglang-[^-]+(?:-py3[\d.]*)?\.(?:dist|egg)-info")


def opened(path: str) -> IO[bytes]:
    """Open a regular file; what may wait for ever or does something when it is opened is refused untouched."""
    handle = os.open(path, os.O_PATH)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no regular file", path)
        return open(f"/proc/self/fd/{handle}", "rb")
    finally:
        os.close(handle)


def text(path: str) -> str:
    """Return the text of a file; '' where it can not be read or is too long for one of its kind."""
    try:
        with opened(path) as file:
            content = file.read(MOST + 1)
    except OSError:
        return ""
    return content.decode(errors="replace") if len(content) <= MOST else ""


def digest(path: str) -> str:
    """Return the digest of a file as RECORD has it."""
    whole = hashlib.sha256()
    with opened(path) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            whole.update(block)
    return f"sha256={base64.urlsafe_b64encode(whole.digest()).decode().rstrip('=')}"


def changed(folder: str, record: str, since: float) -> Iterator[str]:
    """Yield what differs from a RECORD. `since`: when that was written."""
    for row in csv.reader(io.StringIO(record)):
        if len(row) != 3 or not row[1].startswith("sha256="):
            continue
        name, wanted, size = row
        # the packages alone; its commands are elsewhere
        if os.path.isabs(name) or ".." in name.split("/"):
            continue
        path = os.path.join(folder, name)
        try:
            state = os.stat(path)
        except (OSError, ValueError):
            yield f"{name[:200]} was removed"
            continue
        try:
            alike = stat.S_ISREG(state.st_mode) and size in ("", str(state.st_size))
            same = alike and (state.st_mtime < since or digest(path) == wanted)
        except OSError:
            same = False
        if not same:
            yield f"{name[:200]} was changed"


def source(about: str) -> dict[str, Any]:
    """Return where a package was installed from, if not from an index (PEP 610)."""
    if not os.path.lexists(f"{about}/direct_url.json"):
        return {}
    try:
        told = json.loads(text(f"{about}/direct_url.json"))
    except ValueError:
        told = {"url": "an address that can not be read"}
    if not isinstance(told, dict) or not told:
        return {}
    parts = {name: part if isinstance(part, dict) else {} for name, part in told.items()}
    commit = parts.get("vcs_info", {}).get("commit_id")
    return {
        "url": str(told.get("url", "an address"))[:1000],
        "editable": bool(parts.get("dir_info", {}).get("editable")),
        "commit": str(commit)[:100] if commit else "",
    }


def look(folder: str, about: str, shown: int) -> dict[str, Any]:
    """Return what is known of the package in `folder` from its folder `about`."""
    version = re.search(r"(?m)^Version: *([\w.+!-]{1,64})\s*$", text(f"{about}/METADATA") or text(f"{about}/PKG-INFO"))
    record = text(f"{about}/RECORD")
    written = os.stat(f"{about}/RECORD").st_mtime if record else None
    found = list(islice(changed(folder, record, written), shown + 1)) if written is not None else []
    return {
        "place": folder,
        "version": version[1] if version else "",
        "source": source(about),
        "written": written,
        "changed": found,
    }


def main() -> None:
    """Print what the first SGLang is that Python would find there, or null."""
    asked = json.loads(sys.argv[1])
    folders = sorted(glob.glob(f"{glob.escape(asked['prefix'])}/lib/python3*/*-packages"))
    for folder in [*folders, *asked["folders"]]:
        for about in sorted(glob.glob(f"{glob.escape(folder)}/sglang-*-info")):
            if ABOUT.fullmatch(os.path.basename(about)):
                json.dump(look(folder, about, asked["shown"]), sys.stdout)
                return
    json.dump(None, sys.stdout)


if __name__ == "__main__":
    main()
