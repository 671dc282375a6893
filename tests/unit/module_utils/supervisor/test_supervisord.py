# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real supervisord with guards of a small server, which does what a file of the test says."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import guard, processes, protocol, service
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.found import Search, found_servers
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import here, supervisord
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import Identity, launch_of
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.supervisord import Supervisord
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import Steps, make_venv

CACHE = Path(__file__).parents[4] / ".cache"
WAIT = 20  # s
PYTHON = shutil.which("python3", path="/usr/bin") or sys.executable  # one that each user may run
USER = "nobody"
AWKWARD = ["", " ", '"', "\\", "$HOME %n %(x)s", "a\nb", "#", ";", "ä\u2028", "'"]
# each start takes the first word of `next`, if any
SERVER = """\
import os, signal, subprocess, sys, time

def tell(what):
    with open("events", "a") as file:
        file.write(f"{what}\\n")

try:
    with open("next") as file:
        word, *rest = file.read().split()
    with open("next", "w") as file:
        file.write(" ".join(rest))
except (OSError, ValueError):
    word = ""
tell(f"start {os.getpid()}")
print("hello", flush=True)
kind, _, value = word.partition(":")
if kind == "exit":
    sys.exit(int(value))
if kind == "kill":
    os.kill(os.getpid(), int(value))
child = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
if kind == "retitled":
    one = subprocess.Popen([sys.executable, "-c", child], env={})
    tell(f"child {one.pid}")
if kind in ("child", "daemon"):
    one = subprocess.Popen([sys.executable, "-c", child])
    tell(f"child {one.pid}")
if kind == "daemon":
    if os.fork() == 0:
        os.setsid()
        two = subprocess.Popen([sys.executable, "-c", child], env={}, start_new_session=True)
        tell(f"child {two.pid}")
        os._exit(0)
    os.wait()

def term(*_):
    tell("term")
    if kind != "ignores":
        time.sleep(0.3)
        tell("drained")
        sys.exit(0)

signal.signal(signal.SIGTERM, term)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def until(happened: Callable[..., object], what: str) -> None:
    end = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="session")
def venv() -> Path:
    """supervisord of the pinned version, made once for all tests."""
    CACHE.mkdir(exist_ok=True)
    home = CACHE / f"supervisord-{supervisord.VERSION}"
    with (CACHE / "supervisord.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "bin/supervisord").exists():
            make_venv(Steps("tests", CACHE, os.environ), home, sys.executable, f"supervisor=={supervisord.VERSION}")
    return home


class Machine:
    """A host with supervisord and an instance a."""

    def __init__(self, folder: Path, venv: Path) -> None:
        self.folder, self.id = folder, secrets.token_hex(3)
        self.supervisor = Supervisord(folder / "state")
        self.supervisor.venv = venv
        self.home = folder / "state/a/home"
        self.home.mkdir(parents=True)
        shutil.chown(self.home, USER)
        (folder / "server.py").write_text(SERVER)
        self.set_up()

    def set_up(self, change: bool = True, **how: str) -> list[str]:
        asked = dict.fromkeys(("release", "wheelhouse", "start_hook", "control"), "")
        return self.supervisor.set_up({"python": sys.executable, "environment": {}, **asked, **how}, change)

    def named(self, launch: str) -> str:
        """The id of a launch: those of other tests are foreign."""
        return f"{launch}-{self.id}"

    def install(
        self, launch: str = "L1", kill_after: str = "20", pause: str = "0.3", within: str = "21600", **changed: str
    ) -> str:
        launch = self.named(launch)
        launches = self.folder / "state/a/launches" / launch
        launches.mkdir(parents=True, exist_ok=True)
        for name, text in self.supervisor.programs().items():
            (launches / name).write_text(text)
        argv = [PYTHON, "-I", str(self.folder / "server.py")]
        watch = [PYTHON, "-I", str(launches / "watch.py")]
        (launches / "watch.py").write_text("import os, time; print('watch of', os.environ['MAINPID'], flush=True)")
        text = self.supervisor.unit_text("a", launch, argv, {}, None, USER, str(self.home), watch, 60)
        for key, value in {
            "kill-after 90": f"kill-after {kill_after}",
            "restart-after 10": f"restart-after {pause}",
            "starts-at-most 5 21600": f"starts-at-most 5 {within}",
        }.items():
            assert key in text
            text = text.replace(key, value)
        for key, value in changed.items():
            text += f"{key} {value}\n"
        self.supervisor.install("a", text)
        return text

    def start(self, launch: str = "L1", does: str = "", **how: str) -> Identity:
        self.does(does)
        self.install(launch, **how)
        self.supervisor.start("a")
        return self.identity

    def does(self, words: str) -> None:
        """What the next starts do."""
        (self.home / "next").write_text(words)
        (self.home / "next").chmod(0o666)

    @property
    def identity(self) -> Identity:
        return self.supervisor.identity("a")

    @property
    def guard(self) -> int:
        return guard.guard_of(self.identity.shown)

    def events(self, kind: str) -> list[str]:
        path = self.home / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split()[0] == kind]

    def log(self, launch: str = "L1") -> list[str]:
        return [line.text for line in self.supervisor.log_of(self.named(launch), 1000)]

    def is_ready(self) -> bool:
        now = self.identity
        told = self.supervisor.log_of(self.named("L1"), 1000, now.invocation)
        return now.active == "active" and "ready" in [line.text for line in told]

    def daemon(self) -> int:
        path = self.supervisor.run / "supervisord.pid"
        return int(path.read_text()) if path.exists() else 0

    def lose_daemon(self) -> None:
        pid = self.daemon()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not guard.born(pid), "supervisord does not end")

    def end(self) -> None:
        for pid in (self.daemon(), self.guard):
            if pid and guard.born(pid):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.guard, "the guard does not end")
        for pid in self.supervisor.members("a"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.supervisor.run, ignore_errors=True)


@pytest.fixture
def machine(venv: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("supervisord is root's")
    folder = Path(tempfile.mkdtemp(prefix="gpuops-"))  # short, for a socket, and open to the server's user
    folder.chmod(0o755)
    made = Machine(folder, venv)
    yield made
    made.end()
    shutil.rmtree(folder)


def alive(pids: list[str]) -> list[str]:
    return [pid for pid in pids if guard.born(int(pid))]


def test_a_unit_gives_back_what_it_was_made_of() -> None:
    argv = ["/bin/python", "-m", "x", "--a", *AWKWARD, "--b"]
    watch = ["/bin/python", "-I", "/s/a/launches/L1/watch.py", "http://127.0.0.1:1"]
    variables = {f"A{number}": word for number, word in enumerate(AWKWARD)}
    made = Supervisord(Path("/s")).unit_text("a", "L1", argv, variables, "/s/secrets.env", "u", "/s/a/home", watch, 60)
    found = guard.parse(made)
    assert launch_of(made) == "L1"
    assert found["start"] == [argv] and found["watch"] == [watch] and found["secrets"] == [["/s/secrets.env"]]
    assert {**dict(found["variable"]), **variables} == dict(found["variable"])
    assert found["guard"] == [["/bin/python", "-I", "/s/a/launches/L1/guard.py"]]
    assert "\n    --b\n" in made  # one option on a line


def test_a_start_and_a_stop(machine: Machine) -> None:
    now = machine.start()
    until(machine.is_ready, "it does not start")
    assert (now.active, now.sub, now.result, now.restarts, now.enabled) == ("active", "running", "success", 0, True)
    assert machine.events("start") == [str(now.main_pid)]
    assert machine.supervisor.running_launch(now.main_pid) == machine.named("L1")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{now.main_pid}/status").read_text().splitlines())
    assert status["NoNewPrivs"] == "1" and status["Uid"].split()[0] == str(pwd.getpwnam(USER).pw_uid)
    assert os.getsid(now.main_pid) == now.main_pid
    limits = Path(f"/proc/{now.main_pid}/limits").read_text()
    assert re.search(r"Max core file size +0 ", limits) and not re.search(r"Max open files +1024 ", limits)
    assert 0 < machine.supervisor.began(now) < time.monotonic()
    until(lambda: f"watch of {now.main_pid}" in machine.log(), "nobody watches it")
    machine.supervisor.stop("a")
    assert machine.events("term") == machine.events("drained") == [""]
    after = machine.identity
    assert (after.active, after.sub, after.result, after.main_pid) == ("inactive", "dead", "success", 0)
    assert machine.supervisor.members("a") == set() and not machine.guard
    machine.supervisor.stop("a")  # what does not run stays as it is
    machine.supervisor.start("a")
    until(lambda: machine.identity.main_pid not in (0, now.main_pid), "it does not start again")
    assert machine.identity.invocation not in ("", now.invocation)


def test_each_line_of_the_log_has_its_time_and_run(machine: Machine) -> None:
    began = time.monotonic()
    first = machine.start(does="exit:9")
    until(lambda: machine.log().count("ready") == 1, "it is not started again")
    second = machine.identity
    lines = machine.supervisor.log_of(machine.named("L1"), 1000)
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert began < lines[0].at <= lines[-1].at < time.monotonic()
    own = [line.text for line in machine.supervisor.log_of(machine.named("L1"), 1000, second.invocation)]
    assert "ready" in own and own.count("hello") == 1 and second.invocation != first.invocation
    assert [line.text for line in lines if not line.invocation] == ["guard: the server has ended (exited 9)"]
    assert [line.text for line in machine.supervisor.log_of(machine.named("L1"), 1)] == [lines[-1].text]
    assert machine.supervisor.log_of(machine.named("L2"), 10) == machine.supervisor.log_of("", 10) == []


def test_what_does_not_heed_sigterm_is_killed_and_proved_gone(machine: Machine) -> None:
    machine.start(does="daemon")
    until(machine.is_ready, "it does not start")
    children = machine.events("child")
    assert len(children) == len(alive(children)) == 2
    group = machine.identity.cgroup
    assert {machine.identity.main_pid, *map(int, children)} <= set(machine.supervisor.in_group(group))
    assert all(machine.supervisor.groups_of(int(pid)) == [group] for pid in children)
    assert machine.supervisor.groups_of(os.getpid()) == []
    assert machine.supervisor.instance_in([group]) == "a"
    machine.supervisor.stop("a")
    assert machine.events("drained") and not alive(children)


def test_a_server_that_does_not_end_is_killed(machine: Machine) -> None:
    machine.start(does="ignores", kill_after="1")
    until(machine.is_ready, "it does not start")
    pid = machine.identity.main_pid
    machine.supervisor.stop("a")
    assert machine.events("term") and not machine.events("drained") and not guard.born(pid)
    assert (machine.identity.active, machine.identity.exit_status) == ("inactive", "killed 9")


def test_a_stop_takes_as_long_as_the_launch_says_that_comes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, kill = [], supervisord._kill
    monkeypatch.setattr(supervisord, "_kill", lambda pid, number: (sent.append(number), kill(pid, number)))
    machine.start(does="ignores", kill_after="600")
    until(machine.is_ready, "it does not start")
    pid = machine.identity.main_pid
    machine.install("L2", kill_after="1")
    machine.supervisor.stop("a")
    assert not guard.born(pid) and signal.SIGKILL not in sent  # the guard does it by itself
    assert (machine.identity.active, machine.identity.result) == ("inactive", "success")


def test_a_guard_that_hangs_goes_with_all_that_it_guards(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.start(does="daemon", kill_after="1")
    until(machine.is_ready, "it does not start")
    there = [machine.identity.main_pid, machine.guard, *machine.events("child")]
    os.kill(machine.guard, signal.SIGSTOP)
    monkeypatch.setattr(supervisord, "ENDS", 1)
    machine.supervisor.stop("a")
    assert not alive(list(map(str, there))) and not machine.supervisor.members("a")


def test_a_guard_that_ends_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [99999999]
    monkeypatch.setattr(guard, "guard_of", lambda _said: told.pop() if told else 0)
    Supervisord(tmp_path).stop("a")
    assert not told


def test_what_a_server_leaves_goes_with_it(machine: Machine) -> None:
    machine.start(does="daemon")
    until(machine.is_ready, "it does not start")
    pid, children = machine.identity.main_pid, machine.events("child")
    os.kill(pid, signal.SIGKILL)
    until(lambda: machine.identity.main_pid not in (0, pid), "it is not started again")
    assert not alive(children) and machine.identity.restarts == 1


@pytest.mark.parametrize(
    ("word", "active", "result", "how"),
    [
        ("exit:0", "inactive", "success", "exited 0"),
        ("exit:1", "failed", "exit-code", "exited 1"),
        ("exit:2", "failed", "exit-code", "exited 2"),
        ("exit:3", "failed", "exit-code", "exited 3"),
        ("kill:15", "inactive", "success", "killed 15"),
    ],
)
def test_an_end_that_a_restart_does_not_cure(machine: Machine, word: str, active: str, result: str, how: str) -> None:
    machine.start(does=word)
    until(lambda: not machine.guard, "the guard does not end")
    found = machine.identity
    assert (found.active, found.result, found.exit_status, found.restarts) == (active, result, how, 0)
    # supervisord leaves it at that too, whatever the status
    time.sleep(1.5)
    assert len(machine.events("start")) == 1 and not machine.guard


def test_what_has_crashed_is_stopped_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "TAKEN", machine.folder / "taken")
    monkeypatch.setattr(service, "supervisor", lambda: machine.supervisor)
    monkeypatch.setattr(protocol, "supervisor", lambda: machine.supervisor)
    machine.start(does="exit:1")
    until(lambda: not machine.guard, "the guard does not end")
    found = [service.stopped(["a"], machine.supervisor.state, True)[0]["reasons"] for _ in range(2)]
    assert found == [["service is failed (failed)", "it is started at boot"], []]


def test_an_end_after_long_service_is_a_restart_like_any(machine: Machine) -> None:
    machine.start(pause="1", within="0.1")
    until(machine.is_ready, "it does not start")
    time.sleep(0.2)  # no start is within the limit's time any more
    os.kill(machine.identity.main_pid, signal.SIGKILL)
    until(lambda: machine.identity.sub == "auto-restart", "there is no pause")
    assert len(machine.events("start")) == 1
    until(lambda: machine.identity.active == "active", "it is not started again")
    assert machine.identity.restarts == 1


def test_five_starts_are_the_limit(machine: Machine) -> None:
    machine.start(does=" ".join(["kill:9", "exit:137", "kill:6", "exit:9"] * 2))
    until(lambda: not machine.guard, "the guard does not end")
    found = machine.identity
    assert (found.active, found.result, found.restarts) == ("failed", "start-limit-hit", 4)
    assert len(machine.events("start")) == 5
    time.sleep(1.5)
    assert len(machine.events("start")) == 5 and not machine.guard
    machine.does("")
    machine.supervisor.start("a")  # an order counts from the beginning
    until(machine.is_ready, "it does not start")
    assert machine.identity.restarts == 0


def test_a_guard_that_is_killed_leaves_nothing_and_comes_back(machine: Machine) -> None:
    machine.start(does="child")
    until(machine.is_ready, "it does not start")
    before, pid, children = machine.identity, machine.guard, machine.events("child")
    os.kill(pid, signal.SIGKILL)
    until(lambda: machine.guard not in (0, pid) and machine.identity.active == "active", "no other guard comes")
    assert not guard.born(before.main_pid) and not alive(children)
    until(lambda: len(machine.events("start")) == 2, "it is not started again")
    assert machine.identity.restarts == 1 and machine.identity.invocation != before.invocation
    for starts in (3, 4, 5):
        os.kill(machine.guard, signal.SIGKILL)
        until(lambda n=starts: len(machine.events("start")) == n, "no other guard comes")
        assert machine.identity.restarts == starts - 1
    os.kill(machine.guard, signal.SIGKILL)
    until(lambda: machine.identity.result == "start-limit-hit", "there is no limit for a guard that is killed")
    assert len(machine.events("start")) == 5 and not machine.supervisor.members("a")


def test_a_guard_that_is_killed_at_once_leaves_what_it_knew(machine: Machine) -> None:
    """What has overwritten its environment is known by the server's session alone."""
    machine.start(does="retitled")
    until(machine.is_ready, "it does not start")
    (child,) = machine.events("child")
    main, group = machine.identity.main_pid, machine.identity.cgroup
    machine.lose_daemon()
    os.kill(machine.guard, signal.SIGKILL)
    until(lambda: not machine.guard and not guard.born(main), "they do not end")
    code = "import os, pathlib, sys; sys.path.insert(0, sys.argv[1]); import guard\n"
    code += "guard.Guard._end = lambda *_: os._exit(9); guard.Guard(*map(pathlib.Path, sys.argv[2:])).run()"
    launch, state = machine.folder / "state/a/launches" / machine.named("L1"), machine.supervisor.described("a")[1]
    begun = [PYTHON, "-c", code, str(launch), str(machine.supervisor.unit_path("a")), state]
    for _ in range(2):
        assert subprocess.run(begun, check=False).returncode == 9
        assert machine.supervisor.members("a") == {int(child)} and machine.identity.main_pid == 0
    assert machine.supervisor.groups_of(int(child)) == [group]
    machine.supervisor.start("a")
    assert not alive([child]) and machine.identity.main_pid


