# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof against a real HTTP server that answers what SGLang 0.5.23 has answered."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import drift, gpu, health, processes, progress, sockets
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_facts as gpu_facts_module
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Unhealthy, Wait
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity, LogLine
from conftest import parser_of

LAUNCH = "20260101T000000Z-abcdef"
KEY = "sk-never-to-be-seen"
INVOCATION = "0123456789abcdef0123456789abcdef"


class Server(ThreadingHTTPServer):
    """Answers as SGLang does: /health is open, all else wants the API key."""

    daemon_threads = True
    # a dead server's clients do not hold the next test
    block_on_close = False

    def __init__(self, bodies: dict[str, Any], family: socket.AddressFamily = socket.AF_INET) -> None:
        self.address_family = family
        self.bodies = copy.deepcopy(bodies)
        self.statuses: dict[str, list[int]] = {}  # path -> statuses of the next answers
        self.asked: list[tuple[str, str, Any]] = []
        self.key = KEY
        super().__init__(("127.0.0.1" if family == socket.AF_INET else "::1", 0), Handler)

    def handle_error(self, *_: Any) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, json.loads(body) if body else None))
        statuses = self.server.statuses.get(self.path)
        status = statuses.pop(0) if statuses else 200
        if self.path != "/health" and self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            status = 401
        answer = self.server.bodies.get(self.path)
        answer = answer(self.server.asked[-1][2]) if callable(answer) else answer
        content = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if content.startswith(b"raw "):
            self.wfile.write(content[4:])
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET


