# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands inside a Proxmox container, entered from its node, and what the errors of pct, sudo and ssh mean."""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass, field

from ansible_collections.gpuops.sglang.plugins.module_utils.pct_programs import END, ENTER, INSIDE, escaped

PCT = "/usr/sbin/pct"
PERL = "/usr/bin/perl"
LONGEST = 131071  # bytes in one argument of a program on Linux (MAX_ARG_STRLEN), such as a shell's command line

# What was said before the command started -> cause and next step. The first match counts.
REFUSALS = (
    (r"(ipcc_send_rec|access control list).*Connection refused|no cluster file system",
     "{container}: the cluster file system of {node} is down: see 'systemctl status pve-cluster' on {node}"),
    (r"ipcc_send_rec|please run as root|Unable to load access control list",
     "{container}: entering it needs root on {node} and the login is {login}: set ansible_pct_node_become to sudo,"
     " or ansible_pct_node_user to root"),
    (r"sudo: (not found|command not found|No such file)",
     "{container}: {node} has no sudo: install it, or set ansible_pct_node_user to root"),
    (r"(?m)^sudo: (?!.*not found|unable to resolve host)|^Sorry, user|not in the sudoers file",
     "{container}: sudo on {node} does not let {login} run {program} without a password:"
     " add '{login} ALL=(root) NOPASSWD: {program}' to its sudoers{narrower}"),
    (r"no /etc/pve|lxc-attach: No such file|{perl}: (.*not found|No such file)|no such file or directory: {perl}",
     "{container}: {node} is no Proxmox VE node ({said}): check that {host} is the node of the container"),
    (r"(?i){pct}: (.*not found|no such file)|no such file or directory: {pct}",
     "{container}: {node} has no {pct}: check that {host} is the Proxmox VE node, or set ansible_pct_executable"),
    (r"moved to (?P<there>\S+)",
     "{container} is not there any more, it is on {there}: set ansible_host to the address of {there}"),
    (r"Configuration file '.*' does not exist",
     "there is no {container}: see 'pct list' on {node} and correct ansible_pct_vmid,"
     " or ansible_host if it moved to another node"),
    (r"container '\d+' not running|container is STOPPED|Failed to get init pid",
     "{container} is stopped: start it with 'pct start {vmid}' on {node}"),
    (r"container is (?P<state>FR\w+)",
     "{container} is suspended: wait for the backup that did it, or go on with 'pct resume {vmid}' on {node}"),
    (r"container is (?P<state>[A-Z]+)",
     "{container} is {state}: wait until 'pct status {vmid}' on {node} says running"),
    (r"is locked \((?P<lock>.+?)\)",
     "{container} is locked ({lock}): wait for the task that holds it (see the task log of {node}),"
     " or set ansible_pct_locked to enter"),
    (r"got timeout",
     "{container}: another task on {node} holds its configuration: wait for it, then run again ({said})"),
    (r"Parameter verification failed", "{container}: pct does not accept the number {vmid}: correct ansible_pct_vmid"),
    (r"Failed to exec", "{container} has no /bin/sh that runs: try 'pct enter {vmid}' on {node} ({said})"),
    (r"Argument list too long",
     "{container}: the command is too long for {node}: send it as a module or a script"),
)  # fmt: skip


def end_of(text: bytes, count: int = 1) -> str:
    """The last lines that say something, as one line; ssh's own debug lines do not."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return "; ".join([line for line in lines if line and not line.startswith("debug")][-count:]) or "no output"


def no_python(target: Target, command: str, code: int, stderr: bytes) -> str:
    """That a module found no Python in the container, in one sentence; empty if that is not what happened."""
    found = re.search(rb"(?m)(?:^|[ :])([^\s:]*python[0-9.]*): (?:.*not found|No such file)", stderr)
    program = found.group(1).decode(errors="replace") if found else ""
    if code != 127 or not program or program not in command:
        return ""
    return (f"container {target.vmid} on {target.node} has no {program}: install Python there with"
            " 'ansible-playbook gpuops.sglang.bootstrap', or correct ansible_python_interpreter")  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A container and the way to it."""

    vmid: int
    node: str  # its name in messages
    host: str  # its address
    login: str = ""  # empty: the ssh client chooses
    sudo: bool = False
    executable: str = PCT
    entry: str = "quick"  # or strict: lxc-attach with pct's own checks made here, or pct exec itself
    locked: str = "refuse"  # or enter