def test_a_start_leaves_the_lock_in_its_place(machine: Machine) -> None:
    machine.start()
    machine.supervisor.stop("a")
    with open(machine.supervisor.described("a")[1], "rb") as file:
        machine.supervisor.start("a")
        assert os.fstat(file.fileno()).st_nlink == 1
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_another_start_of_a_container_is_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    before = guard.boot()
    assert guard.boot() == before
    monkeypatch.setattr(guard, "born", lambda pid: "4711" if pid == 1 else "")
    assert guard.boot() != before


def test_a_server_goes_on_when_supervisord_is_killed_and_is_taken_over(machine: Machine) -> None:
    machine.start()
    until(machine.is_ready, "it does not start")
    before, pid = machine.identity, machine.guard
    machine.lose_daemon()
    assert machine.identity == before and "supervisord does not run" in machine.set_up(change=False)
    machine.set_up()
    time.sleep(1.5)
    assert machine.identity == before and machine.events("start") == [str(before.main_pid)]
    # the guard that waits ends with it, or takes its place
    os.kill(pid, signal.SIGKILL)
    until(lambda: machine.guard not in (0, pid) and machine.identity.active == "active", "nobody takes over")
    machine.supervisor.stop("a")
    assert machine.identity.active == "inactive" and not machine.supervisor.members("a")


