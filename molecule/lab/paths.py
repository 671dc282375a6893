# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, addresses and folders of the lab: the only place that knows them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent

ROOT = Path(os.environ.get("GPUOPS_LAB_DIR", "/var/lib/gpuops-lab"))
IMAGES = ROOT / "images"  # root filesystems, kept by `down`
SHARE = ROOT / "share"  # wheels, models and the uv cache, seen as /srv/lab everywhere; kept by `down`
RUN = ROOT / "run"  # what the running machines wrote, removed by `down`
SSH = ROOT / "ssh"

BRIDGE = "gpuopsbr0"
HOST_ADDRESS = "10.98.0.1"
NODE_ADDRESS = "10.98.0.5"
RENTAL_ADDRESS = "10.98.0.40"
NETMASK = "24"
PROXY_PORT = 3128

NODE = "gpuops-kpro5"
RENTAL = "gpuops-rental"


class LabError(Exception):
    """A condition that the operator must change; its text is the whole message."""


def run(*argv: str | Path, check: bool = True, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run an argv list and return it with its output; a failure names the command and its last words."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **kwargs,  # type: ignore[call-overload]
    )
    if check and done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise LabError(f"{' '.join(done.args[:6])} ... exited {done.returncode}: {' | '.join(words)}")
    return done
