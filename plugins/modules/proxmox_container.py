#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_container
short_description: Create, change and start an LXC container of Proxmox VE, with GPUs in it
description:
  - Compares what is asked for with the container's configuration, pending changes taken in, and sends Proxmox the
    difference in one request. A container that is as asked costs two requests.
  - Only what is asked for is managed, down to the single option of a value such as C(net0). An option that is null, or
    a key of O(options) that is, is taken out. Values that Proxmox writes in another way are no difference.
  - A running container is not restarted unless O(restart) allows it. What can be changed in it is; RV(restart_pending)
    lists what waits for its next start.
  - Runs on the node as root, with C(pvesh), or with O(via=api) anywhere, with an API token. Proxmox lets no token set
    devices, mounts of the node's directories, raw keys of LXC, nor most features.
author: gpuops contributors (@gpuops)
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  state:
    description: V(started) starts a container that does not run, V(present) leaves it as it is. Nothing stops one.
    type: str
    choices: [present, started]
    default: started
  restart:
    description:
      - Whether the container may be restarted for changes that wait for that. It is shut down in an orderly way, in
        which the servers in it come to their end (C(SIGTERM) of C(systemd)), and never killed.
      - A container that was made in this run is restarted without it.
    type: bool
    default: false
  shutdown_timeout:
    description: Seconds that the shutdown of a restart may take; more than the longest drain of a server in it.
    type: int
    default: 180
  template:
    description:
      - What a new container is made from, as C(pveam list) shows it. Without it, a container that is not there is an
        error.
    type: str
  template_url:
    description: Where the node gets the template from if it does not have it.
    type: str
  template_checksum:
    description: Checksum of the template as C(ALGORITHM:SUM), for example of C(sha512).
    type: str
  ssh_public_keys:
    description: Keys of the root user of a new container. No password is set, so there is none to lose.
    type: list
    elements: str
    default: []
  pool:
    description: Pool of a new container.
    type: str
  rootfs:
    description:
      - Root file system, as V(STORAGE:GIB), for example V(local-lvm:64). One that is smaller grows; none shrinks or
        moves.
    type: str
  unprivileged:
    description: Whether a new container is unprivileged; Proxmox's default is that it is. It can not be changed later.
    type: bool
  hostname:
    description: Host name.
    type: str
  cores:
    description: Number of CPU cores.
    type: int
  memory:
    description: Memory in MiB, or with a unit as in V(64G).
    type: str
  swap:
    description: Swap in MiB, or with a unit.
    type: str
  features:
    description: Features by name, for example C(nesting).
    type: dict
    default: {}
  networks:
    description: Network interfaces by key, each as text or as options by name.
    type: dict
    default: {}
  mounts:
    description:
      - Mount points by key, each as text or as options by name. A C(volume) of V(STORAGE:GIB) is made, and grows when
        more is asked for.
    type: dict
    default: {}
  tags:
    description: Tags, all of them. Case and order do not count.
    type: list
    elements: str
  onboot:
    description: Whether the container starts with the node.
    type: bool
  startup:
    description: Order and delays of that start, for example V(order=5,up=30).
    type: str
  options:
    description: Other keys of Proxmox by name, for example C(nameserver), C(cpulimit) or C(dev0).
    type: dict
    default: {}
  gpus:
    description:
      - Numbers of the GPUs to pass in, as C(nvidia-smi) on the node counts. Needs O(via=node).
      - Each device keeps the C(devN) that it has, a new one gets the lowest that is free.
    type: list
    elements: int
  mig:
    description: MIG instances to pass in.
    type: list
    elements: dict
    default: []
    suboptions:
      gpu:
        description: Number of the GPU.
        type: int
        required: true
      instance:
        description: Number of the GPU instance.
        type: int
        required: true
      compute:
        description: Number of the compute instance in it.
        type: int
        default: 0
  gpu_vendor:
    description: Whose GPUs these are.
    type: str
    choices: [auto, nvidia, amd]
    default: auto
  gpu_group:
    description:
      - Group in the container that may use the GPUs, by number, or by name if it runs.
      - Without one everybody in the container may use NVIDIA's, as on a host; AMD's are for C(render).
    type: str
    default: ''
  gpu_modeset:
    description: Whether C(/dev/nvidia-modeset) is passed in too, which graphics alone needs.
    type: bool
    default: false
  gpus_only:
    description: Whether other GPUs are taken out of the container. Otherwise a warning names them.
    type: bool
    default: false
  gpu_keys:
    description: V(dev) is C(devN), V(raw) are raw keys of LXC, V(auto) takes these before Proxmox VE 8.1.
    type: str
    choices: [auto, dev, raw]
    default: auto
  shm:
    description:
      - Size of C(/dev/shm) in MiB, or with a unit. Without it systemd in the container takes half of the node's memory.
      - Needs O(via=node).
    type: str
    default: ''
  memlock:
    description: Memory that a process may lock, V(unlimited) or in MiB, or with a unit. Needs O(via=node).
    type: str
    default: ''
  via:
    description: V(node) is C(pvesh) on the host of the task, V(api) is HTTPS.
    type: str
    choices: [node, api]
    default: node
  node:
    description: Name of the node, for O(via=api).
    type: str
  url:
    description: Address of any node's API, for O(via=api), as V(https://kpro5.example.lan).
    type: str
  user:
    description: Owner of the token with the realm, as V(ops@pve).
    type: str
  token_id:
    description: Name of the API token, what stands behind the C(!).
    type: str
  token_secret:
    description: Secret of the API token.
    type: str
  ca_path:
    description: File with the certificates that are trusted, for example a copy of C(/etc/pve/pve-root-ca.pem).
    type: path
  validate_certs:
    description: Whether the certificate must be trusted.
    type: bool
    default: true
  timeout:
    description: Longest wait for an answer of the API, in seconds.
    type: int
    default: 30
