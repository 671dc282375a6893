# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator probably meant by a name or a value that the installed SGLang does not know.

Every name that a hint gives exists in that release: the tables here and option_history only propose.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import option_history
from ansible_collections.gpuops.sglang.plugins.module_utils.foreign_options import LLAMA_CPP, VLLM
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, names, version_of

# Former options of SGLang -> what does their job now, as OPTION or OPTION=VALUE, the newest first. Read from the
# deprecation texts of SGLang 0.5.4 to 0.5.23, and where it never gave one, from what came when the other went.
REPLACED: dict[str, tuple[str, ...]] = {
    "collect_tokens_histogram": ("enable_metrics",),
    "disable_cuda_graph": ("cuda_graph_backend_decode=disabled",),
    "disable_fast_image_processor": ("image_processor_backend=pil",),
    "disable_piecewise_cuda_graph": ("cuda_graph_backend_prefill=disabled",),
    "dsa_prefill_cp_mode": ("cp_strategy",),
    "elastic_ep_rejoin": ("elastic_ep_join_mode=recover",),
    "enable_breakable_cuda_graph": ("cuda_graph_backend_prefill=breakable",),
    "enable_deepep_moe": ("moe_a2a_backend=deepep",),
    "enable_deepep_waterfill": ("enable_waterfill",),
    "enable_dp_attention": ("attn_dp_size",),
    "enable_dsa_prefill_context_parallel": ("enable_prefill_cp",),
    "enable_ep_moe": ("ep_size",),
    "enable_expert_distribution_metrics": ("expert_balancedness_report_mode",),
    "enable_flashinfer_allreduce_fusion": ("flashinfer_allreduce_fusion_backend=auto",),
    "enable_flashinfer_cutedsl_moe": ("moe_runner_backend=flashinfer_cutedsl",),
    "enable_flashinfer_cutlass_moe": ("moe_runner_backend=flashinfer_cutlass",),
    "enable_flashinfer_mxfp4_moe": ("moe_runner_backend=flashinfer_mxfp4",),
    "enable_flashinfer_trtllm_moe": ("moe_runner_backend=flashinfer_trtllm",),
    "enable_nsa_prefill_context_parallel": ("enable_prefill_cp",),
    "enable_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "enforce_piecewise_cuda_graph"),
    "enable_prefill_context_parallel": ("enable_prefill_cp",),
    "enable_triton_kernel_moe": ("moe_runner_backend=triton_kernel",),
    "enforce_piecewise_cuda_graph": ("cuda_graph_backend_prefill=tc_piecewise",),
    "grpc_mode": ("smg_grpc_mode",),
    "hybrid_kvcache_ratio": ("swa_full_tokens_ratio",),
    "keep_mm_feature_on_device": ("mm_feature_transport=cuda_ipc",),
    "kt_amx_method": ("kt_method",),
    "kt_amx_weight_path": ("kt_weight_path",),
    "monokernel_backend": ("enable_amd_monokernel",),
    "nsa_prefill_cp_mode": ("cp_strategy",),
    "oltp_traces_endpoint": ("otlp_traces_endpoint",),
    "optimistic_prefill_retries": ("optimistic_prefill_attempts",),
    "prefill_cp_mode": ("cp_strategy",),
}
SHORT_FOR = 4  # more options than this are not listed


def unknown_option(name: str, schema: Schema) -> str:
    """Return one sentence that says that this SGLang has no option `name`, and what to write instead."""
    version = version_of(schema)
    release = f"SGLang {version}" if version else "this SGLang"
    asked = name.strip("- ").replace("-", "_").lower()
    known = names(schema)
    hints = (_same_word, _of_another_release, _of_another_server, _abbreviation, _near)
    hint = next(filter(None, (find(asked, known, schema) for find in hints)), None)
    return f"{release} has no option '{name}'{hint or ': see the options in schema.json of the release'}"


