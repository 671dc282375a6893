# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a model's files: a record that makes the next look cost no more than a stat of each file.

A file whose size, time of change or inode is another is read again; with the same content it is the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import model_files
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, write_whole

NAME = ".gpuops-model.json"  # in the directory of a model that was fetched
CHUNK = 4 * 2**20  # bytes
# files that may name code of another repository (REPO--MODULE.CLASS)
CONFIGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # e.g. OWNER/REPO, or OWNER/REPO:Q4_K_M

File = dict[str, Any]  # size in bytes, mtime_ns, inode, hash ('sha256:...', 'git-sha1:...', or '' where none is known)
Read = Callable[[int], None]  # is told of bytes that were read


def read(path: Path, step: str = "delete it and deploy again") -> dict[str, Any] | None:
    """Return a record, or None where there is none; `step` helps where it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        record = None
    except OSError as error:
        raise Refused(f"can not read the record {path}: {error.strerror}") from error
    if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
        raise Refused(f"the record {path} is damaged: {step}")
    return record


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record whole."""
    write_whole(path, json.dumps(record, indent=1, sort_keys=True))


def needs_no_hub(folder: Path, args: Mapping[str, Any]) -> bool:
    """Tell whether a server of the model in `folder` has all it needs: it was fetched, and names no other repository.

    Raises Refused where its record is damaged.
    """
    try:
        record = read(folder / NAME)
    except Refused as refused:
        # the model is a file, or on a file system that trusts no root, where nobody can tell
        if isinstance(refused.__cause__, (NotADirectoryError, PermissionError)):
            return False
        raise
    if record is None or foreign_code(folder):
        return False
    # SGLang's LLaVA loads its vision tower from there
    if HUB_ID.fullmatch(str(model_files.mapping(folder / "config.json").get("mm_vision_tower"))):
        return False
    # either lets anyone who may load an adapter name one of a hub
    if args.get("enable_lora") or args.get("lora_paths"):
        return False
    return not any(_names_hub(name, word) for name, value in args.items() for word in _words(value))


def _names_hub(name: str, word: str) -> bool:
    """Tell whether an argument may name a repository; in doubt it does, as a server without a hub would not start."""
    if name == "served_model_name":
        return False
    if name.endswith(("_path", "_model")) and not word.startswith("/"):
        return True  # e.g. gpt2
    return bool((HUB_ID.search if word.startswith(("{", "[")) else HUB_ID.fullmatch)(word))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _words(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _words(one)


def state_of(path: Path, digest: str) -> File:
    """Return what a record has of a file whose hash is known."""
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino, "hash": digest}


def digest(path: Path, like: str, heard: Read = lambda _count: None) -> str:
    """Return the hash of a file, of the kind that `like` is: git's of a blob, or sha256."""
    kind = like.partition(":")[0] or "sha256"
    made = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if kind == "git-sha1":
            made = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size)
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return f"{kind}:{made.hexdigest()}"
            made.update(chunk)
            heard(len(chunk))


def file_problem(path: Path, size: int, wanted: str, heard: Read = lambda _count: None) -> str | None:
    """Return what is wrong with a file, with what was expected and what was found; '' for `wanted` asks for no hash."""
    try:
        there = path.stat().st_size
        if there != size:
            return f"{path} has {there} of {size} bytes"
        found = digest(path, wanted, heard) if wanted else ""
    except OSError as error:
        return f"{path} can not be read: {error.strerror}"
    return None if found == wanted else f"{path} has the hash {found}, expected is {wanted}"


def changed(folder: Path, files: Mapping[str, File]) -> list[str]:
    """Return the files that are not as the record has them, as far as a stat tells."""
    return [name for name, known in files.items() if not _same(folder / name, known)]


def _same(path: Path, known: File) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns, stat.st_ino) == (known["size"], known["mtime_ns"], known["inode"])


def there(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> int:
    """Return how many bytes of files are there."""
    sizes = ((folder / name, file["size"]) for name, file in files.items())
    return sum(min(size, path.stat().st_size) for path, size in sizes if path.exists())


def files_of(folder: Path) -> Iterator[str]:
    """Yield every file below `folder` by its path from there; hidden ones are no part of a model."""
    seen: set[tuple[int, int]] = set()
    for base, folders, names in os.walk(folder, followlinks=True):
        place = os.stat(base)
        if (place.st_dev, place.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            # a link may lead to what a cache has dropped
            if not name.startswith(".") and os.path.isfile(os.path.join(base, name)):
                yield os.path.relpath(os.path.join(base, name), folder)


def structure_problems(folder: Path) -> list[str]:
    """Return what keeps the files from being loaded as a model, one sentence each."""
    weights = any(folder.glob("*.gguf"))
    if not model_files.is_model(folder):
        missing = f"{folder} has no config.json: it is no model, or the download was not finished"
        return [] if weights else [missing]  # one of llama.cpp has it within
    return [] if weights and not any(folder.glob("*.safetensors*")) else model_files.weight_problems(folder)


def foreign_code(folder: Path) -> list[str]:
    """Return code of other repositories that the configurations name, e.g. 'OWNER/REPO--module.Class'."""
    found: set[str] = set()
    for config in CONFIGS:
        named = model_files.mapping(folder / config).get("auto_map")
        for value in named.values() if isinstance(named, dict) else ():
            words = value if isinstance(value, list) else [value]
            found.update(word for word in words if isinstance(word, str) and "--" in word)
    return sorted(found)
