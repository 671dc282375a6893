# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.drift import drift
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity

UNIT = """\
# launch: 20260101T000000Z-abcdef
[Service]
Environment="SGLANG_LAUNCH_ID=20260101T000000Z-abcdef"
ExecStart=/opt/r/venv/bin/python -m sglang.launch_server \\
    --tp-size 2 \\
    --port 30000
Restart=on-failure
"""
ARGV = ["/opt/r/venv/bin/python", "-m", "sglang.launch_server", "--tp-size", "2", "--api-key", "never", "--port", "1"]


def identity(shown: dict[str, str]) -> Identity:
    return Identity("active", "running", "success", 1, "i", "/", True, 0, "", shown)


class Deployment:
    """An instance as it was deployed."""

    def __init__(self, folder: Path) -> None:
        self.unit = folder / "sglang-a.service"
        self.unit.write_text(UNIT)
        self.release = folder / "release"
        (self.release / "venv/bin").mkdir(parents=True)
        (self.release / "venv/bin/python").touch()
        (self.release / "schema.json").write_text('{"options": {}}')
        (self.release / "release.json").write_text(json.dumps({"packages": [], "distributions": []}))
        self.shown = {"NeedDaemonReload": "no", "DropInPaths": ""}
        self.argv: list[str] | None = ARGV
        self.running: list[str] | None = list(ARGV)

    def drift(self, **facts: Any) -> list[str]:
        kept = facts.pop("kept", UNIT)
        vars(self).update(facts)
        return drift(kept, self.unit, identity(self.shown), self.argv, self.running, self.release)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_what_nobody_touched_is_no_drift(deployment: Deployment) -> None:
    assert deployment.drift() == []
    assert deployment.drift(shown={}, running=None) == []
    assert deployment.drift(argv=None, running=["other"]) == []
    assert deployment.drift(kept="") == []  # not known


def test_the_lines_of_an_edited_unit_are_told(deployment: Deployment) -> None:
    deployment.unit.write_text(UNIT.replace("--tp-size 2", "--tp-size 4").replace("on-failure", "always"))
    assert deployment.drift() == [
        f"{deployment.unit} was changed by hand (-    --tp-size 2 \\; +    --tp-size 4 \\; -Restart=on-failure; "
        "+Restart=always): deploy again, which undoes it; what is to stay belongs into sglang_server_instances"
    ]


def test_few_of_many_lines_are_told_and_no_secret(deployment: Deployment) -> None:
    deployment.unit.write_text(UNIT + 'Environment="HF_TOKEN=never to be seen"\n' + "Nice=1\n" * 6)
    (told,) = deployment.drift()
    assert 'changed by hand (+Environment="HF_TOKEN=********"; +Nice=1; +Nice=1; +Nice=1; +Nice=1; and 2 more)' in told


def test_a_unit_that_is_gone_is_told(deployment: Deployment) -> None:
    deployment.unit.unlink()
    (told,) = deployment.drift()
    assert told.startswith(f"{deployment.unit} was changed by hand (it is gone): deploy again")


def test_what_systemd_has_not_read_again_is_told(deployment: Deployment) -> None:
    assert deployment.drift(shown={"NeedDaemonReload": "yes", "DropInPaths": ""}) == [
        "sglang-a.service was changed but not reloaded: deploy again, or run 'systemctl daemon-reload'"
    ]


def test_drop_ins_are_told_but_not_those_of_the_system(deployment: Deployment) -> None:
    system = ["/run/systemd/system/service.d/zzz-lxc-service.conf", "/usr/lib/systemd/system/service.d/10-abort.conf"]
    assert deployment.drift(shown={"DropInPaths": " ".join(system)}) == []
    own = [
        "/etc/systemd/system/sglang-a.service.d/override.conf",
        "/etc/systemd/system/service.d/all.conf",
        "/run/systemd/system/sglang-a.service.d/until-boot.conf",
    ]
    (told,) = deployment.drift(shown={"DropInPaths": " ".join((system[0], *own))})
    assert told.startswith(f"{', '.join(own)} changes what sglang-a.service runs: delete it and deploy again; ")


@pytest.mark.parametrize(
    ("running", "words"),
    [
        ([*ARGV[:4], "4", *ARGV[5:]], "runs with '--tp-size 4' where the unit has '--tp-size 2'"),
        ([*ARGV[:3], *ARGV[5:]], "runs with '--api-key' where the unit has '--tp-size'"),
        ([*ARGV[:6], "seen", *ARGV[7:]], "runs with '--api-key ********' where the unit has '--api-key ********'"),
        ([*ARGV[:5], "--api-key=seen"], "runs with '--api-key=********' where the unit has '--api-key'"),
        (["/usr/bin/python3", *ARGV[1:]], "runs with '/usr/bin/python3' where the unit has '/opt/r/venv/bin/python'"),
        (ARGV[:-2], "runs with nothing where the unit has '--port'"),
        ([*ARGV, "--tokenizer-path", "/m"], "runs with '--tokenizer-path' where the unit has nothing"),
    ],
)
def test_another_command_line_is_told_without_secrets(deployment: Deployment, running: list[str], words: str) -> None:
    (told,) = deployment.drift(running=running)
    assert f"the process of sglang-a.service {words}: deploy again" in told
    assert "seen" not in told and "never" not in told


def test_a_changed_release_is_told(deployment: Deployment) -> None:
    site = deployment.release / "venv/lib/python3.11/site-packages"
    for number in range(7):
        (site / f"more_{number}-1.dist-info").mkdir(parents=True)
    (told,) = deployment.drift()
    assert told.startswith(f"the release {deployment.release} was changed by hand (package more-0 1 was added; ")
    assert "; and 2 more): to undo it delete its release.json, deploy again and restart" in told


def test_each_thing_has_its_sentence(deployment: Deployment) -> None:
    deployment.unit.write_text("")
    (deployment.release / "release.json").unlink()
    told = deployment.drift(
        shown={"NeedDaemonReload": "yes", "DropInPaths": "/etc/systemd/system/sglang-a.service.d/a.conf"}, running=[]
    )
    assert len(told) == 5
    assert "is damaged or gone" in told[-1]
