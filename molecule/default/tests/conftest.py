# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from pct_backend import container


@pytest.fixture(params=(129, 130), ids="ct{}".format)
def host(request: pytest.FixtureRequest) -> Any:
    """Each deployed container, seen from the inside."""
    return container(request.param)
