# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tutorial as a newcomer follows it, command by command, for container 130 and with a copy of the inventory."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from documented import commands
from playbook_runs import PLAYBOOK, PROJECT, Run, deploy, environment
from servers import serves
from testinfra.host import Host

LAB = PROJECT / "inventories/lab"
ELSEWHERE = ("bin/demo", "bin/lab", ".")  # the lab's own life: tests/lab/test_deploy.py, tests/lifecycle
MISTAKE = "SGLang 0.5.23 has no option 'max_totel_tokens'; did you mean 'max_total_tokens'?"


def kv_tokens(run: Run) -> str:
    """Return what the table of a run has in its column 'KV tokens' for container 130."""
    lines = run.output.splitlines()
    (row,) = (line for line in lines if line.split()[:2] == ["ct130", "tiny"])
    (head,) = (line for line in lines if line.split()[:2] == ["host", "instance"])
    return row[head.index("KV tokens") :].split()[0]


@pytest.mark.slow
def test_the_tutorial(ct130: Host, tmp_path: Path) -> None:
    begin = deploy("-l", "ct130")  # other tests leave other arguments
    assert begin.status == 0, begin
    inventory = tmp_path / "lab"
    shutil.copytree(LAB, inventory)
    runs: list[tuple[str, Run]] = []
    for command in commands():
        program, *words = command.words
        if command.page != "docs/tutorial.md" or program in ELSEWHERE or "rental" in words:
            continue
        words = [{"ct129": "ct130", "kpro5": "ct130"}.get(word, word) for word in words]
        words = [
            str(inventory / Path(word).relative_to("inventories/lab")) if LAB.name in Path(word).parts else word
            for word in words
        ]
        if program == "git":
            shutil.copy(LAB / "group_vars/sglang/instances.yml", inventory / "group_vars/sglang/instances.yml")
            continue
        argv = [program, *words]
        if program.startswith("ansible"):
            argv = [str(PLAYBOOK.with_name(program)), *words, "-i", str(inventory)]
        done = subprocess.run(
            argv, cwd=PROJECT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        runs.append((shlex.join(command.words), Run(done.returncode, done.stdout + done.stderr)))
    said = [run for text, run in runs if text.startswith("ansible")]
    asked, preflight, shown, changed, mistaken, proved, back, again = said
    assert [run.status for run in said] == [0, 0, 0, 0, 2, 0, 0, 0], said
    assert "tiny-qwen3" in asked.output
    assert [line for line in preflight.output.splitlines() if line.split()[2:5] == ["max_total_tokens", "2048", "2048"]]
    assert "+    --max-total-tokens 2048 \\" in shown.output and shown.count("ct130", "changed") == 1
    assert kv_tokens(changed) == "2048" and changed.count("ct130", "changed") == 1
    assert MISTAKE in mistaken.output
    assert kv_tokens(proved) == "2048" and proved.count("ct130", "changed") == 0
    assert kv_tokens(back) == "4096" and back.count("ct130", "changed") == 1
    assert kv_tokens(again) == "4096" and again.count("ct130", "changed") == 0
    assert serves(ct130)
