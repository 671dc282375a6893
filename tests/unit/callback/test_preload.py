# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A plugin's options include fragments; who inherits them adds none.
PROGRAM = """
import sys
from ansible.playbook.play_context import PlayContext
from ansible.plugins import loader

loader.init_plugin_loader([sys.argv[1]])
if sys.argv[2] == "preloaded":
    loader.callback_loader.get("gpuops.sglang.preload").v2_playbook_on_start(None)
loader.connection_loader.get("ansible.builtin.local", PlayContext())
loader.add_fragments = None
connection = loader.connection_loader.get("gpuops.sglang.pct", PlayContext())
connection.set_options(var_options={"ansible_pct_vmid": 129, "ansible_host": "node"})
print(connection.get_option("vmid"))
"""


@pytest.mark.parametrize(("how", "code"), [("preloaded", 0), ("not", 1)])
def test_a_task_finds_the_connection_plugin_loaded(how: str, code: int) -> None:
    checkout = Path(__file__).parents[3] / ".dev"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkout), how], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "129\n" if code == 0 else ""), done.stderr
    assert code == 0 or "'NoneType' object is not callable" in done.stderr
