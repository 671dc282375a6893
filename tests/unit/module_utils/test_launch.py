# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches in a folder of the test, with a stand-in of systemctl; files, sockets and processes are real."""

from __future__ import annotations

import dataclasses
import errno
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from conftest import parser_of

SCHEMA = describe(parser_of("0.5.23"))
SECRET = "sk-never-to-be-seen"
USER = pwd.getpwuid(os.geteuid()).pw_name


class Supervisor:
    """What systemctl would do, as far as a launch can see it."""

    def __init__(self) -> None:
        self.identity = systemd.Identity("inactive", "dead", "success", 0, "", "", False, 0, "")
        self.running: str | None = None  # the launch of the process
        self.calls: list[str] = []
        self.dies_before = ""  # the call that the machine does not live to see

    def systemctl(self, *words: str) -> str:
        self._before(words[0])
        unit = words[-1]
        if words[0] == "enable":
            self.identity = dataclasses.replace(self.identity, enabled=True)
        if words[0] == "restart":
            self.running = systemd.launch_of((systemd.UNIT_FOLDER / unit).read_text())
            self.identity = dataclasses.replace(
                self.identity, active="active", sub="running", main_pid=4711, cgroup=f"/system.slice/{unit}"
            )
        return ""

    def run(self, argv: list[str]) -> None:
        self._before(argv[1])

    def _before(self, call: str) -> None:
        if call == self.dies_before:
            raise SystemExit
        self.calls.append(call)


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    units = tmp_path / "units"
    units.mkdir()
    monkeypatch.setattr(systemd, "UNIT_FOLDER", units)
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "chown", lambda *_: None)
        monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(systemd, "_systemctl", made.systemctl)
    monkeypatch.setattr(systemd, "run", made.run)
    monkeypatch.setattr(systemd, "identity", lambda name: made.identity)
    monkeypatch.setattr(systemd, "running_launch", lambda pid: made.running if pid == 4711 else None)
    return made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "releases/0.5.23-1f3a9c2e", USER, tmp_path / "state")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield Instance(
        name="a",
        model=str(model),
        host="127.0.0.1",
        port=port,
        gpus=(0, 1),
        args={"tp_size": 2, "context_length": "32k"},
        env={"SGLANG_X": "$1 %n"},
        secrets={"api_key": SECRET},
    )


def unit_of(name: str = "a") -> str:
    return systemd.read_unit(name)


def launch_folder(host: Host, launch: str) -> Path:
    return host.folder("a") / "launches" / launch


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_first_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    before = launches.compare(instance, host, SCHEMA)
    assert before.reasons == ("not installed",)
    assert (before.launch, before.before) == (None, "")
    launch = launches.start(instance, host, SCHEMA)
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", launch)
    assert supervisor.calls == ["daemon-reload", "enable", "reset-failed", "restart"]
    assert supervisor.running == launch == systemd.launch_of(unit_of())


def test_nothing_differs_after_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = launches.start(instance, host, SCHEMA)
    again = dataclasses.replace(instance, args=dict(reversed(instance.args.items())))
    compared = launches.compare(again, host, SCHEMA)
    assert compared.reasons == ()
    assert compared.before == compared.after
    assert compared.launch == launch


def test_the_command_line_of_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = launches.start(instance, host, SCHEMA)
    unit = unit_of()
    command = unit[unit.index("ExecStart=") : unit.index("\nRestart=")].replace(" \\\n    ", " ")
    assert command == (
        f"ExecStart={host.release}/venv/bin/python -m sglang.launch_server --model-path {instance.model}"
        f" --host 127.0.0.1 --port {instance.port} --weight-version {launch}"
        f" --config {launch_folder(host, launch)}/secrets.yaml --context-length 32k --tp-size 2"
    )
    assert f"Environment=SGLANG_LAUNCH_ID={launch}\n" in unit
    assert 'Environment="CUDA_VISIBLE_DEVICES=0,1"\n' in unit
    assert 'Environment="SGLANG_X=$1 %%n"\n' in unit
    assert f'Environment="HOME={host.folder("a")}"\n' in unit
    # the warm-up asks the server's own port, not a proxy
    assert 'Environment="NO_PROXY=localhost,127.0.0.1,::1"\n' in unit
    assert f'Environment="PATH={host.release}/venv/bin:/usr/local/sbin:' in unit
    assert f"User={USER}\n" in unit


