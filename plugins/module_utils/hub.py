# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub, asked and downloaded from by its own client, which has a venv of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ansible_collections.gpuops.sglang.plugins.module_utils.host import (
    Refused,
    last_lines,
    only_one,
    run,
    write_whole,
    writing_below,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, Steps, make_venv

CLIENT = "huggingface_hub"
# what each version of the client is installed with, on Python 3.10 to 3.13; for others it is what is newest then
NEEDS = {
    "2.4.0": (
        "anyio==4.16.0",
        "click==8.5.1",
        "exceptiongroup==1.3.2",
        "filelock==4.1.0",
        "fsspec==2026.9.0",
        "h11==0.16.0",
        "hf-xet==1.8.0",
        "httpcore2==2.14.0",
        "httpx2==2.14.0",
        "idna==3.20",
        "packaging==26.4",
        "PyYAML==6.0.4",
        "tomli==2.5.0",
        "tqdm==4.70.1",
        "truststore==0.10.5",
        "typing_extensions==4.16.0",
    )
}
# it has the program's text as the first line of its input, the request as the second
PROGRAM = "import json, sys; exec(json.loads(sys.stdin.readline()))"
WORKERS = 8  # files at a time, as the client itself does
TRIES, PAUSE = 5, 1.0  # and s before the second try, doubled for each one more
INSTALL_WAIT = 1800  # s
WHOLE = "installed"  # a file of the client's venv, written last
# plain HTTP, no word to the hub about this host, no token of a file that happens to be there
SETTINGS = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # fmt: skip

Wanted = dict[str, dict[str, Any]]  # name -> size in bytes, hash


@dataclass(frozen=True)
class Hub:
    """Where models come from, and what they are fetched with."""

    endpoint: str  # e.g. https://huggingface.co
    client: str  # version of its client
    program: str  # source text of the module hub_client
    root: Path  # the client's venv is made below it
    python: str = "/usr/bin/python3"
    token: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The venv of the client."""
        return self.root / CLIENT / self.client

    def has_client(self) -> bool:
        """Tell whether the client was installed to its end."""
        ask = f"from importlib.metadata import version; print(version('{CLIENT}'))"
        try:
            found = run([str(self.home / "bin/python"), "-I", "-c", ask], CLEAN).stdout.strip()
        except OSError:
            return False
        return found == self.client and (self.home / WHOLE).exists()

    def install(self) -> None:
        """Install the client where it is not there."""
        if self.has_client():
            return
        with writing_below(self.home.parent):
            self.home.parent.mkdir(parents=True, exist_ok=True)
            with only_one(self.home.parent / "install.lock", f"installs {CLIENT} into {self.home}", INSTALL_WAIT):
                if not self.has_client():
                    steps = Steps("the hub's client", self.home.parent, {**CLEAN, **self.environment})
                    needs = NEEDS.get(self.client, ())
                    make_venv(steps, self.home, self.python, f"{CLIENT}=={self.client}", needs=needs)
                    write_whole(self.home / WHOLE, "")

    def listing(self, repo: str, revision: str, allow: tuple[str, ...], ignore: tuple[str, ...]) -> tuple[str, Wanted]:
        """Return the commit that a revision is now, and its files that the patterns leave."""
        request = {"action": "list", "repo": repo, "revision": revision, "allow": allow, "ignore": ignore}
        (answer,) = self._ask(request)
        return answer["commit"], answer["files"]

    def fetch(self, repo: str, commit: str, folder: Path, files: Wanted) -> Iterator[dict[str, Any]]:
        """Bring files into `folder`; yield {'came': name, 'hash': its} and {'bytes': what is there of all}."""
        wanted = {name: {"size": file["size"], "hash": file["hash"]} for name, file in files.items()}
        request = {"action": "fetch", "repo": repo, "commit": commit, "folder": str(folder), "files": wanted}
        yield from self._ask({**request, "workers": WORKERS})

    def _ask(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        whole = {**request, "endpoint": self.endpoint, "token": self.token, "tries": TRIES, "pause": PAUSE}
        variables = {**CLEAN, "HF_HOME": str(self.root / CLIENT / "home"), **self.environment, **SETTINGS}
        argv = [str(self.home / "bin/python"), "-I", "-c", PROGRAM]
        with tempfile.TemporaryFile("w+", errors="replace") as errors, subprocess.Popen(
            argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child:  # fmt: skip
            stdin, stdout = cast(IO[str], child.stdin), cast(IO[str], child.stdout)
            try:
                with contextlib.suppress(BrokenPipeError):  # its last words say why
                    stdin.write(f"{json.dumps(self.program)}\n{json.dumps(whole)}\n")
                    stdin.flush()
                for line in stdout:
                    answer = json.loads(line)
                    if "error" in answer:
                        raise Refused(self._why(answer, request))
                    yield answer
                if child.wait():
                    errors.seek(0)
                    said = " | ".join(last_lines(errors.read(), 3)) or "it was ended"
                    raise Refused(f"the hub's client ended with exit status {child.returncode}: {self._masked(said)}")
            finally:
                child.kill()

    def _masked(self, text: str) -> str:
        return text.replace(self.token, "********") if self.token else text

    def _why(self, answer: Mapping[str, Any], request: Mapping[str, Any]) -> str:
        """Return what went wrong and the next step."""
        repo, hub, kind, status = request["repo"], self.endpoint, answer["error"], answer["status"]
        # what an address has after '?' may be a signature that lets anybody in
        said = re.sub(r"(://[^\s?]+)\?[^\s)'\"]+", r"\1", self._masked(" ".join(answer["text"].split())))
        token = "the account of sglang_model_token" if self.token else "an account, and set sglang_model_token"
        if answer["errno"] and answer["file"]:
            return f"can not write {answer['file']}: {os.strerror(answer['errno'])}"
        if answer["errno"] and "folder" in request:
            return f"can not write into {request['folder']}: {os.strerror(answer['errno'])}"
        if kind == "ChildProcessError":
            return f"can not fetch {repo}: {said}: deploy again, which goes on"
        if kind == "GatedRepoError":
            return f"{repo} is gated: accept its terms at {hub}/{repo} with {token}"
        if kind == "RevisionNotFoundError":
            return (
                f"{repo} at {hub} has no revision '{request.get('revision') or request['commit']}': correct 'revision'"
            )
        if kind == "RepositoryNotFoundError":
            known = "with this token" if self.token else "without a token"
            return f"{hub} has no repository {repo} {known}: correct 'repo', or set sglang_model_token if it is private"
        if kind == "RemoteEntryNotFoundError":
            return f"{repo} at {hub} lists a file that it does not have: {said}"
        if kind == "HFValidationError":
            return f"'{repo}' is no name of a repository: write OWNER/NAME"
        if status in (401, 403):
            return f"{hub} refuses {repo} ({status}): set sglang_model_token to a valid token that may read it"
        if status:
            return (
                f"{hub} answers {status} for {repo}, also when asked again: deploy again later, which goes on: {said}"
            )
        if "Consistency check failed" in said:
            return f"{hub} sends another size than it has told: {said.partition('This is usually')[0]}"
        return f"can not fetch {repo} from {hub}: {kind}: {said}: see whether it is reached, e.g. through a proxy"
