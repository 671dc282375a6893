# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a container what it is asked to be: create, change, start it, and restart it where that is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import container_config, pct_config
from ansible_collections.gpuops.sglang.plugins.module_utils.container_config import Changes, compare
from ansible_collections.gpuops.sglang.plugins.module_utils.container_node import GPU_PATHS, Gpus, Host, access
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.proxmox_api import Failed, Node, explained

LONG = 3600.0  # s for what copies much data: making a container, downloading a template
START = 300.0  # s for a start
STOP_MARGIN = 60.0  # s that Proxmox may take beyond the time that it gives a container to stop
OLDEST_DEV = (8, 1)  # Proxmox VE that has devN


@dataclass(frozen=True)
class Asked:
    """What an operator wants of a container."""

    vmid: int
    config: Mapping[str, Any]
    template: str = ""
    template_url: str = ""
    template_checksum: str = ""  # algorithm:sum
    new: Mapping[str, Any] = field(default_factory=dict)  # what counts when it is made, and never again
    started: bool = True
    restart: bool = False
    shutdown_timeout: int = 180  # s
    gpus: Gpus | None = None
    raw: Sequence[tuple[str, str]] = ()
    check: bool = False


@dataclass
class Report:
    """What was done, or would be."""

    created: bool = False
    started: bool = False
    restarted: bool = False
    changes: list[str] = field(default_factory=list)  # keys
    restart_pending: list[str] = field(default_factory=list)  # keys
    before: str = ""
    after: str = ""
    warnings: list[str] = field(default_factory=list)
    done: bool = False  # whether anything of it has been done

    @property
    def changed(self) -> bool:
        return self.created or self.started or self.restarted or bool(self.changes)


@dataclass
class _State:
    """A container as it is. `config` has the pending changes taken in, which `waiting` names."""

    config: dict[str, Any]
    waiting: list[str]
    digest: str | None


