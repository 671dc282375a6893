# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's stand-in for Proxmox's `pct` behaves as the real one was measured to behave.

Runs against the lab's node over ssh, on a container of its own (190); 129 and 130 are not touched.
Every expectation here was observed on pve-container 6.1.10 or read in its source; none describes the stand-in itself.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# slow as a whole: who does not change the stand-in need not ask
pytestmark = pytest.mark.slow

LAB = Path(os.environ.get("GPUOPS_LAB_DIR", "/var/lib/gpuops-lab"))
VMID = "190"
ABSENT = "199"
MARK = "container of the pct contract test"
START_COST = "/etc/gpuops-lab/pct-start-cost"
SCRATCH = "/root/pct-contract"
DEVICE = "/dev/pct-contract"
LONG_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USAGE = "pct exec <vmid> [<extra-args>] [OPTIONS]"


class Result:
    """What one command on the node gave."""

    def __init__(self, status: int, raw: bytes, raw_error: bytes) -> None:
        self.status = status
        self.raw = raw
        self.out = raw.decode(errors="replace")
        self.error = raw_error.decode(errors="replace")

    def __repr__(self) -> str:
        return f"exit {self.status}, stdout {self.out[-500:]!r}, stderr {self.error[-500:]!r}"


class Node:
    """The lab's node, reached over one ssh connection."""

    def __init__(self, control: str) -> None:
        self._ssh = ["ssh", "-F", str(LAB / "ssh/config"), "-o", "ControlMaster=auto", "-o", "ControlPersist=60",
                     "-o", f"ControlPath={control}/%C"]  # fmt: skip

    def begin(self, script: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a shell script on the node."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*self._ssh, *options, "kpro5", script], stdin=pipe, stdout=pipe, stderr=pipe)

    def finish(self, process: subprocess.Popen[bytes], stdin: bytes = b"") -> Result:
        out, error = process.communicate(stdin)
        return Result(process.returncode, out, error)

    def sh(self, script: str, *options: str, stdin: bytes = b"") -> Result:
        return self.finish(self.begin(script, *options), stdin)

    def must(self, script: str, stdin: bytes = b"") -> str:
        """Run a script that has to succeed, and return its stdout."""
        result = self.sh(script, stdin=stdin)
        assert result.status == 0, f"{script}: {result}"
        return result.out

    def pct(self, *words: str, stdin: bytes = b"") -> Result:
        return self.sh(shlex.join(["pct", *words]), stdin=stdin)

    def inside(self, script: str) -> str:
        """Run a shell script in the test's container, past pct, and return its stdout."""
        return self.must(shlex.join(["lxc-attach", "-n", VMID, "--", "sh", "-c", script]))

    def close(self) -> None:
        subprocess.run([*self._ssh, "-O", "exit", "kpro5"], capture_output=True)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="pct") as control:
        node = Node(control)
        try:
            if node.sh("true").status != 0:
                pytest.fail(f"no ssh to the lab's node by {LAB}/ssh/config; start it: molecule/lab/lab.py up")
            yield node
        finally:
            node.close()


@pytest.fixture(scope="module", autouse=True)
def container(node: Node) -> Iterator[None]:
    """A running unprivileged container 190, and no start cost; both undone afterwards."""
    found = node.sh(f"cat /etc/pve/lxc/{VMID}.conf")
    if found.status == 0 and MARK not in found.out:
        pytest.fail(f"the lab's node has a container {VMID} that is not this test's")
    cost = node.sh(f"cat {START_COST}")
    _remove_container(node)
    try:
        node.must(f"rm -f {START_COST}; mkdir -p {SCRATCH}; mknod {DEVICE} c 1 3")
        node.must(f"cat > /etc/pve/lxc/{VMID}.conf", stdin=_config(node))
        started = node.pct("start", VMID)
        assert started.status == 0, started
        yield
    finally:
        _remove_container(node)
        if cost.status == 0:
            node.must(f"cat > {START_COST}", stdin=cost.raw)