class Clock:
    """Time that passes while somebody sleeps, and hardly otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.0001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 6000, "it waits for ever"


class Deployment:
    """An instance on this host: its server, its record, and what systemd says of it."""

    def __init__(self, state: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = state / "state"
        self.server = server
        own = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]
        self.clock = Clock()
        shown = {"ExecMainStartTimestampMonotonic": "990000000"}
        self.identity = Identity("active", "running", "success", 4711, INVOCATION, own, True, 0, "", shown)
        self.running: str | None = LAUNCH
        self.log: list[Any] = ["loading", "ready"]  # texts, or the lines of the journal
        self.spoilt = False  # somebody has changed its release
        self.load = 0.0  # cores that it computes on
        self.looked = 0
        self.meanwhile: Callable[[], None] = lambda: None  # happens between two looks at the service
        release = state / "release"
        release.mkdir()
        (release / "schema.json").write_text(json.dumps({"options": describe(parser_of("0.5.23"))}))
        self.record: dict[str, Any] = {
            "launch": LAUNCH,
            "instance": "a",
            "started": 0,
            "release": str(release),
            "model": "/srv/models/tiny",
            "host": server.server_address[0],
            "port": server.server_port,
            "args": {"tp_size": 1, "dtype": "auto", "log_requests_level": "2", "chat_template": None},
            "secrets": ["api_key"],
        }
        server.bodies["/model_info"]["weight_version"] = LAUNCH
        server.bodies["/generate"]["meta_info"]["weight_version"] = LAUNCH
        server.bodies["/server_info"] |= {"host": server.server_address[0], "port": server.server_port}
        self.secrets = f'api-key: "{KEY}"\n'
        self.secret_env = ""
        monkeypatch.setattr(health, "time", self.clock)
        monkeypatch.setattr(systemd, "computed", lambda identity: self.load * self.clock.now)
        monkeypatch.setattr(gpu, "memory_total", lambda: None)
        monkeypatch.setattr(systemd, "read_unit", lambda name: f"# launch: {LAUNCH}\n" if name == "a" else "")
        monkeypatch.setattr(systemd, "identity", self.look)
        monkeypatch.setattr(systemd, "running_launch", lambda pid: self.running)
        monkeypatch.setattr(systemd, "log_of", self.log_of)

    def log_of(self, launch: str, count: int, invocation: str = "") -> list[LogLine]:
        assert launch == LAUNCH
        lines = [line if isinstance(line, LogLine) else LogLine(990, line, INVOCATION) for line in self.log]
        return [line for line in lines if invocation in ("", line.invocation)][-count:]

    def look(self, name: str) -> Identity:
        assert name == "a"
        found = self.identity
        self.looked += 1
        self.meanwhile()
        return found

    def change(self, **facts: Any) -> None:
        self.identity = dataclasses.replace(self.identity, **facts)

    def verify(self, limit: float | None = 20, stall: float | None = None, requests: tuple[str, ...] = ()) -> Any:
        folder = self.state / "a/launches" / LAUNCH
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_text(json.dumps(self.record))
        (folder / "secrets.yaml").write_text(self.secrets)
        (folder / "secrets.env").write_text(self.secret_env)
        return health.verify(self.state, "a", Wait(limit, stall), requests)

    def failure(self, limit: float | None = 20, stall: float | None = None, state: str = "", **how: Any) -> str:
        with pytest.raises(Unhealthy) as caught:
            self.verify(limit, stall, **how)
        assert KEY not in str(caught.value)
        assert caught.value.state == state
        return str(caught.value)


@pytest.fixture
def server(answers: dict[str, Any]) -> Iterator[Server]:
    with Server(answers["0.5.23"]) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def deployment(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    return Deployment(tmp_path, server, monkeypatch)


def test_a_healthy_server(deployment: Deployment) -> None:
    def generate(_: Any) -> Any:
        deployment.clock.now += 0.25
        return answer

    answer = deployment.server.bodies["/generate"]
    deployment.server.bodies["/generate"] = generate
    state = {"memory_usage": {"weight": 51.05, "kvcache": 45.97, "token_capacity": 753185, "graph": 0}}
    deployment.server.bodies["/server_info"]["internal_states"] = [state]
    deployment.record["plan"] = {"kv_tokens": 753000}
    deployment.log = ["loading", "Capture cuda graph end. Time elapsed: 55.75 s. mem usage=0.06 GB.", "ready"]
    assert deployment.verify() == {
        "instance": "a",
        "launch": LAUNCH,
        "service": "active (running)",
        "invocation": INVOCATION,
        "main_pid": 4711,
        "port": deployment.server.server_port,
        "url": f"http://127.0.0.1:{deployment.server.server_port}",
        "model": "/srv/models/tiny",
        "arguments_compared": 6,
        "tokens": 8,
        "restarts": 0,
        "requests": "",
        "kv_tokens": 753185,
        "latency": 0.25,
        "stages": {"reading its arguments": 10.3},
        "memory": {"weight": 51.05, "kvcache": 45.97, "graph": 0.0},
        "measured": {"graphs": 0.06},
        "planned_kv_tokens": 753000,
    }
    assert [(method, path) for method, path, _ in deployment.server.asked] == [
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/model_info"),
        ("GET", "/server_info"),
        ("POST", "/generate"),
    ]
    assert deployment.server.asked[-1][2]["sampling_params"]["max_new_tokens"] == 8


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_a_server_on_any_address_is_asked_at_the_local_one(deployment: Deployment, host: str) -> None:
    deployment.record["host"] = deployment.server.bodies["/server_info"]["host"] = host
    assert deployment.verify()["tokens"] == 8


@pytest.mark.parametrize("host", ["::", "::1"])
def test_a_server_on_ipv6(tmp_path: Path, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    try:
        made = Server(answers["0.5.23"], socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"::1 can not be used here: {error}")
    with made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        deployment = Deployment(tmp_path, made, monkeypatch)
        deployment.record["host"] = made.bodies["/server_info"]["host"] = host
        try:
            assert deployment.verify()["tokens"] == 8
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:30000"),
        ("0.0.0.0", "http://127.0.0.1:30000"),
        ("192.0.2.7", "http://192.0.2.7:30000"),
        ("::", "http://[::1]:30000"),
        ("2001:db8::7", "http://[2001:db8::7]:30000"),
    ],
)
def test_the_address_that_is_asked(host: str, url: str) -> None:
    def asked(args: dict[str, Any]) -> str:
        record = {"instance": "a", "launch": LAUNCH, "host": host, "port": 30000, "args": args}
        return health._Server(record, None).url

    assert asked({}) == url
    assert asked({"ssl_certfile": None}) == url
    assert asked({"ssl_certfile": "/etc/ssl/a.pem"}) == url.replace("http:", "https:")


def test_a_server_with_tls_is_asked_with_tls(deployment: Deployment, tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-days", "2", "-subj", "/CN=outer.example.com", "-keyout", key, "-out", certificate]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    deployment.server.socket = context.wrap_socket(deployment.server.socket, server_side=True)
    deployment.record["args"]["ssl_certfile"] = certificate
    deployment.server.bodies["/server_info"]["ssl_certfile"] = certificate
    assert deployment.verify()["tokens"] == 8


def test_a_model_that_does_not_generate_is_not_asked_for_tokens(deployment: Deployment) -> None:
    deployment.server.bodies["/model_info"]["is_generation"] = False
    assert deployment.verify()["tokens"] == 0
    assert "/generate" not in [path for _, path, _ in deployment.server.asked]


def test_a_server_without_a_key(deployment: Deployment) -> None:
    deployment.server.key = deployment.secrets = ""
    assert deployment.verify()["tokens"] == 8


def test_a_wrong_key_is_told_without_the_key(deployment: Deployment) -> None:
    deployment.server.key = "sk-another"
    assert deployment.failure() == (
        f"instance 'a', launch {LAUNCH}: "
        f"http://127.0.0.1:{deployment.server.server_port}/model_info answers 401 Unauthorized"
    )


@pytest.mark.parametrize("limit", [0, 20])
def test_a_key_that_the_server_does_not_ask_for_is_told(deployment: Deployment, limit: float) -> None:
    deployment.server.key = ""
    url = f"http://127.0.0.1:{deployment.server.server_port}"
    assert deployment.failure(limit) == (
        f"instance 'a', launch {LAUNCH}: {url} answers without the API key: deploy again"
    )


@pytest.mark.parametrize("path", ["/model_info", "/server_info"])
def test_an_older_server_is_asked_by_the_older_names(deployment: Deployment, path: str) -> None:
    bodies, statuses = deployment.server.bodies, deployment.server.statuses
    older = path.replace("/", "/get_")
    bodies[older] = bodies.pop(path)
    statuses[path] = [404]
    assert deployment.verify()["tokens"] == 8
    assert older in [asked for _, asked, _ in deployment.server.asked]
    statuses.update({path: [404], older: [404]})
    assert deployment.failure().endswith(f"{older} answers 404 Not Found")
    statuses.update({path: [500]})
    assert deployment.failure().endswith(f"{path} answers 500 Internal Server Error")


def test_proxies_of_the_environment_are_not_used(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert deployment.verify()["tokens"] == 8


def test_a_server_that_still_loads_is_waited_for(deployment: Deployment) -> None:
    deployment.server.statuses["/health"] = [503, 503, 200]
    assert deployment.verify()["tokens"] == 8
    assert [path for _, path, _ in deployment.server.asked].count("/health") == 3


def test_only_200_is_healthy(deployment: Deployment) -> None:
    deployment.server.statuses["/health"] = [204]
    assert "not healthy, after 0 s" in deployment.failure(limit=0, state="loading")


def test_an_answer_without_a_socket_of_the_service_is_no_proof(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "listeners", lambda port: [])
    assert "not healthy, after 0 s" in deployment.failure(limit=0, state="loading")


def test_a_process_without_a_launch_id_is_no_proof(deployment: Deployment) -> None:
    deployment.running = None
    assert "not healthy, after 0 s" in deployment.failure(limit=0, state="loading")
    assert deployment.server.asked == []


def test_a_process_that_is_not_yet_the_server_is_waited_for(deployment: Deployment) -> None:
    """systemd's child has its own environment until it becomes the server."""
    deployment.running = None

    def begin() -> None:
        if deployment.looked == 3:
            deployment.running = LAUNCH

    deployment.meanwhile = begin
    assert deployment.verify()["tokens"] == 8
    assert deployment.looked == 3


