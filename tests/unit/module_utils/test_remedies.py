# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words that SGLang really says, and the next step in the names of the release that said them."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.options import canonical
from ansible_collections.gpuops.sglang.plugins.module_utils.remedies import STRATEGY, remedy
from conftest import releases, schema_of

NO_BUFFER = (
    "ValueError: Speculative decoding for Qwen3_5ForConditionalGeneration is not compatible with radix cache when "
    "using --mamba-scheduler-strategy no_buffer. To use radix cache with speculative decoding, please use "
    "--mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1."
)


@pytest.mark.parametrize(
    ("version", "words", "said"),
    [
        ("0.5.11", NO_BUFFER, "set 'mamba_scheduler_strategy' to extra_buffer, or 'disable_radix_cache' to true"),
        ("0.5.10", NO_BUFFER, "extra_buffer and SGLANG_ENABLE_SPEC_V2 to '1' under 'env', or"),
        (
            "0.5.23",
            "AssertionError: no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.",
            "delete 'mamba_radix_cache_strategy', so that SGLang takes extra_buffer, or set 'disable_overlap_schedule'",
        ),
        (
            "0.5.11",
            "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache",
            "delete 'disable_radix",
        ),
        ("0.5.23", "AssertionError: extra_buffer requires platform support", "nvidia-smi"),
        (
            "0.5.23",
            "ValueError: User-specified context_length (9000) is greater than the derived context_length (4096).",
            "set 'context_length' to 4096 or less",
        ),
        ("0.5.23", "AssertionError: tp_size must be divisible by number of nodes", "a multiple of 'nnodes'"),
        (
            "0.5.23",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "give 'model' a directory",
        ),
        ("0.5.23", "HFValidationError: Repo id must be in the form 'repo_name': '/srv/m'", "mount it"),
        ("0.5.23", "ValueError: something about --attention-backend and dtype", "correct 'attention_backend'"),
        ("0.5.23", "ValueError: chunked_prefill_size must be a multiple", "correct 'chunked_prefill_size'"),
        ("0.5.23", "RuntimeError: it went wrong", "correct the arguments or the model"),
    ],
)
def test_the_next_step(version: str, words: str, said: str) -> None:
    assert said in remedy(words, schema_of(version))


WITH_STRATEGY = [version for version in releases() if any(canonical(name, schema_of(version)) for name in STRATEGY)]


@pytest.mark.parametrize("version", WITH_STRATEGY)
def test_every_option_that_is_advised_is_in_the_release(version: str) -> None:
    schema = schema_of(version)
    for words in (
        NO_BUFFER,
        "no_buffer do not support overlap schedule",
        "context_length (9) is greater than the derived context_length (4)",
        "Can't load tokenizer",
        "requires trust_remote_code",
    ):
        for name in re.findall(r"'([a-z_]+)'", remedy(words, schema)):
            assert name in ("env", "model", "secrets") or canonical(name, schema), name
