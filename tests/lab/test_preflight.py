# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What real releases of SGLang make of arguments, told before anything is stopped."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.fit import corrected
from ansible_collections.gpuops.sglang.plugins.module_utils.levers import Search
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import Gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.model_shape import read_shape
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_judge import judge
from connections import enter
from pct_backend import container
from playbook_runs import Run, deploy, lab_instances, with_args
from preflight_cases import CASES, MODEL, SHARE, SPECULATION, args_of, in_container, put_model, reports
from testinfra.host import Host

TINY = lab_instances()[0]
MODEL_CONFIG = Path(__file__).with_name("hybrid_config.json")
CARD = Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 97287)  # as the stand-in tells of it
TABLE = "TASK [Show what SGLang makes of the arguments]"

# case -> is the radix cache on, or the words of the refusal and of the next step
NO_SPECULATION = ("is not compatible with radix cache when using --mamba-scheduler-strategy no_buffer",
                  "set 'mamba_scheduler_strategy' to extra_buffer, or 'disable_radix_cache' to true")  # fmt: skip
NO_OVERLAP = ("AssertionError: no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.",
              "delete 'mamba_radix_cache_strategy', so that SGLang takes extra_buffer, or set "
              "'disable_overlap_schedule' to true")  # fmt: skip
BOTH = ("ValueError: mamba extra_buffer is not compatible with --disable-radix-cache", "delete 'disable_radix_cache'")
SILENT = {"nothing": False, "no_buffer": False, "no_buffer, no overlap": False, "extra_buffer": True,
          "no radix cache": False, "extra_buffer, no radix cache": False}  # fmt: skip
STRICT = {**SILENT, **dict.fromkeys(["nothing", "no_buffer", "no_buffer, no overlap"], NO_SPECULATION),
          "extra_buffer, no radix cache": BOTH}  # fmt: skip
CHOOSING = {**SILENT, "nothing": True, "no_buffer": NO_OVERLAP, "no_buffer, no overlap": True}
FRACTION = {"0.5.9": 0.779, "0.5.11": 0.759, "0.5.14": 0.798, "0.5.18": 0.793, "0.5.20": 0.793, "0.5.23": 0.793}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.9", SILENT),
        ("0.5.11", STRICT),
        pytest.param("0.5.14", CHOOSING, marks=pytest.mark.slow),
        pytest.param("0.5.18", CHOOSING, marks=pytest.mark.slow),
        pytest.param("0.5.20", CHOOSING, marks=pytest.mark.slow),
        ("0.5.23", CHOOSING),
    ],
)
def test_a_hybrid_model_with_speculation(ct129: Host, version: str, expected: dict[str, Any]) -> None:
    options, answers = reports(version)
    schema = Options(options, version)
    for case in CASES:
        answer, args = answers[case], args_of(case, version)
        rows, problems = judge(args, schema, answer, {})  # type: ignore[arg-type]
        if isinstance(expected[case], bool):
            assert (answer["stage"], answer["error"], problems) == ("model", None, []), case
            assert answer["resolved"]["disable_radix_cache"] is not expected[case], case
            assert {row.verdict for row in rows} == {"kept"}, case
            assert answer["resolved"]["max_running_requests"] == 48
            assert round(answer["resolved"]["mem_fraction_static"], 3) == FRACTION[version]
            planned = Search(read_shape(MODEL_CONFIG), args, [CARD], version)
            assert corrected(planned, answer["resolved"]) is planned, "the plan expects what SGLang resolves"
            assert any("max_running_requests" in fields for _step, fields in answer["steps"])
            assert any("Max running requests is reset to 48" in text for text in answer["messages"])
        else:
            words, step = expected[case]
            (problem,) = problems
            assert words in problem and step in problem, case
            assert "\n" not in problem
    if version == "0.5.9":
        told = " ".join(answers["nothing"]["messages"])
        assert "Disabling radix cache since speculative decoding" in told


def other(**changed: Any) -> dict[str, Any]:
    return {"sglang_server_instances": [{**TINY, **changed}]}


