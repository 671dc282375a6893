# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about SGLang's own words of failure, in the names that options have in the release at hand.

SGLang's texts name options by flags that another release renamed, or advise what can not help.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical, name_of, version_of

# Words of SGLang, or of what it stands on -> the next step. {a|b} is the first of these options that the release has,
# \1 is from the words. The first that matches counts: what is special comes before what is general.
ARGUMENTS = (
    (
        r"not compatible with radix cache when using --mamba-scheduler-strategy no_buffer",
        "set '{mamba_radix_cache_strategy|mamba_scheduler_strategy}' to extra_buffer{spec_v2}, "
        "or 'disable_radix_cache' to true",
    ),
    (
        r"no_buffer do(?:es)? not support overlap schedule",
        "delete '{mamba_radix_cache_strategy|mamba_scheduler_strategy}', so that SGLang takes extra_buffer, or set "
        "'disable_overlap_schedule' to true",
    ),
    (
        r"extra_buffer_lazy.*spec",
        "set '{mamba_radix_cache_strategy|mamba_scheduler_strategy}' to extra_buffer, which works with speculation",
    ),
    (
        r"extra_buffer is not compatible with --disable-radix-cache",
        "delete 'disable_radix_cache', or '{mamba_radix_cache_strategy|mamba_scheduler_strategy}'",
    ),
    (
        r"extra_buffer requires platform support|extra_buffer is only supported on CUDA",
        "it needs a GPU that SGLang can use: see the driver with nvidia-smi, or delete "
        "'{mamba_radix_cache_strategy|mamba_scheduler_strategy}'",
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
)
HOST = (
    (
        r"Initialization failed\. warmup error",
        "the server could not reach its own port: see whether a proxy or another process answers there",
    ),
    (
        r"address already in use|\[Errno 98\]|Port is already in use",
        "end the process that holds the port, or choose another 'port'",
    ),
    (
        r"libnuma\.so\.1: cannot open",
        "install the package libnuma1 on this host",
    ),
    (
        r"libcuda\.so\.1: cannot open",
        "install the driver's user libraries in the container, of exactly the version of the node's kernel module",
    ),
    (
        r"libnvrtc\.so\.\d+: cannot open|undefined symbol: _ZN|Could not load any common_ops",
        "the packages of the release do not fit each other: install the release again, with the versions that it pins",
    ),
    (
        r"Python\.h: No such file|Failed to find C compiler",
        "install gcc and the headers of the interpreter (python3-dev) on this host",
    ),
    (
        r"Could not find nvcc|Ninja build failed|ninja: build stopped|cuda_fp8\.h: No such file|nvcc: not found",
        "install a CUDA toolkit as new as torch's CUDA, and set CUDA_HOME under 'env'",
    ),
    (
        r"no kernel image is available",
        "this release has no kernels for this GPU: install a newer SGLang",
    ),
    (
        r"SGLang only supports sm75 and above|Minimum capability",
        "this GPU is too old for what is asked: take another one, or another quantization",
    ),
    (
        r"shared memory segment|posix_fallocate failed|/dev/shm.*No space left|No space left.*/dev/shm",
        "make /dev/shm larger: NCCL needs it to join GPUs",
    ),
    (
        r"ibv_reg_mr",
        "allow locked memory: the container's limit must be unlimited too",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "free space on the file system that the words name",
    ),
    (
        r"driver on your system is too old|finds no usable CUDA device|No CUDA GPUs are available|No accelerator"
        r"|CUDA driver version is insufficient|CUDA unknown error|cudaErrorInitializationError|found no NVIDIA driver",
        "repair the driver or the devices of this host until nvidia-smi works, or set 'device' to cpu if that is meant",
    ),
    (
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError",
        "set NCCL_DEBUG to INFO under 'env' and read which step of NCCL fails",
    ),
)
MEMORY = (  # diagnosis gives the value where the log has what it takes
    (
        r"Capture .*(?:cuda|CUDA) graph.* failed|CUDA out of memory.*captur",
        "leave more memory beside the caches: lower 'mem_fraction_static', or "
        "'{cuda_graph_max_bs_decode|cuda_graph_max_bs}'",
    ),
    (
        r"state cache is too small to serve any requests|max_running_request is zero",
        "raise 'mem_fraction_static' or 'max_mamba_cache_size': there is no state for even one request",
    ),
    (
        r"Not enough GPU memory for hybrid|Not enough memory\. Please try to increase --mem-fraction-static",
        "lower 'max_running_requests', or raise 'mem_fraction_static'",
    ),
    (
        r"Loaded weights leave no GPU memory for the KV cache.*above ([\d.]+)",
        r"raise 'mem_fraction_static' above \1, or spread the weights over more GPUs by 'tp_size'",
    ),
    (
        r"OutOfMemoryError|CUDA out of memory",
        "lower 'mem_fraction_static', which leaves more beside the caches, or 'chunked_prefill_size'",
    ),
    (
        r"crashed with exit code -9|oom-kill|Killed",
        "the host ran out of memory, or someone killed it: see 'journalctl -k -g oom', give it more memory",
    ),
    (
        r"Health check failed\. Server couldn't get a response",
        "the scheduler hangs: read what came before in the log, and restart the service with systemctl",
    ),
)
MODEL = (
    (
        r"[Rr]epo id must be in the form|does not appear to have a file named config\.json",
        "the path is not there for the user of the service: correct 'model', or mount it and let that user read it",
    ),
    (
        r"couldn't connect to |[Oo]ffline mode is enabled|Max retries exceeded",
        "this host does not reach the hub: give 'model' a directory",
    ),
    (
        r"GatedRepo|gated repo|401 Client Error|403 Client Error|is restricted",
        "accept the model's licence at the hub and put HF_TOKEN under 'secrets'",
    ),
    (
        r"Weight output_partition_size = .* is not divisible by weight quantization block_n",
        "lower 'tp_size', or use 'ep_size' or DP attention",
    ),
    (
        r"Quantization method specified in the model config .* does not match|Unknown quantization method",
        "delete 'quantization', or take another checkpoint",
    ),
    (
        r"Cannot find any model weights with|No such file.*\.safetensors|SafetensorError|HeaderTooLarge",
        "the weights are not complete: finish the download",
    ),
    (
        r"contains custom code|requires you to execute|trust_remote_code=True",
        "the model brings code of its own: read it, then set 'trust_remote_code' to true",
    ),
    (
        r"^architecture: |[Aa]rchitectures .* are not supported|does not recognize this architecture",
        "this release does not know the model: install a newer SGLang, or correct 'model'",
    ),
    (
        r"load image processor|load feature extractor|load processor",
        "complete the model's directory with its processor files, e.g. preprocessor_config.json",
    ),
    (
        r"^tokenizer: |load (?:the )?tokenizer|SentencePiece",
        "complete the model's directory with its tokenizer files, or set 'tokenizer_path'",
    ),
)
END = (
    (
        r"watchdog timeout",
        "a step took longer than 'watchdog_timeout': raise it for a first start, which compiles kernels",
    ),
)
REMEDIES: tuple[tuple[str, str], ...] = (*ARGUMENTS, *HOST, *MEMORY, *MODEL, *END)


def remedy(words: str, schema: Schema) -> str:
    """Return the next step for what SGLang said, as an imperative; a general one where the words are not known."""
    known = known_remedy(words, schema)
    if known:
        return known
    # a name of one word may be a word of the sentence
    named = [
        name_of(flag)
        for flag in sorted(schema)
        if re.search(rf"{flag}(?![\w-])", words) or ("-" in flag[2:] and re.search(rf"\b{name_of(flag)}\b", words))
    ]
    listed = ", ".join(f"'{name}'" for name in named[:4])
    return f"correct {listed}" if listed else "correct the arguments or the model"


def known_remedy(words: str, schema: Schema) -> str | None:
    """Return the next step for words that the table has."""
    # 0.5.10 alone also wants the variable; later releases have it on
    spec_v2 = " and SGLANG_ENABLE_SPEC_V2 to '1' under 'env'" if version_of(schema).startswith("0.5.10") else ""
    for pattern, advice in REMEDIES:
        found = re.search(pattern, words)
        if found:
            advice = advice.replace("{spec_v2}", spec_v2)
            return found.expand(re.sub(r"\{(\w+)\|(\w+)\}", lambda names: _there(names.groups(), schema), advice))
    return None


def _there(names: tuple[str, ...], schema: Schema) -> str:
    return next((name for name in names if canonical(name, schema)), names[0])
