# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words that SGLang really says, and the next step in the names of the release that said them."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.options import canonical
from ansible_collections.gpuops.sglang.plugins.module_utils.remedies import REMEDIES, remedy
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


STRATEGY = ("mamba_radix_cache_strategy", "mamba_scheduler_strategy")
WITH_STRATEGY = [version for version in releases() if any(canonical(name, schema_of(version)) for name in STRATEGY)]


@pytest.mark.parametrize("version", WITH_STRATEGY)
def test_every_option_that_is_advised_is_in_the_release(version: str) -> None:
    schema = schema_of(version)
    for pattern, _advice in REMEDIES:
        words = sample(pattern)
        advice = remedy(words, schema)
        assert "{" not in advice, advice
        for name in re.findall(r"'([a-z_]+)'", advice):
            assert name in ("env", "model", "port", "secrets") or canonical(name, schema), (pattern, name)


def sample(pattern: str) -> str:
    """Return words that the first alternative of a pattern matches."""
    words = re.sub(r"\(\?:(.*?)\|.*?\)\??", r"\1", re.split(r"\|(?![^(]*\))", pattern)[0])
    words = re.sub(r"\(\\d\+\)|\\d\+|\(\[\\d\.\]\+\)", "7", words.replace(".*", " x ").lstrip("^"))
    return re.sub(r"\\(\W)", r"\1", re.sub(r"\[(\w)\w*\]", r"\1", words)).replace("(?:es)?", "")


@pytest.mark.parametrize("pattern", [pattern for pattern, _advice in REMEDIES])
def test_no_entry_is_hidden_by_an_earlier_one(pattern: str) -> None:
    words = sample(pattern)
    first = next(other for other, _advice in REMEDIES if re.search(other, words))
    assert first == pattern, words
