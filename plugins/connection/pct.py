# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: pct
author: gpuops contributors (@gpuops)
short_description: Run tasks in a Proxmox LXC container through its node
description:
  - Logs in at the Proxmox VE node with Ansible's own ssh connection plugin and runs each command in the container
    with C(pct exec). The container needs neither an SSH server nor an address.
  - All containers of a node share one SSH connection (C(ControlPersist)).
  - Everything runs as root of the container, the only user of C(pct exec); C(become) gives another one.
  - Commands start in root's home directory, or in C(/) without one, with E(HOME), E(USER), E(LOGNAME) and E(PATH) set
    for the container's root; the rest of the environment is that of the login at the node.
  - Files travel through C(pct exec) too. They are written beside their place, counted and renamed, so that a full disk
    is an error.
extends_documentation_fragment:
  - gpuops.sglang.ssh_options
options:
  host:
    description: Name or address of the node.
  remote_user:
    description:
      - Login at the node, as for any host, unless O(node_user) is set.
      - In the container it is root, whatever this says.
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
  node:
    description: Name of the node in messages, by default its O(host).
    type: str
    vars:
      - name: ansible_pct_node
      - name: pct_node
  node_user:
    description: Login at the node, for an O(remote_user) that is meant for other hosts.
    type: str
    vars:
      - name: ansible_pct_node_user
  node_become:
    description: How the login at the node becomes root, which C(pct) needs. V(sudo) must not ask for a password.
    type: str
    choices: [none, sudo]
    default: none
    vars:
      - name: ansible_pct_node_become
  pct_executable:
    description: Path of C(pct) on the node.
    type: str
    default: /usr/sbin/pct
    vars:
      - name: ansible_pct_executable
notes:
  - C(pct exec) passes no signals on, so a command goes on in the container after an interrupted or timed out task.
  - C(become_method=su) to a user without a login shell needs C(become_flags=-s /bin/sh).
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
    ansible_pct_node_become: sudo # deploy ALL=(root) NOPASSWD: /usr/sbin/pct
"""

import contextlib
import os
import secrets
from typing import Any

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection.ssh import Connection as SshConnection
from ansible_collections.gpuops.sglang.plugins.module_utils import pct

Result = tuple[int, bytes, bytes]  # exit code, stdout, stderr


class Connection(SshConnection):
    """Ansible's ssh to the node, with every command wrapped for the container."""

    transport = "gpuops.sglang.pct"
    has_pipelining = True

    _call: pct.Call
    _login: str | None = None
    _redirect: tuple[bytes, ...] = ()

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        # Ansible takes the home directory and the owner of its files from remote_user: the user in the container
        self._login = self.get_option("node_user") or self.get_option("remote_user")
        self.set_option("remote_user", "root")

    def _build_command(self, binary: str, subsystem: str, *other_args: bytes | str) -> list[bytes]:
        self.set_option("remote_user", self._login)
        try:
            return super()._build_command(binary, subsystem, *other_args)
        finally:
            self.set_option("remote_user", "root")

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
            )
        )
        return self._call.result(*super().exec_command(self._call.remote_command(cmd), in_data, sudoable))

    def _bare_run(self, cmd: list[bytes], in_data: bytes | None, sudoable: bool = True, checkrc: bool = True) -> Result:
        code, stdout, stderr = super()._bare_run([*self._redirect, *cmd], in_data, sudoable, checkrc=False)
        failure = self._call.failure(code, stdout, stderr)
        if failure:
            # an authentication failure is not tried again, which could lock the account
            refused = b"Permission denied" in stderr or (cmd[0] == b"sshpass" and code == 5)
            raise (AnsibleAuthenticationFailure if refused else AnsibleConnectionFailure)(failure)
        return code, stdout, stderr

    def _send_initial_data(self, fh: Any, in_data: bytes, ssh_process: Any) -> None:
        # what refuses a command also closes its stdin, and says why by its exit code and stderr
        with contextlib.suppress(AnsibleConnectionFailure):
            super()._send_initial_data(fh, in_data, ssh_process)

    def put_file(self, in_path: str, out_path: str) -> Result:
        if not os.path.exists(in_path):
            raise AnsibleFileNotFound(f"{in_path} does not exist on the controller")
        code, stdout, stderr = self._transfer("<", in_path, pct.put_script(out_path, os.path.getsize(in_path)))
        if code:
            raise AnsibleError(self._transfer_error(f"cannot write {out_path} in", pct.last_line(stderr)))
        return code, stdout, stderr

    def fetch_file(self, in_path: str, out_path: str) -> Result:
        part = os.path.join(os.path.dirname(out_path), f".gpuops-{secrets.token_hex(8)}")
        try:
            code, stdout, stderr = self._transfer(">", part, pct.fetch_script(in_path))
            sent = pct.sent_size(stderr)
            if code or sent < 0:
                raise AnsibleError(self._transfer_error(f"cannot read {in_path} in", pct.last_line(stderr)))
            if os.path.getsize(part) != sent:
                lost = f"{os.path.getsize(part)} of {sent} bytes arrived: check the free space of {out_path}"
                raise AnsibleError(self._transfer_error(f"cannot fetch {in_path} from", lost))
            os.replace(part, out_path)
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
