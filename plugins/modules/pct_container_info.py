#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: pct_container_info
short_description: Facts about the LXC containers of a Proxmox VE node
description:
  - Runs on a Proxmox VE node as root and tells of its containers what Proxmox knows. State and limits, the
    configuration as data (devices, mounts, networks, features, raw keys), pending changes, addresses.
  - Changes nothing.
  - Each start of C(pvesh) costs the node more than a second of CPU, whatever it is asked. One lists all containers with
    their state; one more for each container gets its configuration, and one more its pending changes. Addresses come
    from C(lxc-info), which costs a few milliseconds. O(vmids) and O(gather) leave out what is not needed.
author: gpuops contributors (@gpuops)
options:
  vmids:
    description:
      - Numbers of the containers; all of the node when left out.
      - A container that the node does not have is an error.
    type: list
    elements: int
  gather:
    description:
      - What to gather besides the state, which is always there.
      - V(config) is the configuration as Proxmox shows it, pending changes taken in. Those apply from the next start
        of the container on.
      - V(pending) is the list of changes that wait for the next start.
      - V(addresses) are those that a running container has at this moment.
    type: list
    elements: str
    choices: [config, pending, addresses]
    default: [config, addresses]
attributes:
  check_mode:
    description: Does the same, since it changes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
notes:
  - Needs Proxmox VE 8 or newer and root on the node.
  - A configuration may hold what not everybody should read, for example variables in C(env) or the description. Set
    C(no_log) on the task where it does.
  - A value that is not as Proxmox documents it is in RV(containers[].config) only, and a warning names it.
seealso:
  - plugin: gpuops.sglang.pct
    plugin_type: connection
    description: Runs tasks inside of a container.
"""

EXAMPLES = r"""
- name: See what runs, with one start of pvesh
  gpuops.sglang.pct_container_info:
    gather: []
  register: node

- name: Look at one container
  gpuops.sglang.pct_container_info:
    vmids: [129]
    gather: [config, pending, addresses]
  register: node

- name: Refuse a container without its GPU
  ansible.builtin.assert:
    that: node.containers[0].devices.values() | selectattr('path', 'eq', '/dev/nvidia0') | length == 1
"""

RETURN = r"""
node:
  description: Name of the node.
  type: str
  returned: success
  sample: kpro5
containers:
  description: The containers by their number.
  type: list
  elements: dict
  returned: success
  contains:
    vmid:
      description: Number of the container.
      type: int
      sample: 129
    name:
      description: Its host name, or CTnumber without one.
      type: str
      sample: ct129
    status:
      description: V(running) or V(stopped).
      type: str
      sample: running
    lock:
      description: What holds the container, for example V(backup) or V(migrate); null without a lock.
      type: str
      sample: null
    template:
      description: Whether it is a template, which can not be started.
      type: bool
      sample: false
    tags:
      description: Its tags.
      type: list
      elements: str
      sample: [gpu, sglang]
    uptime:
      description: Seconds since its start; 0 when stopped.
      type: int
      sample: 86400
    cpus:
      description: Number of CPUs that it may use, from C(cores), else C(cpulimit), else those of the node.
      type: float
      sample: 8.0
    maxmem:
      description: Limit of its memory in bytes.
      type: int
      sample: 68719476736
    maxswap:
      description: Limit of its swap in bytes.
      type: int
      sample: 0
    maxdisk:
      description: Size of its root file system in bytes; measured when running, else as configured.
      type: int
      sample: 34359738368
    unprivileged:
      description: Whether its root is an unprivileged user of the node.
      type: bool
      returned: with V(config) in O(gather)
      sample: true
    devices:
      description: Devices that are passed through, by key, with Proxmox's defaults for what is not set.
      type: dict
      returned: with V(config) in O(gather)
      sample:
        dev0: {path: /dev/nvidia0, mode: "0666", uid: 0, gid: 44, deny_write: false}
    mounts:
      description:
        - The root file system and the mount points, by key.
        - C(type) is V(volume) of a storage, V(bind) for a directory of the node, or V(device) for a block device of it.
      type: dict
      returned: with V(config) in O(gather)
      sample:
        rootfs: {type: volume, volume: "local-lvm:vm-129-disk-0", mp: /, options: {size: 32G}}
        mp0: {type: bind, volume: /srv/models, mp: /srv/models, options: {ro: true}}
    networks:
      description: Network interfaces, by key, with the options that are set; C(-) in their names is C(_) here.
      type: dict
      returned: with V(config) in O(gather)
      sample:
        net0:
          name: eth0
          bridge: vmbr0
          hwaddr: BC:24:11:00:01:29
          ip: 192.0.2.129/24
          gw: 192.0.2.1
          firewall: true
          tag: 20
          type: veth
    features:
      description: Features that are set.
      type: dict
      returned: with V(config) in O(gather)
      sample: {nesting: true, keyctl: true, mount: nfs;cifs}
    lxc:
      description: Raw keys of LXC in the configuration, as pairs of key and value in their order.
      type: list
      elements: list
      returned: with V(config) in O(gather)
      sample:
        - [lxc.cgroup2.devices.allow, "c 195:* rwm"]
        - [lxc.prlimit.memlock, unlimited]
    config:
      description:
        - The whole configuration as Proxmox gives it, with its digest and C(lxc). Whole numbers and booleans (0 and 1)
          are numbers, all else is text.
      type: dict
      returned: with V(config) in O(gather)
      sample:
        arch: amd64
        cores: 8
        dev0: /dev/nvidia0,gid=44,mode=0666
        digest: 1acd5b884486594f7dbb067dc9b7f38bb3388e9a
        hostname: ct129
        lxc: [[lxc.prlimit.memlock, unlimited]]
        memory: 65536
        onboot: 1
        ostype: debian
        rootfs: local-lvm:vm-129-disk-0,size=32G
        swap: 0
        unprivileged: 1
    pending:
      description:
        - Changes that wait for the next start of the container, by key. C(value) is what applies now, C(pending) what
          will, C(delete) is 1 for a key that will go (2 by force). Raw keys of LXC are not among them.
      type: list
      elements: dict
      returned: with V(pending) in O(gather)
      sample:
        - {key: memory, value: 65536, pending: 131072}
        - {key: mp1, value: "/srv/old,mp=/srv/old", delete: 1}
    addresses:
      description:
        - IPv4 and IPv6 addresses inside, without loopback and link-local ones, with those of bridges inside; empty when
          stopped.
      type: list
      elements: str
      returned: with V(addresses) in O(gather)
      sample: [192.0.2.129]