def _config(node: Node) -> bytes:
    network = node.must("ip -4 -o addr show vmbr0").split()[3].rsplit(".", 1)[0]
    return "\n".join(
        [
            f"#{MARK}",
            "arch: amd64",
            "cores: 1",
            f"dev0: {DEVICE},mode=0640,gid=44",
            "hostname: pct-contract",
            "memory: 512",
            "mp0: /srv/lab,mp=/srv/shared",
            f"net0: name=eth0,bridge=vmbr0,gw={network}.1,hwaddr=BC:24:11:00:01:90,ip={network}.190/24,type=veth",
            "ostype: debian",
            "rootfs: lab:base-u,size=8G",
            "unprivileged: 1",
            "lxc.prlimit.nofile: 4321",
            "",
        ]
    ).encode()


def _remove_container(node: Node) -> None:
    node.sh(f"lxc-stop -n {VMID} -k; systemctl stop pve-container@{VMID}")
    node.must(
        f"rm -rf /etc/pve/lxc/{VMID}.conf /var/lib/lxc/{VMID} {SCRATCH} {DEVICE} /run/lock/lxc/pve-config-{VMID}.lock"
        f" /run/pve/ct-{VMID}.*"
    )


def _runs(node: Node) -> bool:
    return node.must(f"lxc-info -n {VMID} -s -H") == "RUNNING\n"


@pytest.fixture
def running(node: Node) -> None:
    if not _runs(node):
        started = node.pct("start", VMID)
        assert started.status == 0, started


@pytest.fixture
def stopped(node: Node) -> None:
    if _runs(node):
        done = node.pct("stop", VMID)
        assert done.status == 0, done


# ---- the container is what its configuration says


def test_start_makes_the_container_that_the_configuration_describes(node: Node, running: None) -> None:
    network = node.must("ip -4 -o addr show vmbr0").split()[3].rsplit(".", 1)[0]
    facts = node.inside(
        "hostname; tr -s ' ' < /proc/self/uid_map; ulimit -n; cat /sys/class/net/eth0/address;"
        "ip -4 -o addr show eth0; ip route show default; cat /etc/hosts;"
        f"stat -c '%A %u %g %t:%T' {DEVICE}; stat -c %u /srv/shared; ls -d /srv/shared/standins"
    )
    assert "pct-contract\n" in facts
    assert " 0 100000 65536\n" in facts
    assert "\n4321\n" in facts
    assert "bc:24:11:00:01:90" in facts
    assert f"inet {network}.190/24" in facts
    assert f"default via {network}.1 dev eth0" in facts
    assert f"{network}.190 pct-contract\n" in facts
    assert "crw-r----- 0 44 1:3\n" in facts
    assert facts.endswith("\n0\n/srv/shared/standins\n")
    assert node.must(f"cat /sys/class/net/veth{VMID}i0/operstate") == "up\n"


# ---- exec: status, streams, environment


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exec_returns_the_status_of_the_command(node: Node, running: None, status: int) -> None:
    assert node.pct("exec", VMID, "--", "sh", "-c", f"exit {status}").status == status


@pytest.mark.parametrize(("signal", "status"), [("TERM", 143), ("KILL", 137)])
def test_exec_returns_128_and_the_signal(node: Node, running: None, signal: str, status: int) -> None:
    assert node.pct("exec", VMID, "--", "sh", "-c", f"kill -{signal} $$").status == status


@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("/etc/hostname", 126)])
def test_exec_of_what_cannot_run(node: Node, running: None, command: str, status: int) -> None:
    result = node.pct("exec", VMID, "--", command)
    assert result.status == status
    assert result.error.startswith(f"lxc-attach: {VMID}: ")
    assert f'Failed to exec "{command}"' in result.error


def test_exec_passes_bytes_both_ways_and_keeps_stderr_apart(node: Node, running: None) -> None:
    data = random.Random(190).randbytes(2_000_000)
    result = node.pct("exec", VMID, "--", "sh", "-c", "echo noise >&2; cat", stdin=data)
    assert result.raw == data
    assert result.error == "noise\n"


def test_exec_merges_and_doubles_line_ends_on_a_terminal(node: Node, running: None) -> None:
    result = node.sh(f"pct exec {VMID} -- sh -c 'echo out; echo err >&2'", "-tt")
    assert sorted(result.raw.split(b"\r\r\n")[:2]) == [b"err", b"out"]


def test_exec_keeps_umask_and_folder(node: Node, running: None) -> None:
    show = f"pct exec {VMID} -- sh -c 'pwd; umask'"
    assert node.must(f"cd /usr/share && umask 027 && {show}") == "/usr/share\n0027\n"
    assert node.must(f"cd {SCRATCH} && {show}").startswith("/\n")


