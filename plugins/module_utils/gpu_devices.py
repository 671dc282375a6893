# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device nodes of GPUs, and whether a user can open them."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_child import told

PATTERNS = (
    "nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-nvswitch*",
    "nvidia-caps/*", "nvidia-caps-imex-channels/*", "kfd", "dri/renderD*",
)  # fmt: skip
# node -> names of its driver in /proc/devices; NVIDIA's has changed its own
DRIVERS = (
    (r"nvidia\d+", ("nvidia", "nvidia-frontend")),
    (r"nvidiactl", ("nvidiactl", "nvidia-frontend", "nvidia")),
    (r"nvidia-modeset", ("nvidia-modeset", "nvidia-frontend", "nvidia")),
    (r"nvidia-uvm(-tools)?", ("nvidia-uvm",)),
    (r"nvidia-nvswitch.*", ("nvidia-nvswitch",)),
    (r"nvidia-caps/.*", ("nvidia-caps",)),
    (r"nvidia-caps-imex-channels/.*", ("nvidia-caps-imex-channels",)),
    (r"kfd", ("kfd",)),
    (r"dri/renderD\d+", ("drm",)),
)
UNOPENED = re.compile(r"nvidia-nvswitch|nvidia-caps-imex")  # these belong to daemons of their own
WAIT = 60  # s
NOBODY = 65534  # how a container sees an owner of its node


def majors() -> dict[str, int]:
    """Return driver -> major number of the character devices that this kernel knows now."""
    try:
        text = (gpu.ROOT / "proc/devices").read_text()
    except OSError:
        return {}
    lines = text.partition("Block devices:")[0].splitlines()[1:]
    return {name: int(number) for number, name in (line.split(None, 1) for line in lines if line.strip())}


def devices(user: pwd.struct_passwd | None) -> tuple[list[dict[str, Any]], str | None]:
    """Return the facts of each node, and what kept this from trying to open them all.

    They are opened by `user`, else by whoever this is; without root only the mode can be judged for another user.
    """
    known, judged = majors(), user or pwd_entry(os.geteuid())
    places = sorted({path for pattern in PATTERNS for path in (gpu.ROOT / "dev").glob(pattern)})
    nodes = [node for node in (_node(path, known, judged) for path in places) if node]
    lines: list[dict[str, Any]] = []
    error = None
    if user is None or tried_by(user) == user.pw_name:
        paths = [one["path"] for one in nodes if one["type"] == "character" and not UNOPENED.search(one["path"])]
        lines, error = told(other(user), WAIT, "open", *map(_real, paths)) if paths else ([], None)
    tried = {line["path"]: line["result"] for line in lines}
    return [{**node, "open": tried.get(_real(node["path"]))} for node in nodes], error


def is_wrong(node: Mapping[str, Any]) -> bool:
    """Tell whether a node is no device, or not that of its driver."""
    return node["type"] != "character" or node["expected_major"] not in (None, node["major"])


def other(user: pwd.struct_passwd | None) -> str:
    """Return the name of `user` where a child process must and can become that one, else ''."""
    return user.pw_name if user and os.geteuid() == 0 != user.pw_uid else ""


def tried_by(user: pwd.struct_passwd | None) -> str:
    """Return the name of who tries devices and CUDA for `user`: that one, or who this is where it can not change."""
    own = pwd_entry(os.geteuid())
    return other(user) or (own.pw_name if own else str(os.geteuid()))


def pwd_entry(user: int | str) -> pwd.struct_passwd | None:
    """Return a user by number or name, or None where this host does not know it."""
    try:
        return pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        return None


def _node(path: Path, known: dict[str, int], user: pwd.struct_passwd | None) -> dict[str, Any] | None:
    name = str(path.relative_to(gpu.ROOT / "dev"))
    drivers = next((drivers for pattern, drivers in DRIVERS if re.fullmatch(pattern, name)), None)
    if drivers is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None  # it went meanwhile
    character = stat.S_ISCHR(status.st_mode)
    return {
        "path": f"/dev/{name}",
        "type": "character" if character else "directory" if stat.S_ISDIR(status.st_mode) else "file",
        "driver": drivers[0],
        "major": os.major(status.st_rdev) if character else None,
        "minor": os.minor(status.st_rdev) if character else None,
        "expected_major": next((known[driver] for driver in drivers if driver in known), None),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": _name(pwd.getpwuid, status.st_uid),
        "group": _name(grp.getgrgid, status.st_gid),
        "permitted": _permitted(status, user),
    }


def _permitted(status: os.stat_result, user: pwd.struct_passwd | None) -> bool | None:
    """Tell whether owner, group and mode let `user` read and write; lists of access rights are not looked at."""
    if user is None:
        return None
    if user.pw_uid == 0 and status.st_uid != NOBODY:
        return True
    if user.pw_uid == status.st_uid:
        shift = 6
    elif status.st_gid in os.getgrouplist(user.pw_name, user.pw_gid):
        shift = 3
    else:
        shift = 0
    return status.st_mode >> shift & 6 == 6


def _real(path: str) -> str:
    return str(gpu.ROOT / path.lstrip("/"))


def _name(look_up: Any, number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)
