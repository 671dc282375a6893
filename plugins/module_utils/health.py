# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an instance's launch really serves: every answer is tied to the launch before it is believed."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, loopback, processes, progress, sockets
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils import release_record as releases
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import SECRET
from ansible_collections.gpuops.sglang.plugins.module_utils.effective import effective
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import duration
from ansible_collections.gpuops.sglang.plugins.module_utils.secret_forms import forms_of
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity

if TYPE_CHECKING:
    from ansible_collections.gpuops.sglang.plugins.module_utils.diagnosis import Diagnosis

HTTP_TIMEOUT = 30  # s: SGLang's own health check gives up after 20
POLL = 1  # s
LOOK = 5  # s between two looks at the log for progress
TOKENS = 8
OLDER = {"/model_info": "/get_model_info", "/server_info": "/get_server_info"}  # until 0.5.5
LOG_LINES = 5000  # of a launch that are read for the cause of its end
PATIENCE = 60  # s with a systemd that does not answer
BUSY = 4  # times longer may something take that computes
QUEUE = 600  # s that a request may wait for its turn on a server whose /health answers
IDLE = 0.1  # of a core: a server computes less only when it waits
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {
        "model": "default", "max_tokens": TOKENS, "messages": [{"role": "user", "content": "Say yes."}],
    }),
    "structured_output": ("/generate", {
        "text": "Yes or no?", "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "regex": "(yes|no)"},
    }),
}  # fmt: skip


class Unhealthy(Exception):
    """The launch does not serve as asked; the text is the report: cause, evidence from its own log, next step.

    `state` is 'loading', 'computing' or 'hung' where the process is there and nothing is wrong but that it does not
    answer, 'busy' where all was proved but a request of our own has not got its turn.
    """

    def __init__(self, text: str, state: str = "") -> None:
        super().__init__(text)
        self.state = state


@dataclass(frozen=True)
class Wait:
    """How long a server may take to answer, in s: in all, and without a sign of progress instead of a stage's limit."""

    limit: float | None = None
    stall: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What was proved of one launch."""

    instance: str
    launch: str
    service: str  # e.g. 'active (running)'
    invocation: str
    main_pid: int
    port: int
    url: str  # where it answers on its host
    model: str
    arguments_compared: int
    tokens: int
    restarts: int
    requests: str  # at a time, e.g. '4 of 48' where SGLang meant to take 48; '' if it does not tell
    kv_tokens: int | None  # room of the KV cache
    latency: float  # s that the generation took
    stages: dict[str, float] = field(default_factory=dict)  # of the start -> s
    memory: dict[str, float] = field(default_factory=dict)  # GiB that the first scheduler tells of
    measured: dict[str, float] = field(default_factory=dict)  # GiB that its log tells of, see memory_log
    planned_kv_tokens: int | None = None


def verify(state: Path, instance: str, wait: Wait, requests: Collection[str] = ()) -> dict[str, Any]:
    """Wait until the launch serves, prove it, and return the Verdict as a mapping.

    `requests` are names in REQUESTS. The wait ends at once when the process ends. Raises Unhealthy or Refused.
    """
    record = launches.record_of(state, instance)
    launch = record["launch"]
    schema = releases.schema(Path(record["release"]))
    if schema is None:
        raise Refused(f"instance '{instance}': its release {record['release']} is damaged or gone: deploy it again")
    secrets = launches.secrets_of(state, instance, launch)
    server = _Server(record, secrets.get("api_key"))
    identity = _wait(state, record, secrets, schema, server, wait)

    if secrets.get("api_key") and server.is_open():
        raise Unhealthy(f"{server.launch}: {server.url} answers without the API key: deploy again")
    model = server.ask("/model_info")
    if model.get("weight_version") != launch:
        raise Unhealthy(
            f"instance '{instance}': port {record['port']} answers for launch {model.get('weight_version')!r}, "
            f"but the unit carries {launch!r}: deploy again"
        )
    server.queue = QUEUE if wait.limit is None else wait.limit
    reported = server.ask("/server_info")
    asked = {**record["args"], **record.get("accepted", {})}
    asked.update(host=record["host"], port=record["port"], model_path=record["model"])
    found = effective(asked, schema, reported, record.get("accept_changes", ()))
    if found.differences:
        raise Unhealthy(
            f"instance '{instance}', launch {launch}: the server runs with other arguments than requested:\n  "
            + "\n  ".join(found.differences)
            + "\nAsk for what is reported, correct what makes SGLang change it, or accept it with a reason in "
            "sglang_server_accept_changes."
        )
    # the parts of a disaggregated server answer each other; that they compute /health has told
    whole = record["args"].get("disaggregation_mode") in (None, "null")
    generates, began = whole and model.get("is_generation", True), time.monotonic()
    tokens = _generate(server, record) if generates else 0
    latency = round(time.monotonic() - began, 3)
    for name in requests if generates else ():
        _request(server, name)
    proved_before = launches.is_good(state, instance, launch)
    return asdict(
        Verdict(
            instance=instance,
            launch=launch,
            service=f"{identity.active} ({identity.sub})",
            invocation=identity.invocation,
            main_pid=identity.main_pid,
            port=record["port"],
            url=server.url,
            model=record["model"],
            arguments_compared=found.arguments,
            tokens=tokens,
            restarts=identity.restarts,
            requests=_of(found.requests, record.get("resolved", {}).get("max_running_requests")),
            kv_tokens=found.tokens,
            latency=latency,
            stages={} if proved_before else _stages(launch, identity),
            memory=found.memory,
            measured={} if proved_before else _measured(launch, identity),
            # the plan in the record of a return is that of the launch that it returned to
            planned_kv_tokens=None if record.get("again") else (record.get("plan") or {}).get("kv_tokens"),
        )
    )


def drift_of(state: Path, instance: str) -> list[str]:
    """Return a sentence for each thing that was changed by hand since the launch was deployed."""
    # a module is compiled anew in each run, and a deployment has no need of it
    from ansible_collections.gpuops.sglang.plugins.module_utils.drift import drift

    record, identity = launches.record_of(state, instance), supervisor().identity(instance)
    folder = state / instance / "launches" / record["launch"]
    try:
        running = Path(f"/proc/{identity.main_pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        running = None
    kept = (folder / "unit").read_text(encoding="utf-8") if (folder / "unit").is_file() else ""
    unit = supervisor().unit_path(instance)
    return drift(kept, unit, identity, record.get("argv"), running, Path(record["release"]))


def beside() -> list[str]:
    """Return the SGLang servers of this host that are no instance's."""
    ours = [supervisor().identity(name).cgroup for name in supervisor().installed_instances()]
    return [one.label for one in processes.servers() if not any(map(one.in_cgroup, ours))]


