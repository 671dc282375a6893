# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that goes on when who asked for it is gone."""

from __future__ import annotations

import os
from collections.abc import Callable

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

BEGUN = b"begun\n"


def in_background(work: Callable[[Callable[[], None]], None]) -> None:
    """Do `work` in a process that this one's end does not touch, and return when it calls what it is given.

    Raises Refused with its error where it ends before. What it needs is loaded before: a module's files go with it.
    """
    ready, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        os.waitpid(child, 0)
        with os.fdopen(ready, "rb") as said:
            line = said.readline()
        if line != BEGUN:
            why = line.decode(errors="replace").strip() or "it was ended"
            raise Refused(f"nothing was done: a process for it can not begin: {why}")
        return

    def begun() -> None:
        os.write(told, BEGUN)

    try:
        os.setsid()
        if not os.fork():
            for descriptor in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            work(begun)
    except BaseException as error:
        os.write(told, f"{error}\n".encode())
    finally:
        os._exit(0)
