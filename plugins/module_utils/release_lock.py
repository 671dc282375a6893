# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What exactly a release is made of: the file of each package, resolved as of a day and written down with its digest.

uv's pylock.toml tells what the index says of each file (upload time, size). A release is installed from requirements
with digests: they name no index, so a mirror or a folder will do, and uv keeps its cache only by them.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils import release_found
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import normal
from ansible_collections.gpuops.sglang.plugins.module_utils.release_uv import interpreters
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import LOGIN, Steps

GRACE = datetime.timedelta(days=3)  # the kernels and the wheels for other Pythons come some days after a version
LATEST = "latest"
FILE = "lock.txt"
NO_TIMES = "is missing an upload date"


@dataclass(frozen=True)
class Package:
    """One package of a lock."""

    name: str
    version: str
    origin: str = ""  # where it does not come from an index: its address
    digests: tuple[str, ...] = ()  # SHA-256, hexadecimal
    size: int | None = None  # bytes of its file, where the index tells
    uploaded: str = ""  # e.g. 2026-05-07T00:07:07Z, where the index tells
    url: str = ""

    @property
    def line(self) -> str:
        """The requirement with the digests of its files."""
        what = f"{self.name} @ {self.origin}" if self.origin else f"{self.name}=={self.version}"
        return " ".join([what, *(f"--hash=sha256:{digest}" for digest in self.digests)])


@dataclass(frozen=True)
class Lock:
    """The packages of a release and how they were found."""

    packages: tuple[Package, ...]
    date: str = ""  # nothing that was uploaded after this day is in it; '' for no limit
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The content of the file."""
        return "".join(f"{package.line}\n" for package in self.packages)

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where no index told any."""
        sizes = [package.size for package in self.packages if package.size is not None]
        return sum(sizes) if sizes else None


def digest(text: str) -> str:
    """Return the digest of a lock; comments, order and the layout of its lines do not count."""
    return hashlib.sha256("\n".join(sorted(_requirements(text))).encode()).hexdigest()


