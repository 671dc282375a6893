# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same commands here and through a `pct` that runs them here: they must not notice where they are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.runner import Here, InContainer, Runner, TimedOut
from hypothesis import given, settings
from hypothesis import strategies as st

NODE = os.uname().nodename.partition(".")[0]
CT = f"container 129 on {NODE}"
SECRET = "never-in-a-command-line"


def way_in(folder: Path, script: str) -> InContainer:
    """A container whose pct is `script`."""
    fake = folder / "pct"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return InContainer(129, entry="strict", executable=str(fake))


def container_with(folder: Path, shell: str) -> InContainer:
    """A container whose /bin/sh is `shell`."""
    (folder / "sh").symlink_to(shell)
    return way_in(
        folder,
        '[ "$1 $2 $3 $4 $5" = "exec 129 -- /bin/sh -c" ] || exit 2\n'
        f'inside=$(printf %s "$6" | sed "s,/bin/sh,{folder}/sh,"); shift 6; cd /\n'
        f'env -i PATH=/bin:/usr/bin "{folder}/sh" -c "$inside" "$@"',
    )


@pytest.fixture(scope="module", params=["here", "container"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    if request.param == "here":
        return Here()
    return container_with(tmp_path_factory.mktemp("node"), "/bin/sh")


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30)
awkward = st.sampled_from(
    ["", " x ", "\\", "\\c", "\\n", "'", "$HOME", "a\nb\n", "\r\n", "-n", "größe 模型", "\udcff", "x" * 9999]
)


@settings(max_examples=20)
@given(st.lists(text | awkward, max_size=5))
def test_every_argument_arrives_as_it_is(runner: Runner, arguments: list[str]) -> None:
    done = runner.run(["sh", "-c", 'printf "%s\\0" "$@"', "sh", *arguments, "end"])
    words = [word.encode(errors="surrogateescape") for word in arguments]
    assert (done.code, done.stdout.split(b"\0")[:-1], done.stderr) == (0, [*words, b"end"], b"")


@settings(max_examples=20)
@given(st.dictionaries(st.from_regex("[A-Z_a-z][A-Z_a-z0-9]{3}X", fullmatch=True), text | awkward, max_size=4))
def test_every_variable_arrives_as_it_is_and_adds_to_the_others(runner: Runner, variables: dict[str, str]) -> None:
    others = runner.run(["env", "-0"]).stdout.split(b"\0")
    added = [f"{name}={value}".encode(errors="surrogateescape") for name, value in variables.items()]
    environment = runner.run(["env", "-0"], environment=variables).stdout.split(b"\0")
    assert sorted(environment) == sorted([*others, *added])


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
def test_the_shell_of_the_container_does_not_matter(tmp_path: Path, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"this machine has no {shell}")
    done = container_with(tmp_path, shell).run(
        ["sh", "-c", 'printf "%s|" "$@" "$X" "$word" "$PATH"; cat; exit 255', "sh", "", " "],
        stdin=b"\0\n",
        environment={"IFS": "t=0", "PATH": "/none:/bin:/usr/bin", "word": "w", "X": "a\nb \\c größe \udcff\n"},
    )
    assert done.stdout.decode(errors="surrogateescape") == "| |a\nb \\c größe \udcff\n|w|/none:/bin:/usr/bin|\0\n"
    assert (done.code, done.stderr) == (255, b"")


def test_the_path_that_is_given_finds_the_program(runner: Runner, tmp_path: Path) -> None:
    tool = tmp_path / "gpuops-tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert runner.run(["gpuops-tool"], environment={"PATH": f"{tmp_path}:/bin"}).stdout == b"found\n"


def test_large_inputs_and_outputs_at_the_same_time(runner: Runner) -> None:
    data = bytes(range(256)) * (1 << 18)
    done = runner.run(["cat"], stdin=data, environment={"X": "y"})
    assert (done.code, done.stdout == data, done.stderr) == (0, True, b"")


def test_outputs_do_not_wait_for_each_other_nor_for_stdin_to_be_read(runner: Runner) -> None:
    big = 3_000_000
    command = f"head -c {big} /dev/zero >&2; head -c {big} /dev/zero; exit 3"
    done = runner.run(["sh", "-c", command], stdin=b"x" * big)
    assert (done.code, done.stdout == bytes(big), done.stderr == bytes(big)) == (3, True, True)


def test_stdin_ends(runner: Runner) -> None:
    assert runner.run(["cat"]).stdout == b""


@pytest.mark.parametrize("code", [0, 1, 127, 254, 255])
def test_exit_codes(runner: Runner, code: int) -> None:
    done = runner.run(["sh", "-c", f"echo out; echo err >&2; exit {code}"])
    assert (done.code, done.stdout, done.stderr) == (code, b"out\n", b"err\n")


def test_a_command_ended_by_a_signal(runner: Runner) -> None:
    assert runner.run(["sh", "-c", "kill -KILL $$"]).code == 137


def test_a_program_that_is_not_there_or_can_not_be_run(runner: Runner, tmp_path: Path) -> None:
    missing = runner.run(["gpuops-no-such-program"])
    assert missing.code == 127
    assert b"gpuops-no-such-program: " in missing.stderr
    (tmp_path / "file").write_text("x")
    assert runner.run([str(tmp_path / "file")]).code == 126
    assert runner.run(["true", "x" * 200_000]).code == 126, "longer than Linux takes"


def test_secrets_are_in_no_command_line(runner: Runner) -> None:
    look = 'echo "$X"; cat; cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n"'
    done = runner.run(["sh", "-c", look], stdin=f"{SECRET}\n".encode(), environment={"X": SECRET})
    assert done.stdout.startswith(f"{SECRET}\n{SECRET}\n".encode())
    assert done.stdout.count(SECRET.encode()) == 2
    assert b"cat /proc/" in done.stdout, "command lines were read"


def test_a_directory_to_start_in(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "-a b'c"
    folder.mkdir()
    assert runner.run(["pwd"], chdir=str(folder)).stdout.decode() == f"{folder}\n"
    with pytest.raises(Refused) as caught:
        runner.run(["pwd"], chdir=f"{tmp_path}/none")
    assert str(caught.value) == (
        f"{runner.where}: there is no directory {tmp_path}/none in which pwd could run: make it, or correct chdir"
    )


@pytest.mark.parametrize("argv", [[], [""], ["-c", "x"]])
def test_what_is_no_command(runner: Runner, argv: list[str]) -> None:
    with pytest.raises(Refused, match="a command begins with the name of a program, not with"):
        runner.run(argv)


@pytest.mark.parametrize("name", ["", "A B", "1A", "A=B", "A\n", "größe"])
def test_what_is_no_variable(runner: Runner, name: str) -> None:
    with pytest.raises(Refused, match="is no name for an environment variable") as caught:
        runner.run(["true"], environment={name: SECRET})
    assert SECRET not in str(caught.value)


def test_null_bytes(runner: Runner) -> None:
    with pytest.raises(Refused, match=r"the environment variable X has a null byte") as caught:
        runner.run(["true"], environment={"X": f"{SECRET}\0"})
    assert SECRET not in str(caught.value)
    with pytest.raises(Refused, match=r"an argument of 'true' has a null byte"):
        runner.run(["true", "a\0b"])
    with pytest.raises(Refused, match=r"has a null byte"):
        runner.run(["true"], chdir="a\0b")


# one child that is told nicely, one that does not listen and its child, one in a session of its own
FAMILY = """
sleep 4321.5 & echo $!
sh -c 'trap "" TERM; sleep 4321.5 & echo $!; while :; do sleep 4321.5; done' & echo $!
setsid sleep 4321.5 & echo $!
echo begun >&2; wait
"""


def test_a_command_that_takes_too_long_is_ended_with_everything_below_it(runner: Runner) -> None:
    with pytest.raises(TimedOut) as caught:
        runner.run(["sh", "-c", FAMILY], timeout=2)
    assert str(caught.value) == (
        f"{runner.where}: sh had not finished after 2 s and was ended, with everything that it had started:"
        " find out what it waits for, or set a longer timeout"
    )
    pids = caught.value.stdout.decode().split()
    assert len(pids) == 4
    assert caught.value.stderr.startswith(b"begun\n")
    assert [pid for pid in pids if lives(pid)] == []


def test_a_timeout_that_is_long_enough_is_not_noticed(runner: Runner) -> None:
    assert runner.run(["sh", "-c", "echo x; exit 5"], timeout=600).code == 5


def test_a_daemon_goes_on_and_is_not_waited_for(runner: Runner) -> None:
    done = runner.run(["sh", "-c", "setsid sleep 4321.5 & echo $!"])
    pid = done.stdout.decode().strip()
    alive = lives(pid)
    os.kill(int(pid), signal.SIGKILL)
    assert alive


def test_a_daemon_that_is_never_quiet_is_not_waited_for(runner: Runner) -> None:
    done = runner.run(["sh", "-c", "setsid yes & echo $! >&2; sleep 0.1"])
    os.kill(int(done.stderr), signal.SIGKILL)
    assert done.stdout.startswith(b"y\ny\n")


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo \"container '129' not running!\" >&2; exit 255",
         f"{CT} is stopped: start it with 'pct start 129' on {NODE}"),
        ("echo \"Configuration file 'nodes/x/lxc/129.conf' does not exist\" >&2; exit 2",
         f"there is no {CT}: see 'pct list' on {NODE} and correct vmid,"
         " or the host of the task if it moved to another node"),
        ("echo please run as root >&2; exit 255",
         f"{CT}: entering it needs root on {NODE} and the login is user id {os.geteuid()}: set become to true"),
        ("echo 'CT is locked (backup)' >&2; exit 255",
         f"{CT} is locked (backup): wait for the task that holds it (see the task log of {NODE}),"
         " or set locked to enter"),
    ],
)  # fmt: skip
def test_a_container_that_can_not_be_entered(tmp_path: Path, script: str, sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        way_in(tmp_path, script).run(["true"], stdin=b"x" * 1_000_000)
    assert str(caught.value) == sentence


def test_a_node_without_pct(tmp_path: Path) -> None:
    nowhere = f"{tmp_path}/pct"
    with pytest.raises(Refused) as caught:
        InContainer(129, entry="strict", executable=nowhere).run(["true"])
    assert str(caught.value) == (
        f"{CT}: {NODE} has no {nowhere}: check that {NODE} is the Proxmox VE node, or set pct_executable"
    )


def test_a_result_that_is_lost_is_no_exit_code(tmp_path: Path) -> None:
    # above the command are the container's sh, the sh that is pct here, and the Perl that watches over them
    kill = "read -r _ _ _ pct _ </proc/$PPID/stat; read -r _ _ _ perl _ </proc/$pct/stat; kill -KILL $perl"
    with pytest.raises(Refused) as caught:
        container_with(tmp_path, "/bin/sh").run(["sh", "-c", kill])
    assert str(caught.value) == (
        f"{CT}: what watches over sh on {NODE} was ended from outside, so its result is lost: see whether it still"
        " runs, then run it again"
    )


def test_many_words_arrive(runner: Runner) -> None:
    words = [str(number) for number in range(5000)]
    assert runner.run(["printf", "%s\\n", *words]).stdout.decode().split() == words


def test_variables_of_the_shell_itself_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the environment variable UID belongs to the shell itself: take it out"):
        container_with(tmp_path, "/bin/sh").run(["true"], environment={"UID": "7", "A": "b"})
