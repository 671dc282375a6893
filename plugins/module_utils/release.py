# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release: one installed SGLang in a directory of its own, complete when its `release.json` is there.

    ROOT/uv/VERSION/            the installer
    ROOT/cache/                 what it has downloaded; may be elsewhere, and shared by the containers of a node
    ROOT/releases/NAME/venv/    interpreter and packages
    ROOT/releases/NAME/lock.txt       the exact file of each package, from which they are installed
    ROOT/releases/NAME/schema.json    the options of this SGLang, from its own parser
    ROOT/releases/NAME/release.json   inputs, exact packages and what was proved; written last

NAME holds a digest of the inputs, so changed inputs make another release beside the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    cuda_versions,
    gpu_driver,
    release_found,
    release_lock,
    release_proof,
    release_prune,
    release_record,
    release_room,
    release_uv,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    only_one,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.release_lock import Lock
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, LOGIN, Steps

WHEELS = "wheelhouse"  # of an archive, below a release while it is made
LOCK_WAIT = 1800  # s: a first installation downloads up to 10 GB


@dataclass(frozen=True)
class ReleaseSpec:
    """What a release is made of."""

    version: str
    overrides: tuple[str, ...]
    python: str  # interpreter of the host, e.g. /usr/bin/python3
    python_version: str  # of that interpreter, e.g. 3.11
    root: Path
    compiler: bool = False  # whether CUDA's is in it, of torch's version
    date: str = ""  # newest day of its packages; '' for the day of this version, or 'latest'
    lock: str = ""  # text of one that is given
    source: str = ""  # address of SGLang itself, where it is not taken from the index
    source_digest: str = ""  # of the wheel there

    @property
    def inputs(self) -> dict[str, Any]:
        """What decides the content of the release, apart from what the package index offers."""
        given = {
            "date": self.date,
            "lock": release_lock.digest(self.lock) if self.lock else "",
            "source": self.source_digest or self.source,
        }
        return {
            "requirement": f"sglang=={self.version}",
            "overrides": sorted(self.overrides),
            "python": self.python_version,
            **({"compiler": "wheels"} if self.compiler else {}),
            # names stay those of earlier versions of this collection
            **{name: value for name, value in given.items() if value},
        }

    @property
    def requirement(self) -> str:
        """SGLang as uv is asked for it."""
        return f"sglang @ {self.source}" if self.source else f"sglang=={self.version}"

    @property
    def name(self) -> str:
        """SGLang's version and a digest of the inputs, e.g. 0.5.23-1f3a9c2e."""
        digest = hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()
        return f"{self.version}-{digest[:8]}"

    @property
    def path(self) -> Path:
        """The directory of the release."""
        return self.root / "releases" / self.name


def python_version(python: str) -> str:
    """Return e.g. '3.11' of an interpreter."""
    try:
        done = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    except OSError as error:
        raise Refused(f"the interpreter {python} does not run: {error.strerror}; set sglang_install_python") from error
    if done.returncode != 0:
        raise Refused(f"the interpreter {python} does not work: {' | '.join(last_lines(done.stderr, 2))}")
    return done.stdout.strip()


def lacking_packages(names: Iterable[str], info: Path = Path("/var/lib/dpkg/info")) -> list[str]:
    """Return which packages of the distribution are not installed; a machine may be made anew around a release.

    A virtual one is never there.
    """
    if not info.is_dir():
        return []
    found = [(asked, re.split("[=/<>]", asked, maxsplit=1)[0]) for asked in names]
    # dpkg has the architecture in the name of the list only where a package may be installed for several
    lists = [(asked, [name, f"{name}:*", name.partition(":")[0]]) for asked, name in found]
    return [asked for asked, names in lists if not any([*info.glob(f"{name}.list")] for name in names)]


@dataclass(frozen=True)
class Means:
    """With what a release is made; none of it decides what is in it."""

    uv_version: str
    environment: Mapping[str, str]  # added to a clean one for every download (proxy, uv's settings)
    schema_probe: str  # source text of the module schema_probe
    cache: Path | None = None  # None: below the root
    wheelhouse: Path | None = None  # folder or archive; nothing but it is asked for packages