NEXT_STEP = "Next: see what it waits for in the evidence; if it still loads, wait longer.\n"


@pytest.mark.parametrize(("load", "step"), [(0.05, NEXT_STEP), (0.5, "")], ids=["idle", "busy"])
def test_a_server_that_does_not_get_healthy(deployment: Deployment, load: float, step: str) -> None:
    deployment.log = ["[2026-11-29 17:25:56] Load weight begin. avail mem=25.02 GB", "25 %\r50 %"]
    deployment.server.statuses["/health"] = [503] * 99
    deployment.load = load
    assert deployment.failure(limit=7, state="loading") == (
        f"instance 'a', launch {LAUNCH}: not healthy, after 7 s: it is loading weights\n"
        "  [2026-11-29 17:25:56] Load weight begin. avail mem=25.02 GB\n  25 %\n  50 %\n"
        f"{step}"
        f"Now: process 4711 still runs. All of this launch's log: journalctl GPUOPS_LAUNCH={LAUNCH}"
    )


@pytest.mark.parametrize(
    ("load", "state", "told"),
    [
        (0.05, "hung", "it hangs: it has not computed anything meanwhile: Health check failed. Server couldn't"),
        (0.5, "computing", "it computes, perhaps a long prompt\n"),
    ],
)
@pytest.mark.parametrize(
    "how", [{"limit": 7}, {"limit": 0}, {"limit": None, "stall": 7}], ids=["limit", "now", "stall"]
)
def test_a_server_that_serves_no_more_hangs_or_is_busy(
    deployment: Deployment, load: float, state: str, told: str, how: dict[str, Any]
) -> None:
    deployment.log = [
        "The server is fired up and ready to roll!",
        "Health check failed. Server couldn't get a response",
    ]
    deployment.server.statuses["/health"] = [503] * 99
    deployment.load = load
    text = deployment.failure(state=state, **how)
    assert deployment.clock.now > 1000 + health.LOOK  # a moment does not tell
    assert f": it is serving; {told}" in text
    assert text.endswith(f"Now: process 4711 still runs. All of this launch's log: journalctl GPUOPS_LAUNCH={LAUNCH}")


def test_a_server_that_hangs_after_long_traffic_is_not_taken_for_one_that_loads(deployment: Deployment) -> None:
    deployment.log = [f"Decode batch, #running-req: 1, #token: {number}" for number in range(99)]
    deployment.server.statuses["/health"] = [503] * 99
    assert ": it is serving; it hangs" in deployment.failure(limit=0, state="hung")


def test_a_server_that_was_silent_for_a_moment_serves(deployment: Deployment) -> None:
    deployment.log = ["The server is fired up and ready to roll!"]
    deployment.server.statuses["/health"] = [503, 503]
    assert deployment.verify(limit=0)["tokens"] == 8


