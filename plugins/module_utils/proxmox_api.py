# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox's API, reached by pvesh on a node or over HTTPS with a token. Callers need not know which.

Paths and values are those of the API. Both ways end in the same code of Proxmox; pvesh is root@pam, which some values
need that no token may set.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from ansible_collections.gpuops.sglang.plugins.module_utils import proxmox_inventory
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, run

VERBS = {"get": "GET", "create": "POST", "set": "PUT"}
POLL = 1.0  # s between two looks at a task
LAST_LINES = 3  # of a task's log, which say why it failed


class Failed(Exception):
    """Proxmox refused; the text is what it said, in one line."""


class Proxmox(Protocol):
    """The API of one node. `node` is its name in paths, `name` in messages."""

    node: str
    name: str

    def call(self, verb: str, path: str, values: Mapping[str, Any]) -> Any:
        """One request, `verb` being get, create or set; Failed if Proxmox refuses it."""


class Node:
    """Three verbs on paths of one node's API, and the end of the tasks that they begin."""

    def __init__(self, way: Proxmox) -> None:
        self._way = way
        self.name = way.name
        self.path = f"/nodes/{way.node}"

    def get(self, path: str, **values: Any) -> Any:
        return self._way.call("get", path, values)

    def create(self, path: str, values: Mapping[str, Any] | None = None) -> Any:
        return self._way.call("create", path, values or {})

    def set(self, path: str, values: Mapping[str, Any]) -> Any:
        return self._way.call("set", path, values)

    def finish(self, task: Any, timeout: float) -> None:
        """Wait for the end of a task (its UPID), at most `timeout` s; Failed with the last it said if it went wrong."""
        words = str(task).split(":")
        if words[0] != "UPID":
            raise Failed(f"it gave no task but {str(task)[:100]!r}")
        path = f"/nodes/{words[1]}/tasks/{task}"
        deadline = time.monotonic() + timeout
        while True:
            status = self.get(f"{path}/status")
            if status.get("status") != "running":
                break
            if time.monotonic() > deadline:
                raise Failed(f"task {task} still runs after {timeout:g} s")
            time.sleep(POLL)
        ended = str(status.get("exitstatus", "unknown"))
        if ended != "OK" and not ended.startswith("WARNINGS"):
            log = [str(entry["t"]).strip() for entry in self.get(f"{path}/log", limit=500)]
            said = [line for line in log if line and not line.startswith("TASK ") and line != ended]
            raise Failed("; ".join([ended, *said[-LAST_LINES:]]))


