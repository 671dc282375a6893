# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of the Proxmox VE API -> hosts, groups and variables; refusals -> one line."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError

import pytest
from ansible.plugins.inventory import to_safe_group_name
from ansible_collections.gpuops.sglang.plugins.module_utils import proxmox_inventory as proxmox
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from hypothesis import given
from hypothesis import strategies as st

SECRET = "11112222-3333-4444-5555-666677778888"
API = proxmox.api("https://kpro5.example.lan", "ops@pve", "inv", SECRET)
URL = "https://kpro5.example.lan:8006"


def node(name: str, ip: str | None = None, online: int = 1) -> dict[str, Any]:
    address = {"ip": ip} if ip else {}
    return {"type": "node", "id": f"node/{name}", "name": name, "online": online, "level": "", "local": 0, **address}


def container(vmid: int, node: str, status: str = "running", tags: str = "sglang", **more: Any) -> dict[str, Any]:
    facts = {"id": f"lxc/{vmid}", "type": "lxc", "vmid": vmid, "node": node, "status": status, "name": f"name{vmid}"}
    return {**facts, "template": 0, **({"tags": tags} if tags else {}), **more}


CLUSTER = [
    {"type": "cluster", "id": "cluster", "name": "lab", "nodes": 2, "quorate": 1},
    node("kpro6", "192.0.2.6"),
    node("kpro5", "192.0.2.5"),
]
GUESTS = [
    container(131, "kpro6", status="stopped"),
    container(129, "kpro5", tags="prod;sglang", pool="gpu"),
    container(140, "kpro5", tags="web"),
    container(900, "kpro5", template=1),
    {
        "id": "qemu/200",
        "type": "qemu",
        "vmid": 200,
        "node": "kpro5",
        "name": "vm",
        "status": "running",
        "tags": "sglang",
    },
]


def build(
    status: list[dict[str, Any]] = CLUSTER, guests: list[dict[str, Any]] = GUESTS, **wanted: Any
) -> proxmox.Inventory:
    return proxmox.build(API, status, guests, proxmox.Wanted(**wanted))


def test_a_cluster() -> None:
    result = build()
    assert result.groups == {
        "proxmox_nodes": ["pve-kpro5", "pve-kpro6"],
        "sglang_containers": ["ct129", "ct131", "ct140"],
        "kpro5": ["pve-kpro5", "ct129", "ct140"],
        "kpro6": ["pve-kpro6", "ct131"],
    }
    assert sorted(result.hosts) == ["ct129", "ct131", "ct140", "pve-kpro5", "pve-kpro6"]
    assert result.hosts["pve-kpro5"] == {
        "ansible_host": "192.0.2.5",
        "pct_node": "kpro5",
        "proxmox_status": "online",
        "proxmox_url": URL,
    }
    assert result.hosts["ct129"] == {
        "ansible_connection": "gpuops.sglang.pct",
        "ansible_host": "192.0.2.5",
        "ansible_pct_vmid": 129,
        "pct_node": "kpro5",
        "proxmox_name": "name129",
        "proxmox_pool": "gpu",
        "proxmox_status": "running",
        "proxmox_tags": ["prod", "sglang"],
        "proxmox_url": URL,
    }
    assert result.hosts["ct131"]["proxmox_status"] == "stopped"
    assert result.warnings == []


def test_a_node_alone_without_an_address_is_where_the_api_is() -> None:
    hosts = build([node("kpro5")]).hosts
    assert [hosts[name]["ansible_host"] for name in ("pve-kpro5", "ct129")] == ["kpro5.example.lan"] * 2


def test_a_node_of_a_cluster_without_an_address_goes_by_its_name() -> None:
    hosts = build([node("kpro5", "192.0.2.5"), node("kpro6")], nodes=["kpro6"]).hosts
    assert [hosts[name]["ansible_host"] for name in ("pve-kpro6", "ct131")] == ["kpro6"] * 2