def test_what_a_service_computes_is_of_its_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity("active", "running", "", 1, "", "/system.slice/sglang-a.service", True, 0, "", {})
    monkeypatch.setattr(systemd, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert systemd.computed(identity) == 0
    folder = tmp_path / "sys/fs/cgroup/system.slice/sglang-a.service"
    folder.mkdir(parents=True)
    for content, seconds in (("usage_usec 2500000\nuser_usec 1\n", 2.5), ("", 0), ("user_usec 1\n", 0), ("x\n", 0)):
        (folder / "cpu.stat").write_text(content)
        assert systemd.computed(identity) == seconds


def loads(deployment: Deployment, pace: int) -> None:
    """Let the server log a shard each `pace` s, and get healthy after 300 s."""

    def go_on() -> None:
        now, began = deployment.clock.now, 1000
        deployment.log = [LogLine(990, "Load weight begin. avail mem=25.02 GB", INVOCATION)]
        shards = range(1, int(now - began) // pace + 1)
        deployment.log += [LogLine(began + pace * n, f"Loading: 1%|#| {n}/900 [", INVOCATION) for n in shards]
        # another run of the same launch is no progress of this one
        deployment.log.append(LogLine(now, f"Loading: 1%|#| {int(now)}/9000 [", "another"))
        deployment.server.statuses["/health"] = [200 if now > began + 300 else 503]

    deployment.meanwhile = go_on


@pytest.mark.parametrize(
    ("pace", "stall", "told"),
    [
        (40, 60, ""),
        (40, None, ""),  # less than the limit of the stage
        (999, None, ""),
        (90, 60, "it has made no progress for 1 min( \\d+ s)?: it is loading weights"),
        (999, 120, "it has made no progress for 2 min( \\d+ s)?: it is loading weights"),
    ],
)
def test_a_launch_is_waited_for_while_it_makes_progress(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, pace: int, stall: float | None, told: str
) -> None:
    monkeypatch.setattr(health, "POLL", 10)
    loads(deployment, pace)
    if told:
        assert re.search(told, deployment.failure(limit=None, stall=stall, state="loading"))
    else:
        stages = deployment.verify(limit=None, stall=stall)["stages"]
        assert list(stages) == ["reading its arguments", "loading weights"] and 310 <= stages["loading weights"] < 330


def test_each_stage_has_a_limit_of_its_own(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "POLL", 50)
    deployment.server.statuses["/health"] = [503] * 9999
    waited = {}
    for line, stage in (("nothing", "reading its arguments"), ("Load weight begin.", "loading weights")):
        began, deployment.log = deployment.clock.now, [LogLine(deployment.clock.now, line, INVOCATION)]
        assert f": it is {stage}" in deployment.failure(limit=None, state="loading")
        waited[stage] = deployment.clock.now - began
    assert all(0 < waited[stage] - progress.LIMITS[stage] < 60 for stage in waited)


class Started:
    """A start as it is watched: `logs` appends a line of the moment, `passes` lets time go by and looks."""

    def __init__(self, deployment: Deployment, stall: float | None = None) -> None:
        self.deployment, self.clock = deployment, deployment.clock
        deployment.log = []
        deployment.change(shown={"ExecMainStartTimestampMonotonic": "1000000000"})
        self.watch = health._Watch(deployment.state, "a", LAUNCH, stall)

    def logs(self, *texts: str) -> Started:
        self.deployment.log += [LogLine(self.clock.now, text, INVOCATION) for text in texts]
        self.passes(0)
        return self

    def passes(self, seconds: float) -> bool:
        """Tell whether it is found to stand still; it is looked at every 100 s, as far as nothing hinders that."""
        until, found = self.clock.now + seconds, None
        while found is None and self.clock.now < until:
            self.clock.now = min(until, self.clock.now + 100)
            found = self.watch.quiet(self.deployment.identity)
        return found is not None

    def quiet_until(self, limit: float) -> None:
        assert not self.passes(limit - 1) and self.passes(2)


WEIGHTS, FIRED = "Load weight begin. avail mem=25.02 GB", "The server is fired up and ready to roll!"


@pytest.mark.parametrize(("load", "times"), [(0.05, 1), (0.5, health.BUSY)], ids=["idle", "busy"])
@pytest.mark.parametrize(
    ("line", "stage"), [(WEIGHTS, "loading weights"), (FIRED, "serving"), ("x", "reading its arguments")]
)
def test_what_computes_has_more_time(deployment: Deployment, line: str, stage: str, load: float, times: int) -> None:
    deployment.load = load
    Started(deployment).logs(line).quiet_until(times * progress.LIMITS[stage])


def test_what_computed_before_it_stood_still_is_idle(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "computed", lambda identity: min(deployment.clock.now, 1500))
    started = Started(deployment).logs(WEIGHTS)
    assert not started.passes(500)
    started.logs("25 %").quiet_until(progress.LIMITS["loading weights"])


@pytest.mark.parametrize("load", [0.05, 0.5], ids=["idle", "busy"])
def test_a_start_that_is_watched_late_is_judged_by_what_was_seen_of_it(deployment: Deployment, load: float) -> None:
    started, deployment.load = Started(deployment).logs(WEIGHTS), load
    deployment.clock.now += progress.LIMITS["loading weights"]
    assert not started.passes(health.LOOK)
    assert started.passes(health.LOOK) == (load < health.IDLE)


@pytest.mark.parametrize(("load", "times"), [(0.05, 1), (0.5, health.BUSY)], ids=["idle", "busy"])
def test_a_server_without_an_answer_has_an_end_though_it_logs(deployment: Deployment, load: float, times: int) -> None:
    started, deployment.load = Started(deployment).logs(FIRED), load
    limit = times * progress.LIMITS["serving"]
    for number in range(limit // 100):
        assert not started.logs(f"Decode batch, #token: {number}").passes(99)
    assert started.logs("Decode batch, #token: 0").passes(101)


@pytest.mark.parametrize(("load", "state"), [(0.05, "hung"), (0.5, "computing")], ids=["idle", "busy"])
def test_a_launch_that_never_answers_is_ended(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, load: float, state: str
) -> None:
    monkeypatch.setattr(health, "POLL", 50)
    deployment.load, deployment.server.statuses["/health"] = load, [503] * 999
    deployment.log = [LogLine(deployment.clock.now, FIRED, INVOCATION)]
    assert ": it is serving; " in deployment.failure(limit=None, state=state)


@pytest.mark.parametrize("load", [0.05, 0.5])
@pytest.mark.parametrize("line", [WEIGHTS, FIRED])
def test_what_the_operator_says_holds_for_every_stage(deployment: Deployment, line: str, load: float) -> None:
    deployment.load = load
    Started(deployment, stall=50).logs(line).quiet_until(50)


@pytest.mark.parametrize(("usual", "limit"), [(1000, 3000), (10, progress.LIMITS["loading weights"])])
def test_a_stage_may_take_three_times_as_long_as_usual(deployment: Deployment, usual: float, limit: float) -> None:
    deployment.verify()
    launches.keep_verdict(deployment.state, "a", LAUNCH, {"stages": {"loading weights": usual}})
    Started(deployment).logs(WEIGHTS).quiet_until(limit)


def test_a_journal_that_tells_nothing_is_no_standstill(deployment: Deployment) -> None:
    assert not Started(deployment).passes(4 * 2400 + 1)


@pytest.mark.parametrize("left", [[], ["x"]], ids=["nothing is left", "the last line is left"])
def test_what_the_journal_gives_up_is_no_step_back(deployment: Deployment, left: list[str]) -> None:
    started = Started(deployment).logs(WEIGHTS, "x")
    assert not started.passes(1)
    deployment.log = [line for line in deployment.log if line.text in left]
    assert not started.passes(progress.LIMITS["reading its arguments"] + 10)
    started.clock.now = 1000 + progress.LIMITS["loading weights"] - 10
    assert not started.passes(9) and started.passes(2)
    # what comes then is progress all the same
    assert not started.logs("y").passes(progress.LIMITS["loading weights"] - 10)


@pytest.mark.parametrize("first", [1, 3], ids=["at once", "meanwhile"])
@pytest.mark.parametrize("error", [Refused("systemctl show failed"), OSError(11, "no process")])
@pytest.mark.parametrize("passes", [True, False])
def test_a_systemd_that_does_not_answer_ends_nothing_for_a_while(
    deployment: Deployment, first: int, error: Exception, passes: bool
) -> None:
    def silent() -> None:
        if deployment.looked >= first and (not passes or deployment.clock.now < 1000 + health.PATIENCE / 2):
            raise error

    deployment.meanwhile = silent
    deployment.server.statuses["/health"] = [503, 503]
    if passes:
        assert deployment.verify(limit=None)["tokens"] == 8
    else:
        with pytest.raises(type(error)) as caught:
            deployment.verify(limit=None)
        assert caught.value is error
    assert (deployment.clock.now > 1000 + health.PATIENCE) != passes


def test_the_stages_of_a_start_are_told_once(deployment: Deployment) -> None:
    lines = {990.5: "server_args=ServerArgs()", 992: "Load weight begin.", 995: "Load weight end.",
             996: "The server is fired up"}  # fmt: skip
    deployment.log = [LogLine(at, text, INVOCATION) for at, text in lines.items()]
    deployment.log.insert(1, LogLine(991, "Load weight begin.", "another"))
    verdict = deployment.verify()
    assert verdict["stages"] == {
        "reading its arguments": 0.5, "preparing": 1.5, "loading weights": 3.0, "sizing its caches": 1.0,
    }  # fmt: skip
    launches.keep_verdict(deployment.state, "a", LAUNCH, verdict)
    assert deployment.verify()["stages"] == {}


@pytest.mark.parametrize(
    ("facts", "how", "now"),
    [
        (
            {"active": "failed", "sub": "failed", "exit_status": "exited 1", "main_pid": 0},
            "exited 1",
            "failed (failed) after 0 restarts",
        ),
        (
            {"active": "activating", "sub": "auto-restart", "exit_status": "killed 9", "main_pid": 0, "restarts": 1},
            "killed 9",
            "activating (auto-restart) after 1 restarts",
        ),
        ({"active": "inactive", "sub": "dead", "main_pid": 0}, "success", "inactive (dead) after 0 restarts"),
        ({"restarts": 1, "exit_status": "dumped 6"}, "dumped 6", "active (running) after 1 restarts"),
    ],
)
@pytest.mark.parametrize("looks", [0, 3], ids=["before", "while it is waited for"])
def test_a_process_that_has_ended(
    deployment: Deployment, facts: dict[str, Any], how: str, now: str, looks: int
) -> None:
    if facts.get("restarts") and not looks and facts.get("active") is None:
        looks = 1  # a restart shows only against an earlier look
    deployment.server.statuses["/health"] = [503] * 99
    deployment.log = ["Traceback (most recent call last):", "torch.OutOfMemoryError: tried to allocate 4 GiB"]

    def end() -> None:
        if deployment.looked >= looks:
            deployment.change(**facts)

    deployment.meanwhile = end
    text = deployment.failure(limit=600)
    assert text.startswith(
        f"instance 'a', launch {LAUNCH}: the server ended while reading its arguments ({how}): "
        "torch.OutOfMemoryError: tried to allocate 4 GiB\n"
    )
    assert "\nNext: lower 'mem_fraction_static', which leaves more beside the caches" in text
    assert text.endswith(f"\nNow: the service is {now}. All of this launch's log: journalctl GPUOPS_LAUNCH={LAUNCH}")
    assert deployment.looked <= looks + 2  # at once


@pytest.mark.parametrize("facts", [{"active": "activating", "sub": "start-post"}, {"active": "reloading"}])
def test_a_service_that_systemd_does_not_call_active_is_waited_for(
    deployment: Deployment, facts: dict[str, Any]
) -> None:
    deployment.change(**facts)
    deployment.server.statuses["/health"] = [503, 503, 200]
    assert deployment.verify()["tokens"] == 8


NEXT = "f" * 32


@pytest.mark.parametrize("looks", [1, 3])
def test_the_evidence_is_of_the_process_that_was_followed(deployment: Deployment, looks: int) -> None:
    """systemd has already started the next one, which is the newest that the journal knows."""
    deployment.log = ["torch.OutOfMemoryError", LogLine(999, "loading again", NEXT)]
    deployment.server.statuses["/health"] = [503] * 99

    def restart() -> None:
        if deployment.looked == looks:
            deployment.change(invocation=NEXT, main_pid=4712, restarts=1, exit_status="killed 9")

    deployment.meanwhile = restart
    text = deployment.failure(limit=600)
    assert "the server ended while reading its arguments (killed 9)" in text and "after 1 restarts" in text
    assert "torch.OutOfMemoryError" in text and "loading again" not in text


@pytest.mark.parametrize(
    ("log", "evidence"),
    [
        ([("before", "one"), ("newest", "two"), ("Failed.", "")], ["newest"]),
        ([("Started.", ""), ("Failed.", "")], ["Started.", "Failed."]),
        ([], ["(its log has nothing of it)"]),
    ],
    ids=["the newest run", "systemd alone", "nothing"],
)
def test_the_evidence_of_a_process_that_had_ended_before(
    deployment: Deployment, log: list[tuple[str, str]], evidence: list[str]
) -> None:
    deployment.log = [LogLine(990, text, invocation) for text, invocation in log]
    deployment.change(active="failed", sub="failed", main_pid=0)
    text = deployment.failure().partition("\nNow: ")[0]
    assert text.split("\n  ")[1:] == evidence


def test_evidence_is_short_and_without_secrets(deployment: Deployment) -> None:
    deployment.log = [
        f"server_args=ServerArgs(model_path='m', api_key='{KEY}')",
        f"launch_command: python -m sglang.launch_server --api-key {KEY}",
        "x" * 999,
        *(f"line {number}" for number in range(7)),
    ]
    deployment.change(active="failed", sub="failed")
    text = deployment.failure()
    assert KEY not in text
    lines = text.partition("\nNow: ")[0].split("\n  ")[1:]
    assert lines[:2] == ["(a line with secrets was left out)"] * 2
    assert lines[2] == "x" * 400
    assert len(lines) == 10


def test_the_value_of_a_secret_is_not_in_the_evidence_whatever_its_name(deployment: Deployment) -> None:
    deployment.secrets += 'tool-server: "https://never:seen@x"\n'
    deployment.secret_env = 'HF_TOKEN="hf-\\"never\\$"\nTWO="first line\n  \nsecond line"\n'
    deployment.log = [
        f"Authorization: Bearer {KEY}",
        "connect to https://never:seen@x failed",
        "tool-server failed",
        'hub says no to hf-"never$".',
        "a second line",
        "first of all  ",
        "401: set HF_TOKEN",
    ]
    deployment.change(active="failed", sub="failed")
    lines = deployment.failure().partition("\nNow: ")[0].split("\n  ")[1:]
    assert lines == ["(a line with secrets was left out)"] * 5 + ["first of all", "401: set HF_TOKEN"]


@pytest.mark.parametrize("before", [380, 395, 399, 400])
def test_a_secret_at_the_cut_of_a_long_line_is_found(deployment: Deployment, before: int) -> None:
    deployment.log = ["x" * before + KEY]
    deployment.change(active="failed", sub="failed")
    assert KEY[:4] not in deployment.failure()


def test_what_is_inside_a_json_secret_is_not_in_the_evidence(deployment: Deployment) -> None:
    deployment.secrets += (
        "model-loader-extra-config: " + json.dumps(json.dumps({"a": [{"token": "inner-token"}]})) + "\n"
    )
    deployment.log = ["the store refuses inner-token", "the end"]
    deployment.change(active="failed", sub="failed")
    text = deployment.failure()
    assert "inner-token" not in text and "the end" in text


def test_a_secret_is_not_in_the_cause_either(deployment: Deployment) -> None:
    deployment.log = ["Traceback (most recent call last):", f"ValueError: the key {KEY} is wrong"]
    deployment.change(active="failed", sub="failed")
    text = deployment.failure()
    assert KEY not in text and ": (a line with secrets was left out)\n" in text


def test_an_older_launch_that_still_runs(deployment: Deployment) -> None:
    deployment.running = "20200101T000000Z-000000"
    assert deployment.failure() == (
        f"instance 'a': process 4711 is launch 20200101T000000Z-000000, not {LAUNCH}: deploy again"
    )


def test_answers_of_another_launch(deployment: Deployment) -> None:
    deployment.server.bodies["/model_info"]["weight_version"] = "default"
    assert deployment.failure() == (
        f"instance 'a': port {deployment.server.server_port} answers for launch 'default', "
        f"but the unit carries '{LAUNCH}': deploy again"
    )


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tp_size", 2, "tp_size: requested 1, the server reports 2"),
        ("model_path", "/srv/x", "model_path: requested '/srv/models/tiny', the server reports '/srv/x'"),
        ("host", "::", "host: requested '127.0.0.1', the server reports '::'"),
        ("port", 1, "port: requested {port}, the server reports 1"),
    ],
)
def test_another_argument_than_requested(deployment: Deployment, field: str, value: Any, told: str) -> None:
    deployment.server.bodies["/server_info"][field] = value
    assert deployment.failure() == (
        f"instance 'a', launch {LAUNCH}: the server runs with other arguments than requested:\n  "
        + told.format(port=deployment.server.server_port)
        + "\nAsk for what is reported, correct what makes SGLang change it, or accept it with a reason in "
        "sglang_server_accept_changes."
    )


def test_what_the_memory_allows_is_told_and_refused_only_where_more_was_asked_for(deployment: Deployment) -> None:
    state = {"effective_max_running_requests_per_dp": 4, "memory_usage": {"token_capacity": 753185}}
    deployment.server.bodies["/server_info"] |= {"max_running_requests": 48, "internal_states": [state]}
    deployment.record["resolved"] = {"max_running_requests": 48}
    verdict = deployment.verify()
    assert (verdict["requests"], verdict["kv_tokens"]) == ("4 of 48", 753185)
    deployment.record["args"]["max_running_requests"] = 48
    assert "max_running_requests: requested 48, the memory that is left allows 4" in deployment.failure()
    deployment.record["accept_changes"] = {"max_running_requests": "enough for us"}
    assert deployment.verify()["requests"] == "4 of 48"


def test_an_accepted_change_is_expected_as_it_was_resolved(deployment: Deployment) -> None:
    deployment.server.bodies["/server_info"]["tp_size"] = 2
    deployment.record["accepted"] = {"tp_size": 2}
    assert deployment.verify()["tokens"] == 8
    deployment.record["accepted"] = {"tp_size": 4}
    assert "tp_size: requested" in deployment.failure()


@pytest.mark.parametrize("meta", [{"completion_tokens": 0}, {}, {"completion_tokens": 8, "weight_version": "default"}])
def test_no_tokens_of_this_launch(deployment: Deployment, meta: dict[str, Any]) -> None:
    deployment.server.bodies["/generate"]["meta_info"] = meta
    assert deployment.failure() == f"instance 'a': a generation of 8 tokens came back without tokens of launch {LAUNCH}"


def chat(content: Any, **more: Any) -> Any:
    return {"choices": [{"message": {"role": "assistant", "content": content, **more}}]}


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("chat", chat("Yes."), None),
        ("chat", chat(None, reasoning_content="The user"), None),  # a model that thinks first says no more by then
        ("chat", chat(None), ""),
        ("chat", chat(""), ""),
        ("chat", {"choices": [{}]}, ""),
        ("chat", {"choices": []}, ""),
        ("chat", {}, ""),
        ("structured_output", {"text": "yes"}, None),
        ("structured_output", {"text": " no\n"}, None),
        ("structured_output", {"text": "maybe" * 40}, "maybe" * 16),
        ("structured_output", {"text": ""}, ""),
    ],
)
def test_a_further_request_is_answered(deployment: Deployment, name: str, answer: Any, said: str | None) -> None:
    bodies = deployment.server.bodies
    generation = bodies["/generate"]
    bodies["/generate"] = lambda asked: answer if "regex" in asked["sampling_params"] else generation
    bodies["/v1/chat/completions"] = answer
    if said is None:
        assert deployment.verify(requests=(name,))["tokens"] == 8
    else:
        text = f"instance 'a', launch {LAUNCH}: the {name.replace('_', ' ')} request came back with {said!r}"
        assert deployment.failure(requests=(name,)) == text
    path = {"chat": "/v1/chat/completions", "structured_output": "/generate"}[name]
    assert ("POST", path) == deployment.server.asked[-1][:2] and len(deployment.server.asked) == 6
    # not asked for, not asked
    assert deployment.verify() and len(deployment.server.asked) == 11
    bodies["/model_info"]["is_generation"] = False
    assert deployment.verify(requests=(name,))["tokens"] == 0


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/model_info", b"<html>", "/model_info gives no answer: "),
        ("/server_info", b"", "/server_info gives no answer: "),
        ("/generate", b"raw HTTP/9 what\r\n\r\n", "/generate gives no answer: "),
        ("/generate", b"raw HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "/generate gives no answer: "),
        ("/model_info", b"raw ", "/model_info gives no answer: "),
    ],
)
def test_an_answer_that_is_none(deployment: Deployment, path: str, answer: bytes, told: str) -> None:
    deployment.server.bodies[path] = answer
    assert deployment.failure().startswith(
        f"instance 'a', launch {LAUNCH}: http://127.0.0.1:{deployment.server.server_port}{told}"
    )


