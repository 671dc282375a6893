# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang servers of this host that somebody has started by hand, each with what it would be for this collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, launch, processes
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import from_argv, model_type
from ansible_collections.gpuops.sglang.plugins.module_utils.found_changes import changes, ending
from ansible_collections.gpuops.sglang.plugins.module_utils.found_installation import installation
from ansible_collections.gpuops.sglang.plugins.module_utils.found_live import ask, reported
from ansible_collections.gpuops.sglang.plugins.module_utils.found_options import config_of, found_options
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import (
    FoundProcess,
    found_process,
    started_at,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.found_variables import (
    Written,
    plain_secrets,
    shown_environment,
    shown_words,
    written,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import PROC, Process
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor

TOTAL = 1800  # s for all servers together: any user can start a thousand


@dataclass(frozen=True)
class Search:
    """How to look at what is found."""

    releases: Path  # of this collection, whose options help where a server's own parser can not be asked
    user: str = "sglang"  # that instances run as
    timeout: float = 180  # s that a parser may take
    ask_servers: bool = True
    pids: tuple[int, ...] = ()  # of main processes; all servers when empty
    proc: Path = PROC


def found_servers(search: Search) -> list[dict[str, Any]]:
    """Return every server that is no instance of ours, in the order of their processes; no secret is in it."""
    names = list(supervisor().installed_instances())
    ours = [supervisor().identity(name).cgroup for name in names]
    known = [one for one in processes.servers(search.proc) if not any(map(one.in_cgroup, ours))]
    used, why = _gpus_in_use()
    told = []
    end = time.monotonic() + TOTAL
    for process in known:
        if search.pids and process.pid not in search.pids:
            continue
        left = end - time.monotonic()
        try:
            if left <= 0:
                raise Refused(f"the {TOTAL} s for all servers are over: name it (pids) to have it looked into")
            one = found_process(process.pid, search.proc)
            if one is None or _is_ours_elsewhere(one):
                continue
            limited = replace(search, timeout=min(search.timeout, left))
            server = _server(one, limited, [use for use in used if use.pid in one.family], why, names)
        except Exception as error:  # whatever is odd about one hides no other
            # a text of an error may hold what nobody may read
            reason = str(error) if isinstance(error, Refused) else type(error).__name__
            server = _bare(process, search, used, f"it could not be looked into: {reason}")
        if server["instance"]:
            names.append(server["instance"]["name"])
        told.append(_masked(server, _text))
    return told


def _text(name: str) -> str:
    """Return a text that can be written, also of a path that is no UTF-8."""
    return name.encode(errors="replace").decode()


def _bare(one: Process, search: Search, used: Iterable[gpu.GpuProcess], note: str) -> dict[str, Any]:
    """Return what anybody may know of a server that can not be looked into."""
    age = one.age or 0.0
    result: dict[str, Any] = {
        "pid": one.pid,
        "started": started_at(one.pid, search.proc),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age)),
        "owner": one.owner,
        "started_by": "-",
        "working_directory": "-",
        "python": "",
        "sglang_version": "",
        "installed_in": "",
        "listens": [],
        "gpu_memory": [{"gpu": use.gpu, "memory": use.memory} for use in used if use.pid == one.pid],
        "logs": [],
        "environment": {},
        "instance": None,
        "install_version": None,
        "secrets": [],
        "end": "",
        "live": None,
        "not_carried": [],
        "changes": [],
        "command": one.command.split(),
        "notes": [note],
    }
    masked: dict[str, Any] = _masked(result, Masker())
    return masked


def _is_ours_elsewhere(found: FoundProcess) -> bool:
    """Tell whether it is an instance in a container, which is a host of its own."""
    return bool(found.container) and "SGLANG_LAUNCH_ID" in found.environment


def cards() -> list[dict[str, Any]]:
    """Return index, name and memory in MiB of each GPU, as far as the driver tells."""
    try:
        return [vars(card) for card in gpu.cards()]
    except Refused:
        return []


