# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for triton in the lab, where no GPU kernel ever runs.

SGLang imports triton without a guard in about 400 modules and decorates its kernels at import. The real package works
without a GPU, but it is a compiler of 1 GB that nothing here would call. So every submodule and every name can be
imported, decorators hand back an object, and launching a kernel or asking for the GPU driver raises.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

__version__ = "3.8.0"


def _refuse(name: str) -> RuntimeError:
    return RuntimeError(f"{name} was used, but triton is a stand-in in the lab: there is no GPU to run it on")


def cdiv(x: int, y: int) -> int:
    """Quotient rounded up; plain arithmetic that is also called without a kernel."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


class _Kernel:
    """What a decorator makes of a function: it keeps the function and refuses to be launched."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__module__ = getattr(fn, "__module__", __name__)
        self.__doc__ = getattr(fn, "__doc__", None)

    def __getitem__(self, grid: Any) -> Any:
        raise _refuse(f"kernel {self.__module__}.{self.__name__}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _refuse(f"kernel {self.__module__}.{self.__name__}")


class _ClassType(type):
    """Type of the stand-in classes: they take any arguments and have any member."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        member = _Name(f"{cls.__module__}.{cls.__qualname__}.{name}")
        setattr(cls, name, member)
        return member


class _Base(metaclass=_ClassType):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Name:
    """A lower-case name, for instance tl.constexpr or triton.autotune."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"<stand-in {self.__name__}>"

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0] if isinstance(args[0], (type, _Kernel)) else _Kernel(args[0])
        return _Name(f"{self.__name__}()")

    def __getitem__(self, key: Any) -> Any:
        raise _refuse(self.__name__)


class _Driver:
    """triton.runtime.driver: its absence is how callers learn that there is no GPU."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class _Module(ModuleType):
    """A module in which every public name exists: a class if it starts with a capital, else a name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        full = f"{self.__name__}.{name}"
        value: Any
        if full == f"{__name__}.runtime.driver":
            value = _Driver()
        elif name[0].isupper():
            value = _ClassType(name, (_Base,), {"__module__": self.__name__})
        else:
            value = _Name(full)
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
# The real package loads these itself, so callers reach them as attributes without importing them.
for _name in ("compiler", "knobs", "language", "runtime", "testing"):
    importlib.import_module(f"{__name__}.{_name}")
