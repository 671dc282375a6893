# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of real launches of SGLang 0.5.11 on an H200 (fixtures/logs), and lines of others."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.diagnosis import EVIDENCE, diagnose
from conftest import FIXTURES, schema_of

SCHEMA = schema_of("0.5.23")
BEGIN = "[2026-11-29 17:25:56] server_args={'mem_fraction_static': 0.9}"


def log(name: str) -> str:
    return (FIXTURES / "logs" / f"{name}.log").read_text()


@pytest.mark.parametrize(
    ("name", "stage", "cause", "step"),
    [
        ("err_image_processor", "preparing", "OSError: Can't load image processor for", "preprocessor_config.json"),
        (
            "err_no_buffer",
            "reading its arguments",
            "ValueError: Speculative decoding for Qwen3_5ForConditionalGeneration is not compatible",
            "set 'mamba_scheduler_strategy' to extra_buffer",
        ),
        (
            "err_orphan_holds_gpu_not_enough_memory",
            "sizing its caches",
            "RuntimeError: Not enough memory.",
            "raise 'mem_fraction_static' above 0.65: 25.0 GiB were free, the weights took 15.3",
        ),
        ("low", "preparing to compute", "AssertionError: max_running_request is zero", "raise 'mem_fraction_static'"),
        (
            "low2",
            "sizing its caches",
            "RuntimeError: Not enough memory.",
            "lower 'max_running_requests': 139.1 GiB were free, the weights took 51.1, and 'mem_fraction_static' 0.42 "
            "leaves 7.4 for the caches",
        ),
    ],
)
def test_a_real_failure(name: str, stage: str, cause: str, step: str) -> None:
    found = diagnose(log(name), schema_of("0.5.11"))
    assert found.stage == stage
    assert found.cause.startswith(cause)
    assert found.remedy.startswith(step) or step in found.remedy
    assert found.cause[:40] in " ".join(found.evidence)
    assert len(found.evidence) <= EVIDENCE


def test_memory_that_another_process_held_is_told_by_the_size_of_the_gpu() -> None:
    found = diagnose(log("err_orphan_holds_gpu_not_enough_memory"), schema_of("0.5.11"), gpu_memory=140.4)
    assert found.remedy == (
        "end what else holds the GPU, see nvidia-smi: only 25.0 of its 140.4 GiB were free before the weights were "
        "loaded"
    )
    assert "end what" not in diagnose(log("low2"), schema_of("0.5.11"), gpu_memory=140.4).remedy


def test_a_server_that_was_stopped_has_no_cause() -> None:
    found = diagnose(log("seed"), SCHEMA)
    assert (found.stage, found.cause, found.remedy) == ("serving", "", "")
    assert len(found.evidence) == EVIDENCE


DECODE = "[2026-11-29 17:25:56] Decode batch, #running-req: 1, #token: {n}, gen throughput (token/s): 44.0"
PREFILL = "[2026-11-29 17:25:56] Prefill batch, #new-seq: 1, #new-token: {n}, #cached-token: 0"


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ([DECODE], "serving"),
        ([PREFILL], "serving"),
        (["Application startup complete", PREFILL], "trying a first request"),  # the server's own
        (["The server is fired up", DECODE], "serving"),
        (["nothing known"], "reading its arguments"),
    ],
)
def test_what_has_served_for_long_serves_though_its_start_is_out_of_sight(lines: list[str], stage: str) -> None:
    text = "\n".join([lines[0], *(lines[-1].format(n=n) for n in range(EVIDENCE * 9))])
    found = diagnose(text, SCHEMA)
    assert (found.stage, found.cause) == (stage, "")
    error = "torch.OutOfMemoryError: CUDA out of memory."
    found = diagnose(f"{text}\n{TRACE.format(rank=0, error=error)}", SCHEMA)
    assert (found.stage, found.cause) == (stage, error)


TRACE = """\
[2026-11-29 17:25:56 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/x/sglang/srt/managers/scheduler.py", line 1, in run
    raise {error}
{error}
"""
SIGQUIT = "[2026-11-29 17:25:56] Received sigquit from a child process. It usually means the child failed.\n"


def test_the_first_rank_that_fails_counts_and_not_the_echoes() -> None:
    text = BEGIN + "\n" + TRACE.format(rank=1, error="ValueError: first") + SIGQUIT
    text += TRACE.format(rank=0, error="RuntimeError: NCCL error: second") + "EOFError\n"
    assert diagnose(text, SCHEMA).cause == "ValueError: first"
    assert diagnose(SIGQUIT + text, SCHEMA).cause == "ValueError: first"


def test_a_traceback_that_was_caught_is_not_the_cause() -> None:
    caught = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nImportError: optional\n'
    assert diagnose(caught + TRACE.format(rank=0, error="ValueError: real"), SCHEMA).cause == "ValueError: real"
    last = 'Traceback (most recent call last):\n  File "b.py", line 1, in g\nOSError: uncaught\n'
    assert diagnose(caught + last, SCHEMA).cause == "OSError: uncaught"


