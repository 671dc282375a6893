# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What servers report of themselves, from a small real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import found_live
from ansible_collections.gpuops.sglang.plugins.module_utils.found_live import ask, reported
from conftest import schema_of


class Server:
    """Answers with what a test wants."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        answered, release = self, threading.Event()
        self.release = release

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answered.asked.append((self.path, self.headers.get("Authorization")))
                code, body = answered.answers.get(self.path, (404, b""))
                if code == 0:
                    # a byte now and then, and an answer at last
                    for letter in body:
                        if release.wait(0.05):
                            return
                        self.wfile.write(bytes([letter]))
                    if not body:
                        release.wait(60)
                    return
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.release.set()
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_a_server_is_asked_with_its_key(server: Server) -> None:
    server.answers = {"/server_info": (200, b'{"version": "0.5.23"}')}
    assert ask(server.url, "sk-4711") == ({"version": "0.5.23"}, "")
    assert ask(server.url, None)[0] == {"version": "0.5.23"}
    assert server.asked == [("/server_info", "Bearer sk-4711"), ("/server_info", None)]


def test_the_path_of_an_older_release(server: Server) -> None:
    server.answers = {"/get_server_info": (200, b"{}")}
    assert ask(server.url, None) == ({}, "")
    server.answers = {}
    assert "has neither /server_info nor /get_server_info" in ask(server.url, None)[1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((401, b""), "/server_info answers 401"),
        ((200, b"<html>"), "/server_info gives no answer"),
        ((200, b"[]"), "/server_info answers something else"),
        ((0, b""), "gives no answer within 0.2 s"),
        ((0, b"HTTP/1.0 200 OK\r\n\r\n" + b" " * 60 + b"{}"), "gives no answer within 0.2 s"),
    ],
)
def test_a_server_that_does_not_tell(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes], why: str
) -> None:
    monkeypatch.setattr(found_live, "WAIT", 0.2 if answer[0] == 0 else 10)
    server.answers = {"/server_info": answer}
    info, told = ask(server.url, "sk-4711")
    assert info is None and told.endswith(why) and "4711" not in told
    assert len(server.asked) == 1


def test_a_port_without_a_server(server: Server) -> None:
    server.http.shutdown()
    server.http.server_close()
    assert ask(server.url, None)[1].endswith("gives no answer")


def test_requested_resolved_and_effective() -> None:
    info = {
        "version": "0.5.23",
        "api_key": "sk-4711",
        "launch_command": "--api-key sk-4711",
        "tp_size": 2,
        "context_length": 4096,
        "schedule_conservativeness": 0.3,
        "internal_states": [
            {
                "context_length": 2048,
                "effective_max_running_requests_per_dp": 4,
                "memory_usage": {"token_capacity": 900},
            }
        ],
    }
    args = {"tp_size": 2, "context_length": 4096, "schedule_conservativeness": 1.0, "max_running_requests": 8}
    told = reported(info, args, schema_of("0.5.23"))
    assert [tuple(row.values()) for row in told["options"]] == [
        ("context_length", 4096, 4096, 2048, True),
        ("schedule_conservativeness", 1.0, 0.3, 0.3, False),
        ("tp_size", 2, 2, 2, True),
    ]
    assert (told["sglang_version"], told["requests"], told["kv_tokens"]) == ("0.5.23", 4, 900)
    assert len(told["differences"]) == 3
    assert "4711" not in json.dumps(told)
    assert reported({}, args, schema_of("0.5.23"))["options"] == []