@pytest.mark.parametrize(
    ("wanted", "hosts"),
    [
        ({"nodes": ["kpro6"]}, ["ct131", "pve-kpro6"]),
        ({"tags": ["sglang"]}, ["ct129", "ct131", "pve-kpro5", "pve-kpro6"]),
        ({"tags": ["web", "prod"]}, ["ct129", "ct140", "pve-kpro5", "pve-kpro6"]),
        ({"stopped": False}, ["ct129", "ct140", "pve-kpro5", "pve-kpro6"]),
    ],
)
def test_what_is_not_wanted_is_left_out(wanted: dict[str, Any], hosts: list[str]) -> None:
    result = build(**wanted)
    assert sorted(result.hosts) == hosts
    assert sorted({host for members in result.groups.values() for host in members}) == hosts
    assert result.warnings == []


OFFLINE = [node("kpro5", "192.0.2.5"), node("kpro6", "192.0.2.6", online=0)]


def test_a_node_that_is_offline_is_told_and_stays_unless_only_what_runs_is_wanted() -> None:
    guests = [container(129, "kpro5"), container(131, "kpro6", status="unknown")]
    result = build(OFFLINE, guests)
    assert result.groups["kpro6"] == ["pve-kpro6", "ct131"]
    assert result.hosts["pve-kpro6"]["proxmox_status"] == "offline"
    assert result.warnings == [
        f"{URL}: node kpro6 is offline, so pve-kpro6, ct131 can not be reached: start it, or leave out what does not"
        " run with include_stopped: false"
    ]
    result = build(OFFLINE, guests, stopped=False)
    assert (sorted(result.hosts), result.warnings) == (["ct129", "pve-kpro5"], [])


@pytest.mark.parametrize(
    ("guests", "wanted", "warnings"),
    [
        ([], {}, [
            f"{URL} shows ops@pve!inv no container: there is none, or VM.Audit is missing: 'pveum acl modify /"
            " --users ops@pve --tokens 'ops@pve!inv' --roles PVEAuditor' on a node"]),
        (GUESTS, {"nodes": ["kpro7"]}, [
            f"{URL} has no node kpro7: correct nodes, there are kpro5, kpro6",
            f"{URL} has no container on kpro7, 3 elsewhere: correct nodes"]),
        (GUESTS, {"tags": ["SGLang", "gpu"], "nodes": ["kpro5"]}, [
            f"{URL}: none of 2 containers has the tag SGLang or gpu, there are prod, sglang, web: tag the hosts"
            " of SGLang ('pct set VMID --tags ...'), or correct tags"]),
        ([container(129, "kpro5", tags="")], {"tags": ["sglang"]}, [
            f"{URL}: none of 1 containers has the tag sglang, there are no tags: tag the hosts of SGLang"
            " ('pct set VMID --tags ...'), or correct tags"]),
        (GUESTS, {"nodes": ["kpro6"], "stopped": False}, [
            f"{URL}: none of 1 containers runs: start them, or set include_stopped: true"]),
    ],
)  # fmt: skip
def test_no_container_is_a_warning_that_says_why(
    guests: list[dict[str, Any]], wanted: dict[str, Any], warnings: list[str]
) -> None:
    result = build(guests=guests, **wanted)
    assert result.warnings == warnings
    assert result.groups["sglang_containers"] == []


@pytest.mark.parametrize("name", ["kpro5", "pve-01", "5kpro", "a.b"])
def test_the_group_of_a_node_is_named_as_constructed_names_it(name: str) -> None:
    assert build([node(name)], [container(129, name)]).groups[to_safe_group_name(name)] == [f"pve-{name}", "ct129"]


@pytest.mark.parametrize("name", ["ct129", "sglang", "all", "ungrouped"])
def test_a_node_whose_name_is_taken_has_another_group(name: str) -> None:
    result = build([node(name)], [container(129, name)])
    assert result.groups[f"node_{name}"] == [f"pve-{name}", "ct129"]
    assert name not in result.groups
    assert result.warnings == [f"{URL}: {name} is taken, so the group of node {name} is node_{name}: -l node_{name}"]


