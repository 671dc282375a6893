# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Found command lines as variables, and those as command lines again, by the parsers of SGLang's releases."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import launch
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import CommandLine, from_argv
from ansible_collections.gpuops.sglang.plugins.module_utils.found_variables import (
    Written,
    shown_environment,
    shown_words,
    suggested_name,
    written,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import Masker
from conftest import parser_of, releases, same_namespace, schema_of
from found_servers import found
from hypothesis import given, settings
from hypothesis import strategies as st

SECRET = "sk-4711-geheim"
TOKEN = "hf_abcdefghijklmnopqrstuv4711"


def wanted(
    text: str | list[str], version: str = "0.5.23", serve: bool = False, gpus: list[int] | None = None, **more: Any
) -> Written:
    words = shlex.split(text) if isinstance(text, str) else text
    read = more.pop("read_config", None)
    return written(
        found(words, serve, **more), from_argv(words, schema_of(version), read, serve), schema_of(version), gpus
    )


def parsed(words: list[str], version: str) -> argparse.Namespace | None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return parser_of(version).parse_args(words)
        except (SystemExit, ValueError):  # of an action of SGLang's own
            return None


def deployed(one: Written, version: str) -> list[str]:
    """Return the words that the collection gives SGLang for the variables, the secrets in place."""
    entry = {"host": "127.0.0.1", "gpus": [], "args": {}, "env": {}, **one.entry, "secrets": one.secrets}
    assert instance_problems([one.entry]) == []
    instance = launch.instance_of(entry)
    words = launch.words(dataclasses.replace(instance, args=entry["args"]), schema_of(version), None, "L")
    return [*words, *(f"--{name.replace('_', '-')}={value}" for name, value in instance.secret_options.items())]


def means_the_same(words: list[str], one: Written, version: str) -> bool:
    before, after = parsed(words, version), parsed(deployed(one, version), version)
    assert before is not None and after is not None
    for namespace in (before, after):
        namespace.weight_version = namespace.config = None
    return same_namespace(before, after)


def test_the_command_line_of_an_account() -> None:
    text = (
        "--model-path /root/models/Qwen3.6-27B --host 0.0.0.0 --port 30000 --tp 2 --context-length 32768"
        " --mem-fraction-static 0.85 --mamba-scheduler-strategy extra_buffer --speculative-algo NEXTN"
        f" --api-key {SECRET} --trust-remote-code"
    )
    environment = {
        "HF_TOKEN": TOKEN,
        "SGLANG_ENABLE_SPEC_V2": "1",
        "PATH": "/bin",
        "SSH_CONNECTION": "1",
        "HOME": "/root",
    }
    one = wanted(text, "0.5.13", gpus=[0, 1], environment=environment)
    assert one.entry == {
        "name": "qwen3-6-27b",
        "model": "/root/models/Qwen3.6-27B",
        "host": "0.0.0.0",
        "port": 30000,
        "gpus": [0, 1],
        "args": {
            "tensor_parallel_size" if "--tensor-parallel-size" in schema_of("0.5.13") else "tp_size": 2,
            "context_length": 32768,
            "mem_fraction_static": 0.85,
            "mamba_scheduler_strategy": "extra_buffer",
            "speculative_algorithm": "NEXTN",
            "trust_remote_code": True,
        },
        "env": {"SGLANG_ENABLE_SPEC_V2": "1"},
        "secrets": {
            "HF_TOKEN": "{{ vault_qwen3_6_27b_hf_token }}",
            "api_key": "{{ vault_qwen3_6_27b_api_key }}",
        },
    }
    assert one.secrets == {"api_key": SECRET, "HF_TOKEN": TOKEN}
    assert means_the_same(shlex.split(text), one, "0.5.13")


LINES = (
    "--model-path m",
    "--model m --port=30001 --host ::",
    "--model-path=m --weight-version mine --port 31000",
    "--model-path a --model-path b --tp-size 2 --tp 4",
    "--model-path m --context-len 4096 --mem-fraction-s 0.8 --max-running 8",
    '--model-path m --json-model-override-args \'{"rope_theta": 1e6, "a": {"b": []}}\'',
    '--model-path m --model-loader-extra-config \'{"token": "sk-4711", "threads": 4}\'',
    '--model-path m --model-loader-extra-config \'{"enable_multithread_load": true, "num_threads": 8}\'',
    "--model-path m --api-key sk-4711-geheim --admin-api-key=other-4711",
    "--model-path m --cuda-graph-bs 1 2 4",
    "--model-path m --cuda-graph-max-bs 8 --disable-cuda-graph",
    "--model-path m --mamba-scheduler-strategy extra_buffer",
    "--model-path m --mamba-radix-cache-strategy extra_buffer",
    "--model-path m --lora-paths a=/srv/a b=/srv/b --enable-lora",
    "--model-path m --chunked-prefill-size -1 --served-model-name=-x",
)


@pytest.mark.parametrize(
    ("version", "text"),
    [(version, text) for version in sorted(releases()) for text in LINES if parsed(shlex.split(text), version)],
)
def test_variables_mean_what_the_command_line_means(version: str, text: str) -> None:
    words = shlex.split(text)
    one = wanted(text, version)
    assert means_the_same(words, one, version)
    assert "4711" not in json.dumps([one.entry, one.notes])


def test_what_sglang_serve_gets() -> None:
    one = wanted("M --model-type llm --tp-size 2", serve=True)
    assert (one.entry["model"], one.entry["args"]) == ("M", {"tp_size": 2})
    assert means_the_same(["--model-path", "M", "--tp-size", "2"], one, "0.5.23")


def test_a_config_file_is_a_part_of_the_command_line() -> None:
    content = {"tp-size": 2, "port": 31000, "api-key": SECRET, "model-path": "m"}
    one = wanted("--config c.yaml --tp-size 4", read_config=lambda path: content)
    assert one.entry == {
        "name": "m",
        "model": "m",
        "port": 31000,
        "args": {"tp_size": 4},
        "secrets": {"api_key": "{{ vault_m_api_key }}"},
    }
    assert one.secrets == {"api_key": SECRET}


TEXTS = (
    *("a", "1", "1e-5", "32k", "012", "true", "null", "", "a b", "{{ x }}", "/srv/a", '{"a": 1.50}', SECRET, TOKEN),
    f'{{"token": "{SECRET}"}}',
)
JSON = ('{"a": 1.50}', "[1, 2]", "{}", f'{{"token": "{SECRET}"}}', '{"a": {"b": "c"}}', "4")
NUMBERS = {"int": ("1", "-1", "8", "+1", "1_0"), "float": ("0.5", "1", "-1", "1e-5", "nan", ".85")}


@st.composite
def options_of(draw: Any, version: str) -> list[str]:
    """Draw one option with a value that its parser probably takes."""
    schema = schema_of(version)
    flag = draw(st.sampled_from(sorted(schema.keys() - {"--config", "--port"})))
    option = schema[flag]
    if option["choices"]:
        values = st.sampled_from([str(choice) for choice in option["choices"]])
    elif option["type"] in NUMBERS:
        values = st.sampled_from(NUMBERS[option["type"]])
    elif option["type"] == "human_readable_int":
        values = st.sampled_from(["32k", "32768", "1Ki"])
    elif option["type"] in ("loads", "json_list_type", "parse_cuda_graph_config_arg"):
        values = st.sampled_from(JSON)
    else:
        values = st.sampled_from(TEXTS)
    spelling = draw(st.sampled_from([flag, *option["aliases"]]))
    if draw(st.integers(0, 3)) == 0:
        spelling = spelling[: draw(st.integers(6, 30))]
    if option["nargs"] == 0:
        return [spelling]
    if option["nargs"] in ("*", "+"):
        return [spelling, *draw(st.lists(values, min_size=1, max_size=3))]
    value = draw(values)
    return draw(st.sampled_from([[f"{spelling}={value}"], [spelling, value]]))  # type: ignore[no-any-return]


def test_any_command_line_that_a_release_takes_comes_back() -> None:
    lines = st.sampled_from(sorted(releases())).flatmap(
        lambda version: st.tuples(st.just(version), st.lists(options_of(version), min_size=1, max_size=4))
    )
    compared = hidden = 0

    @settings(max_examples=500)
    @given(lines)
    def check(drawn: tuple[str, list[list[str]]]) -> None:
        nonlocal compared, hidden
        version, words = drawn[0], ["--model-path", "m", *itertools.chain(*drawn[1])]
        before = parsed(words, version)
        if before is None or not before.model_path or not before.host:
            return
        line = from_argv(words, schema_of(version))
        if line.problems:  # what an operator could not write
            return
        one = wanted(words, version)
        if any("write it yourself" in note or "does nothing" in note for note in one.notes):
            return
        assert means_the_same(words, one, version)
        shown = shown_words(found(words), Masker({**line.secrets, **one.secrets}.items()), schema_of(version))
        if "4711" in str(one.secrets):
            assert "4711" not in json.dumps([one.entry, one.notes, shown])
            hidden += 1
        compared += 1

    check()
    assert compared > 150 and hidden > 5


def test_a_relative_path_is_written_as_it_is_seen_from_anywhere(tmp_path: Path) -> None:
    for name in ("models/a", "t", "lora"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "chat.jinja").touch()
    text = (
        "--model-path ./models/a --tokenizer-path t --chat-template chat.jinja --lora-paths x=lora lora y=Org/lora"
        " --served-model-name t --init-expert-location t --speculative-token-map t"
    )
    one = wanted(text, folder=tmp_path)
    assert one.entry["model"] == str(tmp_path / "models/a")
    assert one.entry["args"] == {
        "tokenizer_path": str(tmp_path / "t"),
        "chat_template": str(tmp_path / "chat.jinja"),
        # an adapter without a name has its path for one
        "lora_paths": [f"x={tmp_path}/lora", f"lora={tmp_path}/lora", "y=Org/lora"],
        "served_model_name": "t",
        "init_expert_location": str(tmp_path / "t"),
        "speculative_token_map": str(tmp_path / "t"),
    }
    assert len([note for note in one.notes if "seen from" in note]) == 7
    # a hub id is none
    assert wanted("--model-path Qwen/Qwen3-8B", folder=tmp_path).entry["model"] == "Qwen/Qwen3-8B"
    # nor can a path be judged from outside of its container
    assert wanted(text, folder=tmp_path, container="docker 0123").entry["model"] == "./models/a"


def test_clients_know_a_model_by_what_it_was_called(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert wanted("--model-path ./m", folder=tmp_path).entry["args"] == {"served_model_name": "./m"}
    assert "args" not in wanted(f"--model-path {tmp_path}/m", folder=tmp_path).entry


def test_an_adapter_whose_path_has_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "r=8").mkdir()
    one = wanted("--model-path m --lora-paths x=r=8", folder=tmp_path)
    assert one.entry["args"]["lora_paths"] == [f"x={tmp_path}/r=8"]
    one = wanted(["--model-path", "m", "--lora-paths", '{"lora_name": "x", "lora_path": "r=8"}'], folder=tmp_path)
    assert one.entry["args"]["lora_paths"] == [{"lora_name": "x", "lora_path": f"{tmp_path}/r=8"}]


def test_the_names_of_variables_that_are_left_out_are_told() -> None:
    environment = {"MY_SWITCH": "4711", "EMPTY": "", "PATH": "/bin", "SSH_TTY": "x", "REQUESTS_CA_BUNDLE": "/etc/ca"}
    one = wanted("--model-path m", environment=environment)
    assert one.entry["env"] == {"REQUESTS_CA_BUNDLE": "/etc/ca"}
    assert one.notes == ["these variables are left out, write those that it needs: MY_SWITCH"]


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x=4711", True),
        ("S3_PASS", "4711", True),
        ("MC_PW", "4711", True),
        ("AWS_SECRET_KEY_B64", "4711", True),
        ("AWS_ACCESS_KEY_ID", "4711", True),
        ("HF_TOKENS_X", "a4711", True),
        ("TOKENIZERS_PARALLELISM", "yes", False),
        ("SGLANG_MAX_NEW_TOKENS", "4711", False),
        ("SGLANG_CHECK_KEYS", "1", False),
        ("SGLANG_BYPASS", "4711", False),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_which_variables_are_secrets(name: str, value: str, secret: bool) -> None:
    one = wanted("--model-path m", environment={name: value})
    assert one.secrets == ({name: value} if secret else {})
    assert shown_environment({name: value}) == {name: "***" if secret else value}


def test_the_variables_of_a_server_alone_are_taken_over() -> None:
    environment = {
        "SGLANG_X": "1", "NCCL_DEBUG": "INFO", "HF_HOME": "/srv/hf", "HF_TOKEN": TOKEN, "CUDA_VISIBLE_DEVICES": "0",
        "PATH": "/bin", "LS_COLORS": "x", "SSH_AUTH_SOCK": "/tmp/x", "PYTHONPATH": "/root/x", "SGLANG_LAUNCH_ID": "L",
        "MC_PASSWORD_X": "pw-4711", "HTTPS_PROXY": "http://u:pw-4711@h", "no_proxy": "h",
        "https_proxy": "http://u:pw-4711@h", "HF_COPY": f"x{TOKEN}y", "OMP_NUM_THREADS": "8",
    }  # fmt: skip
    one = wanted("--model-path m", environment=environment, gpus=[0])
    assert one.entry["env"] == {
        "SGLANG_X": "1", "NCCL_DEBUG": "INFO", "HF_HOME": "/srv/hf", "no_proxy": "h", "OMP_NUM_THREADS": "8",
    }  # fmt: skip
    assert set(one.secrets) == {"HF_TOKEN", "HF_COPY", "HTTPS_PROXY", "MC_PASSWORD_X"}
    told = " ".join(one.notes)
    assert "PYTHONPATH is left out" in told and "https_proxy holds a secret" in told and "SGLANG_LAUNCH_ID" in told
    shown = json.dumps([shown_environment(environment), one.entry, one.notes])
    assert "4711" not in shown and "/bin" not in shown and "SSH" not in shown


def test_gpus_that_can_not_be_counted_stay_as_they_were_named() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    assert wanted("--model-path m", environment=environment).entry["env"] == environment
    assert "env" not in wanted("--model-path m", environment={"CUDA_VISIBLE_DEVICES": "1"}, gpus=[1]).entry


def test_an_option_that_holds_a_known_secret_is_one() -> None:
    one = wanted(f"--model-path m --api-key {SECRET} --served-model-name x-{SECRET} --tool-call-parser hermes")
    assert one.entry["args"] == {"tool_call_parser": "hermes"}
    assert set(one.entry["secrets"]) == {"api_key", "served_model_name"}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/srv/models/Qwen3.6-27B", "qwen3-6-27b"),
        ("/srv/models/Qwen3.6-27B/", "qwen3-6-27b"),
        ("Qwen/Qwen3_8B", "qwen3-8b"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "qwen3-8b"),
        ("", "sglang"),
        ("/srv/größe", "gr-e"),
        ("a" * 60, "a" * 34),
    ],
)
def test_a_name_from_the_model(model: str, name: str) -> None:
    assert suggested_name(model, 30000, ()) == name
    assert suggested_name(model, 30000, [name]) == f"{name}-30000"
    for one in (name, f"{name}-30000"):
        assert instance_problems([{"name": one, "model": "m", "port": 30000}]) == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "x4711", "--tp", "2"], ["--api-key", "***", "--tp", "2"]),
        (["--api-key=x4711"], ["--api-key=***"]),
        (["--api-k", "x4711"], ["--api-k", "***"]),
        (["--adm", "x4711"], ["--adm", "***"]),
        (["--ssl-keyfile", "/k", "--ssl-keyfile-pass=x4711"], ["--ssl-keyfile", "/k", "--ssl-keyfile-pass=***"]),
        (["--model", "m", "--model-loader-e", '{"pin": "4711"}'], ["--model", "m", "--model-loader-e", "***"]),
        (["--x-token", "4711"], ["--x-token", "***"]),
        (["--y", '{"token": "sk-4711"}'], ["--y", '{"token": "********"}']),
        (["--tp"], ["--tp"]),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_command_line_is_shown_without_secrets(words: list[str], shown: list[str], known: bool) -> None:
    one = found(words)
    assert shown_words(one, Masker(), schema_of("0.5.23") if known else None) == [
        "/v/bin/python",
        "-m",
        "sglang.launch_server",
        *shown,
    ]


def test_a_model_that_holds_a_secret_is_left_to_the_operator() -> None:
    one = wanted("--model-path s3://key:pw-4711@host/m")
    assert "4711" not in json.dumps([one.entry, one.notes]) and "write it yourself" in one.notes[0]


def test_what_was_not_understood_is_told() -> None:
    one = wanted("--model-path m --colour red --weight-version v")
    assert any("no option '--colour'" in note for note in one.notes)
    assert any("weight_version" in note for note in one.notes)
    assert isinstance(from_argv([], schema_of("0.5.23")), CommandLine)
