# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: pct
author: gpuops contributors (@gpuops)
short_description: Run tasks in a Proxmox LXC container through its node
description:
  - Logs in at the Proxmox VE node with Ansible's own ssh connection plugin, with everything that one offers, and runs
    each command in the container. The container needs neither an SSH server nor an address.
  - All containers of a node share one SSH connection (C(ControlPersist)).
  - Everything runs as root of the container; C(become) gives another user.
  - Commands start in root's home directory, or in C(/) without one. Their environment is that of a fresh login of the
    container's root, and nothing of the node's. C(/bin/sh) runs them, whatever root's login shell is.
  - A command whose task is interrupted, times out or loses its connection is ended in the container, with all its
    descendants, first by SIGTERM, after 3 seconds by SIGKILL. What has become a daemon, as C(async) does, goes on, and
    so does what a command left in the background when it ended.
  - A login that the node drops at once, because more tasks log in at a time than its SSH server takes, is tried again
    for up to half a minute.
  - Files are written beside their place, compared by size and checksum and then renamed, so that a full disk is an
    error. A file that is overwritten keeps its mode and owner.
  - A container that is missing, moved to another node, stopped, suspended or locked makes the host unreachable, with
    one sentence that says so. This is asked for each command.
requirements:
  - On the node C(perl), which Proxmox VE brings, and a login shell that reads quotes as C(sh) does, so not C(csh).
  - In the container C(sh), C(env) and, for files, the common tools of C(coreutils) or C(busybox).
extends_documentation_fragment:
  - gpuops.sglang.ssh_options
options:
  host:
    description: Name or address of the node.
  remote_user:
    description:
      - Login at the node, as for any host, unless O(node_user) is set.
      - In the container it is root, whatever this says.
  ssh_args:
    description:
      - Arguments of the SSH client, to which O(ssh_common_args) and O(ssh_extra_args) are added.
      - Unlike Ansible's own this connection does not ask for compression, which would slow large files down threefold.
    default: -o ControlMaster=auto -o ControlPersist=60s
  use_tty:
    description:
      - Ask for a terminal when no data is sent to the command.
      - A terminal merges stderr into stdout and ends lines with CR LF, so it is off unless asked for.
    default: false
  vmid:
    description:
      - Number of the container.
      - Write it out for each container. Under C(delegate_to), templates here are rendered for the original host.
    type: int
    required: true
    vars:
      - name: ansible_pct_vmid
  entry:
    description:
      - How a command enters the container.
      - V(quick) makes the checks of C(pct exec) itself and then enters as C(pct exec) does, with C(lxc-attach). That
        costs some hundredths of a second.
      - V(strict) runs C(pct exec) once for each command. That costs about 1.3 seconds of CPU on the node each time.
    type: str
    choices: [quick, strict]
    default: quick
    vars:
      - name: ansible_pct_entry
  locked:
    description:
      - What to do when the container has a lock, because a backup, a migration or a snapshot of it runs.
      - V(refuse) is what C(pct set) and C(pct stop) do, V(enter) is what C(pct exec) does.
      - With O(entry=strict) and O(node_become=sudo) the lock is not known, and the container is entered.
    type: str
    choices: [refuse, enter]
    default: refuse
    vars:
      - name: ansible_pct_locked
  node:
    description: Name of the node in messages, by default its O(host).
    type: str
    vars:
      - name: ansible_pct_node
      - name: pct_node
  node_connection:
    description: How the node is reached. With V(local) Ansible runs on the node itself, and no SSH is used.
    type: str
    choices: [ssh, local]
    default: ssh
    vars:
      - name: ansible_pct_node_connection
  node_user:
    description: Login at the node, for an O(remote_user) that is meant for other hosts.
    type: str
    vars:
      - name: ansible_pct_node_user
  node_become:
    description:
      - How the login at the node becomes root. V(sudo) must not ask for a password.
      - With O(entry=quick) the rule is for C(/usr/bin/perl), with O(entry=strict) for O(pct_executable). Either gives
        root of the node to a login that wants it.
    type: str
    choices: [none, sudo]
    default: none
    vars:
      - name: ansible_pct_node_become
  pct_executable:
    description: Path of C(pct) on the node, for O(entry=strict).
    type: str
    default: /usr/sbin/pct
    vars:
      - name: ansible_pct_executable
notes:
  - With O(entry=strict) and O(node_become=sudo) a command in an unprivileged container can not open C(/dev/stdin),
    C(/dev/stdout) and C(/dev/stderr) by their names.
  - C(become_method=su) to a user without a login shell needs C(become_flags=-s /bin/sh).
  - The end of a command whose controller is killed needs C(setpriv) of util-linux on the controller; without it the
    command ends when its SSH connection does.
"""

EXAMPLES = r"""
# inventory: `-l kpro5` means the node and its containers, `-l ct129` one container
kpro5:
  hosts:
    pve-kpro5:
      ansible_host: 192.0.2.5
    ct129:
      ansible_pct_vmid: 129
    ct130:
      ansible_pct_vmid: 130
