# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A store of models in a temporary folder, and the model that the tests fetch into it."""

from __future__ import annotations

import json
import multiprocessing
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import model_record, model_store
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.model_store import Model, Place
from hub_server import small_model

FILES = small_model()
NEEDED = [name for name in FILES if not name.endswith((".bin", ".pth")) and not name.startswith(".")]
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
MIB = 2**20
FORK = multiprocessing.get_context("fork")


def whole(folder: Path) -> dict[str, bytes]:
    """Return the files of a directory, without the record."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".gpuops-model.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-7] if how == "truncated" else content[:-7] + b"another")


class ModelLab(ABC):
    """A store, and a model `m` that is to come into it."""

    def __init__(self, place: Place, model: Model) -> None:
        self.place, self.model, self.said = place, model, list[str]()
        self.folder = place.store / model.name
        self.partial = place.store / f".{model.name}.partial"

    @abstractmethod
    def asked(self, **login: Any) -> Place:
        """Return the place with what lets somebody in."""

    def ensure(self, full: bool = False, change: bool = True, **other: Any) -> dict[str, Any]:
        login = {name: other.pop(name) for name in ("token", "ssh") if name in other}
        return model_store.ensure(replace(self.model, **other), self.asked(**login), full, change, self.said.append)

    def refused(self, **other: Any) -> str:
        with pytest.raises(Refused) as caught:
            self.ensure(**other)
        return str(caught.value)

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / model_record.NAME).read_text())
        return found