attributes:
  check_mode:
    description: Tells what would be done. The number of a group in a container that does not run is not known then.
    support: full
  diff_mode:
    description: Shows the lines of the configuration that change.
    support: full
notes:
  - An error does not mean that nothing has changed; RV(changes) then lists what has.
seealso:
  - module: gpuops.sglang.pct_container_info
"""

EXAMPLES = r"""
- name: A container with two GPUs
  gpuops.sglang.proxmox_container:
    vmid: 129
    template: local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst
    rootfs: local-lvm:64
    hostname: ct129
    cores: 16
    memory: 128G
    swap: 0
    features: {nesting: true}
    networks:
      net0: {name: eth0, bridge: vmbr0, ip: 192.0.2.129/24, gw: 192.0.2.1}
    mounts:
      mp0: {volume: /srv/models, mp: /srv/models, ro: true}
    tags: [sglang]
    onboot: true
    startup: order=5
    gpus: [0, 1]
    memlock: unlimited
  delegate_to: pve-kpro5

- name: More memory, and a restart if it is needed
  gpuops.sglang.proxmox_container:
    vmid: 129
    memory: 192G
    restart: true
  delegate_to: pve-kpro5

- name: What an API token may do
  gpuops.sglang.proxmox_container:
    vmid: 131
    via: api
    node: kpro5
    url: https://kpro5.example.lan
    user: ops@pve
    token_id: deploy
    token_secret: "{{ vault_proxmox_token }}"
    cores: 8
    memory: 32G
  delegate_to: localhost
"""

RETURN = r"""
created:
  description: Whether the container was made.
  type: bool
  returned: success
started:
  description: Whether it was started.
  type: bool
  returned: success
restarted:
  description: Whether it was restarted.
  type: bool
  returned: success
changes:
  description: Keys that were changed, or would be.
  type: list
  elements: str
  returned: always
  sample: [dev0, memory]
restart_pending:
  description: Keys that apply from the next start of the container on, whoever has changed them.
  type: list
  elements: str
  returned: success
  sample: [lxc.prlimit.memlock]
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils import proxmox_inventory
from ansible_collections.gpuops.sglang.plugins.module_utils.container import Asked, Container, Report
from ansible_collections.gpuops.sglang.plugins.module_utils.container_node import Gpus, Host, raw_limits
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, require_root
from ansible_collections.gpuops.sglang.plugins.module_utils.proxmox_api import Https, Node, Pvesh
from ansible_collections.gpuops.sglang.plugins.module_utils.proxmox_http import Client

KEYS = ("rootfs", "unprivileged", "hostname", "cores", "memory", "swap", "tags", "onboot", "startup")


