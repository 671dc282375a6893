# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts, groups and variables from the answers of the Proxmox VE API, and what its refusals mean."""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

STATUS = "/cluster/status"  # the nodes and their addresses
RESOURCES = "/cluster/resources?type=vm"  # the containers and virtual machines of all nodes
NODES, CONTAINERS, SGLANG = "proxmox_nodes", "sglang_containers", "sglang"

Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Api:
    """Where the API is and who asks."""

    url: str  # https://HOST:PORT
    host: str
    user: str
    token_id: str = ""  # empty: `secret` is the user's password
    secret: str = field(default="", repr=False)

    @property
    def who(self) -> str:
        return f"{self.user}!{self.token_id}" if self.token_id else self.user

    @property
    def receivers(self) -> str:
        """Options of `pveum acl modify`; a token has at most what its user has."""
        return f"--users {self.user}" + (f" --tokens '{self.who}'" if self.token_id else "")

    @property
    def token_header(self) -> dict[str, str]:
        return {"Authorization": f"PVEAPIToken={self.who}={self.secret}"}


@dataclass(frozen=True)
class Wanted:
    """What of the cluster goes into the inventory; an empty list means all."""

    nodes: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    stopped: bool = True


@dataclass
class Inventory:
    """Hosts with their variables, groups with their hosts, and what the operator should know."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def api(url: str, user: str, token_id: str = "", token_secret: str = "", password: str = "") -> Api:
    """Check the options of a login. No message shows what could be a part of a secret."""
    shown = re.sub(r"//.*@", "//", url)
    try:
        parts = urlsplit(url)
        port = parts.port or 8006
    except ValueError as error:
        raise Refused(
            f"url '{shown}' has a wrong host or port ({error}): write https://HOST or https://HOST:PORT"
        ) from None
    if parts.scheme != "https" or not parts.hostname:
        raise Refused(f"url '{shown}' is no address of a Proxmox VE API: write https://HOST or https://HOST:PORT")
    if "@" in parts.netloc:
        raise Refused(f"url {shown} holds a login: move it to user, and to token_secret or password")
    address = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if not (user.isascii() and re.fullmatch(r"[^\s!=/:]+@[\w.-]+", user)):
        raise Refused(f"user '{_before_secret(user)}' is no user of Proxmox VE: write it with its realm, as ops@pve")
    if token_id:
        if not re.fullmatch(r"[\w.-]+", token_id, re.ASCII):
            raise Refused(
                f"token_id '{_before_secret(token_id)}' is no name of a token: write what stands behind the '!' of"
                f" 'pveum user token list {user}'"
            )
        if not re.fullmatch(r"[!-~]+", token_secret):
            raise Refused(
                f"token_secret of {user}!{token_id} is empty or holds white space: set GPUOPS_PROXMOX_TOKEN_SECRET,"
                " or token_secret from a vault"
            )
    elif not password:
        raise Refused(f"{user} has neither a token_id nor a password: set token_id, and GPUOPS_PROXMOX_TOKEN_SECRET")
    return Api(f"https://{address}:{port}", parts.hostname, user, token_id, token_secret if token_id else password)


def entries(where: str, body: bytes) -> Entries:
    """The list that the API answers a GET with."""
    data = answer(where, body)
    if not isinstance(data, list):
        raise _no_api(where, body)
    return data


def ticket(asked: Api, body: bytes) -> dict[str, str]:
    """The header that the answer to a login by password allows."""
    where = f"{asked.url}/access/ticket"
    data = answer(where, body)
    if not isinstance(data, dict) or not data.get("ticket"):
        raise _no_api(where, body)
    if data.get("NeedTFA"):
        raise Refused(f"{asked.url} asks {asked.user} for a second factor: use an API token (token_id, token_secret)")
    return {"Cookie": f"PVEAuthCookie={data['ticket']}"}


def answer(where: str, body: bytes) -> Any:
    """The data in an answer of the API."""
    try:
        return json.loads(body)["data"]
    except (ValueError, TypeError, KeyError):
        raise _no_api(where, body) from None


def _no_api(where: str, body: bytes) -> Refused:
    start = _line(body[:200])[:40]
    return Refused(f"{where} is no Proxmox VE API, it answered '{start}': check the host and the port in url")


def refusal(asked: Api, path: str, code: int, reason: str, body: bytes) -> Refused:
    """What an answer with an HTTP code other than 200 means."""
    where = f"{asked.url}{path}"
    try:
        said = f"{code} {_line(json.loads(body)['message'])}"
    except (ValueError, TypeError, KeyError):
        said = f"{code} {_line(reason)}".strip()
    if code == 401:
        options = "token_id, token_secret and the token's expiry" if asked.token_id else "password"
        return Refused(f"{asked.url} refused {asked.who} ({said}): check user, {options}")
    if code == 403:
        return Refused(
            f"{where} is not for {asked.who} ({said}):"
            f" 'pveum acl modify / {asked.receivers} --roles PVEAuditor' on a node"
        )
    if code < 400 or code == 404:
        return Refused(f"{where} is no Proxmox VE API, it answered {said}: check the host and the port in url")
    return Refused(f"{where} answered {said}: see 'journalctl -u pveproxy -u pvedaemon' on {asked.host}")


def unreachable(asked: Api, error: Exception, timeout: int) -> Refused:
    """Why there was no answer; `timeout` in seconds."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Refused(
            f"{asked.url} has a certificate that is not trusted ({cause.verify_message}): set ca_path to a copy of a"
            " node's /etc/pve/pve-root-ca.pem, and write a name into url that the certificate holds"
        )
    if isinstance(cause, TimeoutError):
        return Refused(f"{asked.url} gave no answer within {timeout} s: check url and the way there, or raise timeout")
    if isinstance(cause, ssl.SSLError):
        return Refused(f"{asked.url} does not speak TLS ({_line(cause)}): check the port in url, 8006 by default")
    return Refused(f"{asked.url} is out of reach ({_line(cause)}): check url, and 'systemctl status pveproxy' there")