def test_exec_sets_a_short_path_and_passes_the_environment(node: Node, running: None) -> None:
    secrets = "PATH=/opt/x:$PATH FROM_NODE=1 SSL_CERT_FILE=/x SSL_CERT_DIR=/y"
    names = node.must(f"{secrets} pct exec {VMID} -- env").splitlines()
    assert "PATH=/sbin:/bin:/usr/sbin:/usr/bin" in names
    assert {"FROM_NODE=1", "container=lxc", "TERM=linux", "HOME=/root"} <= set(names)
    assert not [name for name in names if name.startswith("SSL_CERT_")]


@pytest.mark.parametrize("option", ["--keep-env=0", "--keep-env 0", "-keep-env=off", "-k 0", "--keep=no"])
def test_exec_can_clear_the_environment(node: Node, running: None, option: str) -> None:
    names = node.must(f"FROM_NODE=1 pct exec {option} {VMID} -- env").splitlines()
    assert sorted(names) == [f"PATH={LONG_PATH}", "TERM=linux", "container=lxc"]


def test_keep_env_without_a_value_is_on_and_takes_the_next_word(node: Node, running: None) -> None:
    assert "FROM_NODE=1" in node.must(f"FROM_NODE=1 pct exec {VMID} --keep-env -- env")
    swallowed = node.pct("exec", "--keep-env", VMID, "--", "true")
    assert (swallowed.status, swallowed.error) == (2, f"400 unable to parse boolean option\n{USAGE}\n")


def test_sigpipe_is_ignored_in_what_exec_starts(node: Node, running: None) -> None:
    signals = "grep SigIgn /proc/self/status"
    assert node.must(f"pct exec {VMID} -- {signals}").split()[1] == "0000000000001000"
    assert node.must(f"lxc-attach -n {VMID} -- {signals}").split()[1] == "0000000000000000"


def test_characters_outside_of_the_locale_are_destroyed(node: Node, running: None) -> None:
    show = f"pct exec {VMID} -- printf %s grün | od -An -c"
    assert node.must(f"LC_ALL=C {show}").split() == ["g", "r", *["357", "277", "275"] * 2, "n"]
    assert node.must(f"LC_ALL=C.UTF-8 {show}").split() == ["g", "r", "303", "274", "n"]
    broken = f"LC_ALL=C.UTF-8 pct exec {VMID} -- printf %s $'a\\xffb' | od -An -c"
    assert node.must(broken).split() == ["a", "357", "277", "275", "b"]


def test_exec_becomes_lxc_attach_whose_end_leaves_the_command_alive(node: Node, running: None) -> None:
    script = f"""
        pct exec {VMID} -- sleep 4321 & outer=$!
        until inner=$(lxc-attach -n {VMID} -- pgrep -f '^sleep 4321'); do :; done
        tr '\\0' ' ' < /proc/$outer/cmdline; echo
        kill $outer; wait $outer; echo $?
        lxc-attach -n {VMID} -- kill $inner && echo alive
    """
    assert node.must(script).splitlines() == [f"lxc-attach -n {VMID} --keep-env -- sleep 4321 ", "143", "alive"]


# ---- arguments


def test_options_of_the_command_are_eaten_without_two_dashes(node: Node, running: None) -> None:
    unknown = node.pct("exec", VMID, "ls", "-la")
    assert (unknown.status, unknown.error) == (2, f"Unknown option: la\n400 unable to parse option\n{USAGE}\n")
    as_keep_env = node.pct("exec", VMID, "uname", "-k")
    assert (as_keep_env.status, as_keep_env.out) == (0, "Linux\n")
    as_vmid = node.pct("exec", VMID, "cat", "-v", "/etc/debian_version", stdin=b"from stdin")
    assert (as_vmid.status, as_vmid.out) == (0, "from stdin")
    as_extra = node.pct("exec", VMID, "grep", "-e", "root", "/etc/passwd")
    assert as_extra.status == 2
    assert as_extra.error.startswith("400 internal error: extra-args must be the last argument\n")
    assert node.pct("exec", VMID, "--", "ls", "-la", "/").status == 0


