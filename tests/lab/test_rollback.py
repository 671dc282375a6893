# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch that fails after all checks, and the way back, on real SGLang."""

from __future__ import annotations

import pytest
from playbook_runs import deploy, with_args
from standin import record
from test_deploy import launch, serves
from testinfra.host import Host

# SGLang finds out only while it loads: these kernels need a GPU
FAILING = with_args(attention_backend="fa3")


TOLD = ("the server ended while ", "Next: ", "Now: the service is ", "journalctl GPUOPS_LAUNCH=", "Serving now: what ")


@pytest.mark.slow
def test_a_failed_launch_returns_to_what_served(ct130: Host) -> None:
    before = launch(ct130)
    origin = record(ct130).get("again") or before
    failed = deploy("-l", "ct130", extra=FAILING)
    assert failed.status != 0
    (error,) = failed.errors
    assert "instance 'tiny', launch " in error and all(part in failed.output for part in TOLD), failed
    assert serves(ct130)
    assert record(ct130)["again"] == origin and launch(ct130) != before
    # what serves is what the inventory asks for
    again = deploy("-l", "ct130")
    assert again.status == 0 and again.count("ct130", "changed") == 0, again
