# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, addresses and folders of the lab; inventories and tests repeat the addresses, as an operator's would."""

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
NETWORK = "10.98.0"  # the first three numbers of every address; a container's last one is its id
NETMASK = "24"
HOST_ADDRESS = f"{NETWORK}.1"
NODE_ADDRESS = f"{NETWORK}.5"
RENTAL_ADDRESS = f"{NETWORK}.40"
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


def put(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Write data to path unless it is there already; True if it was written. A reader never sees half of it."""
    if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o7777 == mode:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.chmod(mode)
    partial.replace(path)
    return True
