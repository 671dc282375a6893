# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own integration targets through gpuops.sglang.pct, from the sources of the ansible-core that runs here.

The targets run as they are; an inventory and extra variables give them this connection, as their ssh runs give theirs.
These are left out, because they do not test the connection that an inventory names:

- connection_ssh: verify_config.yml reads the options of the plugin called ssh, test_ssh_askpass.yml and the part about
  sshpass log in to localhost with `-e ansible_connection=ssh`, and the repetition with scp and piped changes how ssh
  moves files, which travel otherwise here.
- connection_delegation, connection_persistent, connection_remote_is_local, error_from_connection and loop-connection
  test Ansible with a plugin that each brings along.
- connection_local, connection_paramiko_ssh, connection_psrp, connection_winrm and connection_windows_* test the options
  of their plugins, or Windows.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from connections import LAB, NODE, on_node
from playbook_runs import PROJECT, environment

pytestmark = pytest.mark.slow

VMID = 195
CORE = importlib.metadata.version("ansible-core")
# playbooks that set the connection themselves give way to an extra variable
THROUGH_PCT = ["-e", "ansible_connection=gpuops.sglang.pct"]
OPS = {"ansible_user": "ops", "ansible_pct_node_become": "sudo"}
# what become's targets need to hash a password where ansible-core can not, and install themselves
PASSLIB = "passlib==1.7.4"

Start = Callable[..., str]


@pytest.fixture(scope="module")
def container() -> Iterator[int]:
    """A container of these tests' own: targets make users in it and leave files."""
    conf = f"/etc/pve/lxc/{VMID}.conf"
    removal = f"pct stop {VMID}; rm -rf {conf} /var/lib/lxc/{VMID}"
    on_node(f"{{ {removal}; }} 2>/dev/null; grep -v ^net0 /etc/pve/lxc/130.conf >{conf}; pct start {VMID}")
    yield VMID
    on_node(removal)


