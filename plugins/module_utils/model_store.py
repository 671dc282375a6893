# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The models of a host: fetched from a hub or another host into the store, or looked at where they are.

STORE/NAME/                      a whole model; never changed, apart from damage that is put right
STORE/NAME/.gpuops-model.json    its record
STORE/.NAME.partial/             what has been fetched so far
STORE/.NAME.lock                 held, also between the containers that share the store, while it is fetched
RECORDS/NAME.json                the record of a model that lies elsewhere, or in a store that is read only
RECORDS/.rates.json              how fast each hub and host was
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import model_record
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    holder,
    only_one,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub, Wanted
from ansible_collections.gpuops.sglang.plugins.module_utils.model_copy import Ssh, from_host
from ansible_collections.gpuops.sglang.plugins.module_utils.model_source import FromHub, Source
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import duration

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
PLAN = ".gpuops-fetch.json"  # in the partial directory: of each file there the hash it is to have, or size and age
RATES = ".rates.json"  # no name of a model begins with a dot
LOCK_WAIT = 2 * 86400  # s: another container may fetch a terabyte
MEASURED = 2  # s that a transfer must take to tell a rate
# What SGLang does not load where there are safetensors: other formats, and a vendor's own form of the same weights.
OTHER_WEIGHTS = re.compile(
    r".*\.(bin|ckpt|gguf|h5|msgpack|onnx|onnx_data|ot|pt|pth|tflite|mlmodel)|(original|onnx|openvino|coreml|metal)/.*"
)
CONSOLIDATED = re.compile(r"consolidated.*\.safetensors")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Model:
    """What an operator asks for: a repository of a hub, a directory, or one of another host."""

    name: str
    repo: str = ""
    revision: str = "main"
    path: str = ""
    copy_from: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Place:
    """Where models and their records are."""

    store: Path
    records: Path
    hub: Hub
    ssh: Ssh = field(default_factory=Ssh)

    def folder(self, model: Model) -> Path:
        """The directory of a model."""
        return Path(model.path) if model.path else self.store / model.name

    def source(self, model: Model) -> Source:
        """Where a model is fetched from."""
        return from_host(model.copy_from, self.ssh) or FromHub(self.hub, model.repo, model.revision)


def problems_of(models: Iterable[Model], remove: Sequence[str] = ()) -> list[str]:
    """Return what must be corrected in the lists of models to be had and of names to `remove`, one sentence each."""
    problems, names = [], set()
    for model in models:
        if model.name in remove:
            problems.append(f"model '{model.name}' is to be had and to be removed: take it out of one list")
        if not NAME.fullmatch(model.name):
            problems.append(f"a model has the name {model.name!r}: use up to 96 of a-z, A-Z, 0-9, '.', '_' and '-'")
        elif model.name in names:
            problems.append(f"model '{model.name}' is there twice: rename one")
        names.add(model.name)
        if [model.repo, model.path, model.copy_from].count("") != 2:
            problems.append(f"model '{model.name}' needs exactly one of 'repo', 'path' and 'copy_from'")
        elif model.path and not model.path.startswith("/"):
            problems.append(f"model '{model.name}' has the path {model.path!r}: write an absolute one")
        elif model.copy_from and not from_host(model.copy_from, Ssh()):
            problems.append(
                f"model '{model.name}' has copy_from {model.copy_from!r}: write [USER@]HOST:/PATH or "
                "ssh://[USER@]HOST[:PORT]/PATH"
            )
    return problems


def is_settled(model: Model, place: Place) -> bool:
    """Tell whether a quick look finds the model as its record has it."""
    folder = place.folder(model)
    try:
        record = _record(model, place)
    except Refused:
        return False  # told when it is its turn
    if record is None or model_record.changed(folder, record["files"]):
        return False
    return not model.path or set(model_record.files_of(folder)) == set(record["files"])


def ensure(model: Model, place: Place, full: bool, change: bool, tell: Tell) -> dict[str, Any]:
    """Have a model whole and verified; without `change` only say what would be fetched.

    `full` reads every file again. Raises Refused with what is wrong.
    """
    os.umask(0o022)  # the service user reads what root fetches
    done = _in_place(model, place, full, change, tell) if model.path else _in_store(model, place, full, change, tell)
    return {"name": model.name, "path": str(place.folder(model)), **done}