def test_a_stop_reaches_the_guard_of_an_earlier_supervisord(machine: Machine) -> None:
    for restarted in (True, False):
        machine.start()
        until(machine.is_ready, "it does not start")
        machine.lose_daemon()
        if restarted:
            machine.set_up()
        machine.supervisor.stop("a")
        assert machine.identity.active == "inactive" and not machine.supervisor.members("a")
        assert machine.events("drained")
        (machine.home / "events").unlink()


def test_a_stop_ends_what_a_killed_guard_has_left(machine: Machine) -> None:
    machine.start(does="child")
    until(machine.is_ready, "it does not start")
    machine.lose_daemon()
    os.kill(machine.guard, signal.SIGKILL)
    until(lambda: not machine.guard, "it does not end")
    assert machine.identity.active == "failed"
    assert alive(machine.events("child"))
    machine.supervisor.stop("a")
    assert not alive(machine.events("child")) and machine.identity.active == "inactive"


def test_another_launch_takes_the_place(machine: Machine) -> None:
    first = machine.start()
    until(machine.is_ready, "it does not start")
    machine.install("L2")
    assert machine.identity == first and launch_of(machine.supervisor.read_unit("a")) == machine.named("L2")
    machine.supervisor.stop("a")
    machine.supervisor.start("a")
    assert machine.supervisor.running_launch(machine.identity.main_pid) == machine.named("L2")
    until(
        lambda: "ready" in [line.text for line in machine.supervisor.log_of(machine.named("L2"), 9)],
        "it does not start",
    )
    machine.supervisor.stop("a")
    machine.supervisor.disable("a")
    assert not machine.identity.enabled
    machine.supervisor.remove("a")
    assert machine.supervisor.installed_instances() == [] and machine.identity.cgroup == ""
    machine.start("L3")


