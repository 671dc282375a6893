# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import launch
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.modules import sglang_rollback


class Exit(Exception):
    pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Instance a runs a launch that was never proved, b one that was; only a has an earlier good one."""
    facts: dict[str, Any] = {"started": [], "check_mode": False,
                             "params": {"instances": ["a", "b"], "launch": None, "unproved_only": True,
                                        "state_dir": "/s"}}  # fmt: skip

    class Module:
        def __init__(self, **_: Any) -> None:
            self.params, self.check_mode = facts["params"], facts["check_mode"]

        def exit_json(self, **result: Any) -> None:
            facts["result"] = result

        def fail_json(self, msg: str, instances: list[Any]) -> None:
            facts["results"] = instances
            raise Exit(msg)

    @contextlib.contextmanager
    def only_one(*_: Any) -> Iterator[None]:
        yield

    def start_again(state: Path, name: str, earlier: str) -> str:
        facts["started"].append((name, earlier))
        return "NEW"

    monkeypatch.setattr(sglang_rollback, "AnsibleModule", Module)
    monkeypatch.setattr(sglang_rollback, "require_root", lambda: None)
    monkeypatch.setattr(sglang_rollback, "only_one", only_one)
    monkeypatch.setattr(systemd, "read_unit", lambda name: f"# launch: PRESENT-{name}\n")
    monkeypatch.setattr(launch, "is_good", lambda state, name, present: present == "PRESENT-b")
    monkeypatch.setattr(launch, "last_good", lambda state, name, other_than: "GOOD" if name == "a" else None)
    monkeypatch.setattr(launch, "again_problem", lambda state, name, asked: None if asked == "OLD" else "it is gone")
    monkeypatch.setattr(launch, "start_again", start_again)
    return facts


@pytest.mark.parametrize("check_mode", [False, True])
def test_only_what_was_never_proved_returns(host: dict[str, Any], check_mode: bool) -> None:
    host["check_mode"] = check_mode
    sglang_rollback.main()
    assert host["started"] == ([] if check_mode else [("a", "GOOD")])
    assert host["result"] == {
        "changed": True,
        "instances": [
            {"name": "a", "before": "PRESENT-a", "again": "GOOD", "launch": None if check_mode else "NEW"},
            {"name": "b", "before": "PRESENT-b", "again": None, "launch": None},
        ],
    }


def test_without_a_way_back_nothing_is_done(host: dict[str, Any]) -> None:
    host["params"]["instances"] = ["b"]
    sglang_rollback.main()
    assert not host["result"]["changed"] and host["started"] == []
    host["params"]["unproved_only"] = False
    with pytest.raises(Exit, match="instance 'b' has no earlier launch that was proved to serve: deploy it"):
        sglang_rollback.main()


def test_a_launch_may_be_named(host: dict[str, Any]) -> None:
    host["params"] |= {"instances": ["b"], "launch": "OLD", "unproved_only": False}
    sglang_rollback.main()
    assert host["started"] == [("b", "OLD")]
    host["params"]["launch"] = "NONE"
    with pytest.raises(Exit, match="it is gone"):
        sglang_rollback.main()
    host["params"] |= {"instances": ["a", "b"], "launch": "OLD"}
    with pytest.raises(Exit, match="'launch' is of one instance"):
        sglang_rollback.main()


def test_the_others_do_not_wait_for_one_that_can_not_return(host: dict[str, Any]) -> None:
    host["params"] |= {"instances": ["b", "a"], "unproved_only": False}
    with pytest.raises(Exit, match="instance 'b' has no earlier launch"):
        sglang_rollback.main()
    assert host["started"] == [("a", "GOOD")]
    assert [result["launch"] for result in host["results"]] == [None, "NEW"]
