#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a model comes, as a multiple of curl's rate for the same files.

    bin/bench model [ROUNDS [MB_PER_SECOND [FOLDER]]]

The hub is on loopback, behind a line of 110 MB/s or what is said (0 for no limit). curl brings eight files at a time
and has them on the disk in the end, as a model has; it verifies nothing. Both ways run in turn.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

TESTS = Path(__file__).parents[1]
PROJECT = TESTS.parent
sys.path[:0] = [str(TESTS), str(PROJECT / ".dev")]
from ansible_collections.gpuops.sglang.plugins.module_utils import hub_client, model_store  # noqa: E402
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub  # noqa: E402
from hub_server import HubServer, blob, safetensors  # noqa: E402

SHARDS, SHARD = 8, 2**28  # bytes
REPO = "owner/model"


def model() -> dict[str, bytes]:
    names = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    return {**files, **{name: safetensors({f"w{number}": os.urandom(SHARD)}) for number, name in enumerate(names)}}


def serve(server: HubServer) -> None:
    with server.running():
        multiprocessing.Event().wait()


def ours(folder: Path, hub: Hub, _urls: list[str]) -> None:
    place = model_store.Place(folder / "store", folder / "records", hub)
    model_store.ensure(model_store.Model("m", REPO), place, False, True, lambda _line: None)


def curl(folder: Path, _hub: Hub, urls: list[str]) -> None:
    words = ["curl", "--no-progress-meter", "--fail", "--location", "--parallel", "--parallel-max", "8"]
    subprocess.run([*words, "--remote-name-all", "--output-dir", folder, *urls], check=True)
    subprocess.run(["sync", *folder.iterdir()], check=True)


def main() -> None:
    rounds, rate = (int(sys.argv[place]) if len(sys.argv) > place else default for place, default in ((1, 5), (2, 110)))
    files, server = model(), HubServer()
    server.rate = rate * 1e6
    commit = server.commit(REPO, files)
    for content in files.values():
        blob(content)  # known before the hub is asked
    process = multiprocessing.get_context("fork").Process(target=serve, args=(server,), daemon=True)
    process.start()
    urls = [f"{server.address}/{REPO}/resolve/{commit}/{name}" for name in files]
    version = yaml.safe_load((PROJECT / "roles/sglang_model/defaults/main.yml").read_text())
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
    }
    hub = Hub(
        server.address, version["sglang_model_client_version"], inspect.getsource(hub_client),
        PROJECT / ".cache/hub-client", sys.executable, environment=variables,
    )  # fmt: skip
    hub.install()
    ratios, ways = [], [ours, curl]
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as name:
        for number in range(1, rounds + 1):
            took = {}
            for way in ways:
                folder = Path(name, way.__name__)
                folder.mkdir()
                begin = time.monotonic()
                way(folder, hub, urls)
                took[way] = time.monotonic() - begin
                shutil.rmtree(folder)
            ways.reverse()
            ratios.append(took[curl] / took[ours])
            told = ", ".join(f"{way.__name__} {SHARDS * SHARD / took[way] / 1e6:.0f} MB/s" for way in (ours, curl))
            print(f"round {number}: {told}, ratio {ratios[-1]:.2f}", flush=True)
    process.kill()
    print(f"rate to curl's: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