"""

import json
import os
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import pct_config
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, require_root, run

# it is the node itself to Proxmox, whatever its name
CONTAINERS = "/nodes/localhost/lxc"


class Gone(Refused):
    """The container is not on this node, or not any more."""


class Node:
    """The node that this runs on."""

    def __init__(self, module: AnsibleModule) -> None:
        self.name = os.uname().nodename.partition(".")[0]
        self._module = module
        self._pvesh = module.get_bin_path("pvesh")
        if not self._pvesh:
            raise Refused(f"{self.name} is no Proxmox VE node, it has no pvesh: run this on the node of the containers")

    def get(self, path: str) -> tuple[Any, str]:
        """Return what Proxmox's API answers, and the complaints that come with it."""
        argv = [self._pvesh, "get", path, "--output-format", "json"]
        # Perl complains of a login's locale that the node has not; JSON is UTF-8 in any
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        complaints = done.stderr.decode(errors="replace")
        if done.returncode:
            kind = Gone if pct_config.is_gone(complaints) else Refused
            raise kind(pct_config.refusal(path, done.returncode, complaints, self.name))
        try:
            return json.loads(done.stdout), complaints
        except ValueError as error:
            raise Refused(f"pvesh get {path} on {self.name} gave no JSON: {done.stdout[:100]!r}") from error

    def addresses(self, vmid: int) -> list[str]:
        """Return the addresses of a running container; the API would tell them for the price of a start of pvesh."""
        done = run([self._module.get_bin_path("lxc-info", required=True), "-n", str(vmid), "-i", "-H"])
        if done.returncode:
            said = " ".join(last_lines(done.stdout + done.stderr, 1))
            kind = Gone if "doesn't exist" in said else Refused
            raise kind(f"lxc-info told no addresses of container {vmid} on {self.name}: {said}")
        return done.stdout.split()

    def complete(self, container: dict[str, Any], gather: list[str]) -> None:
        """Add to the state of a container what is to be gathered."""
        vmid = container["vmid"]
        if "config" in gather:
            config, complaints = self.get(f"{CONTAINERS}/{vmid}/config")
            facts, problems = pct_config.config_facts(config)
            container.update(facts)
            wrong = "; ".join(last_lines(complaints, 20) or problems)
            if wrong:
                self._module.warn(f"configuration of container {vmid} on {self.name}: {wrong}")
        if "pending" in gather:
            container["pending"] = pct_config.pending_changes(self.get(f"{CONTAINERS}/{vmid}/pending")[0])
        if "addresses" in gather:
            container["addresses"] = self.addresses(vmid) if container["status"] == "running" else []


def gathered(node: Node, vmids: list[int] | None, gather: list[str]) -> list[dict[str, Any]]:
    """Return the facts of the containers; one that goes meanwhile is only missed if it was asked for."""
    listed = node.get(CONTAINERS)[0]
    present = {facts["vmid"]: facts for facts in map(pct_config.state_facts, listed)}
    wanted = sorted(present if vmids is None else set(vmids))
    missing = [vmid for vmid in wanted if vmid not in present]
    if missing:
        raise Refused(pct_config.missing_containers(missing, node.name))
    containers = []
    for vmid in wanted:
        try:
            node.complete(present[vmid], gather)
        except Gone as gone:
            if vmids is None:
                continue
            raise Refused(pct_config.missing_containers([vmid], node.name)) from gone
        containers.append(present[vmid])
    return containers


def main() -> None:
    """Ask Proxmox and return its answers as data."""
    module = AnsibleModule(
        argument_spec={
            "vmids": {"type": "list", "elements": "int"},
            "gather": {
                "type": "list",
                "elements": "str",
                "choices": ["config", "pending", "addresses"],
                "default": ["config", "addresses"],
            },
        },
        supports_check_mode=True,
    )
    try:
        require_root()
        node = Node(module)
        containers = gathered(node, module.params["vmids"], module.params["gather"])
    except Refused as refused:
        module.fail_json(msg=str(refused))
    module.exit_json(changed=False, node=node.name, containers=containers)


if __name__ == "__main__":
    main()
