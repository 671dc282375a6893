# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child of the stand-in, in the place of SGLang's scheduler and its GPU; standin_server tells of the variables."""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import json
import os
import re
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

VERSION = os.environ.get("STANDIN_VERSION", "0.5.23")
RELEASE = tuple(map(int, re.findall(r"\d+", VERSION)[:3]))
FAULT, _, FAULT_VALUE = os.environ.get("STANDIN_FAULT", "").partition(":")
LONGEST_LIFE = 7200  # s
PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = (
    ("model_loader/loader.py", 812, "load_model", "self.load_weights_and_postprocess("),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 534.12 MiB is free. Including non-PyTorch memory, this process has 139.27 GiB memory in use.",
)
NO_CACHE = (
    ("model_executor/pool_configurator.py", 99, "__post_init__", "raise RuntimeError(msg)"),
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
)


def seconds(stage: str, default: float = 0) -> float:
    return float(os.environ.get(f"STANDIN_{stage}_SECONDS", default))


def log(text: str) -> None:
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")


class Scheduler:
    """The child: it loads, then answers line by line what the parent asks."""

    def __init__(self, link: socket.socket, args: dict[str, Any]) -> None:
        self.link, self.args = link, args
        self.requests = int(FAULT_VALUE) if FAULT == "caps" else args.get("max_running_requests") or 4096
        self.tokens = args.get("max_total_tokens") or 803502
        self.running: list[tuple[float, str]] = []  # when it ends, id
        self.generations = 0

    def run(self) -> NoReturn:
        try:
            signal.alarm(LONGEST_LIFE)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGTERM, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            # written over the arguments that a process list shows, as setproctitle does
            start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
            ctypes.memmove(start, b"sglang::scheduler".ljust(end - start, b"\0"), end - start)
            self.load()
            self.serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def load(self) -> None:
        new, asked = RELEASE > (0, 5, 20), self.args.get
        free, left = (25.02, 9.74) if FAULT == "no_memory" else (139.13, 123.85)
        group = "parallel" if new else "torch distributed"
        log(f"Init {group} begin.")
        time.sleep(seconds("INIT"))
        log(f"Init {group} ends. elapsed=0.26 s" + ("" if new else ", mem usage=0.09 GB"))
        log(f"Load weight begin. avail mem={free:.2f} GB")
        shards = int(os.environ.get("STANDIN_SHARDS", "4"))
        for shard in range(shards + 1):
            time.sleep(seconds("LOAD") / shards if shard else 0)
            unit = os.environ.get("TQDM_UNIT", "it")
            bar = f"{100 * shard // shards:3d}% Completed | {shard}/{shards} [00:00<00:00,  8.22{unit}/s]"
            sys.stderr.write(f"\rMulti-thread loading shards: {bar}" + "\n" * (shard == shards))
            sys.stderr.flush()
            while FAULT == "stops_loading" and shard == shards // 2:
                signal.pause()
            if FAULT == "dies_loading" and shard == shards // 2:
                sys.stderr.write("\n")
                self.fail(*OUT_OF_MEMORY)
        kind = f"type={architecture(self.args)}, avail mem={left:.2f} GB, mem usage={free - left:.2f} GB"
        log(f"Load weight end. elapsed={seconds('LOAD'):.2f} s, {kind}.")
        time.sleep(seconds("POOL"))
        if FAULT == "no_memory":
            self.fail(*NO_CACHE)
        dtype = "dtype: torch.bfloat16, " if new else ""
        log(f"KV Cache is allocated. {dtype}#tokens: {self.tokens}, K size: 55.17 GB, V size: 55.17 GB")
        log("Memory pool end. avail mem=12.81 GB")
        if not asked("disable_cuda_graph"):
            name = "target decode CUDA graph" if RELEASE > (0, 5, 12) else "cuda graph"
            log(f"Capture {name} begin. avail mem=12.72 GB")
            time.sleep(seconds("GRAPH"))
            log(f"Capture {name} end. elapsed={seconds('GRAPH'):.2f} s, mem usage=0.06 GB, avail mem=12.66 GB.")
        log(
            f"max_total_num_tokens={self.tokens}, chunked_prefill_size={asked('chunked_prefill_size') or 8192}, "
            f"max_prefill_tokens={asked('max_prefill_tokens') or 16384}, max_running_requests={self.requests}, "
            f"context_len={asked('context_length') or 40960}, available_gpu_mem=12.66 GB"
        )

    def fail(self, place: tuple[str, int, str, str], error: str) -> NoReturn:
        begun = (
            "managers/scheduler.py",
            6362,
            "run_scheduler_process",
            "scheduler = Scheduler(server_args, port_args)",
        )
        packages = f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        frames = "".join(
            f'  File "{packages}/sglang/srt/{file}", line {line}, in {function}\n    {code}\n'
            for file, line, function, code in (begun, place)
        )
        log(f"Scheduler hit an exception: Traceback (most recent call last):\n{frames}{error}\n")
        os.kill(os.getppid(), signal.SIGQUIT)
        while True:
            signal.pause()

    def serve(self) -> None:
        self.answer("ready")
        rest = b""
        while True:
            wait = max(0.0, self.running[0][0] - time.monotonic()) if self.running else None
            if select.select([self.link], [], [], wait)[0]:
                received = self.link.recv(65536)
                if not received:
                    return
                *lines, rest = (rest + received).split(b"\n")
                for line in lines:
                    self.take(json.loads(line))
            while self.running and self.running[0][0] <= time.monotonic():
                self.answer(heapq.heappop(self.running)[1])
            while FAULT == "hangs_after" and self.generations >= int(FAULT_VALUE) and not self.running:
                signal.pause()

    def take(self, request: dict[str, Any]) -> None:
        name, size = request["id"], request.get("characters")
        if size is None:
            self.answer(name)
            return
        begun, busy = time.monotonic(), float(FAULT_VALUE) if FAULT == "slow_prefill" and size > 1000 else 0
        lines = 0
        while time.monotonic() <= begun + busy or not lines:
            if time.monotonic() >= begun + 2 * lines:
                lines += 1
                log(
                    f"Prefill batch, #new-seq: 1, #new-token: {size // 4 + 1}, #cached-token: 0, token usage: 0.00, "
                    f"#running-req: {len(self.running)}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
                    "input throughput (token/s): 0.48"
                )
        self.generations += not name.startswith("HEALTH_CHECK")
        heapq.heappush(self.running, (time.monotonic() + request["tokens"] * seconds("TOKEN", 0.001), name))

    def answer(self, name: str) -> None:
        memory = {"weight": 15.28, "kvcache": 110.34, "token_capacity": self.tokens, "graph": 0.06}
        state = {"effective_max_running_requests_per_dp": self.requests, "memory_usage": memory}
        self.link.sendall(json.dumps({"id": name, "state": state}).encode() + b"\n")


def architecture(args: dict[str, Any]) -> str:
    with contextlib.suppress(OSError):
        config = json.loads(Path(args["model_path"], "config.json").read_text(encoding="utf-8"))
        return str(config["architectures"][0])
    return "Qwen3ForCausalLM"
