# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the command `cksum` says of a file: POSIX's CRC and the size in bytes.

Every system has cksum, and it costs a twentieth of sha256sum. It is to find a copy that went wrong; who could change a
copy on purpose is kept out by ssh.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

# POSIX takes the bits of a byte from the highest, zlib from the lowest.
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def cksum(chunks: Iterable[bytes]) -> str:
    """`CRC SIZE` in decimal, as cksum prints it for its standard input."""
    size, crc = 0, 0xFFFFFFFF  # zlib inverts the value that it starts from, POSIX starts from 0
    for chunk in chunks:
        size += len(chunk)
        crc = zlib.crc32(chunk.translate(REVERSED), crc)
    # POSIX adds the size, lowest byte first, in as few bytes as hold it
    ending = size.to_bytes((size.bit_length() + 7) // 8, "little")
    crc = zlib.crc32(ending.translate(REVERSED), crc)
    return f"{int(f'{crc:032b}'[::-1], 2)} {size}"


def cksum_of(path: str) -> str:
    """The same of a file, which is read in pieces of 1 MiB."""
    with open(path, "rb") as file:
        return cksum(iter(lambda: file.read(1 << 20), b""))