def test_foreign_processes_survive_everything(machine: Machine) -> None:
    line = [sys.executable, "-c", "import time; time.sleep(600)", "-m", "sglang.launch_server", "sglang", "L1"]
    with (
        subprocess.Popen(line, env={"SGLANG_LAUNCH_ID": "L0"}, start_new_session=True) as one,
        subprocess.Popen(line) as two,
    ):
        machine.start(does="child")
        until(machine.is_ready, "it does not start")
        os.kill(machine.guard, signal.SIGKILL)
        until(lambda: machine.identity.restarts == 1 and machine.identity.active == "active", "no other guard comes")
        machine.supervisor.stop("a")
        assert (one.poll(), two.poll()) == (None, None)
        assert machine.supervisor.groups_of(one.pid) == machine.supervisor.groups_of(two.pid) == []
        one.kill()
        two.kill()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace(f"start {PYTHON}", "start /nowhere/python"), "203"),
        (lambda text: text.replace(f"user {USER}", "user gpuops-nobody"), "217"),
        (lambda text: text.replace("/home\n", "/nowhere\n"), "200"),
    ],
)
def test_a_server_that_can_not_be_run_is_told(machine: Machine, change: Callable[[str], str], why: str) -> None:
    machine.supervisor.install("a", change(machine.install()))
    with pytest.raises(Refused, match=rf"sglang-a does not start \(exited {why}\): "):
        machine.supervisor.start("a")


