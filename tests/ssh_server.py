# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real ssh server on loopback, with keys of its own, whose answers can be slowed down, cut and counted."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
# what is done in place of the command that a client asks for: that command, through a line of a given pace
THROUGH = """
import json, os, subprocess, sys, time
line, sent = sys.argv[1:]
command = os.environ["SSH_ORIGINAL_COMMAND"]
asked = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)
count = 0
while chunk := os.read(asked.stdout.fileno(), 65536):
    os.write(1, chunk)
    count += len(chunk)
    with open(sent, "a") as file:
        print(len(chunk), file=file)
    now = json.load(open(line))
    if 0 <= now["cut"] < count:
        asked.kill()
        sys.exit(255)
    time.sleep(now["pace"])
sys.exit(asked.wait())
"""


def new_key(path: Path) -> str:
    """Make a pair of keys, and return the private one."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.read_text()


class SshServer:
    """A server in the folder `home`, for the user that runs this."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.key = new_key(home / "user")
        new_key(home / "host")
        shutil.copy(home / "user.pub", home / "authorized_keys")
        (home / "through.py").write_text(THROUGH)
        self.line()
        self.user = pwd.getpwuid(os.geteuid()).pw_name

    def _start(self) -> bool:
        """Start on a free port, and return whether nobody else has taken it meanwhile."""
        home = self.home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        through = f"{sys.executable} {home}/through.py {home}/line.json {home}/sent"
        settings = [
            f"ListenAddress 127.0.0.1:{self.port}", f"HostKey {home}/host", "PidFile none",
            # without PAM an account is locked by the '!' that root has for a password on many hosts
            f"UsePAM {'no' if os.geteuid() else 'yes'}",
            f"AuthorizedKeysFile {home}/authorized_keys", "StrictModes no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin yes", f"ForceCommand {through}",
        ]  # fmt: skip
        (home / "sshd_config").write_text("\n".join(settings))
        log = home / "log"
        with log.open("w") as errors:
            self.process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", f"{home}/sshd_config"], stderr=errors)
        end = time.monotonic() + 30
        while "Server listening" not in log.read_text():
            if self.process.poll() is not None and "Address already in use" in log.read_text():
                return False
            assert self.process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        return True

    @property
    def known_hosts(self) -> str:
        """The line by which a client knows it."""
        return f"[127.0.0.1]:{self.port} {(self.home / 'host.pub').read_text()}"

    def line(self, pace: float = 0, cut: int = -1) -> None:
        """Let each 64 KiB take `pace` s, and end a connection after `cut` bytes."""
        (self.home / "line.next").write_text(json.dumps({"pace": pace, "cut": cut}))
        (self.home / "line.next").rename(self.home / "line.json")

    def sent(self) -> int:
        """Return how many bytes came from here since the last call."""
        file = self.home / "sent"
        count = sum(map(int, file.read_text().split())) if file.exists() else 0
        file.unlink(missing_ok=True)
        return count

    @contextmanager
    def running(self) -> Iterator[SshServer]:
        """Answer until the end of the block, or until stop()."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd gives up its rights
        try:
            while not self._start():
                pass
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """End the server; what is connected goes on."""
        self.process.terminate()
        self.process.wait()
