# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether somebody else than a process's own user could have put something where that process looks for it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import lru_cache
from pathlib import Path


def changeable(path: Path, uid: int) -> Path | None:
    """Return what on the way to an absolute path others than root and the user can change; None if there is nothing.

    OSError: it is not there, or root may not see it. The kernel lets no path have more than 40 links.
    """
    for step in (*reversed(path.parents), path):
        about = os.lstat(step)
        if about.st_uid not in (0, uid):
            return step
        if stat.S_ISLNK(about.st_mode):
            found = changeable(Path(os.path.realpath(step.parent), os.readlink(step)), uid)
            if found:
                return found
        # in a folder like /tmp nobody can replace what is another's
        elif _open_to_others(step, about, uid) and (step == path or not about.st_mode & stat.S_ISVTX):
            return step
    return None


def _open_to_others(path: Path, about: os.stat_result, uid: int) -> bool:
    if about.st_mode & stat.S_IWOTH:
        return True
    if not about.st_mode & stat.S_IWGRP:
        return False
    try:
        os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return not _of_user_alone(about.st_gid, uid)
    return True


@lru_cache
def _of_user_alone(gid: int, uid: int) -> bool:
    """Tell whether no other user than root and this one is in a group, as far as this host lists its users."""
    if gid == 0:
        return True
    try:
        names = {"root", pwd.getpwuid(uid).pw_name}
        members = {*grp.getgrgid(gid).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    except KeyError:
        return False
    return members <= names