PLACES = {"/server_info": (), "/generate": (), "/v1/chat/completions": ("chat",)}


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("status", [429, 503])
def test_a_request_waits_for_its_turn(deployment: Deployment, path: str, status: int) -> None:
    deployment.server.bodies["/v1/chat/completions"] = chat("Yes.")
    deployment.server.statuses[path] = [status] * 5
    assert deployment.verify(requests=PLACES[path])["tokens"] == 8
    assert [asked for _, asked, _ in deployment.server.asked].count(path) == 6


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(("limit", "queue"), [(0, 0), (20, 20), (None, health.QUEUE)])
def test_a_server_that_never_has_a_turn_is_busy(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, path: str, limit: float | None, queue: float
) -> None:
    monkeypatch.setattr(health, "POLL", 7)
    deployment.server.bodies["/v1/chat/completions"] = chat("Yes.")
    deployment.server.statuses[path] = [503] * 999
    text = deployment.failure(limit, state="busy", requests=PLACES[path])
    assert text.endswith(f"{path} answers 503 Service Unavailable")
    assert queue <= deployment.clock.now - 1000 < queue + 2 * 7


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_not_healthy_any_more_is_not_busy(deployment: Deployment, status: int) -> None:
    deployment.server.statuses.update({"/health": [200, 200, 503], "/generate": [status] * 99})
    assert f"/generate answers {status} " in deployment.failure(state="computing")
    assert [asked for _, asked, _ in deployment.server.asked].count("/generate") == 2


