# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the stand-in in the place of `python -m sglang.launch_server ...` and of nothing else.

Python runs this file at start when its folder is in PYTHONPATH, before it looks for the module of `-m`; what else the
interpreter is used for, e.g. SGLang's own parser in a preflight, stays what it is, and is as quick as the lab makes it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path

# sys.argv is not complete yet
if sys.orig_argv[1:3] == ["-m", "sglang.launch_server"]:
    # lines NAME=VALUE in the server's home: a test changes what the next start alone does, and not the unit
    with contextlib.suppress(FileNotFoundError):
        os.environ.update(line.split("=", 1) for line in Path("standin-next").read_text().splitlines())
        Path("standin-next").unlink()

    import standin_server

    standin_server.run(sys.orig_argv[3:])
else:
    with contextlib.suppress(FileNotFoundError):
        runpy.run_path(str(Path(__file__).parents[2] / "speed/sitecustomize.py"))
