# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that are real processes, whose work waits for a file of the test, and what is said of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins import module_utils
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils import runs
from ansible_collections.gpuops.sglang.plugins.module_utils.health import Wait
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Held, Refused, only_one
from ansible_collections.gpuops.sglang.plugins.module_utils.protocol import Order, Outcome, Tell
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity, LogLine
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord

OUTCOME = Outcome("a", "L2", "L2", {"tokens": 8}, "")
STATE = Path("/nowhere")
INTO_SCOPE = systemd.into_scope

# a module: it holds the lock, begins a run, tells its id and does what argv[4] says
MODULE = """
import os, sys, time
from pathlib import Path
from ansible_collections.gpuops.sglang.plugins.module_utils import host, launch, protocol, runs
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd

folder, go = Path(sys.argv[1]), Path(sys.argv[2])
runs.RUNS, launch.LOCK = folder / "runs", folder / "lock"
systemd.into_scope = lambda *_: None

def carry_out(orders, state, wait, tell):
    tell("a", "stopping", "L1")
    for _ in range(600):
        if go.exists():
            break
        time.sleep(0.05)
    exec(sys.argv[3])
    return [protocol.Outcome(orders[0].instance, "L2", "L2", {"tokens": 8}, "")]

runs.carry_out = carry_out
with host.only_one(launch.LOCK, "starts", 0):
    print(runs.begin([protocol.Order("a")], Path("/nowhere"), None), flush=True)
    exec(sys.argv[4])
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(runs, "WAKE", 0.02)
    monkeypatch.setattr(launches, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(systemd, "into_scope", lambda *_: None)  # no test changes this host
    yield
    for path in (tmp_path / "runs").glob("*.json"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            content = json.loads(path.read_text())
            if content["pid"] != os.getpid() and runs.guard.born(content["pid"]) == content["born"]:
                os.kill(content["pid"], signal.SIGKILL)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that the work of a run waits for."""
    return tmp_path / "go"


def waiting(go: Path, then: Callable[[], None] = lambda: None) -> Callable[[Tell], list[Outcome]]:
    def work(tell: Tell) -> list[Outcome]:
        tell("a", "stopping", "L1")
        until(go.exists)
        then()
        return [OUTCOME]

    return work


def until(what: Callable[[], bool]) -> None:
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def module(folder: Path, then: str = "", late: str = "", path: str | None = None) -> list[str]:
    code = f"import sys; sys.path[:0] = {[path] if path else sys.path!r}\n{MODULE}"
    return [sys.executable, "-S" if path else "-B", "-c", code, str(folder), str(folder / "go"), late, then]


