# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A release: one installed SGLang in a directory of its own, complete when its `release.json` is there.

    ROOT/uv/VERSION/            the installer
    ROOT/releases/NAME/venv/    interpreter and packages
    ROOT/releases/NAME/schema.json    the options of this SGLang, from its own parser
    ROOT/releases/NAME/release.json   inputs and exact packages, also as the folders of their metadata; written last

NAME holds a digest of the inputs, so changed inputs make another release beside the old one.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import cuda_versions, gpu_driver
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    only_one,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, make_venv, step

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

    @property
    def inputs(self) -> dict[str, Any]:
        """What decides the content of the release, apart from what the package index offers."""
        return {
            "requirement": f"sglang=={self.version}",
            "overrides": sorted(self.overrides),
            "python": self.python_version,
            **({"compiler": "wheels"} if self.compiler else {}),
        }

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


def read(path: Path) -> dict[str, Any] | None:
    """Return the record of the complete release in `path`, or None."""
    try:
        record = json.loads((path / "release.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if (path / "venv/bin/python").exists() and schema(path) is not None else None


def schema(path: Path) -> Options | None:
    """Return the options of the release in `path` (main spelling -> facts), or None where there is no release."""
    try:
        content = json.loads((path / "schema.json").read_text(encoding="utf-8"))
        return Options(content["options"], content.get("sglang_version", ""))
    except (OSError, ValueError, KeyError):
        return None


def changes(path: Path) -> list[str]:
    """Return what was changed by hand in the release in `path` since its installation, in words.

    The packages that are there, and SGLang's own files: the size of each, and the content of what was written since.
    """
    record = read(path)
    if record is None:
        return [f"the release {path} is damaged or gone"]
    folders = sorted(path.glob("venv/lib/python3*/site-packages/*.dist-info"))
    present = _versions(folder.name for folder in folders)
    # a record of an earlier version of this collection has the requirements alone
    installed = _versions(record["distributions"] if "distributions" in record else record["packages"])
    found = []
    for name in sorted({*present, *installed}):
        was, now = installed.get(name, ""), present.get(name, "")
        if name not in present:
            found.append(f"package {name} was removed, installed was {was}")
        elif name not in installed:
            found.append(f"package {name} {now} was added")
        elif was not in (now, ""):
            found.append(f"package {name} is {now}, installed was {was}")
    since = (path / "release.json").stat().st_mtime
    for folder in folders:
        if folder.name.startswith("sglang-"):
            found += _changed_files(folder / "RECORD", since)
    return found


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Return name -> version of folders like a_b-1.0.dist-info or of lines like A.b==1.0, all written alike.

    The version of a package that was installed from an address is ''.
    """
    split = re.compile(r"([\w.-]+?)(?:-([^-]+)\.dist-info|==(.+)| @ .+)")
    found = filter(None, map(split.fullmatch, packages))
    return {
        re.sub(r"[-_.]+", "-", match[1]).lower(): re.sub(r"\b0+(?=\d)", "", (match[2] or match[3] or "").lower())
        for match in found
    }


def _changed_files(record: Path, since: float) -> Iterator[str]:
    """Yield what differs from the RECORD of a distribution: a line is a path, its digest, its size in bytes."""
    try:
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
    except OSError:
        yield f"{record.parent.name}/RECORD was removed"
        return
    site = str(record.parents[1])
    for name, digest, size in (row for row in rows if len(row) == 3):
        if not digest.startswith("sha256="):
            continue  # RECORD itself, and what Python compiles
        path = os.path.join(site, name)
        try:
            state = os.stat(path)
        except OSError:
            yield f"{name} was removed"
            continue
        if size not in ("", str(state.st_size)) or (state.st_mtime >= since and _digest(path) != digest):
            yield f"{name} was changed"


def _digest(path: str) -> str:
    """Return the digest of a file as RECORD has it."""
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def install(spec: ReleaseSpec, uv_version: str, environment: Mapping[str, str], schema_probe: str) -> dict[str, Any]:
    """Make the release and return its record; what an interrupted installation left is replaced.

    `environment` is added to a clean one for every download (proxy, uv's settings). `schema_probe` is the source text
    of the module schema_probe.
    """
    os.umask(0o022)  # the service user reads what root installs
    environment = {**CLEAN, **environment}
    with writing_below(spec.root):
        spec.root.mkdir(parents=True, exist_ok=True)
    with writing_below(spec.root), only_one(spec.root / "install.lock", f"installs into {spec.root}", LOCK_WAIT):
        record = read(spec.path)
        if record is not None:
            return record
        uv = _uv(spec, uv_version, environment)
        shutil.rmtree(spec.path, ignore_errors=True)
        try:
            return _build(spec, uv, environment, schema_probe)
        except BaseException:
            shutil.rmtree(spec.path, ignore_errors=True)
            raise


def _build(spec: ReleaseSpec, uv: str, environment: Mapping[str, str], schema_probe: str) -> dict[str, Any]:
    spec.path.mkdir(parents=True, exist_ok=True)
    venv = spec.path / "venv"
    python = str(venv / "bin/python")
    overrides = spec.path / "overrides.txt"
    write_whole(overrides, "".join(f"{line}\n" for line in spec.overrides))
    environment = {**environment, "UV_OVERRIDE": str(overrides), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    _step(spec, "making the venv", [uv, "venv", "--quiet", "--clear", "--python", spec.python, str(venv)], environment)
    wanted = [spec.inputs["requirement"], *_for_cuda(spec, uv, python, environment)]
    _step(spec, "installing", [uv, "pip", "install", "--quiet", "--python", python, *wanted], environment)
    listing = _step(spec, "listing", [uv, "pip", "freeze", "--quiet", "--python", python], environment)
    options = _step(spec, "importing the server", [python, "-I", "-"], environment, stdin=schema_probe)
    # packages may write to standard output when they are imported, and when the interpreter ends
    described, _end = json.JSONDecoder().raw_decode(options[options.index('{"sglang_version"') :])
    if described["sglang_version"] != spec.version:
        found = described["sglang_version"]
        raise Refused(f"asked for SGLang {spec.version}, but {found} was installed in {spec.path}")
    write_whole(spec.path / "schema.json", json.dumps(described, indent=1, sort_keys=True))
    record = {
        "name": spec.name,
        "version": spec.version,
        "inputs": spec.inputs,
        "packages": sorted(listing.split("\n")[:-1]),
        "distributions": sorted(folder.name for folder in venv.glob("lib/python3*/site-packages/*.dist-info")),
        "installed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_whole(spec.path / "release.json", json.dumps(record, indent=1, sort_keys=True))
    return record


def _for_cuda(spec: ReleaseSpec, uv: str, python: str, environment: Mapping[str, str]) -> list[str]:
    """Return what CUDA's compiler adds; raises Refused, before anything large comes, for a driver that is too old."""
    driver = gpu_driver.kernel_module()["version"]
    if not (driver or spec.compiler):
        return []
    resolve = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", python, "-"]
    resolved = _step(spec, "resolving", resolve, environment, stdin=spec.inputs["requirement"])
    cuda = cuda_versions.torch_cuda(resolved.split("\n"))
    problem = cuda_versions.driver_problem(cuda, driver)
    if problem:
        raise Refused(
            f"SGLang {spec.version}: {problem}: upgrade the driver (nvidia_driver_version), or set "
            "sglang_install_version to one for an older CUDA; nothing was installed"
        )
    return cuda_versions.compiler_wheels(cuda) if spec.compiler else []


def _uv(spec: ReleaseSpec, uv_version: str, environment: Mapping[str, str]) -> str:
    """Return the path of uv, installed in a venv of its own."""
    home = spec.root / "uv" / uv_version
    uv = home / "bin/uv"
    try:
        if run([str(uv), "--version"]).stdout.split()[1:2] == [uv_version]:
            return str(uv)
    except OSError:
        pass  # it is not there, or an interrupted installation left a part of it
    make_venv(home, spec.python, f"uv=={uv_version}", environment, f"SGLang {spec.version}")
    return str(uv)


def _step(spec: ReleaseSpec, what: str, argv: Sequence[str], environment: Mapping[str, str], stdin: str = "") -> str:
    return step(f"SGLang {spec.version}", what, argv, environment, spec.root, stdin)
