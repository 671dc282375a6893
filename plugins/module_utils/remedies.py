# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about SGLang's own words of refusal, in the names that options have in the release at hand.

SGLang's texts name options by flags that another release renamed, or advise what can not help.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, name_of, version_of

# Newest first: the option that chooses how a hybrid model's state is cached.
STRATEGY = ("mamba_radix_cache_strategy", "mamba_scheduler_strategy")

# Words of SGLang -> the next step. {strategy} is that option here; \1 is from the words.
REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"not compatible with radix cache when using --mamba-scheduler-strategy no_buffer",
        "set '{strategy}' to extra_buffer{spec_v2}, or 'disable_radix_cache' to true",
    ),
    (
        r"no_buffer do(?:es)? not support overlap schedule",
        "delete '{strategy}', so that SGLang takes extra_buffer, or set 'disable_overlap_schedule' to true",
    ),
    (
        r"extra_buffer_lazy.*spec",
        "set '{strategy}' to extra_buffer, which works with speculation",
    ),
    (
        r"extra_buffer is not compatible with --disable-radix-cache",
        "delete 'disable_radix_cache', or '{strategy}'",
    ),
    (
        r"extra_buffer requires platform support|extra_buffer is only supported on CUDA",
        "it needs a GPU that SGLang can use: see the driver with nvidia-smi, or delete '{strategy}'",
    ),
    (
        r"context_length \((\d+)\) is greater than the derived context_length \((\d+)\)",
        r"set 'context_length' to \2 or less; where the model is known to work beyond that, set "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN to '1' under 'env'",
    ),
    (
        r"tp_size must be divisible by number of nodes",
        "set 'tp_size' times 'pp_size' to a multiple of 'nnodes'",
    ),
    (
        r"[Rr]epo id must be in the form|does not appear to have a file named config\.json",
        "the path is not there for the user of the service: correct 'model', or mount it and let that user read it",
    ),
    (
        r"couldn't connect to .*|[Oo]ffline mode is enabled|Max retries exceeded",
        "this host does not reach the hub: give 'model' a directory",
    ),
    (
        r"GatedRepo|gated repo|401 Client Error|403 Client Error|is restricted",
        "accept the model's licence at the hub and put HF_TOKEN under 'secrets'",
    ),
    (
        r"trust_remote_code",
        "the model brings code of its own: read it, then set 'trust_remote_code' to true",
    ),
    (
        r"^architecture: |[Aa]rchitectures .* are not supported|does not recognize this architecture",
        "this release does not know the model: install a newer SGLang, or correct 'model'",
    ),
    (
        r"finds no usable CUDA device|No CUDA GPUs are available|driver .* is too old|No accelerator",
        "repair the driver or the devices of this host until nvidia-smi works, or set 'device' to cpu if that is meant",
    ),
    (
        r"tokenizer|Tokenizer|vocabulary|SentencePiece",
        "complete the model's directory with its tokenizer files, or set 'tokenizer_path'",
    ),
)


def remedy(words: str, schema: Schema) -> str:
    """Return the next step for what SGLang said, as an imperative; a general one where the words are not known."""
    strategy = next((name for name in STRATEGY if canonical(name, schema)), STRATEGY[0])
    # 0.5.10 alone also wants the variable; later releases have it on
    spec_v2 = " and SGLANG_ENABLE_SPEC_V2 to '1' under 'env'" if version_of(schema).startswith("0.5.10") else ""
    for pattern, advice in REMEDIES:
        found = re.search(pattern, words)
        if found:
            return found.expand(advice.replace("{strategy}", strategy).replace("{spec_v2}", spec_v2))
    # a name of one word may be a word of the sentence
    named = [
        name_of(flag)
        for flag in sorted(schema)
        if re.search(rf"{flag}(?![\w-])", words) or ("-" in flag[2:] and re.search(rf"\b{name_of(flag)}\b", words))
    ]
    listed = ", ".join(f"'{name}'" for name in named[:4])
    return f"correct {listed}" if listed else "correct the arguments or the model"
