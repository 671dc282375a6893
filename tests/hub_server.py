# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub on this machine: the parts of its protocol by which files are found and fetched, and faults on request.

Large files come from another address after a redirect, as the real hub has it.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")
BLOCK = 1 << 16


def safetensors(tensors: Mapping[str, bytes], shapes: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """Return the content of a file of weights: bytes, or bfloat16 of the given shapes."""
    header, end = {}, 0
    for name, content in tensors.items():
        told = {"dtype": "BF16", "shape": shapes[name]} if shapes else {"dtype": "U8", "shape": [len(content)]}
        header[name] = {**told, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def small_model(seed: str = "a", size: int = 50_000) -> dict[str, bytes]:
    """Return the files of a repository with two shards of weights."""
    content = hashlib.sha256(seed.encode()).digest() * (size // 32)
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weights = {f"layers.{number}.weight": name for number, name in enumerate(shards)}
    return {
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "README.md": f"# {seed}\n".encode(),
        "config.json": json.dumps({"architectures": ["Qwen3ForCausalLM"], "seed": seed}).encode(),
        "tokenizer.json": b"{}",
        "empty.txt": b"",
        "model.safetensors.index.json": json.dumps({"weight_map": weights}).encode(),
        **{
            name: safetensors({tensor: content + bytes([number])})
            for number, (tensor, name) in enumerate(weights.items())
        },
        "pytorch_model.bin": content,
        "original/params.pth": content,
    }


@cache
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Request:
    """One that came."""

    method: str
    path: str
    range: str
    token: str
    sent: int = 0  # bytes of the body


@dataclass
class Fault:
    """What happens to requests whose path has `where`, `times` times."""

    where: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int = -1  # bytes after which the connection ends
    content: bytes | None = None  # in place of the real one
    times: int = 1


class HubServer:
    """Repositories with their commits, at two addresses."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}  # name -> commit -> files
        self.refs: dict[str, dict[str, str]] = {}
        self.gated: dict[str, str] = {}  # name -> the token that may read it
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.pace = 0.0  # s that each 64 KiB take
        self.rate = 0.0  # bytes/s of all connections together; 0 for no limit
        self.free = 0.0  # when the line is free for the next block
        self.lock = Lock()
        self.servers = [ThreadingHTTPServer((host, 0), self._handler(large)) for large in (False, True)]
        self.address, self.storage = (f"http://{host}:{server.server_address[1]}" for server in self.servers)

    def commit(self, repo: str, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Put files into a repository, and return the commit."""
        words = json.dumps([[name, sha256(content)] for name, content in sorted(files.items())])
        commit = hashlib.sha1(words.encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.refs.setdefault(repo, {})[ref] = commit
        return commit

    def fetched(self) -> dict[str, int]:
        """Return file -> bytes of it that were sent since the last call."""
        found: dict[str, int] = {}
        for request in self.requests:
            if request.method == "GET" and "/api/" not in request.path and request.sent:
                stored, _mark, name = request.path.partition("name=")
                name = name or stored.partition("/resolve/")[2].partition("/")[2]
                found[name] = found.get(name, 0) + request.sent
        self.requests.clear()
        return found

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        """Answer until the end of the block."""
        threads = [Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in self.servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server in self.servers:
                server.shutdown()
                server.server_close()

    def wait(self, count: int) -> None:
        """Wait until `count` more bytes are through a line of this rate."""
        if self.rate:
            with self.lock:
                now = time.monotonic()
                self.free = max(self.free, now) + count / self.rate
                pause = self.free - now
            time.sleep(pause)
        time.sleep(self.pace)

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for one in self.faults:
                if one.times and one.where in path:
                    one.times -= 1
                    return one
        return None

    def _handler(self, large: bool) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.handle_one(False)

            def do_GET(self) -> None:
                self.handle_one(True)

            def log_message(self, *_words: Any) -> None:
                pass

            def handle_one(self, body: bool) -> None:
                token = self.headers.get("Authorization", "").partition("Bearer ")[2]
                self.request_seen = Request(self.command, self.path, self.headers.get("Range", ""), token)
                hub.requests.append(self.request_seen)
                self.fault_now = hub.fault(self.path)
                if self.fault_now and self.fault_now.status:
                    self.answer(self.fault_now.status, b"", self.fault_now.headers)
                elif large:
                    self.stored(body)
                else:
                    self.named(token, body)

            def refuse(self, status: int, code: str, message: str = "") -> None:
                self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

            def named(self, token: str, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
                file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
                repo = (api or file or [""] * 2)[1]
                if repo not in hub.repos:
                    self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
                    return
                revision = (api or file)[2] or "main"  # type: ignore[index]
                commit = hub.refs[repo].get(revision, revision)
                if commit not in hub.repos[repo]:
                    self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                elif api:
                    self.tell(repo, commit)
                elif repo in hub.gated and token != hub.gated[repo]:
                    self.refuse(403 if token else 401, "GatedRepo", f"Access to model {repo} is restricted")
                elif file and file[3] not in hub.repos[repo][commit]:
                    self.refuse(404, "EntryNotFound", "Entry not found")
                elif file:
                    self.send(commit, file[3], hub.repos[repo][commit][file[3]], body)

            def tell(self, repo: str, commit: str) -> None:
                siblings = []
                for name, content in hub.repos[repo][commit].items():
                    told: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob(content)}
                    if name.endswith(LARGE):
                        told["lfs"] = {"size": len(content), "sha256": sha256(content), "pointerSize": 130}
                    siblings.append(told)
                gated = "manual" if repo in hub.gated else False
                answer = {"_id": "0", "id": repo, "modelId": repo, "sha": commit, "private": False, "gated": gated,
                          "disabled": False, "downloads": 1, "likes": 0, "tags": [], "siblings": siblings}  # fmt: skip
                self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

            def send(self, commit: str, name: str, content: bytes, body: bool) -> None:
                facts = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
                if not name.endswith(LARGE):
                    self.answer(200, content, {**facts, "ETag": f'"{blob(content)}"'}, body)
                    return
                digest = sha256(content)
                facts.update({"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))})
                self.answer(302, b"", {**facts, "Location": f"{hub.storage}/{digest}?signature=s&name={name}"})

            def stored(self, body: bool) -> None:
                digest = urlsplit(self.path).path[1:]
                commits = (commit for repo in hub.repos.values() for commit in repo.values())
                contents = (content for files in commits for content in files.values())
                content = next((content for content in contents if sha256(content) == digest), None)
                if content is None:
                    self.answer(404, b"")
                else:
                    self.answer(200, content, {"Accept-Ranges": "bytes", "ETag": f'"{digest}"'}, body)

            def answer(self, status: int, content: bytes, headers: Mapping[str, str] = {}, body: bool = True) -> None:
                fault = self.fault_now
                if fault and fault.content is not None and status == 200:
                    content = fault.content
                extra, whole = dict(headers), len(content)
                start = re.fullmatch(r"bytes=(\d+)-", self.request_seen.range)
                if status == 200 and start:
                    if int(start[1]) >= whole:
                        status, content, extra["Content-Range"] = 416, b"", f"bytes */{whole}"
                    else:
                        status, content = 206, content[int(start[1]) :]
                        extra["Content-Range"] = f"bytes {start[1]}-{whole - 1}/{whole}"
                self.send_response(status)
                for name, value in {**extra, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                end = fault.cut if fault and fault.cut >= 0 else len(content)
                for place in range(0, min(end, len(content)) if body else 0, BLOCK):
                    try:
                        self.wfile.write(content[place : min(place + BLOCK, end)])
                    except OSError:
                        self.close_connection = True
                        return
                    self.request_seen.sent += min(BLOCK, end - place, len(content) - place)
                    hub.wait(BLOCK)
                self.close_connection = self.close_connection or end < len(content)

        return Handler
