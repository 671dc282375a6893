# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container entered by its own sshd, by pct exec and by lxc-attach: each way gives what conformance_cases.py says.

Where the ways differ, and why:

- A command that ends with 255 or is itself ended by a signal: ssh says 255, which Ansible's plugin takes for a failure
  of ssh. The pct connection gives the code, and 128 + the signal's number as a shell does.
- Some MB of data that are answered while they are read: Ansible's ssh plugin sends all before it reads, and both sides
  wait for ever. A file name with a newline or a backslash at its end: Ansible's ssh plugin writes another one.
- A folder as the place of a file: sftp writes into it under the source's name, the pct connection refuses it. A file
  with two names (hard links) becomes two files through the pct connection, because it renames a verified copy. The
  set-user-ID bit of an overwritten file goes when sftp writes in an unprivileged container, and stays with pct.
- A command without a shell of its own, as `raw` gives: sshd runs it with the login shell, the pct connection with
  /bin/sh. What Ansible sends otherwise is wrapped in /bin/sh -c, and so are the cases here.
- A command line of 131,071 bytes: the pct connection's own words and quotes count too, and it says so.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import conformance_cases as cases
import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase
from ansible.plugins.loader import become_loader
from connections import WAYS, enter, login_of_container, play, way_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VMID = 129
FOLDER = "/root/conformance"
CONTENT = b"new\0\r\n\xff"
SAY = 'for word; do printf "%s\\0" "$word"; done'
MIB = 1 << 20
Result = tuple[int, bytes, bytes]  # exit code, stdout, stderr
There = Callable[..., bytes]  # text, stdin -> stdout


@pytest.fixture(scope="module")
def ways() -> Iterator[dict[str, ConnectionBase]]:
    before = os.umask(0o022)
    with login_of_container(VMID):
        connections = {way: enter(way, VMID) for way in WAYS}
        yield connections
        connections["ssh"].exec_command(f"rm -rf {FOLDER}")
    os.umask(before)


# a fast run takes the cases as true, and tries the way that people use
SSH, STRICT = (pytest.param(way, marks=pytest.mark.slow) for way in ("ssh", "strict"))
only_pct = pytest.mark.parametrize("entry", ["quick", STRICT])


@pytest.fixture(scope="module", params=[SSH, "quick", STRICT])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def connection(ways: dict[str, ConnectionBase], way: str) -> ConnectionBase:
    return ways[way]


def each(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in table.items()])


def run(connection: ConnectionBase, text: str, stdin: bytes | None = None, **environment: str) -> Result:
    """Run a text as Ansible's actions do."""
    text = f"{connection._shell.env_prefix(**environment)} {text}" if environment else text
    result: Result = connection.exec_command(f"/bin/sh -c {shlex.quote(text)}", stdin)
    return result


