# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch: one start of an instance, with an id that the unit, the process and the server's answers carry.

    STATE/INSTANCE/home/                     the server's; nothing in it is believed
    STATE/INSTANCE/launches/ID/launch.json   what was asked
    STATE/INSTANCE/launches/ID/unit          the unit file as it was
    STATE/INSTANCE/launches/ID/watch.py      what tells the supervisor of a hung server
    STATE/INSTANCE/launches/ID/verdict.json  what was proved of it; without it the launch was never seen to serve
    STATE/INSTANCE/launches/ID/failure.json  why it failed, and as failure.log what it wrote
    STATE/INSTANCE/launches/ID/guard.py      what supervisord runs, and as log what that wrote
    STATE/INSTANCE/launches/ID/secrets.yaml  SGLang's --config file, readable by the service user only
    STATE/INSTANCE/launches/ID/secrets.env   secret variables, read by the supervisor as root

The unit file in place says which launch is wanted; the environment of the running process says which one runs.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pwd
import re
import secrets as random
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import (
    cuda_record,
    gpu,
    guard,
    model_files,
    model_record,
    processes,
    release_record,
    sockets,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import (
    ArgumentProblem,
    secret_problems,
    secrets_text,
    to_argv,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import bound_ports
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import (
    Identity,
    environment_file,
    launch_of,
    variable_problem,
)

LOCK = Path("/run/gpuops-sglang.lock")
TAKEN = Path("/run/gpuops-sglang/taken")  # servers in whose place an instance comes: see module_utils/take_over
LOCK_FOR = "starts instances on this host"
LOCK_WAIT = 180  # s: a server may take a minute to stop
RESERVE = 1 << 20  # bytes
PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
FILES = ("tokenizer_path", "chat_template", "speculative_draft_model_path", "speculative_token_map")  # that it reads
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
    secrets: Mapping[str, str]  # options of SGLang, and in capitals environment variables

    @property
    def secret_options(self) -> dict[str, str]:
        """The secrets that are options of SGLang."""
        return {name: value for name, value in self.secrets.items() if not name.isupper()}

    @property
    def secret_env(self) -> dict[str, str]:
        """The secrets that are environment variables."""
        return {name: value for name, value in self.secrets.items() if name.isupper()}

    @property
    def secret_files(self) -> dict[str, str]:
        """File name and content of the secrets of each kind; a kind without secrets has no file."""
        files = {
            "secrets.yaml": secrets_text(self.secret_options),
            "secrets.env": environment_file(self.secret_env),
        }
        return {name: text for name, text in files.items() if text}


def instance_of(entry: Mapping[str, Any]) -> Instance:
    """Return the instance that an operator wrote; where there is a GPU it uses it, or does not start."""
    device = gpu.device()
    return Instance(
        name=entry["name"],
        model=entry["model"],
        host=entry["host"],
        port=entry["port"],
        gpus=tuple(entry["gpus"]),
        args={**({"device": device} if device else {}), **entry["args"]},
        env={name: str(value) for name, value in entry["env"].items() if value is not None},
        # null is no value: as text it would become the key "None"
        secrets={name: "" if value is None else str(value) for name, value in entry["secrets"].items()},
    )


@dataclass(frozen=True)
class Host:
    """Where the instances of a host run."""

    release: Path
    user: str
    state: Path
    drain: int = 60  # s that running requests have when a server is stopped
    keep: int = 5  # launches of each instance
    awaited: tuple[str, ...] = ()  # models that come before a start

    def home(self, instance: str) -> Path:
        """The only folder of an instance that its server may write to."""
        return self.state / instance / "home"

    def launch_folder(self, instance: str, launch: str) -> Path:
        """The folder of one launch."""
        return self.state / instance / "launches" / launch


@dataclass(frozen=True)
class Comparison:
    """How an instance's service differs from what is asked; `reasons` is empty when it does not."""

    reasons: tuple[str, ...]
    launch: str | None  # the launch that the unit in place carries
    before: str  # unit files with the launch id left out, for a diff
    after: str


def check(instance: Instance, host: Host, schema: Mapping[str, Any] | None, leaving: Collection[int] = ()) -> None:
    """Raise Refused for what would fail at the start.

    `schema` is None while the release is not installed; the processes `leaving` are ended before the start.
    """
    where = f"instance '{instance.name}'"
    if schema is not None:
        try:
            to_argv(instance.args, schema)
        except ArgumentProblem as refused:
            raise Refused(f"{where}: {refused}") from refused
        problems = secret_problems(instance.secret_options, schema)
        if problems:
            raise Refused(f"{where}: {'; '.join(problems)}")
    twice = instance.secrets.keys() & {*instance.args, *instance.env}
    if twice:
        raise Refused(f"{where}: '{min(twice)}' is under 'secrets' and elsewhere too: keep the one under 'secrets'")
    if instance.gpus and "CUDA_VISIBLE_DEVICES" in {*instance.env, *instance.secrets}:
        raise Refused(f"{where}: 'gpus' and CUDA_VISIBLE_DEVICES say the same thing: keep 'gpus'")
    empty = [name for name, value in sorted(instance.secret_env.items()) if not value]
    if empty:
        raise Refused(f"{where}: the secret '{empty[0]}' is empty: set it or delete it")
    places = {"env": instance.env, "secrets": instance.secret_env}
    told = [variable_problem(name, under[name], place) for place, under in places.items() for name in sorted(under)]
    problems = [problem for problem in told if problem]
    if problems:
        raise Refused(f"{where}: {'; '.join(problems)}")
    if _uid(host.user) == 0:
        raise Refused(f"{where}: '{host.user}' is root: set sglang_server_user to a user of its own, which is created")
    if instance.model.startswith("/") and instance.model not in host.awaited and not is_there(instance):
        raise Refused(f"{where}: the model directory {instance.model} has no config.json: correct 'model' or mount it")
    for name, path in {"model": instance.model, **{name: instance.args.get(name) for name in FILES}}.items():
        place = os.path.realpath(path) if isinstance(path, str) and path.startswith("/") else ""
        for hidden in supervisor().HIDDEN:
            if place.startswith(f"{hidden}/"):
                raise Refused(
                    f"{where}: '{name}' is {path}, and its service has a {hidden} of its own: move it elsewhere"
                )
    for path in (host.release, host.state):
        if not PLAIN_PATH.fullmatch(str(path)):
            raise Refused(f"{where}: the path {path} can not stand in a unit: use letters, digits, '.', '_' and '-'")
    unit = supervisor().read_unit(instance.name)
    if unit and launch_of(unit) is None:
        name = supervisor().unit_name(instance.name)
        raise Refused(
            f"{where}: this host has a unit {name} that is not of this tool: remove it or rename the instance"
        )
    added = supervisor().drop_ins(supervisor().identity(instance.name)) if unit else []
    if added:
        raise Refused(f"{where}: {', '.join(added)} changes what its unit runs: delete it, its content is for 'env'")
    check_ports(instance.name, instance.port, instance.args, leaving)


def is_there(instance: Instance) -> bool:
    """Tell whether the directory that an instance has as its model may be one."""
    return model_files.is_model(Path(instance.model))


def check_ports(name: str, port: int, args: Mapping[str, Any], leaving: Collection[int] = ()) -> None:
    """Raise Refused where something else listens on a port of an instance, but for the processes `leaving`."""
    ours = supervisor().identity(name) if supervisor().read_unit(name) else None
    for wanted in (port, *bound_ports(args).values()):
        for listener in sockets.listeners(wanted):
            if listener.pid in leaving or (ours and listener.in_cgroup(ours.cgroup)):
                continue
            other, what = supervisor().instance_in(listener.cgroups), f"instance '{name}': port {wanted} is held by"
            if other:
                way = f"move that one first, or end it with '{supervisor().end_command(other)}'"
                raise Refused(f"{what} instance '{other}' of this host: {way}")
            for server in processes.servers():
                if wanted == port and listener.pid in processes.with_descendants(server.pid):
                    raise Refused(
                        f"{what} {server.label}, an SGLang server that was started by hand: take its place with "
                        "-e sglang_server_take_over=true (see docs/adopt.md), or end it"
                    )
            raise Refused(f"{what} {listener.label}: end it or choose another port")


def compare(
    instance: Instance, host: Host, schema: Mapping[str, Any] | None, accepted: Collection[str] = ()
) -> Comparison:
    """Compare the unit in place, its secrets and the running process with what is asked and `accepted`."""
    current = supervisor().read_unit(instance.name)
    launch = launch_of(current)
    identity = supervisor().identity(instance.name) if current else None
    wanted = _unit(instance, host, schema, launch or PLACEHOLDER)
    before, after = (text.replace(launch, PLACEHOLDER) if launch else text for text in (current, wanted))
    reasons = []
    if not current:
        reasons.append("not installed")
    elif before != after:
        reasons.append("configuration differs")
    elif identity and identity.shown.get("NeedDaemonReload") == "yes":
        reasons.append("systemd has not read the unit again")
    if schema is None:
        # neither side has them, lest the diff tell that all of them go
        before = _without_arguments(before)
        after = _without_arguments(after) + "# arguments: compared when the release is installed\n"
    if launch and identity:
        folder = host.launch_folder(instance.name, launch)
        if _secrets_in_place(folder) != instance.secret_files:
            reasons.append("secrets differ")
            before += "# secrets: as they were\n"
            after += "# secrets: changed\n"
        record = _read_record(folder)
        if record is None:
            reasons.append("the launch has no record")
        elif record.get("accepted", {}).keys() - accepted:
            reasons.append("it runs with changes that are accepted no more")
        reasons += _process_reasons(identity, launch)
    return Comparison(tuple(reasons), launch, before, after)


@dataclass(frozen=True)
class Prepared:
    """A launch that is written down and can be started."""

    instance: str
    launch: str
    unit: str
    user: str = ""


def prepare(instance: Instance, host: Host, schema: Mapping[str, Any], told: Mapping[str, Any]) -> Prepared:
    """Write down a new launch of the instance; `told` goes into its record: what the preflight said of it."""
    launch = _new_id()
    record = {
        "launch": launch,
        "instance": instance.name,
        "started": time.time(),
        "release": str(host.release),
        "lock": (release_record.read(host.release) or {}).get("lock", ""),
        "model": instance.model,
        "host": instance.host,
        "port": instance.port,
        "gpus": list(instance.gpus),
        "args": dict(instance.args),
        "secrets": sorted(instance.secrets),
        "user": host.user,
        "keep": host.keep,
        "supervisor": supervisor().NAME,
        "argv": _argv(instance, host, schema, launch),
        **told,
    }
    prepared = _written(host.state, record, _unit(instance, host, schema, launch), instance.secret_files)
    _keep_reserve(host.state)
    return prepared


def _written(state: Path, record: Mapping[str, Any], unit: str, secret_files: Mapping[str, str]) -> Prepared:
    instance, launch, user = record["instance"], record["launch"], _ensure_user(record["user"])
    folder = state / instance / "launches" / launch
    earlier = _in_order(folder.parent)
    number = (_read_record(folder.parent / earlier[-1]) or {}).get("number", 0) + 1 if earlier else 1
    os.umask(0o022)
    with writing_below(state):
        _make_folders(state, instance, launch, user)
    for name, text in secret_files.items():
        # SGLang itself reads its --config file; the variables are read by the supervisor
        write_whole(folder / name, text, 0o600, (user.pw_uid if name == "secrets.yaml" else 0, user.pw_gid))
    for name, text in {"watch.py": watcher(), **supervisor().programs()}.items():
        write_whole(folder / name, text, 0o644)
    write_whole(folder / "unit", unit, 0o640)
    write_whole(folder / "launch.json", json.dumps({**record, "number": number}, indent=1, sort_keys=True), 0o640)
    return Prepared(instance, launch, unit, user.pw_name)


@functools.cache
def watcher() -> str:
    """Return the text of the program that tells the supervisor of a hung server."""
    # a module is compiled anew in each run, and most runs start nothing
    from ansible_collections.gpuops.sglang.plugins.module_utils import watch

    return inspect.getsource(watch)


def _keep_reserve(state: Path) -> None:
    """Hold some space back for the way back from a launch that fills the disk."""
    reserve = state / ".reserve"
    if not reserve.is_file() or reserve.stat().st_size < RESERVE:
        write_whole(reserve, random.token_hex(RESERVE // 2), 0o600)  # a file system may pack what repeats itself


def give_reserve(state: Path) -> None:
    """Give that space free."""
    (state / ".reserve").unlink(missing_ok=True)


def _make_folders(state: Path, instance: str, launch: str, user: pwd.struct_passwd) -> None:
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(state.stat().st_mode | 0o755)  # the server must get to its home
    launches = state / instance / "launches"
    home = launches.parent / "home"
    others = home.exists() and home.stat().st_uid != user.pw_uid  # what still runs as that user needs it: hand_over()
    # root's, so that a server can not put something else in place of what root writes and believes
    for path, owner in (
        (launches.parent, 0),
        (launches, 0),
        (launches / launch, 0),
        (home, user.pw_uid),
    ):
        path.mkdir(exist_ok=True)
        path.chmod(0o750)
        if not others or path.name == launch:
            os.chown(path, owner, user.pw_gid)


def hand_over(state: Path, prepared: Prepared) -> None:
    """Give the user of a launch what was another's, when nothing of the instance runs.

    The user was changed, or the machine was made anew around what it kept.
    """
    folder = state / prepared.instance
    home = folder / "home"
    with writing_below(state):
        if not prepared.user or home.stat().st_uid == (user := pwd.getpwnam(prepared.user)).pw_uid:
            return
        # by descriptors: the other user may put a link in the place of a folder meanwhile
        for _place, folders, files, place in os.fwalk(home):
            for name in (*folders, *files):
                os.chown(name, user.pw_uid, user.pw_gid, dir_fd=place, follow_symlinks=False)
        # the home last: by its owner it is known that this is still to be done
        for path, owner in ((folder, 0), (folder / "launches", 0), (home, user.pw_uid)):
            os.chown(path, owner, user.pw_gid)


def _new_id() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + random.token_hex(3)


def taken(instance: str) -> Path:
    """Return the file with what is known of a server that was started by hand, while an instance takes its place."""
    return TAKEN / f"{instance}.json"


def keep_verdict(state: Path, instance: str, launch: str, verdict: Mapping[str, Any]) -> None:
    """Write down once what was proved of a launch: from then on a failed one can return to it."""
    folder = state / instance / "launches" / launch
    if not is_good(state, instance, launch):
        write_whole(folder / "verdict.json", json.dumps(verdict, indent=1, sort_keys=True), 0o640)
        taken(instance).unlink(missing_ok=True)  # it is what to return to, from now on
        _prune(folder.parent, launch)


def keep_failure(state: Path, instance: str, launch: str, report: str, log: Collection[str]) -> None:
    """Write down why a launch failed, and what it wrote, which the journal gives up some day; root alone may read."""
    folder = state / instance / "launches" / launch
    order = _in_order(folder.parent)
    before = order[: order.index(launch)][-1:]  # may be pruned now
    again = any(has_failed(state, instance, one) and _asked(folder.parent / one) == _asked(folder) for one in before)
    write_whole(folder / "failure.log", "".join(f"{line}\n" for line in log), 0o600)
    write_whole(folder / "failure.json", json.dumps({"report": report, "again": again}, indent=1), 0o640)
    _prune(folder.parent, launch)


def earlier_verdicts(state: Path, instance: str) -> list[dict[str, Any]]:
    """Return what was proved of the kept launches, oldest first."""
    folder = state / instance / "launches"
    found = [_read_json(folder / launch / "verdict.json") for launch in _in_order(folder)]
    return [verdict for verdict in found if verdict]


def kept(state: Path, instance: str) -> list[dict[str, Any]]:
    """Return the launches whose records are kept, oldest first, and whether each was proved or failed."""
    good, failed = functools.partial(is_good, state, instance), functools.partial(has_failed, state, instance)
    return [
        {"launch": name, "proved": good(name), "failed": failed(name)}
        for name in _in_order(state / instance / "launches")
    ]


def is_good(state: Path, instance: str, launch: str) -> bool:
    """Tell whether a launch was proved to serve."""
    return (state / instance / "launches" / launch / "verdict.json").is_file()


def has_failed(state: Path, instance: str, launch: str) -> bool:
    """Tell whether a launch was seen not to serve as asked."""
    failure = state / instance / "launches" / launch / "failure.json"
    return failure.is_file() and not is_good(state, instance, launch)


def failed_again(state: Path, instance: str, launch: str, accepted: Collection[str]) -> bool:
    """Tell whether the launch before was the same and had failed too, and no other changes are `accepted` now."""
    folder = state / instance / "launches" / launch
    again = (_read_json(folder / "failure.json") or {}).get("again", False)
    return bool(again) and set((_read_record(folder) or {}).get("accept_changes", ())) == set(accepted)


def failed_so(instance: Instance, host: Host, schema: Mapping[str, Any] | None) -> bool:
    """Tell whether the newest launch was asked to be just what is asked now, and has failed."""
    launch = "".join(_in_order(host.state / instance.name / "launches")[-1:])
    folder = host.launch_folder(instance.name, launch)
    return (
        has_failed(host.state, instance.name, launch)
        and (folder / "unit").read_text(encoding="utf-8") == _unit(instance, host, schema, launch)
        and _secrets_in_place(folder) == instance.secret_files
    )


def last_good(state: Path, instance: str, present: str | None) -> str | None:
    """Return the newest launch before `present` that was proved to serve and can be started again, or None.

    What was itself a return counts as the launch that it returned to, so that the next return goes further back.
    """
    record = _read_record(state / instance / "launches" / present) if present else None
    origin = (record or {}).get("again") or present
    launches = _in_order(state / instance / "launches")
    place = next((launches.index(name) for name in (origin, present) if name in launches), len(launches))
    good = [name for name in reversed(launches[:place]) if is_good(state, instance, name)]
    return next((name for name in good if not again_problem(state, instance, name)), None)


def again_problem(state: Path, instance: str, launch: str) -> str | None:
    """Return why an earlier launch can not be started again, or None."""
    folder = state / instance / "launches" / launch
    record = _read_record(folder)
    if record is None or "user" not in record or not (folder / "unit").is_file():
        return f"launch {launch} of instance '{instance}' is not kept in {folder.parent}: name one that is"
    if record.get("supervisor", "systemd") != supervisor().NAME:
        return f"launch {launch} of instance '{instance}' was made for another supervisor: deploy the instance"
    if not Path(record["release"], "venv/bin/python").exists():
        return f"the release {record['release']} of launch {launch} is gone: install it again, or name another launch"
    if record["model"].startswith("/") and not model_files.is_model(Path(record["model"])):
        return f"the model {record['model']} of launch {launch} is gone: mount it again, or name another launch"
    return None


def prepare_again(state: Path, instance: str, earlier: str) -> Prepared:
    """Write down, as a new launch, what an earlier launch was."""
    problem = again_problem(state, instance, earlier)
    if problem:
        raise Refused(problem)
    launch, old = _new_id(), state / instance / "launches" / earlier
    record = _read_record(old) or {}
    argv = [word.replace(earlier, launch) for word in record.get("argv", ())]
    record.update(launch=launch, started=time.time(), again=record.get("again") or earlier, argv=argv)
    unit = (old / "unit").read_text(encoding="utf-8").replace(earlier, launch)
    return _written(state, record, unit, _secrets_in_place(old))


def record_of(state: Path, instance: str) -> dict[str, Any]:
    """Return the record of the launch that the instance's unit carries."""
    launch = launch_of(supervisor().read_unit(instance))
    if launch is None:
        raise Refused(f"there is no unit of an instance '{instance}' on this host: deploy it first")
    return record(state, instance, launch)


def record(state: Path, instance: str, launch: str) -> dict[str, Any]:
    """Return the record of a launch."""
    folder = state / instance / "launches" / launch
    found = _read_record(folder)
    if found is None:
        raise Refused(f"the record {folder / 'launch.json'} is damaged or gone: deploy the instance again")
    return found


def secrets_of(state: Path, instance: str, launch: str) -> dict[str, str]:
    """Return the secrets of a launch: options of SGLang, and in capitals environment variables."""
    files = _secrets_in_place(state / instance / "launches" / launch)
    lines = [line.partition(": ") for line in files.get("secrets.yaml", "").splitlines()]
    options = {name.replace("-", "_"): json.loads(value) for name, _colon, value in lines}
    return {**options, **guard.variables_of(files.get("secrets.env", ""))}


def words(instance: Instance, schema: Mapping[str, Any] | None, config: Path | None, launch: str) -> list[str]:
    """Return the words after `python -m sglang.launch_server`; `config` is the file of the secrets, if any."""
    own = [] if schema is None else to_argv(instance.args, schema)
    own += [] if config is None else ["--config", str(config)]
    # last, so that one argument more or less is one line of a diff
    own += ["--model-path", instance.model, "--host", instance.host, "--port", str(instance.port)]
    return [*own, "--weight-version", launch]


def environment(instance: Instance, host: Host) -> dict[str, str]:
    """Return the variables of the server that anyone may read."""
    path = f"{host.release}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {
        "HOME": str(host.home(instance.name)),
        **cuda_record.variables(host.release, path),
        # as nvidia-smi counts; CUDA by itself counts the fastest card first
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # SGLang's warm-up asks its own port, and would ask a proxy for it
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    if instance.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, instance.gpus))
    if model_record.needs_no_hub(Path(instance.model), instance.args):
        variables["HF_HUB_OFFLINE"] = "1"
    return {**variables, **instance.env}


def _argv(instance: Instance, host: Host, schema: Mapping[str, Any] | None, launch: str) -> list[str]:
    config = host.launch_folder(instance.name, launch) / "secrets.yaml" if instance.secret_options else None
    start = [str(host.release / "venv/bin/python"), "-m", "sglang.launch_server"]
    return [*start, *words(instance, schema, config, launch)]


def _unit(instance: Instance, host: Host, schema: Mapping[str, Any] | None, launch: str) -> str:
    folder, argv = host.launch_folder(instance.name, launch), _argv(instance, host, schema, launch)
    secret_env = str(folder / "secrets.env") if instance.secret_env else None
    variables, home = environment(instance, host), str(host.home(instance.name))
    url = local_url(instance.host, instance.port, bool(instance.args.get("ssl_certfile")))
    watch = [argv[0], "-I", str(folder / "watch.py"), url]
    return supervisor().unit_text(
        instance.name, launch, argv, variables, secret_env, host.user, home, watch, host.drain
    )  # fmt: skip


def local_url(host: str, port: int, tls: bool) -> str:
    """Return where a server that listens on `host` answers on this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _without_arguments(unit: str) -> str:
    """Leave out the lines of a unit that stand for `args`."""
    own = ("    --config ", "    --model-path ", "    --host ", "    --port ", "    --weight-version ")
    option = ("    --", '    "--')
    return "".join(
        line for line in unit.splitlines(keepends=True) if line.startswith(own) or not line.startswith(option)
    )


def _process_reasons(identity: Identity, launch: str) -> list[str]:
    if identity.active != "active":
        return [f"service is {identity.active} ({identity.sub})"]
    running = supervisor().running_launch(identity.main_pid)
    reasons = [] if running == launch else [f"launch {running} runs, the unit carries {launch}"]
    return reasons if identity.enabled else [*reasons, "not enabled"]


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _ensure_user(user: str) -> pwd.struct_passwd:
    """Return the service user, made without a password, a login or a home if there is none of that name."""
    if _uid(user) is None:
        make = [
            "/usr/sbin/useradd",
            "--system",
            "--user-group",
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            user,
        ]
        done = run(make)
        if done.returncode != 0:
            raise Refused(f"can not make the user '{user}': {' | '.join(last_lines(done.stderr, 2))}")
    return pwd.getpwnam(user)


def _read_record(folder: Path) -> dict[str, Any] | None:
    return _read_json(folder / "launch.json")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _secrets_in_place(folder: Path) -> dict[str, str]:
    # as bytes: reading text turns a carriage return into a line feed
    return {path.name: path.read_bytes().decode() for path in sorted(folder.glob("secrets.*"))}


def _asked(folder: Path) -> tuple[Any, ...]:
    """Return what a launch was asked to be, to be compared with another."""
    path = folder / "unit"
    unit = path.read_text(encoding="utf-8").replace(folder.name, PLACEHOLDER) if path.is_file() else ""
    return unit, _secrets_in_place(folder), sorted((_read_record(folder) or {}).get("accept_changes", ()))


def _prune(folder: Path, launch: str) -> None:
    """Keep as many of the newest launches as `launch` asks for, what the unit carries and the last good one."""
    instance, keep = folder.parent.name, (_read_record(folder / launch) or {}).get("keep", Host.keep)
    good = last_good(folder.parents[1], instance, launch)
    old = [name for name in _in_order(folder) if name != launch]
    for name in old[: max(0, len(old) - max(0, keep - 1))]:
        if name not in (good, launch_of(supervisor().read_unit(instance))):
            shutil.rmtree(folder / name, ignore_errors=True)


def _in_order(folder: Path) -> list[str]:
    """Return the launches of an instance as they followed one another; the clock in their names may be set back."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return sorted(names, key=lambda name: ((_read_record(folder / name) or {}).get("number", 0), name))
