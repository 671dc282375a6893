# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill a folder with the wheels that the lab's installation of SGLang takes from disk.

Usage: python3 wheels.py DEST_DIR

Two are packed from standins/. A build of torch without CUDA is copied when pip is configured with a local folder that
has one; without it the installation takes the index's own torch of the same version, which is larger and works too.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from paths import put

STANDINS = Path(__file__).resolve().parent / "standins"
# The oldest time that a zip archive can hold, so that equal sources give equal bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)
TORCH = "2.13.0"
# Version and requirements of each stand-in. dill and jsonschema are imported by SGLang and come with a real
# installation only through packages that the lab leaves out. uv's cache goes by the version, so a changed source needs
# a new one, here and in the overrides of inventories/lab.
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "torchvision": ("0.28.0+labstub", ("dill", "jsonschema", "triton")),
    "triton": ("3.8.0+labstub1", ()),
}


def wheel_bytes(name: str, version: str, requires: tuple[str, ...], source: Path) -> bytes:
    """The wheel of the package folder below source, as bytes; equal input gives equal bytes."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: lab stand-in for {name}"]
    metadata += ["License: GPL-3.0-or-later", *(f"Requires-Dist: {item}" for item in requires)]
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in sorted((source / name).rglob("*.py"))}
    files[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: gpuops-lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(record) + f"{info}/RECORD,,\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def copy_local_torch(dest: Path) -> str:
    """Copy a local wheel of torch into dest if pip offers one; return why there is none, else nothing."""
    if any(dest.glob(f"torch-{TORCH}*.whl")):
        return ""
    with tempfile.TemporaryDirectory(dir=dest, prefix=".torch-") as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-index", "--no-deps", "--no-cache-dir"]
        argv += ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
        argv += ["--platform", "manylinux_2_28_x86_64", "--platform", "linux_x86_64"]
        argv += ["--dest", folder, f"torch=={TORCH}"]
        pip = subprocess.run(argv, capture_output=True, text=True, check=False)
        for wheel in Path(folder).glob("torch-*.whl"):
            wheel.chmod(0o644)
            os.replace(wheel, dest / wheel.name)
            print(f"copied {wheel.name}")
            return ""
    return (pip.stderr.strip().splitlines() or ["pip found nothing"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, help="folder for the wheels; made if it is missing")
    dest: Path = parser.parse_args().dest
    dest.mkdir(parents=True, exist_ok=True)
    packed = False
    for name, (version, requires) in PACKAGES.items():
        path = dest / f"{name}-{version}-py3-none-any.whl"
        if put(path, wheel_bytes(name, version, requires, STANDINS / name)):
            print(f"packed {path.name}")
            packed = True
    reason = copy_local_torch(dest)
    if reason and packed:
        # said once, not at every start of the lab
        print(f"no local torch {TORCH} ({reason}): the installation takes the index's own, 2.3 GB with its libraries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
