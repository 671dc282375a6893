# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches in a folder of the test, with a stand-in of systemctl; files, sockets and processes are real."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import inspect
import itertools
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import guard, processes, sockets
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils import watch as watch_module
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Comparison, Host, Instance, Prepared
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import STOPS, Identity, launch_of
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from conftest import parser_of, schema_of

SCHEMA = describe(parser_of("0.5.23"))
SECRET = "sk-never-to-be-seen"
TWICE = "is under 'secrets' and elsewhere too: keep the one under 'secrets'"
USER = "nobody"


class Supervisor:
    """What systemctl would do, as far as a launch can see it."""

    def __init__(self) -> None:
        self.identity = Identity("inactive", "dead", "success", 0, "", "", False, 0, "", {})
        self.running: str | None = None  # the launch of the process
        self.calls: list[str] = []
        self.dies_before = ""  # the call that the machine does not live to see

    def systemctl(self, *words: str) -> str:
        self._before(words[0])
        unit = words[-1]
        if words[0] == "enable":
            self.identity = dataclasses.replace(self.identity, enabled=True)
        if words[0] == "start":
            self.running = launch_of((systemd.UNIT_FOLDER / unit).read_text())
            self.identity = dataclasses.replace(
                self.identity, active="active", sub="running", main_pid=4711, cgroup=f"/system.slice/{unit}"
            )
        return ""

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        if argv[1] == "start":
            self.systemctl(*argv[1:])
        else:
            self._before(argv[1])
        return subprocess.CompletedProcess(argv, 0, "", "")

    def make_user(self, argv: list[str]) -> None:
        raise AssertionError(f"a test would change this host: {argv}")

    def _before(self, call: str) -> None:
        if call == self.dies_before:
            raise SystemExit
        self.calls.append(call)


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    made = Supervisor()
    units = tmp_path / "units"
    units.mkdir()
    monkeypatch.setattr(systemd, "UNIT_FOLDER", units)
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "chown", lambda *_: None)
        monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(systemd, "_systemctl", made.systemctl)
    monkeypatch.setattr(systemd, "run", made.run)
    monkeypatch.setattr(launches, "run", made.make_user)
    monkeypatch.setattr(systemd, "identity", lambda name: made.identity)
    monkeypatch.setattr(systemd, "running_launch", lambda pid: made.running if pid == 4711 else None)
    umask = os.umask(0o022)
    yield made
    os.umask(umask)


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


def start(instance: Instance, host: Host, told: dict[str, Any] | None = None) -> str:
    """Deploy a launch, without what the protocol does beyond it."""
    return run(launches.prepare(instance, host, SCHEMA, told or {}), host)


def start_again(host: Host, launch: str) -> str:
    return run(launches.prepare_again(host.state, "a", launch), host)


def run(prepared: Prepared, host: Host) -> str:
    systemd.install(prepared.instance, prepared.unit)
    launches.hand_over(host.state, prepared)
    systemd.start(prepared.instance)
    return prepared.launch


def unit_of(name: str = "a") -> str:
    return systemd.read_unit(name)


def launch_folder(host: Host, launch: str) -> Path:
    return host.state / "a/launches" / launch


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_first_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    before = launches.compare(instance, host, SCHEMA)
    assert before.reasons == ("not installed",)
    assert (before.launch, before.before) == (None, "")
    prepared = launches.prepare(instance, host, SCHEMA, {})
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", prepared.launch)
    assert prepared.launch == launch_of(prepared.unit)
    # it is only written down
    assert (supervisor.calls, unit_of()) == ([], "")
    run(prepared, host)
    assert supervisor.calls == ["daemon-reload", "enable", "reset-failed", "start"]
    assert supervisor.running == prepared.launch == launch_of(unit_of())


def test_nothing_differs_after_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = start(instance, host)
    again = dataclasses.replace(instance, args=dict(reversed(instance.args.items())))
    compared = launches.compare(again, host, SCHEMA)
    assert compared.reasons == ()
    assert compared.before == compared.after
    assert compared.launch == launch


def test_the_command_line_of_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = start(instance, host)
    unit = unit_of()
    command = unit[unit.index("ExecStart=") : unit.index("\nExecStartPost=")].replace(" \\\n    ", " ")
    assert command == (
        f"ExecStart={host.release}/venv/bin/python -m sglang.launch_server --context-length 32k --tp-size 2"
        f" --config {launch_folder(host, launch)}/secrets.yaml --model-path {instance.model}"
        f" --host 127.0.0.1 --port {instance.port} --weight-version {launch}"
    )
    assert f"Environment=SGLANG_LAUNCH_ID={launch}\n" in unit
    assert 'Environment="CUDA_VISIBLE_DEVICES=0,1"\n' in unit
    assert 'Environment="CUDA_DEVICE_ORDER=PCI_BUS_ID"\n' in unit  # the indices are those of nvidia-smi
    assert 'Environment="SGLANG_X=$1 %%n"\n' in unit
    assert f'Environment="HOME={host.state}/a/home"\n' in unit
    assert f"WorkingDirectory={host.state}/a/home\n" in unit
    assert f"ReadWritePaths={host.state}/a/home\n" in unit
    # the warm-up asks the server's own port, not a proxy
    assert 'Environment="NO_PROXY=localhost,127.0.0.1,::1"\n' in unit
    assert f'Environment="PATH={host.release}/venv/bin:/usr/local/sbin:' in unit
    assert f"User={USER}\n" in unit
    assert f"TimeoutStopSec={host.drain + STOPS}\n" in unit
    # what the process is to have been started with, see drift
    assert launches.record_of(host.state, "a")["argv"] == command.removeprefix("ExecStart=").split()


