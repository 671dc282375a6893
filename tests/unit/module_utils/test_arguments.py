# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments through the real argparse parsers of SGLang's releases, and against what real servers reported."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import (
    OWNED,
    SECRET,
    ArgumentProblem,
    compared,
    secret_problems,
    secrets_text,
    to_argv,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import from_argv
from ansible_collections.gpuops.sglang.plugins.module_utils.options import canonical, choices_of
from ansible_collections.gpuops.sglang.plugins.module_utils.schema_probe import describe
from conftest import VERSIONS, human_readable_int, parser_of, releases, same_namespace, schema_of
from hypothesis import given, settings
from hypothesis import strategies as st

REQUIRED = ["--model-path", "M"]


def option_name(flag: str) -> str:
    return flag[2:].replace("-", "_")


def is_settable(flag: str, option: dict[str, Any]) -> bool:
    return option_name(flag) not in (*OWNED, *SECRET) and option["action"] != "DeprecatedAction"


def parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(REQUIRED + words)
    except SystemExit as error:
        raise AssertionError(f"argparse refuses {words}") from error


# What an operator writes, with the value that SGLang must get. A NUL and a lone '--' can not be in a command line.
word = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).filter(
    lambda t: t != "--"
)
item = word.filter(lambda text: not text.startswith("-"))
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
whole = st.integers(-(10**12), 10**12)
number = whole | st.floats(allow_nan=False)
item_number = (
    whole.map(float) | st.integers(-(10**9), 10**9).map(lambda n: n / 8) | st.floats(min_value=0, max_value=1e18)
)
suffixed = st.tuples(st.integers(0, 9999), st.sampled_from(["k", "M", "G", "T", "Ki", "Mi"])).map(
    lambda t: f"{t[0]}{t[1]}"
)
lora = st.fixed_dictionaries({"lora_name": st.text(max_size=5), "lora_path": st.text(max_size=5)})


def same(value: Any) -> tuple[Any, Any]:
    return value, value


def as_text(value: Any) -> tuple[Any, Any]:
    return str(value), value


VALUES = {
    "human_readable_int": whole.map(same) | suffixed.map(lambda text: (text, human_readable_int(text))),
    "int": whole.map(same) | whole.map(as_text),
    "float": number.map(same) | number.map(as_text),
    "json_list_type": st.lists(json_value, max_size=3).map(same),
    "loads": st.dictionaries(st.text(max_size=5), json_value, max_size=3).map(same)
    | st.lists(json_value, max_size=3).map(lambda value: (json.dumps(value), value)),
    "nullable_str": word.map(lambda text: (text, None if text in ("", "None") else text)),
    "parse_cuda_graph_config_arg": st.dictionaries(st.sampled_from(["decode", "prefill"]), json_value).map(same),
    "str": word.map(same) | whole.map(lambda n: (n, str(n))),
}
ITEMS = {"int": whole, "float": item_number, "str": item}


def form(option: dict[str, Any]) -> str:
    """Options of one form take the same values."""
    if option["nargs"] == 0 or option["action"] == "LoRAPathAction":
        return option["action"]
    if str(option["default"]).startswith("{"):
        return "JSON in a text"
    return f"{'choice' if option['choices'] else option['type']} {option['nargs']}"


