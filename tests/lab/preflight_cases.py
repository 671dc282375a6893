# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hybrid model with speculation, whose state cache each SGLang release treats differently, asked of real releases.

Releases other than the lab's are installed without packages of their own: they are put before the lab's release on the
interpreter's path. That is enough to parse and resolve, on a GPU that molecule/lab/standins/cuda describes.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from connections import LAB, enter

SHARE = LAB / "share"
PROBES = Path(__file__).resolve().parents[2] / "plugins/module_utils"
VERSION = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
MODEL = "/srv/lab/models/hybrid"
SPECULATION: dict[str, Any] = {
    "context_length": 8192,
    "device": "cuda",
    "load_format": "dummy",
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_num_steps": 3,
}
# The option is called mamba_scheduler_strategy before 0.5.14.
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no_buffer": {"strategy": "no_buffer"},
    "no_buffer, no overlap": {"strategy": "no_buffer", "disable_overlap_schedule": True},
    "extra_buffer": {"strategy": "extra_buffer"},
    "no radix cache": {"disable_radix_cache": True},
    "extra_buffer, no radix cache": {"strategy": "extra_buffer", "disable_radix_cache": True},
}
# All cases of a release in one go: the imports take most of the time.
ASK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import preflight_probe, schema_probe
import argparse, sglang.srt.server_args, sglang.srt.models.registry

parser = argparse.ArgumentParser()
sglang.srt.server_args.ServerArgs.add_cli_args(parser)
print(json.dumps(schema_probe.describe(parser)))

for words in json.load(sys.stdin):
    sys.stdout.flush()
    if os.fork() == 0:
        answer = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        print(json.dumps(preflight_probe.report_of(words), default=str), file=answer, flush=True)
        os._exit(0)
    os.wait()
"""


def args_of(case: str, version: str) -> dict[str, Any]:
    """Return what an operator writes for a case."""
    args = {**SPECULATION, **CASES[case]}
    old = [int(part) for part in version.split(".")] < [0, 5, 14]
    name = "mamba_scheduler_strategy" if old else "mamba_radix_cache_strategy"
    return {name if option == "strategy" else option: value for option, value in args.items()}


def in_container(*argv: str, stdin: str = "") -> str:
    """Return what a command prints in container 129."""
    code, stdout, stderr = enter("quick", 129).exec_command(shlex.join(argv), stdin.encode())
    assert code == 0, stderr.decode()
    return stdout.decode()


def interpreter(version: str) -> str:
    """Return the interpreter of a release in container 129, which is made if it is not there."""
    (lab,) = in_container("sh", "-c", "ls -d /opt/sglang/releases/*/venv").split()
    if in_container(f"{lab}/bin/python", "-c", VERSION).strip() == version:
        return f"{lab}/bin/python"
    venv = f"/opt/other-releases/{version}/venv"
    if in_container("sh", "-c", f"test -e {venv}/complete || echo missing"):
        site = f"{venv}/lib/python3.11/site-packages"
        in_container("python3", "-m", "venv", "--clear", "--without-pip", venv)
        in_container("python3", "-m", "zipfile", "-e", f"/srv/lab/sglang/{_wheel(version).name}", site)
        in_container("tee", f"{site}/zz-other.pth", stdin=f"{lab}/lib/python3.11/site-packages\n")
        in_container("touch", f"{venv}/complete")
    return f"{venv}/bin/python"


def reports(version: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the options of a real release, and the case -> what it says of it."""
    put_model()
    (SHARE / "sglang").mkdir(exist_ok=True)
    for name in ("preflight_probe.py", "schema_probe.py"):
        shutil.copy(PROBES / name, SHARE / "sglang")
    asked = [["--model-path", MODEL, *_words(args_of(case, version))] for case in CASES]
    environment = ["HOME=/tmp", "PATH=/usr/bin:/bin", "PYTHONPATH=/srv/lab/standins/cuda"]
    program = ["env", "-i", *environment, interpreter(version), "-c", ASK, "/srv/lab/sglang"]
    schema, *answers = map(json.loads, in_container(*program, stdin=json.dumps(asked)).splitlines())
    return schema, dict(zip(CASES, answers, strict=True))


def _words(args: dict[str, Any]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in args.items())
    return [word for flag, value in pairs for word in ([flag] if value is True else [flag, str(value)])]


def put_model() -> None:
    """Put the configuration of a hybrid model and a tokenizer where the containers see them."""
    folder = SHARE / "models/hybrid"
    folder.mkdir(exist_ok=True)
    for path in (SHARE / "models/tiny-qwen3").glob("tokenizer*"):
        shutil.copy(path, folder)
    (folder / "preprocessor_config.json").write_text("{}")
    shutil.copy(Path(__file__).with_name("hybrid_config.json"), folder / "config.json")


def _wheel(version: str) -> Path:
    folder = SHARE / "sglang"
    found = [path for path in folder.glob("*.whl") if path.name.startswith(f"sglang-{version}-")]
    if not found:
        with tempfile.TemporaryDirectory() as fresh:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            # of the containers, not of this interpreter
            pip += ["--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--dest", fresh]
            subprocess.run([*pip, f"sglang=={version}"], check=True)
            (path,) = Path(fresh).iterdir()
            shutil.copy(path, folder)
        return _wheel(version)
    return found[0]
