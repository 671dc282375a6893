# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source of a child process that tries devices, CUDA and nvidia-smi; a driver can hang or crash whoever asks it.

Runs as `python -I - USER open PATH...`, `python -I - USER cuda [keep]` or `python -I - USER run ARGV...`, with this
file on its stdin; USER is empty for who it already is. The first two print JSON in lines, each as soon as it is known.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pwd
import sys

LIBRARY = "libcuda.so.1"
# PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER
SET_DUMPABLE, NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 4, 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of BPF
NUMBER, ARCHITECTURE = 0, 4  # where in what the filter is given
# machine -> its number in the kernel's audit, the system calls that make, move or change the rights of files or load
# modules (mkdir, rename, mknod, chmod, chown, init_module and their kin), and those that remove files
CALLS = {
    "x86_64": (
        0xC000003E, (82, 83, 90, 91, 92, 93, 94, 133, 175, 258, 259, 260, 264, 268, 313, 316, 452), (84, 87, 263),
    ),
    "aarch64": (0xC00000B7, (33, 34, 38, 52, 53, 54, 55, 105, 273, 276, 452), (35,)),
}  # fmt: skip


class Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


def become(name: str) -> None:
    """Become another user with that one's groups, without needing an interpreter that this one may run."""
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else it may not look into its own /proc/self


def harmless(remove: bool) -> None:
    """Give up what NVIDIA's programs and libraries load modules and make or mend device nodes with, when root's.

    They do so by themselves and through nvidia-modprobe. Without it nothing is changed by looking, and what is told
    holds for a service that may not do it either. `remove` keeps the right to remove files.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    architecture, changes, removals = CALLS.get(os.uname().machine, (0, (), ()))
    calls = changes if remove else changes + removals
    refusals = [(IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    lines = [
        (LOAD, 0, 0, ARCHITECTURE), (IF_EQUAL, 0, len(calls) + 1, architecture), (LOAD, 0, 0, NUMBER), *refusals,
        (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE),
    ]  # fmt: skip
    instructions = (Instruction * len(lines))(*(Instruction(*line) for line in lines))
    libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(Program(len(lines), instructions)), 0, 0)


def say(**facts: object) -> None:
    """Print facts as one line."""
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


def try_open(path: str) -> None:
    """Say whether `path` can be opened for reading and writing (a capability of NVIDIA's driver: for reading)."""
    mode = os.O_RDONLY if "/nvidia-caps/" in path else os.O_RDWR
    try:
        os.close(os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK))
        say(path=path, result="opens")
    except OSError as error:
        say(path=path, result=errno.errorcode.get(error.errno or 0, str(error.errno)))


def try_cuda() -> None:
    """Say what cuInit returns; it makes no context, so it takes no GPU memory."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        say(error=str(error))
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        say(library=next((line.split()[-1] for line in maps if "/libcuda.so" in line), None))
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        say(version=f"{number.value // 1000}.{number.value % 1000 // 10}")
    result = library.cuInit(0)
    name = ctypes.c_char_p()
    if library.cuGetErrorName(result, ctypes.byref(name)) == 0 and name.value:
        say(name=name.value.decode(errors="replace"))
    say(result=result)
    if result == 0 and library.cuDeviceGetCount(ctypes.byref(number)) == 0:
        say(count=number.value)


if __name__ == "__main__":
    if sys.argv[1]:
        become(sys.argv[1])
    # cuInit removes a temporary file of its own
    harmless(remove=sys.argv[2:] == ["cuda"])
    if sys.argv[2] == "cuda":
        try_cuda()
    elif sys.argv[2] == "open":
        for argument in sys.argv[3:]:
            try_open(argument)
    else:
        os.execvp(sys.argv[3], sys.argv[3:])
