# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils import launch, release
from ansible_collections.gpuops.sglang.plugins.module_utils import preflight as preflights
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import secret_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight import Preflight
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_judge import Judged
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.modules import sglang_service
from conftest import parser_of, run_module

ENTRY = {"name": "a", "model": "/srv/m", "host": "127.0.0.1", "port": 30000, "gpus": [0], "args": {}}


def test_values_that_are_no_text_become_text() -> None:
    instance = launch.instance_of({**ENTRY, "env": {"A": 1, "B": True}, "secrets": {"api_key": 4711}})
    assert instance.env == {"A": "1", "B": "True"}
    assert instance.secrets == {"api_key": "4711"}
    assert instance.gpus == (0,)


def test_null_does_not_become_the_word_none() -> None:
    instance = launch.instance_of({**ENTRY, "env": {"A": None, "B": ""}, "secrets": {"api_key": None}})
    assert instance.env == {"B": ""}
    assert len(secret_problems(instance.secrets, describe(parser_of("0.5.23")))) == 1


SECRET = """it's "never" seen"""


@pytest.mark.parametrize("internal", [{}, {"_ansible_no_log": False}], ids=["by hand", "as a task runs it"])
def test_the_arguments_are_not_logged_on_the_host(internal: dict[str, Any]) -> None:
    """A value with quotes is written otherwise in a log, where it is not found and left out."""
    # the name is refused, so nothing is done wherever this runs
    entry = {"name": "A", "model": "/srv/m", "port": 30000, "secrets": {"api_key": SECRET, "HF_TOKEN": SECRET}}
    asked = {"release": "/nowhere", "instances": [entry], **internal}
    result, logged = run_module("sglang_service", asked)
    assert result["failed"]
    assert "never" not in str(result)
    assert "never" not in logged
    assert "/srv/m" not in logged  # nor anything else of them


class Exit(Exception):
    pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host on which launches are made up; `compared` says how the instances differ."""
    facts: dict[str, Any] = {"compared": {}, "started": [], "schema": {}, "warned": [], "installed": [], "held": False,
                             "asked": [], "problems": []}  # fmt: skip

    class Module:
        def __init__(self, **_: Any) -> None:
            self.params, self.check_mode = facts["params"], facts.get("check_mode", False)
            self.warn = facts["warned"].append

        def exit_json(self, **result: Any) -> None:
            facts["result"] = result

        def fail_json(self, msg: str, started: list[str]) -> None:
            facts["told"] = started
            raise Exit(msg)

    def compare(instance: launch.Instance, *_: Any) -> launch.Comparison:
        assert facts["held"]
        reasons = facts["compared"][instance.name]
        return launch.Comparison(tuple(reasons), "L0", "before", "after" if reasons else "before")

    def preflight(instance: launch.Instance, _host: Any, _schema: Any, accepted: Any, keep: bool) -> Preflight:
        assert facts["held"] and accepted == {"page_size": "measured"}
        facts["asked"].append((instance.name, keep))
        accepted_row = Judged("page_size", 1, 64, "accepted", instead="measured")
        return Preflight(instance.name, "0.5.23", False, (accepted_row,), tuple(facts["problems"]), ("W",), {"a": 1})

    def start(instance: launch.Instance, _host: Any, _schema: Any, told: Any) -> str:
        assert facts["held"]
        facts["started"].append(instance.name)
        if instance.name == facts.get("fails"):
            raise Refused("it does not start")
        assert told == {
            "accepted": {"page_size": 64},
            "accept_changes": {"page_size": "measured"},
            "resolved": {"a": 1},
            "warnings": ["W"],
        }
        return "L1"

    @contextlib.contextmanager
    def only_one(*how: Any) -> Iterator[None]:
        assert how == (Path("/run/gpuops-sglang.lock"), "starts instances on this host", 180)
        facts["held"] = True
        yield
        facts["held"] = False

    monkeypatch.setattr(sglang_service, "SecretiveModule", Module)
    monkeypatch.setattr(sglang_service, "require_root", lambda: None)
    monkeypatch.setattr(sglang_service, "only_one", only_one)
    monkeypatch.setattr(systemd, "is_here", lambda: True)
    monkeypatch.setattr(systemd, "installed_instances", lambda: facts["installed"])
    monkeypatch.setattr(release, "schema", lambda path: facts["schema"])
    monkeypatch.setattr(launch, "check", lambda *_: None)
    monkeypatch.setattr(launch, "compare", compare)
    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(preflights, "preflight", preflight)
    entries = [{**ENTRY, "env": {}, "secrets": {}}, {**ENTRY, "name": "b", "port": 30001, "env": {}, "secrets": {}}]
    facts["params"] = {"release": "/opt/r", "user": "sglang", "state_dir": "/var/lib/sglang", "instances": entries,
                       "accept_changes": {"page_size": "measured"}}  # fmt: skip
    return facts


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_differs_is_started_and_told(host: dict[str, Any], check_mode: bool) -> None:
    host |= {"compared": {"a": [], "b": ["secrets differ"]}, "check_mode": check_mode, "installed": ["a", "b", "old"]}
    sglang_service.main()
    assert host["asked"] == [("b", not check_mode)]
    assert host["started"] == ([] if check_mode else ["b"])
    unit = "/etc/systemd/system/sglang-b.service"
    assert host["result"] == {
        "changed": True,
        "instances": [
            {"name": "a", "launch": "L0", "reasons": []},
            {"name": "b", "launch": "L0" if check_mode else "L1", "reasons": ["secrets differ"]},
        ],
        "started": [] if check_mode else ["b"],
        "unlisted": ["old"],
        "diff": [{"before": "before", "after": "after", "before_header": unit, "after_header": unit}],
    }
    assert len(host["warned"]) == 1
    # what is returned is what is documented
    documented = set(yaml.safe_load(sglang_service.RETURN))
    assert host["result"].keys() - {"changed", "diff"} == documented


@pytest.mark.parametrize("check_mode", [False, True])
def test_nothing_is_started_while_sglang_would_refuse_one(host: dict[str, Any], check_mode: bool) -> None:
    host |= {"compared": {"a": ["not installed"], "b": ["not installed"]}, "problems": ["no"], "check_mode": check_mode}
    with pytest.raises(Exit, match="no; no"):
        sglang_service.main()
    assert [name for name, _keep in host["asked"]] == ["a", "b"]
    assert host["started"] == []


def test_what_was_started_is_told_when_one_fails(host: dict[str, Any]) -> None:
    host |= {"compared": {"a": ["not installed"], "b": ["not installed"]}, "fails": "b"}
    with pytest.raises(Exit, match="it does not start"):
        sglang_service.main()
    assert host["told"] == ["a", "b"]  # both were stopped before
    host |= {"problems": ["no"], "told": None}
    with pytest.raises(Exit, match="no"):
        sglang_service.main()
    assert host["told"] == []


def test_nothing_is_changed_where_nothing_differs(host: dict[str, Any]) -> None:
    host["compared"] = {"a": [], "b": []}
    sglang_service.main()
    assert (host["result"]["changed"], host["result"]["diff"], host["started"]) == (False, [], [])
    assert host["asked"] == []  # it would start the release's interpreter


def test_without_a_release_nothing_is_started(host: dict[str, Any]) -> None:
    host |= {"compared": {"a": ["not installed"], "b": []}, "schema": None}
    with pytest.raises(Exit, match="there is no release in /opt/r: install it with sglang_release first"):
        sglang_service.main()
    assert host["started"] == []
    host["check_mode"] = True
    sglang_service.main()
    assert host["result"]["changed"]
