# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.instances import instance_problems


def instance(**facts: Any) -> dict[str, Any]:
    return {"name": "a", "model": "/srv/m", "port": 30000, **facts}


@pytest.mark.parametrize(
    "instances",
    [
        [],
        [instance()],
        [instance(port="30000", name="qwen36", model="Qwen/Qwen3-0.6B")],
        [
            instance(),
            instance(name="a-b", port=30001),
            instance(name="0", port=1024),
            instance(name="9" * 40, port=65535),
        ],
    ],
)
def test_a_list_in_order(instances: list[dict[str, Any]]) -> None:
    assert instance_problems(instances) == []


NAME = "use up to 40 of a-z, 0-9 and '-'"
KNOWN = "it may have name, model, host, port, gpus, args, env, secrets"
PORT = "use a whole number from 1024 to 65535"


@pytest.mark.parametrize(
    ("instances", "problems"),
    [
        (["a"], ["instance 1 is of the type str: write a mapping with name, model and port"]),
        ([None], ["instance 1 is of the type NoneType: write a mapping with name, model and port"]),
        (
            [["sk-never"], instance()],
            ["instance 1 is of the type list: write a mapping with name, model and port"],
        ),
        ([instance(arg={"tp_size": 2})], [f"instance 'a' has a key 'arg': {KNOWN}"]),
        (
            [instance(secret={"api_key": "sk-never"}, Port=1, args={}, env={}, secrets={}, gpus=[0], host="::")],
            [f"instance 'a' has a key 'Port': {KNOWN}", f"instance 'a' has a key 'secret': {KNOWN}"],
        ),
        ([instance() | {1: "x"}], [f"instance 'a' has a key '1': {KNOWN}"]),
        ([instance(name="Qwen")], [f"instance 'Qwen' has the name 'Qwen': {NAME}"]),
        ([instance(name="a.b")], [f"instance 'a.b' has the name 'a.b': {NAME}"]),
        ([instance(name="a/../b")], [f"instance 'a/../b' has the name 'a/../b': {NAME}"]),
        ([instance(name="-a")], [f"instance '-a' has the name '-a': {NAME}"]),
        ([instance(name="a-")], [f"instance 'a-' has the name 'a-': {NAME}"]),
        ([instance(name="a\n")], [f"instance 'a\n' has the name 'a\\n': {NAME}"]),
        ([instance(name="a" * 41)], [f"instance '{'a' * 41}' has the name '{'a' * 41}': {NAME}"]),
        ([instance(name="")], [f"instance 1 has the name '': {NAME}"]),
        ([instance(name=None)], [f"instance 1 has the name '': {NAME}"]),
        ([instance(name=True)], [f"instance 'True' has the name 'True': {NAME}"]),
        ([instance(model="")], ["instance 'a' has no model: set 'model' to a directory or a hub id"]),
        ([{"name": "a", "port": 30000}], ["instance 'a' has no model: set 'model' to a directory or a hub id"]),
        ([{"name": "a", "model": "m"}], [f"instance 'a' has the port None: {PORT}"]),
        ([instance(port=True)], [f"instance 'a' has the port True: {PORT}"]),
        ([instance(port=80)], [f"instance 'a' has the port 80: {PORT}"]),
        ([instance(port=1023)], [f"instance 'a' has the port 1023: {PORT}"]),
        ([instance(port=65536)], [f"instance 'a' has the port 65536: {PORT}"]),
        ([instance(port=-30000)], [f"instance 'a' has the port -30000: {PORT}"]),
        ([instance(port=30000.0)], [f"instance 'a' has the port 30000.0: {PORT}"]),
        ([instance(port="30000 ")], [f"instance 'a' has the port '30000 ': {PORT}"]),
        ([instance(port="http")], [f"instance 'a' has the port 'http': {PORT}"]),
        ([instance(port=[30000])], [f"instance 'a' has the port [30000]: {PORT}"]),
        (
            [instance(), instance(name="b"), instance(name="c", port="30000")],
            [
                "instance 'b' has the port 30000, which instance 'a' has too: change one",
                "instance 'c' has the port 30000, which instance 'a' has too: change one",
            ],
        ),
        (
            [instance(name=""), instance(name="b")],
            [
                f"instance 1 has the name '': {NAME}",
                "instance 'b' has the port 30000, which instance 1 has too: change one",
            ],
        ),
        (
            [instance(), instance(name="b", port=1024), instance(port=1025)],
            ["instance 'a' is there twice (entries 1 and 3): rename one"],
        ),
    ],
)
def test_each_problem_is_one_sentence(instances: list[Any], problems: list[str]) -> None:
    assert instance_problems(instances) == problems


