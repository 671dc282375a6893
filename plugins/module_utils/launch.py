# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch: one start of an instance, with an id that the unit, the process and the server's answers carry.

    STATE/INSTANCE/                       home and caches of the server
    STATE/INSTANCE/launches/ID/launch.json   what was asked and what became of it
    STATE/INSTANCE/launches/ID/secrets.yaml  SGLang's --config file, readable by the service user only
    STATE/INSTANCE/launches/ID/unit          the unit file as it was

The unit file in place says which launch is wanted; the environment of the running process says which one runs.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import secrets as random
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import sockets
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import (
    ArgumentProblem,
    secret_problems,
    secrets_text,
    to_argv,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, write_whole, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

KEPT_LAUNCHES = 5
PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
PLACEHOLDER = "LAUNCH"  # stands for the id where two launches are compared


@dataclass(frozen=True)
class Instance:
    """One instance as the operator wrote it, on one host."""

    name: str
    model: str
    host: str
    port: int
    gpus: tuple[int, ...]
    args: Mapping[str, Any]
    env: Mapping[str, str]
    secrets: Mapping[str, str]


@dataclass(frozen=True)
class Host:
    """Where the instances of a host run."""

    release: Path
    user: str
    state: Path

    def folder(self, instance: str) -> Path:
        """The home of an instance."""
        return self.state / instance


@dataclass(frozen=True)
class Comparison:
    """How an instance's service differs from what is asked; `reasons` is empty when it does not."""

    reasons: tuple[str, ...]
    launch: str | None  # the launch that the unit in place carries
    before: str  # unit files with the launch id left out, for a diff
    after: str


def check(instance: Instance, host: Host, schema: Mapping[str, Any] | None) -> None:
    """Raise Refused for what would fail at the start. `schema` is None while the release is not installed."""
    where = f"instance '{instance.name}'"
    if schema is not None:
        try:
            to_argv(instance.args, schema)
        except ArgumentProblem as problem:
            raise Refused(f"{where}: {problem}") from problem
        problems = secret_problems(instance.secrets, schema)
        if problems:
            raise Refused(f"{where}: {'; '.join(problems)}")
    variables = [systemd.variable_problem(name, value) for name, value in sorted(instance.env.items())]
    if any(variables):
        raise Refused(f"{where}: {'; '.join(filter(None, variables))}")
    if instance.model.startswith("/") and not Path(instance.model, "config.json").is_file():
        raise Refused(f"{where}: the model directory {instance.model} has no config.json: correct 'model' or mount it")
    for path in (host.release, host.state):
        if not PLAIN_PATH.fullmatch(str(path)):
            raise Refused(f"{where}: the path {path} can not stand in a unit: use letters, digits, '.', '_' and '-'")
    unit = systemd.read_unit(instance.name)
    if unit and systemd.launch_of(unit) is None:
        name = systemd.unit_name(instance.name)
        raise Refused(
            f"{where}: this host has a unit {name} that is not of this tool: remove it or rename the instance"
        )
    ours = _identity(instance.name)
    for listener in sockets.listeners(instance.port):
        if not (ours and listener.in_cgroup(ours.cgroup)):
            raise Refused(f"{where}: port {instance.port} is held by {listener.label}: end it or choose another port")


def compare(instance: Instance, host: Host, schema: Mapping[str, Any] | None) -> Comparison:
    """Compare the unit in place, its secrets and the running process with what is asked."""
    current = systemd.read_unit(instance.name)
    launch = systemd.launch_of(current)
    wanted = _unit(instance, host, schema, launch or PLACEHOLDER)
    before, after = (text.replace(launch, PLACEHOLDER) if launch else text for text in (current, wanted))
    reasons = []
    if not current:
        reasons.append("not installed")
    elif before != after:
        reasons.append("configuration differs")
    if schema is None:
        after += "# arguments: known when the release is installed\n"
    if launch and _secrets_in_place(host.folder(instance.name), launch) != secrets_text(instance.secrets):
        reasons.append("secrets differ")
        before += "# secrets: as they were\n"
        after += "# secrets: changed\n"
    if launch:
        if not (host.folder(instance.name) / "launches" / launch / "launch.json").is_file():
            reasons.append("the launch has no record")
        reasons += _process_reasons(instance.name, launch)
    return Comparison(tuple(reasons), launch, before, after)


def start(instance: Instance, host: Host, schema: Mapping[str, Any]) -> str:
    """Start a new launch of the instance in place of the running one and return its id."""
    launch = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + random.token_hex(3)
    try:
        owner = (pwd.getpwnam(host.user).pw_uid, grp.getgrnam(host.user).gr_gid)
    except KeyError:
        raise Refused(f"this host has no user and group '{host.user}': create it or set sglang_server_user") from None
    home = host.folder(instance.name)
    folder = home / "launches" / launch
    with writing_below(home):
        for path in (home, folder.parent, folder):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o750)
            os.chown(path, *(owner if path == home else (0, owner[1])))
    unit = _unit(instance, host, schema, launch)
    if instance.secrets:
        write_whole(folder / "secrets.yaml", secrets_text(instance.secrets), 0o600, owner)
    write_whole(folder / "unit", unit, 0o640)
    record = {
        "launch": launch,
        "instance": instance.name,
        "started": time.time(),
        "release": str(host.release),
        "model": instance.model,
        "host": instance.host,
        "port": instance.port,
        "args": dict(instance.args),
        "secrets": sorted(instance.secrets),
    }
    write_whole(folder / "launch.json", json.dumps(record, indent=1, sort_keys=True), 0o640)
    systemd.start_launch(instance.name, unit)
    _prune(folder.parent, launch)
    return launch