def install(spec: ReleaseSpec, means: Means) -> dict[str, Any]:
    """Make the release and return its record; what an interrupted installation left is replaced."""
    os.umask(0o022)  # the service user reads what root installs
    with writing_below(spec.root):
        spec.root.mkdir(parents=True, exist_ok=True)
    waiting = only_one(spec.root / "install.lock", f"installs into {spec.root}", LOCK_WAIT)
    with writing_below(spec.root), waiting as held:
        record = release_record.read(spec.path)
        if record is not None:
            return record
        if release_prune.runs_from(spec.path):
            raise Refused(
                f"the release {spec.path} is damaged (release.json, schema.json or its interpreter), and a server runs "
                "from it: stop that one, then deploy again, which makes the release anew"
            )
        shutil.rmtree(spec.path, ignore_errors=True)
        try:
            return _build(spec, means, (held,))
        except BaseException:
            shutil.rmtree(spec.path, ignore_errors=True)
            raise


@dataclass(frozen=True)
class Installer:
    """uv, and from where it takes packages."""

    steps: Steps
    uv: str
    options: tuple[str, ...]
    overrides: Path  # counts when a lock is made, and not when it is installed
    notes: tuple[str, ...]


def _installer(spec: ReleaseSpec, means: Means, place: Path, held: tuple[int, ...]) -> Installer:
    """Get uv; `place` is a folder for what is needed on the way."""
    environment, note = {**CLEAN, **means.environment}, ""
    if "UV_CACHE_DIR" not in environment:
        cache, note = release_uv.usable_cache(means.cache or spec.root / "cache", spec.root / "cache")
        environment["UV_CACHE_DIR"] = str(cache)
    steps = Steps(f"SGLang {spec.version}", spec.root, environment, held)
    folder = None
    if means.wheelhouse:
        # loaded only by those who need it: a module is compiled anew in each run, and most runs install nothing
        from ansible_collections.gpuops.sglang.plugins.module_utils import wheelhouse_files

        folder = wheelhouse_files.folder(steps.label, means.wheelhouse, place / WHEELS)
    offline = ("--no-index", "--find-links", str(folder)) if folder else ()
    uv = release_uv.get(steps, spec.python, spec.root / "uv" / means.uv_version, means.uv_version, offline)
    overrides = place / "overrides.txt"
    write_whole(overrides, "".join(f"{line}\n" for line in spec.overrides))
    steps = steps.given(UV_NO_CONFIG="1", UV_PYTHON_DOWNLOADS="never")
    return Installer(steps, uv, offline, overrides, (note,) if note else ())


def _build(spec: ReleaseSpec, means: Means, held: tuple[int, ...]) -> dict[str, Any]:
    begun = time.monotonic()
    spec.path.mkdir(parents=True, exist_ok=True)
    by = _installer(spec, means, spec.path, held)
    venv = spec.path / "venv"
    try:
        lock, cuda = _lock(spec, by)
        release_room.refuse_small(spec.root, Path(by.steps.environment["UV_CACHE_DIR"]), lock.size, by.steps.label)
        write_whole(spec.path / release_lock.FILE, lock.text)
        told, files = _installed(spec, by, means.schema_probe)
        release_proof.pins(by.steps, by.uv, str(venv / "bin/python"), spec.overrides)
        unproved = release_proof.loaded(told, gpu_driver.kernel_module()["version"])
    except BaseException:
        release_found.forget(by.steps)
        raise
    listing = by.steps.run("listing", [by.uv, "pip", "freeze", "--quiet", "--python", str(venv / "bin/python")])
    schema = {name: told[name] for name in ("sglang_version", "options")}
    write_whole(spec.path / "schema.json", json.dumps(schema, indent=1, sort_keys=True))
    record = {
        "name": spec.name,
        "version": spec.version,
        "inputs": spec.inputs,
        "packages": sorted(listing.split("\n")[:-1]),
        "distributions": sorted(folder.name for folder in venv.glob("lib/python3*/site-packages/*.dist-info")),
        "installed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "lock": release_lock.digest(lock.text),
        "files": files,
        "date": lock.date,
        "cuda": cuda,
        "bytes": lock.size,
        "seconds": round(time.monotonic() - begun, 1),
        "notes": [*by.notes, *lock.notes, *unproved],
    }
    shutil.rmtree(spec.path / WHEELS, ignore_errors=True)
    write_whole(spec.path / "release.json", json.dumps(record, indent=1, sort_keys=True))
    return record


