#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the installation of a release costs, as a multiple of `uv pip install` of the same SGLang.

    bin/bench release [ROUNDS [VERSION]]

Packages come from where uv finds them on this machine (its variables count), 10 GB in each of two caches. Both ways run
in turn with a cold and with a warm cache, then a second container with the cache of the first. A release is proved by
loading its server, which by hand is the first start's to find out: so uv alone is told, and with a first loading.
"""

from __future__ import annotations

import inspect
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent / ".dev")]
from ansible_collections.gpuops.sglang.plugins.module_utils import release, release_uv, schema_probe  # noqa: E402
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, Steps  # noqa: E402

UV = "0.13.9"
PYTHON = str(Path(sys.executable).resolve())
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PROBE = inspect.getsource(schema_probe)


@dataclass
class Bench:
    """A folder, and a version of SGLang."""

    folder: Path
    version: str

    def __post_init__(self) -> None:
        self.count = 0
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
        own = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        self.uv_home = TESTS.parent / ".cache/uv-bench" / UV
        self.uv_home.parent.mkdir(parents=True, exist_ok=True)
        self.uv = release_uv.get(Steps("uv", self.folder, own), PYTHON, self.uv_home, UV)

    def plain(self, cache: Path) -> tuple[float, float]:
        """Return the s of uv alone, and with a first loading of the server."""
        venv = self.folder / "plain"
        environment = {**CLEAN, **self.environment, "UV_CACHE_DIR": str(cache)}
        begin = time.monotonic()
        subprocess.run([self.uv, "venv", "--quiet", "--python", PYTHON, venv], env=environment, check=True)
        install = [self.uv, "pip", "install", "--quiet", "--python", venv / "bin/python", f"sglang=={self.version}"]
        subprocess.run(install, env=environment, check=True)
        installed = time.monotonic() - begin
        load = [venv / "bin/python", "-I", "-"]
        subprocess.run(load, input=PROBE, text=True, env=CLEAN, check=True, capture_output=True)
        took = time.monotonic() - begin
        shutil.rmtree(venv)
        return installed, took

    def ours(self, cache: Path, root: str = "root") -> float:
        """Return the s of a release, which is removed."""
        self.count += 1
        overrides = (f"unasked=={self.count}",)
        spec = release.ReleaseSpec(self.version, overrides, PYTHON, PYTHON_VERSION, self.folder / root)
        (spec.root / "uv").mkdir(parents=True, exist_ok=True)
        if not (spec.root / "uv" / UV).exists():
            (spec.root / "uv" / UV).symlink_to(self.uv_home)
        begin = time.monotonic()
        release.install(spec, release.Means(UV, self.environment, PROBE, cache))
        took = time.monotonic() - begin
        shutil.rmtree(spec.path)
        os.sync()  # what is not written yet would be the next one's to write
        return took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), sys.argv[2] if len(sys.argv) > 2 else "0.5.23")
        caches = {kind: bench.folder / f"cache-{kind}" for kind in ("plain", "ours")}
        for number in range(rounds):
            plain, ours = {}, {}
            for kind in sorted(caches, reverse=bool(number % 2)):
                for state in ("cold", "warm"):
                    if kind == "plain":
                        plain[state] = bench.plain(caches[kind])
                        os.sync()
                    else:
                        ours[state] = bench.ours(caches[kind])
            second = bench.ours(caches["ours"], "other")
            for cache in caches.values():
                shutil.rmtree(cache)
            told = []
            for state, took in ours.items():
                alone, loaded = plain[state]
                ratios.setdefault(f"{state} cache, to uv alone", []).append(took / alone)
                ratios.setdefault(f"{state} cache, to uv and a first loading", []).append(took / loaded)
                told.append(f"{state} {took:.1f} s to {alone:.1f} s ({loaded:.1f} s with loading)")
            ratios.setdefault("second container, to the first", []).append(second / ours["cold"])
            print(f"round {number + 1}: {', '.join(told)}, second container {second:.1f} s", flush=True)
    for what, found in ratios.items():
        print(f"{what}: median {statistics.median(found):.2f}, {min(found):.2f} to {max(found):.2f}")


if __name__ == "__main__":
    main()
