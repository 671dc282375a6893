# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module pct_exec as a process on the lab's node, into its containers, and what others can see of it."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import module_utils
from connections import CONTAINERS, SSH, on_node
from playbook_runs import PROJECT, begin, eventually

VMID = 197
CONF = f"/etc/pve/lxc/{VMID}.conf"
HERE = f"container {VMID} on kpro5"
FOLDER = "/run/gpuops-test-pct-exec"
NAP = "sleep 86421.7"
# a strict entry costs seconds on a busy machine
EITHER = pytest.mark.parametrize("entry", ["quick", pytest.param("strict", marks=pytest.mark.slow)])
MAIN = "from ansible_collections.gpuops.sglang.plugins.modules.pct_exec import main; main()\n"


@pytest.fixture(scope="module", autouse=True)
def on_the_node() -> Iterator[None]:
    """The module and what it imports, and a container of these tests' own, like 129 but without an address."""
    packed = io.BytesIO()
    plugins = "ansible_collections/gpuops/sglang/plugins"
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(Path(module_utils.__file__).parent, "ansible/module_utils")
        for part in ("module_utils", "modules"):
            tar.add(PROJECT / "plugins" / part, f"{plugins}/{part}")
        for name, text in (("ansible/__init__.py", ""), ("main.py", MAIN)):
            file = tarfile.TarInfo(name)
            file.size = len(text)
            tar.addfile(file, io.BytesIO(text.encode()))
    on_node(f"mkdir -p {FOLDER}; tar -xC {FOLDER}", stdin=packed.getvalue())
    on_node(f"grep -v ^net0 /etc/pve/lxc/129.conf >{CONF}; pct start {VMID}")
    yield
    on_node(f"pct stop {VMID}; rm -r {CONF} /var/lib/lxc/{VMID} {FOLDER}")