@pytest.mark.parametrize(
    ("instances", "kind"), [({"name": "a"}, "dict"), (None, "NoneType"), ("sk-never", "str"), (7, "int")]
)
def test_what_is_no_list_is_told_by_its_type(instances: Any, kind: str) -> None:
    assert instance_problems(instances) == [
        f"sglang_server_instances is of the type {kind}: write a list with one mapping for each instance"
    ]


@pytest.mark.parametrize(
    "misplaced",
    [
        "api_key: sk-never",
        ["sk-never"],
        [{"secrets": {"api_key": "sk-never"}}],
        {"secrets": "sk-never"},
        {"api_key": "sk-never"},
        {"name": "a", "model": "m", "port": 30000, "secret": {"api_key": "sk-never"}},
    ],
)
def test_a_misplaced_secret_is_never_told(misplaced: Any) -> None:
    for instances in (misplaced, [misplaced], [instance(name="b"), misplaced]):
        problems = instance_problems(instances)
        assert problems
        assert "sk-never" not in " ".join(problems)


def test_all_problems_are_told_at_once() -> None:
    found = instance_problems([{}, instance(name="A", port=1), instance(), instance()])
    assert [problem.partition(" has ")[0] for problem in found[:5]] == [
        "instance 1",
        "instance 1",
        "instance 1",
        "instance 'A'",
        "instance 'A'",
    ]
    assert found[5:] == [
        "instance 'a' is there twice (entries 3 and 4): rename one",
        "instance 'a' has the port 30000, which instance 'a' has too: change one",
    ]


PREFILL = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": "8998"}
DECODE = {**PREFILL, "disaggregation_mode": "decode", "remote_instance_weight_loader_seed_instance_service_port": 30000}


def test_ports_of_other_servers_are_not_bound() -> None:
    instances = [instance(args=PREFILL), instance(name="b", port=30001, args=DECODE)]
    assert instance_problems(instances) == []


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        (
            [{"name": "a", "model": "m", "port": 30000, "args": {"nccl_port": 30000}}],
            "instance 'a' has the nccl_port 30000, which is the port of instance 'a': change one",
        ),
        (
            [
                {"name": "a", "model": "m", "port": 30000, "args": {"nccl_port": 30001}},
                {"name": "b", "model": "m", "port": 30001},
            ],
            "instance 'b' has the port 30001, which instance 'a' (nccl_port) has too: change one",
        ),
        (
            [
                {"name": "a", "model": "m", "port": 30000, "args": PREFILL},
                {"name": "b", "model": "m", "port": 30001, "args": PREFILL},
            ],
            "instance 'b' has the disaggregation_bootstrap_port 8998, which is the port of instance 'a' "
            "(disaggregation_bootstrap_port): change one",
        ),
    ],
)
def test_no_port_of_a_host_is_given_twice(instances: list[dict[str, Any]], said: str) -> None:
    assert instance_problems(instances) == [said]


@pytest.mark.parametrize("args", [None, [], "x", {"nccl_port": None}, {"nccl_port": "many"}, {1: 2}])
def test_arguments_of_any_form_are_no_traceback(args: Any) -> None:
    assert instance_problems([{"name": "a", "model": "m", "port": 30000, "args": args}]) == []
