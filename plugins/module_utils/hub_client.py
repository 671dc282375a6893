# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run by the interpreter that has the hub's client, with a request as one line of JSON on standard input.

Answers with lines of JSON: `list` gives the commit of a revision and its files, `fetch` the bytes that are there and
each file that has come. Ends with its caller, whose end closes standard input.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

TELL = 1  # s between two lines about bytes
WAKE = 0.05  # s
CHUNK = 2**20  # bytes, which a processor's cache holds until they are hashed and written; the client has 10 MiB
BEHIND = 16 * 2**20  # bytes that wait for the disk, so that it writes while the network brings more
PLACE = 8  # bytes
ONE_BY_ONE = threading.Lock()


def say(**answer: Any) -> None:
    """Write one line, whole also beside other threads and processes: it is short enough for a pipe."""
    with ONE_BY_ONE:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Hashed:
    """A file that is written to its end by the client, and its hash, which costs no second reading."""

    def __init__(self, file: BinaryIO, like: str, size: int) -> None:
        self._file, self._kind, self._size = file, like.partition(":")[0], size
        self._behind = 0
        self._begin()

    def _begin(self) -> None:
        self._made = hashlib.sha256()
        if self._kind == "git-sha1":
            self._made = hashlib.sha1(b"blob %d\0" % self._size)

    @property
    def hash(self) -> str:
        return f"{self._kind}:{self._made.hexdigest()}"

    def go_on(self) -> int:
        """Read what is there already, and return its size."""
        if os.fstat(self._file.fileno()).st_size > self._size:
            self._file.truncate(0)
        while True:
            chunk = self._file.read(CHUNK)
            if not chunk:
                return self._file.tell()
            self._made.update(chunk)

    def write(self, data: bytes) -> int:
        self._made.update(data)
        written = self._file.write(data)
        self._behind += written
        if self._behind >= BEHIND:
            # begins the writing and waits for nothing; what is not on the disk yet stays in memory
            os.posix_fadvise(
                self._file.fileno(), self._file.tell() - self._behind, self._behind, os.POSIX_FADV_DONTNEED
            )
            self._behind = 0
        return written

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, place: int) -> int:
        return self._file.seek(place)

    def truncate(self) -> None:
        """Begin anew; the client has gone to the beginning."""
        self._file.truncate()
        self._begin()


def with_patience(request: dict[str, Any], action: Callable[[], Any]) -> Any:
    """Do it again where the hub or the network may recover by itself."""
    last = request["tries"] - 1
    for number in range(last + 1):
        try:
            return action()
        except Exception as error:
            response = getattr(error, "response", None)
            passing = response is None or response.status_code in (408, 429) or response.status_code >= 500
            if number == last or not passing or getattr(error, "errno", None):
                raise
            asked = "" if response is None else response.headers.get("Retry-After", "")
            time.sleep(min(int(asked), 300) if asked.isdigit() else request["pause"] * 2**number)
    return None


def listing(request: dict[str, Any]) -> None:
    """Tell what a revision is now: its commit, and its files that the patterns leave."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    api = HfApi(endpoint=request["endpoint"], token=request["token"] or False)
    info = with_patience(
        request, lambda: api.model_info(request["repo"], revision=request["revision"], files_metadata=True, timeout=30)
    )
    patterns = {f"{kind}_patterns": request[kind] or None for kind in ("allow", "ignore")}
    files = {}
    for file in filter_repo_objects(info.siblings or [], key=lambda one: one.rfilename, **patterns):
        digest = f"sha256:{file.lfs.sha256}" if file.lfs else f"git-sha1:{file.blob_id}"
        files[file.rfilename] = {"size": file.size, "hash": digest}
    say(commit=info.sha, files=files)


def fetching(request: dict[str, Any]) -> None:
    """Bring each file of `files` into `folder`, going on where an earlier run was ended; tell the hash of each.

    In a process for each file at a time, since one of Python's receives less than a fast network has.
    """
    import fcntl

    folder, files = request["folder"], request["files"]
    # an earlier one may still be on its way out
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
    fetch = fetcher(request)
    by_size = sorted(files, key=lambda name: -files[name]["size"])
    # the place of the next file; of a pipe, unlike a file, no two processes read the same
    todo, places = os.pipe()
    fcntl.fcntl(places, fcntl.F_SETPIPE_SZ, PLACE * len(by_size))
    os.write(places, b"".join(place.to_bytes(PLACE, "big") for place in range(len(by_size))))
    os.close(places)
    children = set()
    for _number in range(min(len(files), request["workers"])):
        child = os.fork()
        if not child:
            end_with_caller()
            while place := os.read(todo, PLACE):
                name = by_size[int.from_bytes(place, "big")]
                told(partial(fetch, name, **files[name]))
            os._exit(0)
        children.add(child)
    last = time.monotonic()
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if status:
            if os.WIFSIGNALED(status):
                # its siblings hold standard output open, and would keep the caller waiting for what they fetch
                text = f"a process that fetches was ended by signal {os.WTERMSIG(status)}, perhaps for want of memory"
                say(error="ChildProcessError", errno=None, file=None, status=None, text=text)
            os._exit(1)
        children.discard(child)
        if time.monotonic() >= last + TELL:
            last = time.monotonic()
            paths = (os.path.join(folder, name) for name in files)
            say(bytes=sum(os.path.getsize(path) for path in paths if os.path.exists(path)))
        time.sleep(WAKE)


def fetcher(request: dict[str, Any]) -> Callable[..., None]:
    """Return what fetches a file of a size, goes on where it was ended, and tells its hash."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    headers = build_hf_headers(token=request["token"] or False, library_name="gpuops.sglang")

    def fetch(name: str, size: int, hash: str) -> None:
        path = os.path.join(request["folder"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        url = hf_hub_url(request["repo"], name, revision=request["commit"], endpoint=request["endpoint"])

        def go_on() -> str:
            # snapshot_download begins an interrupted file anew, this function of the client goes on
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
                hashed = Hashed(file, hash, size)
                there = hashed.go_on()
                try:
                    http_get(
                        url, hashed, resume_size=there, headers=headers, expected_size=size, displayed_filename=name
                    )
                except OSError as error:
                    # what the hub ended with another size is no beginning to go on with
                    if not error.errno and getattr(getattr(error, "response", None), "status_code", 416) == 416:
                        file.truncate(0)
                    raise
                file.flush()
                os.fsync(file.fileno())
                return hashed.hash

        say(came=name, hash=with_patience(request, go_on))

    return fetch


def end_with_caller() -> None:
    """Have this process end at once when standard input does."""

    def wait() -> None:
        # without the lock of sys.stdin, which a forked process could find held for ever
        while os.read(0, 1):
            pass
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()


def told(action: Callable[[], None]) -> None:
    """Do it, or tell the error and end this process."""
    try:
        action()
    except BaseException as error:
        response = getattr(error, "response", None)
        say(
            error=type(error).__name__, errno=getattr(error, "errno", None), file=getattr(error, "filename", None),
            status=None if response is None else response.status_code, text=str(error)[:2000],
        )  # fmt: skip
        os._exit(1)


def main() -> None:
    """Do what is requested; an error is the last line."""
    request = json.loads(sys.stdin.readline())
    end_with_caller()
    told(lambda: {"list": listing, "fetch": fetching}[request["action"]](request))
    os._exit(0)


if __name__ == "__main__":
    main()
