# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments for a wanted context and concurrency, given the GPUs and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.levers import (
    TENSOR,
    Search,
    Wanted,
    divides,
    of_fraction,
    of_states,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu, Plan
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_settings import Asked
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import Shape


def propose(
    shape: Shape, gpus: Sequence[Gpu], version: str, context: int, concurrency: int,
    args: Mapping[str, Any] | None = None, draft: Shape | None = None,
) -> tuple[dict[str, Any], Plan] | None:  # fmt: skip
    """Return arguments for `concurrency` requests of `context` tokens at once, and their plan; None if there are none.

    The fewest GPUs come first, then what costs least: weights and cache as they are, states and cache of half the size,
    weights of half the size. What `args` has already stays.
    """
    wanted, given = Wanted(context, concurrency), dict(args or {})
    if context > shape.context:
        return None
    fixed = Asked(given).args
    halves: list[dict[str, Any]] = [{}]
    if "mamba_ssm_dtype" not in fixed and shape.linear and shape.linear.kind != "conv":
        halves.append({"mamba_ssm_dtype": "bfloat16"})
    if "kv_cache_dtype" not in fixed:
        halves += [{**half, "kv_cache_dtype": "fp8_e4m3"} for half in halves]
    if "quantization" not in fixed and not shape.quantization.method:
        halves += [{**half, "quantization": "fp8"} for half in halves]
    base = {**given, "context_length": context, "max_running_requests": concurrency}
    sizes = [fixed["tp_size"]] if "tp_size" in fixed else [one for one in TENSOR if one <= len(gpus)]
    for size in sizes:
        if not divides(shape, int(size)):
            continue
        for half in halves:
            search = Search(shape, {**base, **half, "tp_size": int(size)}, gpus, version, draft)
            found = search.planned()
            if found and not found.unknown and wanted.met(found):
                return search.args, found
            if found is None or found.unknown:
                continue
            for change in (of_fraction, of_states):
                for lever in change(search, found, Asked(search.args), wanted):
                    if lever.option not in fixed and lever.value is not None:
                        return {**search.args, lever.option: lever.value}, lever.plan
    return None
