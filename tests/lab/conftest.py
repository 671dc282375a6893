# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as the tests find it and leave it.

Three processes share the tests (pytest --numprocesses 3), which wait for servers most of the time. One has those that
change the server of container 130 or want both containers as they were deployed, one those of the host without systemd;
the third has the rest, for which container 129 serves throughout.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

import connections  # noqa: F401 - brings Ansible's finder of collections, which must be before the first import of one
import pytest
from debian_root import debian12, debian13, key  # noqa: F401 - fixtures
from gpu_container import gpu_inventory, gpu_node  # noqa: F401 - fixtures
from pct_backend import bare, container
from playbook_runs import deploy
from servers import here
from standin import SERVERS, asked, is_proved
from testinfra.host import Host
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from paths import RUN  # isort: skip

OF_SERVERS = tuple(
    f"tests/lab/test_{name}.py"
    for name in ("adopt", "awx_jobs", "deploy", "health", "launch", "served_model", "ssh_as_it_is", "tutorial")
)
IN_BOTH_CONTAINERS = ("test_connection_pct", "test_core_versions", "test_pct_container_info", "test_pct_exec")


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """The stand-in comes last, so that the real server is started again once."""
    items.sort(key=lambda item: ("standin" in item.fixturenames, "rental" in item.name))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Processes(config, log)


class Processes(LoadScopeScheduling):
    """Which tests come one after the other in one process."""

    def _split_scope(self, nodeid: str) -> str:
        if "[rental" in nodeid or nodeid.startswith("tests/lab/test_install.py"):
            return "rental"
        return "servers" if nodeid.startswith(OF_SERVERS) else "rest"


@pytest.fixture(autouse=True)
def _other_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Container 130 is not stopped while the other process runs a test that enters it."""
    stops = request.node.get_closest_marker("stops_a_container")
    if not stops and request.module.__name__ not in IN_BOTH_CONTAINERS:
        yield
        return
    with (RUN / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if stops else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def deployed() -> None:
    """Both containers serve what the inventory asks for."""
    run = deploy("-l", "kpro5")
    assert run.status == 0, run


@pytest.fixture(scope="session")
def ct129() -> Host:
    """The container whose server serves what the inventory asks for, whatever is refused."""
    run = deploy("-l", "ct129")
    assert run.status == 0, run
    return container(129)


@pytest.fixture(scope="session")
def restored(deployed: None) -> Iterator[None]:
    """What tests changed is as the inventory asks when they are done."""
    yield
    run = deploy("-l", "ct130")
    assert run.status == 0, run


@pytest.fixture
def ct130(restored: None) -> Host:
    """The container whose server the tests may change; the next deploy repairs it."""
    return container(130)


@pytest.fixture(scope="session")
def rental() -> Iterator[Host]:
    """The host without systemd, where nothing runs after the tests."""
    yield bare()
    run = deploy("-l", "rental", extra={"sglang_server_state": "absent"})
    assert run.status == 0, run


@pytest.fixture(params=["ct130"])
def standin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host with the stand-in in place of SGLang: under systemd, or as standin.BOTH_SUPERVISORS asks."""
    host: Host = request.getfixturevalue(request.param)
    monkeypatch.setattr(here, "name", request.param)
    host.run("rm -f %s/standin-next", here.home)
    if not (SERVERS in host.run("cat %s", here.unit).stdout and is_proved(host)):
        run = deploy("-l", here.name, extra=asked())
        assert run.status == 0, run
    yield host
    host.run("rm -f %s/standin-next", here.home)