containers:
  hosts:
    ct129:
    ct130:
  vars:
    ansible_connection: gpuops.sglang.pct
    ansible_host: 192.0.2.5
    ansible_user: root
    pct_node: kpro5

# a node that root cannot log in to
containers_of_kpro6:
  vars:
    ansible_user: deploy
    ansible_pct_node_become: sudo # deploy ALL=(root) NOPASSWD: /usr/bin/perl

# Ansible on the node itself
ct131:
  ansible_connection: gpuops.sglang.pct
  ansible_pct_vmid: 131
  ansible_pct_node_connection: local
"""

import contextlib
import functools
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import stat
import subprocess
import threading
import time
from typing import Any

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection.ssh import Connection as SshConnection
from ansible_collections.gpuops.sglang.plugins.module_utils import pct
from ansible_collections.gpuops.sglang.plugins.module_utils.host import feed
from ansible_collections.gpuops.sglang.plugins.module_utils.pct_programs import fetch_script, put_script, sent

Result = tuple[int, bytes, bytes]  # exit code, stdout, stderr


class _Dropped(AnsibleConnectionFailure):
    """Nothing was run, and another try may succeed."""


class Connection(SshConnection):
    """Ansible's ssh to the node, with every command wrapped for the container."""

    transport = "gpuops.sglang.pct"
    has_pipelining = True

    _call: pct.Call
    _reply: Result
    _login: str | None = None
    _redirect: tuple[bytes, ...] = ()

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        # Ansible takes the home directory and the owner of its files from remote_user: the user in the container
        self._login = self.get_option("node_user") or self.get_option("remote_user")
        self.set_option("remote_user", "root")

    def _build_command(self, binary: str, subsystem: str, *other_args: bytes | str) -> list[bytes]:
        if self.get_option("node_connection") == "local":
            # the last word only satisfies ssh's plugin, which looks for ssh among the words before it waits for a
            # password prompt
            return [b"/bin/sh", b"-c", os.fsencode(other_args[-1]), os.fsencode(self.get_option("ssh_executable"))]
        self.set_option("remote_user", self._login)
        try:
            return super()._build_command(binary, subsystem, *other_args)
        finally:
            self.set_option("remote_user", "root")

    def reset(self) -> None:
        if self.get_option("node_connection") == "ssh":
            super().reset()

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> Result:
        host = self.get_option("host") or self._play_context.remote_addr
        self._call = pct.Call(
            pct.Target(
                vmid=self.get_option("vmid"),
                node=self.get_option("node") or host,
                host=host,
                login=self._login or "",
                sudo=self.get_option("node_become") == "sudo",
                executable=self.get_option("pct_executable"),
                entry=self.get_option("entry"),
                locked=self.get_option("locked"),
            )
        )
        try:
            line = self._call.remote_command(cmd)
        except ValueError as error:
            raise AnsibleError(str(error)) from error
        for pause in (1, 2, 4, 8, 8, 8, 0):
            try:
                super().exec_command(line, in_data, sudoable)
                code, stdout, stderr = self._reply
                break
            except _Dropped:
                if not pause:
                    raise
                time.sleep(random.uniform(0, pause))  # all at the same time would be dropped again
        if in_data or "AnsiballZ_" in cmd:  # a module
            no_python = pct.no_python(self._call.target, cmd, code, stderr)
            if no_python:
                raise AnsibleConnectionFailure(no_python)
        return code, stdout, stderr

    def _bare_run(self, cmd: list[bytes], in_data: bytes | None, sudoable: bool = True, checkrc: bool = True) -> Result:
        # ssh goes when this process does, and this one when its playbook's does, so that the node can end the command
        _end_with_playbook()
        # each try has a mark of its own, or the node's end of a lost one would be that of the next
        call = pct.Call(self._call.target)
        words = [word.replace(self._call.mark.encode(), call.mark.encode()) for word in cmd]
        others = _children()
        try:
            run = [*_leash(), *self._redirect, *words]
            code, stdout, stderr = super()._bare_run(run, in_data, sudoable, checkrc=False)
        except BaseException:  # such as the time-out of a task, whose loop goes on in this process
            for pid in _children() - others:
                os.kill(pid, signal.SIGTERM)
            raise
        failure = call.failure(code, stdout, stderr)
        if failure:
            if code == 6 and (cmd[0] == b"sshpass" or not stderr):  # it ends ssh's question without a word
                failure = call.failure(code, b"", b"the host key is not known: add it to known_hosts")
            # an authentication failure is not tried again, which could lock the account
            refused = b"Permission denied" in stderr or (cmd[0] == b"sshpass" and code == 5)
            if refused:
                raise AnsibleAuthenticationFailure(failure)
            raise (_Dropped if call.dropped(code, stdout, stderr) else AnsibleConnectionFailure)(failure)
        self._reply = call.result(code, stdout, stderr)
        # ssh's plugin shows the outputs, and would take codes of the command for those of sshpass and run it again
        return 0, stdout, stderr

    def _sshpass_cmd(self) -> list[bytes]:
        # ansible-core 2.21 puts this before the words of _bare_run, older versions into them
        sshpass = super()._sshpass_cmd()
        return [*_leash(), *sshpass] if sshpass else []

    def _send_initial_data(self, fh: Any, in_data: bytes, ssh_process: Any) -> None:
        # beside the reading of the output, or a command that answers while it reads would wait for ever
        pipe = os.fdopen(os.dup(fh.fileno()), "wb", buffering=0)
        threading.Thread(target=feed, args=(pipe, in_data), daemon=True).start()
        fh.close()

    def put_file(self, in_path: str, out_path: str) -> Result:
        if not os.path.exists(in_path):
            raise AnsibleFileNotFound(f"{in_path} does not exist on the controller")
        if os.path.isdir(in_path):
            raise AnsibleError(f"{in_path} on the controller is a directory: name a file")
        script = put_script(out_path, _cksum(in_path), os.stat(in_path).st_mode & 0o777)
        code, stdout, stderr = self._transfer("<", in_path, script)
        if code:
            raise AnsibleError(self._transfer_error(f"cannot write {out_path} in", pct.end_of(stderr, 2)))
        return code, stdout, stderr

    def fetch_file(self, in_path: str, out_path: str) -> Result:
        out_path = os.path.realpath(out_path)
        if os.path.exists(out_path) and not os.path.isfile(out_path):
            raise AnsibleError(f"cannot write {out_path} on the controller: it is no file")
        part = os.path.join(os.path.dirname(out_path), f".gpuops-{secrets.token_hex(8)}")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL, 0o600))
            code, stdout, stderr = self._transfer(">", part, fetch_script(in_path))
            mode, size, sum_ = sent(stderr)
            if code or size < 0:
                raise AnsibleError(self._transfer_error(f"cannot read {in_path} in", pct.end_of(stderr, 2)))
            got = os.path.getsize(part)
            if got != size:
                cause = f"check the free space of {out_path} ({pct.end_of(stderr, 2)})"
                if got > size:
                    cause = "something in the login's shell profile on the node writes to stdout: make it silent"
                lost = f"{got} of {size} bytes arrived: {cause}"
                raise AnsibleError(self._transfer_error(f"cannot fetch {in_path} from", lost))
            if _cksum(part) != sum_:
                raise AnsibleError(
                    self._transfer_error(f"cannot fetch {in_path} from", "other bytes arrived than were sent")
                )
            _take_place(part, out_path, mode)
        except OSError as error:
            raise AnsibleError(f"cannot write {out_path} on the controller: {error.strerror}") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)
        return code, stdout, stderr

    def _transfer(self, direction: str, path: str, script: str) -> Result:
        """Run `script` in the container with its stdin or stdout in a local file, never whole in memory."""
        self._redirect = (b"/bin/sh", b"-c", f'exec "$@" {direction}"$0"'.encode(), os.fsencode(path))
        try:
            return self.exec_command(script, sudoable=False)
        finally:
            self._redirect = ()

    def _transfer_error(self, what: str, why: str) -> str:
        return f"{what} container {self._call.target.vmid} on {self._call.target.node}: {why}"


