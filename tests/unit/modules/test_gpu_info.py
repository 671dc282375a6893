# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_smi
from ansible_collections.gpuops.sglang.plugins.modules import gpu_info
from conftest import call_module, run_module

if TYPE_CHECKING:
    from gpu_hosts import Host

pytest_plugins = ["gpu_hosts"]
RETURN: dict[str, Any] = yaml.safe_load(gpu_info.RETURN)


@pytest.mark.parametrize("check", [False, True])
def test_what_is_returned_is_what_is_documented(host: Host, check: bool) -> None:
    result = call_module(gpu_info, {"_ansible_check_mode": check})
    facts = {key: value for key, value in result.items() if key not in ("changed", "warnings", "invocation")}
    assert (result["changed"], result["warnings"], result["faults"]) == (False, [], [])
    assert set(facts) == set(RETURN)
    for key in ("place", "driver", "cuda", "nvidia_smi"):
        assert set(facts[key]) == set(RETURN[key]["contains"]), key
    for key in ("gpus", "devices"):
        assert {name for one in facts[key] for name in one} == set(RETURN[key]["contains"]), key
    samples = {"ecc": facts["gpus"][0]["ecc"], "processes": facts["gpus"][0]["processes"][0]}
    documented = RETURN["gpus"]["contains"]
    assert set(samples["ecc"]) == set(documented["ecc"]["sample"])
    assert set(samples["processes"]) == set(documented["processes"]["sample"][0])
    assert set(facts["driver"]["libraries"][0]) == set(RETURN["driver"]["contains"]["libraries"]["sample"][0])


def test_a_user_who_is_not_there() -> None:
    result, _log = run_module("gpu_info", {"user": "nosuch"})
    assert result["failed"] and result["msg"].startswith("there is no user 'nosuch' on this host: create it, or ")


def test_nothing_of_the_module_needs_a_gpu(bare: Host) -> None:
    assert gpu_smi.ask()[0]["state"] == "missing"
    result = call_module(gpu_info, {})
    assert not result.get("failed") and len(result["faults"]) == 1