def build(asked: Api, status: Entries, resources: Entries, wanted: Wanted) -> Inventory:
    """The inventory of what is wanted of a cluster, or of a node alone."""
    result = Inventory(groups={NODES: [], CONTAINERS: []})
    nodes = {_word(entry["name"]): entry for entry in status if entry.get("type") == "node"}
    # a node of a cluster has no address while it has been off since the others started
    addresses = {
        name: _word(entry.get("ip") or (asked.host if len(nodes) == 1 else name)) for name, entry in nodes.items()
    }
    unknown = sorted(set(wanted.nodes) - set(nodes))
    if unknown:
        result.warnings.append(
            f"{asked.url} has no node {', '.join(unknown)}: correct nodes, there are {', '.join(sorted(nodes))}"
        )
    containers = _chosen(asked, _containers(resources), wanted, result.warnings)
    for name, entry in sorted(nodes.items()):
        online = bool(int(entry.get("online") or 0))
        if (wanted.nodes and name not in wanted.nodes) or not (online or wanted.stopped):
            continue
        host = f"pve-{name}"
        result.groups[NODES].append(host)
        result.hosts[host] = {
            "ansible_host": addresses[name],
            "pct_node": name,
            "proxmox_status": "online" if online else "offline",
            "proxmox_url": asked.url,
        }
        if not online:
            lost = ", ".join([host, *(container.host for container in containers if container.node == name)])
            result.warnings.append(
                f"{asked.url}: node {name} is offline, so {lost} can not be reached: start it, or leave out what does"
                " not run with include_stopped: false"
            )
    for container in containers:
        result.groups[CONTAINERS].append(container.host)
        result.hosts[container.host] = {
            "ansible_connection": "gpuops.sglang.pct",
            "ansible_host": addresses.get(container.node, container.node),
            "ansible_pct_vmid": container.vmid,
            "pct_node": container.node,
            "proxmox_name": container.name,
            "proxmox_pool": container.pool,
            "proxmox_status": container.status,
            "proxmox_tags": container.tags,
            "proxmox_url": asked.url,
        }
    _add_groups_of_nodes(asked, result)
    return result


