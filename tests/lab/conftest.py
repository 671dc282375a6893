# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as the tests find it and leave it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pct_backend import container
from playbook_runs import deploy
from testinfra.host import Host


@pytest.fixture(scope="session")
def deployed() -> Iterator[None]:
    """Both containers serve what the inventory asks for, before the tests and after them."""
    before = deploy("-l", "kpro5")
    assert before.status == 0, before
    yield
    after = deploy("-l", "kpro5")
    assert after.status == 0, after


@pytest.fixture
def ct130(deployed: None) -> Host:
    """The container whose server the tests may change; the next deploy repairs it."""
    return container(130)