def removed_option(name: str, schema: Schema) -> str:
    """Return one sentence about an option that this SGLang still reads but does nothing with."""
    hint = _replacement(name, schema)
    return f"'{name}' was removed from this SGLang: {hint or 'delete it'}"


def nearest_choice(word: str, choices: Iterable[Any]) -> str:
    """Return the end of a sentence that names the choice nearest to `word`, or nothing."""
    by_lower = {str(choice).lower(): str(choice) for choice in choices}
    near = difflib.get_close_matches(word.strip().lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""


def _same_word(asked: str, known: dict[str, str], schema: Schema) -> str | None:
    return f": write '{asked}'" if asked in known else None


def _of_another_release(asked: str, known: dict[str, str], schema: Schema) -> str | None:
    came, gone = _life(asked)
    if came is None:
        return None
    groups = (line.split() for line in option_history.SAME.splitlines())
    other = next((other for group in groups if asked in group for other in group if other in known), None)
    since = _life(other)[0] if other else None
    if since and _number(since) < _number(came):
        return f", which came in {came} for '{other}': write '{other}'"
    if since:
        return f": it was renamed to '{other}' in {since}"
    version = version_of(schema)
    if version and gone and _number(version) >= _number(gone):
        return f": it was removed in {gone}; {_replacement(asked, schema) or 'delete it'}"
    if version and _number(version) >= _number(came):
        return f", though SGLang has it since {came}: another platform may have it; delete it"
    until = f" and went in {gone}" if gone else ""
    return f", it came in {came}{until}: {_replacement(asked, schema) or 'delete it, or install another version'}"


def _of_another_server(asked: str, known: dict[str, str], schema: Schema) -> str | None:
    for server, options in (("vLLM", VLLM), ("llama.cpp", LLAMA_CPP)):
        if asked in options:
            counterparts, remark = options[asked]
            here = next((one for one in counterparts if one in known), None)
            if here:
                return f": for this option of {server} write '{here}'{remark and f' ({remark})'}"
            if not counterparts:
                return f": this option of {server} has no counterpart, {remark}; delete it"
            instead = _replacement(counterparts[0], schema)
            since = f"SGLang's counterpart, since {_life(counterparts[0])[0]}, is not in this release; delete it"
            return f": this is an option of {server}; {instead or since}"
    return None


def _abbreviation(asked: str, known: dict[str, str], schema: Schema) -> str | None:
    full = sorted({main for name, main in known.items() if name.startswith(asked)}) if asked else []
    if len(full) == 1:
        return f": it is short for '{full[0]}'; write the full name"
    if 1 < len(full) <= SHORT_FOR:
        listed = "', '".join(full)
        return f": it may be short for '{listed}'; write the full name"
    return None


def _near(asked: str, known: dict[str, str], schema: Schema) -> str | None:
    negated = asked[3:] if asked.startswith("no_") else ""
    if negated in known:
        return f": write '{negated}' with the value false"
    near = difflib.get_close_matches(asked, known, n=1, cutoff=0.75)
    return f"; did you mean '{near[0]}'?" if near else None


def _replacement(name: str, schema: Schema) -> str | None:
    """Return what does the job of a former option in this release."""
    for candidate in REPLACED.get(name, ()):
        option, _equals, value = candidate.partition("=")
        flag = canonical(option, schema)
        if flag and value and value in map(str, schema[flag]["choices"] or ()):
            return f"write '{option}' with the value '{value}'"
        if flag:
            return f"see '{option}', which does its job"
    return None


def _life(name: str) -> tuple[str | None, str | None]:
    """Return the first recorded version with an option and the first without it again."""
    line = next((line for line in option_history.TABLE.splitlines() if line.startswith(f"{name} ")), None)
    if not name or line is None:
        return None, None
    came, gone = [*line.split()[1:], "-"][:2]
    return came, None if gone == "-" else gone


def _number(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]
