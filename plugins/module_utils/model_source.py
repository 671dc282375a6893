# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a model comes from: what the store asks of any such place, and a repository of a hub as one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub, Wanted

Patterns = tuple[str, ...]


class Source(Protocol):
    """A place that a model is fetched from."""

    @property
    def address(self) -> str:
        """Who is asked; how fast it was is kept by this name."""

    def ready(self, tell: Callable[[str], None], scratch: Path | None = None) -> Source:
        """Have on this host what asking needs, below `scratch` where nothing is to stay; raises Refused."""

    def plan(self, allow: Patterns, ignore: Patterns) -> dict[str, Any]:
        """Return the `files` (Wanted) that the patterns leave, and what a record has of their origin."""

    def bring(self, commit: str, folder: Path, files: Wanted) -> Iterator[dict[str, Any]]:
        """Bring files into `folder`, going on within those that are there in part.

        Yields {'bytes': what is there of all}, {'read': bytes of a file that is verified now}, and of each file
        {'came': name, 'hash': what its content has}.
        """

    def named(self, commit: str) -> str:
        """Return the model in a message."""

    def page(self, commit: str) -> str:
        """Return where somebody can read the files."""

    def difference(self, record: Mapping[str, Any]) -> str | None:
        """Return what a record has of another model, and what is asked for."""


@dataclass(frozen=True)
class FromHub:
    """A repository at a revision."""

    hub: Hub
    repo: str
    revision: str

    @property
    def address(self) -> str:
        return self.hub.endpoint

    def ready(self, tell: Callable[[str], None], scratch: Path | None = None) -> FromHub:
        if self.hub.has_client():
            return self
        hub = replace(self.hub, root=scratch) if scratch else self.hub
        tell("installs the hub's client")
        hub.install()
        return replace(self, hub=hub)

    def plan(self, allow: Patterns, ignore: Patterns) -> dict[str, Any]:
        commit, files = self.hub.listing(self.repo, self.revision, allow, ignore)
        return {
            "repo": self.repo, "revision": self.revision, "endpoint": self.hub.endpoint, "commit": commit,
            "files": files,
        }  # fmt: skip

    def bring(self, commit: str, folder: Path, files: Wanted) -> Iterator[dict[str, Any]]:
        return self.hub.fetch(self.repo, commit, folder, files)

    def named(self, commit: str) -> str:
        return f"{self.repo} at revision {commit}"

    def page(self, commit: str) -> str:
        return f"{self.hub.endpoint}/{self.repo}/tree/{commit or self.revision}"

    def difference(self, record: Mapping[str, Any]) -> str | None:
        if record["repo"] != self.repo:
            return f"{record['repo'] or record['copy_from']}, asked for is {self.repo}"
        commit, revision = record["commit"], record["revision"]
        if self.revision in (commit, revision):
            return None
        has = f"{revision} ({commit})" if revision != commit else commit
        return f"revision {has} of {self.repo}, asked for is {self.revision}"