def gpu_faults(state: Path, instances: Collection[str]) -> list[str]:
    """Return what is wrong with the GPUs, driver and devices that instances need, a line each."""
    users = []
    for name in instances:
        with contextlib.suppress(Refused):
            record = launches.record_of(state, name)
            if (record.get("resolved") or {}).get("device") not in (None, "cpu"):
                users.append(record["user"])
    if not users:
        return []
    # modules are compiled anew in each run, and a deployment has no need of these
    from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_facts import gpu_facts

    return list(dict.fromkeys(fault for user in dict.fromkeys(users) for fault in gpu_facts(user)["faults"]))


def _of(effective: int | None, meant: int | None) -> str:
    told = "" if effective is None else str(effective)
    return f"{told} of {meant}" if told and meant and meant > (effective or 0) else told


class _Server:
    """HTTP to one address of this host, never through a proxy."""

    def __init__(self, record: Mapping[str, Any], key: str | None) -> None:
        tls = bool(record["args"].get("ssl_certfile"))
        self.url = launches.local_url(record["host"], record["port"], tls)
        self.launch = f"instance '{record['instance']}', launch {record['launch']}"
        self.queue = 0.0  # s that a request may wait for its turn
        self.headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.opener = loopback.opener()

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON answer; raises Unhealthy with the path and what came instead."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self.headers)
        end = time.monotonic() + self.queue
        while True:
            try:
                with self.opener.open(request, timeout=HTTP_TIMEOUT) as answer:
                    content: dict[str, Any] = json.loads(answer.read())
                return content
            except urllib.error.HTTPError as error:
                if error.code == 404 and path in OLDER:
                    return self.ask(OLDER[path], body)
                full, why = error.code in (429, 503), f"answers {error.code} {error.reason}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                full, why = "timed out" in str(error), f"gives no answer: {error}"
            busy = full and self.is_up()
            if not busy or time.monotonic() > end:
                state = "busy" if busy else "computing" if full else ""
                raise Unhealthy(f"{self.launch}: {self.url}{path} {why}", state)
            time.sleep(POLL)

    def is_open(self) -> bool:
        """Tell whether it answers a request without the key."""
        try:
            with self.opener.open(urllib.request.Request(self.url + "/v1/models"), timeout=HTTP_TIMEOUT):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def is_up(self) -> bool:
        """Tell whether /health answers 200: the scheduler has answered a request of its own."""
        try:
            with self.opener.open(urllib.request.Request(self.url + "/health"), timeout=HTTP_TIMEOUT) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False