INVALID = "400 Parameter verification failed.\n"
BAD_ARGUMENTS = [
    (["exec", "abc", "--", "true"], f"{INVALID}vmid: type check ('integer') failed - got 'abc'\n{USAGE}\n"),
    (["exec", "99", "--", "true"], f"{INVALID}vmid: invalid format - value does not look like a valid VM ID\n"),
    (["exec"], f"400 not enough arguments\n{USAGE}\n"),
    (["status"], "400 not enough arguments\npct status <vmid> [OPTIONS]\n"),
    (["status", VMID, "more"], "400 too many arguments\npct status <vmid> [OPTIONS]\n"),
    (["list", "--full"], "Unknown option: full\n400 unable to parse option\n"),
    (["push", VMID, "/etc/hostname"], "400 not enough arguments\npct push <vmid> <file> <destination> [OPTIONS]\n"),
    (["set", VMID, "--memory", "much"], f"{INVALID}memory: type check ('integer') failed - got 'much'\n"),
    (["set", VMID, "--lxc.prlimit.memlock", "1"], "Unknown option: lxc.prlimit.memlock\n400 unable to parse option\n"),
    (["set", VMID, "--delete", "nonsense"], f"{INVALID}delete: unknown option 'nonsense'\n"),
]


@pytest.mark.parametrize(("words", "error"), BAD_ARGUMENTS, ids=lambda value: " ".join(value)[:40])
def test_bad_arguments_exit_2(node: Node, running: None, words: list[str], error: str) -> None:
    result = node.pct(*words)
    assert result.status == 2
    assert result.error.startswith(error)
    assert result.out == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "no command specified"),
        (["foo"], "unknown command 'pct foo'"),
        (["--help"], "unknown command 'pct --help'"),
        (["st", VMID], "incomplete command 'pct st'"),
    ],
)
def test_unknown_sub_commands_exit_255(node: Node, words: list[str], reason: str) -> None:
    result = node.pct(*words)
    assert result.status == 255
    assert result.error.startswith(f"ERROR: {reason}\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]\n")


def test_sub_commands_can_be_abbreviated(node: Node, running: None) -> None:
    assert node.pct("stat", VMID).out == "status: running\n"
    assert node.pct("help", "exec").out.startswith(f"USAGE: {USAGE}\n")


def test_exec_without_a_command_exits_255(node: Node, running: None) -> None:
    result = node.pct("exec", VMID)
    assert result.status == 255
    assert result.error.startswith("missing command at ")


def test_other_users_than_root_cannot_use_it(node: Node) -> None:
    result = node.sh(f"setpriv --reuid=65534 --regid=65534 --clear-groups pct exec {VMID} -- true")
    assert result.status == 255
    assert result.error.startswith("ipcc_send_rec[1] failed: Unknown error -1\n")
    assert "Unable to load access control list" in result.error


# ---- a container that is not there


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["exec", ABSENT, "--", "true"], 2),
        (["enter", ABSENT], 2),
        (["status", ABSENT], 2),
        (["config", ABSENT], 2),
        (["pending", ABSENT], 2),
        (["set", ABSENT, "--memory", "512"], 2),
        (["unlock", ABSENT], 2),
        (["start", ABSENT], 255),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_missing_container(node: Node, words: list[str], status: int) -> None:
    name = node.must("hostname -s").strip()
    result = node.pct(*words)
    assert (result.status, result.error) == (
        status, f"Configuration file 'nodes/{name}/lxc/{ABSENT}.conf' does not exist\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["stop", ABSENT], f"CT {ABSENT} not running\n"),
        (["shutdown", ABSENT], f"CT {ABSENT} not running\n"),
        (["reboot", ABSENT], f"VM {ABSENT} not running\n"),
        (["push", ABSENT, "/etc/hostname", "/x"], "can only push files to a running CT\n"),
        (["pull", ABSENT, "/etc/hostname", "/dev/null"], "can only pull files from a running VM at "),
    ],
    ids=lambda value: value[0],
)
def test_missing_container_is_taken_for_a_stopped_one(node: Node, words: list[str], error: str) -> None:
    result = node.pct(*words)
    assert result.status == 255
    assert result.error.startswith(error)


# ---- what is shown


