# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would be otherwise for a foreign server if it were an instance of this collection, a sentence each."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import GONE, FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor

OWN_TMP = ("/tmp/", "/var/tmp/")  # the service has others of these names
LIMITS = {"Max open files": "1048576", "Max locked memory": "unlimited"}  # of the service
WRITTEN_TO = re.compile(r"(?i)(?!CUDA_).*_(?:home|cache|dir|folder)")  # name of what is a directory to write into
RESTARTS = re.compile("unit |supervisord|cron")
SAME = "test \"$(sed 's/.*) //' /proc/{0}/stat | cut -d' ' -f20)\" = {1}"  # that is still the process
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def changes(found: FoundProcess, entry: Mapping[str, Any], service_user: str) -> Iterator[str]:
    """Yield what changes under supervision. `entry`: the server as an instance."""
    if found.container:
        yield f"it would run on this host, not in {found.container}: its paths and packages are those of the container"
    if found.container or RESTARTS.match(found.origin):
        yield f"{found.origin} may start it again when it is ended: it has to be told first"
    if found.owner != service_user:
        yield f"it would run as the user '{service_user}' with a home of its own, not as '{found.owner}'"
    if not found.container:
        yield from _paths(found, entry, _user(service_user), service_user)
    yield from _log(found, entry["name"])
    limits = [f"{name} {found.limits[name]} -> {limit}" for name, limit in LIMITS.items() if name in found.limits]
    changed = [one for one in limits if one.split(" -> ")[0].rpartition(" ")[2] != one.rpartition(" ")[2]]
    if changed:
        allowed = "" if _confined() else ", as far as this machine allows"
        yield f"its limits: {', '.join(changed).lower()}{allowed}"
    if found.bound_to:
        yield f"it may use the processors {found.bound_to} only: the service may use all"
    flags = [flag for flag in found.command.flags if flag not in ("-u", "-B")]
    if flags:
        yield f"Python's own options {' '.join(flags)} are left out"
    if found.own_network:
        yield f"port {entry['port']} is one of its own network, which may have another number on this host"
    elif found.listens and entry["port"] not in [port for _address, port in found.listens]:
        ports = ", ".join(str(port) for _address, port in found.listens)
        yield f"it does not listen on port {entry['port']} yet, but on {ports}"
    yield from (f"as it is, {problem}" for problem in instance_problems([entry]))
    if entry["name"] in supervisor().installed_instances():
        yield f"this host has an instance '{entry['name']}' already, which would be replaced: choose another name"


def ending(found: FoundProcess) -> str:
    """Return how to end a server so that it stays so: what to stop, or a command that hits no later process."""
    if found.container or found.origin.startswith("unit "):
        return f"stop {found.origin}"
    if RESTARTS.match(found.origin):
        return f"take process {found.pid} out of {found.origin} and stop it there"
    return f"{SAME.format(found.pid, found.started)} && kill {found.pid}"


def paths_of(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and path of what an instance reads by an absolute path."""
    yield "model", str(entry["model"])
    for group in ("args", "env"):
        for name, value in sorted(entry.get(group, {}).items()):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Mapping):
                    item = item.get("lora_path", "")
                path = str(item)
                if name == "lora_paths" and "=" in path:
                    path = path.partition("=")[2]
                if path.startswith("/") and "\n" not in path:
                    yield name, path.split(":")[0]


def unreadable(path: Path, user: User) -> Path | None:
    """Return what on the way to `path` the user can not enter or read; None also where it is not there."""
    path = Path(os.path.realpath(path))
    for folder in (*reversed(path.parents), path):
        try:
            about = folder.stat()
        except (OSError, ValueError):
            return None
        wanted = 0o1 if folder != path else 0o5 if os.path.isdir(folder) else 0o4
        if about.st_uid == user.uid:
            mode = about.st_mode >> 6
        elif about.st_gid in (user.gid, *user.groups):
            mode = about.st_mode >> 3
        else:
            mode = about.st_mode
        if mode & wanted != wanted:
            return folder
    return None


def _paths(found: FoundProcess, entry: Mapping[str, Any], user: User, name: str) -> Iterator[str]:
    for option, path in paths_of(entry):
        if _confined() and f"{path}/".startswith(OWN_TMP):
            yield f"'{option}' is {path}, but the service has a /tmp of its own: move it"
            continue
        if _confined() and WRITTEN_TO.fullmatch(option):
            yield f"'{option}' is {path}, but the service can write to its home alone: leave it out if it is written to"
        closed = unreadable(Path(path), user)
        if closed:
            verb = "enter" if os.path.isdir(closed) else "read"
            yield (
                f"'{option}' is {path}, but the user '{name}' can not {verb} {closed}: move it, or open it to that user"
            )
    model = str(entry["model"])
    if HUB_ID.fullmatch(model):
        cache = _cached(found, model)
        if cache and "HF_HOME" not in entry.get("env", {}) and "HF_HUB_CACHE" not in entry.get("env", {}):
            yield (
                f"the model {model} is in {cache}, and the service looks into its own home, so it would be downloaded "
                "again: put it into a directory that the service can read, and write that as 'model'"
            )


def _cached(found: FoundProcess, model: str) -> Path | None:
    """Return where its user has a model of the hub."""
    variables = found.environment
    home = Path(variables.get("HF_HOME") or f"{variables.get('HOME', '/root')}/.cache/huggingface")
    place = Path(variables.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    return place if os.path.isdir(place) else None


def _log(found: FoundProcess, name: str) -> Iterator[str]:
    for log in found.logs:
        if log.startswith("/") and not log.startswith("/dev/"):
            lost = ", which is deleted and lost with the process" if log.endswith(GONE) else ""
            shown = supervisor().log_command(name)
            yield f"its log is {log.removesuffix(GONE)}{lost}: that of the instance is shown by '{shown}'"


def _confined() -> bool:
    """Tell whether an instance has a /tmp of its own, and can write to nothing but that and its home."""
    return supervisor().NAME == systemd.NAME


def _user(name: str) -> User:
    """Return the service user; one that is yet to be made is nobody's owner and in no group."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return User(-1, -1, ())
    return User(user.pw_uid, user.pw_gid, tuple(os.getgrouplist(name, user.pw_gid)))