def hybrid(**args: Any) -> dict[str, Any]:
    return other(model=MODEL, env={"PYTHONPATH": "/srv/lab/standins/cuda"}, args={**SPECULATION, **args})


REFUSED = {
    "unknown flag": (with_args(max_bananas=1), "has no option 'max_bananas'"),
    "removed flag": (with_args(nsa_decode_backend="x"), "renamed to 'dsa_decode_backend' in 0.5.13"),
    "abbreviation": (with_args(mem_frac=0.8), "it is short for 'mem_fraction_static'; write the full name"),
    "choice": (with_args(load_format="saftensors"), "did you mean 'safetensors'?"),
    "no_buffer with speculation": (hybrid(mamba_radix_cache_strategy="no_buffer"), NO_OVERLAP[1]),
    "context": (with_args(context_length=9000), "set 'context_length' to 4096 or less"),
    "heads": (hybrid(tp_size=5), "set it to one of 1, 2, 4, 8, 12, 24"),
    "fraction": (with_args(mem_fraction_static=1.5), "set it between 0 and 1"),
    "tokenizer": (other(model="/srv/lab/models/no-tokenizer"), "finish the download, or set 'tokenizer_path'"),
    "architecture": (
        other(model="/srv/lab/models/unknown", args={**TINY["args"], "model_impl": "auto"}),
        "install a newer SGLang, or correct 'model'",
    ),
    "weights": (with_args(load_format="auto"), "holds no weights"),
    "JSON": (with_args(json_model_override_args="{'a': 1}"), "but SGLang wants JSON"),
    "secret": (with_args(api_key="planted"), "move it to 'secrets' of the instance"),
    "owned": (with_args(weight_version="1"), "it carries the launch id"),
    "template": (with_args(chat_template="/srv/none.jinja"), "correct 'chat_template'"),
    "device": (with_args(device=None), "set 'device' to cpu if that is meant"),
    "variable": (
        other(env={**TINY["env"], "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LENGTH": "1"}),
        "_CONTEXT_LENGTH: write SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN, or accept it with a reason",
    ),
    "change": (
        with_args(tp_size=2, attn_dp_size=2, schedule_conservativeness=1.0),
        "would change 'schedule_conservativeness' from 1.0 to 0.3 in _handle_data_parallelism: delete it",
    ),
}


@pytest.fixture(scope="module")
def models() -> None:
    put_model()
    whole = SHARE / "models/tiny-qwen3"
    for name in ("no-tokenizer", "unknown"):
        folder = SHARE / "models" / name
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        config = json.loads((whole / "config.json").read_text())
        if name == "unknown":
            config["architectures"] = ["NobodyKnowsForCausalLM"]
        else:
            for path in folder.glob("token*"):
                path.unlink()
        (folder / "config.json").write_text(json.dumps(config))


def process() -> str:
    return str(container(129).check_output("systemctl show --property=MainPID,InvocationID sglang-tiny.service"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_deployment_is_refused_while_the_old_server_serves(ct129: Host, models: None, case: str) -> None:
    extra, said = REFUSED[case]
    before = process()
    run = deploy("-l", "ct129", extra=extra)
    (error,) = run.errors
    assert said in error, run
    assert "Traceback" not in run.output and "planted" not in run.output
    assert run.count("ct129", "changed") == 0
    assert process() == before


@pytest.fixture
def card(ct129: Host) -> Iterator[None]:
    """A GPU that nvidia-smi tells of in container 129."""
    in_container("cp", "/srv/lab/standins/cuda/nvidia-smi", "/usr/local/bin/")
    yield
    in_container("rm", "/usr/local/bin/nvidia-smi")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"mem_fraction_static": 0.3}, ("GiB are missing on each GPU for the states", "set 'mem_fraction_static' to")),
        ({"max_running_requests": 48}, ("48 requests requested, 6 effective", "set 'max_running_requests' to 6")),
    ],
)
def test_what_does_not_fit_is_refused_while_the_old_server_serves(
    card: None, models: None, args: dict[str, Any], said: tuple[str, ...]
) -> None:
    before = process()
    run = deploy("-l", "ct129", extra=hybrid(**args))
    (error,) = run.errors
    assert all(words in error for words in said) and "Nothing was stopped" in error, run
    assert process() == before


