# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files read back by systemd's rules, and by a real systemd in its test mode where one is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.guard import variables_of
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import (
    BARS,
    STOPS,
    Identity,
    environment_file,
    launch_of,
    variable_problem,
)
from conftest import running
from hypothesis import example, given
from hypothesis import strategies as st

ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32}

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
awkward = st.text(st.sampled_from("\\\"'$%{}; \t\n\r#-=xn0 ä\x7f\x1b"), max_size=12)
words = text | awkward


def read_words(line: str) -> list[str]:
    """Split and unquote as systemd.syntax(7) says: quotes around items, C escapes in and outside of them."""
    found: list[str] = []
    current: list[str] | None = None
    quote = ""
    letters = iter(line)
    for letter in letters:
        if letter == "\\":
            current = [*(current or []), read_escape(letters)]
        elif quote:
            if letter == quote:
                quote = ""
            else:
                current = [*(current or []), letter]
        elif letter in "\"'":
            quote, current = letter, current or []
        elif letter in " \t\n\r":
            if current is not None:
                found.append("".join(current))
            current = None
        else:
            current = [*(current or []), letter]
    assert not quote, f"unbalanced quoting: {line}"
    return found if current is None else [*found, "".join(current)]


def read_escape(letters: Iterator[str]) -> str:
    kind = next(letters)
    if kind in ESCAPES:
        return chr(ESCAPES[kind])
    assert kind == "x", f"systemd ignores a line with \\{kind}"
    return chr(int(next(letters) + next(letters), 16))


def expand_specifiers(word: str) -> str:
    assert set(re.findall(r"%(.?)", word)) <= {"%"}, f"a specifier in {word}"
    return word.replace("%%", "%")


def expand_variables(word: str) -> str:
    """systemd.service(5): `$$` is a dollar sign, and any other `$` may begin a variable."""
    rest = word.replace("$$", "")
    assert "$" not in rest, f"a variable in {word}"
    return word.replace("$$", "$")


def settings_of(unit: str) -> list[tuple[str, str]]:
    """Read a unit file as systemd does: comments dropped, a backslash at the end of a line continues it."""
    found = []
    lines = iter(unit.split("\n"))
    for line in lines:
        if line.lstrip().startswith(("#", ";")):
            continue
        while line.endswith("\\"):
            following = next(lines)
            if not following.lstrip().startswith(("#", ";")):
                line = line[:-1] + " " + following
        if "=" in line:
            key, _, value = line.partition("=")
            found.append((key.strip(" \t\n\r"), value.strip(" \t\n\r")))
    return found


def argv_of(unit: str, setting: str = "ExecStart") -> list[str]:
    (line,) = [value for key, value in settings_of(unit) if key == setting]
    return [expand_variables(expand_specifiers(word)) for word in read_words(line)]


def environment_of(unit: str) -> dict[str, str]:
    lines = [value for key, value in settings_of(unit) if key == "Environment"]
    assignments = [expand_specifiers(word) for line in lines for word in read_words(line)]
    return {name: value for name, _, value in (assignment.partition("=") for assignment in assignments)}


def unit(
    argv: list[str],
    environment: dict[str, str] | None = None,
    secret_env: str | None = None,
    watch: tuple[str, ...] = ("/bin/python", "/w.py"),
) -> str:
    home = "/var/lib/sglang/a/home"
    return systemd.unit_text("a", "L1", argv, environment or {}, secret_env, "sglang", home, watch, 60)


@given(words)
@example("")
@example(";")
@example("#")
@example("\\")
@example("a\\")
@example("$")
@example("${HOME}")
@example("$$")
@example("%n")
@example("%%")
@example("'")
@example('"')
@example('{"a": "b c", "d": [1, 2]}')
@example("\u00a0\u2028\u0085")
def test_a_word_comes_back(word: str) -> None:
    quoted = systemd.quote_word(word)
    assert "\n" not in quoted
    assert [expand_variables(expand_specifiers(found)) for found in read_words(quoted)] == [word]
    # a lone ';' outside of quotes begins another command
    assert quoted != ";"


