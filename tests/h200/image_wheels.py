# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack the packages that a machine's image has installed as wheels again.

    image_wheels.py SITE_PACKAGES DEST [NAME ...]

For a machine that reaches no index and to which a wheelhouse of 10 GB can not be carried: its image has torch and
CUDA's libraries, and a release takes exact files. Each file is what is on disk, with its digest taken anew; what an
installer added (byte code, scripts of entry points, its own notes) is left out. Without names all packages are packed.
Prints one line for each wheel, and what was not as its package had recorded it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from email.parser import HeaderParser
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal files give equal wheels
ADDED = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"}
BLOCK = 1 << 22  # bytes


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def scripts(info: Path) -> set[str]:
    """Return the names of the scripts that an installer makes by itself."""
    try:
        text = (info / "entry_points.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        return set()
    sections = re.findall(r"^\[(console|gui)_scripts\]\n((?:[^\[].*\n?|\n)*)", text, re.MULTILINE)
    return {name for _kind, body in sections for name in re.findall(r"^\s*([\w.-]+)\s*=", body, re.MULTILINE)}


def place(path: str, info: Path, own: set[str]) -> str | None:
    """Return where an installed file stands in the wheel, or None for one that an installer added."""
    if path.endswith(".pyc") or (path.startswith(f"{info.name}/") and path.partition("/")[2] in ADDED):
        return None
    outside = re.fullmatch(r"(?:\.\./)+(\w+)/(.+)", path)
    if not outside:
        return path
    data = f"{info.name.removesuffix('.dist-info')}.data"
    folder, rest = outside.groups()
    if folder == "bin":
        return None if rest in own else f"{data}/scripts/{rest}"
    return f"{data}/data/{folder}/{rest}"


def tags(info: Path) -> str:
    """Return the compressed tag of a wheel."""
    found = HeaderParser().parsestr((info / "WHEEL").read_text(encoding="utf-8")).get_all("Tag", [])
    return "-".join(".".join(sorted(set(part))) for part in zip(*(tag.split("-") for tag in found)))


def pack(info: Path, dest: Path) -> str:
    own, lines, other, gone = scripts(info), [], 0, 0
    wheel = dest / f"{info.name.removesuffix('.dist-info')}-{tags(info)}.whl"
    with (info / "RECORD").open(encoding="utf-8", newline="") as record:
        listed = list(csv.reader(record))
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, digest, _size in listed:
            name = place(path, info, own)
            if name is None:
                continue
            source = info.parent / path
            if not source.is_file():
                gone += 1
                continue
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o100755 if os.access(source, os.X_OK) else 0o100644) << 16
            entry.file_size = source.stat().st_size
            taken = hashlib.sha256()
            with source.open("rb") as file, archive.open(entry, "w") as out:
                while block := file.read(BLOCK):
                    taken.update(block)
                    out.write(block)
            found = f"sha256={base64.urlsafe_b64encode(taken.digest()).rstrip(b'=').decode()}"
            other += found != digest
            lines.append((name, found, str(entry.file_size)))
        lines.append((f"{info.name}/RECORD", "", ""))
        entry = zipfile.ZipInfo(f"{info.name}/RECORD", EPOCH)
        entry.external_attr = 0o100644 << 16
        with archive.open(entry, "w") as out:
            for line in lines:
                quoted = (f'"{part}"' if "," in part else part for part in line)
                out.write((",".join(quoted) + "\n").encode())
    told = [f"{len(lines)} files", f"{wheel.stat().st_size} bytes"]
    told += [f"{gone} gone"] if gone else []
    told += [f"{other} not as recorded"] if other else []
    return f"{wheel.name}: {', '.join(told)}"


def main() -> None:
    site, dest, *names = sys.argv[1:]
    Path(dest).mkdir(parents=True, exist_ok=True)
    wanted = {normal(name) for name in names}
    infos = [*Path(site).glob("*.dist-info")]
    infos = [info for info in infos if not wanted or normal(info.name.partition("-")[0]) in wanted]
    # the largest first, so that none is begun when the others have ended
    infos.sort(key=lambda info: -(info / "RECORD").stat().st_size)
    with ProcessPoolExecutor() as pool:
        for told in pool.map(pack, infos, [Path(dest)] * len(infos)):
            print(told, flush=True)


if __name__ == "__main__":
    main()
