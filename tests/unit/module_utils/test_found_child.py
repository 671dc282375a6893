# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real programs that are run with the rights of somebody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import found_child
from ansible_collections.gpuops.sglang.plugins.module_utils.found_child import Unanswered, User, run_as

OWN = User(os.getuid(), os.getgid(), ())
SYSTEM = "/usr/bin/python3"  # that all may run


def run(source: str, timeout: float = 60, **more: Any) -> Any:
    asked = {"a": 'x"y', **more.pop("asked", {})}
    return run_as(more.pop("user", OWN), more.pop("python", sys.executable), source, asked, timeout, **more)


def test_a_program_is_asked() -> None:
    done = run("import json, os, sys\nprint(json.loads(sys.argv[1])['a'], os.getcwd(), __name__)", folder="/usr")
    assert (done.returncode, done.stdout) == (0, 'x"y /usr __main__\n')
    assert run("raise SystemExit(3)").returncode == 3


def test_it_is_ended_before_what_serves() -> None:
    done = run("import os\nprint(open('/proc/self/oom_score_adj').read().strip(), os.nice(0))")
    assert done.stdout == "1000 19\n"


@pytest.mark.skipif(os.getuid() != 0 or not Path(SYSTEM).exists(), reason="only root can be another")
def test_it_has_the_rights_of_its_user_and_no_others() -> None:
    source = "import os\nprint(os.getresuid(), os.getresgid(), os.getgroups(), os.stat(os.environ['HOME']).st_uid)"
    done = run(source, user=User(65534, 65533, (65532,)), python=SYSTEM)
    assert done.stdout == f"{(65534,) * 3} {(65533,) * 3} [65532] 65534\n"


def test_what_does_not_end_is_ended(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    source = (
        f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\nos.close(1)\nos.close(2)\ntime.sleep(600)"
    )
    with pytest.raises(Unanswered, match=r"gave no answer within 3 s"):
        run(source, 3)
    assert not Path("/proc", told.read_text()).exists()


def test_more_output_than_any_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_child, "OUTPUT", 1 << 20)
    with pytest.raises(Unanswered, match="wrote more than 1 MiB"):
        run("while True:\n    print('x' * 10000)")


def test_the_last_of_many_errors_is_kept() -> None:
    done = run("import sys\nfor _ in range(1000):\n    sys.stderr.write('x' * 1000)\nsys.stderr.write('end')")
    assert done.returncode == 0 and done.stderr.endswith("end") and len(done.stderr) <= found_child.ERRORS


def test_its_home_is_removed_with_all_in_it() -> None:
    deep = "for _ in range(50):\n    os.mkdir('x')\n    os.chdir('x')\nopen('f', 'w')\n"
    done = run(f"import os\nprint(os.environ['HOME'])\nos.chdir(os.environ['HOME'])\n{deep}")
    home = Path(done.stdout.strip())
    assert done.returncode == 0 and home.name.startswith("gpuops-found-") and not home.exists()


def test_what_can_not_be_run_is_told(tmp_path: Path) -> None:
    assert run("", python=f"{tmp_path}/gone").returncode == 127
    with pytest.raises(Unanswered, match="can not be run: No such file"):
        run("", folder=f"{tmp_path}/gone")