def test_status_list_and_config(node: Node, running: None) -> None:
    assert node.pct("status", VMID).out == "status: running\n"
    verbose = dict(line.split(": ", 1) for line in node.pct("status", VMID, "--verbose").out.splitlines())
    assert list(verbose) == sorted(verbose)
    assert (verbose["status"], verbose["vmid"], verbose["name"]) == ("running", VMID, "pct-contract")
    assert verbose["maxmem"] == str(512 * 1024**2)
    assert node.must(f"cat /proc/{verbose['pid']}/comm").strip() == "systemd"

    lines = node.pct("list").out.splitlines()
    assert lines[0] == f"{'VMID':<10} {'Status':<10} {'Lock':<12} {'Name':<20}"
    assert f"{VMID:<10} {'running':<10} {'':<12} {'pct-contract':<20}" in lines
    numbers = [int(line.split()[0]) for line in lines[1:]]
    assert numbers == sorted(numbers)

    config = node.pct("config", VMID).out.splitlines()
    assert f"description: {MARK}%0A" in config
    assert config[-1] == "lxc.prlimit.nofile: 4321"
    assert config[:-1] == sorted(config[:-1])
    assert "digest" not in "".join(config)


def test_start_of_a_running_container(node: Node, running: None) -> None:
    result = node.pct("start", VMID)
    assert (result.status, result.error) == (255, f"CT {VMID} already running\n")


# ---- push and pull


def test_push_makes_a_file_of_root_with_the_callers_umask(node: Node, running: None) -> None:
    node.must(f"echo text > {SCRATCH}/file; chmod 700 {SCRATCH}/file")
    node.must(f"umask 022; pct push {VMID} {SCRATCH}/file /root/plain")
    node.must(f"pct push {VMID} {SCRATCH}/file /root/owned --perms 600 --user 1234 --group adm")
    assert node.inside("cat /root/plain; stat -c '%a %u %g' /root/plain /root/owned") == "text\n644 0 0\n600 1234 4\n"


def test_push_over_a_file_keeps_its_mode_and_owner_and_follows_links(node: Node, running: None) -> None:
    node.inside("echo a longer old text > /root/old; chown 7:8 /root/old; chmod 640 /root/old; ln -sf old /root/link")
    node.must(f"echo new > {SCRATCH}/file; pct push {VMID} {SCRATCH}/file /root/link")
    assert node.inside("cat /root/old; stat -c '%a %u %g' /root/old; readlink /root/link") == "new\n640 7 8\nold\n"


def test_transfers_are_exact(node: Node, running: None) -> None:
    node.must(f"cat > {SCRATCH}/blob", stdin=random.Random(129).randbytes(3_000_000))
    node.must(f"cd {SCRATCH} && pct push {VMID} blob /root/blob && pct pull {VMID} /root/blob back && cmp blob back")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["push", VMID, f"{SCRATCH}/none", "/root/x"], f"failed to open {SCRATCH}/none for reading"),
        (["push", VMID, "/etc/passwd", "/none/x"], "failed to create file: /none/x: No such file or directory"),
        (["push", VMID, "/etc/passwd", "/root"], "failed to create file: /root: Is a directory"),
        (["push", VMID, "/etc/passwd", "/root/x", "--user", "nobody-here"], "failed to get uid for: nobody-here"),
        (["push", VMID, "/etc/passwd", "/root/x", "--perms", "rw"], "invalid mode: '0rw'"),
        (["pull", VMID, "/root/none", f"{SCRATCH}/empty"], "failed to open /root/none: No such file or directory"),
    ],
)
def test_failed_transfers_exit_0(node: Node, running: None, words: list[str], error: str) -> None:
    result = node.pct(*words)
    assert (result.status, result.out, result.error) == (0, "", f"{error}\n")


def test_failures_of_transfers_that_nobody_mentions(node: Node, running: None) -> None:
    node.inside("mkdir -p /mnt/small; mount -t tmpfs -o size=1M none /mnt/small")
    node.must(f"head -c 3000000 /dev/zero > {SCRATCH}/large")
    full_disk = node.pct("push", VMID, f"{SCRATCH}/large", "/mnt/small/large")
    assert (full_disk.status, full_disk.out + full_disk.error) == (0, "")
    assert node.inside("stat -c %s /mnt/small/large; umount /mnt/small") == "1048576\n"

    directory = node.pct("push", VMID, SCRATCH, "/root/directory")
    assert (directory.status, directory.out + directory.error) == (0, "")

    node.must(f"pct pull {VMID} /root/none {SCRATCH}/nothing")
    assert node.must(f"stat -c %s {SCRATCH}/nothing") == "0\n"