class Container:
    """One container of a node; `host` is that node where this runs on it."""

    def __init__(self, asked: Asked, node: Node, host: Host | None, report: Report) -> None:
        self._asked = asked
        self._node = node
        self._host = host
        self._path = f"{node.path}/lxc/{asked.vmid}"
        self._where = f"container {asked.vmid} on {node.name}"
        self._seen: dict[str, Any] = {}  # its state when it was looked at last
        self._gpu_paths: list[str] = []
        self._group = ""  # to which the GPUs are to belong in the container
        self._raw = list(asked.raw)
        self.report = report

    def converge(self) -> None:
        """Bring it about. Refused, with the whole message, where it can not be; the report then tells what is done."""
        asked = self._asked
        if asked.gpus and self._host:
            self._gpu_paths = self._host.gpu_paths(asked.gpus)
            # AMD's devices belong to a group on every distribution
            self._group = asked.gpus.group or ("render" if self._host.vendor(asked.gpus) == "amd" else "")
        elif not self._host and (asked.gpus or asked.raw):
            raise Refused(
                f"{self._where}: GPUs, shm and memlock need root on the node, because Proxmox lets no API token set"
                " them: set proxmox_container_via to node"
            )
        if not self._look():
            self._create()
            if asked.check:
                return
            self._look()
        if self._group and not self._group.isdigit() and not self._running and asked.started and not asked.check:
            self._start()  # the number of a group is asked of the container itself
        state = self._change(self._state())
        self._change_raw(state)
        if not self._running and asked.started:
            self._start()
            state = state if asked.check else self._state()
        if self._running:
            self._restart_if_needed(state)

    # ---- looking

    def _try(self, doing: str, call: Any, *arguments: Any, **values: Any) -> Any:
        try:
            return call(*arguments, **values)
        except Failed as failed:
            raise explained(failed, self._asked.vmid, self._node.name, doing) from None

    def _look(self) -> bool:
        """Whether it is on this node."""
        try:
            self._seen = self._node.get(f"{self._path}/status/current")
        except Failed as failed:
            if pct_config.is_gone(str(failed)):
                return False
            raise explained(failed, self._asked.vmid, self._node.name, "asking for its state") from None
        if self._seen.get("template"):
            raise Refused(f"{self._where} is a template, which can not be started: choose another number")
        return True

    @property
    def _running(self) -> bool:
        return self._seen.get("status") == "running"

    def _state(self) -> _State:
        items = self._try("asking for its configuration", self._node.get, f"{self._path}/pending")
        config = {
            item["key"]: item.get("pending", item.get("value"))
            for item in items
            if not item.get("delete") and item["key"] != "digest"
        }
        digest = next((item.get("value") for item in items if item["key"] == "digest"), None)
        waiting = [item["key"] for item in pct_config.pending_changes(items) if not _of_nothing(item)]
        return _State(config, waiting, digest)

    # ---- making it

    def _create(self) -> None:
        asked, node = self._asked, self._node
        if not asked.template:
            raise Refused(
                f"there is no {self._where}: set proxmox_container_template to have it made, or correct the number or"
                " the node (see 'pct list' there)"
            )
        for guest in self._try("looking for its number", node.get, "/cluster/resources", type="vm"):
            if int(guest.get("vmid", 0)) == asked.vmid:
                raise self._taken(guest)
        values = container_config.creation(self._wanted(_State({}, [], None)))
        self._provide_template()
        self.report.created = True
        self._tell(Changes(put=values), {})
        if asked.check:
            self.report.started = asked.started
            self._tell_raw([], [f"{key}: {value}" for key, value in self._raw])
            return
        everything = {**values, **asked.new, "vmid": asked.vmid, "ostemplate": asked.template}
        task = self._try("making it", node.create, f"{node.path}/lxc", everything)
        self._try("making it", node.finish, task, LONG)
        self.report.done = True

    def _taken(self, guest: Mapping[str, Any]) -> Refused:
        kind = "container" if guest.get("type") == "lxc" else "virtual machine"
        moved = f", or correct pct_node to {guest.get('node')}" if kind == "container" else ""
        return Refused(
            f"{self._where} can not be made: {self._asked.vmid} is the {kind} {guest.get('name', '')} on"
            f" {guest.get('node')} already: choose another number ('pvesh get /cluster/nextid' tells a free one){moved}"
        )

    def _provide_template(self) -> None:
        asked, node = self._asked, self._node
        storage, _colon, name = asked.template.partition(":")
        if not re.fullmatch(r"vztmpl/[^/]+", name):
            raise Refused(
                f"{self._where}: '{asked.template}' is no template: write STORAGE:vztmpl/FILE as 'pveam list' shows it"
            )
        path = f"{node.path}/storage/{storage}"
        listed = self._try("looking for its template", node.get, f"{path}/content", content="vztmpl")
        present = sorted(str(volume["volid"]) for volume in listed)
        if asked.template in present:
            return
        if not asked.template_url:
            raise Refused(
                f"{self._where} can not be made: there is no template {asked.template} on {node.name}, there are"
                f" {', '.join(present) or 'none'}: correct proxmox_container_template, or set"
                " proxmox_container_template_url"
            )
        if asked.check:
            return
        algorithm, _colon, checksum = asked.template_checksum.rpartition(":")
        proof = {"checksum-algorithm": algorithm or "sha256", "checksum": checksum} if checksum else {}
        values = {"content": "vztmpl", "filename": name.partition("/")[2], "url": asked.template_url, **proof}
        doing = f"downloading its template from {asked.template_url}"
        self._try(doing, node.finish, self._try(doing, node.create, f"{path}/download-url", values), LONG)

    # ---- changing it

    def _wanted(self, state: _State) -> dict[str, Any]:
        """What is asked for with the keys of its GPUs, which become raw keys where Proxmox has no others."""
        config, gpus, host = dict(self._asked.config), self._asked.gpus, self._host
        if not gpus or not host:
            return config
        gid = int(self._group) if self._group.isdigit() else None
        if self._group and gid is None:
            if not self._running:
                if not self._asked.started or (self._asked.check and self._seen):
                    self.report.warnings.append(
                        f"{self._where} does not run, so the number of its group {self._group} is not known and its"
                        " GPUs are left as they are"
                    )
                return config
            gid = host.group(self._asked.vmid, self._group)
        may = access(host.vendor(gpus), gid)
        devices = [{"path": path, **may} for path in self._gpu_paths]
        others = container_config.others(state.config, devices, GPU_PATHS)
        if others and not gpus.only:
            self.report.warnings.append(
                f"{self._where} also has {', '.join(others)}, which proxmox_container_gpus does not ask for: it stays"
                " unless proxmox_container_gpus_only is true"
            )
        if not self._has_dev(state, gpus):
            self._raw = [*self._asked.raw, *(pair for path in self._gpu_paths for pair in host.raw_device(path))]
            return config
        taken = [key for key in config if key.startswith("dev")]
        return {**container_config.placed(state.config, devices, taken, GPU_PATHS if gpus.only else ""), **config}

    def _has_dev(self, state: _State, gpus: Gpus) -> bool:
        """Whether the GPUs are to be devN. Asks Proxmox for its version only where they are not yet."""
        if gpus.keys != "auto":
            return gpus.keys == "dev"
        if set(self._gpu_paths) <= set(container_config.device_paths(state.config).values()):
            return True
        version = str(self._try("asking for the version", self._node.get, "/version").get("version", ""))
        found = re.match(r"(\d+)\.(\d+)", version)
        return not found or (int(found[1]), int(found[2])) >= OLDEST_DEV

    def _change(self, state: _State) -> _State:
        wanted = self._wanted(state)
        changes = compare(state.config, wanted)
        if not changes:
            return state
        self._refuse_lock(state)
        self._tell(changes, state.config)
        if self._asked.check:
            return state
        self._send(changes, wanted, state.digest)
        self.report.done = True
        return self._state()

    def _tell(self, changes: Changes, config: Mapping[str, Any]) -> None:
        self.report.before += container_config.lines(config, changes.keys)
        self.report.after += container_config.lines(changes.applied(config), changes.keys)
        self.report.changes = sorted({*self.report.changes, *changes.keys})

    def _send(self, changes: Changes, wanted: Mapping[str, Any], digest: str | None) -> None:
        values: dict[str, Any] = dict(changes.put)
        if changes.delete:
            values["delete"] = ",".join(changes.delete)
        try:
            if values:
                self._node.set(f"{self._path}/config", {**values, **({"digest": digest} if digest else {})})
            for key, size in changes.resize.items():
                self._node.finish(self._node.set(f"{self._path}/resize", {"disk": key, "size": size}), LONG)
        except Failed as failed:
            # a refusal does not mean that nothing has changed
            left = compare(self._state().config, wanted).keys
            made = [key for key in changes.keys if key not in left]
            cause = explained(failed, self._asked.vmid, self._node.name, f"changing {', '.join(left or changes.keys)}")
            self.report.done |= bool(made)
            self.report.changes = sorted({*self.report.changes}.difference(left))
            raise Refused(f"{cause}; changed nevertheless: {', '.join(made)}" if made else str(cause)) from None

    def _refuse_lock(self, state: _State) -> None:
        lock = state.config.get("lock")
        if lock:
            raise explained(Failed(f"CT is locked ({lock})"), self._asked.vmid, self._node.name, "")

    def _change_raw(self, state: _State) -> None:
        if not self._raw or not self._host:
            return
        gone, come = self._host.raw(self._asked.vmid, self._raw, change=False)
        if not come:
            return
        self._refuse_lock(state)
        if not self._asked.check:
            self._host.raw(self._asked.vmid, self._raw, change=True)
            self.report.done = True
        self._tell_raw(gone, come)

    def _tell_raw(self, gone: Sequence[str], come: Sequence[str]) -> None:
        self.report.before += "".join(f"{line}\n" for line in gone)
        self.report.after += "".join(f"{line}\n" for line in come)
        self.report.changes = sorted({*self.report.changes, *(line.partition(":")[0] for line in come)})

    # ---- starting it

    def _start(self) -> None:
        self._refuse_ha("started")
        self.report.started = not self.report.restarted
        if self._asked.check:
            return
        task = self._try("starting it", self._node.create, f"{self._path}/status/start")
        self._try("starting it", self._node.finish, task, START)
        self.report.done = True
        self._look()

    def _refuse_ha(self, what: str) -> None:
        if (self._seen.get("ha") or {}).get("managed"):
            raise Refused(
                f"{self._where} is managed by HA, which starts and stops it itself, and it has to be {what}:"
                f" 'ha-manager set ct:{self._asked.vmid} --state stopped', then '--state started', on {self._node.name}"
            )

    def _restart_if_needed(self, state: _State) -> None:
        self.report.restart_pending = self._waiting(state)
        # nobody works yet in one that was made now
        if not self.report.restart_pending or not (self._asked.restart or self.report.created):
            return
        self._refuse_ha("restarted")
        self.report.restarted = True
        if self._asked.check:
            return
        timeout = self._asked.shutdown_timeout
        try:
            values = {"timeout": timeout, "forceStop": 0}
            self._node.finish(self._node.create(f"{self._path}/status/shutdown", values), timeout + STOP_MARGIN)
        except Failed as failed:
            raise Refused(
                f"{self._where} did not stop within {timeout} s ({failed}), so it was not restarted and"
                f" {', '.join(self.report.restart_pending)} still wait: see what runs there, or raise"
                " proxmox_container_shutdown_timeout"
            ) from None
        self._start()
        self.report.restart_pending = self._waiting(self._state())

    def _waiting(self, state: _State) -> list[str]:
        """Keys that apply from the next start on, whoever has set them."""
        pid = int(self._seen.get("pid") or 0)
        raw = self._host.not_in_effect(pid, self._raw) if self._raw and self._host and pid else []
        return sorted([*state.waiting, *raw])


def _of_nothing(item: Mapping[str, Any]) -> bool:
    """Whether a pending entry deletes what is not there."""
    return "value" not in item and "pending" not in item