def run(*argv: str, vmid: int = VMID, login: str = "root", check: bool = False, **asked: Any) -> dict[str, Any]:
    """What the module returns."""
    ssh = [*SSH, "-l", login, "kpro5", "python3", "-B", f"{FOLDER}/main.py"]
    arguments = {"vmid": vmid, "argv": argv, "_ansible_check_mode": check, **asked}
    done = subprocess.run(ssh, input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode(), stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def sh(script: str, **asked: Any) -> dict[str, Any]:
    return run("sh", "-c", script, **asked)


@pytest.mark.parametrize("vmid", CONTAINERS)
@EITHER
def test_a_command_in_its_container(vmid: int, entry: str) -> None:
    result = sh("hostname; id -un; pwd; echo $HOME; echo err >&2", vmid=vmid, entry=entry)
    assert (result["rc"], result["changed"], result["msg"]) == (0, True, "")
    assert result["stdout"] == f"ct{vmid}\nroot\n/root\n/root"
    assert result["stderr"] == "err"
    assert result["cmd"] == ["sh", "-c", "hostname; id -un; pwd; echo $HOME; echo err >&2"]
    assert result["start"] < result["end"]
    assert result["delta"].startswith("0:")


def test_words_variables_and_a_directory() -> None:
    odd = "a  b'c\"d $HOME `id` \\ \n 模型 * -n"
    result = run(
        "sh", "-c", 'printf "%s|" "$@" "$A" "$B" "$C"; pwd', "sh", odd, "", "--",
        environment={"A": odd, "B": 1, "C": None}, secret_environment={"B": "won"}, chdir="/usr/share",
    )  # fmt: skip
    assert result["stdout"] == f"{odd}||--|{odd}|********||/usr/share"


@EITHER
def test_a_mebibyte_arrives_and_comes_back(entry: str) -> None:
    text = "größe\0\r\n" * 120_000
    both = "tee /root/copy; cat /root/copy >&2; rm /root/copy"
    result = sh(both, stdin=text, stdin_add_newline=False, strip_empty_ends=False, entry=entry)
    assert len(text.encode()) > 1 << 20
    assert (result["stdout"] == text, result["stderr"] == text) == (True, True)


def test_ends_of_stdin_and_of_the_outputs() -> None:
    assert run("cat", stdin="x\n\n")["stdout"] == "x"
    assert run("cat", stdin="x\n", strip_empty_ends=False)["stdout"] == "x\n\n"
    assert run("cat", stdin="x", stdin_add_newline=False, strip_empty_ends=False)["stdout"] == "x"
    assert run("cat")["stdout"] == ""


def test_bytes_that_are_no_text() -> None:
    assert sh(r"printf '\377\0x'")["stdout"] == "\ufffd\0x"


def test_exit_codes() -> None:
    result = sh("echo out; echo why >&2; exit 3")
    assert (result["failed"], result["rc"], result["stdout"], result["stderr"]) == (True, 3, "out", "why")
    assert result["msg"] == (
        f"{HERE}: sh ended with code 3, not with 0: why; correct the command, or add 3 to exit_codes"
    )
    result = sh("exit 255", exit_codes=[0, 255])
    assert (result["rc"], "failed" in result) == (255, False)
    assert sh("exit 0", exit_codes=[1, 2])["msg"].startswith(
        f"{HERE}: sh ended with code 0, not with 1 or 2: no output;"
    )
    missing = run("no-such-program")
    assert (missing["failed"], missing["rc"]) == (True, 127)
    assert "no-such-program: not found" in missing["msg"]


@pytest.mark.parametrize("check", [pytest.param(False, marks=pytest.mark.slow), True])
def test_creates_and_removes(check: bool) -> None:
    verb = "Would" if check else "Did"
    on_node(f"pct exec {VMID} -- rm -rf /root/made; pct exec {VMID} -- mkdir /root/made")
    there = run("touch", "ran", chdir="/root/made", creates="/etc/host*", check=check)
    assert (there["changed"], there["rc"]) == (False, 0)
    assert there["msg"] == f"{verb} not run command since '/etc/host*' exists"
    away = run("touch", "ran", chdir="/root/made", removes="/no where*", check=check)
    assert (away["changed"], away["msg"]) == (False, f"{verb} not run command since '/no where*' does not exist")
    assert on_node(f"pct exec {VMID} -- ls /root/made") == ""
    for condition in ({"creates": "ra*"}, {"removes": "/etc/hostname"}):
        made = run("touch", "ran", chdir="/root/made", check=check, **condition)
        assert (made["changed"], made["rc"], "skipped" in made) == (True, 0, False)
        assert on_node(f"pct exec {VMID} -- ls /root/made") == ("" if check else "ran\n")
    again = run("touch", "ran", chdir="/root/made", check=check, creates="ra*")
    assert again["changed"] is check, "a pattern starts at chdir"


def test_a_link_to_nothing_is_there() -> None:
    sh("ln -s /nowhere /root/link")
    assert run("true", creates="/root/link")["changed"] is False


def test_check_mode_skips_what_nothing_decides() -> None:
    result = run("touch", "/root/ran", check=True)
    assert (result["skipped"], result["changed"], result["rc"]) == (True, False, 0)
    assert run("test", "-e", "/root/ran", exit_codes=[1])["rc"] == 1


@EITHER
def test_a_timeout_ends_what_runs_in_the_container(entry: str) -> None:
    stubborn = f'trap "" TERM; echo begun; setsid {NAP} & while :; do {NAP}; done'
    result = sh(stubborn, timeout=4, entry=entry)
    assert (result["failed"], result["rc"], result["stdout"]) == (True, None, "begun")
    assert result["msg"].startswith(f"{HERE}: sh had not finished after 4 s and was ended, with everything that it")
    assert on_node(f"pgrep -fx '{NAP}' || :") == ""


def test_a_timeout_that_is_long_enough() -> None:
    assert sh("echo x", timeout=300)["stdout"] == "x"


def test_a_directory_that_is_not_there() -> None:
    assert run("true", chdir="/none")["msg"] == (
        f"{HERE}: there is no directory /none in which true could run: make it, or correct chdir"
    )


@EITHER
def test_a_stopped_container(entry: str) -> None:
    on_node(f"pct stop {VMID}")
    try:
        result = run("true", entry=entry, stdin="x" * 1_000_000)
    finally:
        on_node(f"pct start {VMID}")
    assert (result["failed"], result["rc"], result["changed"]) == (True, None, False)
    assert result["msg"] == f"{HERE} is stopped: start it with 'pct start {VMID}' on kpro5"


@EITHER
def test_a_locked_container(entry: str) -> None:
    on_node(f"sed -i '1i lock: migrate' {CONF}")
    try:
        assert run("true", entry=entry)["msg"] == (
            f"{HERE} is locked (migrate): wait for the task that holds it (see the task log of kpro5),"
            " or set locked to enter"
        )
        assert run("true", entry=entry, locked="enter")["rc"] == 0
    finally:
        on_node(f"sed -i /^lock:/d {CONF}")


def test_a_container_that_moved() -> None:
    on_node(f"mkdir -p /etc/pve/nodes/kpro6/lxc; mv {CONF} /etc/pve/nodes/kpro6/lxc")
    try:
        moved = run("true")
    finally:
        on_node(f"mv /etc/pve/nodes/kpro6/lxc/{VMID}.conf {CONF}; rmdir -p /etc/pve/nodes/kpro6/lxc || :")
    assert moved["msg"] == (
        f"{HERE} is not there any more, it is on kpro6: set the host of the task to the address of kpro6"
    )


@EITHER
def test_a_container_that_is_not_there(entry: str) -> None:
    assert run("true", vmid=999, entry=entry)["msg"] == (
        "there is no container 999 on kpro5: see 'pct list' on kpro5 and correct vmid, or the host of the task if it"
        " moved to another node"
    )


def test_a_login_that_is_not_root() -> None:
    result = run("true", login="ops")
    assert result["msg"].startswith(f"{HERE}: entering it needs root on kpro5 and the login is user id ")
    assert result["msg"].endswith(": set become to true")


LOOK = """
echo "[$IN_ENVIRONMENT]" | sed 's/./&-/g'; sed 's/./&-/g'
cat /proc/[0-9]*/cmdline | tr '\\0' ' '
touch /run/gpuops-look
i=0; while [ -e /run/gpuops-look ] && [ $i -lt 300 ]; do i=$((i + 1)); sleep 0.1; done
"""
HIDDEN = {"in_environment": "Hidden-quote-'-\"-environment", "in_stdin": "Hidden-stdin"}


@pytest.mark.slow
def test_nobody_sees_secrets(tmp_path: Path) -> None:
    """Not in a command line of the container, of the node or of the controller, no log, and no output of Ansible."""
    task = {
        "vmid": VMID,
        "argv": ["sh", "-c", LOOK],
        "stdin": "{{ in_stdin }}",
        "secret_environment": {"IN_ENVIRONMENT": "{{ in_environment }}"},
    }
    told = {**task, "argv": ["sh", "-c", 'echo "$IN_ENVIRONMENT"; exit 1'], "stdin": "nothing"}
    play = {
        "hosts": "pve-kpro5",
        "gather_facts": False,
        "vars_files": ["hidden.yml"],
        "tasks": [
            {"gpuops.sglang.pct_exec": task, "no_log": True, "register": "seen"},
            # the words themselves are no secret here, only what was planted
            {"ansible.builtin.copy": {"content": "{{ seen.stdout }}", "dest": f"{tmp_path}/seen", "mode": "0600"},
             "delegate_to": "localhost", "vars": {"ansible_connection": "local"}, "no_log": True},
            {"name": "Fail with a secret", "gpuops.sglang.pct_exec": told},
        ],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "hidden.yml").write_text(yaml.safe_dump(HIDDEN))
    process = begin("-vvv", playbook=str(tmp_path / "play.yml"))
    look = "cat /proc/[0-9]*/cmdline | tr '\\\\0' ' '"
    try:
        waits = eventually(lambda: on_node(f"pct exec {VMID} -- ls /run").find("gpuops-look") >= 0, 120)
        on_the_node = on_node(look)
        on_the_controller = subprocess.run(f'sh -c "{look}"', shell=True, capture_output=True, text=True).stdout
    finally:
        on_node(f"pct exec {VMID} -- rm -f /run/gpuops-look")
    output, _ = process.communicate()
    assert waits, output
    assert "gpuops-look" in on_the_node, "the command was seen"
    seen = (tmp_path / "seen").read_text()
    for value in HIDDEN.values():
        assert "-".join(value) in seen, "the command had it"
    assert "Fail with a secret" in output and "ended with code 1, not with 0: ********" in output
    journals = on_node("journalctl --no-pager") + on_node(f"pct exec {VMID} -- journalctl --no-pager")
    places = {"outputs": output, "node": on_the_node, "container": seen, "here": on_the_controller, "logs": journals}
    assert [where for where, text in places.items() if "Hidden" in text] == []