@dataclass(frozen=True)
class Call:
    """One command in a container: what a node is given to run, and the reading of what comes back."""

    target: Target
    mark: str = field(default_factory=lambda: f"pct-{secrets.token_hex(8)}")

    def node_argv(self, command: str) -> list[str]:
        """The argv on the node that gives `command` to /bin/sh in the container."""
        to = self.target
        sudo = ["sudo", "-n", "--"] if to.sudo else []
        enter = [
            PERL,
            "-e",
            ENTER,
            self.mark,
            str(to.vmid),
            to.entry,
            to.locked,
            INSIDE[to.entry],
            escaped(command),
            END,
        ]
        if to.entry == "quick":
            return [*sudo, *enter, "lxc-attach", "-n", str(to.vmid), "--clear-env", "--"]
        return [*enter, *sudo, to.executable, "exec", str(to.vmid), "--"]

    def remote_command(self, command: str) -> str:
        """The command line for the login shell of the node; ValueError if Linux takes none of that length."""
        line = f"echo {self.mark}.node >&2; exec {shlex.join(self.node_argv(command))}"
        if len(line) > LONGEST:
            raise ValueError(
                f"container {self.target.vmid} on {self.target.node}: a command of {len(command)} characters makes a"
                f" line of {len(line)} bytes, and the longest is {LONGEST}: send it as a module or a script"
            )
        return line

    def failure(self, code: int, stdout: bytes, stderr: bytes, reached: bool = False) -> str:
        """Why the command did not start or its result was lost, in one sentence; empty if its result is here.

        `reached`: the node is this machine, so there is no ssh that could have failed.
        """
        to = self.target
        container = f"container {to.vmid} on {to.node}"
        if self._after("started", stdout, stderr):
            if 0 <= code < 255:
                return ""
            return (f"{container}: the connection to {to.node} broke while a command ran, which {to.node} then ends:"
                    f" check the network and {to.node}, then run again ({end_of(stderr)})")  # fmt: skip
        said = (stdout, stderr) if reached else self._after("node", stdout, stderr)
        if not said:
            address = f"{to.login}@{to.host}" if to.login else to.host
            return (f"{container} is out of reach, because ssh to {to.node} ({to.host}) failed:"
                    f" {end_of(stderr)}; check ansible_host, the key and 'ssh {address}'")  # fmt: skip
        text = b"".join(said).decode(errors="replace")
        strict = to.entry == "strict"
        facts = {"container": container, "vmid": to.vmid, "node": to.node, "host": to.host, "pct": to.executable,
                 "login": to.login or "the login user", "said": end_of(text.encode()),
                 "program": to.executable if strict else PERL,
                 "narrower": "" if strict else f", or only {to.executable} and set ansible_pct_entry to strict",
                 }  # fmt: skip
        programs = {"{pct}": re.escape(to.executable), "{perl}": re.escape(PERL)}
        for pattern, sentence in REFUSALS:
            for name, path in programs.items():
                pattern = pattern.replace(name, path)
            found = re.search(pattern, text)
            if found:
                return sentence.format(**facts, **found.groupdict())
        return (f"{container}: entering it ended with code {code} before the command started: {facts['said']};"
                f" try 'pct exec {to.vmid} -- true' on {to.node}")  # fmt: skip

    def dropped(self, code: int, stdout: bytes, stderr: bytes) -> bool:
        """Whether sshd closed the connection before a login, as it does with some when more than MaxStartups come."""
        return code == 255 and b"_exchange_identification: " in stderr and not self._after("node", stdout, stderr)

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
