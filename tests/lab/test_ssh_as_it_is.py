# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins of rented and bare machines: a password, sudo with one, a jump host, no sftp, talk at every login."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connections import LAB
from playbook_runs import Run, deploy
from servers import serves
from standin import INSTANCE, asked
from testinfra.host import Host

PASSWORD = 'pass word\'s "$HOME"; #1'
PORT = 2223
SSHD = f"""
Port {PORT}
PidFile /run/sshd-odd.pid
UsePAM yes
PermitRootLogin no
PasswordAuthentication yes
PrintMotd yes
Banner /srv/odd-banner
"""
TALK = "echo Welcome to instance 4711, '{{}}' [1]; echo 'see \"billing\"' >&2"

pytestmark = pytest.mark.parametrize("standin", ["rental"], indirect=True)


def with_limit(requests: int) -> dict[str, Any]:
    """Extra vars that ask for the stand-in with another number of requests at a time."""
    return asked(args={**INSTANCE["args"], "max_running_requests": requests})


@pytest.fixture
def odd(standin: Host) -> Iterator[Host]:
    """An ordinary user with a password may log in at another port, without sftp, and is talked to."""
    standin.check_output("useradd --create-home --shell /bin/bash odd")
    standin.check_output("printf '%%s\\n' %s | chpasswd", f"odd:{PASSWORD}")
    standin.check_output("printf '%%s\\n' %s >/home/odd/.bashrc", TALK)
    standin.check_output("printf %%s %s >/srv/odd-sshd", SSHD)
    standin.check_output("printf '%s\\n' 'Use is logged. {{ }}' >/srv/odd-banner")
    standin.check_output("install -d -o odd -m 700 /home/odd/.ssh")
    standin.check_output("install -o odd -m 600 /root/.ssh/authorized_keys /home/odd/.ssh/")
    standin.check_output("/usr/sbin/sshd -f /srv/odd-sshd")
    yield standin
    standin.check_output("kill $(cat /run/sshd-odd.pid)")
    standin.run("rm -f /etc/sudoers.d/odd /srv/odd-sshd /srv/odd-banner")
    standin.check_output("userdel --force --remove odd")


@pytest.fixture
def through(odd: Host, tmp_path: Path) -> Callable[..., Run]:
    """A deployment of rental by that login, with lines of ssh_config for it and variables of Ansible's ssh."""
    key = odd.check_output("cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub")
    jump = (LAB / "ssh/known_hosts").read_text()
    (tmp_path / "known_hosts").write_text(f"{jump}[10.98.0.40]:{PORT} {key}\n")

    def run(*lines: str, extra: dict[str, Any], **variables: Any) -> Run:
        config = "\n  ".join(["Host 10.98.0.40", *lines])
        config += f"\nHost kpro5\n  HostName 10.98.0.5\n  User root\nHost *\n  IdentityFile {LAB}/ssh/id_ed25519"
        config += f"\n  UserKnownHostsFile {tmp_path}/known_hosts\n  StrictHostKeyChecking yes\n"
        (tmp_path / "config").write_text(config)
        login = {"ansible_port": PORT, "ansible_user": "odd", "ansible_become": True}
        more = {**login, "ansible_ssh_common_args": f"-F {tmp_path}/config", **variables}
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"rental": more}}}))
        return deploy("-i", "inventories/lab", "-i", str(tmp_path / "hosts.json"), "-l", "rental", extra=extra)

    return run


def test_a_password_a_jump_host_no_sftp_and_sudo_that_asks(odd: Host, through: Callable[..., Run]) -> None:
    odd.check_output("printf '%s\\n' 'odd ALL=(ALL) ALL' 'Defaults:odd requiretty' >/etc/sudoers.d/odd")
    asks = {"ansible_password": PASSWORD, "ansible_become_password": PASSWORD, "ansible_pipelining": False}
    run = through("ProxyJump kpro5", "PubkeyAuthentication no", extra=with_limit(4), **asks)
    assert run.status == 0 and run.count("rental", "changed"), run
    assert serves(odd)
    assert PASSWORD not in run.output


def test_a_key_and_sudo_that_does_not_ask(odd: Host, through: Callable[..., Run]) -> None:
    odd.check_output("printf '%s\\n' 'odd ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/odd")
    run = through(extra=with_limit(5))
    assert run.status == 0 and run.count("rental", "changed"), run
    again = through(extra=with_limit(5))
    assert again.status == 0 and again.count("rental", "changed") == 0, again
    assert serves(odd)