def test_a_request_that_gets_no_answer_in_time_is_asked_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, answer = threading.Event(), deployment.server.bodies["/generate"]

    def generate(_: Any) -> Any:
        if [asked for _, asked, _ in deployment.server.asked].count("/generate") > 1:
            again.set()
        assert again.wait(30)
        return answer

    monkeypatch.setattr(health, "HTTP_TIMEOUT", 2)
    deployment.server.bodies["/generate"] = generate
    assert deployment.verify()["tokens"] == 8 and again.is_set()


def test_a_server_without_a_tokenizer_is_asked_in_tokens(deployment: Deployment) -> None:
    for value in (True, False):
        deployment.record["args"]["skip_tokenizer_init"] = value
        deployment.server.bodies["/server_info"]["skip_tokenizer_init"] = value
        assert deployment.verify()["tokens"] == 8
        asked = deployment.server.asked[-1][2]
        assert ("input_ids" in asked, "text" in asked) == (value, not value)


@pytest.mark.parametrize(("mode", "tokens"), [("prefill", 0), ("decode", 0), ("null", 8), (None, 8)])
def test_a_part_of_a_disaggregated_server_is_not_asked_for_tokens(
    deployment: Deployment, mode: str | None, tokens: int
) -> None:
    deployment.record["args"]["disaggregation_mode"] = mode
    deployment.server.bodies["/server_info"]["disaggregation_mode"] = mode or "null"
    deployment.server.bodies["/v1/chat/completions"] = chat("Yes.")
    assert deployment.verify(requests=("chat",))["tokens"] == tokens
    assert {"/health", "/server_info"} <= {path for _, path, _ in deployment.server.asked}
    assert any(method == "POST" for method, *_ in deployment.server.asked) == bool(tokens)