def _requirements(text: str) -> list[str]:
    lines = (line.partition(" #")[0] for line in text.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def given(text: str, version: str) -> Lock:
    """Return the lock that an operator gives; raises Refused for one that is not of this version of SGLang."""
    packages = []
    for line in _requirements(text):
        what, *options = line.split(" --hash=sha256:")
        name, _equal, exact = what.partition("==")
        name, at, origin = (part.strip() for part in name.partition(" @ "))
        if LOGIN.search(line):
            raise Refused(
                f"sglang_install_lock has a login in the address of {name or 'a line'}, which every user of the host "
                "could read in the release: take it out"
            )
        if not (exact or at) or " " in exact or not (options or origin.startswith("git+")):
            raise Refused(
                f"sglang_install_lock has the line {line[:80]!r}: each line names one package with its exact version "
                f"and --hash=sha256:..., as the file {FILE} of a release does"
            )
        packages.append(Package(normal(name), exact.strip(), origin, tuple(option.strip() for option in options)))
    found = next((package for package in packages if package.name == "sglang"), None)
    if found is None or found.version not in ("", version):
        has = f"SGLang {found.version}" if found else "no SGLang"
        raise Refused(f"sglang_install_lock has {has} in it, not {version}: set sglang_install_version accordingly")
    return Lock(tuple(sorted(packages, key=lambda package: package.name)))


def parse(pylock: str) -> tuple[Package, ...]:
    """Return the packages of a pylock.toml as uv writes it; Python reads TOML by itself only from 3.11 on."""
    packages = []
    for block in pylock.split("[[packages]]\n")[1:]:
        name, version = _value(block, "name"), _value(block, "version")
        files = re.search(r"^(wheels|archive|vcs) = (.*?[]}])$", block, re.M | re.S)
        files = files or re.search(r"^(sdist) = (.*)$", block, re.M)
        if files is None:
            raise Refused(f"uv names no file for the package {name} {version}: use the uv_version of this collection")
        kind, told = files[1], files[2]
        where = _first(r'\b(?:url|path) = "([^"]*)"', told)
        origin = ""
        if kind == "vcs":
            below = _first(r'subdirectory = "([^"]*)"', told)
            commit = _first(r'commit-id = "([^"]*)"', told)
            origin = f"git+{where}@{commit}{f'#subdirectory={below}' if below else ''}"
        elif kind == "archive":
            origin = Path(where).as_uri() if where.startswith("/") else where
        size = _first(r"size = (\d+)", told)
        packages.append(
            Package(
                normal(name),
                version,
                origin,
                tuple(re.findall(r'sha256 = "([0-9a-f]{64})"', told)),
                int(size) if size else None,
                _first(r"upload-time = ([^,\s]+)", told),
                where,
            )
        )
    return tuple(packages)


def _value(block: str, name: str) -> str:
    return _first(rf'(?m)^{name} = "([^"]*)"', block)


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def resolve(
    steps: Steps, uv: str, python: str, options: Sequence[str], cutoff: str, notes: Sequence[str], wanted: Sequence[str]
) -> Lock:
    """Return the lock for the requirements as of the end of the day `cutoff`, or of today for ''."""
    arguments = [*_compile(uv, python), *options]
    # the same instant in every time zone
    dated = ["--exclude-newer", f"{cutoff}T23:59:59Z"] if cutoff else []
    kept = release_found.place(steps, uv, python, options, cutoff, wanted)
    with contextlib.suppress(Refused):
        packages = parse(release_found.read(kept))
        if any(package.name == "sglang" for package in packages):
            return Lock(packages, cutoff, tuple(notes))
    try:
        found = steps.run("resolving", [*arguments, *dated, "-"], _lines(wanted))
        packages = parse(found)
        release_found.keep(kept, found)
        return Lock(packages, cutoff, tuple(notes))
    except Refused as refused:
        if not (cutoff and NO_TIMES in str(refused)):
            raise
        found = steps.run("resolving", [*arguments, "-"], _lines(wanted))
        lost = _first(rf"`([^`]+)` {NO_TIMES}", str(refused)) or "a package"
        notes = [
            *notes,
            f"an index tells no upload times ({lost}): the newest packages are taken, not those of {cutoff}",
        ]
        return Lock(parse(found), "", tuple(notes))


def _compile(uv: str, python: str) -> list[str]:
    return [uv, "pip", "compile", "--no-header", "--format", "pylock.toml", "--python", python]


def _lines(wanted: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in wanted)


def sglang(steps: Steps, uv: str, python: str, requirement: str, options: Sequence[str]) -> Package:
    """Return SGLang alone, as the index has it for this interpreter; raises Refused where it has none that fits."""
    own = [] if " @ " in requirement else ["--only-binary", "sglang"]
    try:
        found = steps.run(
            "looking for it", [*_compile(uv, python), *options, *own, "--no-deps", "-"], f"{requirement}\n"
        )
    except Refused as refused:
        if "No solution found" not in str(refused):
            raise
        glibc = "{} {}".format(*_libc())
        raise Refused(
            f"{refused}; {python} was tried, this host has {interpreters()} and {glibc}: set sglang_install_python to "
            "one that would do, or sglang_install_version; nothing was installed"
        ) from None
    return parse(found)[0]


def _libc() -> tuple[str, str]:
    import platform

    return platform.libc_ver()


def cutoff(asked: str, package: Package) -> tuple[str, list[str]]:
    """Return the day after which nothing counts ('' for none) and what is to be said about it.

    `asked` is a day, 'latest', or '' for the day that the index has for SGLang with some days of grace.
    """
    if asked == LATEST:
        return "", []
    if asked:
        try:
            return str(datetime.date.fromisoformat(asked)), []
        except ValueError:
            raise Refused(f"sglang_install_date is {asked!r}: write a day like 2026-05-10, or {LATEST!r}") from None
    if not package.uploaded:
        return "", [
            f"{package.url.rpartition('/')[0] or 'the index'} tells no upload time of SGLang {package.version}: the "
            "newest packages are taken, not those of its day: set sglang_install_date to a day, or to 'latest'"
        ]
    return str(datetime.date.fromisoformat(package.uploaded[:10]) + GRACE), []
