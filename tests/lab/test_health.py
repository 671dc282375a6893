# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hourly look at a host tells, with the stand-in server under real supervisors."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from playbook_runs import Run, deploy
from servers import UNIT, here, launch, main_pid
from standin import BOTH_SUPERVISORS, SERVERS, asked, beside, converges, interpreter, launch_in_unit
from testinfra.host import Host

pytestmark = pytest.mark.slow

UNIT_FILE = f"/etc/systemd/system/{UNIT}"
DROP_IN = f"{UNIT_FILE}.d/override.conf"
KEY = "planted-9e41b2'\"key"


def health(**extra: object) -> Run:
    return deploy("-l", here.name, playbook="playbooks/health.yml", extra={**asked(), **extra})


@BOTH_SUPERVISORS
def test_the_page_of_a_host_that_is_as_deployed(standin: Host) -> None:
    before = main_pid(standin)
    run = health(sglang_health_requests=["chat", "structured_output"])
    assert run.status == 0 and run.count(here.name, "changed") == 0, run
    (row,) = (line.split() for line in run.output.splitlines() if line.split()[:2] == [here.name, "tiny"])
    assert row[2] == launch(standin) and float(row[-2]) > 0 and row[-1] == "0"
    assert "[WARNING]" not in run.output
    assert main_pid(standin) == before


BY_HAND = {
    "a unit that was edited": (
        f"sed -i 's/^TimeoutStopSec=.*/TimeoutStopSec=7/' {UNIT_FILE} && systemctl daemon-reload",
        "+TimeoutStopSec=7",
    ),
    "a unit that was not reloaded": (f"touch -d '+1 hour' {UNIT_FILE}", "was changed but not reloaded"),
    "a drop-in": (
        f"mkdir -p {UNIT_FILE}.d && printf '[Service]\\nNice=5\\n' > {DROP_IN} && systemctl daemon-reload",
        f"{DROP_IN} changes what",
    ),
}


@pytest.mark.parametrize("what", BY_HAND)
def test_what_was_changed_by_hand_is_told(standin: Host, what: str) -> None:
    command, words = BY_HAND[what]
    standin.check_output(command)
    try:
        run = health()
        assert run.status != 0 and "serves, but" in run.output and words in run.output, run
    finally:
        standin.check_output("rm -rf %s.d && touch %s && systemctl daemon-reload", UNIT_FILE, UNIT_FILE)
    converges(standin)


def test_a_package_of_the_release_that_was_edited_is_told(standin: Host) -> None:
    found = standin.check_output("ls -d %s/releases/*/venv/lib/python3*/site-packages/sglang/version.py", here.root)
    path = found.split()[0]
    # another file in its place: the installer's cache and the other container have the same one
    standin.check_output("mv %s %s.kept && cp -p %s.kept %s && echo '# edited' >> %s", path, path, path, path, path)
    try:
        run = health()
        assert run.status != 0 and "sglang/version.py was changed" in run.output, run
    finally:
        standin.check_output("mv %s.kept %s", path, path)
    assert health().status == 0


@BOTH_SUPERVISORS
def test_a_server_that_somebody_started_beside_the_unit_is_told(standin: Host) -> None:
    command = f"{interpreter(standin)} -m sglang.launch_server --model-path /srv/lab/models/tiny-qwen3 --port 30088"
    with beside(standin, f"env PYTHONPATH={SERVERS} {command}"):
        run = health()
        assert "nobody supervises it: process" in run.output and "--port 30088" in run.output, run


@BOTH_SUPERVISORS
def test_a_support_bundle_has_the_facts_and_no_secret(standin: Host, tmp_path: Path) -> None:
    secret = asked(secrets={"api_key": KEY, "HF_TOKEN": KEY})
    assert deploy("-l", here.name, extra=secret).status == 0
    extra = {**secret, "support_bundle_folder": str(tmp_path)}
    run = deploy("-l", here.name, playbook="playbooks/support_bundle.yml", extra=extra)
    assert run.status == 0, run
    (archive,) = tmp_path.glob("*.tar.gz")
    assert str(archive) in run.output, run
    with tarfile.open(archive) as files:
        texts = {one.name: read.read().decode() for one in files if (read := files.extractfile(one))}
    assert texts and all("planted-9e41b2" not in text for text in texts.values())
    everything = "".join(texts.values())
    for fact in (launch_in_unit(standin), "fired up and ready", "MainPID=", "MemTotal"):
        assert fact in everything, sorted(texts)
    converges(standin)
