# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for one NVIDIA RTX PRO 6000 (compute capability 12.0, 97887 MiB) and the packages that hold GPU kernels.

Python runs this file at start when its folder is in PYTHONPATH. What torch and nvidia-smi tell of such a GPU is
answered, so that SGLang resolves its arguments as it does there; nothing can be computed or allocated.

Older releases of SGLang are run with the packages of the newest here; what keeps them from being imported with those is
put right at the end.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# the folder's nvidia-smi answers what SGLang asks it
os.environ["PATH"] = f"{os.path.dirname(__file__)}:{os.environ.get('PATH', '')}"

TOTAL = 97887 << 20
FREE = TOTAL - (600 << 20)
KERNELS = ("sgl_kernel", "deep_gemm", "flash_mla", "deep_ep", "flashinfer")


class _Properties:
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    major, minor = 12, 0
    total_memory = TOTAL
    multi_processor_count = 188
    warp_size = 32
    shared_memory_per_block_optin = 101376


class _Anything:
    """What a kernel package may hold: it has every attribute and can be called, as decorators are on import."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[()]:
        return ()

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self


class _Hollow(types.ModuleType):
    """A module with whatever is asked of it."""

    __path__ = ()
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in KERNELS else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder())
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
torch.cuda.is_initialized = lambda: False
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_capability = lambda *_: (12, 0)
torch.cuda.get_device_name = lambda *_: _Properties.name
torch.cuda.get_device_properties = lambda *_: _Properties()
torch.cuda.mem_get_info = lambda *_: (FREE, TOTAL)

_register_fake = torch.library.register_fake
_register_config = CONFIG_MAPPING.register


def _register_fake_where_it_is(operator: Any, *given: Any, **named: Any) -> Any:
    # up to 0.5.9 shapes are declared for kernels that only the real package has
    if str(operator).split("::")[0] in KERNELS:
        return lambda function: function
    return _register_fake(operator, *given, **named)


torch.library.register_fake = _register_fake_where_it_is
# 0.5.11 to 0.5.18 bring a model's configuration that the newer transformers has by itself
CONFIG_MAPPING.register = lambda key, value, exist_ok=False: _register_config(key, value, exist_ok=True)