def test_an_error_of_the_server(deployment: Deployment) -> None:
    deployment.server.statuses["/generate"] = [500]
    assert deployment.failure().endswith("/generate answers 500 Internal Server Error")


def test_health_that_is_no_http_is_waited_for(deployment: Deployment) -> None:
    deployment.server.bodies["/health"] = b"raw HTTP/9 what\r\n\r\n"
    assert "not healthy, after 0 s" in deployment.failure(limit=0, state="loading")


def test_a_stranger_on_the_port(deployment: Deployment) -> None:
    """The stranger answers /health, /model_info and all the rest as the launch would."""
    deployment.change(cgroup="/system.slice/sglang-a.service")
    text = deployment.failure()
    port = deployment.server.server_port
    assert text.startswith(f"instance 'a': port {port} is held by process ")
    assert text.endswith("which is not of sglang-a.service: end it, then deploy again")
    assert deployment.server.asked == []


def test_a_port_that_another_process_takes(deployment: Deployment, tmp_path: Path) -> None:
    program = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
    program += " print(s.getsockname()[1], flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as stranger:
        try:
            assert stranger.stdout
            deployment.record["port"] = int(stranger.stdout.readline())
            deployment.change(cgroup="/system.slice/sglang-a.service")
            text = deployment.failure()
        finally:
            stranger.kill()
    assert re.search(rf"is held by process {stranger.pid} of user \S+ \({sys.executable} -c import socket", text)