def content_of(run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((runs.RUNS / f"{run}.json").read_text())
    return content


def is_free() -> bool:
    try:
        with only_one(launches.LOCK, "looks", 0):
            return True
    except Refused:
        return False


def test_a_run_has_its_outcomes(go: Path) -> None:
    run = runs._detach(STATE, waiting(go))
    assert (content_of(run)["outcomes"], content_of(run)["supervisor"]) == (None, "systemd")
    go.touch()
    assert runs.follow(run, {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]
    assert runs.follow(run, {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]  # as often as it is asked
    assert (runs.RUNS / f"{run}.json").stat().st_mode & 0o777 == 0o600
    assert runs.RUNS.stat().st_mode & 0o777 == 0o700


def test_what_is_asked_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    orders, wait = [Order("a", (0,))], Wait(stall=7)

    def carry_out(*asked: Any) -> list[Outcome]:
        assert asked[:3] == (orders, STATE, wait)
        return [OUTCOME]

    monkeypatch.setattr(runs, "carry_out", carry_out)
    assert runs.follow(runs.begin(orders, STATE, wait), {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]


def test_what_a_run_starts_in_the_end_ignores_a_hangup(tmp_path: Path, go: Path) -> None:
    def then() -> None:
        (tmp_path / "status").write_text(Path("/proc/self/status").read_text())

    run = runs._detach(STATE, waiting(go, then))
    go.touch()
    runs.follow(run, {}, 60, 60)
    (ignored,) = re.findall(r"^SigIgn:\t(\w+)$", (tmp_path / "status").read_text(), re.MULTILINE)
    assert int(ignored, 16) & 1


def test_what_is_at_no_launch_is_told_in_its_own_words() -> None:
    assert runs._line(STATE, "a", {"phase": "ending process 7", "launch": None}) == ("ending process 7",) * 2
    assert runs._line(STATE, "a", {"phase": "stopping", "launch": "L1"}) == ("stopping", "stopping launch L1")


def test_a_run_leaves_the_control_group_of_its_module_before_it_begins(
    tmp_path: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "into_scope", lambda *how: (tmp_path / "scope").write_text(f"{how}"))
    run = runs._detach(STATE, waiting(go))
    pid = content_of(run)["pid"]
    assert (tmp_path / "scope").read_text() == str((f"gpuops-{run}", pid)) and pid != os.getpid()
    go.touch()
    runs.follow(run, {}, 60, 60)


def test_a_run_begins_on_a_host_that_knows_no_scopes(tmp_path: Path, go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "into_scope", INTO_SCOPE)
    monkeypatch.setenv("PATH", str(tmp_path))
    go.touch()
    assert runs.follow(runs._detach(STATE, waiting(go)), {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]


def test_the_module_is_let_go_while_its_run_works(tmp_path: Path, go: Path) -> None:
    """Else Ansible would wait for the end of its output, as for any module."""
    done = subprocess.run(module(tmp_path), capture_output=True, text=True, stdin=subprocess.PIPE, timeout=60)
    run = done.stdout.strip()
    content = content_of(run)
    assert (done.returncode, done.stderr, content["outcomes"]) == (0, "", None)
    assert {os.readlink(f"/proc/{content['pid']}/fd/{number}") for number in range(3)} == {"/dev/null"}
    go.touch()
    assert runs.follow(run, {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]


def test_a_run_goes_on_when_all_is_killed_that_it_came_from(tmp_path: Path, go: Path) -> None:
    with subprocess.Popen(
        module(tmp_path, then="time.sleep(60)"), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        run = parent.stdout.readline().strip() if parent.stdout else ""
        os.killpg(parent.pid, signal.SIGKILL)
        assert parent.wait(60) == -signal.SIGKILL
    content = content_of(run)
    assert os.getsid(content["pid"]) == os.getpgid(content["pid"]) != parent.pid
    assert not is_free()
    go.touch()
    assert runs.follow(run, {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]


def test_a_run_does_not_need_the_files_of_its_module(tmp_path: Path, go: Path) -> None:
    """Ansible packs a module and all that it uses into one file, which is deleted when the module has ended."""
    packed = tmp_path / "module.zip"
    place = Path("ansible_collections/gpuops/sglang/plugins/module_utils")
    with zipfile.ZipFile(packed, "w") as archive:
        for folder in (*list(place.parents)[:-1], place, place / "supervisor"):
            archive.writestr(str(folder / "__init__.py"), "")
        for file in Path(next(iter(module_utils.__path__))).rglob("*.py"):
            archive.write(file, place / file.relative_to(next(iter(module_utils.__path__))))
    late = "systemd.log_of = lambda *_: []; launch.watcher(); from_here = runs.Path(sys.path[0]).exists()\n"
    late += "health = sys.modules[launch.__name__.replace('.launch', '.health')]\n"
    late += "health._diagnosis('L', 'i', {}); health._measured('L', type('Known', (), {'invocation': 'i'}))\n"
    late += "health.entries_of('L', 'i'); assert not from_here"
    module_line = module(tmp_path, then=f"os.remove({str(packed)!r})", late=late, path=str(packed))
    done = subprocess.run(module_line, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    go.touch()
    assert runs.follow(done.stdout.strip(), {}, 60, 60)["outcomes"] == [asdict(OUTCOME)]


def test_the_lock_is_the_runs_until_it_ends(go: Path) -> None:
    with only_one(launches.LOCK, "starts", 0):
        run = runs._detach(STATE, waiting(go))
    with (
        pytest.raises(Held, match=rf"^process {content_of(run)['pid']} still looks") as held,
        only_one(launches.LOCK, "looks", 60),
    ):
        pass
    assert held.value.note == run
    go.touch()
    until(is_free)
    assert content_of(run)["outcomes"] == [asdict(OUTCOME)]


def test_work_that_fails_is_told(go: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such thing")

    run = runs._detach(STATE, waiting(go, fail))
    go.touch()
    for _ in range(2):
        with pytest.raises(Refused, match=r"process on the host failed: (.|\n)*RuntimeError: no such thing"):
            runs.follow(run, {}, 60, 60)


def test_a_run_that_is_killed_is_told(go: Path) -> None:
    with only_one(launches.LOCK, "starts", 0):
        run = runs._detach(STATE, waiting(go))
    pid = content_of(run)["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Refused, match=f"process {pid} on the host was ended before it had a result: deploy again"):
        runs.follow(run, {}, 60, 60)
    until(is_free)


def test_a_later_process_with_the_number_of_a_run_is_not_the_run() -> None:
    write("r", at={}, born="1")
    with pytest.raises(Refused, match="was ended before it had a result"):
        runs.follow("r", {}, 60, 60)


def test_a_run_that_can_not_begin_is_told_before_anything_is_done(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        raise Refused(f"can not write {path}: No space left on device")

    monkeypatch.setattr(runs, "write_whole", full)
    with pytest.raises(Refused, match=r"^nothing was done: .* can not write .*\.json: No space left on device$"):
        runs._detach(STATE, lambda tell: go.touch() or [])  # type: ignore[func-returns-value]
    assert not go.exists()
    until(is_free)


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_run_that_nothing_is_known_of(text: str | None) -> None:
    if text is not None:
        runs.RUNS.mkdir()
        (runs.RUNS / "f00.json").write_text(text)
    with pytest.raises(Refused, match=r"knows nothing of the run f00, .*: deploy again"):
        runs.follow("f00", {}, 60, 60)


def test_old_runs_are_forgotten(go: Path) -> None:
    runs.RUNS.mkdir()
    for number in range(runs.KEPT + 5):
        (runs.RUNS / f"{number}.json").touch()
        os.utime(runs.RUNS / f"{number}.json", (number, number))
    go.touch()
    run = runs._detach(STATE, waiting(go))
    kept = {path.stem for path in runs.RUNS.glob("*.json")}
    assert kept == {run, *(str(number) for number in range(5, runs.KEPT + 5))}
    runs.follow(run, {}, 60, 60)


def write(run: str, at: dict[str, tuple[str, str | None]], born: str | None = None, **more: Any) -> None:
    """Write down a run that this process would be."""
    runs.RUNS.mkdir(exist_ok=True)
    told = {name: {"phase": phase, "launch": launch, "since": 100.0} for name, (phase, launch) in at.items()}
    content = {"pid": os.getpid(), "born": born or runs.guard.born(os.getpid()), "state": str(runs.RUNS), "at": told}
    content.update(supervisor="systemd", outcomes=None, crash="")
    (runs.RUNS / f"{run}.json").write_text(json.dumps({**content, **more}))


class Clock:
    """The time, which goes on when somebody sleeps; `then` are times at which something happens."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.then: dict[float, Callable[[], None]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert self.now < 1100, "waited in vain"
        self.now += seconds
        for moment in [moment for moment in self.then if self.now >= moment]:
            self.then.pop(moment)()

    @property
    def passed(self) -> float:
        return self.now - 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(runs, "time", made)
    return made


def test_news_are_told_at_once_but_not_too_often(clock: Clock) -> None:
    write("r", {"a": ("stopping", "L1")})
    told = runs.follow("r", {}, 5, 30)
    assert told == {"outcomes": None, "shown": {"a": "stopping launch L1"}, "steps": {"a": "stopping"}}
    assert 5 <= clock.passed < 5 + runs.LOOK


def test_who_follows_a_run_looks_at_its_supervisor(clock: Clock) -> None:
    place = runs.RUNS / "elsewhere"
    write("r", {"a": ("loading", "L1")}, supervisor="supervisord", state=str(place))
    runs.follow("r", {}, 5, 30)
    used = here.supervisor()
    assert isinstance(used, Supervisord) and used.state == place


def test_without_news_something_is_told_now_and_then(clock: Clock) -> None:
    write("r", {"a": ("stopping", "L1")})
    assert runs.follow("r", {"a": "stopping"}, 5, 30)["shown"] == {"a": "stopping launch L1"}
    assert 30 <= clock.passed <= 30 + 2 * runs.LOOK


def test_news_that_come_meanwhile_are_told_then(clock: Clock) -> None:
    write("r", {"a": ("stopping", "L1")})
    clock.then[1015] = lambda: write("r", {"a": ("returning", "L1")})
    assert runs.follow("r", {"a": "stopping"}, 5, 30)["steps"] == {"a": "returning"}
    assert 15 <= clock.passed <= 15 + 2 * runs.LOOK


def test_a_failure_is_told_at_once_and_once(clock: Clock) -> None:
    write("r", {"a": ("stopping", "L1")})

    def fail() -> None:
        content = json.loads((runs.RUNS / "r.json").read_text())
        content["at"]["a"]["problem"] = "no memory"
        (runs.RUNS / "r.json").write_text(json.dumps(content))

    clock.then[1001] = fail
    told = runs.follow("r", {"a": "stopping"}, 5, 30)
    assert told["shown"] == {"a": "no memory"} and clock.passed < 2
    assert runs.follow("r", told["steps"], 5, 30)["shown"] == {"a": "stopping launch L1"}
    assert clock.passed > 30


def test_outcomes_are_told_at_once(clock: Clock) -> None:
    write("r", {"a": ("stopping", "L1")})
    clock.then[1001] = lambda: write("r", {}, outcomes=[{"instance": "a"}])
    assert runs.follow("r", {}, 5, 30) == {"outcomes": [{"instance": "a"}], "shown": {}, "steps": {}}
    assert clock.passed < 1 + 2 * runs.WAKE


def test_what_a_launch_loads_is_told_with_what_it_took_before(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def log_of(launch: str, count: int, invocation: str) -> list[LogLine]:
        assert (launch, invocation) == ("L2", "i")
        lines = {905.0: "server_args=", 910.0: "Load weight begin", 990.0: "Loading shards: 25%|##  | 1/4 [00:01"}
        return [LogLine(at, text, "i") for at, text in lines.items()]

    shown = {"ExecMainStartTimestampMonotonic": "900000000"}
    identity = Identity("active", "running", "success", 1, "i", "/c", True, 0, "", shown)
    monkeypatch.setattr(systemd, "identity", lambda instance: identity)
    monkeypatch.setattr(systemd, "log_of", log_of)
    earlier = [{"stages": {"loading weights": 200.0}}, {"stages": {}}, {"tokens": 8}]
    monkeypatch.setattr(launches, "earlier_verdicts", lambda state, instance: earlier)
    write("r", {"a": ("loading", "L2"), "b": ("starting", "L3")})
    told = runs.follow("r", {}, 0, 30)
    assert told["steps"] == {"a": "loading weights shard 1 of 4", "b": "starting"}
    assert told["shown"]["b"] == "starting launch L3"
    assert told["shown"]["a"] == (
        "loading weights, shard 1 of 4, for 1 min 30 s (usually 3 min 20 s); 1 min 40 s since the start"
        " (usually 3 min 20 s)"
    )


def test_a_run_that_nobody_can_look_at_closely_is_still_followed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the journal or systemd does not tell at this moment is no end of a run."""

    def no(*_: object) -> None:
        raise Refused("systemctl show failed: Connection timed out")

    monkeypatch.setattr(systemd, "identity", no)
    write("r", {"a": ("loading", "L2")})
    told = runs.follow("r", {}, 0, 30)
    assert told["outcomes"] is None
    assert told["shown"]["a"].startswith("loading launch L2")
