# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder that has all the files of a release, for hosts without an index."""

from __future__ import annotations

import base64
import http.client
import os
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ansible_collections.gpuops.sglang.plugins.module_utils import release_lock, release_uv
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, write_whole, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.release_lock import Lock, Package
from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import sha256_of
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import VERSION as SUPERVISORD
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, Steps

BLOCK = 2**20  # bytes
TIMEOUT = 60  # s without a byte


@dataclass(frozen=True)
class Target:
    """For which host the files are."""

    version: str
    overrides: tuple[str, ...]
    date: str
    python: str  # interpreter here
    python_version: str  # there, e.g. 3.12; '' for that of the interpreter here
    platform: str  # there, as uv names it, e.g. x86_64-manylinux_2_36; '' for the one here


def make(target: Target, path: Path, uv_version: str, environment: Mapping[str, str]) -> tuple[Lock, list[str]]:
    """Fill the folder `path`, and return what is in it and the names of the files that came now."""
    work = path / ".work"
    with writing_below(path):
        path.mkdir(parents=True, exist_ok=True)
        try:
            return _made(target, path, work, uv_version, environment)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _made(
    target: Target, path: Path, work: Path, uv_version: str, environment: Mapping[str, str]
) -> tuple[Lock, list[str]]:
    environment = {"UV_CACHE_DIR": str(work / "cache"), **CLEAN, **environment}
    steps = Steps(f"SGLang {target.version}", path, environment)
    uv = release_uv.get(steps, target.python, work / "uv" / uv_version, uv_version)
    steps = steps.given(UV_NO_CONFIG="1", UV_PYTHON_DOWNLOADS="never")
    if target.overrides:
        write_whole(work / "overrides.txt", "".join(f"{line}\n" for line in target.overrides))
        steps = steps.given(UV_OVERRIDE=str(work / "overrides.txt"))
    options = ["--only-binary", ":all:"]
    options += ["--python-version", target.python_version] if target.python_version else []
    options += ["--python-platform", target.platform] if target.platform else []
    requirement = f"sglang=={target.version}"
    alone = release_lock.sglang(steps, uv, target.python, requirement, options)
    day, notes = release_lock.cutoff(target.date, alone)
    lock = release_lock.resolve(steps, uv, target.python, options, day, notes, [requirement])
    tools = [f"uv=={uv_version}", f"supervisor=={SUPERVISORD}"]
    files = (*lock.packages, *release_lock.resolve(steps, uv, target.python, options, "", [], tools).packages)
    others = sorted(wheel.name for wheel in set(path.glob("*.whl")) - {path / _name(one) for one in files})
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        raise Refused(
            f"{path} has {others[0]}{more}, which SGLang {target.version} of this day does not need: name another "
            "folder for each version, Python and platform, or remove what is not to be in it"
        )
    came = _bring(steps, files, path)
    write_whole(path / release_lock.FILE, lock.text)
    return lock, came


def _name(package: Package) -> str:
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(package.url).path)).name
    if not name.endswith(".whl"):
        raise Refused(f"the index has {package.url} for {package.name} {package.version}, which is no wheel")
    return name


def _logins(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the logins of each host, as uv takes them from its variables: of an address, or of a name for it."""
    found: dict[str, list[str]] = {}
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        for word in re.split(r"[\s,]+", environment.get(variable, "")):
            name, equal, address = word.partition("=")
            if "://" in name or not equal:
                name, address = "", word
            own = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', name.upper())}"
            parts = urllib.parse.urlsplit(address)
            user = environment.get(f"{own}_USERNAME") or urllib.parse.unquote(parts.username or "")
            password = environment.get(f"{own}_PASSWORD") or urllib.parse.unquote(parts.password or "")
            if user or password:
                login = base64.b64encode(f"{user}:{password}".encode()).decode()
                found.setdefault(parts.netloc.rpartition("@")[2], []).append(login)
    return found


def _opened(url: str, logins: Sequence[str]) -> IO[bytes]:
    """Return the answer for a file, by the first of the logins that opens it; '' is none."""
    request = urllib.request.Request(url)
    if logins[0]:
        request.add_unredirected_header("Authorization", f"Basic {logins[0]}")
    try:
        answer: IO[bytes] = urllib.request.build_opener().open(request, timeout=TIMEOUT)
        return answer
    except urllib.error.HTTPError as error:
        # some tell nobody what there is
        if error.code not in (401, 403, 404) or not logins[1:]:
            raise
    return _opened(url, logins[1:])


def _bring(steps: Steps, files: Sequence[Package], path: Path) -> list[str]:
    """Download what is not there, each file checked by its digest, and return the names."""
    os.environ.update(steps.environment)  # proxies and certificates, as uv has them
    logins = _logins(steps.environment)
    came = []
    for package in files:
        place = path / _name(package)
        if place.exists() and sha256_of(place).hex() in package.digests:
            continue
        partial = place.with_name(f".{place.name}.partial")
        try:
            own = logins.get(urllib.parse.urlsplit(package.url).netloc, [])
            with _opened(package.url, ["", *own]) as answer, partial.open("wb") as file:
                shutil.copyfileobj(answer, file, BLOCK)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, socket.timeout) as error:
            raise Refused(f"{steps.label}: can not download {package.url}: {error}: the next run goes on") from error
        found = sha256_of(partial).hex()
        if found not in package.digests:
            partial.unlink()
            raise Refused(
                f"{steps.label}: {package.url} has the digest {found}, expected was {' or '.join(package.digests)}"
            )
        os.replace(partial, place)
        came.append(place.name)
    return came
