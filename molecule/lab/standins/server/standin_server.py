# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for `python -m sglang.launch_server`, seen from outside: processes, log, HTTP, signals and exit statuses.

It starts in a fraction of a second, without SGLang or a GPU; what it says of memory was recorded of a Qwen3-8B on an
H200. Reproduced is what was measured and read of SGLang 0.5.23:

- a parent, which speaks HTTP, and a child, the scheduler, which answers every /health, /server_info and /generate and
  dies with its parent; /v1/models and /model_info are the parent's own;
- a scheduler that stops: /health is 503 after 20 s, /server_info hangs; one that is killed: 5 s later the parent kills
  itself (from 0.5.10; before, nothing is noticed);
- SIGTERM: the default action while loading, then a drain without limit that still lets requests in;
- a taken port is noticed after loading; whoever holds it may satisfy the warm-up, which ends in exit status 3;
- the log, with all arguments and keys in its first line, and /server_info, which has them too;
- the keys: /health, /ready and /metrics are open, /flush_cache wants the admin key where there is one.

Variables of the environment (s = seconds):
  STANDIN_VERSION          the SGLang that it is to be, 0.5.23
  STANDIN_SHARDS           files of weights, 4
  STANDIN_X_SECONDS        IMPORT (before the first line), INIT, LOAD, POOL, GRAPH, FIRST (before the warm-up): 0; TOKEN
                           (for each that is generated) 0.001; WARMUP (its patience) 2, real 120; POLL (of SIGTERM) 0.2,
                           real 5; CRASH (from the death of the scheduler to the parent's) 5
  STANDIN_HEALTH_TIMEOUT   of /health in s, 20;  STANDIN_HEALTH_POLL   how often it looks for an answer in s, 1
  STANDIN_FAULT            one of:
    clamps:OPTION=VALUE    /server_info reports VALUE
    caps:N                 the scheduler takes N requests at a time
    other_launch           it answers with another weight_version
    no_key                 it answers without a key
    exit:N                 it ends with N before it has read its arguments
    dies_loading           the GPU's memory is full in the middle of the weights
    stops_loading          it stops in the middle of the weights
    no_memory              the weights leave nothing for the caches, since another process holds the GPU
    ignores_sigterm
    slow_prefill:SECONDS   a text of more than 1000 characters keeps the scheduler on the CPU for so long
    hangs_after:N          the scheduler stops after N generations; the warm-up's is one, those of /health are none

Left out: streaming, TLS, several ranks, the detokenizer, all other endpoints. It ends by itself after 2 hours.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import socketserver
import sys
import threading
import time
import traceback
import urllib.request
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NoReturn

import standin_arguments
from standin_scheduler import (
    FAULT,
    FAULT_VALUE,
    LONGEST_LIFE,
    RELEASE,
    VERSION,
    Scheduler,
    architecture,
    log,
    seconds,
)

HEALTH_TIMEOUT = float(os.environ.get("STANDIN_HEALTH_TIMEOUT", "20"))
HEALTH_POLL = float(os.environ.get("STANDIN_HEALTH_POLL", "1"))


class Server:
    """The parent: it starts the scheduler and asks it what comes by HTTP."""

    def __init__(self, args: dict[str, Any], command: str) -> None:
        self.args, self.command = args, command
        self.status = "Loading"  # then as SGLang's own: Starting, Up, UnHealthy
        self.draining = self.stopping = False
        self.heard = 0.0  # when the scheduler last answered
        self.waiting: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}  # id -> where its answer goes
        self.routes = {
            "/health": self.health,
            "/health_generate": self.health,
            "/v1/models": self.models,
            "/generate": self.generate,
            "/v1/chat/completions": self.chat,
            "/flush_cache": self.flush_cache,
            "/get_model_info": self.model_info,
            "/get_server_info": self.server_info,
        }
        if RELEASE > (0, 5, 5):
            self.routes |= {"/model_info": self.model_info, "/server_info": self.server_info}
        if RELEASE >= (0, 5, 20):
            self.routes["/ready"] = lambda _request: (200 if self.status == "Up" and not self.draining else 503, "")

    def load(self) -> None:
        """Return when the scheduler is ready."""
        signal.signal(signal.SIGQUIT, lambda *_: self.child_failed())
        if FAULT == "ignores_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.link, other = socket.socketpair()
        self.child = os.fork()
        if not self.child:
            self.link.close()
            Scheduler(other, self.args).run()
        other.close()
        self.lines = self.link.makefile("rb")
        if not self.lines.readline():
            why = f"exit code: {os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])}"
            raise RuntimeError(f"Rank 0 scheduler died during initialization ({why}).")
        self.status = "Starting"
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            for line in self.lines:
                self.heard = time.time()
                answer = json.loads(line)
                asker = self.waiting.pop(answer["id"], None)
                if asker:
                    asker.put(answer["state"])
        if not self.stopping and RELEASE >= (0, 5, 10):
            code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
            who = f"Subprocess scheduler_0 (pid={self.child})"
            log(f"{who} crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
            os.kill(os.getpid(), signal.SIGQUIT)

    def child_failed(self) -> None:
        if self.status == "Loading":
            log("Received sigquit from a child process. It usually means the child failed.")
        else:
            log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            log("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
            time.sleep(seconds("CRASH", 5))
        self.kill()

    def kill(self) -> None:
        log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        os.kill(os.getpid(), signal.SIGKILL)  # the scheduler goes with it

    def serve(self) -> int:
        """Serve until SIGTERM and return the exit status."""
        host, port = self.args["host"], self.args["port"]
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        warm_up = threading.Thread(target=self.warm_up, args=(host, port), daemon=True)
        warm_up.start()
        if self.args.get("skip_server_warmup"):
            warm_up.join()
        log("INFO:     Application startup complete.")
        Http.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            http = Http((host, port), Handler)
        except OSError as error:
            what = f"error while attempting to bind on address {(host, port)}"
            log(f"ERROR:    [Errno {error.errno}] {what}: {str(error.strerror).lower()}")
            warm_up.join()
            return 3
        http.ours = self
        if FAULT != "ignores_sigterm":
            signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        log(f"INFO:     Uvicorn running on {url_of(host, port)} (Press CTRL+C to quit)")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        while not self.draining:
            time.sleep(seconds("POLL", 0.2))
        self.drain()
        return 0

    def warm_up(self, host: str, port: int) -> None:
        if not self.args.get("skip_server_warmup"):
            url = url_of({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
            key = self.args["api_key"]
            headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
            body = {"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 8}}
            info = "/model_info" if RELEASE > (0, 5, 5) else "/get_model_info"
            time.sleep(seconds("FIRST"))
            end = time.monotonic() + seconds("WARMUP", 2)
            for path, data in ((info, None), ("/generate", json.dumps(body).encode())):
                while True:
                    time.sleep(0.05)
                    try:
                        request = urllib.request.Request(url + path, data, headers)
                        urllib.request.urlopen(request, timeout=600 if data else 5).read()
                        break
                    except OSError:
                        if time.monotonic() > end:
                            log(f"Initialization failed. warmup error: {traceback.format_exc()}")
                            self.kill()
        self.status = "Up"
        log("The server is fired up and ready to roll!")

    def terminate(self) -> None:
        log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.draining = True

    def drain(self) -> None:
        rids = [""]
        while rids:
            if self.status == "UnHealthy":
                log("Signal SIGTERM received while health check failed. Force exiting.")
                break
            rids = [name for name in list(self.waiting) if not name.startswith("state-")]
            log(f"Gracefully exiting... Remaining number of requests {len(rids)}. Remaining requests {rids}.")
            time.sleep(seconds("POLL", 0.2))  # also for the last answer, which is still on its way
        self.stopping = True
        if RELEASE < (0, 5, 19):
            self.kill()
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)

    def ask(self, name: str, **request: int) -> queue.SimpleQueue[dict[str, Any]]:
        """Send a request to the scheduler; its answer comes to what is returned, or never."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.waiting[name] = answer
        with contextlib.suppress(OSError):
            self.link.sendall(json.dumps({"id": name, **request}).encode() + b"\n")
        return answer

    def allows(self, path: str, header: str) -> bool:
        if path.startswith(("/health", "/ready", "/metrics")) or FAULT == "no_key":
            return True
        wanted = self.args["api_key"]
        if path == "/flush_cache":
            wanted = self.args["admin_api_key"] or wanted
        scheme, _space, key = header.partition(" ")
        return wanted is None or (scheme.lower() == "bearer" and secrets.compare_digest(key, str(wanted)))

    # What is asked by HTTP: each returns a status and a content.

    def health(self, _request: dict[str, Any]) -> tuple[int, Any]:
        if self.draining or self.status == "Starting":
            return 503, ""
        name, began = f"HEALTH_CHECK_{uuid.uuid4().hex}", time.time()
        self.ask(name, tokens=1, characters=1)
        while self.heard <= began and time.time() < began + HEALTH_TIMEOUT:
            time.sleep(HEALTH_POLL)
        self.waiting.pop(name, None)
        self.status = "Up" if self.heard > began else "UnHealthy"
        if self.status == "Up":
            return 200, ""
        silent = f"Server couldn't get a response from detokenizer for last {HEALTH_TIMEOUT:g} seconds"
        begun, heard = (time.strftime("%H:%M:%S", time.localtime(when)) for when in (began, self.heard))
        log(f"Health check failed. {silent}. tic start time: {begun}. last_heartbeat time: {heard}")
        return 503, ""

    def model_info(self, _request: dict[str, Any]) -> tuple[int, Any]:
        told = ("model_path", "served_model_name", "tokenizer_path", "weight_version")
        kind = {"is_generation": True, "architectures": [architecture(self.args)]}
        return 200, {**{name: self.args.get(name) for name in told}, **kind}

    def server_info(self, _request: dict[str, Any]) -> tuple[int, Any]:
        state = self.ask(f"state-{uuid.uuid4().hex}").get()
        told = {**self.args, "internal_states": [{**self.args, **state}], "version": VERSION}
        told |= {"status": "ready", "max_total_num_tokens": state["memory_usage"]["token_capacity"]}
        if RELEASE >= (0, 5, 20):
            told["launch_command"] = self.command
        if FAULT == "clamps":
            option, _equals, value = FAULT_VALUE.partition("=")
            told[option] = standin_arguments.guess(value)
        return 200, told

    def models(self, _request: dict[str, Any]) -> tuple[int, Any]:
        name, length = self.args["served_model_name"], self.args.get("context_length") or 40960
        return 200, {"object": "list", "data": [{"id": name, "object": "model", "max_model_len": length}]}

    def complete(self, name: str, text: str, tokens: int) -> dict[str, Any]:
        self.ask(name, tokens=tokens, characters=len(text)).get()
        return {
            "id": name,
            "finish_reason": {"type": "length", "length": tokens},
            "prompt_tokens": len(text) // 4 + 1,
            "weight_version": self.args["weight_version"],
            "completion_tokens": tokens,
        }

    def generate(self, request: dict[str, Any]) -> tuple[int, Any]:
        sampling = request.get("sampling_params") or {}
        tokens = sampling.get("max_new_tokens", 128)
        meta = self.complete(request.get("rid") or uuid.uuid4().hex, str(request.get("text", "")), tokens)
        said = sampling.get("regex", "oooo").strip("()").split("|")[0]  # it knows no more of a grammar
        return 200, {"text": said, "output_ids": [475] * tokens, "meta_info": meta}

    def chat(self, request: dict[str, Any]) -> tuple[int, Any]:
        said = "".join(str(message["content"]) for message in request["messages"])
        meta = self.complete(uuid.uuid4().hex, said, request.get("max_tokens") or 128)
        return 200, {
            "id": meta["id"],
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "oooo"}, "finish_reason": "length"}],
            "usage": {name: meta[name] for name in ("prompt_tokens", "completion_tokens")},
            "metadata": {"weight_version": meta["weight_version"]},
        }

    def flush_cache(self, _request: dict[str, Any]) -> tuple[int, Any]:
        self.ask(f"state-{uuid.uuid4().hex}").get()
        return 200, "Cache flushed.\nPlease check backend logs for more details.\n"


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Http(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128
    ours: Server

    def handle_error(self, *given: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that has gone is no error
            super().handle_error(*given)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Http

    def do_GET(self) -> None:
        ours, path = self.server.ours, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content = 404, {"detail": "Not Found"}
        if not ours.allows(path, self.headers.get("Authorization") or ""):
            status, content = 401, {"error": "Unauthorized"}
        elif path in ours.routes:
            if path.startswith("/get_") and RELEASE > (0, 5, 5):
                instead = f"Please use '/{path[5:]}' instead."
                log(f"Endpoint '{path}' is deprecated and will be removed in a future version. {instead}")
            status, content = ours.routes[path](json.loads(body or b"{}"))
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        client, now = ":".join(map(str, self.client_address[:2])), time.strftime("%Y-%m-%d %H:%M:%S")
        print(f'[{now}] INFO:     {client} - "{self.requestline}" {code:d} {HTTPStatus(code).phrase}', flush=True)


def main(words: list[str]) -> int:
    signal.alarm(LONGEST_LIFE)
    time.sleep(seconds("IMPORT"))
    if FAULT == "exit":
        sys.stderr.write(f"launch_server.py: error: made to end with {FAULT_VALUE}\n")
        return int(FAULT_VALUE)
    words = standin_arguments.with_config(words)
    args = standin_arguments.read(words, Path(sys.executable).parents[2] / "schema.json")
    args["weight_version"] = "other" if FAULT == "other_launch" else args.get("weight_version", "default")
    fields = ", ".join(f"{name}={value!r}" for name, value in args.items())
    log(f"server_args={args if RELEASE >= (0, 5, 19) else f'ServerArgs({fields})'}")
    server = Server(args, " ".join(words))
    server.load()
    return server.serve()


def run(words: list[str]) -> NoReturn:
    """Be the server and end the process."""
    status: Any = 1
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
