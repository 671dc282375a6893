# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small wheels, an index of them on loopback as PEP 691 and 700 describe it, and a real uv to install from there."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

DAY = "2026-05-07"
SERVER = {
    "srt/entrypoints/http_server.py": "",
    "srt/models/registry.py": "",
    "srt/server_args.py": "class ServerArgs:\n    @staticmethod\n    def add_cli_args(parser):\n"
    "        parser.add_argument('--tp-size', type=int, default=1)\n",
}


def wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
    python: str = ">=3.9",
) -> Path:
    """Write a wheel with a package of the given files."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    metadata += [f"Requires-Dist: {one}" for one in requires]
    content = {f"{name}/{path}": text for path, text in (files or {"__init__.py": f"version = '{version}'\n"}).items()}
    content[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    record = [f"{path},sha256={_digest(text.encode())},{len(text)}\n" for path, text in content.items()]
    content[f"{info}/RECORD"] = "".join(record) + f"{info}/RECORD,,\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in content.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    path.write_bytes(data.getvalue())
    return path


@cache
def _file_digest(path: Path, _written: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def sglang(folder: Path, version: str = "0.5.23", requires: Sequence[str] = ("helper",), **more: str) -> Path:
    """Write a wheel of a server that can be asked for its options."""
    files = {"__init__.py": f"import helper\n__version__ = '{version}'\n", **SERVER}
    return wheel(folder, "sglang", version, requires, files, **more)


def metadata_of(path: Path) -> str:
    """Return what a wheel says of itself."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()


class Index:
    """An index of the wheels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.days: dict[str, str] = {}  # file -> the day that it was uploaded, for those of another day
        self.times = True  # whether it tells upload times
        self.login = ""  # USER:PASSWORD without which it tells nothing
        self.asked: list[str] = []
        self.url = ""

    def page(self, project: str) -> bytes | None:
        found = [
            path for path in sorted(self.folder.glob("*.whl")) if path.name.split("-")[0] == project.replace("-", "_")
        ]
        files = []
        for path in found:
            file = {"filename": path.name, "url": f"/files/{path.name}", "size": path.stat().st_size}
            file["hashes"] = {"sha256": _file_digest(path, path.stat().st_mtime_ns)}
            lines = metadata_of(path).splitlines()
            file["requires-python"] = next(line for line in lines if line.startswith("Requires-Python:")).split()[1]
            file["core-metadata"] = True
            if self.times:
                file["upload-time"] = f"{self.days.get(path.name, DAY)}T00:07:07.076290Z"
            files.append(file)
        meta = {"api-version": "1.1"}
        return json.dumps({"meta": meta, "name": project, "files": files}).encode() if files else None


@contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Serve the wheels in a folder."""
    index = Index(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            asked = f"Basic {base64.b64encode(index.login.encode()).decode()}"
            if index.login and self.headers["Authorization"] != asked:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            # a proxy is asked for whole addresses
            kind, _, name = urlsplit(self.path).path.strip("/").partition("/")
            page = index.page(name) if kind == "simple" else None
            if kind == "files" and (folder / name).is_file():
                page = (folder / name).read_bytes()
            if kind == "files" and name.endswith(".metadata"):
                page = metadata_of(folder / name[: -len(".metadata")]).encode()
            self.send_response(200 if page else 404)
            if kind == "simple":
                self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # uv has given up
                self.wfile.write(page or b"")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield index
        server.shutdown()
