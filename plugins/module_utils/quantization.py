# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many bytes a weight of a quantized checkpoint takes, and which modules are left as they were."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST = 0.5  # bytes of a weight in the narrowest format that SGLang loads; what an unknown one takes at least
# Methods with one width for all: bytes of a weight, with its scales
WIDTHS = {
    "fbgemm_fp8": 1.0, "modelopt_fp8": 1.0, "w8a8_fp8": 1.0, "w8a8_int8": 1.0, "mxfp8": 1 + 1 / 32,
    "modelopt_fp4": 0.5 + 1 / 16, "nvfp4": 0.5 + 1 / 16,
    # scales stay as they were loaded beside those that the kernel reads (srt/layers/quantization/mxfp4.py)
    "mxfp4": 0.5 + 2 / 32,
}  # fmt: skip
SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
GROUPED = ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "moe_wna16", "marlin")


@dataclass(frozen=True)
class Quantization:
    """`width` is None where nothing is quantized, otherwise bytes of a weight of a linear module, with its scales."""

    method: str = ""
    width: float | None = None
    experts_only: bool = False
    skipped: tuple[str, ...] = ()  # names, parts of names, fnmatch patterns, or regular expressions after re:
    kv_cache_fp8: bool = False
    unknown: tuple[str, ...] = ()

    def takes(self, module: str) -> bool:
        """Tell whether the weights of `module` (its name in the checkpoint) are quantized."""
        if self.width is None or (self.experts_only and ".experts." not in module):
            return False
        return not any(_matches(pattern, module) for pattern in self.skipped)


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern)
    return f".{pattern.strip('.')}." in f".{module}."


def quantization(*configs: Mapping[str, Any]) -> Quantization:
    """Read the first quantization that is described in `configs`."""
    described = next(
        (
            config[key]
            for config in configs
            for key in ("quantization_config", "compression_config")
            if isinstance(config.get(key), dict)
        ),
        None,
    )
    return _described(described) if described else Quantization()


def online(method: str) -> Quantization:
    """What `--quantization` makes of weights that are not quantized, while they are loaded."""
    if method in ("fp8", *WIDTHS):
        return Quantization(method, WIDTHS.get(method, 1.0))
    return Quantization(method, LEAST, unknown=(f"quantization {method!r} is not known: weights are a lower bound",))


def _described(config: Mapping[str, Any]) -> Quantization:
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    skipped = next((config[key] for key in SKIPPED if isinstance(config.get(key), list)), ())
    names = tuple(str(name) for name in skipped if name)
    kv = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    fp8 = (isinstance(kv, dict) and kv.get("num_bits") == 8 and kv.get("type") == "float") or str(kv).upper() == "FP8"
    if method == "modelopt":
        method = {"NVFP4": "modelopt_fp4", "FP8": "modelopt_fp8"}.get(str(config.get("quant_algo")).upper(), method)
    if method == "fp8":
        block = config.get("weight_block_size")
        scales = 4 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 and all(block) else 0
        return Quantization(method, 1 + scales, False, names, fp8)
    if method in WIDTHS:
        return Quantization(method, WIDTHS[method], method == "mxfp4", names, fp8)
    bits = config.get("bits", config.get("w_bit"))
    if method in GROUPED and isinstance(bits, int):
        group = config.get("group_size", config.get("q_group_size", 128))
        group = group if isinstance(group, int) and group > 0 else 1 << 20
        return Quantization(method, bits / 8 + (2 + bits / 8) / group, False, names, fp8)
    if method == "bitsandbytes":
        return Quantization(method, 0.5 + 1 / 16 if config.get("load_in_4bit") else 1.0, False, names, fp8)
    if method == "compressed-tensors":
        return _compressed(config, names, fp8)
    why = f"quantization {method or 'without a method'!r} is not known: weights are a lower bound"
    return Quantization(method, LEAST, False, names, fp8, (why,))


def _compressed(config: Mapping[str, Any], names: tuple[str, ...], fp8: bool) -> Quantization:
    """compressed-tensors: groups of targets, each with its own bits."""
    groups = config.get("config_groups")
    schemes = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    widths = set()
    for scheme in schemes:
        if isinstance(scheme, dict) and isinstance(scheme.get("num_bits"), int):
            bits, group = scheme["num_bits"], scheme.get("group_size")
            scale = 1 if bits == 4 and scheme.get("type") == "float" else 2
            widths.add(bits / 8 + (scale / group if isinstance(group, int) and group > 0 else 0))
    why = () if len(widths) == 1 else ("several widths in one checkpoint: weights are a lower bound",)
    return Quantization("compressed-tensors", min(widths, default=LEAST), False, names, fp8, why)