def test_secrets_are_in_the_environment_of_the_server_only(machine: Machine) -> None:
    secret = machine.folder / "secrets.env"
    secret.write_text('HF_TOKEN="planted \\" \\\\ \\$x"\n')
    secret.chmod(0o600)
    now = machine.start(secrets=str(secret))
    environment = Path(f"/proc/{now.main_pid}/environ").read_bytes().split(b"\0")
    assert b'HF_TOKEN=planted " \\ $x' in environment
    files = [*machine.supervisor.folder.rglob("*"), *machine.supervisor.run.rglob("*")]
    told = [path.read_text(errors="replace") for path in files if path.is_file()]
    told += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (now.main_pid, machine.guard, machine.daemon())]
    assert "planted" not in "".join(told)


def test_the_machine_starts_supervisord_by_its_own_hook(machine: Machine) -> None:
    hook, control = machine.folder / "onstart.sh", machine.folder / "bin/sglangctl"
    hook.write_text("#!/bin/sh\nset -e\nexec sleep infinity\n")
    hook.chmod(0o700)
    assert machine.set_up(start_hook=str(hook), control=str(control))
    assert machine.set_up(False, start_hook=str(hook), control=str(control)) == []
    lines = hook.read_text().splitlines()
    assert lines[0] == "#!/bin/sh" and "sglangctl boot" in lines[1] and lines[2:] == ["set -e", "exec sleep infinity"]
    assert hook.stat().st_mode & 0o777 == 0o700
    machine.start()
    until(machine.is_ready, "it does not start")
    pid = machine.identity.main_pid
    shown = subprocess.run([control, "status"], capture_output=True, text=True)
    assert "sglang-a" in shown.stdout and "RUNNING" in shown.stdout
    assert subprocess.run([control], capture_output=True, text=True).stdout.split()[:2] == shown.stdout.split()[:2]
    with subprocess.Popen(["timeout", "60", control, "log", "a"], stdout=subprocess.PIPE, text=True) as followed:
        assert followed.stdout and any("ready" in line for line in followed.stdout)
        followed.terminate()
    for path in (machine.daemon(), machine.guard):
        os.kill(path, signal.SIGKILL)
    with subprocess.Popen([hook]) as booted:  # as after a restart of the machine
        until(lambda: machine.identity.main_pid not in (0, pid) and machine.is_ready(), "nothing starts it")
        booted.kill()
    daemon = machine.daemon()
    assert subprocess.run([machine.supervisor.folder / "sglangctl", "boot"], check=True).returncode == 0
    assert machine.daemon() == daemon
    hook.write_text("#!/bin/sh\n")
    assert not machine.identity.enabled
    machine.supervisor.enable("a")
    assert machine.identity.enabled and "sglangctl boot" in hook.read_text()