def test_a_slow_push_locks_out_everything_but_exec(node: Node, running: None) -> None:
    pipe = f"{SCRATCH}/pipe"
    node.must(f"mkfifo {pipe}")
    slow = node.begin(f"pct push {VMID} {pipe} /root/slow")
    node.must(f"while flock -n /run/lock/lxc/pve-config-{VMID}.lock true; do sleep 0.05; done")
    waiting = {
        words: node.begin(f"pct {words}")
        for words in (f"set {VMID} --cores 2", f"push {VMID} /etc/passwd /root/x", f"pull {VMID} /etc/passwd /dev/null",
                      f"unlock {VMID}", f"stop {VMID}")
    }  # fmt: skip
    assert node.pct("exec", VMID, "--", "true").status == 0
    assert node.pct("config", VMID).status == 0
    results = {words: node.finish(process) for words, process in waiting.items()}
    node.must(f"echo at last > {pipe}")
    assert node.finish(slow).status == 0
    assert node.inside("cat /root/slow") == "at last\n"

    reason = f"can't lock file '/run/lock/lxc/pve-config-{VMID}.lock' - got timeout\n"
    stop = results.pop(f"stop {VMID}")
    # start, stop, shutdown and reboot wait in a task: its output is stdout, and it ends in 255 whatever the reason
    assert (stop.status, stop.out, stop.error) == (255, "trying to acquire lock...\n", reason)
    for words, result in results.items():
        assert (result.status, result.error) == (4, f"trying to acquire lock...\n{reason}"), words


# ---- a locked container


def test_a_locked_container(node: Node, running: None) -> None:
    assert node.pct("set", VMID, "--lock", "backup").status == 0
    try:
        assert node.pct("exec", VMID, "--", "true").status == 0
        assert node.pct("push", VMID, "/etc/passwd", "/root/while-locked").status == 0
        assert node.inside("head -c 4 /root/while-locked") == "root"
        assert node.pct("status", VMID).out == "status: running\n"
        assert f"{VMID:<10} {'running':<10} {'backup':<12}" in node.pct("list").out
        for words in (["set", VMID, "--memory", "600"], ["stop", VMID], ["shutdown", VMID]):
            result = node.pct(*words)
            assert (result.status, result.error) == (255, "CT is locked (backup)\n"), words
        assert "memory: 512\n" in node.pct("config", VMID).out
    finally:
        unlocked = node.pct("unlock", VMID)
    assert unlocked.status == 0
    again = node.pct("unlock", VMID)
    assert (again.status, again.error) == (255, "no lock found trying to remove any lock\n")


# ---- changes, and the ways down and up


def test_set_changes_at_once_or_at_the_next_start(node: Node, running: None) -> None:
    assert node.pct("set", VMID, "--cores", "2", "--description", f"{MARK}: 100%", "--tty", "3").status == 0
    pending = node.pct("pending", VMID).out.splitlines()
    assert {"cur cores: 2", "new tty: 3", f"cur description: {MARK}%3A 100%25%0A"} <= set(pending)
    assert "tty: 3\n" in node.pct("config", VMID).out
    assert "tty" not in node.pct("config", VMID, "--current").out
    assert "\n[pve:pending]\ntty: 3\n" in node.must(f"cat /etc/pve/lxc/{VMID}.conf")

    unset = node.pct("set", VMID, "--delete", "dev7")
    assert (unset.status, unset.error) == (0, "cannot delete 'dev7' - not set in current configuration!\n")
    nothing = node.pct("set", VMID)
    assert nothing.error == "no options specified\n"
    absent = node.pct("set", VMID, "--dev1", "/dev/no-such-gpu")
    assert (absent.status, absent.error) == (2, "Device /dev/no-such-gpu does not exist\n")
    assert "dev1" not in node.pct("config", VMID).out

    _leave_a_mark_at_orderly_ends(node)
    assert node.pct("reboot", VMID).status == 0
    assert _was_orderly(node)
    assert "cur tty: 3" in node.pct("pending", VMID).out.splitlines()
    assert "pve:pending" not in node.must(f"cat /etc/pve/lxc/{VMID}.conf")


