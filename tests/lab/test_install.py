# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left of an installation that did not come to its end."""

from __future__ import annotations

import uuid

import pytest
from playbook_runs import deploy, interrupted, lab_profile


@pytest.mark.slow
def test_an_interrupted_installation_on_a_bare_host_is_repaired() -> None:
    # an override for a package that nothing asks for makes a release of its own
    overrides = [*lab_profile()["sglang_install_overrides"], f"unasked-{uuid.uuid4().hex[:8]} ; python_version < '3'"]
    asked = {"sglang_install_overrides": overrides, "sglang_server_instances": []}
    run = interrupted("Install SGLang", 8, "-l", "rental", extra=asked)
    assert run.status != 0, run
    again = deploy("-l", "rental", extra=asked)
    assert again.status == 0 and again.count("rental", "changed") > 0, again
    more = deploy("-l", "rental", extra=asked)
    assert more.status == 0 and more.count("rental", "changed") == 0, more