@pytest.fixture(scope="module")
def cache(pytestconfig: pytest.Config) -> Path:
    """Sources of the running ansible-core and passlib, fetched once for each version."""
    assert pytestconfig.cache
    cache = pytestconfig.cache.mkdir(f"ansible-core-{CORE}")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not (cache / "fetched").exists():
        source = ["--no-binary", ":all:", "--dest", cache, f"ansible-core=={CORE}"]
        subprocess.run([*pip, "download", "--no-deps", *source], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--upgrade", "--target", cache / "passlib", PASSLIB], check=True)
        (cache / "fetched").touch()
    return cache


@pytest.fixture(scope="module")
def targets(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder test/integration/targets of the sources."""
    (archive,) = cache.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("targets")
    members = f"{archive.name.removesuffix('.tar.gz')}/test/integration/targets"
    subprocess.run(["tar", "-xf", archive, "-C", folder, "--strip-components=4", members], check=True)
    return folder


@pytest.fixture(scope="module")
def sockets() -> Iterator[str]:
    """A folder for the sockets of shared SSH connections, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="pct") as folder:
        yield folder


@pytest.fixture
def start(cache: Path, container: int, sockets: str, targets: Path, tmp_path: Path) -> Start:
    """Run a command line in the folder of a target, with the inventory at $INVENTORY, and return what it prints."""
    common = {
        "ansible_connection": "gpuops.sglang.pct",
        "ansible_host": NODE,
        "ansible_user": "root",
        "ansible_pct_vmid": container,
        "pct_node": "kpro5",
        # no -F: like an operator's, this ssh reads /etc/ssh/ssh_config, by which Debian sends the locale to the node
        "ansible_ssh_private_key_file": f"{LAB}/ssh/id_ed25519",
        "ansible_ssh_common_args": f"-o IdentitiesOnly=yes -o UserKnownHostsFile={LAB}/ssh/known_hosts",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    hosts = {
        "ssh": {"pipelining": {"ansible_pipelining": True}, "no-pipelining": {"ansible_pipelining": False}},
        "target": {"testhost": {}},
    }
    (tmp_path / "empty.cfg").touch()

    def start(target: str, *words: object, hosts: dict[str, dict[str, object]] = hosts, **changes: str) -> str:
        inventory = {name: {"hosts": members} for name, members in hosts.items()}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": inventory, "vars": common}}))
        own = environment()
        own |= {
            "PATH": f"{Path(sys.executable).parent}:{own['PATH']}",
            "PYTHONPATH": str(cache / "passlib"),
            "INVENTORY": str(tmp_path / "hosts.yml"),
            "ANSIBLE_INVENTORY": str(tmp_path / "hosts.yml"),
            "ANSIBLE_CONFIG": str(tmp_path / "empty.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / ".dev"),
            "ANSIBLE_ROLES_PATH": os.pathsep.join([str(targets), str(targets / "fetch/roles")]),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
            **changes,
        }
        done = subprocess.run(
            list(map(str, words)),
            cwd=targets / target,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return start


def extra(**variables: object) -> list[str]:
    """Extra variables for a command line."""
    return ["-e", " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())]


@pytest.mark.parametrize(
    ("entry", "login", "locale"),
    [("quick", {}, {}), ("quick", OPS, {"LC_ALL": "C.UTF-8"}), ("strict", OPS, {})],
    ids=["quick-root", "quick-ops-LC_ALL", "strict-ops"],
)
def test_connection(start: Start, tmp_path: Path, entry: str, login: dict[str, str], locale: dict[str, str]) -> None:
    asked = extra(
        target_hosts="ssh",
        action_prefix="",
        local_tmp=tmp_path / "ansible-local",
        remote_tmp="/tmp/ansible-remote",
        ansible_pct_entry=entry,
        **login,
    )
    said = start("connection", "./test.sh", *asked, **locale)
    for host in ("pipelining", "no-pipelining"):
        assert f"{host} " in said.partition("PLAY RECAP")[2]


def test_options_of_ssh_come_from_everywhere(start: Start) -> None:
    start(
        "connection_ssh", "ansible-playbook", "check_ssh_defaults.yml", *extra(ansible_connection="gpuops.sglang.pct")
    )


def test_the_path_of_the_shared_connection_may_have_spaces(start: Start, sockets: str) -> None:
    socket = Path(sockets, "ssh cp with spaces")
    start("connection_ssh", "ansible", "ssh", "-m", "ping", ANSIBLE_SSH_CONTROL_PATH=str(socket))
    assert socket.is_socket()


@pytest.mark.skipif(CORE.startswith(("2.17", "2.18")), reason="ssh's verbosity became an option in ansible-core 2.19")
def test_ssh_is_as_verbose_as_asked(start: Start) -> None:
    command = ["ansible", "ssh", "-m", "raw", "-a", "whoami", "-vvvvv"]
    assert "debug1:" not in start("connection_ssh", *command)
    one = start("connection_ssh", *command, ANSIBLE_SSH_VERBOSITY="1")
    assert ("debug1:" in one, "debug2:" in one) == (True, False)
    assert "debug3:" in start("connection_ssh", *command, *extra(ansible_ssh_verbosity=3))


def test_become_that_does_not_answer_is_a_host_out_of_reach(start: Start, container: int) -> None:
    # the playbook's own delay is as long as the time-out that it expects
    on_node(f"pct exec {container} -- tee /etc/profile.d/slow.sh", stdin=b"sleep 3\n")
    playbook = ["ansible-playbook", "test_unreachable_become_timeout.yml", *THROUGH_PCT]
    try:
        start("connection_ssh", *playbook, hosts={"target": {"localhost": {}}})
    finally:
        on_node(f"pct exec {container} -- rm /etc/profile.d/slow.sh")


@pytest.mark.parametrize(
    ("role", "entry", "pipelining"),
    [
        ("wait_for_connection", "quick", True),
        ("become", "strict", False),
        ("become_sudo", "quick", True),
        ("become_su", "strict", True),
        ("raw", "quick", False),
        ("fetch_tests", "quick", False),
    ],
)
def test_roles(start: Start, tmp_path: Path, role: str, entry: str, pipelining: bool) -> None:
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "testhost", "roles": [role]}]))
    asked = extra(ansible_pct_entry=entry, ansible_pipelining=pipelining, output_dir=tmp_path)
    # as the target raw says in its runme.sh
    start("", "ansible-playbook", tmp_path / "play.yml", *asked, ANSIBLE_BECOME_ALLOW_SAME_USER="1")
