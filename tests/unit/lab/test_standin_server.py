# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for SGLang's server against what was measured of SGLang 0.5.23, with the real one's long pauses cut."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.diagnosis import diagnose
from ansible_collections.gpuops.sglang.plugins.module_utils.effective import effective
from conftest import schema_of

STANDIN = Path(__file__).parents[3] / "molecule/lab/standins/server"
LAUNCH = "20260101T000000Z-abcdef"
KEY, ADMIN_KEY = "sk-never-to-be-seen", "admin-never-to-be-seen"
QUICK = {
    "STANDIN_CRASH_SECONDS": "0.2",
    "STANDIN_HEALTH_POLL": "0.02",
    "STANDIN_POLL_SECONDS": "0.05",
    "STANDIN_WARMUP_SECONDS": "0.5",
}
READY = "The server is fired up and ready to roll!"


def eventually(what: Callable[[], Any]) -> None:
    for _ in range(1000):
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One launch."""

    def __init__(self, folder: Path, port: int, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.port = port
        self.place = folder / "log"
        python = folder / "release/venv/bin/python"
        if not python.exists():
            python.parent.mkdir(parents=True)
            python.symlink_to(sys.executable)
        argv = [str(python), "-m", "sglang.launch_server", "--model-path", "/srv/models/a", "--host", "127.0.0.1"]
        argv += ["--port", str(port), *words, "--weight-version", LAUNCH]
        with self.place.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(STANDIN), **QUICK, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self.place.read_text()

    @property
    def scheduler(self) -> int:
        (pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def says(self, text: str) -> None:
        eventually(lambda: text in self.log or self.process.poll() is not None)
        assert text in self.log

    def ends(self) -> int:
        return self.process.wait(20)

    def ask(self, path: str, key: str = "", body: Any = None, timeout: float = 20) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        return 200, json.loads(text) if text.startswith(b"{") else text.decode()

    def begin(self, text: str, tokens: int = 8) -> http.client.HTTPConnection:
        """Ask for a generation whose answer is read later."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(
            "POST", "/generate", json.dumps({"text": text, "sampling_params": {"max_new_tokens": tokens}})
        )
        return connection


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a launch; it is up when this returns, unless `until` names another line of its log."""
    started = []

    def begin(*words: str, port: int = 0, until: str = READY, **variables: str) -> Server:
        environment = {f"STANDIN_{name.upper()}": value for name, value in variables.items()}
        server = Server(tmp_path, port or free_port(), words, environment)
        started.append(server)
        server.says(until)
        return server

    yield begin
    for server in started:
        server.process.kill()
        server.process.wait()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_log_of_a_start_is_as_recorded_and_shows_the_keys(start: Start, tmp_path: Path) -> None:
    (tmp_path / "secrets.yaml").write_text(f'admin-api-key: "{ADMIN_KEY}"\napi-key: "{KEY}"\n')
    server = start("--config", str(tmp_path / "secrets.yaml"))
    server.says("POST /generate")
    lines = server.log.replace("\r", "\n").splitlines()
    markers = (
        "server_args={",
        "Init parallel begin.",
        "Init parallel ends. elapsed=",
        "Load weight begin. avail mem=",
        "Multi-thread loading shards:  50% Completed | 2/4 [",
        "Load weight end. elapsed=",
        "KV Cache is allocated.",
        "Memory pool end. avail mem=",
        "CUDA graph begin.",
        "CUDA graph end.",
        "max_total_num_tokens=",
        "Application startup complete.",
        "Uvicorn running on http://127.0.0.1:",
        "Prefill batch, #new-seq: 1",
        READY,
    )
    found = [next(number for number, line in enumerate(lines) if marker in line) for marker in markers]
    assert found == sorted(found)
    assert KEY in lines[0] and ADMIN_KEY in lines[0]
    assert KEY not in Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert Path(f"/proc/{server.scheduler}/cmdline").read_text().startswith("sglang::scheduler\0")


ENDPOINTS = [
    # path, without a key, with the API key, with the admin key
    ("/health", 200, 200, 200),
    ("/health_generate", 200, 200, 200),
    ("/ready", 200, 200, 200),
    ("/model_info", 401, 200, 401),
    ("/get_model_info", 401, 200, 401),
    ("/server_info", 401, 200, 401),
    ("/get_server_info", 401, 200, 401),
    ("/v1/models", 401, 200, 401),
    ("/flush_cache", 401, 401, 200),
    ("/nothing", 401, 404, 401),
]


def test_who_may_ask_what(start: Start) -> None:
    server = start("--api-key", KEY, "--admin-api-key", ADMIN_KEY)
    answers = [(path, *(server.ask(path, key)[0] for key in ("", KEY, ADMIN_KEY))) for path, *_ in ENDPOINTS]
    assert answers == ENDPOINTS


def test_without_an_api_key_everyone_gets_the_admin_key(start: Start) -> None:
    server = start("--admin-api-key", ADMIN_KEY)
    assert server.ask("/server_info")[1]["admin_api_key"] == ADMIN_KEY
    assert server.ask("/flush_cache")[0] == 401


def test_every_answer_carries_the_launch(start: Start) -> None:
    server = start()
    assert server.ask("/model_info")[1]["weight_version"] == LAUNCH
    assert server.ask("/server_info")[1]["weight_version"] == LAUNCH
    meta = json.loads(server.begin("a").getresponse().read())["meta_info"]
    assert (meta["weight_version"], meta["completion_tokens"]) == (LAUNCH, 8)
    chat = server.ask("/v1/chat/completions", body={"messages": [{"role": "user", "content": "a"}], "max_tokens": 3})
    assert chat[1]["usage"]["completion_tokens"] == 3
    assert chat[1]["metadata"]["weight_version"] == LAUNCH


def test_an_old_release_has_the_old_names_only(start: Start) -> None:
    server = start(version="0.5.5")
    asked = ("/model_info", "/server_info", "/ready", "/get_model_info", "/get_server_info")
    assert [server.ask(path)[0] for path in asked] == [404, 404, 404, 200, 200]
    assert "server_args=ServerArgs(" in server.log
    assert "Init torch distributed begin." in server.log


WORDS = ("--tp", "2", "--max-total-tokens", "32k", "--mem-fraction-static", "0.5", "--disable-radix-cache")
ARGS = {"tp_size": 2, "max_total_tokens": "32k", "mem_fraction_static": 0.5, "disable_radix_cache": True}


@pytest.mark.parametrize(
    ("fault", "differing"),
    [
        ("clamps:mem_fraction_static=0.4", ["mem_fraction_static: requested 0.5, the server reports 0.4"]),
        ("caps:5", ["max_running_requests: requested 9, the memory that is left allows 5"]),
    ],
)
def test_requested_arguments_come_back_in_their_types(
    start: Start, tmp_path: Path, fault: str, differing: list[str]
) -> None:
    schema = schema_of("0.5.23")
    (tmp_path / "release").mkdir()
    (tmp_path / "release/schema.json").write_text(json.dumps({"options": schema}))
    server = start(*WORDS, "--max-running-requests", "9", fault=fault)
    info = server.ask("/server_info")[1]
    found = effective({**ARGS, "max_running_requests": 9}, schema, info)
    assert (found.arguments, list(found.differences)) == (5, differing)
    assert (info["tp_size"], info["max_total_tokens"], info["disable_radix_cache"]) == (2, 32000, True)


@pytest.mark.parametrize(("version", "status"), [("0.5.23", 0), ("0.5.18", -signal.SIGKILL)])
def test_sigterm_ends_an_idle_server(start: Start, version: str, status: int) -> None:
    server = start(version=version)
    scheduler = server.scheduler
    server.process.terminate()
    assert server.ends() == status
    eventually(lambda: is_gone(scheduler))
    assert "Gracefully exiting... Remaining number of requests 0." in server.log


def test_sigterm_while_loading_is_not_handled(start: Start) -> None:
    server = start(until="Completed | 2/4", fault="stops_loading")
    scheduler = server.scheduler
    server.process.terminate()
    assert server.ends() == -signal.SIGTERM
    eventually(lambda: is_gone(scheduler))


def test_a_drain_waits_for_a_generation_and_lets_others_in(start: Start) -> None:
    server = start(token_seconds="0.01")
    first = server.begin("a" * 100, tokens=60)
    server.says("#new-token: 26")
    os.kill(server.scheduler, signal.SIGSTOP)  # so that it does not end before it should
    server.process.terminate()
    server.says("Remaining number of requests 1.")
    server.process.terminate()
    assert server.ask("/health")[0] == 503
    assert "Health check failed" not in server.log
    second = server.begin("a")
    server.says("Remaining number of requests 2.")
    os.kill(server.scheduler, signal.SIGCONT)
    assert [first.getresponse().status, second.getresponse().status] == [200, 200]
    assert server.ends() == 0


def test_a_stopped_scheduler_shows_in_health_only_and_recovers(start: Start) -> None:
    server = start(health_timeout="0.5")
    os.kill(server.scheduler, signal.SIGSTOP)
    assert server.ask("/health")[0] == 503
    assert server.ask("/ready")[0] == 503
    assert "Health check failed. Server couldn't get a response from detokenizer for last 0.5 seconds." in server.log
    with pytest.raises(TimeoutError):
        server.ask("/server_info", timeout=0.3)
    assert server.ask("/v1/models")[0] == 200
    os.kill(server.scheduler, signal.SIGCONT)
    eventually(lambda: server.ask("/health")[0] == 200)
    assert server.ask("/server_info")[0] == 200


def test_a_killed_scheduler_takes_its_parent_along(start: Start) -> None:
    server = start()
    scheduler = server.scheduler
    os.kill(scheduler, signal.SIGKILL)
    assert server.ends() == -signal.SIGKILL
    said = f"Subprocess scheduler_0 (pid={scheduler}) crashed with exit code -9. Triggering SIGQUIT"
    assert server.log.index(said) < server.log.index("SIGQUIT received.")


def test_an_old_release_does_not_notice_a_killed_scheduler(start: Start) -> None:
    server = start(version="0.5.9", health_timeout="0.3")
    os.kill(server.scheduler, signal.SIGKILL)
    assert server.ask("/health")[0] == 503
    assert server.ask("/v1/models")[0] == 200


def test_a_scheduler_does_not_outlive_its_parent(start: Start) -> None:
    server = start()
    scheduler = server.scheduler
    server.process.kill()
    eventually(lambda: is_gone(scheduler))


def test_a_squatter_satisfies_the_warm_up(start: Start) -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, str(STANDIN / "squatter.py"), str(port)], stderr=subprocess.DEVNULL
    ) as other:
        try:
            eventually(lambda: listens(port))
            server = start(port=port)
            assert server.ends() == 3
        finally:
            other.kill()
    taken = f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
    assert server.log.index("Memory pool end") < server.log.index(taken) < server.log.index(READY)


def test_a_stranger_on_the_port_ends_the_warm_up(start: Start) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as stranger:
        threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        server = start(port=stranger.server_port, until="Initialization failed. warmup error:")
        assert server.ends() == -signal.SIGKILL
        stranger.shutdown()
    assert "[Errno 98]" in server.log
    assert READY not in server.log


@pytest.mark.parametrize(
    ("fault", "status", "stage", "cause"),
    [
        ("dies_loading", -9, "loading weights", "torch.OutOfMemoryError: CUDA out of memory."),
        ("no_memory", -9, "sizing its caches", "RuntimeError: Not enough memory. Please try to increase"),
        ("exit:2", 2, "reading its arguments", "launch_server.py: error: "),
    ],
)
def test_a_start_that_fails(start: Start, fault: str, status: int, stage: str, cause: str) -> None:
    server = start(until=cause, fault=fault)
    assert server.ends() == status
    found = diagnose(server.log, schema_of("0.5.23"))
    assert (found.stage, found.cause[: len(cause)]) == (stage, cause)


def test_a_long_text_keeps_the_scheduler_busy(start: Start) -> None:
    server = start(fault="slow_prefill:600", health_timeout="0.3")
    assert server.begin("a" * 1000).getresponse().status == 200
    server.begin("a" * 1001)
    server.says("#new-token: 251, #cached-token: 0, token usage: 0.00, #running-req: 0")
    assert server.ask("/health")[0] == 503
    assert server.ask("/v1/models")[0] == 200


def test_a_scheduler_hangs_after_so_many_generations(start: Start) -> None:
    server = start("--api-key", KEY, fault="hangs_after:1", health_timeout="0.3")
    assert server.ask("/health")[0] == 503
    server.process.terminate()
    assert server.ends() == 0
    assert "Force exiting" in server.log


@pytest.mark.parametrize(("fault", "status"), [("no_key", 200), ("other_launch", 401)])
def test_a_server_that_is_not_as_asked(start: Start, fault: str, status: int) -> None:
    server = start("--api-key", KEY, fault=fault)
    assert server.ask("/model_info")[0] == status
    assert (server.ask("/model_info", KEY)[1]["weight_version"] == LAUNCH) is (fault == "no_key")


def test_sigterm_may_be_ignored(start: Start) -> None:
    server = start(fault="ignores_sigterm")
    server.process.terminate()
    assert server.ask("/health")[0] == 200
    assert "SIGTERM received" not in server.log


def test_other_uses_of_the_interpreter_stay_what_they_are() -> None:
    script = "import sys; print('itself', sys.argv[1:])"
    for words in (["-", "-m", "sglang.launch_server"], ["-c", script, "-m", "sglang.launch_server"]):
        done = subprocess.run(
            [sys.executable, *words], env={"PYTHONPATH": str(STANDIN)}, input=script, capture_output=True, text=True
        )
        assert done.stdout == "itself ['-m', 'sglang.launch_server']\n"