def test_an_end_for_good_outlasts_supervisord(machine: Machine) -> None:
    machine.start()
    until(machine.is_ready, "it does not start")
    subprocess.run(shlex.split(machine.supervisor.end_command("a")), check=True, capture_output=True)
    assert machine.identity.active == "inactive" and not machine.identity.enabled
    machine.lose_daemon()
    subprocess.run([machine.supervisor.folder / "sglangctl", "boot"], check=True)
    until(machine.supervisor.runs, "supervisord does not start")
    time.sleep(0.5)
    assert len(machine.events("start")) == 1 and not machine.guard


@pytest.mark.parametrize("text", [b"#!/bin/sh\r\n# caf\xe9\r\nexec sleep 9", b"# caf\xe9\n", b"#!/bin/sh"])
def test_a_hook_keeps_its_bytes(machine: Machine, text: bytes) -> None:
    hook = machine.folder / "onstart.sh"
    hook.write_bytes(text)
    machine.set_up(start_hook=str(hook))
    lines = hook.read_bytes().split(b"\n")
    (own,) = [line for line in lines if b"sglangctl boot" in line]
    assert lines.index(own) == text.startswith(b"#!")
    lines.remove(own)
    assert b"\n".join(lines).rstrip(b"\n") == text.rstrip(b"\n")
    assert machine.set_up(False, start_hook=str(hook)) == []


