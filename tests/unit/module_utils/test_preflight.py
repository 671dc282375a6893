# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What surrounds SGLang's answer: when it is asked, what it is told, what is kept of it."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, launch, preflight
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_facts as gpu_facts_module
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.launch import Host, Instance
from conftest import schema_of
from hypothesis import given
from hypothesis import strategies as st

SCHEMA = schema_of("0.5.23")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    release = tmp_path / "release"
    (release / "venv/bin").mkdir(parents=True)
    (release / "release.json").write_text("{}")
    return Host(release, "nobody", tmp_path / "state")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    return Instance("a", str(model), "127.0.0.1", 30000, (), {"device": "cpu", "load_format": "dummy"}, {}, {})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The instances that SGLang was asked about; it keeps everything."""
    names: list[str] = []
    resolved = {"device": "cpu", "load_format": "dummy", "tp_size": 1, "pp_size": 1, "dp_size": 1}

    def ask(instance: Instance, *_: Any) -> dict[str, Any]:
        names.append(instance.name)
        return {"version": "0.5.23", "stage": "model", "error": None, "resolved": resolved, "steps": [],
                "messages": ["W"], "model": {}, "problems": {}, "unread": {}}  # fmt: skip

    monkeypatch.setattr(preflight, "_ask", ask)
    return names


def answer(instance: Instance, host: Host, keep: bool = True) -> preflight.Preflight:
    return preflight.preflight(instance, host, SCHEMA, {}, keep)


def test_the_same_question_is_answered_from_what_was_kept(host: Host, instance: Instance, asked: list[str]) -> None:
    first, second = answer(instance, host), answer(instance, host)
    assert (first.cached, second.cached, asked) == (False, True, ["a"])
    assert dataclasses.replace(second, cached=False) == first
    kept = host.state / "a/preflight.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_in_check_mode_nothing_is_kept(host: Host, instance: Instance, asked: list[str]) -> None:
    answer(instance, host, keep=False)
    assert not host.state.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "x"}'])
def test_a_damaged_answer_is_asked_for_again(host: Host, instance: Instance, asked: list[str], text: str) -> None:
    answer(instance, host)
    (host.state / "a/preflight.json").write_text(text)
    assert not answer(instance, host).cached


CHANGES: dict[str, Any] = {
    "argument": {"args": {"device": "cpu", "load_format": "dummy", "tp_size": 1}},
    "variable": {"env": {"SGLANG_X": "1"}},
    "port": {"port": 30001},
    "GPUs": {"gpus": (1,)},
    "secret option": {"secrets": {"api_key": "x"}},
    "JSON secret": {"secrets": {"model_loader_extra_config": '{"a": 1}'}},
    "secret variable": {"secrets": {"HF_TOKEN": "x"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_question_is_asked(host: Host, instance: Instance, asked: list[str], change: dict[str, Any]) -> None:
    answer(instance, host)
    assert not answer(dataclasses.replace(instance, **change), host).cached


@pytest.mark.parametrize("place", ["model/config.json", "model/model.safetensors", "release/release.json",
                                   "proc/driver/nvidia/version", "draft/config.json"])  # fmt: skip
def test_what_changes_on_the_host_is_asked_about(
    host: Host, instance: Instance, asked: list[str], tmp_path: Path, place: str
) -> None:
    draft = {**instance.args, "speculative_draft_model_path": str(tmp_path / "draft")}
    instance = dataclasses.replace(instance, args=draft)
    answer(instance, host)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    assert not answer(instance, host).cached


def test_the_value_of_a_plain_secret_is_not_part_of_the_question(
    host: Host, instance: Instance, asked: list[str]
) -> None:
    for key in ("sk-1", "sk-2"):
        cached = answer(dataclasses.replace(instance, secrets={"api_key": key}), host).cached
    assert cached and "sk-" not in (host.state / "a/preflight.json").read_text()


def real_interpreter(host: Host, text: str) -> None:
    python = host.release / "venv/bin/python"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    for folder in (host.release, *host.release.parents):
        if not folder.stat().st_mode & stat.S_IXOTH and os.access(folder, os.W_OK) and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o711)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the service user")
def test_a_broken_release_is_a_problem_with_its_own_words(host: Host, instance: Instance) -> None:
    real_interpreter(host, 'exec /usr/bin/python3 -I "$@"')
    (problem,) = answer(instance, host).problems
    assert problem.startswith("instance 'a': SGLang ") and "No module named 'sglang'" in problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the service user")
def test_an_interpreter_without_an_answer_is_refused_without_the_secret(host: Host, instance: Instance) -> None:
    real_interpreter(host, "cat >/dev/null; id -un >&2; cat secrets.yaml >&2; echo $HF_TOKEN >&2; exit 3")
    secrets = {"api_key": "sk-1", "HF_TOKEN": "hf-1"}
    with pytest.raises(Refused) as refused:
        answer(dataclasses.replace(instance, secrets=secrets), host)
    assert 'exit status 3 and no answer: nobody | api-key: "stand-in" | (secret)' in str(refused.value)


def test_wrong_arguments_are_told_by_option_without_asking(
    host: Host, instance: Instance, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {**instance.args, "max_bananas": 1, "api_key": "sk-1", "api-key": "sk-1", "tp_size": "many"}
    result = preflight.examined(dataclasses.replace(instance, args=args), host, SCHEMA, {}, keep=True)
    assert asked == [] and result["sglang_version"] == ""
    rows = {row["option"]: (row["verdict"], row["requested"]) for row in result["options"]}
    masked = dict.fromkeys(["max_bananas", "api_key", "api-key"], ("refused", "(secret)"))
    assert rows == {**masked, "tp_size": ("refused", "many")}
    (problem,) = result["problems"]
    assert "max_bananas" in problem and "sk-1" not in json.dumps(result)


def test_a_port_that_is_held_does_not_keep_from_asking(
    host: Host, instance: Instance, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(instance: Instance, host: Host, schema: Any, leaving: Any) -> None:
        if 7 not in leaving:
            raise Refused("port 30000 is held")

    monkeypatch.setattr(launch, "check", check)
    result = preflight.examined(instance, host, SCHEMA, {}, keep=True)
    assert asked == ["a"] and result["problems"] == ["port 30000 is held"]
    assert {row["verdict"] for row in result["options"]} == {"kept"}
    assert preflight.examined(instance, host, SCHEMA, {}, True, {7})["problems"] == []


@pytest.mark.parametrize("wrong", [{"error": "ValueError: no"}, {"problems": {"tokenizer": "OSError: gated"}}])
def test_a_refusal_is_not_kept(
    host: Host, instance: Instance, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    """What puts it right need not show in the digest: a driver, a permission, a token."""
    right: dict[str, Any] = {"version": "0.5.23", "stage": "model", "error": None, "resolved": {}, "steps": [],
                             "messages": [], "model": {}, "problems": {}, "unread": {}}  # fmt: skip
    answers = [{**right, **wrong}, right]
    monkeypatch.setattr(preflight, "_ask", lambda *_: answers.pop(0))
    assert answer(instance, host).problems
    assert answer(instance, host).problems == ()


def test_the_record_has_what_is_to_be_effective() -> None:
    rows = (
        preflight.Judged("page_size", 1, 64, "accepted", instead="measured"),
        preflight.Judged("tp_size", 1, 1, "kept"),
    )
    told = preflight.Preflight("a", "0.5.23", False, rows, (), ("W",), {"tp_size": 1}).for_record()
    assert told == {"accepted": {"page_size": 64},
                    "resolved": {"tp_size": 1}, "warnings": ["W"]}  # fmt: skip


@given(st.dictionaries(st.sampled_from(["api_key", "HF_TOKEN", "model_loader_extra_config"]),
                       st.text(min_size=8).map(lambda text: f"S{text}") | st.builds(
                           lambda text: json.dumps({"a": [f"S{text}", {"b": f"S{text}"}], "n": True}),
                           st.text(min_size=8)), min_size=1))  # fmt: skip
def test_no_form_of_a_secret_is_left(secrets: dict[str, str]) -> None:
    told = {"a": [f"x {value} y" for value in secrets.values()], "b": json.dumps(secrets), "c": repr(secrets)}
    cleaned = json.dumps(preflight.masked(told, secrets), ensure_ascii=False)
    for value in secrets.values():
        assert value not in cleaned
        if value.startswith("{"):
            assert json.loads(value)["a"][0] not in cleaned


def test_files_that_are_missing_are_found(tmp_path: Path, instance: Instance) -> None:
    resolved = {
        "load_format": "auto",
        "tokenizer_path": str(tmp_path),
        "speculative_draft_model_path": "/srv/none",
        "lora_paths": ["a=/srv/adapter"],
        "quantization": "awq",
    }
    told = preflight._file_problems(Path(instance.model), resolved, {})
    found = {problem.option: str(problem) for problem in told}
    assert found.keys() == {"model", "tokenizer_path", "speculative_draft_model_path", "lora_paths", "quantization"}
    assert "/srv/none" in found["speculative_draft_model_path"] and "/srv/adapter" in found["lora_paths"]


@pytest.mark.parametrize(
    "written", [["/srv/x"], ["a=/srv/x"], [{"lora_name": "a", "lora_path": "/srv/x"}], {"a": "/srv/x"}]
)
def test_every_form_of_an_adapter_is_looked_after(instance: Instance, written: Any) -> None:
    (problem,) = preflight._file_problems(Path(instance.model), {"lora_paths": written}, {})
    assert "/srv/x" in problem.why


def test_a_model_that_root_may_not_read_is_left_to_the_service_user(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    report: Any = {"resolved": {"load_format": "auto"}, "model": {}}
    assert preflight._found(instance, report) == []


def test_short_words_inside_a_secret_are_left_alone_elsewhere() -> None:
    secret = json.dumps({"name": "qwen", "n": 1, "password": "pass-word-1"})
    told = {"path": "/srv/models/qwen3-1b", "said": "it was pass-word-1"}
    assert preflight.masked(told, {"x": secret}) == {"path": "/srv/models/qwen3-1b", "said": "it was (secret)"}


def test_the_device_is_asked_for_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    entry = {"name": "a", "model": "m", "host": "h", "port": 1, "gpus": [], "args": {}, "env": {}, "secrets": {}}
    assert launch.instance_of(entry).args == {}
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert launch.instance_of(entry).args == {"device": "cuda"}
    assert launch.instance_of({**entry, "args": {"device": "cpu"}}).args == {"device": "cpu"}


def test_why_the_gpu_can_not_be_used_is_told_beside_sglangs_words(
    host: Host, instance: Instance, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[str] = []

    def gpu_facts(user: str) -> dict[str, Any]:
        users.append(user)
        return {"faults": ["/dev/nvidia-uvm is missing: load it"]}

    monkeypatch.setattr(gpu_facts_module, "gpu_facts", gpu_facts)
    assert answer(instance, host).problems == () and users == []
    problems = {"cuda": "RuntimeError: torch finds no usable CUDA device"}
    ask = preflight._ask
    monkeypatch.setattr(preflight, "_ask", lambda *given: {**ask(*given), "problems": problems})
    first, second = answer(dataclasses.replace(instance, port=2), host).problems
    assert "can not use the GPU" in first and second == "instance 'a': /dev/nvidia-uvm is missing: load it"
    assert users == ["nobody"]