def asked(given: dict[str, Any], check: bool) -> Asked:
    """Return what the options ask for."""
    config: dict[str, Any] = {key: given[key] for key in KEYS if given[key] is not None}
    if given["features"]:
        config["features"] = given["features"]
    for group in ("networks", "mounts", "options"):
        twice = sorted(set(config).intersection(given[group]))
        if twice:
            raise Refused(f"{', '.join(twice)} is in {group} and an option of its own: write it once")
        config.update(given[group])
    new = {"ssh-public-keys": "\n".join(given["ssh_public_keys"]), "pool": given["pool"]}
    gpus = Gpus(
        given["gpus"] or [], given["mig"], given["gpu_vendor"], given["gpu_modeset"], given["gpu_group"],
        given["gpu_keys"], given["gpus_only"],
    )  # fmt: skip
    return Asked(
        vmid=given["vmid"],
        config=config,
        template=given["template"] or "",
        template_url=given["template_url"] or "",
        template_checksum=given["template_checksum"] or "",
        new={name: value for name, value in new.items() if value},
        started=given["state"] == "started",
        restart=given["restart"],
        shutdown_timeout=given["shutdown_timeout"],
        gpus=gpus if gpus.numbers or gpus.mig else None,
        raw=raw_limits(given["shm"], given["memlock"]),
        check=check,
    )


def reached(module: AnsibleModule) -> tuple[Node, Host | None]:
    """Return the node, and it as a host where this runs on it."""
    given = module.params
    if given["via"] == "api":
        api = proxmox_inventory.api(
            given["url"], given["user"] or "", given["token_id"] or "", given["token_secret"] or ""
        )
        client = Client(api, given["ca_path"], given["validate_certs"], given["timeout"])
        return Node(Https(api, given["node"], client.send)), None
    require_root()
    pvesh = module.get_bin_path("pvesh")
    if not pvesh:
        name = os.uname().nodename
        raise Refused(f"{name} is no Proxmox VE node, it has no pvesh: run this on the node of the container")
    way = Pvesh(pvesh)
    return Node(way), Host(way.name)


def main() -> None:
    """Bring the container about and tell what was done."""
    text, words = {"type": "str"}, {"type": "list", "elements": "str"}
    flag, values = {"type": "bool", "default": False}, {"type": "dict", "default": {}}
    number = {"type": "int", "required": True}
    module = AnsibleModule(
        argument_spec={
            "vmid": number,
            "state": {**text, "choices": ["present", "started"], "default": "started"},
            "restart": flag,
            "shutdown_timeout": {"type": "int", "default": 180},
            **dict.fromkeys(("template", "template_url", "template_checksum", "pool", "rootfs", "hostname"), text),
            "ssh_public_keys": {**words, "default": [], "no_log": False},
            "unprivileged": {"type": "bool"},
            "cores": {"type": "int"},
            **dict.fromkeys(("memory", "swap", "startup"), text),
            **dict.fromkeys(("features", "networks", "mounts", "options"), values),
            "tags": words,
            "onboot": {"type": "bool"},
            "gpus": {"type": "list", "elements": "int"},
            "mig": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"gpu": number, "instance": number, "compute": {"type": "int", "default": 0}},
            },
            "gpu_vendor": {**text, "choices": ["auto", "nvidia", "amd"], "default": "auto"},
            "gpu_group": {**text, "default": ""},
            "gpu_modeset": flag,
            "gpus_only": flag,
            "gpu_keys": {**text, "choices": ["auto", "dev", "raw"], "default": "auto", "no_log": False},
            "shm": {**text, "default": ""},
            "memlock": {**text, "default": ""},
            "via": {**text, "choices": ["node", "api"], "default": "node"},
            **dict.fromkeys(("node", "url", "user"), text),
            "token_id": {**text, "no_log": False},
            "token_secret": {**text, "no_log": True},
            "ca_path": {"type": "path"},
            "validate_certs": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 30},
        },
        required_if=[("via", "api", ("node", "url", "user", "token_id", "token_secret"))],
        supports_check_mode=True,
    )
    report = Report()
    try:
        node, host = reached(module)
        Container(asked(module.params, module.check_mode), node, host, report).converge()
    except Refused as refused:
        module.fail_json(msg=str(refused), changed=report.done, changes=report.changes if report.done else [])
    for warning in report.warnings:
        module.warn(warning)
    module.exit_json(
        changed=report.changed,
        created=report.created,
        started=report.started,
        restarted=report.restarted,
        changes=report.changes,
        restart_pending=report.restart_pending,
        diff={"before": report.before, "after": report.after},
    )


if __name__ == "__main__":
    main()
