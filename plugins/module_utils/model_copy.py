# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model in a directory of another host, copied with rsync over ssh."""

from __future__ import annotations

import ctypes
import fcntl
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import model_record
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Wanted
from ansible_collections.gpuops.sglang.plugins.module_utils.model_source import Patterns
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN

SSH = (
    "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o ClearAllForwardings=yes -o ForwardAgent=no -o LogLevel=ERROR "
    "-o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
    "-o ControlMaster=no -o ControlPath=none"  # another connection would have another key, or outlive the copying
)
TELL, WAKE = 1, 0.05  # s between two lines about bytes, and between two looks at rsync
PARENT_DEATH = 1  # prctl(2)
# No part may begin with '-' or hold what rsync splits the words of its option -e at.
LOGIN = r"(?:(?P<user>\w[\w.-]*)@)?(?P<host>\w[\w.-]*|\[[0-9A-Fa-f:]+(?:%\w[\w.-]*)?\])"
FORMS = [
    re.compile(rf"ssh://{LOGIN}(?::(?P<port>\d{{1,5}}))?(?P<path>/.+)", re.ASCII),
    re.compile(rf"{LOGIN}:(?P<path>/[^/].*)", re.ASCII),
]
# a line of rsync's list: kind and mode, size, date and time, name
LISTED = re.compile(r"(.)\S+\s+(\d+) (\S+ \S+) (.+)")
NO_REFERENT = "symlink has no referent"  # what lacks then, the look at the model's structure tells
UNKNOWN = "\ufffd"  # in place of bytes that are not UTF-8
# Of what rsync and ssh say: the next step.
STEPS = {
    r'Load key ".*': "set sglang_model_ssh_key to the whole text of a private key without a passphrase",
    "Host key verification failed|IDENTIFICATION HAS CHANGED": (
        "compare its key with that of the host itself, and put its line into sglang_model_ssh_known_hosts or the "
        "known_hosts of root here"
    ),
    r"Permission denied \([a-z]": (
        "set sglang_model_ssh_key to a key that this account takes, or give root here one that it takes"
    ),
    r"rsync: (command )?not found|rsync: No such file": "install the package rsync there",
    r"change_dir .* failed: (No such file|Not a directory)": "correct the path in 'copy_from'",
    r"Permission denied \(13\)": "take a user that may read all of it",
    "No space left on device|Disk quota exceeded": "make room here and deploy again, which goes on",
    "Could not resolve|Connection refused|timed out|No route|unreachable": (
        "see whether this host reaches it, and deploy again, which goes on"
    ),
}


@dataclass(frozen=True)
class Ssh:
    """What the operator gives ssh; empty for what root has on this host."""

    key: str = field(default="", repr=False)
    known_hosts: str = ""

    @contextmanager
    def command(self, port: str | None) -> Iterator[str]:
        """Yield ssh and its options as rsync's option -e takes them."""
        words = [SSH]
        with ExitStack() as opened:

            def readable(text: str) -> str:
                # a file of memory that no other user can open, and that goes with this process however it ends
                file = os.fdopen(os.memfd_create("ssh"), "w")
                opened.callback(file.close)
                os.fchmod(file.fileno(), 0o600)
                file.write(f"{text.strip()}\n")
                file.flush()
                return f"/proc/{os.getpid()}/fd/{file.fileno()}"

            if self.key:
                words.append(f"-o IdentitiesOnly=yes -o IdentityAgent=none -i {readable(self.key)}")
            if self.known_hosts:
                file = readable(self.known_hosts)
                words.append(f"-o UpdateHostKeys=no -o GlobalKnownHostsFile=/dev/null -o UserKnownHostsFile={file}")
            yield " ".join([*words, *([f"-p {port}"] if port else [])])


