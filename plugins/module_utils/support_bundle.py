# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What another one needs to understand the instances of a host, in one archive without secrets."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils import release_record as releases
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, run, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import MASK, Masker
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import launch_of

LOG_LINES = 20_000  # of each log
LIMIT = 48 * 2**20  # bytes of all files; the archive is never larger than 50 MiB
WAIT = 20  # s for each command: a broken driver or file system may never answer
PROC = Path("/proc")
KEPT = ("launch.json", "verdict.json", "failure.json", "unit")  # of each launch; its secrets are never read into this
README = """\
Support bundle of the host {host}, made {made} by gpuops.sglang.

host/       versions, memory, limits and GPUs
instances/  of each instance its unit, what systemd says of it, its environment and its kept launches; the log of the
            present launch and of the last one that failed
models/     names, sizes and configuration of the models
releases/   what is installed, and what was changed in it by hand

Every secret of the kept launches is replaced by {mask}, and so is what looks like a secret: what follows a name like
api_key, token, password or secret, the password in an address, and words that begin as known kinds of keys do.
Names of hosts, addresses, paths and what requests have left in the logs are as they were: look through the files before
you give them away. In a long file the middle may be left out.

{files}
"""


def instances(state: Path) -> list[str]:
    """Return the names of all instances of this host, also of those that have only records."""
    return sorted({*supervisor().installed_instances(), *(path.parent.name for path in state.glob("*/launches"))})


def collect(state: Path, names: Sequence[str], log: Callable[[str], list[str]]) -> dict[str, bytes]:
    """Return path in the archive -> masked content. `log` gives the last LOG_LINES lines of a launch."""
    texts = dict(_host(state))
    records = []
    for name in names:
        texts.update(_instance(state, name, log))
        records += [_record(folder) for folder in (state / name / "launches").glob("*")]
    for path in sorted({record["release"] for record in records if record.get("release")}):
        texts.update(_release(Path(path)))
    for path in sorted({record["model"] for record in records if str(record.get("model")).startswith("/")}):
        texts.update(_model(Path(path)))
    mask = Masker(_secrets(state))
    files = _bounded({name: mask(texts[name]).encode(errors="backslashreplace") for name in sorted(texts)})
    listing = "\n".join(f"{len(files[name]):>10} {name}" for name in sorted(files))
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    readme = README.format(host=socket.gethostname(), made=made, mask=MASK, files=listing)
    return {"README.txt": readme.encode(), **files}


def write(folder: Path | None, files: Mapping[str, bytes]) -> Path:
    """Write the archive into `folder`, or a fresh one that only root can enter, and return its path; raises Refused."""
    made = time.time()
    name = f"{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(made))}"
    with writing_below(folder or Path(tempfile.gettempdir())), contextlib.ExitStack() as undo:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="sglang-support-"))
            undo.callback(folder.rmdir)
        path = folder / f"{name}.tar.gz"
        # a file or a link that somebody has put there is not written to
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(path.unlink)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for member, content in files.items():
                facts = tarfile.TarInfo(f"{name}/{member}")
                facts.size, facts.mode, facts.mtime = len(content), 0o600, int(made)
                archive.addfile(facts, io.BytesIO(content))
        undo.pop_all()
    return path


def _host(state: Path) -> Iterator[tuple[str, str]]:
    versions = [_said("uname", "-a"), _text(Path("/etc/os-release")), _said("systemctl", "--version"), sys.version]
    driver = PROC / "driver/nvidia/version"
    yield "host/versions.txt", "\n".join([*versions, _text(driver)])
    yield "host/memory.txt", _text(PROC / "meminfo") + "\n" + _said("df", "--block-size=1M", "/dev/shm", str(state))
    yield "host/limits.txt", _text(PROC / "self/limits")
    apps = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    yield "host/gpus.txt", _said("nvidia-smi") + "\n" + _said("nvidia-smi", apps, "--format=csv")
    yield "host/gpus-all.txt", _said("nvidia-smi", "-q")


