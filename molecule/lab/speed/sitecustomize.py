# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes an SGLang server of the lab start with a third of the CPU time; never used on a real host.

Python runs this file at start when its folder is in PYTHONPATH. The server's command line, arguments and answers stay
as they are.
"""

from __future__ import annotations

import gc
import multiprocessing.context
import os
import sys
from typing import Any

# Modules of sglang.srt.models that serve the lab's model; the other 250 would be imported to learn their names.
MODELS = {"qwen2", "qwen3", "transformers"}


def _fork_in_place_of_spawn() -> None:
    """SGLang spawns its children, and each imports everything again. That protects CUDA, of which a CPU has none."""
    original = multiprocessing.context.DefaultContext.set_start_method

    def set_start_method(self: Any, method: str | None, force: bool = False) -> None:
        original(self, "fork" if method == "spawn" else method, force)

    multiprocessing.context.DefaultContext.set_start_method = set_start_method
    # multiprocessing has bound the method of its one context to a name of its own.
    multiprocessing.set_start_method = multiprocessing.context._default_context.set_start_method


def _leave_out_models() -> None:
    """Fill SGLang's own setting for modules that its registry is not to import."""
    for entry in sys.path:
        try:
            names = os.listdir(os.path.join(entry, "sglang", "srt", "models"))
        except OSError:
            continue
        modules = sorted(name[:-3] for name in names if name.endswith(".py"))
        os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(m for m in modules if m not in MODELS))
        return


# While modules load, almost nothing of what the collector walks through again and again is garbage.
gc.set_threshold(100_000, 50, 100)
# Nothing is compiled on the CPU; the import of torch's compiler is the dearest after torch itself.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
_fork_in_place_of_spawn()
_leave_out_models()
