# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real small servers that were started by hand, found and read; they are not disturbed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import found, found_probe, gpu, health, processes
from ansible_collections.gpuops.sglang.plugins.module_utils import found_options as found_options_module
from ansible_collections.gpuops.sglang.plugins.module_utils.found import Search, found_servers
from ansible_collections.gpuops.sglang.plugins.module_utils.found_installation import Installation
from ansible_collections.gpuops.sglang.plugins.module_utils.found_options import FoundOptions, found_options
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Options
from conftest import schema_of
from found_servers import detached, free_port, make_venv, started, tell
from found_servers import found as made_up

SECRETS = {
    "api": "geheim-api-4711",
    "admin": "geheim-admin-4711",
    "hf": "hf_geheim4711geheim4711geheim",
    "file": "geheim-4711-x",
}
EXTRA = '{"token": "geheim-json-4711", "threads": 4}'


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("host") / "venv", "0.5.13")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "processes", lambda: [])


def find(pid: int, **more: Any) -> dict[str, Any]:
    """Find all servers, look at one."""
    before = Path(f"/proc/{pid}/stat").read_text().split()[2:22]
    (server,) = found_servers(Search(**{"releases": Path("/nonexistent"), "pids": (pid,), **more}))
    after = Path(f"/proc/{pid}/stat").read_text().split()[2:22]
    assert (before[0] in "RS") and before[1:5] == after[1:5] and before[19:] == after[19:]
    assert "4711" not in json.dumps(server).replace(str(pid), "")
    return server