def _instance(state: Path, name: str, log: Callable[[str], list[str]]) -> Iterator[tuple[str, str]]:
    place, unit = f"instances/{name}", supervisor().unit_path(name)
    yield f"{place}/{unit.name}", _text(unit)
    service = _said(*supervisor().described(name))
    yield f"{place}/service.txt", service
    shown = dict(line.partition("=")[::2] for line in service.splitlines())
    for drop_in in shown.get("DropInPaths", "").split():
        yield f"{place}/drop-ins/{Path(drop_in).parent.name}-{Path(drop_in).name}", _text(Path(drop_in))
    if shown.get("MainPID", "0").strip("0"):
        process = PROC / shown["MainPID"]
        variables = [variable.partition("=") for variable in _text(process / "environ").split("\0") if variable]
        # in quotes, within which a masked value may hold anything
        lines = (
            f"{variable}={json.dumps(value, ensure_ascii=False)}\n" for variable, _sign, value in sorted(variables)
        )
        yield f"{place}/environment.txt", "".join(lines)
        yield f"{place}/limits.txt", _text(process / "limits")
    folders = sorted(folder for folder in (state / name / "launches").glob("*") if folder.is_dir())
    for folder in folders:
        for path in map(folder.joinpath, KEPT):
            if path.is_file():
                yield f"{place}/launches/{folder.name}/{path.name}", _text(path)
    present = launch_of(supervisor().read_unit(name))
    others = (folder.name for folder in folders[::-1] if folder.name != present and _failed(folder))
    for launch in filter(None, (present, next(others, None))):
        yield f"{place}/launches/{launch}/log.txt", _log(state / name / "launches" / launch, log)


def _failed(folder: Path) -> bool:
    return (folder / "failure.json").is_file() or not (folder / "verdict.json").is_file()


def _log(folder: Path, log: Callable[[str], list[str]]) -> str:
    """Return the log of a launch, or what was kept of it when it failed, if the journal has given it up."""
    lines, kept = [], folder / "failure.log"
    with contextlib.suppress(OSError, Refused):
        lines = log(folder.name)
    if not lines and kept.is_file():
        lines = _text(kept).splitlines()
    return "\n".join(lines[-LOG_LINES:]) or "(nothing is left of it)"


def _release(path: Path) -> Iterator[tuple[str, str]]:
    schema = releases.schema(path)
    facts = [f"options of SGLang {schema.version}" if schema is not None else "no options of SGLang are recorded"]
    facts += [_said(str(path / "venv/bin/python"), "--version"), *releases.changes(path)]
    yield f"releases/{path.name}/release.json", _text(path / "release.json")
    yield f"releases/{path.name}/facts.txt", "\n".join(facts)


def _model(path: Path) -> Iterator[tuple[str, str]]:
    place = f"models/{re.sub(r'[^A-Za-z0-9._-]', '_', str(path).strip('/'))}"
    # by commands that can be given up, since models may lie on a file system that does not answer
    yield f"{place}/files.txt", _said("ls", "-lAnL", "--time-style=+%Y-%m-%dT%H:%M:%S%z", str(path))
    config = _output(["cat", str(path / "config.json")])
    with contextlib.suppress(ValueError):  # it may be a link to what is nobody's business
        json.loads(config)
        yield f"{place}/config.json", config


def _secrets(state: Path) -> list[tuple[str, str]]:
    """Return name and value of every secret that is kept, and what else is on the lines of a file edited by hand."""
    found: list[tuple[str, str]] = []
    for folder in sorted(state.glob("*/launches/*")):
        with contextlib.suppress(ValueError):
            found += launches.secrets_of(state, folder.parents[1].name, folder.name).items()
        for path in sorted(folder.glob("secrets.*")):
            lines = (re.sub(r"^\s*[\w-]+\s*[:=]\s*", "", line) for line in _text(path).splitlines())
            found += [("", line.strip("'\" ")) for line in lines]
    return found


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _said(*argv: str) -> str:
    return f"$ {shlex.join(argv)}\n{_output(argv)}"


def _output(argv: Sequence[str]) -> str:
    try:
        done = run(argv, {**os.environ, "LC_ALL": "C.UTF-8"}, timeout=WAIT)
    except OSError as error:
        return f"(can not run {argv[0]}: {error.strerror})\n"
    except subprocess.TimeoutExpired:
        return f"(no answer within {WAIT} s)\n"
    status = f"(exit status {done.returncode})\n" if done.returncode else ""
    return done.stdout + done.stderr + status


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})\n"


def _bounded(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files with the middle of the largest left out, so that all together have at most LIMIT bytes."""
    found, left = {}, LIMIT
    for count, name in enumerate(sorted(files, key=lambda name: len(files[name]))):
        content, share = files[name], left // (len(files) - count)
        if len(content) > share:
            half = share // 2 - 50
            content = content[:half] + b"\n(%d bytes are left out)\n" % (len(content) - 2 * half) + content[-half:]
        found[name] = content
        left -= len(content)
    return {name: found[name] for name in files}