def all_of(
    models: Sequence[Model], place: Place, removed: Sequence[str], full: bool, change: bool, tell: Tell
) -> dict[str, Any]:
    """Have every model, and return the result of the task; what is wrong with one keeps no other from coming."""
    done, refused = [], []
    for model in models:
        try:
            done.append(ensure(model, place, full, change, tell))
        except Refused as problem:
            refused.append(str(problem))
    fetched = [one for one in done if one["fetched_files"] or "unknown" in one]
    diff = [
        {"before": "", "after": f"{_summary(one)}\n", "after_header": one["path"], "before_header": one["path"]}
        for one in fetched
    ]
    diff += [{"before": f"{name}\n", "after": "", "before_header": str(place.store / name)} for name in removed]
    changed = bool(fetched or removed)
    told = [f"{one['name']}: {problem}: fetched again" for one in done for problem in one["damaged"] if change]
    told += [f"{one['name']}: would fetch {_summary(one)}" for one in fetched if not change]
    result = {"changed": changed, "models": done, "removed": list(removed), "told": told, "diff": diff}
    return {**result, "failed": True, "msg": "\n".join(refused)} if refused else result


def _summary(one: Mapping[str, Any]) -> str:
    if "unknown" in one:
        return f"it; how large it is is not known: {one['unknown']}"
    took = one["usual_seconds"]
    time_needed = "unknown time" if took is None else f"about {duration(took)} at the rate of an earlier transfer"
    origin = one.get("copy_from") or one["commit"]
    return f"{one['fetched_files']} files of {origin}, {amount(one['fetched_size'])}, {time_needed}"


def _in_store(model: Model, place: Place, full: bool, change: bool, tell: Tell) -> dict[str, Any]:
    record = _record(model, place)
    if record and not full and is_settled(model, place):
        return _result(record, {})
    source = place.source(model)
    rate = _rates(place).get(source.address)
    if not change:
        if record:
            damaged, _files = _look(model, place, record, full, tell)
            return _result(record, {name: record["files"][name] for name in damaged}, damaged.values(), rate)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                source = source.ready(lambda _line: None, Path(scratch))
            except Refused as problem:  # a new host lacks what it needs for that, which check mode does not install
                return {**_result({"commit": "", "files": {}, "code": []}, {}), "unknown": str(problem)}
            made = _planned(model, source)
        _check_room(place.store, made["files"], place.store / f".{model.name}.partial")
        return _result(made, made["files"], (), rate)
    if record:
        damaged, files = _look(model, place, record, full, tell)
        if not damaged:
            _renew(model, place, record, files)
            return _result(record, {})
        if _is_read_only(place.folder(model)):
            told = "; ".join(damaged.values())
            raise Refused(
                f"{told}: {place.store} is read only here, deploy a host that may write there to put it right"
            )
    if place.store.is_symlink() and not place.store.exists():
        raise Refused(f"{place.store} is a link to {os.readlink(place.store)}, which is not there: mount it")
    with writing_below(place.store):
        place.store.mkdir(parents=True, exist_ok=True)
        lock, doing = place.store / f".{model.name}.lock", f"fetches {model.name} into {place.store}"
        other = holder(lock, doing)
        if other:
            tell(f"{model.name}: waits, {other} (or another container with this store does)")
        with only_one(lock, doing, LOCK_WAIT):
            return _fetched(model, place, full, tell)


def _fetched(model: Model, place: Place, full: bool, tell: Tell) -> dict[str, Any]:
    """Fetch what is not there or damaged; nobody else does meanwhile."""
    folder, work = place.folder(model), place.store / f".{model.name}.partial"
    record, source = _record(model, place), place.source(model)
    if record is None:
        source = _asked(source, model, tell)
        record = _planned(model, source)
        wanted: Wanted = record["files"]
        hashes = _bring(model, place, source, record["commit"], wanted, work, tell)
        problems = model_record.structure_problems(work)
        if problems:
            raise Refused(f"{source.named(record['commit'])} is no whole model: {'; '.join(problems)}")
        _check_code([*record["code"], *model_record.foreign_code(work)], model, source.page(record["commit"]))
        made = {name: model_record.state_of(work / name, hashes[name]) for name in wanted}
        model_record.write(work / model_record.NAME, {**record, "files": made, "verified": _now()})
        (work / PLAN).unlink()
        work.rename(folder)
        return _result(record, wanted, (), _rates(place).get(source.address))
    damaged, files = _look(model, place, record, full, tell)
    if damaged:
        source = _asked(source, model, tell)
        wanted = {name: record["files"][name] for name in damaged}
        hashes = _bring(model, place, source, record["commit"], wanted, work, tell)
        for name in wanted:
            # a server that has the damaged file open keeps that
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).replace(folder / name)
            files[name] = model_record.state_of(folder / name, hashes[name])
        shutil.rmtree(work)
    _renew(model, place, record, files)
    rate = _rates(place).get(source.address)
    return _result(record, {name: files[name] for name in damaged}, damaged.values(), rate)


