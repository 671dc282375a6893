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
from standin import HOME, SERVERS, asked, is_proved
from test_deploy import UNIT
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


@pytest.fixture(scope="module")
def real_again(restored: None) -> Iterator[None]:
    """What follows finds a real server in container 130."""
    yield
    run = deploy("-l", "ct130")
    assert run.status == 0, run


@pytest.fixture
def standin(ct130: Host, real_again: None) -> Iterator[Host]:
    """The container with the stand-in in place of SGLang."""
    ct130.run("rm -f %s/standin-next", HOME)
    if not (SERVERS in ct130.run("cat /etc/systemd/system/%s", UNIT).stdout and is_proved(ct130)):
        run = deploy("-l", "ct130", extra=asked())
        assert run.status == 0, run
    yield ct130
    ct130.run("rm -f %s/standin-next", HOME)
