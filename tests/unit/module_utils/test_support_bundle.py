# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles of a made-up host: records and logs are files, programs are scripts, a server's process is real."""

from __future__ import annotations

import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import support_bundle
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import secrets_text
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.secret_forms import forms_of
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import environment_file
from conftest import running

PRESENT, FAILED, GOOD, OLD = (f"20260101T00000{number}Z-abcdef" for number in (4, 3, 2, 1))
API_KEY = "sk\\quo'ted\"-$key=1;x"
EARLIER_KEY = "an-earlier-key-of-it"
ENVIRONMENT = {
    "WORDS": 'first "line" of it\nzweite Zeile \u20ac\U0001f600\n',
    "PROXY": "http://user:p@ss/wörd%20+x@proxy:3128",
    "CREDENTIALS": json.dumps({"type": "user", "value": 'deep "inside" of it'}),
    "PIN": "q7",
}


def forms(secret: str) -> set[str]:
    plain = {secret, *forms_of(secret)}
    written = {json.dumps(form)[1:-1] for form in plain} | {repr(form)[1:-1] for form in plain}
    return plain | written | {quote(secret), quote(secret, safe=""), quote_plus(secret)}


class Made:
    """A host with the instance a."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.state = folder, folder / "state"
        self.programs = folder / "bin"
        self.logs: dict[str, list[str]] = {}
        (folder / "units").mkdir()
        self.programs.mkdir()
        monkeypatch.setattr(systemd, "UNIT_FOLDER", folder / "units")
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")
        self.program("nvidia-smi", 'echo "smi $*: NVIDIA H200, 141 GiB"')
        self.model = folder / "models/tiny"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "eos_token_id": 7}')
        (self.model / "model.safetensors").write_bytes(b"x" * 1234)
        self.release = folder / "releases/0.5.23-12345678"
        (self.release / "venv/bin").mkdir(parents=True)
        (self.release / "venv/bin/python").write_text("#!/bin/sh\necho Python 3.11.9\n")
        (self.release / "venv/bin/python").chmod(0o755)
        (self.release / "schema.json").write_text('{"options": {}, "sglang_version": "0.5.23"}')
        (self.release / "release.json").write_text('{"packages": ["torch==2.14.1"]}')
        for launch in (OLD, GOOD, FAILED, PRESENT):
            self.launch(launch, API_KEY if launch == PRESENT else EARLIER_KEY)
        self.keep(GOOD, "verdict.json", {"tokens": 8})
        self.keep(FAILED, "failure.json", {"report": f"the server ended: got {API_KEY!r}"})
        self.unit(f'# launch: {PRESENT}\n[Service]\nEnvironment="HF_HOME=/srv/hub"\nExecStart=python --tp-size 2\n')
        self.show(0)

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def show(self, pid: int, drop_ins: str = "") -> None:
        """Let systemd tell this of each unit."""
        told = f"MainPID={pid}\\nDropInPaths={drop_ins}\\nActiveState=active\\nNRestarts=3"
        self.program("systemctl", f'case $1 in show) printf "{told}\\n" ;; *) echo "systemd 252" ;; esac')

    def unit(self, text: str) -> None:
        (systemd.UNIT_FOLDER / "sglang-a.service").write_text(text)

    def path(self, launch: str, name: str) -> Path:
        return self.state / "a/launches" / launch / name

    def keep(self, launch: str, name: str, content: Any) -> None:
        self.path(launch, name).write_text(json.dumps(content))

    def launch(self, launch: str, key: str) -> None:
        self.path(launch, "").mkdir(parents=True)
        record = {"launch": launch, "release": str(self.release), "model": str(self.model), "secrets": ["PIN"]}
        self.keep(launch, "launch.json", record)
        self.path(launch, "unit").write_text(f"# launch: {launch}\n")
        self.path(launch, "secrets.yaml").write_text(secrets_text({"api_key": key}))
        self.path(launch, "secrets.env").write_text(environment_file(ENVIRONMENT))
        self.logs[launch] = [f"log of {launch}"]

    def files(self) -> dict[str, bytes]:
        return support_bundle.collect(self.state, ["a"], lambda launch: self.logs[launch])

    def collect(self) -> dict[str, str]:
        return {name: content.decode() for name, content in self.files().items()}

    def log(self, launch: str = PRESENT) -> str:
        return self.collect()[f"instances/a/launches/{launch}/log.txt"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


@pytest.fixture
def server() -> Iterator[int]:
    """The process id of one that has its secrets in its environment."""
    environment = {**ENVIRONMENT, "SGLANG_LAUNCH_ID": PRESENT, "OTHER_TOKEN": "set by hand"}
    with running("/bin/sleep", "60", env=environment) as process:
        yield process.pid


def test_no_secret_is_in_any_file_in_any_form(made: Made, server: int) -> None:
    made.show(server)
    told = {"api_key": API_KEY, **ENVIRONMENT}
    secrets = [API_KEY, EARLIER_KEY, *ENVIRONMENT.values()]
    made.logs[PRESENT] = [
        f"server_args=ServerArgs(model_path='/m', api_key={API_KEY!r}, tp_size=2, admin_api_key=None)",
        f"as JSON {json.dumps(told)} and within {json.dumps({'server_args': json.dumps(told)})}",
        f"as Python {told!r} and bytes {ENVIRONMENT['WORDS'].encode()!r}",
        *(f"GET /v1?key={quote(value, safe='')} of {quote_plus(value)} and {quote(value)}" for value in told.values()),
        *ENVIRONMENT["WORDS"].splitlines(),
        f"said {ENVIRONMENT['WORDS']} as it is",
        "pin=q7, but q7 is also a word; 'PIN': 'q7'",
        "fetch https://someone:unknown-1@hub/x?token=unknown-2 with Authorization: Bearer unknown-3",
        "Load weight end. elapsed=1.5 s, #new-token: 7",
    ]
    made.unit(f'# launch: {PRESENT}\nEnvironment="MY_TOKEN=unknown 4"\nExecStart=x --api-key unknown-5 --tp-size 2\n')
    files = made.collect()
    assert [name for name in files if "secrets." in name] == []
    for name, text in files.items():
        found = [
            form for secret in secrets if secret != "q7" for form in forms(secret) if len(form) > 3 and form in text
        ]
        assert found == [], name
        assert "unknown" not in text and "set by hand" not in text, name
    log = files[f"instances/a/launches/{PRESENT}/log.txt"]
    assert "pin=********, but q7 is also a word; 'PIN': '********'" in log
    assert "model_path='/m', api_key='********', tp_size=2, admin_api_key=None)" in log
    assert "Load weight end. elapsed=1.5 s, #new-token: 7" in log
    environment = files["instances/a/environment.txt"].splitlines()
    assert 'PIN="********"' in environment and f'SGLANG_LAUNCH_ID="{PRESENT}"' in environment


def test_what_explains_an_instance_is_there(made: Made, server: int) -> None:
    drop_in = made.folder / "sglang-a.service.d/nice.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nNice=5\n")
    made.show(server, str(drop_in))
    files = made.collect()
    place = "instances/a"
    expected = {
        "README.txt": f"  {len(files[f'{place}/service.txt'])} {place}/service.txt\n",
        "host/versions.txt": f"{os.uname().release} ",
        "host/memory.txt": "MemTotal:",
        "host/limits.txt": "Max open files",
        "host/gpus.txt": "NVIDIA H200",
        "host/gpus-all.txt": "smi -q: NVIDIA H200",
        f"{place}/sglang-a.service": 'Environment="HF_HOME=/srv/hub"',
        f"{place}/service.txt": "NRestarts=3",
        f"{place}/drop-ins/sglang-a.service.d-nice.conf": "Nice=5",
        f"{place}/environment.txt": PRESENT,
        f"{place}/limits.txt": "Max locked memory",
        f"{place}/launches/{OLD}/launch.json": str(made.model),
        f"{place}/launches/{GOOD}/unit": f"# launch: {GOOD}",
        f"{place}/launches/{GOOD}/verdict.json": '"tokens": 8',
        f"{place}/launches/{FAILED}/failure.json": "the server ended",
        f"{place}/launches/{FAILED}/log.txt": f"log of {FAILED}",
        f"{place}/launches/{PRESENT}/log.txt": f"log of {PRESENT}",
        "releases/0.5.23-12345678/release.json": "torch==2.14.1",
        "releases/0.5.23-12345678/facts.txt": "Python 3.11.9\n\npackage torch was removed",
    }
    for name, text in expected.items():
        assert text in files[name], (name, files[name])
    assert "options of SGLang 0.5.23" in files["releases/0.5.23-12345678/facts.txt"]
    assert "systemd 252" in files["host/versions.txt"] and "/dev/shm" in files["host/memory.txt"]
    (listing,) = [name for name in files if name.startswith("models/") and name.endswith("_models_tiny/files.txt")]
    assert " 1234 " in files[listing] and "model.safetensors" in files[listing]
    assert json.loads(files[listing.replace("files.txt", "config.json")])["eos_token_id"] == 7
    assert [name for name in files if name.endswith("log.txt")] == [
        f"{place}/launches/{FAILED}/log.txt", f"{place}/launches/{PRESENT}/log.txt",
    ]  # fmt: skip


def test_a_launch_that_was_never_proved_counts_as_failed(made: Made) -> None:
    made.path(FAILED, "failure.json").unlink()
    made.keep(FAILED, "verdict.json", {})
    made.keep(GOOD, "verdict.json", {})
    assert f"instances/a/launches/{OLD}/log.txt" in made.collect()


def test_a_log_that_the_journal_has_given_up_is_what_was_kept(made: Made) -> None:
    made.path(FAILED, "failure.log").write_text("".join(f"kept {number}\n" for number in range(20_500)))
    assert made.log(FAILED) == f"log of {FAILED}"
    made.logs[FAILED] = []
    lines = made.log(FAILED).splitlines()
    assert (len(lines), lines[0], lines[-1]) == (20_000, "kept 500", "kept 20499")
    made.logs[PRESENT] = []
    assert made.log() == "(nothing is left of it)"


def test_the_bundle_of_a_damaged_host_is_made(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.path(PRESENT, "launch.json").write_text('{"launch": ')
    made.path(GOOD, "launch.json").write_text("[]")
    made.path(PRESENT, "secrets.yaml").write_text("api-key: edited by hand\n")
    made.path(PRESENT, "secrets.env").write_text("HF_TOKEN='also edited'\n")
    made.logs[PRESENT] = ["got edited by hand", "got also edited"]
    for path in (made.release / "schema.json", made.model / "config.json"):
        path.unlink()
    (made.model / "config.json").symlink_to("/etc/passwd")
    monkeypatch.setattr(support_bundle, "WAIT", 0.2)
    made.program("nvidia-smi", "exec sleep 5")
    made.program("systemctl", "echo Failed to connect to bus >&2; exit 1")
    files = made.collect()
    assert files[f"instances/a/launches/{PRESENT}/log.txt"] == "got ********\ngot ********"
    assert files["host/gpus-all.txt"] == "$ nvidia-smi -q\n(no answer within 0.2 s)\n"
    assert files["instances/a/service.txt"].endswith("Failed to connect to bus\n(exit status 1)\n")
    assert "is damaged or gone" in files["releases/0.5.23-12345678/facts.txt"]
    assert "root:" not in "".join(files.values())
    made.unit("")
    assert f"instances/a/launches/{PRESENT}/log.txt" in made.collect()  # it never had a verdict


def test_a_host_without_these_programs_is_told(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(made.folder))
    assert (
        made.collect()["host/gpus-all.txt"] == "$ nvidia-smi -q\n(can not run nvidia-smi: No such file or directory)\n"
    )


def test_the_middle_of_the_largest_files_is_left_out(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.collect()
    made.logs[PRESENT] = ["the first line", *(f"line {number}" for number in range(20_000)), "the last line"]
    monkeypatch.setattr(support_bundle, "LIMIT", 100_000)
    files = made.collect()
    log = files.pop(f"instances/a/launches/{PRESENT}/log.txt")
    assert log.startswith("line 1\n") and log.endswith("\nthe last line") and " bytes are left out)\n" in log
    assert 50_000 < len(log) < 100_000
    assert sum(map(len, files.values())) + len(log) < 100_000 + len(files["README.txt"])
    assert all(files[name] == before[name] for name in files if name.startswith("instances/"))


def test_all_instances_of_the_host_are_known(made: Made) -> None:
    (made.state / "b/launches").mkdir(parents=True)
    (made.state / "no-instance").mkdir()
    (systemd.UNIT_FOLDER / "sglang-c.service").write_text("# launch: x\n")
    (systemd.UNIT_FOLDER / "sglang-other.service").write_text("[Service]\n")
    assert support_bundle.instances(made.state) == ["a", "b", "c"]


def test_the_archive_is_for_root_alone(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(made.folder))
    files = made.files()
    path = support_bundle.write(None, files)
    assert path.parent.parent == made.folder
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        top = path.name[: -len(".tar.gz")]
        assert [member.name for member in members] == [f"{top}/{name}" for name in files]
        assert all(member.isfile() and member.mode == 0o600 for member in members)
        for member, content in zip(members, files.values()):
            extracted = archive.extractfile(member)
            assert extracted is not None and extracted.read() == content
    first, *others = files
    assert first == "README.txt" and others == sorted(others)


def test_an_archive_that_can_not_be_written_leaves_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=f"can not write {made.folder}/none/.*: No such file or directory"):
        support_bundle.write(made.folder / "none", {})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(made.folder))
    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    before = sorted(made.folder.iterdir())
    with pytest.raises(Refused, match=f"can not write {made.folder}: No space left on device; .* GiB free"):
        support_bundle.write(None, {"a": b""})
    assert sorted(made.folder.iterdir()) == before


def test_an_archive_is_not_written_over_what_is_there(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle.time, "time", lambda: 0.0)
    monkeypatch.setattr(support_bundle.socket, "gethostname", lambda: "h")
    target = made.folder / "target"
    (made.folder / "h-19700101T000000Z.tar.gz").symlink_to(target)
    with pytest.raises(Refused, match="File exists"):
        support_bundle.write(made.folder, {})
    assert not target.exists() and (made.folder / "h-19700101T000000Z.tar.gz").is_symlink()