def _asked(source: Source, model: Model, tell: Tell) -> Source:
    source = source.ready(lambda line: tell(f"{model.name}: {line}"))
    tell(f"{model.name}: asks {source.address}")
    return source


def _planned(model: Model, source: Source) -> dict[str, Any]:
    """Ask the source, and return a record without what only files have."""
    plan = source.plan(model.allow, model.ignore)
    files, named = plan["files"], source.named(plan["commit"])
    kept = needed(files) if not model.allow else files
    # a hidden file is no part of a model, and no name may lead out of its directory
    kept = {name: file for name, file in kept.items() if not any(part[:1] in ("", ".") for part in name.split("/"))}
    if not kept:
        raise Refused(f"{named} has no file that 'allow' and 'ignore' leave: correct them")
    code = sorted(name for name in kept if name.endswith(".py"))
    _check_code(code, model, source.page(plan["commit"]))
    return {**plan, "allow": list(model.allow), "ignore": list(model.ignore), "code": code, "files": kept}


def needed(files: Wanted) -> Wanted:
    """Leave out the forms of the same weights that SGLang does not load beside safetensors."""
    names = [name for name in files if "/" not in name and name.endswith(".safetensors")]
    others = {name for name in files if OTHER_WEIGHTS.fullmatch(name)} if names else set()
    if any(not CONSOLIDATED.fullmatch(name) for name in names):
        others |= {name for name in files if CONSOLIDATED.match(name)}
    return {name: file for name, file in files.items() if name not in others}


def _bring(
    model: Model, place: Place, source: Source, commit: str, wanted: Wanted, work: Path, tell: Tell
) -> dict[str, str]:
    """Fetch files into `work`, verify each of them, and return their hashes."""
    work.mkdir(exist_ok=True)
    _keep_known(work, wanted)
    _check_room(place.store, wanted, work)
    total = sum(file["size"] for file in wanted.values())
    first, began = model_record.there(work, wanted), time.monotonic()
    hashes, problems = {}, []
    start: tuple[int, float] | None = None  # of what is shown; the client takes a second to load
    heard: _Reading | None = None
    for answer in source.bring(commit, work, wanted):
        if "bytes" in answer:
            start = start or (answer["bytes"], time.monotonic())
            tell(_progress(model.name, answer["bytes"], start[0], total, time.monotonic() - start[1]))
        elif "read" in answer:
            heard = heard or _Reading(model.name, total, tell)
            heard.read(answer["read"])
        else:
            name, found = answer["came"], answer["hash"]
            path, expected, hashes[name] = work / name, wanted[name]["hash"] or found, found
            if path.stat().st_size != wanted[name]["size"]:
                problems.append(f"{path} has {path.stat().st_size} of {wanted[name]['size']} bytes")
            elif found != expected:
                problems.append(f"{path} has the hash {found}, expected is {expected}")
            else:
                continue
            path.unlink()
    took = time.monotonic() - began
    if problems:
        raise Refused(
            f"{'; '.join(problems)}: what {source.address} sent is removed, deploy again, and "
            "if it comes back so, what it stores is damaged"
        )
    if took >= MEASURED and total > first:
        place.records.mkdir(parents=True, exist_ok=True)
        rates = {**_rates(place), source.address: round((total - first) / took)}
        write_whole(place.records / RATES, json.dumps(rates, indent=1, sort_keys=True))
    return hashes