def _cksum(path: str) -> str:
    """`CRC SIZE` of a file. It finds a copy that went wrong; who would forge one is kept out by ssh."""
    with open(path, "rb") as file:
        return subprocess.run(["cksum"], stdin=file, stdout=subprocess.PIPE, check=True).stdout.decode().strip()


@functools.cache
def _end_with_playbook() -> None:
    playbook = multiprocessing.parent_process()
    if playbook:
        threading.Thread(target=_end_with, args=(playbook,), daemon=True).start()


def _end_with(playbook: Any) -> None:
    # a worker that was started later also holds the pipe that join waits for, and may outlive the playbook
    while os.getppid() == playbook.pid:
        playbook.join(1)
    os._exit(1)


def _leash() -> list[bytes]:
    """Words before a command that end it with the process that starts it."""
    setpriv = shutil.which("setpriv")
    return [os.fsencode(setpriv), b"--pdeathsig", b"TERM", b"--"] if setpriv else []


def _children() -> set[int]:
    """The processes that this thread started and that were not waited for; none where Linux does not say."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return {int(pid) for pid in file.read().split()}
    return set()


def _take_place(part: str, path: str, mode: int) -> None:
    """Rename `part`; like sftp, keep the mode and owner of a file that is there, and give a new one `mode`."""
    if os.path.exists(path):
        there = os.stat(path)
        try:
            os.chown(part, there.st_uid, there.st_gid)
        except PermissionError:
            shutil.copyfile(part, path)  # another user's file that this one may write
            return
        os.chmod(part, stat.S_IMODE(there.st_mode))
    else:
        umask = os.umask(0o077)
        os.umask(umask)
        os.chmod(part, (mode | 0o200) & 0o777 & ~umask)
    os.replace(part, path)