def _wait(
    state: Path, record: Mapping[str, Any], secrets: Mapping[str, str], schema: Schema, server: _Server, wait: Wait
) -> Identity:
    instance, launch, port = record["instance"], record["launch"], record["port"]
    began = looked = time.monotonic()
    first = identity = _identity(instance)
    computed, watch = supervisor().computed(identity), _Watch(state, instance, launch, wait.stall)
    while True:
        runs = identity.active in ("active", "reloading") or (identity.active == "activating" and identity.main_pid)
        # a look at a server's health may take longer than systemd needs to start the next process
        if not runs or identity.restarts > first.restarts:
            ended = first.invocation if first.active == "active" else ""
            found = _diagnosis(launch, ended, schema)
            what = f"{server.launch}: the server ended while {found.stage} ({identity.exit_status or identity.result})"
            now = f"the service is {identity.active} ({identity.sub}) after {identity.restarts} restarts"
            raise Unhealthy(_report(what, found, secrets, launch, now))
        running = supervisor().running_launch(identity.main_pid)
        if running not in (None, launch):
            raise Unhealthy(
                f"instance '{instance}': process {identity.main_pid} is launch {running}, not {launch}: deploy again"
            )
        owners = sockets.listeners(port)
        strangers = [owner for owner in owners if not owner.in_cgroup(identity.cgroup)]
        if strangers:
            raise Unhealthy(
                f"instance '{instance}': port {port} is held by {strangers[0].label}, "
                f"which is not of {supervisor().unit_name(instance)}: end it, then deploy again"
            )
        if running and owners and server.is_up():
            return identity
        passed = time.monotonic() - began
        over = f"after {duration(passed)}" if wait.limit is not None and passed > wait.limit else ""
        if not over and began + passed > looked + LOOK:
            looked = began + passed
            still = watch.quiet(identity)
            over = f"it has made no progress for {duration(still)}" if still is not None else ""
        if over:
            found = _diagnosis(launch, identity.invocation, schema)
            # a moment does not tell whether a server computes
            if found.stage != progress.SERVING or passed > LOOK:
                share = (supervisor().computed(identity) - computed) / passed
                raise _silent(f"{server.launch}: not healthy, {over}", found, share, secrets, launch, identity)
        time.sleep(POLL)
        identity = _identity(instance)


def _identity(instance: str) -> Identity:
    """Ask the supervisor, which may not answer for a moment when it starts anew or the host is short of everything."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return supervisor().identity(instance)
        except (Refused, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(POLL)


def _silent(
    what: str, found: Diagnosis, share: float, secrets: Mapping[str, str], launch: str, identity: Identity
) -> Unhealthy:
    """Return what is wrong with a server that does not answer and has had `share` of a core meanwhile."""
    busy, state = share > IDLE, "loading"
    what += f": it is {found.stage}"
    if found.stage == progress.SERVING:
        state = "computing" if busy else "hung"
        what += "; it computes, perhaps a long prompt" if busy else "; it hangs: it has not computed anything meanwhile"
        found = replace(found, cause="" if busy else found.cause)
    elif not found.remedy and not busy:
        found = replace(found, remedy="see what it waits for in the evidence; if it still loads, wait longer")
    return Unhealthy(_report(what, found, secrets, launch, f"process {identity.main_pid} still runs"), state)


class _Watch:
    """Looks whether a start still moves."""

    def __init__(self, state: Path, instance: str, launch: str, limit: float | None) -> None:
        self.state, self.instance, self.launch = state, instance, launch
        self.limit, self.begun = limit, time.monotonic()
        self.best: progress.Progress | None = None
        self.start = self.looked = self.computed = 0.0  # of the quiet, when that was seen first, and the CPU until then

    def quiet(self, identity: Identity) -> float | None:
        """Return the s without progress when they are too many; a journal that has lost lines is no standstill."""
        entries = entries_of(self.launch, identity.invocation)
        seen = progress.progress(entries, supervisor().began(identity)) if entries else self.best
        if seen is None:
            return None
        if self.best and progress.ORDER.index(seen.stage) < progress.ORDER.index(self.best.stage):
            seen = replace(self.best, moved=max(seen.moved, self.best.moved))
        self.best = seen
        # one that has served for long is given its time from now on
        now, start = time.monotonic(), max(seen.since, self.begun) if seen.stage == progress.SERVING else seen.moved
        if start != self.start:
            self.start, self.looked, self.computed = start, now, supervisor().computed(identity)
        quiet, limit = now - start, self.limit
        if limit is None:
            usual = usual_of(self.state, self.instance).get(seen.stage, 0)
            # at the first look nothing is known of what was quiet before
            busy = supervisor().computed(identity) - self.computed >= IDLE * (now - self.looked)
            # compilers and downloads say nothing for long; a standstill may compute too, so they have an end
            limit = max(progress.LIMITS[seen.stage], 3 * usual) * (BUSY if busy else 1)
        return quiet if quiet > limit else None


def _stages(launch: str, identity: Identity) -> dict[str, float]:
    return progress.stage_times(entries_of(launch, identity.invocation), supervisor().began(identity), time.monotonic())


def _measured(launch: str, identity: Identity) -> dict[str, float]:
    # a module is compiled anew in each run, and most runs look at what was proved before
    from ansible_collections.gpuops.sglang.plugins.module_utils.memory_log import measured

    return measured(entry.text for entry in entries_of(launch, identity.invocation))


def entries_of(launch: str, invocation: str, count: int = LOG_LINES) -> list[progress.Entry]:
    """Return the last `count` lines of one run of a launch."""
    return [progress.Entry(line.at, line.text) for line in supervisor().log_of(launch, count, invocation)]


def usual_of(state: Path, instance: str) -> dict[str, float]:
    """Return the s that each stage of a start took in the instance's kept launches."""
    return progress.usual_times([verdict.get("stages", {}) for verdict in launches.earlier_verdicts(state, instance)])