def test_a_hook_that_can_not_be_read_is_left_alone(machine: Machine) -> None:
    hook = machine.folder / "onstart.sh"
    hook.mkdir()
    with pytest.raises(Refused, match=r"onstart\.sh can not be read: Is a directory"):
        machine.set_up(start_hook=str(hook))
    assert hook.is_dir()


def test_what_others_may_replace_is_not_run_by_root(machine: Machine) -> None:
    machine.folder.chmod(0o777)
    with pytest.raises(Refused, match=f"'chmod go-w {machine.folder}'"):
        machine.set_up(False)
    machine.folder.chmod(0o1777)
    assert machine.set_up(False) == []
    other = machine.folder / "volume"
    other.mkdir()
    shutil.chown(other, USER)
    for place in ("release", "start_hook"):
        with pytest.raises(Refused, match=f"'chown root {other}'"):
            machine.set_up(False, **{place: str(other / "x/y")})
    (machine.folder / "link").symlink_to(other)
    with pytest.raises(Refused, match=f"'chown root {other}'"):
        machine.set_up(False, release=str(machine.folder / "link/x"))


def test_a_volume_needs_no_sockets_links_or_locks(machine: Machine, venv: Path) -> None:
    folder = machine.folder / ("long" * 30)  # more than a socket's path may have
    folder.mkdir()
    other = Machine(folder, venv)
    try:
        other.start()
        until(other.is_ready, "it does not start")
        assert not [path for path in folder.rglob("*") if not (path.is_file() or path.is_dir()) or path.is_symlink()]
        assert not [path for path in folder.rglob("*") if path.name in ("supervisord.pid", "guards")]
    finally:
        other.end()


def test_a_supervisord_that_does_not_come_up_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lose_daemon()
    program = machine.folder / "venv/bin/supervisord"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    machine.supervisor.venv = machine.folder / "venv"
    monkeypatch.setattr(supervisord, "BEGINS", 0.3)
    with pytest.raises(Refused, match=r"supervisord does not start within 0.3 s: .*deploy again"):
        machine.supervisor.begin()


def test_a_supervisord_that_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(error: Exception) -> None:
        def ask(*_: object) -> None:
            raise error

        monkeypatch.setattr(supervisord, "_ask", ask)

    used = Supervisord(tmp_path)
    answer(xmlrpc.client.Fault(6, "SHUTDOWN_STATE"))
    with pytest.raises(Refused, match=r"SHUTDOWN_STATE.*: wait for its end"):
        used.stop("a")
    answer(http.client.BadStatusLine(""))
    assert not used.runs()
    monkeypatch.setattr(used, "begin", lambda: None)
    with pytest.raises(Refused, match="supervisord does not answer"):
        used.start("a")


def test_what_lacks_is_told_and_put_right(machine: Machine) -> None:
    assert machine.set_up() == []
    machine.supervisor.configuration.write_text("")
    assert machine.set_up(False) == [f"{machine.supervisor.configuration} differs"]
    machine.set_up()
    assert machine.set_up() == []
    machine.supervisor.venv = machine.folder / "nowhere"
    assert machine.set_up(False)[0] == f"supervisord {supervisord.VERSION} is not installed"  # though another one runs
    machine.lose_daemon()
    with pytest.raises(Refused, match="supervisord can not be run"):
        machine.supervisor.begin()