@given(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]*\Z"), words)
@example("A", "")
@example("A", "$HOME %n \\n \"'\n")
def test_a_variable_comes_back(name: str, value: str) -> None:
    quoted = systemd.quote_variable(name, value)
    assert "\n" not in quoted
    assert [expand_specifiers(found) for found in read_words(quoted)] == [f"{name}={value}"]


@given(st.lists(words, max_size=6), st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]*\Z"), words, max_size=3))
@example(["\u00a0"], {"A": "\u00a0"})
@example([], {"TQDM_BAR_FORMAT": "", "TQDM_MININTERVAL": "1"})  # what the operator says of it is what holds
def test_a_unit_gives_back_what_it_was_made_of(arguments: list[str], environment: dict[str, str]) -> None:
    environment.pop("SGLANG_LAUNCH_ID", None)
    made = unit(["/opt/sglang/bin/python", *arguments], environment, watch=("/bin/python", *arguments))
    assert argv_of(made) == ["/opt/sglang/bin/python", *arguments]
    assert argv_of(made, "ExecStartPost") == ["-/bin/python", *arguments]
    assert environment_of(made) == {"SGLANG_LAUNCH_ID": "L1", **BARS, **environment}
    assert launch_of(made) == "L1"


def test_one_option_on_a_line() -> None:
    argv = [
        "/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/srv/a b",
        "--config=-{} x",
        "--gc",
        "1",
        "2",
        "--m",
    ]
    made = unit(argv).split("\n")
    start = next(index for index, line in enumerate(made) if line.startswith("ExecStart="))
    assert made[start : start + 5] == [
        "ExecStart=/bin/python -m sglang.launch_server \\",
        '    --model-path "/srv/a b" \\',
        '    "--config=-{} x" \\',
        "    --gc 1 2 \\",
        "    --m",
    ]


def test_plain_words_are_left_readable() -> None:
    assert [systemd.quote_word(word) for word in ("--tp-size", "2", "/srv/models/Qwen3.6-27B", "a=b")] == [
        "--tp-size",
        "2",
        "/srv/models/Qwen3.6-27B",
        "a=b",
    ]


def test_how_the_service_is_run() -> None:
    found = dict(settings_of(unit(["/bin/python"])))
    assert {key: found[key] for key in ("User", "WorkingDirectory", "ReadWritePaths")} == {
        "User": "sglang",
        "WorkingDirectory": "/var/lib/sglang/a/home",
        "ReadWritePaths": "/var/lib/sglang/a/home",
    }
    assert "Group" not in found  # the user's own, whatever its name
    expected = {
        "Type": "exec",  # a server that can not be run is told at once
        "LogExtraFields": "GPUOPS_LAUNCH=L1",
        "LogRateLimitIntervalSec": "0",
        "ExecStartPost": "-/bin/python /w.py",  # '-': a watch that fails does not end the server
        "NotifyAccess": "all",  # it is not the main process that tells of a hung server
        "Restart": "on-failure",
        "RestartPreventExitStatus": "1 2 3",
        "KillMode": "mixed",
        "TimeoutStopSec": str(60 + STOPS),
        "WantedBy": "multi-user.target",
    }
    assert {key: found.get(key) for key in expected} == expected


def test_each_step_of_a_bar_is_a_line_of_the_journal() -> None:
    """tqdm itself, as the server's environment has it: the bars that SGLang gives a form of their own too."""
    told = environment_of(unit(["/bin/python"]))
    assert {name for name in told if name.startswith("TQDM_")} == set(BARS)
    bar = told["TQDM_BAR_FORMAT"].format(l_bar="Capturing: 50%|", n_fmt=1, total_fmt=2)
    own = f"\rLoading shards:  50% Completed | 1/2 [00:01<00:01,  1.0{told['TQDM_UNIT']}/s]"
    for text in (f"\r{bar}", own):
        assert "\n" in text.partition("1/2")[2]