def _report(what: str, found: Diagnosis, secrets: Mapping[str, str], launch: str, now: str) -> str:
    """Return cause, evidence, next step, what there is now and where the whole log is (DESIGN: Errors)."""
    evidence = [_masked(line, secrets) for line in found.evidence] or ["(its log has nothing of it)"]
    cause = f": {_masked(found.cause, secrets)}" if found.cause else ""
    step = f"\nNext: {found.remedy}." if found.remedy else ""
    whole = supervisor().log_place(launch)
    return f"{what}{cause}\n  " + "\n  ".join(evidence) + f"{step}\nNow: {now}. All of this launch's log: {whole}"


def _diagnosis(launch: str, invocation: str, schema: Schema) -> Diagnosis:
    # a module is compiled anew in each run, and most runs have nothing to diagnose
    from ansible_collections.gpuops.sglang.plugins.module_utils.diagnosis import diagnose

    if not invocation:  # systemd forgets the run that has failed while it waits to start the next
        invocation = next(
            (line.invocation for line in reversed(supervisor().log_of(launch, 50)) if line.invocation), ""
        )
    text = "\n".join(line.text for line in supervisor().log_of(launch, LOG_LINES, invocation))
    return diagnose(text, schema, gpu.memory_total())


def _masked(line: str, secrets: Mapping[str, str]) -> str:
    """SGLang logs all its arguments once, keys included: leave such a line out of a report."""
    names = (*SECRET, *(name for name in secrets if not name.isupper()))  # a variable's name may be in a hint
    named = any(name in line.replace("-", "_") for name in names)
    secret = named or any(form in line for value in secrets.values() for form in forms_of(value))
    return "(a line with secrets was left out)" if secret else line[:400]


def _request(server: _Server, name: str) -> None:
    path, body = REQUESTS[name]
    told = server.ask(path, body)
    messages = [choice.get("message") or {} for choice in told.get("choices", ())]
    # a model that thinks first has come no further after some tokens
    said = told.get("text") or "".join(one.get("content") or one.get("reasoning_content") or "" for one in messages)
    if not said or (name == "structured_output" and said.strip() not in ("yes", "no")):
        raise Unhealthy(f"{server.launch}: the {name.replace('_', ' ')} request came back with {said[:80]!r}")


def _generate(server: _Server, record: Mapping[str, Any]) -> int:
    text = {"input_ids": [1]} if record["args"].get("skip_tokenizer_init") else {"text": "The"}
    body = {**text, "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}}
    told = server.ask("/generate", body).get("meta_info", {})
    if told.get("weight_version", record["launch"]) != record["launch"] or not told.get("completion_tokens"):
        what = f"a generation of {TOKENS} tokens came back without tokens of launch {record['launch']}"
        raise Unhealthy(f"instance '{record['instance']}': {what}")
    return int(told["completion_tokens"])
