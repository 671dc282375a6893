# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that somebody has started by hand: of a made-up host, and small real processes.

The real ones come from a package named sglang in a venv of its own. Its parser is the recorded one of a release, its
server answers from a file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.server_command import server_command

UNIT = Path(__file__).parent
SERVER = """
import json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

def after(flag, default=None):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        key = after("--api-key")
        allowed = key is None or self.headers.get("Authorization") == f"Bearer {key}"
        body = Path(sys.prefix, "server_info.json").read_bytes()
        allowed = allowed or self.path == "/health"
        known = self.path in ("/server_info", "/health")
        self.send_response(200 if allowed and known else 401 if not allowed else 404)
        self.end_headers()
        self.wfile.write(body if allowed else b"")
    def log_message(self, *words):
        pass

SCHEDULER = '''
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("a scheduler was told to end", flush=True))
print(f"scheduler {os.getpid()}", flush=True)
while True:
    time.sleep(600)
'''

def term(*_):
    time.sleep(0.5)  # its requests
    print("drained", flush=True)
    if os.environ["ENDS"] != "never":
        os._exit(0)

def main():
    print("serves", flush=True)
    if "ENDS" in os.environ:
        signal.signal(signal.SIGTERM, term)
        subprocess.Popen([os.readlink("/proc/self/exe"), "-c", SCHEDULER])
    server = HTTPServer(("127.0.0.1", int(after("--port", 30000))), Answer)
    Path(os.environ["READY"]).write_text(str(os.getpid()))
    server.serve_forever()

if __name__ == "__main__":
    main()
"""
PARSER = """
import sys
sys.path[:0] = {paths!r}
from conftest import add_option, releases

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("a package greets")
        for flag, facts in releases()[{version!r}].items():
            add_option(parser, flag, facts)
"""
CONSOLE = """#!{python}
import sys
from sglang.launch_server import main
if __name__ == "__main__":
    main()
"""


def found(words: list[str], serve: bool = False, **more: Any) -> FoundProcess:
    """Return a server of a made-up host."""
    start = ["/v/bin/python", "/v/bin/sglang", "serve"] if serve else ["/v/bin/python", "-m", "sglang.launch_server"]
    command = server_command([*start, *words])
    assert command
    facts: dict[str, Any] = {
        "pid": 4711, "started": 1, "age": 60.0, "owner": "root", "origin": "nohup",
        "user": User(os.getuid(), os.getgid(), ()),
        "container": None, "own_network": False, "own_files": False, "argv": (*start, *words), "command": command,
        "folder": Path("/nonexistent"), "environment": {}, "python": Path("/v/bin/python"), "logs": (), "listens": (),
        "family": (4711,), "limits": {}, "bound_to": None,
    }  # fmt: skip
    return FoundProcess(**{**facts, **more})


def make_venv(folder: Path, version: str) -> Path:
    """Make a venv with a package named sglang in it; return its interpreter."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    package = site / "sglang"
    (package / "srt").mkdir(parents=True)
    files = {
        "sglang/__init__.py": f"__version__ = {version!r}\n",
        "sglang/launch_server.py": SERVER,
        "sglang/srt/__init__.py": "",
        "sglang/srt/server_args.py": PARSER.format(paths=[str(UNIT), str(UNIT.parents[1] / ".dev")], version=version),
    }
    for name, text in files.items():
        (site / name).write_text(text)
    about = site / f"sglang-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    (about / "RECORD").write_text("".join(f"{name},sha256=x,{len(text)}\n" for name, text in files.items()))
    # what the recorded parser is made with, PyYAML among it
    (site / "development.pth").write_text(f"{Path(yaml.__file__).parents[1]}\n")
    python = folder / "bin/python"
    (folder / "bin/sglang").write_text(CONSOLE.format(python=python))
    (folder / "bin/sglang").chmod(0o755)
    tell(python, {})
    return python


def tell(python: Path, info: Mapping[str, Any]) -> None:
    """Let the servers of a venv answer so."""
    (python.parents[1] / "server_info.json").write_text(json.dumps(info))


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def detached(python: Path, model: str) -> list[str]:
    """Return the command of a server that is no child of who starts it."""
    server = [str(python), "-m", "sglang.launch_server", "--model-path", model, "--port", str(free_port())]
    return ["setsid", "--fork", *server]


@contextmanager
def started(words: Sequence[str], folder: Path, log: Path, **environment: str) -> Iterator[int]:
    """Start a server that outlives who started it, wait until it listens, yield its pid, and end it."""
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    with log.open("ab") as file:
        subprocess.run(
            words, cwd=folder, env={"PATH": os.environ["PATH"], "READY": str(ready), **environment}, check=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    for _wait in range(600):
        if ready.exists() and ready.read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError(log.read_text())
    pid = int(ready.read_text())
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