def test_secret_variables_are_in_a_file_that_the_unit_names() -> None:
    assert "EnvironmentFile" not in dict(settings_of(unit(["/bin/python"])))
    found = settings_of(unit(["/bin/python"], {"A": "1"}, "/var/lib/sglang/a/launches/L1/secrets.env"))
    assert [value for key, value in found if key == "EnvironmentFile"] == ["/var/lib/sglang/a/launches/L1/secrets.env"]


def read_environment_file(content: str) -> dict[str, str]:
    """Read double-quoted assignments by systemd.exec(5): a backslash escapes `"`, `\\`, `` ` ``, `$` as in a shell."""
    found: dict[str, str] = {}
    letters = iter(content)
    for first in letters:
        name = first
        for letter in letters:
            if letter == "=":
                break
            name += letter
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name), f"systemd ignores {name!r}"
        assert next(letters) == '"'
        value = ""
        for letter in letters:
            if letter == '"':
                break
            if letter == "\\":
                letter = next(letters)
                assert letter in '"\\`$', f"systemd keeps the backslash before {letter!r}"
            value += letter
        else:
            raise AssertionError(f"unbalanced quoting: {content}")
        assert next(letters) == "\n"
        found[name] = value
    return found


secret_words = words | st.text(st.sampled_from("\"'\\$`#;= \nan"), max_size=12)


@given(st.dictionaries(st.from_regex(r"\A[A-Z_][A-Z0-9_]*\Z"), secret_words, max_size=3))
@example({})
@example({"A": "", "B": '"', "C": "\\", "D": "$HOME ${HOME}", "E": "`id`", "F": "a\\", "G": "'", "H": " a ", "I": "%n"})
@example({"A": '1"\nB="2', "C": "\r\n\t# x"})
def test_secret_variables_come_back(variables: dict[str, str]) -> None:
    content = environment_file(variables)
    assert read_environment_file(content) == variables
    assert variables_of(content) == variables
    assert environment_file(dict(reversed(variables.items()))) == content


GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


@pytest.mark.skipif(not GENERATOR.exists(), reason="needs systemd's generator of environments")
def test_a_real_systemd_reads_secret_variables_the_same(tmp_path: Path) -> None:
    """The parser of EnvironmentFile= reads environment.d(5) too, where `$` is expanded and an empty value unsets."""
    variables = {f"A{index}": word for index, word in enumerate(AWKWARD) if word and "$" not in word}
    variables["LINES"] = 'one\ntwo # "no comment"\r\n;x=y\tz'
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d/a.conf").write_bytes(environment_file(variables).encode())
    where = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([GENERATOR], env=where, capture_output=True, check=True)
    shown = dict(line.partition("=")[::2] for line in done.stdout.decode().split("\n"))
    assert {name: read_shell(shown[name]) for name in variables} == variables


def read_shell(shown: str) -> str:
    """Unquote a value as the generator shows it."""
    if not shown.startswith('"'):
        return shown
    inner = re.sub(r"\\([0-7]{3})", lambda match: f"\\x{int(match[1], 8):02x}", shown)
    (value,) = read_words(re.sub(r"\\([$`])", r"\1", inner))
    return value


@pytest.mark.parametrize(
    ("content", "launch"),
    [("", None), ("[Service]\nExecStart=/bin/x\n", None), ("# launch: L7\n[Unit]\n", "L7"), ("x # launch: L7\n", None)],
)
def test_launch_of(content: str, launch: str | None) -> None:
    assert launch_of(content) == launch


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("SGLANG_ENABLE_SPEC_V2", "1", None),
        ("_a1", "line\nline\ttab", None),
        ("SGLANG_LAUNCH_ID", "x", "'SGLANG_LAUNCH_ID' under 'env' carries the launch id"),
        ("NCCL-DEBUG", "1", "'NCCL-DEBUG' under 'env' is no name"),
        ("1A", "1", "'1A' under 'env' is no name"),
        ("A\n", "1", "'A\n' under 'env' is no name"),
        ("", "1", "'' under 'env' is no name"),
        ("A", "x\0", "'A' under 'env' holds a NUL"),
    ],
)
def test_variables_that_systemd_would_lose(name: str, value: str, problem: str | None) -> None:
    found = variable_problem(name, value)
    assert found == problem if problem is None else str(found).startswith(problem)


