# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands inside a Proxmox container through `pct exec`, and what the errors of pct, sudo and ssh mean."""

from __future__ import annotations

import posixpath
import re
import secrets
import shlex
from dataclasses import dataclass, field

PCT = "/usr/sbin/pct"

# Runs in the container as `sh -c INSIDE MARK ESCAPED`. The marks tell what the command said from what pct or ssh said.
# pct hands in the node's environment with a short PATH and SIGPIPE ignored. 255 is ssh's own exit code: it travels
# as 254 and a mark.
INSIDE = "; ".join((
    'echo "$0.started" >&2',
    "HOME=~root USER=root LOGNAME=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "export HOME USER LOGNAME PATH",
    "unset SUDO_COMMAND SUDO_USER SUDO_UID SUDO_GID",
    'cd "$HOME" 2>/dev/null || cd /',
    'run=; env --default-signal=PIPE true 2>/dev/null && run="env --default-signal=PIPE"',
    'text=$(printf %b. "$1")',
    '$run /bin/sh -c "${text%.}"; code=$?',
    "[ $code = 255 ] || exit $code",
    'echo "$0.255" >&2; exit 254',
))  # fmt: skip

# Run in the container; the number of bytes decides, because a full disk may end a copy without an error.
PUT = r"""if [ -d {path} ]; then echo "it is a directory" >&2; exit 1; fi
if cat >{part}; then got=$(($(wc -c <{part})))
if [ $got -ne {size} ]; then echo "$got of {size} bytes arrived" >&2; else mv -f {part} {path} && exit 0; fi; fi
rm -f {part}; exit 1"""
FETCH = r"""size=$(wc -c <{path}) && head -c $((size)) <{path} && echo "bytes sent: $((size))" >&2"""

# What was said before the command started -> cause and next step. The first match counts.
REFUSALS = (
    (r"(ipcc_send_rec|access control list).*Connection refused",
     "{container}: the cluster file system of {node} is down: see 'systemctl status pve-cluster' on {node}"),
    (r"ipcc_send_rec|please run as root|Unable to load access control list",
     "{container}: pct on {node} needs root and ran as {login}: set ansible_pct_node_become to sudo,"
     " or ansible_pct_node_user to root"),
    (r"sudo: (not found|command not found|No such file)",
     "{container}: {node} has no sudo: install it, or set ansible_pct_node_user to root"),
    (r"(?m)^sudo: (?!.*not found)|^Sorry, user|not in the sudoers file",
     "{container}: sudo on {node} does not let {login} run {pct} without a password:"
     " add '{login} ALL=(root) NOPASSWD: {pct}' to its sudoers"),
    (r"(?i){pct}: (.*not found|no such file)|no such file or directory: {pct}",
     "{container}: {node} has no {pct}: check that {host} is the Proxmox VE node, or set ansible_pct_executable"),
    (r"Configuration file '.*' does not exist",
     "there is no {container}: see 'pct list' on {node} and correct ansible_pct_vmid,"
     " or ansible_host if it moved to another node"),
    (r"container '\d+' not running|Failed to get init pid",
     "{container} is stopped: start it with 'pct start {vmid}' on {node}"),
    (r"got timeout|is locked",
     "{container} is locked: wait for the task that holds it, or see 'pct config {vmid}' on {node} ({said})"),
    (r"Parameter verification failed", "{container}: pct does not accept the number {vmid}: correct ansible_pct_vmid"),
    (r"Failed to exec", "{container} has no /bin/sh that runs: try 'pct enter {vmid}' on {node} ({said})"),
)  # fmt: skip


def exec_argv(vmid: int, argv: list[str], executable: str = PCT) -> list[str]:
    """The argv that runs `argv` in the container; without `--` pct takes options of `argv` for its own."""
    return [executable, "exec", str(vmid), "--", *argv]


def put_script(path: str, size: int) -> str:
    """A script that makes `path` of its stdin, whole or not at all; `size` in bytes."""
    part = posixpath.join(posixpath.dirname(_anchored(path)), f".gpuops-{secrets.token_hex(8)}")
    return PUT.format(path=shlex.quote(_anchored(path)), part=shlex.quote(part), size=size)


def fetch_script(path: str) -> str:
    """A script that writes `path` to stdout and its size to stderr, see `sent_size`."""
    return FETCH.format(path=shlex.quote(_anchored(path)))