DIRECT = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize("between", [DIRECT, DURING])
def test_of_a_chain_what_can_be_remedied_counts_else_the_end(between: str) -> None:
    def chain(first: str, second: str) -> str:
        begin = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        return f"{begin}{first}\n\n{between}\n\n{begin}{second}\n"

    known = "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory"
    assert diagnose(chain(known, "RuntimeError: kernel library"), SCHEMA).cause == known
    assert diagnose(chain("KeyError: 'a'", "RuntimeError: b"), SCHEMA).cause == "RuntimeError: b"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("launch_server.py: error: unrecognized arguments: --x", "correct"),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 3): address already in use",
         "end the process that holds the port"),
        ("[2026-11-29 17:25:56] Subprocess scheduler_0 crashed with exit code -9. Triggering SIGQUIT for cleanup",
         "the host ran out of memory"),
        ("[2026-11-29 17:25:56] Initialization failed. warmup error: timed out", "could not reach its own port"),
        ("[2026-11-29 17:25:56 TP0] Scheduler watchdog timeout (300 s)", "raise it for a first start"),
    ],
)  # fmt: skip
def test_an_end_without_a_traceback(line: str, step: str) -> None:
    echo = "[2026-11-29 17:25:57] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    found = diagnose("\n".join([BEGIN, "before", line, echo]), SCHEMA)
    assert line.endswith(found.cause) and step in found.remedy


LIBRARY = """\
[sgl_kernel] CRITICAL: Could not load any common_ops library!
Attempted locations:
- ImportError: libnuma.so.1: cannot open shared object file
"""
SHARED = TRACE.format(rank=0, error="torch.distributed.DistBackendError: NCCL error: unhandled system error") + (
    "Last error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9): No space left on device\n"
)
COMPILER = "/usr/include/x.h:9:10: fatal error: Python.h: No such file or directory\n" + TRACE.format(
    rank=0, error="Exception: Capture cuda graph failed: Command '['/usr/bin/gcc']' returned non-zero exit status 1."
)
WARM_UP = """\
[2026-11-29 17:25:56] Initialization failed. warmup error: Traceback (most recent call last):
  File "/opt/x/requests.py", line 1, in get
requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=30000): Max retries exceeded with url: /
"""


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (LIBRARY, "install the package libnuma1"),
        (SHARED, "make /dev/shm larger"),
        (COMPILER, "install gcc and the headers"),
        (WARM_UP, "could not reach its own port"),
    ],
)
def test_what_belongs_to_a_cause_is_read_with_it(text: str, step: str) -> None:
    assert step in diagnose(BEGIN + "\n" + text, SCHEMA).remedy


@pytest.mark.parametrize(
    "error",
    ["triton.runtime.errors.OutOfResources: out of resource: shared memory", "torch._dynamo.exc.Unsupported: x",
     "subprocess.TimeoutExpired: Command", "KeyboardInterrupt"],
)  # fmt: skip
def test_an_exception_may_have_any_name(error: str) -> None:
    assert diagnose(TRACE.format(rank=0, error=error) + SIGQUIT, SCHEMA).cause == error


@pytest.mark.parametrize(
    "trouble",
    ["Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
     "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)"],
)  # fmt: skip
def test_what_was_recovered_from_is_not_the_cause_of_a_later_end(trouble: str) -> None:
    text = f"[2026-11-29 17:25:56] {trouble}\n" + TRACE.format(
        rank=0, error="torch.OutOfMemoryError: CUDA out of memory."
    )
    assert diagnose(text, SCHEMA).cause == "torch.OutOfMemoryError: CUDA out of memory."


def test_draft_weights_count_where_they_are_loaded_before_the_caches() -> None:
    lines = [
        "[2026-11-29 17:25:56 TP0] server_args={'mem_fraction_static': 0.85}",
        "[2026-11-29 17:25:56 TP1] Load weight begin. avail mem=99.00 GB",
        "[2026-11-29 17:25:56 TP0] Load weight begin. avail mem=23.00 GB",
        "[2026-11-29 17:25:56 TP0] Load weight end. elapsed=1 s, avail mem=6.00 GB, mem usage=17.00 GB.",
        "[2026-11-29 17:25:56 TP0] Load weight begin. avail mem=6.00 GB",
        "[2026-11-29 17:25:56 TP0] Load weight end. elapsed=1 s, avail mem=3.00 GB, mem usage=3.00 GB.",
    ]
    error = "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache"
    found = diagnose("\n".join(lines) + "\n" + TRACE.format(rank=0, error=error), SCHEMA)
    assert found.remedy.startswith("raise 'mem_fraction_static' above 0.91: 23.0 GiB were free, the weights took 20.0")


def test_sglangs_own_reckoning_is_preferred() -> None:
    error = "RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise "
    error += "--mem-fraction-static above 0.512 (minimum viable = 1 - available/pre = 0.4912)."
    text = "[2026-11-29 17:25:56] Load weight begin. avail mem=25.02 GB\n"
    text += "[2026-11-29 17:25:56] Load weight end. elapsed=0.13 s, avail mem=9.74 GB, mem usage=15.28 GB.\n"
    found = diagnose("mem_fraction_static=0.3\n" + text + TRACE.format(rank=0, error=error), SCHEMA)
    assert found.remedy.startswith("raise 'mem_fraction_static' above 0.512, or spread")


def test_progress_bars_are_lines_of_their_own() -> None:
    text = "[2026-11-29 17:25:56] Load weight begin. avail mem=9 GB\nLoading: 1 %\rLoading: 2 %\r\n"
    found = diagnose(text, SCHEMA)
    assert found.stage == "loading weights"
    assert found.evidence[-2:] == ("Loading: 1 %", "Loading: 2 %")


@pytest.mark.parametrize("text", ["", "\n\r\n", "\0", "Traceback (most recent call last):", "ValueError: alone"])
def test_any_text_is_read(text: str) -> None:
    assert diagnose(text, {}).cause == ""


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_the_graph_remedy_has_the_name_of_the_release(version: str) -> None:
    error = "Exception: Capture cuda graph failed: CUDA out of memory."
    advice = diagnose(TRACE.format(rank=0, error=error), schema_of(version)).remedy
    assert ("'cuda_graph_max_bs_decode'" in advice) is (version == "0.5.23")