def test_stop_is_hard(node: Node, running: None) -> None:
    _leave_a_mark_at_orderly_ends(node)
    result = node.pct("stop", VMID)
    assert (result.status, result.out, result.error) == (0, "", "")
    assert node.pct("status", VMID).out == "status: stopped\n"
    assert not _was_orderly(node)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["exec", VMID, "--", "true"], f"container '{VMID}' not running!\n"),
        (["exec", VMID], f"container '{VMID}' not running!\n"),
        (["enter", VMID], f"container '{VMID}' not running!\n"),
        (["stop", VMID], f"CT {VMID} not running\n"),
        (["shutdown", VMID], f"CT {VMID} not running\n"),
        (["reboot", VMID], f"VM {VMID} not running\n"),
        (["push", VMID, "/etc/passwd", "/x"], "can only push files to a running CT\n"),
        (["pull", VMID, "/x", "/dev/null"], "can only pull files from a running VM at "),
    ],
)
def test_stopped_container(node: Node, stopped: None, words: list[str], error: str) -> None:
    result = node.pct(*words)
    assert result.status == 255
    assert result.error.startswith(error)


def test_a_missing_device_prevents_the_start_but_not_the_change(node: Node, stopped: None) -> None:
    node.must(f"mv {DEVICE} {DEVICE}.away")
    try:
        reason = f"Device {DEVICE} does not exist\n"
        start = node.pct("start", VMID)
        assert (start.status, start.error) == (255, reason)
        change = node.pct("set", VMID, "--memory", "600")
        assert (change.status, change.error) == (2, reason)
        assert "memory: 600\n" in node.pct("config", VMID).out
        assert node.pct("status", VMID).out == "status: stopped\n"
    finally:
        node.must(f"mv {DEVICE}.away {DEVICE}")


def test_a_start_that_lxc_refuses(node: Node, stopped: None) -> None:
    node.must(f"echo 'lxc.hook.pre-start: /bin/false' >> /etc/pve/lxc/{VMID}.conf")
    try:
        result = node.pct("start", VMID)
        assert (result.status, result.error) == (255, f"startup for container '{VMID}' failed\n")
        assert 'Failed to run lxc.hook.pre-start for container "190"' in result.out
    finally:
        node.must(f"sed -i /pre-start/d /etc/pve/lxc/{VMID}.conf")


def test_a_start_with_a_warning_exits_0(node: Node, stopped: None) -> None:
    result = node.pct("start", VMID)
    assert (result.status, result.error) == (0, "Task finished with 1 warning(s)!\n")
    assert result.out.startswith("WARN: Systemd ")
    assert node.pct("exec", VMID, "--", "true").status == 0


def test_shutdown_is_orderly(node: Node, running: None) -> None:
    _leave_a_mark_at_orderly_ends(node)
    result = node.pct("shutdown", VMID, "--timeout", "50", "--forceStop", "0")
    assert (result.status, result.error) == (0, "")
    assert node.pct("status", VMID).out == "status: stopped\n"
    assert _was_orderly(node)


def _leave_a_mark_at_orderly_ends(node: Node) -> None:
    """Start a unit inside that leaves a file when systemd stops it."""
    node.inside(
        "rm -f /root/orderly; until systemctl is-active --quiet multi-user.target; do sleep 0.1; done;"
        "systemd-run --quiet --property=ExecStop='/usr/bin/touch /root/orderly' sleep infinity"
    )


def _was_orderly(node: Node) -> bool:
    return node.sh(f"test -e /var/lib/lxc/{VMID}/delta/root/orderly").status == 0


# ---- cost


def test_every_start_costs_what_the_lab_sets(node: Node) -> None:
    measure = "TIMEFORMAT='%U %S'; { time pct status 199 2>/dev/null; } 2>&1"

    def cpu_seconds() -> float:
        return sum(float(part) for part in node.sh(f"bash -c {shlex.quote(measure)}").out.split())

    cheap = cpu_seconds()
    node.must(f"mkdir -p {os.path.dirname(START_COST)}; echo 0.8 > {START_COST}")
    try:
        dear = cpu_seconds()
    finally:
        node.must(f"rm {START_COST}")
    assert cheap < 0.8 <= dear