def test_the_place_of_a_wrong_variable_is_named() -> None:
    assert str(variable_problem("A-B", "x", "secrets")).startswith("'A-B' under 'secrets' is no name")
    assert str(variable_problem("A", "x\0", "secrets")) == "'A' under 'secrets' holds a NUL character: delete it"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(systemd, "UNIT_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    """Answers for commands by their first words; those that were run are in the key 'ran'."""
    replies: dict[str, Any] = {"ran": []}

    def run(argv: list[str], *_: Any) -> subprocess.CompletedProcess[str]:
        line = " ".join(argv)
        replies["ran"].append(line)
        reply = next(
            (reply for start, reply in replies.items() if start != "ran" and line.startswith(start)), (0, "", "")
        )
        return subprocess.CompletedProcess(argv, *reply)

    monkeypatch.setattr(systemd, "run", run)
    return replies


def test_only_units_of_ours_are_instances(folder: Path) -> None:
    (folder / "sglang-b.service").write_text(unit(["/bin/python"]))
    (folder / "sglang-a-1.service").write_text(unit(["/bin/python"]))
    (folder / "sglang-hand.service").write_text("[Service]\nExecStart=/bin/x\n")
    (folder / "other.service").write_text(unit(["/bin/python"]))
    assert systemd.installed_instances() == ["a-1", "b"]
    assert systemd.read_unit("b") == unit(["/bin/python"])
    assert systemd.read_unit("c") == ""


@pytest.mark.parametrize(
    ("cgroups", "instance"),
    [
        ([], None),
        (["/system.slice/sglang-b.service"], "b"),
        (["/", "/lxc/130/system.slice/sglang-a-1.service/worker"], "a-1"),
        (["/system.slice/sglang-hand.service", "/system.slice/sglang-b.service"], "b"),
        (["/system.slice/sglang-hand.service"], None),  # not of this tool
        (["/system.slice/sglang-gone.service"], None),
        (["/system.slice/sglang-b.service.d"], None),
        (["/system.slice/not-sglang-b.service"], None),
    ],
)
def test_the_instance_of_a_control_group(folder: Path, cgroups: list[str], instance: str | None) -> None:
    (folder / "sglang-b.service").write_text(unit(["/bin/python"]))
    (folder / "sglang-a-1.service").write_text(unit(["/bin/python"]))
    (folder / "sglang-hand.service").write_text("[Service]\nExecStart=/bin/x\n")
    assert systemd.instance_in(cgroups) == instance


def test_the_steps_of_a_service(folder: Path, commands: dict[str, Any]) -> None:
    def ran() -> list[str]:
        return [commands["ran"].pop(0) for _ in range(len(commands["ran"]))]

    systemd.install("a", "text")
    assert (folder / "sglang-a.service").read_text() == "text"
    # what runs goes on
    assert ran() == ["systemctl daemon-reload", "systemctl enable --quiet sglang-a.service"]
    systemd.start("a")
    assert ran() == ["systemctl reset-failed sglang-a.service", "systemctl start sglang-a.service"]
    systemd.stop("a")
    assert ran() == ["systemctl stop sglang-a.service", "systemctl reset-failed sglang-a.service"]
    systemd.enable("a")
    assert ran() == ["systemctl enable --quiet sglang-a.service"]
    systemd.disable("a")
    assert ran() == ["systemctl disable --quiet sglang-a.service"]
    systemd.remove("a")
    assert list(folder.iterdir()) == []
    assert ran() == [
        "systemctl disable --quiet sglang-a.service",
        "systemctl daemon-reload",
        "systemctl reset-failed sglang-a.service",
    ]


@pytest.mark.parametrize(
    ("verb", "do"),
    [
        ("daemon-reload", lambda: systemd.install("a", "text")),
        ("enable", lambda: systemd.install("a", "text")),
        ("disable", lambda: systemd.disable("a")),
        ("stop", lambda: systemd.stop("a")),
        ("show", lambda: systemd.identity("a")),
    ],
)
def test_a_refusal_of_systemd_is_passed_on(
    folder: Path, commands: dict[str, Any], verb: str, do: Callable[[], object]
) -> None:
    commands[f"systemctl {verb}"] = (1, "", "Job failed.\nSee logs.\n")
    with pytest.raises(Refused, match=rf"^systemctl {verb}.* failed: Job failed\. \| See logs\.$"):
        do()


def ended(status: int) -> str:
    return SHOWN.replace("ExecMainStatus=0\nExecMainCode=0", f"ExecMainStatus={status}\nExecMainCode=1")


def entry(text: object, own: bool = False, **fields: str) -> str:
    """A line of 'journalctl --output=json'; `own` is what systemd itself says of the service."""
    told = {"__MONOTONIC_TIMESTAMP": "1500000", "MESSAGE": text, "_PID": "1" if own else "4711", **fields}
    return json.dumps({name: value for name, value in told.items() if value is not None}) + "\n"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (200, "the server's home can not be entered: its user must be able to pass every folder above it"),
        (203, "the release's interpreter can not be run: its user must be able to pass every folder above it"),
        (217, "the user does not exist any more: deploy again"),
        (226, "this host allows no mount namespaces: in a Proxmox container run 'pct set VMID --features nesting=1'"),
    ],
)
def test_a_service_that_does_not_start_is_told_with_its_way(
    folder: Path, commands: dict[str, Any], status: int, why: str
) -> None:
    commands["systemctl start"] = (1, "", "Job failed.\nSee logs.\n")
    commands["systemctl show"] = (0, ended(status), "")
    said = ["one", "two", "Failed to set up mount namespacing", "Failed at step NAMESPACE"]
    log = [entry(line, _SYSTEMD_INVOCATION_ID=RUN) for line in said]
    commands["journalctl"] = (0, "".join([*log, entry("Failed to start sglang-a.service", own=True)]), "")
    systemd.install("a", unit(["/bin/python"]))
    with pytest.raises(Refused) as caught:
        systemd.start("a")
    assert str(caught.value) == (
        f"sglang-a.service does not start (exited {status}): {why}. "
        "two | Failed to set up mount namespacing | Failed at step NAMESPACE"
    )
    assert f"{systemd.LAUNCH_FIELD}=L1" in commands["ran"][-1].split()


@pytest.mark.parametrize("status", [0, 1, 137, 218])
def test_a_process_that_ran_and_ended_is_for_the_health_check_to_tell(commands: dict[str, Any], status: int) -> None:
    commands["systemctl start"] = (1, "", "")
    commands["systemctl show"] = (0, ended(status), "")
    systemd.start("a")


@pytest.mark.parametrize("earlier", [None, 0, 1, 203], ids=lambda status: f"earlier {status}")
@pytest.mark.parametrize("result", ["resources", "protocol"])
def test_a_service_without_a_process_or_a_log_is_told_with_its_result(
    folder: Path, commands: dict[str, Any], result: str, earlier: int | None
) -> None:
    """The exit status that systemd shows then is that of a process before."""
    shown = SHOWN if earlier is None else ended(earlier)
    commands["systemctl start"] = (1, "", "")
    commands["systemctl show"] = (0, shown.replace("Result=success", f"Result={result}"), "")
    with pytest.raises(Refused) as caught:
        systemd.start("a")
    assert str(caught.value) == f"sglang-a.service does not start ({result}): systemd could not start it"


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/etc/systemd/system/sglang-a.service.d/x.conf", True),
        ("/run/systemd/system/sglang-a.service.d/x.conf", True),
        ("/etc/systemd/system/sglang-.service.d/x.conf", True),
        ("/etc/systemd/system/service.d/x.conf", True),
        ("/run/systemd/system/service.d/zzz-lxc-service.conf", False),  # as an image of a container has it
        ("/usr/lib/systemd/system/service.d/10-x.conf", False),
    ],
)
def test_the_drop_ins_that_change_one_service(commands: dict[str, Any], path: str, ours: bool) -> None:
    shown = SHOWN.replace("/etc/a.conf /etc/b=c.conf", f"{path} /usr/lib/systemd/system/service.d/y.conf")
    commands["systemctl show"] = (0, shown, "")
    assert systemd.drop_ins(systemd.identity("a")) == ([path] if ours else [])


def test_a_process_gets_a_scope_of_its_own(commands: dict[str, Any]) -> None:
    commands["busctl"] = (1, "", "Call failed: Access denied")  # as far as it goes
    systemd.into_scope("gpuops-r1", 4711)
    (ran,) = commands["ran"]
    assert ran.startswith("busctl call ") and ran.endswith(" ssa(sv)a(sa(sv)) gpuops-r1.scope fail 1 PIDs au 1 4711 0")


RUN = "0123456789abcdef0123456789abcdef"
SHOWN = """ActiveState=active
SubState=running
Result=success
MainPID=4711
InvocationID=0123456789abcdef0123456789abcdef
ControlGroup=/system.slice/sglang-a.service
UnitFileState=enabled
NRestarts=2
ExecMainStatus=0
ExecMainCode=0
ExecMainStartTimestampMonotonic=12500000
NeedDaemonReload=no
DropInPaths=/etc/a.conf /etc/b=c.conf
"""


def test_identity_of_a_running_service(commands: dict[str, Any]) -> None:
    commands["systemctl show sglang-a.service"] = (0, SHOWN, "")
    identity = systemd.identity("a")
    assert identity == Identity(
        active="active",
        sub="running",
        result="success",
        main_pid=4711,
        invocation=RUN,
        cgroup="/system.slice/sglang-a.service",
        enabled=True,
        restarts=2,
        exit_status="",
        shown=dict(line.split("=", 1) for line in SHOWN.splitlines()),
    )
    assert set(identity.shown) == set(systemd.PROPERTIES)
    assert f"--property={','.join(systemd.PROPERTIES)}" in commands["ran"][0].split()
    assert systemd.began(identity) == 12.5


@pytest.mark.parametrize(
    ("code", "status", "told"), [("1", "2", "exited 2"), ("2", "9", "killed 9"), ("3", "6", "dumped 6")]
)
def test_how_the_main_process_ended(commands: dict[str, Any], code: str, status: str, told: str) -> None:
    shown = SHOWN.replace("ExecMainStatus=0\nExecMainCode=0", f"ExecMainStatus={status}\nExecMainCode={code}")
    commands["systemctl show"] = (0, shown, "")
    assert systemd.identity("a").exit_status == told


def test_identity_of_a_service_that_is_not_there(commands: dict[str, Any]) -> None:
    commands["systemctl show"] = (
        0,
        "ActiveState=inactive\nSubState=dead\nMainPID=0\nUnitFileState=\nControlGroup=\n",
        "",
    )
    identity = systemd.identity("a")
    assert (identity.active, identity.main_pid, identity.cgroup, identity.enabled) == ("inactive", 0, "", False)
    assert systemd.began(identity) == 0


def test_the_launch_of_a_process_is_in_its_environment() -> None:
    with running("sleep", "60", env={"A": "1", "SGLANG_LAUNCH_ID": "L1"}) as process:
        assert systemd.running_launch(process.pid) == "L1"
    assert systemd.running_launch(process.pid) is None
    assert systemd.running_launch(0) is None


@pytest.mark.parametrize(
    ("entries", "lines"),
    [
        ("", []),
        (entry("text", _SYSTEMD_INVOCATION_ID="r1"), [(1.5, "text", "r1")]),
        (
            entry(list("größe \xff".encode("latin-1")), _SYSTEMD_INVOCATION_ID="r1"),
            [(1.5, "gr\ufffd\ufffde \ufffd", "r1")],
        ),
        (entry(list(b"\x1b[1m 25%\r")), [(1.5, "\x1b[1m 25%\r", "")]),
        # what systemd says of a service has the id of the run that it speaks of; its own would be that of the host
        (entry("Started.", own=True, INVOCATION_ID="r1", _SYSTEMD_INVOCATION_ID="init"), [(1.5, "Started.", "")]),
        (entry("") + entry(" \n") + entry(None) + entry("b", __MONOTONIC_TIMESTAMP="2"), [(2e-6, "b", "")]),
    ],
    ids=["nothing", "text", "no UTF-8", "control characters", "systemd's own", "empty"],
)
def test_the_log_of_a_launch(commands: dict[str, Any], entries: str, lines: list[tuple[float, str, str]]) -> None:
    commands["journalctl"] = (0, entries, "")
    assert systemd.log_of("L1", 2) == lines
    assert systemd.log_of("L1", 3, "r1") == lines
    first, second = (set(line.split()) for line in commands["ran"])
    # all of an entry, as JSON; of this launch, or of one run of it, and of nothing else
    assert {"--output=json", "--all", "--lines=2", "GPUOPS_LAUNCH=L1"} <= first
    assert second - first == {"--lines=3", "_SYSTEMD_INVOCATION_ID=r1"}
    assert {line.text for line in systemd.log_of("", 2)} == set()
    assert len(commands["ran"]) == 2  # without a launch all of the journal would match


SYSTEMD = Path("/lib/systemd/systemd")
AWKWARD = [
    "plain", "", " ", ";", "#", "'", '"', "\\", "a\\", "\\\\n", "$", "$$", "$HOME", "${HOME}", "a$b$$", "%", "%%", "%n",
    "tab\there", "line\nline", "cr\r", "\x01\x1b\x7f", "ümläut 模型", "\u00a0\u2028\u0085", "--json=-{\"a b\": \"$c\"}",
    "{'a': [1, 2]}", "-", "@x", "!x", ":x", "+x", "a=b c", "\\x41", "\\s", "`id`", "~", "*", "trail ", "\\ ",
]  # fmt: skip


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(not SYSTEMD.exists(), reason="needs systemd's binary")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody, since root may not test a user's units")
def test_a_real_systemd_reads_the_same(public_folder: Path) -> None:
    """`systemd --test` loads units and shows what it has read; it starts nothing."""
    environment = {f"A{index}": word for index, word in enumerate(AWKWARD) if "\n" not in word}
    made = unit(["/bin/echo", *AWKWARD], environment, watch=("/bin/echo", *AWKWARD))
    (public_folder / "sglang-a.service").write_text(made, encoding="utf-8")
    for target in ("basic", "default", "network-online", "shutdown"):
        (public_folder / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    run = public_folder / "run"
    run.mkdir()
    os.chown(run, 65534, 65534)
    where = {"HOME": str(public_folder), "XDG_RUNTIME_DIR": str(run), "SYSTEMD_UNIT_PATH": str(public_folder)}
    done = subprocess.run(
        [SYSTEMD, "--test", "--user", "--unit=sglang-a.service", "--log-target=console", "--no-pager"],
        user=65534, group=65534, extra_groups=[], env=where, capture_output=True,
    )  # fmt: skip
    if b"Command Line" not in done.stdout:
        pytest.skip(f"this systemd shows no unit in test mode: {done.stderr[-200:]!r}")
    assert b"ignoring" not in done.stderr
    shown = done.stdout.decode().partition("-> Unit sglang-a.service:")[2].partition("\t-> Unit ")[0]
    lines = re.findall(r"Command Line: (.*)", shown)
    assert [[expand_variables(word) for word in read_shown(line)] for line in lines] == [["/bin/echo", *AWKWARD]] * 2
    for name, value in environment.items():
        assert f"Environment: {name}={value}\n" in shown


def read_shown(line: str) -> list[str]:
    """Unquote a command line as systemd shows it."""
    found = []
    for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"(?: |$)|([^ ]+)', line):
        inner = re.sub(r"\\([0-7]{3})", lambda match: f"\\x{int(match[1], 8):02x}", quoted)
        inner = re.sub(r"\\([$`])", r"\1", inner)
        found.append(plain or "".join(read_words(f'"{inner}"')))
    return found