@dataclass(frozen=True)
class _Container:
    """A container as the API lists it."""

    vmid: int
    node: str
    name: str
    pool: str
    status: str
    tags: list[str]

    @property
    def host(self) -> str:
        return f"ct{self.vmid}"


def _containers(resources: Entries) -> list[_Container]:
    """All containers that are no templates."""
    found = [
        _Container(
            vmid=int(entry["vmid"]),
            node=_word(entry["node"]),
            name=_word(entry.get("name") or ""),
            pool=_word(entry.get("pool") or ""),
            status=_word(entry.get("status") or "unknown"),
            tags=[_word(tag) for tag in re.split(r"[;,\s]+", entry.get("tags") or "") if tag],
        )
        for entry in resources
        if entry.get("type") == "lxc" and not int(entry.get("template") or 0)
    ]
    return sorted(found, key=lambda container: container.vmid)


def _chosen(asked: Api, found: list[_Container], wanted: Wanted, warnings: list[str]) -> list[_Container]:
    """The containers that are wanted. Where there are none, a warning says what left them out."""
    on_nodes = [one for one in found if not wanted.nodes or one.node in wanted.nodes]
    tagged = [one for one in on_nodes if not wanted.tags or set(wanted.tags) & set(one.tags)]
    running = [one for one in tagged if wanted.stopped or one.status == "running"]
    if not found:
        warnings.append(
            f"{asked.url} shows {asked.who} no container: there is none, or VM.Audit is missing:"
            f" 'pveum acl modify / {asked.receivers} --roles PVEAuditor' on a node"
        )
    elif not on_nodes:
        warnings.append(
            f"{asked.url} has no container on {', '.join(wanted.nodes)}, {len(found)} elsewhere: correct nodes"
        )
    elif not tagged:
        present = sorted({tag for one in on_nodes for tag in one.tags})
        warnings.append(
            f"{asked.url}: none of {len(on_nodes)} containers has the tag {' or '.join(wanted.tags)}, there are"
            f" {', '.join(present) or 'no tags'}: tag the hosts of SGLang ('pct set VMID --tags ...'), or correct tags"
        )
    elif not running:
        warnings.append(f"{asked.url}: none of {len(tagged)} containers runs: start them, or set include_stopped: true")
    return running


def _add_groups_of_nodes(asked: Api, result: Inventory) -> None:
    """A group for each node, called like it. A host of the same name would take its place in every -l."""
    names: dict[str, str] = {}
    taken = {"all", "ungrouped", SGLANG, *result.groups, *result.hosts}
    for host, variables in result.hosts.items():
        node = variables["pct_node"]
        if node not in names:
            # as ansible.builtin.constructed makes the names of groups
            name = re.sub(r"^\d|\W", "_", node)
            if name in taken:
                other = re.sub(r"\W", "_", f"node_{node}")
                result.warnings.append(
                    f"{asked.url}: {name} is taken, so the group of node {node} is {other}: -l {other}"
                )
                name = other
            names[node] = name
            taken.add(name)
        result.groups.setdefault(names[node], []).append(host)


def _word(value: object) -> str:
    """A name, tag, state or address of Proxmox; what none of them holds could be a template or a control code."""
    return re.sub(r"[^\w.:+-]", "_", str(value))


def _line(text: object) -> str:
    """One printable line."""
    plain = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(plain.split()))[:200]


def _before_secret(value: str) -> str:
    """An option that somebody may have given a whole `user@realm!token=secret`."""
    return value.partition("=")[0]