def value_strategy(option: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return pairs of what an operator writes and what the parser must make of it; for choices, their positions."""
    if option["nargs"] == 0:
        return st.tuples(st.sampled_from([True, "True", "true"]), st.just(True)) | st.sampled_from(
            [(False, False), ("false", False)]
        )
    if form(option) == "JSON in a text":
        mappings = st.dictionaries(st.text(max_size=5), json_value, max_size=3)
        texts = mappings.map(lambda value: json.dumps(value, separators=(",", ":")))
        return texts.map(lambda text: (json.loads(text), text)) | texts.map(same)
    if option["action"] == "LoRAPathAction":
        return st.lists(st.text("abc=/.", min_size=1, max_size=8) | lora, max_size=3).map(same)
    if option["choices"]:
        position = st.integers(0, 99)
        return position if option["nargs"] is None else st.lists(position, max_size=3)
    if option["nargs"] in ("*", "+"):
        items = ITEMS[option["type"]]
        return st.lists(items, min_size=option["nargs"] == "+", max_size=4).map(same) | items.map(lambda v: (v, [v]))
    if option["nargs"] == "?":
        return st.just((True, ...)) | VALUES[option["type"]]
    return VALUES[option["type"] or "str"]


def pair_of(option: dict[str, Any], drawn: Any) -> tuple[Any, Any]:
    if form(option) == "choice None":
        chosen = option["choices"][drawn % len(option["choices"])]
        return chosen, True if option["action"] == "DeprecatedStoreConstAction" else chosen
    if form(option).startswith("choice"):
        return same([option["choices"][position % len(option["choices"])] for position in drawn])
    return drawn


def stored(option: dict[str, Any], value: Any, version: str) -> Any:
    """What the namespace holds where a switch has the given state."""
    if option["nargs"] == 0 and option["action"] != "BooleanOptionalAction":
        actions = parser_of(version)._actions
        action = next(action for action in actions if option["flag"] in action.option_strings)
        return getattr(action, "const_value", action.const) if value else action.default
    if value is ...:
        return next(a.const for a in parser_of(version)._actions if option["flag"] in a.option_strings)
    return value


@pytest.mark.parametrize("version", releases())
def test_every_option_gets_its_value_and_is_read_back(version: str) -> None:
    schema = {
        flag: {**option, "flag": flag, "choices": choices_of(flag, schema_of(version)) or None}
        for flag, option in schema_of(version).items()
    }
    settable = {flag: option for flag, option in schema.items() if is_settable(flag, option)}
    by_dest = defaultdict(list)
    for flag, option in settable.items():
        by_dest[option["dest"]].append(flag)
    strategies = {form(option): value_strategy(option) for option in settable.values()}
    # options that store in one place take turns
    turns = max(len(sharing) for sharing in by_dest.values())
    rounds = [{sharing[turn % len(sharing)] for sharing in by_dest.values()} for turn in range(turns)]
    assert set().union(*rounds) == set(settable)

    @settings(max_examples=8 if version in VERSIONS else 2)
    @given(st.fixed_dictionaries(strategies))
    def check(drawn: dict[str, Any]) -> None:
        for flags in rounds:
            pairs = {flag: pair_of(settable[flag], drawn[form(settable[flag])]) for flag in flags}
            words = to_argv({option_name(flag): asked for flag, (asked, _) in pairs.items()}, schema)
            namespace = parse(parser_of(version), words)
            for flag, (asked, wanted) in pairs.items():
                got = getattr(namespace, settable[flag]["dest"])
                assert got == stored(settable[flag], wanted, version), f"{flag}: {asked!r} became {got!r}"
            line = from_argv(words, schema)
            assert (line.problems, line.notes, line.owned, line.secrets) == ([], [], {}, {})
            again = to_argv(line.args, schema)
            assert same_namespace(parse(parser_of(version), again), namespace)
            assert from_argv(again, schema).args == line.args

    check()


anything = st.one_of(
    st.none(), st.booleans(), number, word, st.text(max_size=3), json_value, st.lists(number, max_size=3)
)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_what_argparse_refuses_is_refused_before(version: str) -> None:
    schema = schema_of(version)
    # their parsers ask more of a mapping than that it is JSON
    flags = sorted(set(schema) - {"--cuda-graph-config", "--lora-paths"})

    @settings(max_examples=250)
    @given(st.sampled_from(flags), anything)
    def check(flag: str, value: Any) -> None:
        try:
            words = to_argv({option_name(flag): value}, schema)
        except ArgumentProblem as problem:
            assert f"'{option_name(flag)}'" in str(problem)
        else:
            parse(parser_of(version), words)

    check()


def test_a_mapping_is_refused_or_read_by_argparse_as_it_is_read_back() -> None:
    names = sorted({option_name(flag) for version in VERSIONS for flag in schema_of(version)} - {"lora_paths"})
    mappings = st.dictionaries(st.sampled_from(names) | word, anything, max_size=6)

    @settings(max_examples=500)
    @given(st.sampled_from(sorted(releases())), mappings)
    def check(version: str, args: dict[str, Any]) -> None:
        schema = schema_of(version)
        # each part alone too, as one that is refused keeps the others from being read
        for mapping in (args, *({name: value} for name, value in args.items())):
            try:
                words = to_argv(mapping, schema)
            except ArgumentProblem:
                continue
            line = from_argv(words, schema)
            assert line.problems == []
            read = parse(parser_of(version), words)
            assert same_namespace(parse(parser_of(version), to_argv(line.args, schema)), read)

    check()


def test_aliases_stand_for_their_option(sglang_parser: argparse.ArgumentParser) -> None:
    schema = describe(sglang_parser)
    for flag, option in schema.items():
        assert canonical(option_name(flag), schema) == flag
        for alias in option["aliases"]:
            assert canonical(option_name(alias), schema) == flag
    assert parse(sglang_parser, to_argv({"tensor_parallel_size": 4}, schema)) == parse(
        sglang_parser, ["--tp-size", "4"]
    )


def test_null_leaves_an_option_out() -> None:
    assert to_argv({"tp_size": None, "context_length": 4096}, schema_of("0.5.23")) == ["--context-length", "4096"]


def test_words_are_in_the_order_of_the_names() -> None:
    args = {"tp_size": 2, "context_length": 4096, "enable_metrics": True}
    words = ["--context-length", "4096", "--enable-metrics", "--tp-size", "2"]
    assert to_argv(args, schema_of("0.5.23")) == words
    assert to_argv(dict(reversed(args.items())), schema_of("0.5.23")) == words


WRONG = [
    ("tp_size", "two", "is 'two', but SGLang wants a whole number"),
    ("tp_size", 2.5, "is '2.5', but SGLang wants a whole number"),
    ("tp_size", "", "is '', but SGLang wants a whole number"),
    ("tp_size", True, "is true, but SGLang wants a value (a whole number)"),
    ("tp_size", [1, 2], "is '[1,2]', but SGLang wants a whole number"),
    ("mem_fraction_static", "85%", "is '85%', but SGLang wants a number"),
    ("mem_fraction_static", False, "is false, but SGLang wants a value (a number)"),
    ("context_length", "32 K", "is '32 K', but SGLang wants a whole number, as in 32768, 32k or 32Ki"),
    ("context_length", "1.5Ki", "is '1.5Ki', but SGLang wants a whole number, as in 32768, 32k or 32Ki"),
    ("context_length", 32768.0, "is '32768.0', but SGLang wants a whole number, as in 32768, 32k or 32Ki"),
    ("enable_metrics", "yes", "is 'yes', but it is a switch: write true or false"),
    ("enable_metrics", 1, "is 1, but it is a switch: write true or false"),
    ("enable_metrics", [], "is [], but it is a switch: write true or false"),
    ("lora_strict_loading", "on", "is 'on', but it is a switch: write true or false"),
    ("dtype", "int4", "is 'int4', but SGLang wants one of auto, bfloat16, "),
    ("log_requests_level", 7, "is '7', but SGLang wants one of 0, 1, 2, 3"),
    ("lora_target_modules", ["q_proj", "x_proj"], "is 'x_proj', but SGLang wants one of all, down_proj, "),
    ("monokernel_backend", "nvidia", "is 'nvidia', but SGLang wants one of amd"),
    ("monokernel_backend", True, "is true, but SGLang wants a value (text)"),
    ("served_model_name", True, "is true, but SGLang wants a value (text)"),
    ("served_model_name", ["a", "b"], 'is the list ["a","b"], but SGLang takes one value (text)'),
    ("quantization_param_path", ["a"], 'is the list ["a"], but SGLang takes one value (text)'),
    ("attention_backend", ["fa3"], 'is the list ["fa3"], but SGLang takes one value (text)'),
    ("limit_mm_data_per_request", "{image: 1}", "is '{image: 1}', but SGLang wants JSON"),
    ("forward_hooks", "[1", "is '[1', but SGLang wants JSON"),
    ("forward_hooks", True, "is true, but SGLang wants a value (JSON)"),
    ("gc_threshold", [700, "many"], "is 'many', but SGLang wants a whole number"),
    ("gc_threshold", [], "is an empty list: give at least one value, or delete it"),
    ("gc_threshold", [None], "is null, but SGLang wants a value (a whole number)"),
    ("encoder_urls", ["http://a", "--b"], "has the item '--b': SGLang's parser takes a leading dash for an option"),
    ("encoder_urls", [None], "is null, but SGLang wants a value (text)"),
    (
        "bucket_time_to_first_token",
        [-1e-07],
        "has the item '-1e-07': SGLang's parser takes a leading dash for an option",
    ),
    ("model_checksum", False, "is false, but SGLang wants a value (text)"),
    ("served_model_name", "a\0b", "is 'a\\x00b', which no command line can carry: correct it"),
    ("served_model_name", "--", "is '--', which no command line can carry: correct it"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), WRONG)
def test_a_wrong_value_is_named_with_what_is_wanted(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ArgumentProblem) as caught:
        to_argv({name: value}, schema_of("0.5.23"))
    assert str(caught.value).startswith(f"'{name}' {sentence}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("context_len", "'context_length'"),  # argparse takes an abbreviation
        ("max_running_request", "'max_running_requests'"),
        ("tp-size", "'tp_size'"),
        ("--tp-size", "no option"),
        ("no_lora_strict_loading", "'lora_strict_loading'"),
        ("colour", "schema.json"),
        ("", "no option"),
    ],
)
def test_a_name_must_be_spelled_out(name: str, hint: str) -> None:
    with pytest.raises(ArgumentProblem) as caught:
        to_argv({name: 1}, schema_of("0.5.23"))
    assert f"'{name}'" in str(caught.value)
    assert hint in str(caught.value)


def test_an_option_of_another_release_is_refused(sglang_parser: argparse.ArgumentParser) -> None:
    schema = describe(sglang_parser)
    here = "--mamba-radix-cache-strategy" in schema
    assert here == (sglang_parser in (parser_of("0.5.18"), parser_of("0.5.23")))
    if here:
        assert to_argv({"mamba_radix_cache_strategy": "no_buffer"}, schema)
    else:
        with pytest.raises(ArgumentProblem, match="no option 'mamba_radix_cache_strategy'"):
            to_argv({"mamba_radix_cache_strategy": "no_buffer"}, schema)


def test_a_removed_option_is_refused(sglang_parser: argparse.ArgumentParser) -> None:
    schema = describe(sglang_parser)
    for flag, option in schema.items():
        if option["action"] == "DeprecatedAction":
            with pytest.raises(ArgumentProblem, match=f"'{option_name(flag)}' was removed"):
                to_argv({option_name(flag): True}, schema)


@pytest.mark.parametrize("name", sorted(OWNED))
def test_what_the_deployment_sets_is_refused_with_the_place(name: str) -> None:
    with pytest.raises(ArgumentProblem) as caught:
        to_argv({name: "x"}, schema_of("0.5.23"))
    assert f"'{name}'" in str(caught.value)
    assert OWNED[name] in str(caught.value)


def test_owned_options_and_secrets_have_no_other_spelling(sglang_parser: argparse.ArgumentParser) -> None:
    for flag, option in describe(sglang_parser).items():
        names = {option_name(spelling) for spelling in (flag, *option["aliases"])}
        assert names <= {*OWNED, *SECRET} or not names & {*OWNED, *SECRET}


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(ArgumentProblem) as caught:
        to_argv({name: "sk-4711"}, schema_of("0.5.23"))
    assert f"'{name}'" in str(caught.value)
    assert "'secrets'" in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "first", "second"),
    [
        ("0.5.23", "tensor_parallel_size", "tp_size"),  # an alias
        ("0.5.18", "cuda_graph_max_bs", "cuda_graph_max_bs_decode"),  # an older name
        ("0.5.18", "disable_piecewise_cuda_graph", "enable_breakable_cuda_graph"),  # argparse would keep the last
    ],
)
def test_two_options_for_one_setting_are_refused(version: str, first: str, second: str) -> None:
    value = True if first.startswith("disable") else 4
    with pytest.raises(ArgumentProblem) as caught:
        to_argv({first: value, second: value}, schema_of(version))
    assert f"'{first}' and '{second}'" in str(caught.value)
    assert to_argv({first: value, second: None}, schema_of(version))


def test_every_problem_is_reported_at_once() -> None:
    schema = schema_of("0.5.23")
    wrong = {0: 7, "+": [], "*": [True]}
    args = {option_name(flag): wrong.get(option["nargs"], False) for flag, option in schema.items()}
    args |= {"colour": "red", "context_len": 1}
    with pytest.raises(ArgumentProblem) as caught:
        to_argv(args, schema)
    assert [name for name in args if f"'{name}'" not in str(caught.value)] == []


def test_secrets_reach_sglang_as_they_are() -> None:
    plain = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)

    @given(st.dictionaries(st.sampled_from(SECRET), plain))
    def check(secrets: dict[str, str]) -> None:
        read = yaml.safe_load(secrets_text(secrets)) or {}
        assert read == {name.replace("_", "-"): value for name, value in secrets.items()}

    check()


@pytest.mark.parametrize("value", ["012345", "null", "true", "1e3", "~", "a: b", "#x", '"', "\\", "'", "{}", " x "])
def test_a_secret_stays_text(value: str) -> None:
    assert yaml.safe_load(secrets_text({"api_key": value})) == {"api-key": value}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("api_key", "", "'api_key' is empty"),
        ("api_key", "-sk-4711", "begins with '-'"),
        ("api_key", "sk-4711\nport: 1", "one line"),
        ("api_key", "schlüssel-4711", "plain ASCII"),
        ("api-key", "sk-4711", "'api-key' under 'secrets' is no option"),
        ("apikey", "sk-4711", "'apikey' under 'secrets' is no option"),
        ("enable_metrics", "sk-4711", "'enable_metrics' under 'secrets' is no option"),
        ("port", "4711", "'port' under 'secrets' is no option"),
    ],
)
def test_a_secret_that_sglang_would_not_take_is_refused(name: str, value: str, sentence: str) -> None:
    (problem,) = secret_problems({name: value}, schema_of("0.5.23"))
    assert sentence in problem
    assert "4711" not in problem


def test_secrets_in_order_have_no_problem(sglang_parser: argparse.ArgumentParser) -> None:
    secrets = {"api_key": "sk-4711 x", "hicache_storage_backend_extra_config": '{"a": 1}'}
    assert secret_problems(secrets, describe(sglang_parser)) == []


EQUAL = [
    ("0.5.11", "tp_size", 1),  # the field; argparse's dest is tensor_parallel_size
    ("0.5.11", "tensor_parallel_size", "1"),
    ("0.5.23", "tp_size", 1),
    ("0.5.23", "tensor_parallel_size", 1),
    ("0.5.11", "fp8_gemm_backend", "auto"),  # reported as fp8_gemm_runner_backend
    ("0.5.11", "context_length", 8192),
    ("0.5.11", "context_length", "8192"),
    ("0.5.11", "context_length", "8Ki"),
    ("0.5.11", "chunked_prefill_size", 8192),
    ("0.5.11", "mem_fraction_static", 0.8387624218749999),
    ("0.5.11", "mem_fraction_static", "0.8387624218749999"),
    ("0.5.11", "schedule_conservativeness", 1),
    ("0.5.11", "attention_backend", "triton"),
    ("0.5.11", "trust_remote_code", False),
    ("0.5.11", "trust_remote_code", "false"),
    ("0.5.11", "disable_cuda_graph", True),
    ("0.5.11", "cuda_graph_bs", [1, 2, 4, 8, 12]),
    ("0.5.11", "cuda_graph_bs", ["1", "2", "4", "8", "12"]),
    ("0.5.11", "json_model_override_args", {}),
    ("0.5.11", "mm_process_config", {}),
    ("0.5.11", "mm_process_config", "{}"),
    ("0.5.11", "uvicorn_access_log_exclude_prefixes", []),
    ("0.5.11", "quantization_param_path", "None"),
    ("0.5.11", "model_path", "/srv/models/qwen36-27b"),
    ("0.5.23", "model_path", "/srv/models/tiny"),
    ("0.5.23", "lora_strict_loading", False),
    ("0.5.23", "log_requests_level", "2"),
    ("0.5.23", "cuda_graph_config", {"decode": {"backend": "full", "bs": [1, 2, 3, 4]}}),  # SGLang adds the rest
    ("0.5.23", "cuda_graph_config", '{"prefill":{"max_bs":4096}}'),
]
UNEQUAL = [
    ("0.5.11", "tp_size", 2, "1"),
    ("0.5.11", "tensor_parallel_size", 2, "1"),
    ("0.5.23", "tp_size", 2, "1"),
    ("0.5.11", "fp8_gemm_backend", "triton", "'auto'"),
    ("0.5.11", "context_length", "8k", "8192"),
    ("0.5.23", "context_length", 8192, "None"),
    ("0.5.11", "mem_fraction_static", 0.85, "0.8387624218749999"),
    ("0.5.11", "attention_backend", "fa3", "'triton'"),
    ("0.5.11", "trust_remote_code", True, "False"),
    ("0.5.11", "disable_cuda_graph", False, "True"),
    ("0.5.11", "cuda_graph_bs", [1, 2, 4, 8], "[1, 2, 4, 8, 12]"),
    ("0.5.11", "cuda_graph_bs", [1, 2, 4, 8, 16], "[1, 2, 4, 8, 12]"),
    ("0.5.11", "json_model_override_args", {"rope_theta": 1}, "'{}'"),
    ("0.5.11", "mm_process_config", {"image": {"max": 1}}, "{}"),
    ("0.5.11", "speculative_algorithm", "EAGLE", "None"),
    ("0.5.11", "speculative_num_steps", 3, "None"),
    ("0.5.11", "gc_threshold", [700], "None"),
    ("0.5.11", "model_path", "/srv/models/other", "'/srv/models/qwen36-27b'"),
    ("0.5.23", "lora_strict_loading", True, "False"),
    ("0.5.23", "cuda_graph_config", {"decode": {"backend": "disabled"}}, "full"),
    ("0.5.23", "cuda_graph_config", {"decode": {"depth": 1}}, "full"),
]
SCHEMA = {"0.5.11": "0.5.13", "0.5.23": "0.5.23"}  # the options that are compared here are the same in 0.5.11


@pytest.mark.parametrize(("version", "name", "value"), EQUAL)
def test_a_reported_value_as_requested(answers: dict[str, Any], version: str, name: str, value: Any) -> None:
    reported = answers[version]["/server_info"]
    (one,) = compared({name: value}, schema_of(SCHEMA[version]), reported)
    assert one.same


@pytest.mark.parametrize(("version", "name", "value", "shown"), UNEQUAL)
def test_another_reported_value(answers: dict[str, Any], version: str, name: str, value: Any, shown: str) -> None:
    reported = answers[version]["/server_info"]
    (one,) = compared({name: value}, schema_of(SCHEMA[version]), reported)
    assert not one.same
    assert (one.option, one.requested) == (name, value)
    assert shown in repr(one.reported)


def test_auto_leaves_the_choice_to_sglang(answers: dict[str, Any]) -> None:
    reported = answers["0.5.23"]["/server_info"]
    (one,) = compared({"attention_backend": "auto"}, schema_of("0.5.23"), reported)
    assert one.same and one.reported != "auto"


def test_all_differences_are_listed(answers: dict[str, Any]) -> None:
    args = {"tp_size": 2, "context_length": 8192, "dtype": "half", "trust_remote_code": False, "pp_size": None}
    found = compared(args, schema_of("0.5.13"), answers["0.5.11"]["/server_info"])
    assert [one.option for one in found] == ["context_length", "dtype", "tp_size", "trust_remote_code"]
    assert [one.option for one in found if not one.same] == ["dtype", "tp_size"]


def test_what_the_server_does_not_report_is_not_counted(answers: dict[str, Any]) -> None:
    reported = dict(answers["0.5.23"]["/server_info"])
    del reported["tp_size"]
    assert compared({"tp_size": 2, "kt_method": "x"}, schema_of("0.5.23"), reported) == []


@pytest.mark.parametrize(
    ("version", "name", "value", "reported"),
    [
        ("0.5.18", "disable_piecewise_cuda_graph", True, {"cuda_graph_backend_prefill": "disabled"}),
        ("0.5.23", "monokernel_backend", "amd", {"enable_amd_monokernel": True}),
        ("0.5.23", "model_checksum", True, {"model_checksum": ""}),
        (
            "0.5.23",
            "lora_paths",
            ["a=/srv/a"],
            {"lora_paths": [{"lora_id": "1", "lora_name": "a", "lora_path": "/srv/a"}]},
        ),
    ],
)
def test_a_value_that_sglang_replaces_is_not_compared(version: str, name: str, value: Any, reported: Any) -> None:
    assert to_argv({name: value}, schema_of(version))
    assert compared({name: value}, schema_of(version), reported) == []