def _keep_known(work: Path, wanted: Wanted) -> None:
    """Remove from the partial directory what is of other files than those wanted now, e.g. of another commit."""
    now = {name: file["hash"] or f"{file['size']} {file['changed']}" for name, file in wanted.items()}
    try:
        earlier = json.loads((work / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # what has a hash is verified in any case, of anything else nothing is known
        earlier = {name: file["hash"] for name, file in wanted.items() if file["hash"]}
    for name in list(model_record.files_of(work)):
        if name not in now or earlier.get(name) != now[name]:
            (work / name).unlink()
    write_whole(work / PLAN, json.dumps(now))


def _check_room(store: Path, wanted: Wanted, work: Path) -> None:
    """Compare what is to come with the free space and inodes; the quota of a dataset or project shows there too."""
    place = next(path for path in (store, *store.parents) if path.exists())
    free = os.statvfs(place)
    blocks = sum(-(-file["size"] // free.f_frsize) for file in wanted.values())
    need = blocks * free.f_frsize - model_record.there(work, wanted)
    if need > free.f_bavail * free.f_frsize:
        there = amount(free.f_bavail * free.f_frsize)
        raise Refused(
            f"{len(wanted)} files need {amount(need)} in {store}, and {place} has {there} free: make room, or set "
            "sglang_model_store to another file system; nothing was fetched"
        )
    inodes = len({*wanted, *(parent for name in wanted for parent in Path(name).parents)}) + 2
    if free.f_files and inodes > free.f_favail:
        raise Refused(
            f"{inodes} inodes are needed in {store}, and {place} has {free.f_favail} free: remove small files there, "
            "or set sglang_model_store to another file system; nothing was fetched"
        )


def _look(
    model: Model, place: Place, record: Mapping[str, Any], full: bool, tell: Tell
) -> tuple[dict[str, str], dict[str, model_record.File]]:
    """Return name -> problem of each file that is damaged, and what the files are now."""
    folder, files = place.folder(model), dict(record["files"])
    names = list(files) if full else model_record.changed(folder, files)
    heard = _Reading(model.name, sum(files[name]["size"] for name in names), tell)
    damaged = {}
    for name in names:
        problem = model_record.file_problem(folder / name, files[name]["size"], files[name]["hash"], heard.read)
        if problem:
            damaged[name] = problem
        else:
            files[name] = model_record.state_of(folder / name, files[name]["hash"])
    return damaged, files


def _renew(model: Model, place: Place, record: Mapping[str, Any], files: Mapping[str, model_record.File]) -> None:
    """Keep what the files are now, on this host alone where the store is read only."""
    folder, renewed = place.folder(model), {**record, "files": dict(files), "verified": _now()}
    if files == record["files"]:
        return
    if _is_read_only(folder):
        _write_own(model, place, renewed)
    else:
        model_record.write(folder / model_record.NAME, renewed)


def _is_read_only(folder: Path) -> bool:
    return not os.access(folder, os.W_OK) or bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _write_own(model: Model, place: Place, record: Mapping[str, Any]) -> None:
    with writing_below(place.records):
        place.records.mkdir(parents=True, exist_ok=True)
    model_record.write(place.records / f"{model.name}.json", {**record, "path": str(place.folder(model))})


def _record(model: Model, place: Place) -> dict[str, Any] | None:
    """Return the record of what is there; raises Refused where that is not what is asked for."""
    folder = place.folder(model)
    own = model_record.read(place.records / f"{model.name}.json")
    if own and own.get("path") != str(folder):
        own = None
    if model.path:
        if own:
            _check_code(own["code"], model, model.path)
        return own
    # without its record the model would be one that somebody made
    record = model_record.read(
        folder / model_record.NAME, f"move {folder} away and deploy again, which fetches the model anew"
    )
    if record is None:
        if folder.exists() or folder.is_symlink():
            raise Refused(
                f"{folder} is there and was not fetched by this role: give the model another name, or write "
                f"'path: {folder}' in place of '{'copy_from' if model.copy_from else 'repo'}' to use it as it is"
            )
        return None
    rename = f"a model is not changed once it is there: give this one another name than '{model.name}'"
    source = place.source(model)
    difference = source.difference(record)
    if difference:
        raise Refused(f"{folder} has {difference}: {rename}")
    for kind in ("allow", "ignore"):
        if sorted(record[kind]) != sorted(getattr(model, kind)):
            asked = ", ".join(getattr(model, kind)) or "none"
            raise Refused(
                f"{folder} was fetched with {kind}: {', '.join(record[kind]) or 'none'}, asked for is {asked}: {rename}"
            )
    _check_code(record["code"], model, source.page(record["commit"]))
    return own if own and _hashes(own) == _hashes(record) else record


def _hashes(record: Mapping[str, Any]) -> dict[str, str]:
    return {name: file["hash"] for name, file in record["files"].items()}


def _check_code(code: Iterable[str], model: Model, where: str) -> None:
    names = list(code)
    if not names or model.trust_remote_code:
        return
    ignore = "" if model.path else ", or leave it out with 'ignore: [\"*.py\"]'"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise Refused(
        f"model '{model.name}' brings code that a server could be told to run ({shown}): read it in {where}, then set "
        f"'trust_remote_code: true' on the model{ignore}"
    )


def _in_place(model: Model, place: Place, full: bool, change: bool, tell: Tell) -> dict[str, Any]:
    """Verify a model that is there already and is never changed."""
    folder = Path(model.path)
    try:
        os.listdir(folder)
    except OSError as error:
        link = f", a link to {os.readlink(folder)}," if folder.is_symlink() else ""
        raise Refused(f"{folder}{link} can not be read: {error.strerror}: mount it, or correct 'path'") from error
    record = _record(model, place)
    if record and not full and is_settled(model, place):
        return _result(record, {})
    problems = model_record.structure_problems(folder)
    if problems:
        raise Refused("; ".join(problems))
    names = list(model_record.files_of(folder))
    code = [*(name for name in names if name.endswith(".py")), *model_record.foreign_code(folder)]
    _check_code(code, model, model.path)
    known = record["files"] if record else {}
    files = {}
    sizes = {name: (folder / name).stat().st_size for name in names}
    heard = _Reading(model.name, sum(sizes.values()), tell)
    moved = set(model_record.changed(folder, known))
    for name in names:
        was = known.get(name, {}).get("hash", "")
        found = model_record.digest(folder / name, "sha256", heard.read) if full or (was and name in moved) else was
        if was and found != was:
            own = place.records / f"{model.name}.json"
            raise Refused(
                f"{folder / name} was changed since {record and record['verified']}: it has the hash {found}, expected "
                f"is {was}: put it back, or delete {own} if the change is meant"
            )
        files[name] = model_record.state_of(folder / name, found)
    made = {"code": code, "commit": "", "files": files, "verified": _now()}
    if change:
        _write_own(model, place, made)
    return _result(made, {})


def remove(names: Sequence[str], place: Place, used: Mapping[str, Sequence[str]], change: bool) -> list[str]:
    """Remove models of the store by name, and return those that were there.

    `used` has the paths of each launch of this host that serves or is to come back. Raises Refused for one of these,
    before any is removed.
    """
    for name in names:
        folder = place.store / name
        if not NAME.fullmatch(name):
            raise Refused(f"{name!r} is no name of a model: correct sglang_model_remove")
        for launch, paths in used.items():
            for served in (Path(path).resolve() for path in paths):
                if folder.resolve() in (served, *served.parents):
                    raise Refused(
                        f"{folder} is not removed: {launch} has {served}, and serves or would be returned to: deploy "
                        "that instance with another model first, and once more where it would be returned to"
                    )
        if folder.exists() and model_record.read(folder / model_record.NAME) is None:
            raise Refused(f"{folder} was not fetched by this role: remove it by hand if that is meant")
    there = []
    for name in names:
        folder = place.store / name
        parts = [folder, *(place.store / f".{name}.{end}" for end in ("partial", "removed"))]
        own = place.records / f"{name}.json"
        if any(path.exists() for path in (*parts, own)):
            there.append(name)
        if name not in there or not change:
            continue
        with writing_below(place.store):
            if any(path.exists() for path in parts):
                with only_one(place.store / f".{name}.lock", f"fetches {name}", 0):
                    if folder.exists():
                        shutil.rmtree(parts[2], ignore_errors=True)
                        folder.rename(parts[2])  # it is there whole, or not at all
                    for path in parts[1:]:
                        if path.exists():
                            shutil.rmtree(path)
            own.unlink(missing_ok=True)
    return there


def _result(
    record: Mapping[str, Any], fetched: Mapping[str, Any], damaged: Iterable[str] = (), rate: int | None = None
) -> dict[str, Any]:
    size = sum(file["size"] for file in fetched.values())
    return {
        "commit": record["commit"],
        **({"copy_from": record["copy_from"]} if "copy_from" in record else {}),
        "files": len(record["files"]),
        "size": sum(file["size"] for file in record["files"].values()),
        "code": record["code"],
        "fetched_files": len(fetched),
        "fetched_size": size,
        "usual_seconds": round(size / rate) if fetched and rate else None,
        "damaged": list(damaged),
    }


def _rates(place: Place) -> dict[str, int]:
    try:
        rates: dict[str, int] = json.loads((place.records / RATES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return rates


class _Reading:
    """Tells how far the reading of files is, once a second."""

    def __init__(self, name: str, total: int, tell: Tell) -> None:
        self._name, self._total, self._tell = name, total, tell
        self._count, self._began = 0, time.monotonic()
        self._told = self._began

    def read(self, count: int) -> None:
        """Hear of bytes that were read."""
        self._count += count
        now = time.monotonic()
        if now > self._told + 1:
            self._told = now
            self._tell(_progress(f"{self._name}: verifies", self._count, 0, self._total, now - self._began, " "))


def _progress(what: str, there: int, first: int, total: int, seconds: float, colon: str = ": ") -> str:
    line = f"{what}{colon}{amount(there)} of {amount(total)}"
    rate = (there - first) / seconds if seconds > 0 else 0
    return f"{line}, {amount(rate)}/s, {duration((total - there) / rate)} left" if rate >= 1 and there < total else line


def amount(size: float) -> str:
    """Return bytes as the hub's pages show them, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
