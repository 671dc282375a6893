# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes for a server under supervision."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import found_changes
from ansible_collections.gpuops.sglang.plugins.module_utils.found_changes import changes, ending, unreadable
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import User
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import started_at
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from found_servers import found

STRANGER = User(3_999_999, 3_999_999, ())
LIMITS = {"Max open files": "1048576", "Max locked memory": "unlimited"}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "installed_instances", lambda: ["old"])
    monkeypatch.setattr(found_changes, "_user", lambda name: STRANGER)
    monkeypatch.setattr(found_changes, "OWN_TMP", ("/tmp/own/",))


def told(entry: dict[str, Any] | None = None, **more: Any) -> list[str]:
    words = more.pop("words", [])
    facts = {"owner": "sglang", "limits": LIMITS, "listens": (("127.0.0.1", 30000),), **more}
    return list(
        changes(found(words, **facts), {"name": "a", "model": "/nonexistent", "port": 30000, **(entry or {})}, "sglang")
    )


def test_a_server_that_is_as_an_instance_would_be() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("entry", "facts", "sentence"),
    [
        ({}, {"owner": "root"}, "as the user 'sglang' with a home of its own, not as 'root'"),
        (
            {},
            {"logs": ("/root/sglang.log",)},
            "its log is /root/sglang.log: that of the instance is shown by 'journalctl -u sglang-a.service'",
        ),
        ({}, {"logs": ("/root/x.log (deleted)",)}, "its log is /root/x.log, which is deleted"),
        ({}, {"limits": {**LIMITS, "Max open files": "1024"}}, "its limits: max open files 1024 -> 1048576"),
        ({}, {"origin": "unit llm.service"}, "unit llm.service may start it again when it is ended"),
        ({}, {"bound_to": "0-3"}, "the processors 0-3 only"),
        ({"port": 80}, {"listens": ()}, "has the port 80: use a whole number from 1024"),
        ({"port": 30001}, {}, "does not listen on port 30001 yet, but on 30000"),
        ({}, {"own_network": True}, "one of its own network"),
        ({"name": "old"}, {}, "has an instance 'old' already"),
        ({"args": {"nccl_port": 30000}}, {}, "nccl_port 30000, which is the port of"),
        ({"args": {"crash_dump_folder": "/srv/x"}}, {}, "'crash_dump_folder' is /srv/x, but the service can write to"),
        ({"env": {"HF_HOME": "/srv/hf"}}, {}, "'HF_HOME' is /srv/hf, but the service can write to its home alone"),
        ({"model": "/tmp/own/m"}, {}, "'model' is /tmp/own/m, but the service has a /tmp of its own"),
        ({"args": {"lora_paths": ["x=/tmp/own/l=1"]}}, {}, "'lora_paths' is /tmp/own/l=1, but"),
        (
            {"args": {"lora_paths": [{"lora_name": "x", "lora_path": "/tmp/own/l"}]}},
            {},
            "'lora_paths' is /tmp/own/l, but",
        ),
    ],
)
def test_a_change_is_a_sentence(entry: dict[str, Any], facts: dict[str, Any], sentence: str) -> None:
    (one,) = told(entry, **facts)
    assert sentence in one


def test_what_does_not_change_is_not_told() -> None:
    assert told(logs=("/dev/null", "/dev/pts/3", "pipe:[1]", "socket:[2]")) == []
    assert told({"env": {"HF_HOME": "relative", "CUDA_HOME": "/usr/local/cuda"}}) == []


def test_flags_of_the_interpreter_are_told() -> None:
    one = found([], owner="sglang", limits=LIMITS)
    flagged = dataclasses.replace(one, command=dataclasses.replace(one.command, flags=("-u", "-O", "-Xdev")))
    entry = {"name": "a", "model": "m", "port": 30000}
    assert list(changes(flagged, entry, "sglang")) == ["Python's own options -O -Xdev are left out"]


def test_a_host_without_systemd_and_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "_chosen", Supervisord(Path("/nonexistent/sglang")))
    first, second = told({"model": "/tmp/own/m"}, container="docker 0123", origin="docker 0123")
    assert "not in docker 0123" in first and "docker 0123 may start it again" in second
    # it has no files of its own there, and what it may write to is the same
    assert told({"model": "/tmp/own/m", "env": {"HF_HOME": "/srv/hf"}}) == []
    (log,) = told(logs=("/root/sglang.log",))
    assert log.endswith("is shown by '/nonexistent/sglang/.supervisor/sglangctl log a'")
    (limits,) = told(limits={**LIMITS, "Max open files": "1024"})
    assert limits == "its limits: max open files 1024 -> 1048576, as far as this machine allows"


def test_a_model_that_the_service_can_not_read(tmp_path: Path) -> None:
    model = tmp_path / "root/models/m"
    model.mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        assert folder.stat().st_uid != STRANGER.uid
    (tmp_path / "root").chmod(0o700)
    (one,) = told({"model": str(model)})
    assert "the user 'sglang' can not enter" in one
    inside = User((tmp_path / "root").stat().st_uid, 0, ())
    assert unreadable(model, inside) is None


@pytest.mark.parametrize(
    ("mode", "user", "closed"),
    [
        (0o700, STRANGER, True),
        (0o711, STRANGER, False),
        (0o750, STRANGER, True),
        (0o750, User(3_999_999, 1, (77,)), False),
        (0o705, User(3_999_999, 77, ()), True),
    ],
)
def test_who_can_enter_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, user: User, closed: bool
) -> None:
    real = Path.stat

    class About:
        def __init__(self, about: Any, own: bool) -> None:
            self.st_uid, self.st_gid = 0, 77
            self.st_mode = (about.st_mode & ~0o777) | (mode if own else 0o755)

    folder = tmp_path / "a"
    (folder / "m").mkdir(parents=True)
    monkeypatch.setattr(Path, "stat", lambda self, **how: About(real(self, **how), self == folder))
    assert unreadable(folder / "m", user) == (folder if closed else None)


def test_a_model_of_the_hub_is_in_a_home(tmp_path: Path) -> None:
    place = tmp_path / "hub/models--Qwen--Qwen3-8B"
    place.mkdir(parents=True)
    entry = {"model": "Qwen/Qwen3-8B"}
    for environment in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub")}):
        (one,) = told(entry, environment=environment)
        assert f"is in {place}" in one
    assert told(entry, environment={"HOME": str(tmp_path)}) == []
    (one,) = told({**entry, "env": {"HF_HOME": str(tmp_path)}}, environment={"HF_HOME": str(tmp_path)})[:1]
    assert "would be downloaded" not in one


def test_only_the_same_process_is_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        started = started_at(process.pid)
        assert started
        try:
            for when in (started + 1, started):
                assert process.poll() is None
                words = ending(found([], pid=process.pid, started=when))
                subprocess.run(["sh", "-c", words], check=False)
            assert process.wait(60) == -15
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"origin": "unit llm.service"}, "stop unit llm.service"),
        ({"origin": "docker 0123", "container": "docker 0123"}, "stop docker 0123"),
        ({"origin": "supervisord"}, "take process 4711 out of supervisord and stop it there"),
        ({"origin": "cron"}, "take process 4711 out of cron and stop it there"),
    ],
)
def test_what_would_be_started_again_is_not_killed(facts: dict[str, Any], told: str) -> None:
    assert ending(found([], **facts)) == told


def test_a_folder_of_the_hub_that_root_may_not_see_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *how: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(found_changes.os, "stat", refuse)
    monkeypatch.setattr(Path, "stat", refuse)
    assert told({"model": "Qwen/Qwen3-8B"}, environment={"HF_HOME": "/home/a"}) == []
