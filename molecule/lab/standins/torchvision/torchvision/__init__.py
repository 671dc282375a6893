# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for torchvision in the lab, where images are never decoded.

SGLang and transformers import torchvision without a guard while they load, also for a text model. The real package
holds operators compiled against one exact build of torch, and the package index has none for a torch without CUDA: its
import ends with "operator torchvision::nms does not exist". So every submodule and every name can be imported here, and
the first real use of one raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

__version__ = "0.28.0+labstub"


def _refuse(name: str) -> RuntimeError:
    return RuntimeError(f"{name} was used, but torchvision is a stand-in in the lab: serve text only")


class _Member:
    """A value such as InterpolationMode.BICUBIC: it can be stored, compared and hashed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<stand-in {self.name}>"


class _ClassType(type):
    """Type of the stand-in classes: they can be subclassed and annotate, their capital members exist."""

    def __getattr__(cls, name: str) -> Any:
        if not name.isupper():
            raise AttributeError(name)
        member = _Member(f"{cls.__module__}.{cls.__qualname__}.{name}")
        setattr(cls, name, member)
        return member

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _refuse(f"{cls.__module__}.{cls.__qualname__}")


class _Module(ModuleType):
    """A module in which every public name exists: a class if it starts with a capital, else a function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        full = f"{self.__name__}.{name}"
        value: Any
        if name[0].isupper():
            value = _ClassType(name, (), {"__module__": self.__name__})
        else:

            def value(*args: Any, **kwargs: Any) -> Any:
                raise _refuse(full)

            value.__name__ = value.__qualname__ = name
            value.__module__ = self.__name__
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this package."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(__name__ + ".") or fullname.rpartition(".")[2].startswith("_"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())
sys.modules[__name__].__class__ = _Module