def test_without_gpus_and_secrets_neither_is_in_the_unit(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    launch = launches.start(dataclasses.replace(instance, gpus=(), secrets={}), host, SCHEMA)
    assert "CUDA_VISIBLE_DEVICES" not in unit_of()
    assert "--config" not in unit_of()
    assert not (launch_folder(host, launch) / "secrets.yaml").exists()


CHANGES: dict[str, dict[str, Any]] = {
    "name": {"name": "b"},
    "model": {"model": "/srv/other"},
    "host": {"host": "0.0.0.0"},
    "port": {"port": 1024},
    "a GPU": {"gpus": (0,)},
    "the order of the GPUs": {"gpus": (1, 0)},
    "no GPU named": {"gpus": ()},
    "the value of an argument": {"args": {"tp_size": 4, "context_length": "32k"}},
    "an argument more": {"args": {"tp_size": 2, "context_length": "32k", "enable_metrics": True}},
    "an argument less": {"args": {"tp_size": 2}},
    "the value of a variable": {"env": {"SGLANG_X": "$1 %m"}},
    "a variable more": {"env": {"SGLANG_X": "$1 %n", "Y": ""}},
    "no variable": {"env": {}},
    "the value of a secret": {"secrets": {"api_key": SECRET + "2"}},
    "a secret more": {"secrets": {"api_key": SECRET, "admin_api_key": SECRET}},
    "another secret": {"secrets": {"admin_api_key": SECRET}},
    "no secret": {"secrets": {}},
}


def test_every_input_of_an_instance_is_in_the_list_of_changes() -> None:
    fields = {field.name for field in dataclasses.fields(Instance)}
    assert {name for change in CHANGES.values() for name in change} == fields


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_input_of_an_instance_changes_the_comparison(
    supervisor: Supervisor, host: Host, instance: Instance, change: dict[str, Any]
) -> None:
    launches.start(instance, host, SCHEMA)
    changed = dataclasses.replace(instance, **change)
    compared = launches.compare(changed, host, SCHEMA)
    assert compared.reasons
    assert compared.before != compared.after
    assert SECRET not in "".join((*compared.reasons, compared.before, compared.after))
    launches.start(changed, host, SCHEMA)
    assert launches.compare(changed, host, SCHEMA).reasons == ()


@pytest.mark.parametrize(
    "change", [{"release": Path("/opt/other")}, {"state": None}, {"user": "nobody"}], ids=["release", "state", "user"]
)
def test_every_input_of_a_host_changes_the_comparison(
    supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path, change: dict[str, Any]
) -> None:
    launches.start(instance, host, SCHEMA)
    if "state" in change:
        change = {"state": tmp_path / "elsewhere"}
    assert "configuration differs" in launches.compare(instance, dataclasses.replace(host, **change), SCHEMA).reasons


def test_what_is_only_written_otherwise_changes_nothing(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launches.start(instance, host, SCHEMA)
    args = {"tp_size": "2", "context_length": "32k", "chat_template": None, "enable_metrics": False}
    assert launches.compare(dataclasses.replace(instance, args=args), host, SCHEMA).reasons == ()


def test_a_changed_secret_shows_as_changed_only(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launches.start(instance, host, SCHEMA)
    changed = dataclasses.replace(instance, secrets={"api_key": "sk-another"})
    compared = launches.compare(changed, host, SCHEMA)
    assert compared.reasons == ("secrets differ",)
    assert compared.before.splitlines()[:-1] == compared.after.splitlines()[:-1]
    assert "sk-" not in compared.before + compared.after


def test_a_unit_changed_by_hand_differs(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launches.start(instance, host, SCHEMA)
    path = systemd.UNIT_FOLDER / "sglang-a.service"
    path.write_text(unit_of().replace("TimeoutStopSec=60", "TimeoutStopSec=600"))
    compared = launches.compare(instance, host, SCHEMA)
    assert compared.reasons == ("configuration differs",)
    assert "TimeoutStopSec=600" in compared.before
    assert "TimeoutStopSec=600" not in compared.after


def test_a_service_of_that_name_that_is_not_ours(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    (systemd.UNIT_FOLDER / "sglang-a.service").write_text("[Service]\nExecStart=/bin/x\n")
    compared = launches.compare(instance, host, SCHEMA)
    assert compared.launch is None
    with pytest.raises(
        Refused, match=r"a unit sglang-a\.service that is not of this tool: remove it or rename the instance"
    ):
        launches.check(instance, host, SCHEMA)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"active": "failed", "sub": "failed", "main_pid": 0}, "service is failed (failed)"),
        ({"active": "inactive", "sub": "dead", "main_pid": 0}, "service is inactive (dead)"),
        ({"active": "activating", "sub": "auto-restart", "main_pid": 0}, "service is activating (auto-restart)"),
        ({"enabled": False}, "not enabled"),
        ({"main_pid": 1}, "launch None runs, the unit carries "),
    ],
)
def test_a_service_that_does_not_run_as_asked(
    supervisor: Supervisor, host: Host, instance: Instance, state: dict[str, Any], reason: str
) -> None:
    launches.start(instance, host, SCHEMA)
    supervisor.identity = dataclasses.replace(supervisor.identity, **state)
    (found,) = launches.compare(instance, host, SCHEMA).reasons
    assert found.startswith(reason)


def test_a_process_of_an_older_launch_is_a_reason(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = launches.start(instance, host, SCHEMA)
    supervisor.running = "20200101T000000Z-000000"
    reasons = launches.compare(instance, host, SCHEMA).reasons
    assert reasons == (f"launch 20200101T000000Z-000000 runs, the unit carries {launch}",)


STEPS = [
    "folder",
    "secrets.yaml",
    "unit",
    "launch.json",
    "unit file",
    "daemon-reload",
    "enable",
    "reset-failed",
    "restart",
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("first", [True, False], ids=["first launch", "next launch"])
def test_a_crash_between_two_steps_is_repaired_by_the_next_run(
    supervisor: Supervisor,
    host: Host,
    instance: Instance,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    first: bool,
) -> None:
    old = None if first else launches.start(dataclasses.replace(instance, secrets={"api_key": "sk-old"}), host, SCHEMA)
    really_write = launches.write_whole

    def write(path: Path, text: str, *facts: Any) -> None:
        if path.name == step or (step == "unit file" and path.suffix == ".service"):
            raise SystemExit
        really_write(path, text, *facts)

    def make_folder(path: Path, *_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(launches, "write_whole", write)
        patched.setattr(systemd, "write_whole", write)
        if step == "folder":
            patched.setattr(launches.os, "chown", make_folder)
        supervisor.dies_before = step
        with pytest.raises(SystemExit):
            launches.start(instance, host, SCHEMA)
    supervisor.dies_before = ""
    # the service that was there runs on
    assert supervisor.running == old
    assert launches.compare(instance, host, SCHEMA).reasons
    launch = launches.start(instance, host, SCHEMA)
    assert supervisor.running == launch
    assert launches.compare(instance, host, SCHEMA).reasons == ()


def test_secrets_are_in_their_file_only(supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path) -> None:
    launch = launches.start(instance, host, SCHEMA)
    holders = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert holders == [launch_folder(host, launch) / "secrets.yaml"]
    assert launches.record_of(host.state, "a")["secrets"] == ["api_key"]
    assert launches.secret_of(host.state, "a", launch, "api_key") == SECRET
    assert launches.secret_of(host.state, "a", launch, "admin_api_key") is None
    assert launches.secret_of(host.state, "a", "no-launch", "api_key") is None


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_who_may_read_what(supervisor: Supervisor, host: Host, instance: Instance, umask: int) -> None:
    if os.geteuid() == 0:
        host = dataclasses.replace(host, user="daemon")
    before = os.umask(umask)
    try:
        launch = launches.start(instance, host, SCHEMA)
    finally:
        os.umask(before)
    folder = launch_folder(host, launch)
    uid = pwd.getpwnam(host.user).pw_uid
    assert {path.name: oct(mode(path)) for path in folder.iterdir()} == {
        "launch.json": "0o640",
        "secrets.yaml": "0o600",
        "unit": "0o640",
    }
    assert [oct(mode(path)) for path in (host.folder("a"), folder.parent, folder)] == ["0o750"] * 3
    assert (folder / "secrets.yaml").stat().st_uid == uid
    assert host.folder("a").stat().st_uid == uid  # its home
    assert folder.stat().st_uid == folder.parent.stat().st_uid == os.geteuid()  # the server does not change its record
    assert mode(systemd.UNIT_FOLDER / "sglang-a.service") == 0o644


def test_the_record_of_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = launches.start(instance, host, SCHEMA)
    record = launches.record_of(host.state, "a")
    assert record.pop("started") > 1.7e9
    assert record == {
        "launch": launch,
        "instance": "a",
        "release": str(host.release),
        "model": instance.model,
        "host": "127.0.0.1",
        "port": instance.port,
        "args": {"tp_size": 2, "context_length": "32k"},
        "secrets": ["api_key"],
    }
    assert (launch_folder(host, launch) / "unit").read_text() == unit_of()


def test_an_instance_without_unit_or_record_is_refused(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    with pytest.raises(Refused, match="there is no unit of an instance 'a' on this host: deploy it first"):
        launches.record_of(host.state, "a")
    launch = launches.start(instance, host, SCHEMA)
    (launch_folder(host, launch) / "launch.json").write_text('{"launch": ')
    with pytest.raises(Refused, match=r"launch\.json can not be read .*: deploy the instance again"):
        launches.record_of(host.state, "a")


def test_the_newest_launches_are_kept(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    folder = launch_folder(host, "x").parent
    folder.mkdir(parents=True)
    old = [f"2020010{day}T000000Z-00000{day}" for day in range(1, 9)]
    for name in old:
        (folder / name).mkdir()
        (folder / name / "secrets.yaml").write_text("x")
    launch = launches.start(instance, host, SCHEMA)
    assert sorted(path.name for path in folder.iterdir()) == [*old[-4:], launch]


def test_a_launch_is_kept_though_the_clock_was_set_back(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    folder = launch_folder(host, "x").parent
    for day in range(1, 9):
        (folder / f"2090010{day}T000000Z-00000{day}").mkdir(parents=True)
    launch = launches.start(instance, host, SCHEMA)
    assert (folder / launch / "launch.json").exists()
    assert len(list(folder.iterdir())) == 5


def test_a_user_that_is_not_there_is_named(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    with pytest.raises(Refused, match="no user and group 'nobody-such'"):
        launches.start(instance, dataclasses.replace(host, user="nobody-such"), SCHEMA)
    assert supervisor.calls == []


def test_what_can_not_be_known_before_the_release_is_said(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    assert "# arguments: known when the release is installed" in launches.compare(instance, host, None).after
    assert "# arguments" not in launches.compare(instance, host, SCHEMA).after


def test_a_launch_without_its_record_is_a_reason(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = launches.start(instance, host, SCHEMA)
    (launch_folder(host, launch) / "launch.json").unlink()
    assert launches.compare(instance, host, SCHEMA).reasons == ("the launch has no record",)


@pytest.mark.parametrize("path", ["/var/lib/my state", "/opt/100%", "/opt/$HOME", "relative"])
def test_a_path_that_a_unit_would_misread_is_refused(
    supervisor: Supervisor, host: Host, instance: Instance, path: str
) -> None:
    for changed in (dataclasses.replace(host, state=Path(path)), dataclasses.replace(host, release=Path(path))):
        with pytest.raises(Refused, match="can not stand in a unit"):
            launches.check(instance, changed, SCHEMA)


def test_a_full_disk_is_named(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(Refused, match=rf"can not write {host.folder('a')}: No space left on device; .* GiB free"):
        launches.start(instance, host, SCHEMA)
    assert systemd.read_unit("a") == ""


def test_a_check_of_what_is_in_order(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launches.check(instance, host, SCHEMA)
    launches.check(dataclasses.replace(instance, model="Qwen/Qwen3-0.6B"), host, SCHEMA)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"args": {"tp_sise": 2, "port": 1}}, "'port' is not an argument of an instance: set 'port' of the instance; "),
        ({"args": {"tp_sise": 2, "port": 1}}, "this SGLang has no option 'tp_sise'; did you mean 'tp_size'?"),
        ({"secrets": {"api_key": ""}}, "the secret 'api_key' is empty"),
        ({"env": {"A-B": "1", "C D": "2"}}, "'A-B' under 'env' is no name of a variable"),
        ({"env": {"A-B": "1", "C D": "2"}}, "; 'C D' under 'env' is no name of a variable"),
        ({"env": {"SGLANG_LAUNCH_ID": "x"}}, "'SGLANG_LAUNCH_ID' under 'env' carries the launch id"),
        ({"model": "/nowhere/m"}, "the model directory /nowhere/m has no config.json: correct 'model' or mount it"),
    ],
)
def test_what_would_fail_at_the_start_is_refused(
    supervisor: Supervisor, host: Host, instance: Instance, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused) as caught:
        launches.check(dataclasses.replace(instance, **change), host, SCHEMA)
    assert str(caught.value).startswith("instance 'a': ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_wait_for_the_release(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    wrong = dataclasses.replace(instance, args={"tp_sise": 2})
    launches.check(wrong, host, None)
    assert launches.compare(wrong, host, None).reasons == ("not installed",)


def test_a_port_of_a_stranger_is_refused(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", instance.port))
        stranger.listen()
        with pytest.raises(Refused) as caught:
            launches.check(instance, host, SCHEMA)
        text = str(caught.value)
        assert text.startswith(f"instance 'a': port {instance.port} is held by process {os.getpid()} (")
        assert text.endswith("end it or choose another port")
        # a unit of ours does not make the stranger ours
        launches.start(instance, host, SCHEMA)
        with pytest.raises(Refused, match=f"port {instance.port} is held by process {os.getpid()}"):
            launches.check(instance, host, SCHEMA)


def test_a_port_of_the_instance_itself_is_no_problem(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launches.start(instance, host, SCHEMA)
    own = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]
    supervisor.identity = dataclasses.replace(supervisor.identity, cgroup=own)
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", instance.port))
        ours.listen()
        launches.check(instance, host, SCHEMA)