@dataclass(frozen=True)
class FromHost:
    """A directory of another host."""

    label: str  # as the operator has written it
    login: str  # [USER@]HOST
    host: str
    port: str | None
    path: str
    ssh: Ssh

    @property
    def address(self) -> str:
        return self.host

    def ready(self, _tell: Callable[[str], None], _scratch: Path | None = None) -> FromHost:
        missing = [name for name in ("rsync", "ssh") if not shutil.which(name, path=CLEAN["PATH"])]
        if missing:
            raise Refused(f"this host has no {' and no '.join(missing)}: install the packages rsync and openssh-client")
        return self

    def plan(self, allow: Patterns, ignore: Patterns) -> dict[str, Any]:
        files = self._files()
        origin: dict[str, Any] = {"repo": "", "revision": "", "endpoint": "", "commit": ""}
        if files.pop(model_record.NAME, None):
            record = self._record()
            origin = {name: record.get(name, "") for name in origin}
            # what lies beside the files that were fetched is no part of the model
            known = {name: {"size": file["size"], "hash": file["hash"]} for name, file in record["files"].items()}
            problems = [f"lacks {name}" for name in known if name not in files and _chosen(name, allow, ignore)]
            problems += [
                f"has {files[name]['size']} of {file['size']} bytes of {name}"
                for name, file in known.items()
                if name in files and files[name]["size"] != file["size"] and _chosen(name, allow, ignore)
            ]
            if problems:
                raise Refused(f"{self.label} {', '.join(problems[:8])}: have the model put right there")
            files = known
        chosen = {name: file for name, file in files.items() if _chosen(name, allow, ignore)}
        odd = next((name for name in chosen if UNKNOWN in name), None)
        if odd:
            raise Refused(
                f"the name of {self.label}/{odd} is not UTF-8 where {UNKNOWN} stands: rename it there, or leave it out "
                "with 'ignore'"
            )
        return {**origin, "copy_from": self.label, "files": chosen}

    def bring(self, _commit: str, folder: Path, files: Wanted) -> Iterator[dict[str, Any]]:
        whole = []
        for name, file in files.items():
            size = (folder / name).stat().st_size if (folder / name).exists() else -1
            if size > file["size"]:
                (folder / name).unlink()  # rsync would leave it as it is
            elif size == file["size"] and not file["hash"]:
                whole.append(name)
        # The part of a file that is there is not sent again, and is compared with the rest. What has its full size is
        # passed over then: without a hash nothing but another look at both tells that it is still the same there.
        yield from self._copy(["--checksum", "--inplace"], folder, whole, files)
        yield from self._copy(["--append-verify"], folder, [name for name in files if name not in whole], files)
        for name, file in files.items():
            digest = model_record.digest(folder / name, file["hash"])
            with (folder / name).open("rb") as written:
                os.fsync(written.fileno())
            yield {"read": file["size"]}
            yield {"came": name, "hash": digest}

    def _copy(self, how: Sequence[str], folder: Path, some: Sequence[str], files: Wanted) -> Iterator[dict[str, Any]]:
        if not some:
            return
        options = [*how, "--copy-links", "--times", "--perms", "--chmod=D755,F644", "--from0", "--files-from=-"]
        with self._rsync([*options, self._remote(), f"{folder}/"]) as argv, ExitStack() as opened:
            names, errors = (opened.enter_context(tempfile.TemporaryFile()) for _number in range(2))
            names.write("\0".join(some).encode())
            names.seek(0)
            # an earlier rsync may still be on its way out
            held = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
            child = subprocess.Popen(
                argv, env=_environment(), stdin=names, stdout=subprocess.DEVNULL, stderr=errors, pass_fds=[held],
                preexec_fn=_end_with_caller,
            )  # fmt: skip
            last = time.monotonic()
            try:
                while child.poll() is None:
                    if time.monotonic() >= last + TELL:
                        last = time.monotonic()
                        yield {"bytes": model_record.there(folder, files)}
                    time.sleep(WAKE)
            finally:
                child.terminate()  # and not killed: it ends its own children
                child.wait()
            errors.seek(0)
            if child.returncode:
                raise Refused(self._why(errors.read().decode(errors="replace")))

    def named(self, _commit: str) -> str:
        return self.label

    def page(self, _commit: str) -> str:
        return self.label

    def difference(self, record: Mapping[str, Any]) -> str | None:
        was = from_host(record.get("copy_from", ""), self.ssh)
        if was and (was.host, was.path) == (self.host, self.path):
            return None
        return f"{record.get('copy_from') or record['repo']}, asked for is a copy of {self.label}"

    def _files(self) -> Wanted:
        """Return all files but hidden ones, and the record."""
        listed = list(self._listing("--links"))
        links = [name.partition(" -> ") for kind, name, _file in listed if kind == "l"]
        blobs = self._blobs() if links and self._is_snapshot() else {}
        for name, _arrow, target in links:
            problem = self._link_problem(name, target, blobs)
            if problem:
                raise Refused(f"{self.label}/{name} is a link to {target}, {problem}")
        if links:
            listed = list(self._listing("--copy-links"))
        return {name: file for kind, name, file in listed if kind == "-"}

    def _listing(
        self, links: str, hidden: Sequence[str] = (f"--include=/{model_record.NAME}", "--exclude=.*"), above: str = ""
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        only = ["--list-only", "--recursive", "--no-human-readable", "--8-bit-output"]
        for line in self._run([*only, links, *hidden, self._remote(above)]).split("\n"):
            match = LISTED.fullmatch(line)
            if match:
                kind, size, changed, name = match.groups()
                name = re.sub(r"\\#(\d{3})", lambda found: chr(int(found[1], 8)), name)
                yield kind, name, {"size": int(size), "hash": "", "changed": changed}

    def _is_snapshot(self) -> bool:
        return PurePosixPath(self.path).parent.name == "snapshots"

    def _blobs(self) -> dict[str, str]:
        """Return name -> kind of what a hub's cache has beside the snapshots, and of that folder."""
        only = ["--include=/blobs", "--include=/blobs/*", "--exclude=*"]
        return {name.partition(" -> ")[0]: kind for kind, name, _file in self._listing("--links", only, "../../")}

    def _link_problem(self, name: str, target: str, blobs: Mapping[str, str]) -> str | None:
        """Return why a link is not followed: only one to what is listed is, so no other link on the way leads out."""
        link, path = PurePosixPath(name), PurePosixPath(target)
        at, words = list(link.parent.parts), list(path.parts)
        if path.is_absolute():
            if not path.is_relative_to(self.path):
                return "which is absolute, so nobody can tell whether it stays in the model: have the file itself there"
            at, words = [], list(path.relative_to(self.path).parts)
        above = 0
        while words[:1] == [".."]:
            words.pop(0)
            above += not at
            at = at[:-1]
        to, outside = (*at, *words), "outside of the model: have the file itself there"
        # a name with an arrow in it, or of which not all is known, could hide where its link leads
        if " -> " in target or UNKNOWN in target or any(word.startswith(".") for word in words):
            return outside
        if above:
            file = blobs.get("/".join(words), "-")  # one that the cache has dropped is told as what the model lacks
            known = self._is_snapshot() and above == 2 and len(words) == 2 and words[0] == "blobs"
            return None if known and blobs.get("blobs", "d") == "d" and file == "-" else outside
        return "where it is in itself: remove it" if link.parts[: len(to)] == to else None

    def _record(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            self._run(["--copy-links", self._remote(model_record.NAME), f"{folder}/"])
            damaged = f"the record {self.label}/{model_record.NAME} is damaged: have the model put right there"
            try:
                record = model_record.read(Path(folder, model_record.NAME)) or {}
                if all(
                    re.fullmatch(r"(sha256|git-sha1):[0-9a-f]+", one["hash"])
                    and isinstance(one["size"], int)
                    and not isinstance(one["size"], bool)
                    for one in record["files"].values()
                ):
                    return record
            except (Refused, KeyError, TypeError) as problem:
                raise Refused(damaged) from problem
            raise Refused(damaged)

    def _remote(self, name: str = "") -> str:
        # the rsync there takes a part of the path with one of '*?[' for a pattern, and '\\' in any other for itself
        parts = (
            re.sub(r"[*?\[\\]", r"\\\g<0>", part) if re.search(r"[*?\[]", part) else part
            for part in f"{self.path}/{name}".split("/")
        )
        return f"{self.login}:{'/'.join(parts)}"

    @contextmanager
    def _rsync(self, words: Sequence[str]) -> Iterator[list[str]]:
        with self.ssh.command(self.port) as ssh:
            # -s: no shell over there splits or expands the path
            yield ["rsync", "-s", "-e", ssh, *words]

    def _run(self, words: Sequence[str]) -> str:
        with self._rsync(words) as argv:
            done = run(argv, _environment())
        said = [line for line in done.stderr.splitlines() if NO_REFERENT not in line]
        if done.returncode and (done.returncode != 23 or len(said) > 1):
            raise Refused(self._why("\n".join(said)))
        return done.stdout

    def _why(self, said: str) -> str:
        """Return what went wrong, in the words of rsync and ssh, and the next step."""
        step = next(
            (step for pattern, step in STEPS.items() if re.search(pattern, said)), "deploy again, which goes on"
        )
        lines = last_lines(said, 6)
        # without the number of an error that another line has told, and the frame of a warning with its hints
        lines = [line for line in lines if not line.startswith(("rsync error:", "@@@", " "))] or lines
        return f"can not copy {self.label}: {' | '.join(lines) or 'rsync was ended'}: {step}"


def from_host(copy_from: str, ssh: Ssh) -> FromHost | None:
    """Return the place that [USER@]HOST:/PATH or ssh://[USER@]HOST[:PORT]/PATH means, or None."""
    for form in FORMS:
        match = form.fullmatch(copy_from)
        path = match["path"].rstrip("/") if match else ""
        if match and path and copy_from.isprintable():
            login = f"{match['user']}@{match['host']}" if match["user"] else match["host"]
            port = match.groupdict().get("port")
            return FromHost(copy_from.rstrip("/"), login, match["host"], port, path, ssh)
    return None


def _chosen(name: str, allow: Patterns, ignore: Patterns) -> bool:
    """Tell whether the patterns leave a file, in the sense of the hub's client."""

    def matches(patterns: Patterns) -> bool:
        return any(fnmatch.fnmatch(name, f"{one}*" if one.endswith("/") else one) for one in patterns)

    return (not allow or matches(allow)) and not matches(ignore)


def _environment() -> dict[str, str]:
    agent = os.environ.get("SSH_AUTH_SOCK")
    # rsync lists times of this host, which are to be the same in any container
    return {**CLEAN, "TZ": "UTC0", **({"SSH_AUTH_SOCK": agent} if agent else {})}


def _end_with_caller() -> None:
    ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGTERM, 0, 0, 0)