def test_a_server_as_in_the_accounts(python: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "sglang.log"
    (tmp_path / "models/Qwen3.6-27B").mkdir(parents=True)
    tell(python, {
        "version": "0.5.13", "context_length": 32768, "mamba_scheduler_strategy": "extra_buffer",
        "mem_fraction_static": 0.8, "api_key": SECRETS["api"], "launch_command": f"--api-key {SECRETS['api']}",
        "internal_states": [{"context_length": 32768, "memory_usage": {"token_capacity": 14811}}],
    })  # fmt: skip
    words = [
        str(python), "-m", "sglang.launch_server", "--model-path", "models/Qwen3.6-27B", "--port", str(port),
        "--api-key", SECRETS["api"], "--admin-api-key", SECRETS["admin"], "--mamba-scheduler-strategy", "extra_buffer",
        "--context-length", "32768", "--mem-fraction-static=0.85", "--model-loader-extra-config", EXTRA,
    ]  # fmt: skip
    environment = {
        "HF_TOKEN": SECRETS["hf"],
        "SGLANG_ENABLE_SPEC_V2": "1",
        "NCCL_X": f"a{SECRETS['api']}",
        "SSH_CONNECTION": "x",
    }
    with started(["setsid", "--fork", "nohup", *words], tmp_path, log, **environment) as pid:
        server = find(pid)
    name = "vault_qwen3_6_27b"
    assert server["instance"] == {
        "name": "qwen3-6-27b",
        "model": str(tmp_path / "models/Qwen3.6-27B"),
        "port": port,
        "args": {
            "mamba_scheduler_strategy": "extra_buffer",
            "context_length": 32768,
            "mem_fraction_static": 0.85,
            "served_model_name": "models/Qwen3.6-27B",
        },
        "env": {"SGLANG_ENABLE_SPEC_V2": "1"},
        "secrets": {
            secret: f"{{{{ {name}_{secret.lower()} }}}}"
            for secret in ("HF_TOKEN", "NCCL_X", "admin_api_key", "api_key", "model_loader_extra_config")
        },
    }
    assert (server["pid"], server["started_by"], server["logs"]) == (pid, "nohup over ssh", [str(log)])
    assert (server["sglang_version"], server["install_version"], server["not_carried"]) == ("0.5.13", "0.5.13", [])
    assert (server["python"], server["working_directory"]) == (str(python), str(tmp_path))
    assert server["listens"] == [{"address": "127.0.0.1", "port": port}]
    assert server["live"]["kv_tokens"] == 14811
    assert {row["option"]: row["resolved"] for row in server["live"]["options"]} == {
        "context_length": 32768,
        "mamba_scheduler_strategy": "extra_buffer",
        "mem_fraction_static": 0.8,
    }
    assert server["live"]["differences"] == ["mem_fraction_static: requested 0.85, the server reports 0.8"]
    assert server["secrets"][0] == {"variable": f"{name}_hf_token", "place": f"the variable HF_TOKEN of process {pid}"}
    assert any("its log is" in sentence for sentence in server["changes"])
    # its parser was imported, and left nothing behind
    assert not list(python.parents[1].glob("lib/python3*/site-packages/sglang/srt/__pycache__"))
    assert server["command"][:3] == words[:3] and server["command"][7:9] == ["--api-key", "***"]


def test_a_config_file_and_the_command_of_the_package(python: Path, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "c.yaml").write_text(f"context-length: 4096\napi-key: {SECRETS['file']}\ntp-size: 2\nport: {port}\n")
    words = [
        str(python.parent / "sglang"),
        "serve",
        "Qwen/Q",
        "--config",
        "c.yaml",
        "--tp-size",
        "4",
        "--port",
        str(port),
    ]
    # the tests themselves may be run by nohup
    shell = ["env", "--default-signal=HUP", "setsid", "--fork"]
    with started([*shell, *words], tmp_path, tmp_path / "log") as pid:
        server = find(pid, ask_servers=False)
    assert server["instance"]["model"] == "Qwen/Q"
    assert {n: v for n, v in server["instance"]["args"].items() if n == "context_length"} == {"context_length": 4096}
    assert 4 in server["instance"]["args"].values() and server["live"] is None
    assert server["secrets"] == [{"variable": "vault_q_api_key", "place": f"api-key in {tmp_path}/c.yaml"}]
    assert server["started_by"] == "a shell or program that has ended"


def test_a_server_whose_packages_were_replaced(python: Path, tmp_path: Path) -> None:
    tell(python, {"version": "0.5.11", "model_path": "./m", "page_size": "?", "tp_size": 1})
    (tmp_path / "m").mkdir()
    words = detached(python, "./m")
    with started(words, tmp_path, tmp_path / "log") as pid:
        server = find(pid)
        assert server["live"] is None and "it answers as no SGLang does" in server["notes"][-1]
        tell(python, {"version": "0.5.11", "model_path": "./m"})
        server = find(pid)
    assert server["not_carried"] == ["it runs SGLang 0.5.11, but 0.5.13 is installed there"]
    assert server["install_version"] is None
    # what it was told, though the variables have it as it is seen from anywhere
    assert server["live"]["differences"] == [] and server["live"]["options"][0]["requested"] == "./m"
    assert server["instance"]["model"] == str(tmp_path / "m")


@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux")
def test_a_server_in_tmux(python: Path, tmp_path: Path) -> None:
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    words = [
        *tmux,
        "new-session",
        "-d",
        "-c",
        str(tmp_path),
        str(python),
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
    ]
    try:
        with started([*words, "--port", str(free_port())], tmp_path, tmp_path / "log", TERM="xterm") as pid:
            assert [one.pid for one in processes.servers() if "launch_server" in one.command].count(pid) == 1
            server = find(pid, ask_servers=False)
        assert server["started_by"] == "tmux"
        assert server["logs"][0].startswith("/dev/pts/")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def test_gpus_and_a_server_that_does_not_answer(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [str(python), "-m", "sglang.launch_server", "--model-path", "m"]
    with started(["setsid", "--fork", *words, "--port", str(free_port())], tmp_path, tmp_path / "log") as pid:
        uses = [GpuProcess(pid, 20_000.0, 3, None), GpuProcess(pid, 10.0, 2, None), GpuProcess(1, 5.0, 0, None)]
        monkeypatch.setattr(gpu, "processes", lambda: uses)
        os.kill(pid, signal.SIGSTOP)
        try:
            monkeypatch.setattr("ansible_collections.gpuops.sglang.plugins.module_utils.found_live.WAIT", 0.2)
            (server,) = found_servers(Search(Path("/nonexistent"), pids=(pid,)))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert server["instance"]["gpus"] == [2, 3]
    assert server["gpu_memory"] == [{"gpu": 3, "memory": 20_000.0}, {"gpu": 2, "memory": 10.0}]
    assert server["live"] is None and any("did not tell what it runs with" in note for note in server["notes"])


@pytest.mark.parametrize(
    ("visible", "holds", "gpus", "note"),
    [
        (None, [], None, False),
        (None, [1, 0], [0, 1], False),
        ("3,1", [1, 3], [3, 1], False),
        ("3,1", [], [3, 1], False),
        ("0", [2], [2], True),
        ("", [], None, False),
        ("GPU-bb,GPU-aa", [], [1, 0], False),
        ("GPU-b", [], [1], False),
        ("MIG-1", [], None, False),
    ],
)
def test_which_gpus(
    visible: str | None, holds: list[int], gpus: list[int] | None, note: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "indices", lambda: {"GPU-aa": 0, "GPU-bb": 1})
    one = made_up([], environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    notes: list[str] = []
    assert found._gpus(one, [GpuProcess(1, 1.0, index, None) for index in holds], {}, notes) == gpus
    assert bool(notes) is note
    assert found._gpus(made_up([]), [GpuProcess(1, 1.0, 2, None)], {"base_gpu_id": 2}, notes) is None


def test_a_parser_that_can_not_be_asked_gives_way_to_a_release(python: Path, tmp_path: Path) -> None:
    words = [str(python), "-m", "sglang.launch_server", "--model-path", "m", "--api-key", SECRETS["api"], "--tp", "2"]
    schema = tmp_path / "releases/0.5.13-0123abcd/schema.json"
    with started(
        ["setsid", "--fork", *words, "--port", str(free_port())], tmp_path, tmp_path / "log", NCCL_X=SECRETS["api"]
    ) as pid:
        server = find(pid, timeout=0.01)
        assert server["instance"] is None
        assert "gave no answer within 0.01 s" in server["notes"][0]
        assert server["command"][5:9] == ["--api-key", "***", "--tp", "2"]
        schema.parent.mkdir(parents=True)
        schema.write_text(json.dumps({"sglang_version": "0.5.13", "options": schema_of("0.5.13")}))
        server = find(pid, timeout=0.01, releases=tmp_path / "releases")
    assert 2 in server["instance"]["args"].values()
    assert f"the options are those of {schema.parent}" in server["notes"][0]


def test_a_package_that_can_not_be_imported_is_told(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv", "0.5.13+mine")
    (parser,) = tmp_path.glob("venv/lib/python3*/site-packages/sglang/srt/server_args.py")
    parser.write_text("import torch_that_is_not_there\n")
    words = [str(python), "-m", "sglang.launch_server", "--model-path", "m", "--port", str(free_port())]
    with started(["setsid", "--fork", *words], tmp_path, tmp_path / "log") as pid:
        server = find(pid)
    assert "No module named 'torch_that_is_not_there'" in server["notes"][0]
    assert server["install_version"] is None and len(server["not_carried"]) == 2


def test_what_is_no_server_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "my_sglang_proxy.py").write_text("import sys, time\nprint('up', flush=True)\ntime.sleep(600)\n")
    words = [sys.executable, "my_sglang_proxy.py", "-m", "sglang.launch_server", "sglang", "serve"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout and proxy.stdout.readline() == "up\n"
            assert proxy.pid not in [one.pid for one in processes.servers()]
            assert str(proxy.pid) not in " ".join(health.beside())
            assert proxy.poll() is None
        finally:
            proxy.kill()


def test_a_stuck_driver_and_a_server_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> list[GpuProcess]:
        raise Refused("nvidia-smi does not answer")

    with subprocess.Popen(["sleep", "60"]) as gone:
        known = processes.process(gone.pid)
        gone.kill()
    monkeypatch.setattr(gpu, "processes", stuck)
    monkeypatch.setattr(gpu, "cards", stuck)
    monkeypatch.setattr(processes, "servers", lambda proc: [known])
    assert (found_servers(Search(Path("/nonexistent"))), found.cards()) == ([], [])


def two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host have two servers, of which one is this process."""
    own = processes.process(os.getpid())
    assert own
    odd = dataclasses.replace(own, pid=4_999_999, command="python -m sglang.launch_server", owner="alice")
    monkeypatch.setattr(processes, "servers", lambda proc: [odd, own])
    monkeypatch.setattr(found, "found_process", lambda pid, proc: made_up([], pid=pid))
    monkeypatch.setattr(found, "installation", lambda one, proc: Installation("", "", "", ()))
    monkeypatch.setattr(found, "found_options", lambda *asked: (None, "not asked"))


def test_one_odd_server_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(one: FoundProcess, proc: Path) -> Installation:
        if one.pid == os.getpid():
            return Installation("0.5.13", "", "", ())
        raise UnicodeError("geheim-4711")

    two_servers(monkeypatch)
    monkeypatch.setattr(found, "installation", odd)
    first, second = found_servers(Search(Path("/nonexistent")))
    assert (first["owner"], first["command"]) == ("alice", ["python", "-m", "sglang.launch_server"])
    assert first["notes"] == ["it could not be looked into: UnicodeError"]
    assert second["sglang_version"] == "0.5.13" and set(first) == set(second)


def test_a_server_that_root_may_not_look_into_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, proc: Path) -> FoundProcess:
        raise PermissionError(13, "Permission denied")

    two_servers(monkeypatch)
    monkeypatch.setattr(found, "found_process", refuse)
    first, second = found_servers(Search(Path("/nonexistent")))
    assert first["notes"] == ["it could not be looked into: PermissionError"]
    assert (second["pid"], second["started"] is not None) == (os.getpid(), True)


def test_all_servers_together_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    two_servers(monkeypatch)
    monkeypatch.setattr(found, "TOTAL", 0)
    told = found_servers(Search(Path("/nonexistent")))
    assert ["the 0 s for all servers are over" in server["notes"][0] for server in told] == [True, True]


@pytest.mark.parametrize("words", [["--model-type", "diffusion"], ["--model-type=diffusion"]])
def test_a_server_of_a_diffusion_model_is_no_instance(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    two_servers(monkeypatch)
    options = FoundOptions(Options(schema_of("0.5.23"), "0.5.23"), None)
    monkeypatch.setattr(found, "found_options", lambda *asked: (options, ""))
    for line, known in ((["M", *words], False), (["M", *words, "--model-type", "llm"], True)):
        monkeypatch.setattr(found, "found_process", lambda pid, proc, line=line: made_up(line, serve=True, pid=pid))
        server = found_servers(Search(Path("/nonexistent"), ask_servers=False))[0]
        assert (server["instance"] is not None) is known
        assert any("diffusion" in note for note in server["notes"]) is not known


def test_what_a_parser_finds_in_its_way_is_not_run(tmp_path: Path) -> None:
    one = made_up(["--model-path", "m"], python=Path(sys.executable), folder=tmp_path)
    told = found_options(one, Installation("0.5.13", "", "", (), "others can change it"), tmp_path, 60)
    assert told == (None, "its SGLang was not run: others can change it")
    told = found_options(dataclasses.replace(one, own_files=True), Installation("", "", "", ()), tmp_path, 60)
    assert told[0] is None and "mounts of its own" in told[1]


def test_libraries_that_others_can_change_are_not_loaded(tmp_path: Path) -> None:
    for name, mode in (("own", 0o755), ("open", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    paths = f"{tmp_path}/open:{tmp_path}/own::lib:{tmp_path}/gone"
    one = made_up([], environment={"LD_LIBRARY_PATH": paths})
    assert found_options_module._libraries(one) == {"LD_LIBRARY_PATH": f"{tmp_path}/own"}
    assert found_options_module._libraries(made_up([])) == {}


def test_a_config_file_that_is_none_is_not_opened(tmp_path: Path) -> None:
    assert found_probe.config("/dev/null") == {"errno": errno.EINVAL}
    assert found_probe.config(str(tmp_path / "gone")) == {"errno": errno.ENOENT}


def test_a_path_that_is_no_text_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    two_servers(monkeypatch)
    monkeypatch.setattr(found, "found_process", lambda pid, proc: made_up([], pid=pid, folder=Path("/x\udcff")))
    (server, _other) = found_servers(Search(Path("/nonexistent")))
    assert server["working_directory"] == "/x?"