def test_a_guard_does_not_wait_for_a_disk(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = guard.Log(tmp_path / "log")
    room = [10**6]
    write = os.write

    def full(file: int, data: bytes) -> int:
        took = min(room[0], len(data))
        room[0] -= took
        if data and not took:
            raise OSError(28, "No space left on device")
        return write(file, data[:took])

    monkeypatch.setattr(os, "write", full)
    log.feed(b"one\ntw", "i1")
    log.feed(b"o\n", "i1")
    room[0] = 5
    log.feed(b"three\nfour\nfive\n", "i1")
    room[0] = 10**6
    log.feed(b"six\nseven", "i2")
    log.feed(b"", "i2")
    texts = [line.partition("] ")[2] for line in (tmp_path / "log").read_text().splitlines() if "] " in line]
    lost = "guard: 3 lines were lost: the disk did not take them"
    assert texts == ["one", "two", lost, "six", "seven"]


def test_a_log_has_a_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install()
    path = machine.folder / "state/a/launches" / machine.named("L1") / "log"
    log = guard.Log(path)
    monkeypatch.setattr(guard, "LOG", 10_000)
    for number in range(2000):
        log.feed(f"line {number}\n".encode(), "i")
    assert path.stat().st_size < 11_000 and Path(f"{path}.1").stat().st_size < 11_000
    assert [line.text for line in machine.supervisor.log_of(machine.named("L1"), 300)] == [
        f"line {n}" for n in range(1700, 2000)
    ]
    path.unlink()
    log.feed(b"on\n", "i")
    assert path.exists()
    monkeypatch.setattr(guard, "LOG", 10**7)
    for _ in range(20):
        log.feed(b"x" * 50_000, "i")
    assert max(map(len, path.read_text().splitlines())) < 2 * guard.LINE + 100


def test_processes_know_the_groups(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "groups", machine.supervisor)
    now = machine.start()
    found = processes.process(now.main_pid)
    assert found and found.in_cgroup(now.cgroup) and now.main_pid in processes.in_cgroup(now.cgroup)
    own = processes.process(os.getpid())
    assert own and not own.in_cgroup(now.cgroup)
    assert machine.supervisor.computed(now) >= 0


def test_it_is_installed_from_a_wheelhouse_where_there_is_no_index(tmp_path: Path, venv: Path) -> None:
    wheels, archive = tmp_path / "wheelhouse", tmp_path / "wheelhouse.tar"
    wheels.mkdir()
    supervisor = Supervisord(tmp_path / "state")
    supervisor.folder.mkdir(parents=True)
    how = {"python": sys.executable, "environment": {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}}
    with pytest.raises(Refused, match=f"{wheels} has no wheel of supervisor in it: make it anew with playbooks/wheel"):
        supervisor._install({**how, "wheelhouse": str(wheels)})
    pip = [venv / "bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
    subprocess.run([*pip, f"supervisor=={supervisord.VERSION}"], check=True)
    (wheels / "another-1-py3-none-any.whl").touch()
    subprocess.run(["tar", "-cf", archive, "-C", tmp_path, "wheelhouse"], check=True)
    supervisor._install({**how, "wheelhouse": str(archive)})
    assert supervisor._is_installed() and os.listdir(supervisor.folder) == [supervisor.venv.name]


def test_a_server_under_supervisord_is_not_one_that_was_started_by_hand(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_chosen", machine.supervisor)
    monkeypatch.setattr(processes, "groups", machine.supervisor)
    (machine.home / "sglang").mkdir()
    (machine.home / "sglang/launch_server.py").write_text(SERVER)
    text = machine.install().replace(f"-I {machine.folder}/server.py", "-m sglang.launch_server --model-path m")
    machine.supervisor.install("a", text)
    machine.supervisor.start("a")
    until(machine.is_ready, "it does not start")
    ours = machine.identity.main_pid
    words = [PYTHON, "-m", "sglang.launch_server", "--model-path", "m"]
    with subprocess.Popen(words, cwd=machine.home, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline() == b"hello\n"
            assert {ours, other.pid} <= {one.pid for one in processes.servers()}
            search = Search(Path("/nonexistent"), timeout=10, pids=(ours, other.pid))
            assert [one["pid"] for one in found_servers(search)] == [other.pid]
            monkeypatch.setattr(here, "_chosen", Supervisord(machine.folder / "other"))
            monkeypatch.setattr(processes, "groups", here.supervisor())
            assert [one["pid"] for one in found_servers(search)] == sorted([ours, other.pid])
        finally:
            other.kill()