def record_of(state: Path, instance: str) -> dict[str, Any]:
    """Return the record of the launch that the instance's unit carries."""
    launch = systemd.launch_of(systemd.read_unit(instance))
    if launch is None:
        raise Refused(f"there is no unit of an instance '{instance}' on this host: deploy it first")
    path = state / instance / "launches" / launch / "launch.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"the record {path} can not be read ({error}): deploy the instance again") from error
    return record


def secret_of(state: Path, instance: str, launch: str, name: str) -> str | None:
    """Return one secret of a launch, or None when it has none of that name."""
    key = name.replace("_", "-") + ": "
    lines = _secrets_in_place(state / instance, launch).splitlines()
    return next((json.loads(line[len(key) :]) for line in lines if line.startswith(key)), None)


def _unit(instance: Instance, host: Host, schema: Mapping[str, Any] | None, launch: str) -> str:
    folder = host.folder(instance.name)
    argv = [str(host.release / "venv/bin/python"), "-m", "sglang.launch_server"]
    argv += ["--model-path", instance.model, "--host", instance.host, "--port", str(instance.port)]
    argv += ["--weight-version", launch]
    if instance.secrets:
        argv += ["--config", str(folder / "launches" / launch / "secrets.yaml")]
    if schema is not None:
        argv += to_argv(instance.args, schema)
    environment = {
        "HOME": str(folder),
        "PATH": f"{host.release}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # SGLang's warm-up asks its own port, and would ask a proxy for it
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    if instance.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, instance.gpus))
    environment.update(instance.env)
    return systemd.unit_text(instance.name, launch, argv, environment, host.user, str(folder))


def _process_reasons(instance: str, launch: str) -> list[str]:
    identity = systemd.identity(instance)
    if identity.active != "active":
        return [f"service is {identity.active} ({identity.sub})"]
    running = systemd.running_launch(identity.main_pid)
    reasons = [] if running == launch else [f"launch {running} runs, the unit carries {launch}"]
    return reasons if identity.enabled else [*reasons, "not enabled"]


def _identity(instance: str) -> systemd.Identity | None:
    return systemd.identity(instance) if systemd.read_unit(instance) else None


def _secrets_in_place(folder: Path, launch: str) -> str:
    try:
        return (folder / "launches" / launch / "secrets.yaml").read_text(encoding="utf-8")
    except OSError:
        return ""


def _prune(folder: Path, launch: str) -> None:
    old = sorted(path for path in folder.iterdir() if path.name != launch)
    for path in old[: -(KEPT_LAUNCHES - 1)]:
        shutil.rmtree(path, ignore_errors=True)
