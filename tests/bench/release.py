#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the installation of a release costs, as a multiple of `uv pip install` of the same packages.

    bin/bench release [ROUNDS]

Packages of the number, files and bytes of a small SGLang come from an index on loopback, so that no network counts. The
server that is loaded at the end is empty: what loading SGLang takes comes on top, and the first start is the shorter by
it. Both ways run in turn with a cold and with a warm cache, and a second container with the cache of the first.
"""

from __future__ import annotations

import inspect
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit"), str(TESTS.parent / ".dev")]
from ansible_collections.gpuops.sglang.plugins.module_utils import release, release_uv, schema_probe  # noqa: E402
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import CLEAN, Steps  # noqa: E402
from release_index import serving, sglang, wheel  # noqa: E402

UV = "0.13.9"
PYTHON = str(Path(sys.executable).resolve())
PACKAGES, FILES, SIZE = 120, 200, 6000  # files of a package, bytes of a file
LIBRARIES, LARGE = 12, 60 * 10**6  # bytes of one


def make(wheels: Path) -> None:
    names = [f"part{number}" for number in range(PACKAGES)]
    for number, name in enumerate(names):
        line = f"# {name} {random.getrandbits(256):x}\n"
        files = {f"m{place}.py": f"# {place}\n" + line * (SIZE // len(line)) for place in range(FILES)}
        if number < LIBRARIES:
            files["library.so"] = random.randbytes(LARGE // 2).hex()
        wheel(wheels, name, "1.0", files=files)
    wheel(wheels, "helper", "1.0")
    sglang(wheels, requires=["helper", *names])


class Bench:
    """A folder, an index and an installer."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder, self.count = folder, 0
        self.environment = {"UV_DEFAULT_INDEX": index}
        self.uv_home = TESTS.parent / ".cache/uv-bench" / UV
        self.uv_home.parent.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        self.uv = release_uv.get(Steps("uv", folder, own), PYTHON, self.uv_home, UV)

    def plain(self, cache: Path) -> float:
        """Return the s of uv alone."""
        venv = self.folder / "plain"
        environment = {**CLEAN, **self.environment, "UV_CACHE_DIR": str(cache)}
        begin = time.monotonic()
        subprocess.run([self.uv, "venv", "--quiet", "--python", PYTHON, venv], env=environment, check=True)
        install = [self.uv, "pip", "install", "--quiet", "--python", venv / "bin/python", "sglang==0.5.23"]
        subprocess.run(install, env=environment, check=True)
        took = time.monotonic() - begin
        shutil.rmtree(venv)
        return took

    def ours(self, cache: Path, root: str = "root") -> float:
        """Return the s of a release, which is removed."""
        self.count += 1
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        overrides = (f"unasked=={self.count}",)
        spec = release.ReleaseSpec("0.5.23", overrides, PYTHON, version, self.folder / root)
        (spec.root / "uv").mkdir(parents=True, exist_ok=True)
        if not (spec.root / "uv" / UV).exists():
            (spec.root / "uv" / UV).symlink_to(self.uv_home)
        begin = time.monotonic()
        release.install(spec, release.Means(UV, self.environment, inspect.getsource(schema_probe), cache))
        took = time.monotonic() - begin
        shutil.rmtree(spec.path)
        return took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[tuple[float, float]]] = {"cold cache": [], "warm cache": [], "second container": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "wheels")
        with serving(folder / "wheels") as index:
            bench = Bench(folder, index.url)
            for number in range(rounds):
                caches = {kind: folder / f"cache-{kind}" for kind in ("plain", "ours")}
                took = {}
                for kind in sorted(caches, reverse=bool(number % 2)):
                    way = getattr(bench, kind)
                    took[kind] = way(caches[kind]), way(caches[kind])
                for place, what in enumerate(("cold cache", "warm cache")):
                    found[what].append((took["ours"][place], took["plain"][place]))
                found["second container"].append((bench.ours(caches["ours"], "other"), took["ours"][0]))
                for cache in caches.values():
                    shutil.rmtree(cache)
                told = ", ".join(
                    f"{what} {pairs[-1][0]:.1f} s to {pairs[-1][1]:.1f} s" for what, pairs in found.items()
                )
                print(f"round {number + 1}: {told}", flush=True)
    for what, pairs in found.items():
        ratios = [one / other for one, other in pairs]
        print(f"{what}: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