def said(words: list[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


@each(cases.WORDS)
def test_words(connection: ConnectionBase, case: list[str]) -> None:
    assert run(connection, shlex.join(["sh", "-c", SAY, "sh", *case])) == (0, said(case), b"")


@each(cases.VALUES)
def test_environment(connection: ConnectionBase, case: str) -> None:
    assert run(connection, "printenv -0 VALUE", VALUE=case) == (0, said([case]), b"")


@each(cases.DATA)
def test_data(connection: ConnectionBase, case: bytes) -> None:
    assert run(connection, "cat", case) == (0, case, b"")


@each(cases.COMMANDS)
def test_commands(connection: ConnectionBase, case: cases.Command) -> None:
    assert run(connection, case.text, case.stdin) == (case.code, case.stdout, case.stderr)


@pytest.mark.slow
def test_every_exit_code_but_255(connection: ConnectionBase, way: str) -> None:
    def codes(numbers: range) -> list[int]:
        one = enter(way, VMID)
        return [run(one, f"exit {number}")[0] for number in numbers]

    run(connection, "true")  # opens the shared SSH connection
    with ThreadPoolExecutor(5) as pool:
        shares = pool.map(codes, [range(first, first + 51) for first in range(0, 255, 51)])
    assert list(itertools.chain(*shares)) == list(range(255))


@pytest.mark.parametrize(("text", "code"), [("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_an_end_that_ssh_can_not_tell_from_its_own(connection: ConnectionBase, way: str, text: str, code: int) -> None:
    if way == "ssh":
        with pytest.raises(AnsibleConnectionFailure):
            connection.exec_command(text)
    else:
        assert connection.exec_command(text)[0] == code


@each(cases.TERMINAL)
@pytest.mark.usefixtures("ways")
def test_a_terminal(way: str, case: cases.Command) -> None:
    """ssh says on stderr that it closes it."""
    assert run(enter(way, VMID, ansible_ssh_use_tty=True), case.text)[:2] == (case.code, case.stdout)


@pytest.mark.parametrize("program", ["sleep 60", "setsid sleep 60", "nohup sleep 60"])
def test_a_background_process_that_holds_nothing(connection: ConnectionBase, program: str) -> None:
    code, pid, stderr = run(connection, f"{program} </dev/null >/dev/null 2>&1 & echo $!")
    assert (code, stderr) == (0, b"")
    assert run(connection, f"kill {pid.decode()}") == (0, b"", b""), "the command was over before its process"


@pytest.mark.parametrize("stdin", [None, b"data\n\0" * 3, b"y" * MIB], ids=["no data", "data", "one MiB"])
@pytest.mark.parametrize("password", [{}, {"ansible_become_password": "secret"}], ids=["", "a password not asked for"])
@pytest.mark.parametrize(("method", "flags"), [("sudo", {}), ("su", {"ansible_become_flags": "-s /bin/sh"})])
@pytest.mark.usefixtures("ways")
def test_another_user(
    way: str, method: str, flags: dict[str, str], password: dict[str, str], stdin: bytes | None
) -> None:
    connection, become = enter(way, VMID), become_loader.get(method)
    become.set_options(var_options={"ansible_become_user": "nobody", **flags, **password})
    connection.set_become_plugin(become)
    text = f"id -un; echo $USER $HOME >&2; sha256sum{'' if stdin else ' </dev/null'}; exit 7"
    stdout = f"nobody\n{sha256(stdin or b'').hexdigest()}  -\n".encode()
    assert run(connection, become.build_become_command(text, connection._shell), stdin) == (
        7, stdout, b"nobody /nonexistent\n",
    )  # fmt: skip


@pytest.mark.slow
def test_64_mib_on_stdin(connection: ConnectionBase) -> None:
    data = os.urandom(64 * MIB)
    assert run(connection, "sha256sum", data) == (0, f"{sha256(data).hexdigest()}  -\n".encode(), b"")


@pytest.mark.slow
def test_8_mib_on_stdout_and_stderr(connection: ConnectionBase) -> None:
    assert run(connection, f"head -c {8 * MIB} /dev/zero | tee /dev/stderr") == (0, bytes(8 * MIB), bytes(8 * MIB))


@only_pct
def test_an_answer_to_data_that_is_still_sent(ways: dict[str, ConnectionBase], entry: str) -> None:
    data = os.urandom(20 * MIB)
    assert run(ways[entry], "cat", data) == (0, data, b"")


def listing(folder: bytes) -> tuple[dict[str, str], dict[str, bytes]]:
    """What a tar archive has: name -> type, mode and owner, and name -> content."""
    kinds, contents = {}, {}
    with tarfile.open(fileobj=io.BytesIO(folder)) as archive:
        for member in archive:
            name = member.name[2:]
            if member.issym():
                kinds[name] = f"link {member.linkname}"
            else:
                kinds[name] = f"{'file' if member.isreg() else 'folder'} {member.mode:o} {member.uid}:{member.gid}"
            if member.isreg():
                contents[name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    del kinds[""]
    return kinds, contents


@pytest.fixture
def there(ways: dict[str, ConnectionBase]) -> There:
    """Run commands in a folder of the container, new for each test, by sshd whatever way is tested."""

    def run_there(text: str, stdin: bytes | None = None) -> bytes:
        code, stdout, stderr = run(ways["ssh"], f"cd {FOLDER}; {text}", stdin)
        assert (code, stderr) == (0, b"")
        return stdout

    run(ways["ssh"], f"rm -rf {FOLDER}; mkdir {FOLDER}")
    return run_there


@each(cases.PUT)
def test_put(connection: ConnectionBase, there: There, tmp_path: Path, case: cases.Copy) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    subprocess.run(["/bin/sh", "-c", case.here], cwd=tmp_path, check=True)
    there(case.there or "true")
    connection.put_file(str(tmp_path / "source"), f"{FOLDER}/{case.to}")
    kinds, contents = listing(there("tar -c ."))
    assert (kinds, set(contents.values())) == (case.after, {CONTENT})


@each(cases.FETCH)
def test_fetch(connection: ConnectionBase, there: There, tmp_path: Path, case: cases.Copy) -> None:
    there(f"cat >source; {case.there or 'true'}", CONTENT)
    subprocess.run(["/bin/sh", "-c", case.here], cwd=tmp_path, check=True)
    connection.fetch_file(f"{FOLDER}/source", str(tmp_path / case.to))
    kinds, contents = listing(subprocess.run(["tar", "-c", "."], cwd=tmp_path, check=True, capture_output=True).stdout)
    assert (kinds, set(contents.values())) == (case.after, {CONTENT})


def there_and_back(connection: ConnectionBase, there: There, work: Path, name: str, data: bytes) -> None:
    source, back = work / "source", work / name
    source.write_bytes(data)
    connection.put_file(str(source), f"{FOLDER}/{name}")
    assert listing(there("tar -c ."))[1] == {name: data}
    connection.fetch_file(f"{FOLDER}/{name}", str(back))
    assert back.read_bytes() == data
    source.unlink()
    back.unlink()


@each(cases.NAMES)
def test_names(connection: ConnectionBase, there: There, tmp_path: Path, case: str) -> None:
    there_and_back(connection, there, tmp_path, case, CONTENT)


@only_pct
@each(cases.NAMES_FOR_PCT)
def test_names_that_only_pct_takes(
    ways: dict[str, ConnectionBase], entry: str, there: There, tmp_path: Path, case: str
) -> None:
    there_and_back(ways[entry], there, tmp_path, case, CONTENT)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, pytest.param(64 * MIB, marks=pytest.mark.slow)])
def test_sizes(connection: ConnectionBase, there: There, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "source").write_bytes(data)
    connection.put_file(str(tmp_path / "source"), f"{FOLDER}/file")
    assert there("sha256sum file").split()[0].decode() == sha256(data).hexdigest()
    connection.fetch_file(f"{FOLDER}/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.parametrize("missing", ["file", "folder/file"])
def test_what_is_not_there_is_an_error(connection: ConnectionBase, there: There, tmp_path: Path, missing: str) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    with pytest.raises(AnsibleError, match="No such file"):
        connection.fetch_file(f"{FOLDER}/{missing}", str(tmp_path / "back"))
    if missing != "file":
        with pytest.raises(AnsibleError, match=r"No such file|there is no directory"):
            connection.put_file(str(tmp_path / "source"), f"{FOLDER}/{missing}")
    assert there("ls -A") == b""


ODD = st.text("'\"\\$`!*?[]{}()<>|&;#~%=-. \t\n\r\x01019absuxöß模", max_size=20)
WORD = ODD | st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))


@settings(max_examples=25, deadline=None)
@given(words=st.lists(WORD, max_size=6), value=WORD, data=st.binary(min_size=1), code=st.integers(0, 254))
def test_any_command(connection: ConnectionBase, words: list[str], value: str, data: bytes, code: int) -> None:
    text = shlex.join(["sh", "-c", f"{SAY}; printenv -0 VALUE; cat >&2; exit {code}", "sh", *words])
    assert run(connection, text, data, VALUE=value) == (code, said([*words, value]), data)


# what is left may be a letter where its bytes were apart
NAME = WORD.map(lambda word: os.fsdecode(os.fsencode(re.sub(r"[/\n\\]", "", word)))).filter(
    lambda name: name not in ("", ".", "..")
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAME, data=st.binary())
def test_any_file(connection: ConnectionBase, there: There, tmp_path: Path, name: str, data: bytes) -> None:
    there("rm -r ../conformance; mkdir ../conformance")
    there_and_back(connection, there, tmp_path, name, data)


def plain(texts: Iterable[str]) -> list[str]:
    """What a playbook can hold: UTF-8 without templates."""
    return [text for text in texts if not re.search("[\ud800-\udfff]|{[{%#]", text)]


PYTHON = {"ansible_python_interpreter": "/usr/bin/python3"}
LONGEST = 131_071  # bytes in one argument; all together may be 2 MiB with the environment
SUM = 'echo "$#"; printf "%s|" "$@" | sha256sum'
MANY = plain(itertools.chain(*cases.WORDS.values()))
ENVIRONMENT = {f"VALUE{number}": value for number, value in enumerate(plain(cases.VALUES.values()))}


def summed(words: list[str]) -> str:
    return f"{len(words)}\n{sha256(''.join(f'{word}|' for word in words).encode()).hexdigest()}  -\n"


def command(
    argv: list[str] | str, expected: str, stdin: str = "", vars: dict[str, str] | None = None, **task: Any
) -> dict[str, Any]:
    """A task that expects what its command prints."""
    module = {"argv": argv, "stdin": stdin, "stdin_add_newline": False, "strip_empty_ends": False}
    return {"ansible.builtin.command": {**module, "expand_argument_vars": False},
            "register": "done", "failed_when": "done.stdout != expected",
            "vars": {"expected": expected, **(vars or {})}, **task}  # fmt: skip


def long(words: int, length: int = LONGEST) -> str:
    return f"{{{{ ['sh', '-c', '{SUM}', 'sh'] + ['x' * {length}] * {words} }}}}"


@pytest.mark.slow
@pytest.mark.usefixtures("ways")
def test_modules(tmp_path: Path) -> None:
    """What takes a module of Ansible, as arguments longer than a command line do."""
    hosts = {way: way_in(way, VMID, ansible_pipelining=True, **PYTHON) for way in WAYS}
    become: dict[str, Any] = {"become": True, "become_user": "nobody"}
    who = ["sh", "-c", "id -un; cat"]
    tasks = [
        command(long(15), summed(["x" * LONGEST] * 15)),
        {**command(long(1, LONGEST + 1), ""), "failed_when": "done.rc != 7"},  # E2BIG
        command(["sh", "-c", SUM, "sh", *MANY], summed(MANY)),
        command(["sh", "-c", 'printf "%s|" ' + " ".join(f'"${name}"' for name in ENVIRONMENT)],
                "".join(f"{value}|" for value in ENVIRONMENT.values()), environment=ENVIRONMENT),
        command(["sha256sum"], sha256("größe\n".encode() * 100_000).hexdigest() + "  -\n", "größe\n" * 100_000),
        command(who, "nobody\ndata", "data", become_method="sudo", **become),
        command(who, "nobody\ndata", "data", become_method="su", vars={"ansible_become_flags": "-s /bin/sh"}, **become),
    ]  # fmt: skip
    done = play(tmp_path, hosts, tasks, "--forks=2")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_50_commands_at_once(connection: ConnectionBase, way: str) -> None:
    """More than sshd serves (MaxSessions) or lets in (MaxStartups) at a time; Ansible's ssh is told to try again."""
    more = {"ansible_ssh_retries": 10} if way == "ssh" else {}

    def command(number: int) -> Result:
        one = enter(way, VMID, **more)
        code, stdout, stderr = run(one, f"cat; echo {number} >&2; exit {number}", b"data")
        return code, stdout, stderr.splitlines(True)[-1] if way == "ssh" else stderr  # where it has complained before

    with ThreadPoolExecutor(50) as pool:
        done = list(pool.map(command, range(50)))
    assert done == [(number, b"data", f"{number}\n".encode()) for number in range(50)]