def test_a_release_that_is_gone_is_refused(deployment: Deployment) -> None:
    deployment.record["release"] = "/opt/sglang/releases/gone"
    with pytest.raises(Refused, match="its release /opt/sglang/releases/gone is damaged or gone: deploy it again"):
        deployment.verify()


def test_an_instance_that_is_not_deployed_is_refused(deployment: Deployment) -> None:
    with pytest.raises(Refused, match="there is no unit of an instance 'b'"):
        health.verify(deployment.state, "b", Wait(1))


def test_the_key_of_the_launch_is_read_from_its_secrets(deployment: Deployment) -> None:
    deployment.verify()
    assert launches.secrets_of(deployment.state, "a", LAUNCH) == {"api_key": KEY}
    deployment.secrets = ""
    assert "answers 401" in deployment.failure()


def test_a_port_that_nobody_holds_is_waited_for(deployment: Deployment) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        deployment.record["port"] = free.getsockname()[1]
        assert "not healthy, after 0 s" in deployment.failure(limit=0, state="loading")
    assert deployment.server.asked == []


@pytest.fixture
def by_hand(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """The process of the service is this one, the unit in place is the one that was kept."""
    monkeypatch.setattr(systemd, "UNIT_FOLDER", tmp_path)
    monkeypatch.setattr(drift, "changes", lambda release: [f"a file in {release}"] if deployment.spoilt else [])
    deployment.change(main_pid=os.getpid())
    deployment.record["argv"] = Path("/proc/self/cmdline").read_text().split("\0")[:-1]
    deployment.verify()
    for place in (tmp_path / "sglang-a.service", deployment.state / "a/launches" / LAUNCH / "unit"):
        place.write_text("[Service]\nUser=sglang\n")
    return deployment


def test_what_is_as_it_was_deployed_has_not_drifted(by_hand: Deployment, tmp_path: Path) -> None:
    assert health.drift_of(by_hand.state, "a") == []
    # what is not known is no drift: an earlier version kept no unit and no argv, and a process may just have ended
    (by_hand.state / "a/launches" / LAUNCH / "unit").unlink()
    del by_hand.record["argv"]
    by_hand.verify()
    assert health.drift_of(by_hand.state, "a") == []
    by_hand.record["argv"] = ["/bin/other"]
    by_hand.verify()
    by_hand.change(main_pid=0)
    assert health.drift_of(by_hand.state, "a") == []


def test_what_was_changed_by_hand_is_told(by_hand: Deployment, tmp_path: Path) -> None:
    by_hand.spoilt = True
    by_hand.record["argv"] = [*by_hand.record["argv"], "--tp-size", "2"]
    by_hand.verify()
    (tmp_path / "sglang-a.service").write_text("[Service]\nUser=root\n")
    by_hand.change(shown={**by_hand.identity.shown, "NeedDaemonReload": "yes", "DropInPaths": "/etc/x.conf"})
    unit, reload, drop_in, argv, release = health.drift_of(by_hand.state, "a")
    assert unit.startswith(f"{tmp_path}/sglang-a.service was changed by hand (-User=sglang; +User=root): deploy again")
    assert reload.startswith("sglang-a.service was changed but not reloaded: ")
    assert drop_in.startswith("/etc/x.conf changes what sglang-a.service runs: ")
    assert "runs with nothing where the unit has '--tp-size'" in argv
    assert f"was changed by hand (a file in {by_hand.record['release']}): " in release


def test_servers_of_nobody_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"a": "/system.slice/sglang-a.service", "b": ""}  # b is stopped

    def identity(name: str) -> Identity:
        return Identity("active", "running", "success", 1, "", groups[name], True, 0, "", {})

    found = [
        Process(number, "python -m sglang.launch_server", "alice", None, (group,), None)
        for number, group in enumerate(
            ("/system.slice/sglang-a.service/x", "/user.slice", "/system.slice/tmux.service")
        )
    ]
    monkeypatch.setattr(processes, "servers", lambda: found)
    monkeypatch.setattr(systemd, "installed_instances", lambda: ["a", "b"])
    monkeypatch.setattr(systemd, "identity", identity)
    assert health.beside() == [one.label for one in found[1:]]
    monkeypatch.setattr(systemd, "installed_instances", list)
    assert health.beside() == [one.label for one in found]


def test_the_gpus_are_looked_at_for_each_user_of_one(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    users: list[str] = []

    def gpu_facts(user: str) -> dict[str, Any]:
        users.append(user)
        return {"faults": ["the driver", f"a device for {user}"]}

    monkeypatch.setattr(gpu_facts_module, "gpu_facts", gpu_facts)
    records = {"a": ("u", "cuda"), "b": ("v", "cuda"), "c": ("w", "cpu"), "d": ("u", "cuda")}

    def record_of(state: Path, name: str) -> dict[str, Any]:
        if name not in records:
            raise Refused("not there")
        return {"user": records[name][0], "resolved": {"device": records[name][1]}}

    monkeypatch.setattr(launches, "record_of", record_of)
    assert health.gpu_faults(deployment.state, ["c", "gone"]) == [] and users == []
    found = health.gpu_faults(deployment.state, [*records, "gone"])
    assert found == ["the driver", "a device for u", "a device for v"] and users == ["u", "v"]


def test_the_plan_of_what_was_returned_to_is_not_that_of_the_return(deployment: Deployment) -> None:
    deployment.record["plan"] = {"kv_tokens": 753000}
    assert deployment.verify()["planned_kv_tokens"] == 753000
    deployment.record["again"] = "L0"
    assert deployment.verify()["planned_kv_tokens"] is None