def answers(run: Run) -> dict[str, list[str]]:
    """Return the option -> the cells of the row that the playbook shows."""
    lines = run.output.partition(TABLE)[2].splitlines()
    return {row[2]: row for row in (re.split(r" {2,}", line.strip()) for line in lines) if row[0] == "ct129"}


def test_the_playbook_shows_each_option_and_asks_again_only_after_a_change(ct129: Host) -> None:
    args = {"tp_size": 2, "attn_dp_size": 2, "schedule_conservativeness": 1.0}
    refused = deploy("-l", "ct129", playbook="playbooks/preflight.yml", extra=with_args(**args))
    assert refused.status != 0
    assert answers(refused)["schedule_conservativeness"][3:7] == [
        "1.0",
        "0.3",
        "changed",
        "_handle_data_parallelism; delete it, which leaves it to SGLang, or accept it with a reason in "
        "sglang_server_accept_changes",
    ]
    assert answers(refused)["tp_size"][5] == "kept"
    asked = {**with_args(**args), "sglang_server_accept_changes": {"schedule_conservativeness": "measured"}}
    moved = in_container("sh", "-c", "ls -d /opt/sglang/releases/*/venv/bin/python").strip()
    try:
        # who starts the interpreter now gets nothing
        in_container("sh", "-c", f"mv {moved} {moved}.away; cp /bin/false {moved}")
        accepted = deploy("-l", "ct129", playbook="playbooks/preflight.yml", extra=asked)
        changed = deploy("-l", "ct129", playbook="playbooks/preflight.yml", extra=with_args(max_running_requests=9))
    finally:
        in_container("mv", f"{moved}.away", moved)
    assert accepted.status == 0, accepted
    assert answers(accepted)["schedule_conservativeness"][5:7] == ["accepted", "_handle_data_parallelism; measured"]
    assert changed.status != 0 and "no answer" in changed.output


PLANTED = {
    "api_key": "planted-1 'quoted\"",
    "admin_api_key": "planted-2",
    "ssl_keyfile_password": "planted-3",
    "hicache_storage_backend_extra_config": json.dumps({"password": "planted-4", "more": ["planted-5\u00e9"]}),
    "model_loader_extra_config": json.dumps({"token": "planted-6"}),
    "HF_TOKEN": "planted-7",
}


@pytest.fixture
def processes() -> Iterator[list[str]]:
    """The command lines that container 129 has while the test runs."""
    seen: list[str] = []
    enough = threading.Event()
    connection = enter("quick", 129)

    def look() -> None:
        while not enough.wait(0.3):
            seen.append(connection.exec_command("cat /proc/[0-9]*/cmdline")[1].decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    enough.set()
    thread.join()


def test_a_planted_secret_is_nowhere(ct129: Host, processes: list[str], tmp_path: Path) -> None:
    # SGLang takes a password only with these; it does not read them before the start
    args = {**TINY["args"], "ssl_certfile": "/etc/hostname", "ssl_keyfile": "/etc/hostname"}
    extra = other(name="planted", port=30099, args=args, secrets=PLANTED)
    variables = tmp_path / "planted.json"
    variables.write_text(json.dumps(extra))  # not on the command line of the test itself
    run = deploy("-l", "ct129", "-vvvv", f"--extra-vars=@{variables}", playbook="playbooks/preflight.yml")
    assert run.status == 0, run
    kept = in_container("cat", "/var/lib/sglang/planted/preflight.json")
    assert json.loads(kept)["report"]["resolved"]["api_key"] == "(secret)"
    left = in_container("sh", "-c", "grep -rl planted- /etc/systemd /var/lib/sglang /tmp /var/log 2>/dev/null || true")
    in_container("rm", "-r", "/var/lib/sglang/planted")
    assert left == ""
    assert any("launch_server" in text for text in processes) and any(
        "--weight-version\0preflight" in text for text in processes
    )
    for place in (run.output, kept, *processes):
        assert re.findall(r"planted-\d", place) == []