def estimate(spec: ReleaseSpec, means: Means) -> dict[str, Any]:
    """Return what an installation would come to: number of packages, bytes of their files, seconds; leaves no trace."""
    if means.wheelhouse and not means.wheelhouse.is_dir():
        raise Refused(f"the archive {means.wheelhouse} is unpacked for an installation alone")
    with tempfile.TemporaryDirectory(prefix="sglang-") as name, writing_below(Path(name)):
        place = Path(name)
        root = spec.root if (spec.root / "uv" / means.uv_version / "bin/uv").exists() else place
        means = replace(means, environment={**means.environment, "UV_CACHE_DIR": str(place / "cache")})
        lock, _cuda = _lock(spec, _installer(replace(spec, root=root), means, place, ()))
    seconds = release_room.expected_seconds(spec.root, lock.size)
    return {"packages": len(lock.packages), "bytes": lock.size, "seconds": seconds}


def _lock(spec: ReleaseSpec, by: Installer) -> tuple[Lock, str]:
    """Return what is to be installed, and in words for which CUDA it is."""
    driver = gpu_driver.kernel_module()["version"]
    if any(LOGIN.search(line) for line in spec.overrides):
        raise Refused(
            "sglang_install_overrides has a login in an address, which every user of the host could read in the "
            "release: take it out"
        )
    if spec.lock:
        lock = release_lock.given(spec.lock, spec.version)
    else:
        steps = by.steps.given(UV_OVERRIDE=str(by.overrides)) if spec.overrides else by.steps
        alone = release_lock.sglang(steps, by.uv, spec.python, spec.requirement, by.options)
        day, notes = release_lock.cutoff(spec.date, alone)
        resolve = partial(release_lock.resolve, steps, by.uv, spec.python, by.options, day, notes)
        lock = resolve([spec.requirement])
    cuda = cuda_versions.torch_cuda(f"{package.name}=={package.version}" for package in lock.packages)
    problem = cuda_versions.driver_problem(cuda, driver)
    if problem:
        raise Refused(
            f"SGLang {spec.version}: {problem}: upgrade the driver (nvidia_driver_version), or set "
            "sglang_install_version to one for an older CUDA; nothing was installed"
        )
    if spec.compiler and not spec.lock:
        lock = resolve([spec.requirement, *cuda_versions.compiler_wheels(cuda)])
    return lock, cuda_versions.explained(cuda, driver)


def _installed(spec: ReleaseSpec, by: Installer, schema_probe: str) -> tuple[dict[str, Any], str]:
    """Install what the lock says, and return what the server tells of itself and a digest of all files.

    A damaged cache is repaired once; where nothing loads with byte code from there, it is tried without.
    """
    from ansible_collections.gpuops.sglang.plugins.module_utils import release_bytecode, release_files

    venv = spec.path / "venv"
    python = str(venv / "bin/python")
    for last in (False, True):
        by.steps.run("making the venv", [by.uv, "venv", "--quiet", "--clear", "--python", spec.python, str(venv)])
        _install(spec, by, python)
        site = next(venv.glob("lib/python3*/site-packages"), venv)
        told, failure = {}, None
        cache = Path(by.steps.environment["UV_CACHE_DIR"])
        with release_files.checked(site, cache) as checking:
            bundle = release_bytecode.Bundle(cache, checking.site, checking.owners, spec.python_version)
            laid = 0 if last else bundle.lay()
            try:
                told = release_proof.imported(by.steps, python, schema_probe)
            except Refused as refused:
                failure = refused
            damage = checking.damage()
        if not damage and not (failure and laid):
            break
        if last and damage:
            more = f" and {len(damage) - 1} more" if damage[1:] else ""
            raise Refused(f"{by.steps.label}: {damage[0]}{more}: the package itself is damaged; nothing was installed")
        if damage:
            by.steps.run("repairing the cache", [by.uv, "cache", "clean", "--quiet", *release_files.packages(damage)])
    if failure:
        raise failure
    if told["sglang_version"] != spec.version:
        found = told["sglang_version"]
        raise Refused(f"asked for SGLang {spec.version}, but {found} was installed in {spec.path}")
    bundle.keep(laid)
    checking.keep()
    return told, checking.digest()


def _install(spec: ReleaseSpec, by: Installer, python: str) -> None:
    """Install exactly the lock; a package from a repository's commit has no digest."""
    lines = (spec.path / release_lock.FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    install = [by.uv, "pip", "install", "--quiet", "--no-deps", *by.options, "--python", python, "-r", "-"]
    built = [line for line in lines if " @ git+" in line]
    by.steps.run("installing", [*install, "--require-hashes"], "".join(line for line in lines if line not in built))
    if built:
        by.steps.run("building", install, "".join(built))