def sent_size(stderr: bytes) -> int:
    """How many bytes `fetch_script` sent, -1 if it did not say."""
    said = re.search(rb"^bytes sent: (\d+)", stderr, re.MULTILINE)
    return int(said.group(1)) if said else -1


def last_line(text: bytes) -> str:
    """The last line that says something; ssh's own debug lines do not."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("debug")), "no output")


def _escape(command: str) -> str:
    """`command` in ASCII, for `printf %b`: pct decodes arguments by the node's locale, which spoils anything else."""
    raw = command.encode(errors="surrogateescape").replace(b"\\", b"\\\\")
    return re.sub(rb"[\x80-\xff]", lambda byte: b"\\0%03o" % byte.group()[0], raw).decode("ascii")


def _anchored(path: str) -> str:
    return path if path.startswith("/") else f"./{path}"


@dataclass(frozen=True)
class Target:
    """A container and the way to it."""

    vmid: int
    node: str  # its name in messages
    host: str  # its address
    login: str = ""  # empty: the ssh client chooses
    sudo: bool = False
    executable: str = PCT


@dataclass(frozen=True)
class Call:
    """One command in a container: the line that a node's shell gets, and the reading of what comes back."""

    target: Target
    mark: str = field(default_factory=lambda: f"pct-{secrets.token_hex(8)}")

    def remote_command(self, command: str) -> str:
        """The command line for the login shell of the node that gives `command` to /bin/sh in the container."""
        argv = exec_argv(
            self.target.vmid, ["/bin/sh", "-c", INSIDE, self.mark, _escape(command)], self.target.executable
        )
        if self.target.sudo:
            argv = ["sudo", "-n", "--", *argv]
        return f"echo {self.mark}.node >&2; exec {shlex.join(argv)}"

    def failure(self, code: int, stdout: bytes, stderr: bytes) -> str:
        """Why the command did not start or its result was lost, in one sentence; empty if its result is here."""
        to = self.target
        container = f"container {to.vmid} on {to.node}"
        if self._after("started", stdout, stderr):
            if 0 <= code < 255:
                return ""
            return (f"{container}: the connection to {to.node} broke while a command ran, which may go on there:"
                    f" check the network and {to.node}, then run again ({last_line(stderr)})")  # fmt: skip
        reached = self._after("node", stdout, stderr)
        if not reached:
            address = f"{to.login}@{to.host}" if to.login else to.host
            return (f"{container} is out of reach, because ssh to {to.node} ({to.host}) failed:"
                    f" {last_line(stderr)}; check ansible_host, the key and 'ssh {address}'")  # fmt: skip
        text = b"".join(reached).decode(errors="replace")
        facts = {"container": container, "vmid": to.vmid, "node": to.node, "host": to.host, "pct": to.executable,
                 "login": to.login or "the login user", "said": last_line(text.encode())}  # fmt: skip
        for pattern, sentence in REFUSALS:
            if re.search(pattern.replace("{pct}", re.escape(to.executable)), text):
                return sentence.format(**facts)
        return (f"{container}: pct exec ended with code {code} before the command started: {facts['said']};"
                f" try 'pct exec {to.vmid} -- true' on {to.node}")  # fmt: skip

    def result(self, code: int, stdout: bytes, stderr: bytes) -> tuple[int, bytes, bytes]:
        """The command's own exit code, stdout and stderr, for a call that has no `failure`."""
        after = self._after("started", stdout, stderr)
        stdout, stderr = after or (stdout, stderr)
        if code == 254:
            end = re.compile(re.escape(f"{self.mark}.255").encode() + rb"\r*\n")
            stderr, in_stderr = end.subn(b"", stderr, count=1)
            stdout, in_stdout = (stdout, 0) if in_stderr else end.subn(b"", stdout, count=1)
            code = 255 if in_stderr or in_stdout else 254
        return code, stdout, stderr

    def _after(self, stage: str, stdout: bytes, stderr: bytes) -> tuple[bytes, bytes] | None:
        """Both outputs from the mark of `stage` on, None without one. A terminal merges stderr into stdout as CR LF."""
        line = re.compile(re.escape(f"{self.mark}.{stage}").encode() + rb"\r*\n")
        found = line.search(stderr)
        if found:
            return stdout, stderr[found.end() :]
        found = line.search(stdout)
        return (stdout[found.end() :], stderr) if found else None