@pytest.mark.parametrize(
    ("change", "url"),
    [
        ({}, "http://127.0.0.1:{port}"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:{port}"),
        ({"host": "::"}, "http://[::1]:{port}"),
        ({"host": "192.0.2.7"}, "http://192.0.2.7:{port}"),
        ({"args": {"ssl_certfile": "/etc/a.pem"}}, "https://127.0.0.1:{port}"),
    ],
)
def test_the_supervisor_is_told_of_a_hung_server(
    supervisor: Supervisor, host: Host, instance: Instance, change: dict[str, Any], url: str
) -> None:
    launch = start(dataclasses.replace(instance, **change), host)
    watch = launch_folder(host, launch) / "watch.py"
    (line,) = [line for line in unit_of().splitlines() if line.startswith("ExecStartPost=")]
    asked = systemd.quote_word(url.format(port=instance.port))
    assert line == f"ExecStartPost=-{host.release}/venv/bin/python -I {watch} {asked}"
    # a program of its own: what it was made of is not on the host when the server is restarted
    assert watch.read_text() == Path(inspect.getfile(watch_module)).read_text()


def test_without_gpus_and_secrets_neither_is_in_the_unit(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    launch = start(dataclasses.replace(instance, gpus=(), secrets={}), host)
    assert "CUDA_VISIBLE_DEVICES" not in unit_of()
    assert "--config" not in unit_of()
    assert "EnvironmentFile" not in unit_of()
    assert sorted(path.name for path in launch_folder(host, launch).iterdir()) == ["launch.json", "unit", "watch.py"]


@pytest.mark.parametrize(
    ("config", "args", "offline"),
    [
        ({}, {"tp_size": 2, "chat_template": "/srv/a/b.jinja", "model_impl": "transformers"}, True),
        ({}, {"served_model_name": "Qwen/Qwen3-8B", "speculative_draft_model_path": "/srv/draft"}, True),
        ({}, {"json_model_override_args": '{"rope_theta": 1}', "enable_lora": False}, True),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, {}, True),
        ({"auto_map": {"AutoModel": "owner/other--modeling.Model"}}, {}, False),
        ({"mm_vision_tower": "openai/clip-vit-large-patch14-336"}, {}, False),
        ({"mm_vision_tower": "/srv/clip"}, {}, True),
        ({"mm_vision_tower": None}, {}, True),
        ({}, {"speculative_draft_model_path": "owner/draft"}, False),
        ({}, {"speculative_draft_model": "owner/draft:Q4_K_M"}, False),
        ({}, {"tokenizer_path": "gpt2"}, False),
        ({}, {"model_checksum": "owner/other"}, False),
        ({}, {"model_checksum": "owner/other:Q4_K_M"}, False),
        ({}, {"json_model_override_args": '{"mm_vision_tower": "owner/tower"}'}, False),
        # who may load an adapter, may name one of a hub
        ({}, {"enable_lora": True}, False),
        ({}, {"lora_paths": ["/srv/a"]}, False),
    ],
)
def test_a_server_of_a_fetched_model_asks_no_hub(
    host: Host, instance: Instance, config: dict[str, Any], args: dict[str, Any], offline: bool
) -> None:
    Path(instance.model, "config.json").write_text(json.dumps(config))
    asked = dataclasses.replace(instance, args=args)
    assert "HF_HUB_OFFLINE" not in launches.environment(asked, host)
    record = Path(instance.model, ".gpuops-model.json")
    # as the store has it, which knows no code of other repositories
    record.write_text(json.dumps({"files": {}, "code": ["modeling.py"]}))
    assert launches.environment(asked, host).get("HF_HUB_OFFLINE") == ("1" if offline else None)
    own = dataclasses.replace(asked, env={"HF_HUB_OFFLINE": "0"})
    assert launches.environment(own, host)["HF_HUB_OFFLINE"] == "0"


def test_a_damaged_record_of_a_model_restarts_no_server(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    record = Path(instance.model, ".gpuops-model.json")
    record.write_text('{"files": {}}')
    start(instance, host)
    assert "HF_HUB_OFFLINE" in unit_of()
    record.write_text("{")
    with pytest.raises(Refused, match=f"the record {record} is damaged: delete it and deploy again"):
        launches.compare(instance, host, SCHEMA)
    record.unlink()
    record.mkdir()
    with pytest.raises(Refused, match=f"can not read the record {record}: Is a directory"):
        launches.compare(instance, host, SCHEMA)


def test_a_model_that_has_no_readable_place_for_a_record_may_ask_a_hub(
    host: Host, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.gguf").touch()
    file = dataclasses.replace(instance, model=str(tmp_path / "a.gguf"))
    assert "HF_HUB_OFFLINE" not in launches.environment(file, host)

    def hidden(*_args: Any, **_options: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", hidden)
    assert "HF_HUB_OFFLINE" not in launches.environment(instance, host)


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
    "a secret variable": {"secrets": {"api_key": SECRET, "HF_TOKEN": SECRET}},
    "a secret variable only": {"secrets": {"HF_TOKEN": SECRET}},
    "a secret variable with control characters": {"secrets": {"HF_TOKEN": "a\r\nb\rc\nd"}},
}


def test_every_input_of_an_instance_is_in_the_list_of_changes() -> None:
    fields = {field.name for field in dataclasses.fields(Instance)}
    assert {name for change in CHANGES.values() for name in change} == fields


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_input_of_an_instance_changes_the_comparison(
    supervisor: Supervisor, host: Host, instance: Instance, change: dict[str, Any]
) -> None:
    start(instance, host)
    changed = dataclasses.replace(instance, **change)
    compared = launches.compare(changed, host, SCHEMA)
    assert compared.reasons
    assert compared.before != compared.after
    assert SECRET not in "".join((*compared.reasons, compared.before, compared.after))
    start(changed, host)
    assert launches.compare(changed, host, SCHEMA).reasons == ()


@pytest.mark.parametrize(
    "change",
    [{"release": Path("/opt/other")}, {"state": None}, {"user": "daemon"}, {"drain": 0}],
    ids=["release", "state", "user", "drain"],
)
def test_every_input_of_a_host_changes_the_comparison(
    supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path, change: dict[str, Any]
) -> None:
    start(instance, host)
    if "state" in change:
        change = {"state": tmp_path / "elsewhere"}
    assert "configuration differs" in launches.compare(instance, dataclasses.replace(host, **change), SCHEMA).reasons


def test_how_many_launches_are_kept_is_no_matter_of_the_service(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    start(instance, host)
    assert launches.compare(instance, dataclasses.replace(host, keep=1), SCHEMA).reasons == ()


def test_a_change_that_is_accepted_no_more_is_a_reason(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host, {"accepted": {"page_size": 64}})
    assert launches.compare(instance, host, SCHEMA, {"page_size": "measured"}).reasons == ()
    assert launches.compare(instance, host, SCHEMA).reasons == ("it runs with changes that are accepted no more",)


def test_what_is_only_written_otherwise_changes_nothing(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host)
    args = {"tp_size": "2", "context_length": "32k", "chat_template": None, "enable_metrics": False}
    assert launches.compare(dataclasses.replace(instance, args=args), host, SCHEMA).reasons == ()


def test_a_changed_secret_shows_as_changed_only(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host)
    changed = dataclasses.replace(instance, secrets={"api_key": "sk-another"})
    compared = launches.compare(changed, host, SCHEMA)
    assert compared.reasons == ("secrets differ",)
    assert compared.before.splitlines()[:-1] == compared.after.splitlines()[:-1]
    assert "sk-" not in compared.before + compared.after


def test_a_unit_changed_by_hand_differs(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host)
    path = systemd.UNIT_FOLDER / "sglang-a.service"
    path.write_text(unit_of().replace("TimeoutStopSec=", "TimeoutStopSec=7"))
    compared = launches.compare(instance, host, SCHEMA)
    assert compared.reasons == ("configuration differs",)
    assert "TimeoutStopSec=7" in compared.before
    assert "TimeoutStopSec=7" not in compared.after


def test_a_service_of_that_name_that_is_not_ours(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    (systemd.UNIT_FOLDER / "sglang-a.service").write_text("[Service]\nExecStart=/bin/x\n")
    compared = launches.compare(instance, host, SCHEMA)
    assert compared.launch is None
    with pytest.raises(
        Refused, match=r"a unit sglang-a\.service that is not of this tool: remove it or rename the instance"
    ):
        launches.check(instance, host, SCHEMA)


def test_a_unit_that_systemd_has_not_read_differs(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host)
    for told, reasons in (("no", ()), ("yes", ("systemd has not read the unit again",))):
        supervisor.identity = dataclasses.replace(supervisor.identity, shown={"NeedDaemonReload": told})
        assert launches.compare(instance, host, SCHEMA).reasons == reasons


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
    start(instance, host)
    supervisor.identity = dataclasses.replace(supervisor.identity, **state)
    (found,) = launches.compare(instance, host, SCHEMA).reasons
    assert found.startswith(reason)


def test_a_process_of_an_older_launch_is_a_reason(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = start(instance, host)
    supervisor.running = "20200101T000000Z-000000"
    reasons = launches.compare(instance, host, SCHEMA).reasons
    assert reasons == (f"launch 20200101T000000Z-000000 runs, the unit carries {launch}",)


STEPS = [
    "folder",
    "secrets.yaml",
    "secrets.env",
    "watch.py",
    "unit",
    "launch.json",
    "unit file",
    "daemon-reload",
    "enable",
    "reset-failed",
    "start",
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
    instance = dataclasses.replace(instance, secrets={"api_key": SECRET, "HF_TOKEN": SECRET})
    old = None if first else start(dataclasses.replace(instance, secrets={"api_key": "sk-old"}), host)
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
            start(instance, host)
    supervisor.dies_before = ""
    # the service that was there runs on
    assert supervisor.running == old
    assert launches.compare(instance, host, SCHEMA).reasons
    launch = start(instance, host)
    assert supervisor.running == launch
    assert launches.compare(instance, host, SCHEMA).reasons == ()


def test_secrets_are_in_their_file_only(supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path) -> None:
    secrets = {"api_key": SECRET, "HF_TOKEN": f'"{SECRET}\\$`'}
    launch = start(dataclasses.replace(instance, secrets=secrets), host)
    holders = {path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()}
    folder = launch_folder(host, launch)
    assert holders == {folder / "secrets.yaml", folder / "secrets.env"}
    assert (folder / "secrets.yaml").read_text() == f'api-key: "{SECRET}"\n'
    assert (folder / "secrets.env").read_text() == f'HF_TOKEN="\\"{SECRET}\\\\\\$\\`"\n'
    assert f"EnvironmentFile={folder}/secrets.env\n" in unit_of()
    assert "HF_TOKEN" not in unit_of()
    assert launches.record_of(host.state, "a")["secrets"] == ["HF_TOKEN", "api_key"]
    assert launches.secrets_of(host.state, "a", launch) == secrets
    assert launches.secrets_of(host.state, "a", "no-launch") == {}


def test_the_secrets_of_each_kind_have_their_file(instance: Instance) -> None:
    def files(**secrets: str) -> dict[str, str]:
        return dataclasses.replace(instance, secrets=secrets).secret_files

    assert files() == {}
    assert files(api_key="k") == {"secrets.yaml": 'api-key: "k"\n'}
    assert files(HF_TOKEN="t", A1="") == {"secrets.env": 'A1=""\nHF_TOKEN="t"\n'}
    assert files(api_key="k", HF_TOKEN="t") == {"secrets.yaml": 'api-key: "k"\n', "secrets.env": 'HF_TOKEN="t"\n'}


def owners(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[int, int]]:
    """Return what tells the owner of a file, also where this process may not give one away."""
    if os.geteuid() == 0:
        return lambda path: (path.stat().st_uid, path.stat().st_gid)
    given: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, *owner: given.update({os.stat(path).st_ino: owner}))
    monkeypatch.setattr(os, "fchown", lambda file, *owner: given.update({os.fstat(file).st_ino: owner}))
    return lambda path: given.get(path.stat().st_ino, (0, 0))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_who_may_read_what(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    owner = owners(monkeypatch)
    os.umask(umask)
    instance = dataclasses.replace(instance, secrets={"api_key": SECRET, "HF_TOKEN": SECRET})
    launch = start(instance, host)
    folder = launch_folder(host, launch)
    user = pwd.getpwnam(host.user)
    assert {path.name: oct(mode(path)) for path in folder.iterdir()} == {
        "launch.json": "0o640",
        "secrets.env": "0o600",
        "secrets.yaml": "0o600",
        "unit": "0o640",
        "watch.py": "0o644",  # the service user runs it
    }
    home = host.state / "a/home"
    assert [oct(mode(path)) for path in (home.parent, home, folder.parent, folder)] == ["0o750"] * 4
    # the server reaches its home and its --config file, and changes nothing but what is in its home
    assert owner(home) == owner(folder / "secrets.yaml") == (user.pw_uid, user.pw_gid)
    assert [owner(path) for path in (home.parent, folder.parent, folder)] == [(0, user.pw_gid)] * 3
    assert owner(folder / "secrets.env")[0] == 0
    assert [owner(folder / name) for name in ("launch.json", "unit", "watch.py")] == [(0, 0)] * 3
    assert mode(host.state) == 0o755
    assert mode(systemd.UNIT_FOLDER / "sglang-a.service") == 0o644


@pytest.mark.parametrize(("before", "after"), [(0o700, 0o755), (0o755, 0o755), (0o1777, 0o1777), (0o2770, 0o2775)])
def test_the_server_gets_to_its_home_in_a_folder_that_was_there(
    supervisor: Supervisor, host: Host, instance: Instance, before: int, after: int
) -> None:
    host.state.mkdir()
    host.state.chmod(before)
    start(instance, host)
    assert oct(mode(host.state)) == oct(after)


def test_a_folder_that_was_there_is_taken_back_from_the_server(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owners(monkeypatch)
    user = pwd.getpwnam(host.user)
    folder = host.state / "a/launches"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        path.chmod(0o777)
        os.chown(path, user.pw_uid, user.pw_gid)
    start(instance, host)
    assert [(owner(path)[0], oct(mode(path))) for path in (folder.parent, folder)] == [(0, "0o750")] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become the service user")
def test_a_link_of_the_server_leads_root_nowhere(supervisor: Supervisor, instance: Instance) -> None:
    """The service user does with its folders what it can; the next launch changes nothing outside of them."""
    with tempfile.TemporaryDirectory() as name:  # the service user can not reach pytest's own
        outside = Path(name) / "outside"
        host = Host(Path(name) / "releases/r", USER, Path(name) / "state")
        Path(name).chmod(0o755)
        outside.mkdir(mode=0o700)
        (outside / "file").write_text("root's")
        (outside / "file").chmod(0o600)
        start(instance, host)
        before = (facts_of(outside), facts_of(outside / "file"))
        home = host.state / "a/home"
        planted = [home / name for name in ("launches", "launch.json", "secrets.yaml", ".cache", "home", "unit")]
        forbidden = [host.state / "x", home.parent / "x", home.parent / "launches/x"]
        program = (
            'for path; do ln -sT "$0" "$path" && echo "$path"; done; mv -T "${path%/*}" "${path%/*}2" && echo moved'
        )
        user = pwd.getpwnam(USER)
        done = subprocess.run(
            ["/bin/sh", "-c", program, outside, *forbidden, *planted], cwd="/", capture_output=True, text=True,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=False,
        )  # fmt: skip
        assert done.stdout.split() == list(map(str, planted))
        launch = start(dataclasses.replace(instance, gpus=()), host)
        assert (facts_of(outside), facts_of(outside / "file")) == before
        assert [path.name for path in outside.iterdir()] == ["file"]
        assert launches.record_of(host.state, "a")["launch"] == launch


def facts_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mode, status.st_uid, status.st_gid, status.st_size


def test_the_record_of_a_launch(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    (host.release / "venv/bin").mkdir(parents=True)
    (host.release / "venv/bin/python").touch()
    (host.release / "schema.json").write_text('{"options": {}}')
    (host.release / "release.json").write_text('{"lock": "4174"}')
    launch = start(instance, host, {"resolved": {"x": 1}})
    record = launches.record_of(host.state, "a")
    assert record.pop("resolved") == {"x": 1}
    assert record.pop("started") > 1.7e9
    assert record.pop("argv")[-2:] == ["--weight-version", launch]
    assert record == {
        "launch": launch,
        "instance": "a",
        "release": str(host.release),
        "lock": "4174",
        "model": instance.model,
        "host": "127.0.0.1",
        "port": instance.port,
        "args": {"tp_size": 2, "context_length": "32k"},
        "user": host.user,
        "secrets": ["api_key"],
        "gpus": list(instance.gpus),
        "keep": 5,
        "supervisor": "systemd",
        "number": 1,
    }
    assert (launch_folder(host, launch) / "unit").read_text() == unit_of()


def test_an_instance_without_unit_or_record_is_refused(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    with pytest.raises(Refused, match="there is no unit of an instance 'a' on this host: deploy it first"):
        launches.record_of(host.state, "a")
    launch = start(instance, host)
    (launch_folder(host, launch) / "launch.json").write_text('{"launch": ')
    with pytest.raises(Refused, match=r"launch\.json is damaged or gone: deploy the instance again"):
        launches.record_of(host.state, "a")


def test_a_user_that_can_not_be_made_is_named(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(launches.pwd, "getpwnam", nobody)
    launches.check(instance, dataclasses.replace(host, user="nobody-such"), SCHEMA)  # it will be made
    failed = subprocess.CompletedProcess([], 10, "", "useradd: warning\nuseradd: group nobody-such exists\n")
    monkeypatch.setattr(launches, "run", lambda argv: failed)
    with pytest.raises(Refused) as caught:
        start(instance, dataclasses.replace(host, user="nobody-such"))
    assert str(caught.value) == (
        "can not make the user 'nobody-such': useradd: warning | useradd: group nobody-such exists"
    )
    assert supervisor.calls == []
    assert not host.state.exists()


def test_a_user_that_is_not_there_is_made(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, ran = {USER: pwd.getpwnam(USER)}, []

    def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
        ran.append(argv)
        users[argv[-1]] = pwd.getpwnam(USER)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(launches, "run", run)
    monkeypatch.setattr(launches.pwd, "getpwnam", lambda name: users[name])
    start(instance, dataclasses.replace(host, user="sglang"))
    assert [argv[0] for argv in ran] == ["/usr/sbin/useradd"]
    assert ran[0][-1] == "sglang"
    assert {"--system", "--user-group", "--no-create-home"} <= set(ran[0])
    assert ran[0][ran[0].index("--shell") + 1] == "/usr/sbin/nologin"
    assert "User=sglang\n" in unit_of()
    start(instance, dataclasses.replace(host, user="sglang"))
    assert len(ran) == 1


def test_root_is_no_service_user(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    with pytest.raises(Refused) as caught:
        launches.check(instance, dataclasses.replace(host, user="root"), SCHEMA)
    assert str(caught.value) == (
        "instance 'a': 'root' is root: set sglang_server_user to a user of its own, which is created"
    )


def test_another_name_of_root_is_no_service_user(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pwd.getpwnam("root")
    monkeypatch.setattr(launches.pwd, "getpwnam", lambda name: root)
    with pytest.raises(Refused, match="'toor' is root"):
        launches.check(instance, dataclasses.replace(host, user="toor"), SCHEMA)


def test_what_can_not_be_known_before_the_release_is_said(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    assert launches.compare(instance, host, None).after.endswith(
        "# arguments: compared when the release is installed\n"
    )
    assert "# arguments" not in launches.compare(instance, host, SCHEMA).after


def test_a_launch_without_its_record_is_a_reason(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = start(instance, host)
    (launch_folder(host, launch) / "launch.json").unlink()
    assert launches.compare(instance, host, SCHEMA).reasons == ("the launch has no record",)


@pytest.mark.parametrize("content", ["", "{", "not JSON", "[]"])
def test_a_launch_with_a_damaged_record_is_a_reason(
    supervisor: Supervisor, host: Host, instance: Instance, content: str
) -> None:
    launch = start(instance, host)
    (launch_folder(host, launch) / "launch.json").write_text(content)
    assert launches.compare(instance, host, SCHEMA).reasons == ("the launch has no record",)
    start(instance, host)
    assert launches.compare(instance, host, SCHEMA).reasons == ()


def changed_lines(compared: Comparison) -> list[str]:
    lines = difflib.ndiff(compared.before.splitlines(), compared.after.splitlines())
    return [line for line in lines if line[0] in "+-"]


@pytest.mark.parametrize("secrets", [{}, {"api_key": SECRET, "HF_TOKEN": SECRET}], ids=["no secret", "secrets"])
def test_a_diff_before_the_release_has_no_arguments_on_either_side(
    supervisor: Supervisor, host: Host, instance: Instance, secrets: dict[str, str]
) -> None:
    args = {"tp_size": 2, "chat_template": "- a 'b'", "json_model_override_args": {"a": "b c"}, "enable_metrics": True}
    instance = dataclasses.replace(instance, args=args, secrets=secrets)
    start(instance, host)
    assert '"--chat-template=- a' in unit_of()
    new = dataclasses.replace(host, release=host.release.with_name("0.5.24-00000000"))
    compared = launches.compare(instance, new, None)
    assert compared.reasons == ("configuration differs",)
    assert compared.after == (
        compared.before.replace(str(host.release), str(new.release))
        + "# arguments: compared when the release is installed\n"
    )
    options = [line for line in compared.after.splitlines() if line.lstrip(' "').startswith("--")]
    assert options == [line for line in compared.before.splitlines() if line.lstrip(' "').startswith("--")]
    assert [option.split()[0] for option in options] == [
        *(["--config"] if secrets else []),
        "--model-path",
        "--host",
        "--port",
        "--weight-version",
    ]
    # a change of another thing is still seen
    moved = launches.compare(dataclasses.replace(instance, port=1024), new, None)
    assert "+     --port 1024 \\" in changed_lines(moved)


@pytest.mark.parametrize("more", [{"warmups": "x"}, {"allow_auto_truncate": True}], ids=["the last", "the first"])
def test_one_argument_more_or_less_is_one_line_of_a_diff(
    supervisor: Supervisor, host: Host, instance: Instance, more: dict[str, Any]
) -> None:
    longer = dataclasses.replace(instance, args={**instance.args, **more})
    start(instance, host)
    (line,) = changed_lines(launches.compare(longer, host, SCHEMA))
    assert line.startswith("+     --")
    start(longer, host)
    assert changed_lines(launches.compare(instance, host, SCHEMA)) == ["-" + line[1:]]


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
    with pytest.raises(Refused, match=rf"can not write {host.state}: No space left on device; .* GiB free"):
        start(instance, host)
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
        ({"secrets": {"A-B": SECRET}}, "'A-B' under 'secrets' is no name of a variable"),
        ({"secrets": {"SGLANG_LAUNCH_ID": SECRET}}, "'SGLANG_LAUNCH_ID' under 'secrets' carries the launch id"),
        ({"secrets": {"A": f"{SECRET}\0"}}, "'A' under 'secrets' holds a NUL character"),
        ({"secrets": {"Hf_Token": SECRET}}, "'Hf_Token' under 'secrets' is no option of this SGLang"),
        ({"secrets": {"SGLANG_X": SECRET}}, f"'SGLANG_X' {TWICE}"),
        ({"secrets": {"tokenizer_path": SECRET}, "args": {"tokenizer_path": "x"}}, f"'tokenizer_path' {TWICE}"),
        ({"secrets": {"HF_TOKEN": ""}}, "the secret 'HF_TOKEN' is empty: set it or delete it"),
        ({"secrets": {"CUDA_VISIBLE_DEVICES": "0"}}, "'gpus' and CUDA_VISIBLE_DEVICES say the same thing"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "'gpus' and CUDA_VISIBLE_DEVICES say the same thing"),
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
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["model", "tokenizer_path", "chat_template"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_the_service_does_not_see_is_refused(
    supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    option: str, linked: bool,
) -> None:  # fmt: skip
    (tmp_path / "hidden").mkdir()
    shutil.copytree(instance.model, tmp_path / "hidden/m")
    (tmp_path / "link").symlink_to(tmp_path / "hidden")
    monkeypatch.setattr(systemd, "HIDDEN", (f"{tmp_path}/hidden",))
    path = f"{tmp_path}/link/m" if linked else f"{tmp_path}/hidden/m"
    change: dict[str, Any] = {"model": path} if option == "model" else {"args": {option: path}}
    with pytest.raises(Refused, match=f"'{option}' is {path}, and its service has a {tmp_path}/hidden of its own"):
        launches.check(dataclasses.replace(instance, **change), host, None)
    launches.check(instance, host, SCHEMA)


def test_a_model_that_comes_before_a_start_need_not_be_there(
    supervisor: Supervisor, host: Host, instance: Instance
) -> None:
    there = dataclasses.replace(instance, model="/nowhere/m")
    launches.check(there, dataclasses.replace(host, awaited=("/nowhere/m",)), SCHEMA)


def test_what_changes_the_unit_beside_it_is_refused(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    own, all_services = "/etc/systemd/system/sglang-a.service.d/x.conf", "/usr/lib/systemd/system/service.d/y.conf"
    supervisor.identity = dataclasses.replace(supervisor.identity, shown={"DropInPaths": f"{all_services} {own}"})
    launches.check(instance, host, SCHEMA)  # there is no unit that it could change
    start(instance, host)
    with pytest.raises(Refused) as caught:
        launches.check(instance, host, SCHEMA)
    assert str(caught.value) == (f"instance 'a': {own} changes what its unit runs: delete it, its content is for 'env'")
    supervisor.identity = dataclasses.replace(supervisor.identity, shown={"DropInPaths": all_services})
    launches.check(instance, host, SCHEMA)


def test_devices_may_be_named_as_a_variable_alone(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    devices = {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    changed = dataclasses.replace(instance, gpus=(), env=devices)
    launches.check(changed, host, SCHEMA)
    start(changed, host)
    assert 'Environment="CUDA_VISIBLE_DEVICES=GPU-1"\n' in unit_of()


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
        assert text.startswith(f"instance 'a': port {instance.port} is held by process {os.getpid()} of user ")
        assert text.endswith("end it or choose another port")
        # a unit of ours does not make the stranger ours
        start(instance, host)
        with pytest.raises(Refused, match=f"port {instance.port} is held by process {os.getpid()}"):
            launches.check(instance, host, SCHEMA)


def test_a_server_that_was_started_by_hand_is_refused_with_the_way_to_take_its_place(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = processes.Process(os.getppid(), "python -m sglang.launch_server", "root", None, (), None)
    monkeypatch.setattr(processes, "servers", lambda: [by_hand])
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", instance.port))
        stranger.listen()
        with pytest.raises(Refused) as caught:
            launches.check(instance, host, SCHEMA)
        assert str(caught.value) == (
            f"instance 'a': port {instance.port} is held by {by_hand.label}, an SGLang server that was started by "
            "hand: take its place with -e sglang_server_take_over=true (see docs/adopt.md), or end it"
        )
        launches.check(instance, host, SCHEMA, {os.getpid()})
        with pytest.raises(Refused):
            launches.check(instance, host, SCHEMA, {os.getppid()})
        # on another port of an instance there is no place to take
        moved = dataclasses.replace(instance, port=1, args={"nccl_port": str(instance.port)})
        with pytest.raises(Refused, match="end it or choose another port"):
            launches.check(moved, host, schema_of("0.5.23"))


@pytest.mark.parametrize("option", ["nccl_port", "engine_info_bootstrap_port"])
def test_every_port_that_an_operator_gives_is_looked_at(
    supervisor: Supervisor, host: Host, instance: Instance, option: str
) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} is held by process {os.getpid()}"):
            launches.check(dataclasses.replace(instance, args={option: str(port)}), host, schema_of("0.5.23"))


def test_a_port_of_another_instance_is_refused_with_its_name(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(dataclasses.replace(instance, name="b-1"), host)
    holder = sockets.Listener(4712, "python", "root", None, ("/lxc/130/system.slice/sglang-b-1.service",), 130)
    monkeypatch.setattr(sockets, "listeners", lambda port: [holder] if port == instance.port else [])
    with pytest.raises(Refused) as caught:
        launches.check(instance, host, SCHEMA)
    assert str(caught.value) == (
        f"instance 'a': port {instance.port} is held by instance 'b-1' of this host: "
        "move that one first, or end it with 'systemctl disable --now sglang-b-1.service'"
    )
    # a service of that name that is not of this tool is a stranger
    (systemd.UNIT_FOLDER / "sglang-b-1.service").write_text("[Service]\nExecStart=/bin/x\n")
    with pytest.raises(Refused, match=r"is held by process 4712 of user root \(python\), in container 130: end"):
        launches.check(instance, host, SCHEMA)


def test_a_port_of_the_instance_itself_is_no_problem(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    start(instance, host)
    own = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]
    supervisor.identity = dataclasses.replace(supervisor.identity, cgroup=own)
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", instance.port))
        ours.listen()
        launches.check(instance, host, SCHEMA)


def proved(host: Host, launch: str, **told: Any) -> str:
    (host.release / "venv/bin").mkdir(parents=True, exist_ok=True)
    (host.release / "venv/bin/python").touch()
    launches.keep_verdict(host.state, "a", launch, {"tokens": 8, **told})
    return launch


@pytest.fixture(params=[1, -1], ids=["", "the clock is set back"])
def ordered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of one second whose ids rise, or fall as after a change of the clock."""
    numbers = itertools.count(500, request.param)
    monkeypatch.setattr(launches, "_new_id", lambda: f"20260101T000000Z-{next(numbers):06}")


def test_a_failed_launch_returns_to_the_newest_that_was_proved(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance
) -> None:
    first = proved(host, start(instance, host))
    good = proved(host, start(dataclasses.replace(instance, port=30001), host, {"resolved": {"x": 1}}))
    bad = start(dataclasses.replace(instance, port=30002), host)
    assert launches.is_good(host.state, "a", good) and not launches.is_good(host.state, "a", bad)
    assert launches.last_good(host.state, "a", bad) == good
    again = start_again(host, good)
    unit = systemd.read_unit("a")
    assert launch_of(unit) == again == supervisor.running
    old = (host.launch_folder("a", good) / "unit").read_text()
    assert unit == old.replace(good, again) and good not in unit
    folder, before = host.launch_folder("a", again), host.launch_folder("a", good)
    assert {path.name for path in before.iterdir()} - {path.name for path in folder.iterdir()} == {"verdict.json"}
    for path in (before, *(before / name for name in (*instance.secret_files, "watch.py"))):
        copy = folder / path.name if path != before else folder
        assert (copy.stat().st_mode, copy.stat().st_uid) == (path.stat().st_mode, path.stat().st_uid)
        assert path == before or copy.read_bytes() == path.read_bytes()
    record, was = launches.record_of(host.state, "a"), json.loads((before / "launch.json").read_text())
    assert record["argv"] == [word.replace(good, again) for word in was["argv"]] != was["argv"]
    changed = {name for name in record if record[name] != was.get(name)}
    assert (record["launch"], record["again"]) == (again, good)
    assert changed == {"launch", "again", "number", "started", "argv"}
    assert not launches.is_good(host.state, "a", again)  # it is to be proved itself
    # and the next return goes further back, not forth to what was left
    proved(host, again)
    assert launches.last_good(host.state, "a", again) == first
    assert launches.last_good(host.state, "a", first) is None
    # what was returned to is where a later failure returns to
    assert launches.last_good(host.state, "a", start(instance, host)) == again
    # a return to a return is one to what that was
    assert start_again(host, again) and launches.record_of(host.state, "a")["again"] == good


def test_a_return_to_what_is_kept_no_more_is_no_good_launch_before_itself(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance
) -> None:
    oldest, origin = (proved(host, start(instance, host)) for _ in range(2))
    between = proved(host, start(instance, host))
    again = proved(host, start_again(host, origin))
    assert launches.last_good(host.state, "a", again) == oldest
    shutil.rmtree(launch_folder(host, origin))
    assert launches.last_good(host.state, "a", again) == between
    for launch in (oldest, between):
        shutil.rmtree(launch_folder(host, launch))
    assert launches.last_good(host.state, "a", again) is None


def test_space_is_held_back_for_the_way_back(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    reserve = host.state / ".reserve"
    launch = proved(host, start(instance, host))
    assert (mode(reserve), reserve.stat().st_size) == (0o600, launches.RESERVE)
    # a file system that packs its files holds it back too
    assert len(zlib.compress(reserve.read_bytes(), 1)) > launches.RESERVE // 2
    written = reserve.stat().st_mtime_ns
    start(instance, host)
    assert reserve.stat().st_mtime_ns == written
    for _ in range(2):
        launches.give_reserve(host.state)
        assert not reserve.exists()
    start_again(host, launch)
    assert not reserve.exists()  # the way back is what it is for
    reserve.write_text("cut")
    start(instance, host)
    assert reserve.stat().st_size == launches.RESERVE


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_a_return_does_not_depend_on_the_umask(
    supervisor: Supervisor, host: Host, instance: Instance, mask: int
) -> None:
    launch = proved(host, start(instance, host))
    os.umask(mask)
    folder = host.launch_folder("a", start_again(host, launch))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_a_return_to_another_user_gives_the_folders_back(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owners(monkeypatch)
    launch = proved(host, start(instance, host))
    start(instance, dataclasses.replace(host, user="daemon"))
    start_again(host, launch)
    user = pwd.getpwnam(host.user)
    assert owner(host.home("a")) == (user.pw_uid, user.pw_gid)
    assert owner(host.state / "a") == (0, user.pw_gid)


def test_what_can_not_be_started_again_is_no_way_back(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = proved(host, start(instance, host))
    assert launches.last_good(host.state, "a", launch) is None  # it is the present one
    parts = {
        Path(instance.model, "config.json"): f"the model {instance.model} of launch {launch} is gone: mount",
        host.release / "venv/bin/python": f"the release {host.release} of launch {launch} is gone: install",
        launch_folder(host, launch) / "unit": f"launch {launch} of instance 'a' is not kept in",
    }
    for part, why in parts.items():
        assert launches.last_good(host.state, "a", None) == launch
        content = part.read_text()
        part.unlink()
        assert launches.last_good(host.state, "a", None) is None
        with pytest.raises(Refused, match=why):
            start_again(host, launch)
        part.write_text(content)
    with pytest.raises(Refused, match="launch L of instance 'a' is not kept"):
        start_again(host, "L")
    assert launches.record_of(host.state, "a")["launch"] == launch == supervisor.running


@pytest.mark.parametrize("ending", ["verdict", "failure"])
@pytest.mark.parametrize(
    ("keep", "left"),
    [(0, [1, 5]), (1, [1, 5]), (2, [1, 4, 5]), (4, [1, 2, 3, 4, 5]), (6, [*range(6)]), (99, [*range(6)])],
)
def test_the_newest_launches_are_kept_and_the_last_good_one(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance, keep: int, left: list[int], ending: str
) -> None:
    host = dataclasses.replace(host, keep=keep)
    many = dataclasses.replace(host, keep=99)
    made = [proved(many, start(instance, many)) for _ in range(2)] + [start(instance, host) for _ in range(4)]
    if ending == "verdict":
        proved(host, made[-1])
    else:
        launches.keep_failure(host.state, "a", made[-1], "", ())
    remaining = {path.name for path in (host.state / "a/launches").iterdir()}
    assert {made.index(name) for name in remaining} == set(left)


def test_what_a_failed_launch_returned_to_is_kept(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance
) -> None:
    host = dataclasses.replace(host, keep=1)
    many = dataclasses.replace(host, keep=99)
    older, good, failed, present = (start(instance, one) for one in (many, many, host, host))
    for launch in (older, good):
        proved(many, launch)
    launches.keep_failure(host.state, "a", failed, "", ())
    assert {one["launch"] for one in launches.kept(host.state, "a")} == {good, failed, present}


def test_a_launch_without_its_record_is_the_first_to_go(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    damaged, launch = (start(instance, dataclasses.replace(host, keep=1)) for _ in range(2))
    (launch_folder(host, damaged) / "launch.json").write_text("{")
    assert launches.record_of(host.state, "a")["number"] == 2
    proved(host, launch)
    assert [one["launch"] for one in launches.kept(host.state, "a")] == [launch]


def test_what_became_of_the_kept_launches(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance
) -> None:
    assert launches.kept(host.state, "a") == launches.earlier_verdicts(host.state, "a") == []
    first, damaged, failed, begun = (start(instance, host) for _ in range(4))
    later = start(instance, host)
    launches.keep_failure(host.state, "a", failed, "why\n  evidence", ["one", "zwölf"])
    launches.keep_failure(host.state, "a", later, "not yet", [])
    for number, launch in enumerate((later, first, damaged)):
        proved(host, launch, number=number)
    (launch_folder(host, damaged) / "verdict.json").write_text("{")
    found = {one["launch"]: (one["proved"], one["failed"]) for one in launches.kept(host.state, "a")}
    assert list(found) == [first, damaged, failed, begun, later]
    proved_ones, failed_ones = ({name for name in found if found[name][place]} for place in (0, 1))
    assert (proved_ones, failed_ones) == ({first, damaged, later}, {failed})
    assert [verdict["number"] for verdict in launches.earlier_verdicts(host.state, "a")] == [1, 0]
    folder = launch_folder(host, failed)
    assert json.loads((folder / "failure.json").read_text()) == {"report": "why\n  evidence", "again": False}
    assert (folder / "failure.log").read_text() == "one\nzwölf\n"
    assert {name: oct(mode(folder / name)) for name in ("failure.json", "failure.log")} == {
        "failure.json": "0o640",
        "failure.log": "0o600",  # SGLang logs all its arguments, keys included
    }


@pytest.mark.parametrize("keep", [1, 5])
@pytest.mark.parametrize(
    ("changed", "told", "was_proved", "again"),
    [
        ({}, {}, False, True),
        ({}, {}, True, False),
        ({}, {"accept_changes": {"dtype": "why"}}, False, False),
        ({"args": {"tp_size": 1}}, {}, False, False),
        ({"secrets": {"api_key": "another"}}, {}, False, False),
    ],
    ids=["the same", "it served once", "other changes accepted", "another argument", "another secret"],
)
def test_a_launch_has_failed_again_where_the_same_had_failed_before(
    supervisor: Supervisor, ordered: None, host: Host, instance: Instance, keep: int,
    changed: dict[str, Any], told: dict[str, Any], was_proved: bool, again: bool,
) -> None:  # fmt: skip
    host = dataclasses.replace(host, keep=keep)
    accepted = told.get("accept_changes", {})
    first = start(instance, host)
    if was_proved:
        proved(host, first)
    launches.keep_failure(host.state, "a", first, "", ())
    assert not launches.failed_again(host.state, "a", first, ())
    second = start(dataclasses.replace(instance, **changed), host, told)
    assert not launches.failed_again(host.state, "a", second, accepted)
    launches.keep_failure(host.state, "a", second, "", ())
    assert launches.failed_again(host.state, "a", second, accepted) == again
    assert not launches.failed_again(host.state, "a", second, {"page_size": "why", **accepted})


def test_the_first_verdict_is_kept(supervisor: Supervisor, host: Host, instance: Instance) -> None:
    launch = proved(host, start(instance, host))
    launches.keep_verdict(host.state, "a", launch, {"tokens": 9})
    path = host.launch_folder("a", launch) / "verdict.json"
    assert json.loads(path.read_text()) == {"tokens": 8}


def test_a_launch_under_supervisord(
    supervisor: Supervisor, host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = start(instance, host)
    used = Supervisord(host.state)
    monkeypatch.setattr(here, "_chosen", used)
    assert "another supervisor" in str(launches.again_problem(host.state, "a", earlier))
    assert launches.compare(instance, host, SCHEMA).reasons == ("not installed",)
    prepared = launches.prepare(instance, host, SCHEMA, {})
    used.install("a", prepared.unit)
    found = launches.compare(instance, host, SCHEMA)
    assert found.reasons == ("service is inactive (dead)",) and found.before == found.after
    folder = launch_folder(host, prepared.launch)
    record = json.loads((folder / "launch.json").read_text())
    unit = guard.parse(used.read_unit("a"))
    assert unit["start"] == [record["argv"]] and dict(unit["variable"])["SGLANG_LAUNCH_ID"] == prepared.launch
    assert unit["kill-after"] == [[str(host.drain + STOPS)]]
    assert (folder / "guard.py").read_text() == Path(guard.__file__).read_text()
    assert launches.record_of(host.state, "a")["supervisor"] == "supervisord"
    assert SECRET not in used.read_unit("a")
    # without a release neither side has the arguments
    bare = launches.compare(dataclasses.replace(instance, args={}), host, None)
    assert bare.after.startswith(bare.before) and "tp-size" not in bare.before
    (host.release / "venv/bin").mkdir(parents=True)
    (host.release / "venv/bin/python").touch()
    again = launches.prepare_again(host.state, "a", prepared.launch)
    assert again.unit == prepared.unit.replace(prepared.launch, again.launch)


def test_a_home_from_another_machine_is_the_users_again(
    supervisor: Supervisor, host: Host, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may have another number there, and a link of the server leads nowhere."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    start(instance, host)
    home, outside = host.home("a"), tmp_path / "outside"
    outside.touch()
    (home / "cache/deep").mkdir(parents=True)
    (home / "cache/deep/file").touch()
    (home / "link").symlink_to(outside)
    for path in (home, home / "cache", home / "cache/deep", home / "cache/deep/file", home.parent):
        os.chown(path, 4711, 4711)
    prepared = launches.prepare(instance, host, SCHEMA, {})
    assert {path.lstat().st_uid for path in (home, *home.rglob("deep"))} == {4711}  # what still runs needs it
    assert home.parent.stat().st_gid == 4711
    chown = os.chown

    def swapped(path: Any, *owner: Any, **how: Any) -> None:
        if Path(path).name == "file" and not (home / "cache/deep").is_symlink():
            (home / "cache/deep").rename(home / "cache/moved")
            (home / "cache/deep").symlink_to(tmp_path / "there")
        chown(path, *owner, **how)

    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    monkeypatch.setattr(os, "chown", swapped)
    run(prepared, host)
    assert (home / "cache/deep").is_symlink() and (tmp_path / "there/file").stat().st_uid == 0
    assert home.parent.stat().st_gid == pwd.getpwnam(USER).pw_gid
    chown(home / "cache/deep", pwd.getpwnam(USER).pw_uid, -1, follow_symlinks=False)
    uid = pwd.getpwnam(USER).pw_uid
    assert {path.lstat().st_uid for path in (home, *home.rglob("*"))} == {uid}
    assert outside.stat().st_uid == 0
