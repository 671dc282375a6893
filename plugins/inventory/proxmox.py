# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: proxmox
author: gpuops contributors (@gpuops)
short_description: Nodes and containers of a Proxmox VE node or cluster
description:
  - Each node is a host C(pve-NODE), each container a host C(ctVMID) that P(gpuops.sglang.pct#connection) reaches
    through its node. The group C(NODE) holds a node and its containers, so C(-l kpro5) means all of them and
    C(-l ct129) one.
  - As in C(inventories/example), the nodes are in C(proxmox_nodes), the containers in C(sglang_containers), a part of
    C(sglang). A C(-) in a node's name is a C(_) in its group's.
  - Asks the API two questions, however large the cluster is. Virtual machines and templates are left out.
  - The file's name must end in C(proxmox.yml) or C(proxmox.yaml).
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: Says that the file is for this plugin.
    type: str
    choices: [gpuops.sglang.proxmox]
    required: true
  url:
    description: Address of any node's API, as V(https://kpro5.example.lan). The port is 8006 unless it names another.
    type: str
    required: true
    env:
      - name: GPUOPS_PROXMOX_URL
  user:
    description:
      - Who asks, with the realm, as V(ops@pve). It needs C(Sys.Audit) and C(VM.Audit) on C(/), for example by the role
        C(PVEAuditor), and so does a token with privilege separation.
    type: str
    required: true
    env:
      - name: GPUOPS_PROXMOX_USER
  token_id:
    description: Name of the API token, what stands behind the C(!).
    type: str
    env:
      - name: GPUOPS_PROXMOX_TOKEN_ID
  token_secret:
    description: Secret of the API token.
    type: str
    env:
      - name: GPUOPS_PROXMOX_TOKEN_SECRET
  password:
    description: Password of O(user), used where there is no O(token_id).
    type: str
    env:
      - name: GPUOPS_PROXMOX_PASSWORD
  validate_certs:
    description: Whether the certificate must be trusted. Without that, anybody on the way can take the secret.
    type: bool
    default: true
  ca_path:
    description:
      - File with the certificates that are trusted, relative to the inventory file; without it those of the system.
      - Proxmox VE's own certificates are signed by C(/etc/pve/pve-root-ca.pem) of each node.
    type: str
  timeout:
    description: Longest wait for an answer, in seconds.
    type: int
    default: 30
  nodes:
    description: Names of the nodes to take, with their containers. An empty list takes all.
    type: list
    elements: str
    default: []
  tags:
    description: Takes the containers that have one of these tags. An empty list takes all, also those not for SGLang.
    type: list
    elements: str
    default: [sglang]
  include_stopped:
    description: Whether to take containers that do not run and nodes that are offline.
    type: bool
    default: true
notes:
  - O(url), O(user), O(token_id), O(token_secret), O(password) and O(ca_path) may be templates, which see extra
    variables.
  - Variables of each host are C(ansible_host), C(pct_node), C(proxmox_status) and C(proxmox_url); those of a container
    also C(ansible_connection), C(ansible_pct_vmid), C(proxmox_name), C(proxmox_pool) and C(proxmox_tags).
  - C(ansible_host) is the address that the cluster itself uses for the node. Where the controller uses another one,
    set it with O(compose).
"""

EXAMPLES = r"""
# 1-kpro.proxmox.yml, with the secret in GPUOPS_PROXMOX_TOKEN_SECRET
plugin: gpuops.sglang.proxmox
url: https://kpro5.example.lan
user: ops@pve
token_id: inventory
ca_path: ../pve-root-ca.pem

---
# every running container of two nodes; the secret from a file that ansible-vault has encrypted
plugin: gpuops.sglang.proxmox
url: https://kpro5.example.lan
user: ops@pve
token_id: inventory
token_secret: "{{ lookup('ansible.builtin.unvault', '/etc/ansible/kpro.token') | trim }}"
nodes: [kpro5, kpro6]
tags: []
include_stopped: false
compose:
  ansible_host: pct_node ~ '.mgmt.example.lan'
keyed_groups:
  - key: proxmox_tags
    prefix: tag
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/gpuops-inventory
"""

import os
from typing import Any
from urllib.parse import urlencode

from ansible.errors import AnsibleError, AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.gpuops.sglang.plugins.module_utils import proxmox_inventory as proxmox
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.proxmox_http import Client


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Asks the API, and gives Ansible what proxmox_inventory makes of the answers."""

    NAME = "gpuops.sglang.proxmox"
    # none of the values can hold a template, and `ansible-inventory --list` shows distrusted ones as __ansible_unsafe
    trusted_by_default = True

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("proxmox.yml", "proxmox.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path)
        self._read_config_data(path)
        try:
            asked = proxmox.api(*(self._text(name) for name in ("url", "user", "token_id", "token_secret", "password")))
            wanted = proxmox.Wanted(
                self.get_option("nodes"), self.get_option("tags"), self.get_option("include_stopped")
            )
            status, resources = self._answers(asked, path, cache)
            self._fill(proxmox.build(asked, status, resources, wanted))
        except Refused as refused:
            raise AnsibleParserError(f"{path}: {refused}") from None

    def _text(self, name: str) -> str:
        """An option that may be a template or come from a vault."""
        self.templar.available_variables = self._vars
        try:
            return str(self.templar.template(self.get_option(name)) or "")
        except AnsibleError as error:
            # the template itself may hold a secret
            raise Refused(f"{name} has a template that fails ({type(error).__name__}): correct it") from None

    def _answers(self, asked: proxmox.Api, path: str, cache: bool) -> tuple[proxmox.Entries, proxmox.Entries]:
        key, cached = self.get_cache_key(path), self.get_option("cache")
        if cached and cache:
            known = self._cache.get(key) or {}
            # the file may have been changed to another cluster, or to a user who sees something else
            if (known.get("url"), known.get("who")) == (asked.url, asked.who):
                return known["status"], known["resources"]
        status, resources = self._ask(asked, path)
        if cached:
            self._cache[key] = {"url": asked.url, "who": asked.who, "status": status, "resources": resources}
        return status, resources

    def _ask(self, asked: proxmox.Api, path: str) -> tuple[proxmox.Entries, proxmox.Entries]:
        ca_path = os.path.expanduser(self._text("ca_path"))
        ca_path = os.path.join(os.path.dirname(path), ca_path) if ca_path else None
        client = Client(asked, ca_path, self.get_option("validate_certs"), self.get_option("timeout"))
        if asked.token_id:
            login = asked.token_header
        else:
            form = urlencode({"username": asked.user, "password": asked.secret})
            login = proxmox.ticket(asked, self._send(asked, client, "/access/ticket", {}, form))
        status, resources = (
            proxmox.entries(f"{asked.url}{what}", self._send(asked, client, what, login))
            for what in (proxmox.STATUS, proxmox.RESOURCES)
        )
        return status, resources

    def _send(
        self, asked: proxmox.Api, client: Client, what: str, headers: dict[str, str], form: str | None = None
    ) -> bytes:
        code, reason, body = client.send("POST" if form else "GET", what, form, headers)
        if code != 200:
            raise proxmox.refusal(asked, what, code, reason, body)
        return body

    def _fill(self, result: proxmox.Inventory) -> None:
        for warning in result.warnings:
            self.display.warning(warning)
        for host, variables in result.hosts.items():
            self._refuse_other_cluster(host, variables["proxmox_url"])
        for host, variables in result.hosts.items():
            self.inventory.add_host(host)
            for name, value in variables.items():
                self.inventory.set_variable(host, name, value)
        for group, hosts in result.groups.items():
            self.inventory.add_group(group)
            for host in hosts:
                self.inventory.add_host(host, group=group)
        self.inventory.add_group(proxmox.SGLANG)
        self.inventory.add_child(proxmox.SGLANG, proxmox.CONTAINERS)
        strict = self.get_option("strict")
        for host, variables in result.hosts.items():
            self._set_composite_vars(self.get_option("compose"), variables, host, strict)
            self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict)
            self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict)

    def _refuse_other_cluster(self, host: str, url: str) -> None:
        known = self.inventory.hosts.get(host)
        other = known.vars.get("proxmox_url", url) if known else url
        if other != url:
            raise Refused(
                f"{host} of {url} is in the inventory already, from {other}: numbers are unique in one cluster only,"
                " so give each cluster an inventory of its own (-i)"
            )