def _server(
    found: FoundProcess, search: Search, used: list[gpu.GpuProcess], why: str, names: Collection[str]
) -> dict[str, Any]:
    installed = installation(found, search.proc)
    if found.command.serve and model_type(found.command.words) == "diffusion":
        options, unasked = None, "it serves a diffusion model (--model-type diffusion), which no instance does"
    else:
        options, unasked = found_options(found, installed, search.releases, search.timeout)
    notes = [sentence for sentence in (why, unasked) if sentence]
    result: dict[str, Any] = {
        "pid": found.pid,
        "started": found.started,
        "since": found.since,
        "owner": found.owner,
        "started_by": found.origin,
        "working_directory": str(found.folder),
        "python": str(found.python or found.command.python),
        "sglang_version": options.options.version if options and not unasked else installed.version,
        "installed_in": installed.place,
        "listens": [{"address": address, "port": port} for address, port in found.listens],
        "gpu_memory": [{"gpu": use.gpu, "memory": use.memory} for use in used],
        "logs": list(found.logs),
        "environment": shown_environment(found.environment),
        "instance": None,
        "install_version": installed.version if installed.published and not installed.problems else None,
        "secrets": [],
        "end": ending(found),
        "live": None,
        "not_carried": list(installed.problems),
        "changes": [],
    }
    secrets: dict[str, str] = {}
    if options is None:
        notes.append("its options are not known, so that no variables can be written")
    else:
        words, schema = found.command.words, options.options
        line = from_argv(words, schema, options.read_config, found.command.serve)
        wanted = written(found, line, schema, _gpus(found, used, line.args, notes), names)
        secrets = {**line.secrets, **wanted.secrets}
        result["instance"] = wanted.entry
        result["secrets"] = _places(found, wanted)
        result["changes"] = list(changes(found, wanted.entry, search.user))
        notes += wanted.notes
        if search.ask_servers:
            key = line.secrets.get("api_key") or line.secrets.get("admin_api_key")
            plain = {name: value for name, value in line.args.items() if name in wanted.entry.get("args", {})}
            requested = {"model_path": line.owned.get("model_path"), **plain}
            result["live"] = _live(found, wanted.entry["port"], requested, key, schema, notes)
            runs = result["live"]["sglang_version"] if result["live"] else ""
            if runs not in ("", result["sglang_version"]):
                result["not_carried"].append(
                    f"it runs SGLang {runs}, but {result['sglang_version']} is installed there"
                )
                result["install_version"] = None
    known = options.options if options else None
    mask = Masker([*secrets.items(), *plain_secrets(found, known)])
    result["command"] = shown_words(found, mask, known)
    if found.own_files and not found.container:
        notes.append("it has mounts of its own: a path of it may be another file on this host")
    result["notes"] = notes
    masked: dict[str, Any] = _masked(result, mask, {"instance", "secrets", "command"})
    return masked


def _masked(value: Any, mask: Callable[[str], str], whole: Collection[str] = ()) -> Any:
    """Return a result with secrets masked in each of its texts, but for what is free of them in `whole`."""
    if isinstance(value, Mapping):
        return {name: item if name in whole else _masked(item, mask) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, mask) for item in value]
    return mask(value) if isinstance(value, str) else value


def _places(found: FoundProcess, wanted: Written) -> list[dict[str, str]]:
    """Return each secret's variable, and where its value stands."""
    config = config_of(found)
    told = []
    for name, template in wanted.entry.get("secrets", {}).items():
        flag = "--" + name.replace("_", "-")
        # the beginning of a name will do for SGLang
        in_command = any(len(word) > 2 and flag.startswith(word.partition("=")[0]) for word in found.command.words)
        if name.isupper():
            place = f"the variable {name} of process {found.pid}"
        elif in_command or not config:
            place = f"{flag} in the command line of process {found.pid}"
        else:
            place = f"{flag[2:]} in {config}"
        told.append({"variable": template.strip("{ }"), "place": place})
    return told


def _gpus_in_use() -> tuple[list[gpu.GpuProcess], str]:
    try:
        return gpu.processes(), ""
    except Refused as refused:
        return [], str(refused)


def _gpus(
    found: FoundProcess, used: Iterable[gpu.GpuProcess], args: Mapping[str, Any], notes: list[str]
) -> list[int] | None:
    """Return the indices of the GPUs that a server uses, as nvidia-smi counts, or None where it sees all or none."""
    holds = sorted({use.gpu for use in used})
    visible = found.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if holds and args.keys() & {"base_gpu_id", "gpu_id_step"}:
            notes.append(f"it uses the GPUs {holds} and counts them itself ('base_gpu_id'): it sees all, as before")
            return None
        return holds or None
    named = [word.strip() for word in visible.split(",") if word.strip()]
    if all(word.isdigit() for word in named):
        gpus = [int(word) for word in named]
    else:
        try:
            indices = gpu.indices()
        except Refused:
            indices = {}
        starts = [[index for uuid, index in indices.items() if uuid.startswith(word)] for word in named]
        if not all(len(fitting) == 1 for fitting in starts):
            return None
        gpus = [fitting[0] for fitting in starts]
    if holds and not set(holds) <= set(gpus) and not found.container:
        notes.append(
            f"CUDA_VISIBLE_DEVICES is {visible}, but it uses what nvidia-smi calls {holds}, which is written: by "
            "itself CUDA counts the fastest card first"
        )
        return holds
    return gpus or None


def _live(
    found: FoundProcess, port: int, requested: Mapping[str, Any], key: str | None, schema: Schema, notes: list[str]
) -> dict[str, Any] | None:
    """Ask a server what it runs with, if the port is its own and of this host."""
    own = [address for address, other in found.listens if other == port]
    if found.own_network or not own:
        why = "not of the network of this host" if found.own_network else "not one that it listens on"
        notes.append(f"it was not asked what it runs with: port {port} is {why}")
        return None
    info, why = ask(launch.local_url(own[0], port, bool(requested.get("ssl_certfile"))), key)
    if info is not None:
        try:
            return reported(info, {**requested, "port": port}, schema)
        except (TypeError, ValueError, AttributeError):
            why = "it answers as no SGLang does"
    notes.append(f"it did not tell what it runs with: {why}")
    return None