class Pvesh:
    """pvesh on the node that this runs on, as root."""

    def __init__(self, pvesh: str) -> None:
        self.node = "localhost"  # the node itself, whatever its name
        self.name = os.uname().nodename.partition(".")[0]
        self._pvesh = pvesh

    def call(self, verb: str, path: str, values: Mapping[str, Any]) -> Any:
        options = [f"--{name}={_word(value)}" for name, value in sorted(values.items())]
        # Perl complains of a login's locale that the node has not; C.UTF-8 is part of every Debian
        done = run(
            [self._pvesh, verb, path, *options, "--output-format=json"], environment={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        if done.returncode:
            raise Failed(_said(done.stderr) or f"pvesh ended with code {done.returncode}")
        # what a task prints comes before the answer
        lines = done.stdout.splitlines()
        if not lines:
            return None
        try:
            return json.loads(lines[-1])
        except ValueError:
            raise Failed(f"pvesh {verb} {path} gave no JSON: {lines[-1][:100]!r}") from None


class Https:
    """The API of a node over HTTPS; `send(method, path, form, headers)` returns (HTTP code, reason, body)."""

    def __init__(
        self, api: proxmox_inventory.Api, node: str,
        send: Callable[[str, str, str | None, dict[str, str]], tuple[int, str, bytes]],
    ) -> None:  # fmt: skip
        self.node = self.name = node
        self._api = api
        self._send = send

    def call(self, verb: str, path: str, values: Mapping[str, Any]) -> Any:
        form = urlencode({name: _word(value) for name, value in values.items()})
        query, body = (f"?{form}" if form else "", None) if verb == "get" else ("", form)
        code, reason, answer = self._send(VERBS[verb], f"{path}{query}", body, self._api.token_header)
        where = f"{self._api.url}{path}"
        if code == 200:
            return proxmox_inventory.answer(where, answer)
        try:
            told = json.loads(answer)
            said = [str(told.get("message") or reason), *(f"{key}: {why}" for key, why in told["errors"].items())]
        except (ValueError, TypeError, KeyError, AttributeError):
            try:
                said = [str(json.loads(answer)["message"])]
            except (ValueError, TypeError, KeyError):
                said = [reason]
        if code == 401:
            raise proxmox_inventory.refusal(self._api, path, code, reason, answer)
        raise Failed(_said("\n".join(said)) or f"HTTP code {code}")


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _said(text: str) -> str:
    """What Proxmox said, as one line without the usage of its command."""
    lines = [re.sub(r"^400 ", "", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("pvesh ")]
    if len(lines) > 1 and lines[0].startswith("Parameter verification failed"):
        del lines[0]
    return "; ".join(lines)


# what Proxmox says -> cause and next step. The first match counts.
REFUSALS = (
    (r"ipcc_send_rec|access control list",
     "the cluster file system of {node} does not answer ({said}): see 'systemctl status pve-cluster' on {node}"),
    (r"(?P<what>[\w ,()-]+?) is only allowed for root@pam|(?P<other>Only root can pass [\w ]+)",
     "{container}: Proxmox allows this to root@pam alone and to no API token ({said}): set"
     " proxmox_container_via to node, which logs in to {node} as root"),
    (r"Permission check failed \((?P<place>/[^,)]*), (?P<right>[\w.|, ]+)\)",
     "{container}: the user or the token lacks {right} on {place}: 'pveum acl modify {place} --roles ...' on {node}"),
    (r"Permission check failed",
     "{container}: the user or the token may not do this ({said}): give it VM.Allocate on /vms/{vmid}, or set"
     " proxmox_container_via to node"),
    (r"is locked \((?P<lock>.+?)\)",
     "{container} is locked ({lock}): wait for the task that holds it (see the task log of {node}), or"
     " 'pct unlock {vmid}' on {node} if that task is gone"),
    (r"can't lock file|got timeout",
     "{container}: another task on {node} holds its configuration ({said}): wait for it, then run again"),
    (r"detected modified configuration|file changed by other user",
     "{container}: somebody changed its configuration at the same time: run again"),
    (r"(?P<kind>CT|VM|guest) \d+ already exists",
     "{container} can not be made, because its number is taken ({said}): choose another, 'pvesh get /cluster/nextid'"
     " on {node} tells a free one"),
    (r"storage '(?P<storage>[^']+)' does not exist",
     "{container}: there is no storage {storage}: see 'pvesm status' on {node} and correct proxmox_container_rootfs,"
     " proxmox_container_mounts or proxmox_container_template"),
    (r"storage '(?P<storage>[^']+)' (is not available on node|is disabled|does not (support container|allow content))",
     "{container}: {said}: choose another storage, see 'pvesm status --content rootdir' on {node}"),
    (r"(unable to open file|volume) '(?P<volume>[^']*vztmpl[^']*)' (does not exist|- No such)",
     "{container}: there is no template {volume}: see 'pveam list' on {node}, or set proxmox_container_template_url"),
    (r"Device (?P<path>/dev/\S+) does not exist", "{container}: {node} has no {path}: {module}"),
    (r"bridge '(?P<bridge>[^']+)' does not exist",
     "{container}: {node} has no bridge {bridge}: see 'ip -br link show type bridge' there and correct"
     " proxmox_container_networks"),
    (r"no quorum",
     "{container}: the cluster has no quorum, so nothing can be changed: see 'pvecm status' on {node}"),
    (r"protection mode enabled",
     "{container} is protected ({said}): 'pct set {vmid} --protection 0' on {node} first"),
    (r"(?P<names>(?:\w+: )?property is not defined in schema|Unknown option: \w+)",
     "{container}: Proxmox on {node} does not know this ({said}): see 'man pct.conf' there for what its version has"),
)  # fmt: skip

# what a device on the node comes from
MODULES = (
    ("nvidia-uvm", "'nvidia-modprobe -u -c 0' makes it (module nvidia_uvm)"),
    ("nvidia-modeset", "'nvidia-modprobe -m' makes it (module nvidia_modeset)"),
    ("nvidia-caps/", "'nvidia-modprobe -f' of its file below /proc/driver/nvidia/capabilities makes it (MIG)"),
    ("nvidia", "'nvidia-modprobe -c 0' makes it where the driver is installed (module nvidia)"),
    ("kfd", "'modprobe amdgpu' makes it"),
    ("dri/", "'modprobe amdgpu' makes it, or the driver of that card"),
)  # fmt: skip


def device_source(path: str) -> str:
    """What makes a device file that the node has not."""
    name = path[len("/dev/") :]
    for begin, source in MODULES:
        if name.startswith(begin):
            return source
    return "load the module of its driver"


def explained(failed: Failed, vmid: int, node: str, doing: str) -> Refused:
    """What a refusal means, in one sentence with the next step; `doing` says what was tried."""
    said = str(failed)
    facts = {"container": f"container {vmid} on {node}", "node": node, "vmid": vmid, "said": said}
    for pattern, sentence in REFUSALS:
        found = re.search(pattern, said)
        if found:
            words = {name: value for name, value in found.groupdict().items() if value}
            module = device_source(words["path"]) if "path" in words else ""
            return Refused(sentence.format(**{**facts, **words, "module": module}))
    return Refused(f"container {vmid} on {node}: {doing} failed: {said}; see the task log of {node}, then run again")
