# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as the tests find it and leave it."""

from __future__ import annotations

from collections.abc import Iterator

import connections  # noqa: F401 - brings Ansible's finder of collections, which must be before the first import of one
import pytest
from pct_backend import container
from playbook_runs import deploy
from testinfra.host import Host


@pytest.fixture(scope="session")
def deployed() -> None:
    """Both containers serve what the inventory asks for."""
    run = deploy("-l", "kpro5")
    assert run.status == 0, run


@pytest.fixture(scope="session")
def restored(deployed: None) -> Iterator[None]:
    """What tests changed is as the inventory asks when they are done."""
    yield
    run = deploy("-l", "kpro5")
    assert run.status == 0, run


@pytest.fixture
def ct130(restored: None) -> Host:
    """The container whose server the tests may change; the next deploy repairs it."""
    return container(130)
