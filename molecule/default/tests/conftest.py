# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from pct_backend import bare, container
from servers import here
from testinfra.host import Host


@pytest.fixture(params=("ct129", "ct130", "rental"))
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Each deployed host, seen from the inside."""
    monkeypatch.setattr(here, "name", request.param)
    return container(int(request.param[2:])) if here.systemd else bare()
