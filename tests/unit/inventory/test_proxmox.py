# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own commands with the inventory plugin, against a fake Proxmox VE API over TLS on loopback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible_collections.gpuops.sglang.plugins.inventory import proxmox
from fakepve import FakePve

pytestmark = pytest.mark.slow  # each runs whole Ansible commands

ROOT = Path(__file__).parents[3]
SECRET = "planted-0a1b2c3d-4e5f"
TOKEN = "ops@pve!inv"
ASKED = [("GET", "/api2/json/cluster/status"), ("GET", "/api2/json/cluster/resources")]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def _fakepve_pki(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """In place of fakepve's own: certificate and key of a node, signed as Proxmox VE signs them by ca.pem beside."""
    folder = tmp_path_factory.mktemp("pve")
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    ca = ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Proxmox Virtual Environment"]
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    node = ["-keyout", "node.key", "-out", "node.pem", "-subj", "/CN=kpro5", "-addext", names]
    for words in (ca, [*node, "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]):
        subprocess.run([*new, *words], cwd=folder, check=True, capture_output=True)
    return str(folder / "node.pem"), str(folder / "node.key")


@pytest.fixture
def cluster(fakepve: FakePve) -> FakePve:
    """Nodes kpro5 and kpro6 with containers, a template and a virtual machine; a token that may only look."""
    fakepve.nodes.clear()
    fakepve.add_ct(129, "qwen", node="kpro5", status="running", config={"tags": "prod;sglang"})
    fakepve.add_ct(130, "llm", node="kpro5", status="running", config={"tags": "sglang"})
    fakepve.add_ct(131, "llm", node="kpro6", status="stopped", config={"tags": "sglang"})
    fakepve.add_ct(140, "web", node="kpro5", status="running")
    fakepve.add_ct(900, "base", node="kpro5", template=True, config={"tags": "sglang"})
    fakepve.add_vm(200, "win", node="kpro6", status="running", config={"tags": "sglang"})
    fakepve.apitokens[TOKEN] = SECRET
    fakepve.grant(TOKEN, "/", "Sys.Audit", "VM.Audit")
    return fakepve


@pytest.fixture
def source(tmp_path: Path, fakepve: FakePve, _fakepve_pki: tuple[str, str]) -> Callable[..., Path]:
    """Writes an inventory file; an option that is None is left out."""
    (tmp_path / "ca.pem").write_bytes(Path(_fakepve_pki[0]).with_name("ca.pem").read_bytes())

    def write(name: str = "kpro.proxmox.yml", **options: Any) -> Path:
        known = {"url": fakepve.url, "user": "ops@pve", "token_id": "inv", "ca_path": "ca.pem", **options}
        path = tmp_path / name
        given = {key: value for key, value in known.items() if value is not None}
        path.write_text(yaml.safe_dump({"plugin": "gpuops.sglang.proxmox", **given}))
        return path

    return write


@pytest.fixture
def run(tmp_path: Path) -> Command:
    """Runs a command of Ansible in this checkout; the secret must not be in what it says."""

    def command(name: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GPUOPS_"))}
        new = {"HOME": str(tmp_path), "no_proxy": "127.0.0.1,localhost", "GPUOPS_PROXMOX_TOKEN_SECRET": SECRET}
        done = subprocess.run(
            [Path(sys.executable).parent / name, *words],
            cwd=ROOT,
            env={**kept, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **new, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert SECRET not in done.stdout + done.stderr
        return done

    return command


@pytest.fixture
def listed(run: Command) -> Callable[..., dict[str, Any]]:
    """What `ansible-inventory --list` says of a file, which must give no warning."""

    def ask(path: Path, *words: str | Path, **environment: str) -> dict[str, Any]:
        done = run("ansible-inventory", "--list", "-i", path, *words, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        inventory: dict[str, Any] = json.loads(done.stdout)
        return inventory

    return ask


def unbroken(text: str) -> str:
    """Older versions of Ansible break a warning at spaces and hyphens, at the width of the terminal."""
    return "".join(text.split())


def groups_of(inventory: dict[str, Any], host: str) -> set[str]:
    """The groups that hold a host, themselves or through others."""
    found = {name for name, group in inventory.items() if host in group.get("hosts", [])}
    while True:
        parents = {name for name, group in inventory.items() if found & set(group.get("children", []))}
        if parents <= found:
            return found
        found |= parents


def test_the_cluster_has_the_groups_and_the_connection_of_the_example(
    cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    found, example = listed(source()), listed(ROOT / "inventories/example")
    assert [request[:2] for request in cluster.requests] == ASKED
    variables = found["_meta"]["hostvars"]
    assert sorted(variables) == ["ct129", "ct130", "ct131", "pve-kpro5", "pve-kpro6"]
    for host in ("ct129", "pve-kpro5"):
        assert groups_of(found, host) == groups_of(example, host)
    assert sorted(found["kpro5"]["hosts"]) == ["ct129", "ct130", "pve-kpro5"]
    same = ("ansible_connection", "ansible_pct_vmid", "pct_node")
    assert (
        [variables["ct129"][name] for name in same]
        == [example["_meta"]["hostvars"]["ct129"][name] for name in same]
        == ["gpuops.sglang.pct", 129, "kpro5"]
    )
    assert [variables[host]["ansible_host"] for host in ("ct129", "pve-kpro5", "ct131", "pve-kpro6")] == [
        "192.0.2.11",
        "192.0.2.11",
        "192.0.2.12",
        "192.0.2.12",
    ]
    assert variables["ct129"]["proxmox_tags"] == ["prod", "sglang"]
    assert (variables["ct131"]["proxmox_name"], variables["ct131"]["proxmox_status"]) == ("llm", "stopped")


def test_a_container_that_stops_or_moves_is_seen_the_next_time(
    cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    cluster.ct(129).node, cluster.ct(130).status = "kpro6", "stopped"
    found = listed(source())
    assert groups_of(found, "ct129") == {"kpro6", "sglang_containers", "sglang", "all"}
    moved, stopped = (found["_meta"]["hostvars"][host] for host in ("ct129", "ct130"))
    assert (moved["pct_node"], moved["ansible_host"]) == ("kpro6", "192.0.2.12")
    assert stopped["proxmox_status"] == "stopped"


@pytest.mark.parametrize(("limit", "hosts"), [("kpro5", {"pve-kpro5", "ct129", "ct130"}), ("ct129", {"ct129"})])
def test_a_deployment_can_be_limited(
    cluster: FakePve, source: Callable[..., Path], run: Command, limit: str, hosts: set[str]
) -> None:
    done = run("ansible-playbook", "-i", source(), "playbooks/deploy.yml", "--list-hosts", "-l", limit)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(re.findall(r"^ {6}(\S+)$", done.stdout, re.MULTILINE)) == hosts


def test_filters_and_constructed_groups_and_variables(
    cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    found = listed(
        source(
            nodes=["kpro5"],
            tags=[],
            include_stopped=False,
            compose={"ansible_host": "pct_node ~ '.mgmt'"},
            groups={"untagged": "not proxmox_tags | default(['a node'])"},
            keyed_groups=[{"key": "proxmox_tags", "prefix": "tag"}],
        )
    )
    hosts = {name: group["hosts"] for name, group in found.items() if "hosts" in group}
    assert hosts["kpro5"] == ["pve-kpro5", "ct129", "ct130", "ct140"]
    assert (hosts["tag_prod"], hosts["tag_sglang"], hosts["untagged"]) == (["ct129"], ["ct129", "ct130"], ["ct140"])
    assert {variables["ansible_host"] for variables in found["_meta"]["hostvars"].values()} == {"kpro5.mgmt"}


def test_a_password_opens_a_session(
    cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    # what a form must quote
    cluster.users["ops@pve"] = f"{SECRET} &=%+ü"
    cluster.grant("ops@pve", "/", "Sys.Audit", "VM.Audit")
    environment = {"GPUOPS_PROXMOX_TOKEN_SECRET": "", "GPUOPS_PROXMOX_PASSWORD": cluster.users["ops@pve"]}
    found = listed(source(token_id=None), **environment)
    assert "ct129" in found["_meta"]["hostvars"]
    assert [request[:2] for request in cluster.requests] == [("POST", "/api2/json/access/ticket"), *ASKED]


def test_the_secret_may_be_vaulted_in_the_file_or_in_an_extra_variable(
    tmp_path: Path, cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "key").write_text("vault key")
    sealed = VaultLib([("default", VaultSecret(b"vault key"))]).encrypt(SECRET).decode()
    indented = "".join(f"  {line}\n" for line in sealed.splitlines())
    inline = source("inline.proxmox.yml")
    with inline.open("a") as file:
        file.write(f"token_secret: !vault |\n{indented}")
    (tmp_path / "vars.yml").write_text(f"vault_token: !vault |\n{indented}")
    words = ("-i", source(token_secret="{{ vault_token }}"), "-e", f"@{tmp_path / 'vars.yml'}")
    secrets = {"GPUOPS_PROXMOX_TOKEN_SECRET": ""}
    assert "ct129" in listed(inline, *words, "--vault-password-file", tmp_path / "key", **secrets)["_meta"]["hostvars"]
    assert [request[:2] for request in cluster.requests] == ASKED * 2


def test_a_new_python_trusts_the_certificates_of_proxmox(
    tmp_path: Path, cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    # from Python 3.13 on this is the default: the root of Proxmox VE does not say what its key may be used for
    (tmp_path / "sitecustomize.py").write_text(
        "import ssl\n"
        "default = ssl.create_default_context\n"
        "def strict(*args, **facts):\n"
        "    context = default(*args, **facts)\n"
        "    context.verify_flags |= ssl.VERIFY_X509_STRICT\n"
        "    return context\n"
        "ssl.create_default_context = strict\n"
    )
    strict = {"PYTHONPATH": str(tmp_path)}
    assert "ct129" in listed(source(), **strict)["_meta"]["hostvars"]


def test_answers_are_kept_for_as_long_as_the_file_asks_the_same(
    tmp_path: Path, cluster: FakePve, source: Callable[..., Path], listed: Callable[..., dict[str, Any]]
) -> None:
    cache = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_connection": str(tmp_path / "cache")}
    listed(source(**cache))
    assert [request[:2] for request in cluster.requests] == ASKED
    assert not any(SECRET in path.read_text() for path in (tmp_path / "cache").iterdir())
    cluster.ct(130).status = "stopped"
    # what is taken of the answers may change at any time
    found = listed(source(**cache, tags=[]))
    assert "ct140" in found["_meta"]["hostvars"]
    assert found["_meta"]["hostvars"]["ct130"]["proxmox_status"] == "running"
    assert len(cluster.requests) == 2
    again = listed(source(**cache, url=cluster.url.replace("127.0.0.1", "localhost")))
    assert again["_meta"]["hostvars"]["ct130"]["proxmox_status"] == "stopped"
    assert len(cluster.requests) == 4


# what an inventory file says otherwise -> the line, with the API's address for URL
REFUSED = [
    ({}, "URL/cluster/status is not for ops@pve!inv (403 Permission check failed (/, Sys.Audit)): 'pveum acl modify /"
         " --users ops@pve --tokens 'ops@pve!inv' --roles PVEAuditor' on a node"),
    ({}, "URL/cluster/resources?type=vm is no Proxmox VE API, it answered '<html><body>Welcome to nginx!</body></ht':"
         " check the host and the port in url"),
    ({"token_secret": "wrong"},
     "URL refused ops@pve!inv (401 authentication failure): check user, token_id, token_secret and the token's expiry"),
    ({"token_secret": ""},
     "token_secret of ops@pve!inv is empty or holds white space: set GPUOPS_PROXMOX_TOKEN_SECRET, or token_secret"
     " from a vault"),
    ({"token_secret": "{{ '" + SECRET + "' | nofilter }}"}, "token_secret has a template that fails"),
    ({"token_id": None, "password": f"{SECRET}x"}, "URL refused ops@pve (401 authentication failure): check user,"),
    ({"ca_path": None},
     "URL has a certificate that is not trusted (unable to get local issuer certificate): set ca_path to a copy of a"
     " node's /etc/pve/pve-root-ca.pem, and write a name into url that the certificate holds"),
    ({"ca_path": "/none/ca.pem"},
     "ca_path /none/ca.pem: [Errno 2] No such file or directory: copy a node's /etc/pve/pve-root-ca.pem there"),
]  # fmt: skip


def test_a_refusal_is_one_line_without_the_secret(cluster: FakePve, source: Callable[..., Path], run: Command) -> None:
    # one answer each, so to the first file and to the second
    cluster.fail("GET", "/cluster/status", 403, "Permission check failed (/, Sys.Audit)", times=1)
    cluster.fail("GET", "/cluster/resources", 200, "<html><body>Welcome to nginx!</body></html>", html=True, times=1)
    expected = [(source(f"{i}.proxmox.yml", **options), said) for i, (options, said) in enumerate(REFUSED)]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nobody = f"https://127.0.0.1:{silent.getsockname()[1]}"
        said = f"{nobody} is out of reach ([Errno 111] Connection refused): check url, and 'systemctl status pveproxy'"
        expected.append((source("nobody.proxmox.yml", url=nobody), said))
        words = [word for path, _ in expected for word in ("-i", path)]
        done = run("ansible-inventory", "--list", "-vvvv", *words, ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED="false")
    lines = [f"{path}: {said.replace('URL', cluster.url)}" for path, said in expected]
    assert [line for line in lines if unbroken(line) not in unbroken(done.stderr)] == []
    assert "Traceback" not in done.stdout + done.stderr
    assert "ct129" not in done.stdout


def test_no_container_is_a_warning(cluster: FakePve, source: Callable[..., Path], run: Command) -> None:
    done = run("ansible-inventory", "--list", "-i", source(tags=["gpu"]))
    assert done.returncode == 0
    assert unbroken("none of 4 containers has the tag gpu, there are prod, sglang:") in unbroken(done.stderr)
    assert sorted(json.loads(done.stdout)["_meta"]["hostvars"]) == ["pve-kpro5", "pve-kpro6"]


def test_two_clusters_in_one_inventory_are_refused(cluster: FakePve, source: Callable[..., Path], run: Command) -> None:
    other = cluster.url.replace("127.0.0.1", "localhost")
    paths = source("a.proxmox.yml"), source("b.proxmox.yml", url=other)
    words = ["--list", "-i", paths[0], "-i", paths[1]]
    done = run("ansible-inventory", *words, ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED="false")
    said = f"pve-kpro5 of {other} is in the inventory already, from {cluster.url}: "
    assert unbroken(said) in unbroken(done.stderr)
    assert json.loads(done.stdout)["_meta"]["hostvars"]["ct129"]["proxmox_url"] == cluster.url
    assert run("ansible-inventory", *words).returncode != 0, "half an inventory, by this checkout's ansible.cfg"


@pytest.mark.parametrize(
    ("name", "mine"),
    [("proxmox.yml", True), ("1-kpro.proxmox.yaml", True), ("kpro.yml", False), ("proxmox.yml.j2", False)],
)
def test_only_files_named_for_it_are_read(tmp_path: Path, name: str, mine: bool) -> None:
    path = tmp_path / name
    path.touch()
    assert proxmox.InventoryModule().verify_file(str(path)) is mine


def test_the_examples_use_options_that_there_are() -> None:
    fragments = {"compose", "groups", "keyed_groups", "strict", "cache", "cache_plugin", "cache_connection"}
    options = {*yaml.safe_load(proxmox.DOCUMENTATION)["options"], *fragments}
    guide = (ROOT / "docs/inventory.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "plugin:" in block]
    assert blocks
    examples = [*yaml.safe_load_all(proxmox.EXAMPLES), *(yaml.safe_load(block) for block in blocks)]
    assert [sorted(set(example) - options) for example in examples] == [[]] * len(examples)
