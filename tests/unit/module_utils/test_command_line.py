# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines read back, against the argparse parsers of SGLang's releases."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import to_argv
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import CommandLine, from_argv
from conftest import parser_of, releases, same_namespace, schema_of
from hypothesis import given, settings
from hypothesis import strategies as st


def read(text: str, version: str = "0.5.23", **more: Any) -> CommandLine:
    return from_argv(text.split(), schema_of(version), **more)


def parsed(words: list[str], version: str) -> argparse.Namespace | None:
    """Return what SGLang's own parser makes of the words, or None where it refuses them."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return parser_of(version).parse_args(words)
        except SystemExit:
            return None


def written(line: CommandLine, version: str) -> list[str]:
    words = to_argv(line.args, schema_of(version))
    return words + [f"--{name.replace('_', '-')}={value}" for name, value in {**line.owned, **line.secrets}.items()]


def test_a_real_command_line() -> None:
    line = read(
        "--model-path /srv/models/Qwen3.6-27B --host 0.0.0.0 --port 30000 --tp 2 --context-length 32k --api-key sk-4711"
        " --mem-fraction-static 0.85 --trust-remote-code --no-lora-strict-loading --speculative-algorithm=EAGLE"
        " --cuda-graph-bs-decode 1 2 4 --schedule-conservativeness 1 --log-requests-level 2"
        ' --json-model-override-args {"rope_theta":1.5} --limit-mm-data-per-request {"image":4}'
        " --lora-paths a=/srv/a --model-checksum"
    )
    assert line == CommandLine(
        args={
            "tp_size": 2,
            "context_length": "32k",
            "mem_fraction_static": 0.85,
            "trust_remote_code": True,
            "lora_strict_loading": False,
            "speculative_algorithm": "EAGLE",
            "cuda_graph_bs_decode": [1, 2, 4],
            "schedule_conservativeness": 1,
            "log_requests_level": 2,
            "json_model_override_args": {"rope_theta": 1.5},
            "limit_mm_data_per_request": {"image": 4},
            "lora_paths": ["a=/srv/a"],
            "model_checksum": True,
        },
        owned={"model_path": "/srv/models/Qwen3.6-27B", "host": "0.0.0.0", "port": 30000},
        secrets={"api_key": "sk-4711"},
        notes=["'--tp' is short for '--tp-size'"],
    )


@pytest.mark.parametrize(
    ("version", "text", "args"),
    [
        ("0.5.23", "--tp-size 2 --tp-size 4", {"tp_size": 4}),
        ("0.5.23", "--tensor-parallel-size=4", {"tp_size": 4}),
        ("0.5.9", "--tp-size 4", {"tensor_parallel_size": 4}),
        ("0.5.23", "--gc-threshold 1 2 --gc-threshold 3", {"gc_threshold": [3]}),
        ("0.5.23", "--lora-strict-loading --no-lora-strict-loading", {"lora_strict_loading": False}),
        ("0.5.18", "--cuda-graph-max-bs 4 --cuda-graph-max-bs-decode 8", {"cuda_graph_max_bs_decode": 8}),
        ("0.5.18", "--cuda-graph-max-bs-decode 8 --cuda-graph-max-bs 4", {"cuda_graph_max_bs": 4}),
        ("0.5.23", "--served-model-name=-x", {"served_model_name": "-x"}),
        ("0.5.23", "--chunked-prefill-size -1", {"chunked_prefill_size": -1}),
        ("0.5.23", "--schedule-conservativeness 1e-5", {"schedule_conservativeness": "1e-5"}),
        ("0.5.23", "--schedule-conservativeness nan", {"schedule_conservativeness": "nan"}),
        ("0.5.23", "--served-model-name 012", {"served_model_name": "012"}),
        ("0.5.23", "--lora-paths", {"lora_paths": []}),
    ],
)
def test_what_counts(version: str, text: str, args: dict[str, Any]) -> None:
    main = {"tensor_parallel_size": "tp_size"} if "--tp-size" in schema_of(version) else {}
    line = read(text, version)
    assert line.problems == []
    assert {main.get(name, name): value for name, value in line.args.items()} == args


def test_a_value_with_a_space_may_begin_with_a_dash() -> None:
    words = ["--served-model-name", "-a b", "--tokenizer-path", "--x y"]
    assert from_argv(words, schema_of("0.5.23")).args == {"served_model_name": "-a b", "tokenizer_path": "--x y"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--max 7", "'--max' may stand for "),
        ("--tp_size 7", "'--tp_size' has underscores, SGLang's command line wants '--tp-size'"),
        ("--colour=red", "SGLang 0.5.23 has no option '--colour': see the options"),
        ("--mamba-scheduler-strategy auto", "it was renamed to 'mamba_radix_cache_strategy' in 0.5.14"),
        ("--tp-size two", "'tp_size' is 'two', but SGLang wants a whole number"),
        ("--tp-size", "'--tp-size' wants a value"),
        ("--tp-size --enable-metrics", "'--tp-size' wants a value"),
        ("--gc-threshold", "'--gc-threshold' wants at least one value"),
        ("--enable-metrics=true", "'--enable-metrics' is a switch and takes no value"),
        ("--enable-metrics true", "the word 'true' after '--enable-metrics' belongs to no option"),
        ("--tp-size 2 4", "the word '4' after '--tp-size' belongs to no option"),
        ("/srv/models/a", "the word '/srv/models/a' after the beginning belongs to no option"),
        ("--attention-backend fa5", "did you mean 'fa"),
        ("--help", "asks for help"),
        ("-h", "asks for help"),
        ("--tp-size 2 -- x", "'--' ends the options"),
    ],
)
def test_a_problem(text: str, problem: str) -> None:
    assert parsed(["--model-path=m", *text.split()], "0.5.23") is None
    (found,) = read(text).problems
    assert problem in found
    assert "\n" not in found


def test_a_problem_does_not_hide_the_rest() -> None:
    line = read("--colour red --tp-size two --context-length 4096 --port 1 --max 3")
    assert (len(line.problems), line.args, line.owned) == (3, {"context_length": 4096}, {"port": 1})


@pytest.mark.parametrize(
    "text",
    [
        "--api-kye sk-4711",
        "--api-kye=sk-4711",
        "--api-key sk- 4711",
        "--api-key -sk-4711",
        "--api-key sk-4711\0",
        "--api-key --sk-4711",
        "--a=sk-4711",
        "--api-key= --admin-api-key sk-4711 --x",
    ],
)
def test_a_secret_is_in_no_problem(text: str) -> None:
    line = read(text)
    assert line.problems
    assert "4711" not in str(line.problems + line.notes)


def test_the_positional_model_of_sglang_serve() -> None:
    line = read("M --model-type llm --tp-size 2", serve=True)
    assert (line.owned, line.args, line.problems) == ({"model_path": "M"}, {"tp_size": 2}, [])
    assert read("--model-type=llm --model M", serve=True).owned == {"model_path": "M"}
    assert read("--model-type llm", serve=False).problems


def config(content: str, text: str, version: str = "0.5.23") -> CommandLine:
    return read(text, version, read_config={"c.yaml": yaml.safe_load(content)}.__getitem__)


@pytest.mark.parametrize(
    ("content", "text", "args"),
    [
        ("tp-size: 2\ncontext-length: 8192", "--config c.yaml --tp-size 4", {"tp_size": 4, "context_length": 8192}),
        ("tp-size: 2", "--tp-size 4 --config c.yaml", {"tp_size": 4}),
        ("tp: 2", "--config c.yaml", {"tp_size": 2}),
        ("enable-metrics: true", "--config c.yaml", {"enable_metrics": True}),
        ("enable-metrics: false", "--config c.yaml", {}),
        ("gc-threshold: [1, 2]\nmodel: M", "--config c.yaml", {"gc_threshold": [1, 2]}),
        ("gc-threshold: []", "--config c.yaml", {}),
        ("json-model-override-args: {a: 1}", "--config c.yaml", {"json_model_override_args": {"a": 1}}),
        ("served-model-name: null", "--config c.yaml", {"served_model_name": "None"}),
        ("", "--config c.yaml --tp-size 2", {"tp_size": 2}),
        ("tp-size: 2", "--config=c.yaml", {}),
    ],
)
def test_a_config_file(content: str, text: str, args: dict[str, Any]) -> None:
    line = config(content, text)
    assert line.problems == []
    assert line.args == args


def test_what_may_be_secret_stays_where_it_was() -> None:
    content = 'api-key: sk-1\nmodel-loader-extra-config: {"token": "t"}'
    line = config(content, "--config c.yaml")
    assert (line.args, line.secrets) == ({}, {"api_key": "sk-1", "model_loader_extra_config": '{"token": "t"}'})
    line = read('--model-loader-extra-config {"token":"t"}')
    assert (line.args, line.secrets) == ({"model_loader_extra_config": {"token": "t"}}, {})


def test_a_config_file_that_sglang_ignores_is_noted() -> None:
    assert "ignores" in config("tp-size: 2", "--config=c.yaml").notes[0]


@pytest.mark.parametrize(
    ("content", "text", "problem"),
    [
        ("context_length: 1", "--config c.yaml", "'--context_length' has underscores"),
        ("tp-size: true", "--config c.yaml", "'tp_size' is 'true', but SGLang wants a whole number"),
        ("- tp-size", "--config c.yaml", "holds no mapping"),
        ("api-key: -sk-4711", "--config c.yaml", "'--api-key' wants a value"),
        ("{}", "--config c.json", "ends in .yaml"),
        ("{}", "--config", "one file"),
        ("{}", "--config c.yaml --config c.yaml", "one file"),
    ],
)
def test_a_config_file_that_sglang_refuses(content: str, text: str, problem: str) -> None:
    (found,) = config(content, text).problems
    assert problem in found
    assert "4711" not in found


def test_a_config_file_that_can_not_be_read(tmp_path: Path) -> None:
    def load(path: str) -> Any:
        try:
            return yaml.safe_load((tmp_path / path).read_text())
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error

    (tmp_path / "damaged.yaml").write_text("api-key: [sk-4711")
    for path, problem in {"gone.yaml": "No such file", "damaged.yaml": "it is no YAML"}.items():
        line = read(f"--config {path} --tp-size 2", read_config=load)
        assert problem in line.problems[0]
        assert "4711" not in line.problems[0]
        assert line.args == {"tp_size": 2}
    assert "'c.yaml', which was not read" in read("--config c.yaml").problems[0]


VALUES = (
    *("1", "-1", "-1.5", "0.5", "1e-5", "-1e-5", "32k", "+1", "1_0", " 1", "-0", "nan", "-.5\n", "auto", "fa3", "true"),
    *("", "-", "--", "-x", "a b", "-a b", '{"a": 1.50}', "[1,2]", "null", "--x y", "--tp 4", "=", "--=", "-h"),
)


def test_any_words_are_read_as_argparse_reads_them() -> None:
    flags = sorted({flag for version in releases() for flag in schema_of(version)} - {"--lora-paths", "--config"})
    whole = st.sampled_from(flags) | st.sampled_from(["--no-lora-strict-loading", "--no-dllm-fdfo", "--model", "--tp"])
    cut = st.tuples(whole, st.integers(3, 30)).map(lambda t: t[0][: t[1]])
    value = st.sampled_from(VALUES)
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
    option = st.tuples(whole | whole | whole | cut, value | text | st.just("\0"), st.booleans()).map(
        lambda t: [t[0]] if t[1] == "\0" else [f"{t[0]}={t[1]}"] if t[2] else [t[0], t[1]]
    )
    lines = st.lists(option | option | st.lists(value, max_size=2), max_size=4).map(
        lambda parts: list(itertools.chain(*parts))
    )

    @settings(max_examples=1500)
    @given(st.sampled_from(sorted(releases())), lines)
    def check(version: str, words: list[str]) -> None:
        words = ["--model-path", "m", *words]
        line = from_argv(words, schema_of(version))
        if line.problems or any("does nothing" in note for note in line.notes):
            return
        wanted = parsed(words, version)
        assert wanted is not None
        again = parsed(written(line, version), version)
        assert again is not None
        assert same_namespace(again, wanted)

    check()