names = st.sampled_from(["ct129", "ct7", "sglang", "all", "1a", "2a", "pve-1", "kpro5"]) | st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True
)


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.data())
def test_hosts_and_groups_share_no_name_and_a_group_is_one_node(nodes: list[str], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.sampled_from([7, 129, 130]), unique=True))
    result = build([node(name) for name in nodes], [container(n, data.draw(st.sampled_from(nodes))) for n in numbers])
    assert not set(result.hosts) & set(result.groups)
    del result.groups["proxmox_nodes"], result.groups["sglang_containers"]
    assert sorted(host for members in result.groups.values() for host in members) == sorted(result.hosts)
    assert [len({result.hosts[host]["pct_node"] for host in members}) for members in result.groups.values()] == [
        1
    ] * len(nodes)


def texts(value: Any) -> Iterator[str]:
    """Every string in a value, keys included."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("online", [0, 1])
@pytest.mark.parametrize("tags", [[], ["other"]])
def test_nothing_that_the_api_answers_becomes_a_template_or_a_control_code(online: int, tags: list[str]) -> None:
    evil = "{{ lookup('pipe', 'id') }}{% x %}\x1b[2J\n"
    guests = [container(129, evil, status=evil, tags=evil, name=evil, pool=evil)]
    result = build([node(evil, evil, online)], guests, tags=tags)
    found = list(texts([result.hosts, result.groups, result.warnings]))
    assert any("lookup" in text for text in found)
    assert [text for text in found if "{" in text or not text.isprintable()] == []


@pytest.mark.parametrize(
    ("url", "base", "host"),
    [
        ("https://kpro5", "https://kpro5:8006", "kpro5"),
        ("https://kpro5:443/", "https://kpro5:443", "kpro5"),
        ("https://192.0.2.5:8006/api2/json", "https://192.0.2.5:8006", "192.0.2.5"),
        ("https://[2001:db8::5]", "https://[2001:db8::5]:8006", "2001:db8::5"),
    ],
)
def test_addresses_of_an_api(url: str, base: str, host: str) -> None:
    asked = proxmox.api(url, "root@pam", password="x")
    assert (asked.url, asked.host, asked.who) == (base, host, "root@pam")


LOGIN = {"url": "https://kpro5", "user": "ops@pve", "token_id": "inv", "token_secret": SECRET}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "http://kpro5:8006"}, "url 'http://kpro5:8006' is no address of a Proxmox VE API: write https://HOST"),
        ({"url": "kpro5:8006"}, "url 'kpro5:8006' is no address"),
        ({"url": f"https://{SECRET}@kpro5:x"}, "url 'https://kpro5:x' has a wrong host or port ("),
        ({"url": "https://[kpro5"}, "url 'https://[kpro5' has a wrong host or port ("),
        ({"url": f"https://root:{SECRET}@kpro5"}, "url https://kpro5 holds a login: move it to user"),
        ({"user": "ops"}, "user 'ops' is no user of Proxmox VE: write it with its realm, as ops@pve"),
        ({"user": "öps@pve"}, "user 'öps@pve' is no user"),
        ({"user": f"ops@pve!inv={SECRET}"}, "user 'ops@pve!inv' is no user"),
        ({"token_id": "ops@pve!inv"}, "token_id 'ops@pve!inv' is no name of a token"),
        ({"token_id": f"inv={SECRET}"}, "token_id 'inv' is no name of a token"),
        ({"token_secret": ""}, "token_secret of ops@pve!inv is empty or holds white space: set GPUOPS_PROXMOX_TOKEN"),
        ({"token_secret": f"{SECRET}\n"}, "token_secret of ops@pve!inv is empty or holds white space"),
        ({"token_id": ""}, "ops@pve has neither a token_id nor a password: set token_id, and GPUOPS_PROXMOX_TOKEN"),
    ],
)
def test_a_wrong_login_is_refused_without_its_secret(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(Refused) as caught:
        proxmox.api(**{**LOGIN, **wrong})
    assert str(caught.value).startswith(said)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_token_goes_before_a_password() -> None:
    assert proxmox.api(**LOGIN, password="x").secret == SECRET
    assert proxmox.api(**{**LOGIN, "token_id": ""}, password="x").secret == "x"


def test_the_secret_is_in_the_header_alone() -> None:
    assert API.token_header == {"Authorization": f"PVEAPIToken=ops@pve!inv={SECRET}"}
    assert SECRET not in repr(API)


@pytest.mark.parametrize(
    ("code", "reason", "body", "said"),
    [
        (401, "authentication failure", b"",
         f"{URL} refused ops@pve!inv (401 authentication failure): check user, token_id, token_secret and the token's"
         " expiry"),
        (403, "Forbidden", b'{"data":null,"message":"Permission check failed (/, Sys.Audit)\\n"}',
         f"{URL}/cluster/status is not for ops@pve!inv (403 Permission check failed (/, Sys.Audit)):"
         " 'pveum acl modify / --users ops@pve --tokens 'ops@pve!inv' --roles PVEAuditor' on a node"),
        (301, "Moved", b"<html>",
         f"{URL}/cluster/status is no Proxmox VE API, it answered 301 Moved: check the host and the port in url"),
        (404, "Not Found", b"[]",
         f"{URL}/cluster/status is no Proxmox VE API, it answered 404 Not Found: check the host and the port in url"),
        (500, "two\nlines\x1b", b"",
         f"{URL}/cluster/status answered 500 two lines: see 'journalctl -u pveproxy -u pvedaemon' on"
         " kpro5.example.lan"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_with_a_next_step(code: int, reason: str, body: bytes, said: str) -> None:
    assert str(proxmox.refusal(API, "/cluster/status", code, reason, body)) == said


def test_a_refused_password_is_no_matter_of_tokens() -> None:
    asked = proxmox.api("https://kpro5", "root@pam", password=SECRET)
    said = "https://kpro5:8006 refused root@pam (401 no): check user, password"
    assert str(proxmox.refusal(asked, "/access/ticket", 401, "no", b"")) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (URLError(ConnectionRefusedError(111, "Connection refused")),
         f"{URL} is out of reach ([Errno 111] Connection refused): check url, and 'systemctl status pveproxy' there"),
        (URLError(socket.gaierror(-2, "Name or service not known")),
         f"{URL} is out of reach ([Errno -2] Name or service not known): check url, and 'systemctl status pveproxy'"
         " there"),
        (TimeoutError("timed out"), f"{URL} gave no answer within 7 s: check url and the way there, or raise timeout"),
        (URLError(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")),
         f"{URL} does not speak TLS ([SSL: WRONG_VERSION_NUMBER] wrong version number): check the port in url, 8006 by"
         " default"),
    ],
)  # fmt: skip
def test_no_answer_is_one_line_with_a_next_step(error: Exception, said: str) -> None:
    assert str(proxmox.unreachable(API, error, 7)) == said


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"", b"[]", b"null", b'{"x":1}', b'{"data":{}}'])
def test_what_is_no_answer_of_the_api_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match=r"^https://kpro5/x is no Proxmox VE API, it answered '.*': check the host and"):
        proxmox.entries("https://kpro5/x", body)


def test_a_ticket() -> None:
    body = json.dumps({"data": {"ticket": "PVE:root@pam:1::x", "CSRFPreventionToken": "y"}}).encode()
    assert proxmox.ticket(API, body) == {"Cookie": "PVEAuthCookie=PVE:root@pam:1::x"}


def test_a_login_with_a_second_factor_is_sent_to_tokens() -> None:
    body = json.dumps({"data": {"ticket": "PVE:!tfa!x", "NeedTFA": 1}}).encode()
    with pytest.raises(Refused, match=r"asks ops@pve for a second factor: use an API token"):
        proxmox.ticket(API, body)
