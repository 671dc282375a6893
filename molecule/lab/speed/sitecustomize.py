# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes an SGLang server of the lab start with a third of the CPU time; never used on a real host.

Python runs this file at start when its folder is in PYTHONPATH. The server's command line, arguments and answers stay
as they are. SGLang starts its scheduler and its detokenizer with "spawn", which imports everything again in each; that
protects a CUDA context, of which a CPU has none, so "fork" is used. The garbage collector walks through some million
objects again and again while modules load, and almost none of them are garbage.
"""

from __future__ import annotations

import gc
import multiprocessing.context
from typing import Any

gc.set_threshold(100_000, 50, 100)

_set_start_method = multiprocessing.context.DefaultContext.set_start_method


def _fork_in_place_of_spawn(self: Any, method: str | None, force: bool = False) -> None:
    _set_start_method(self, "fork" if method == "spawn" else method, force)


multiprocessing.context.DefaultContext.set_start_method = _fork_in_place_of_spawn
# multiprocessing has bound the method of its one context to a name of its own.
multiprocessing.set_start_method = multiprocessing.context._default_context.set_start_method
