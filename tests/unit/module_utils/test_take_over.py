# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real small servers that were started by hand: what of them goes, and that it comes back as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, guard, sockets, take_over
from ansible_collections.gpuops.sglang.plugins.module_utils import launch as launches
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import GpuProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import systemd
from ansible_collections.gpuops.sglang.plugins.module_utils.take_over import OldServer, interrupted, server_at
from found_servers import free_port, make_venv, started

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root takes over")
KEY, TOKEN = "geheim-api-4711", "hf_geheim4711geheim"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("host") / "venv", "0.5.13")


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "TAKEN", tmp_path / "run/taken")
    monkeypatch.setattr(gpu, "processes", lambda: [])
    monkeypatch.setattr(systemd, "into_scope", lambda *_: None)
    monkeypatch.setattr(systemd, "installed_instances", lambda: [])


class Hand:
    """A server that was started by hand."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder, self.log, self.port = folder, folder / "sglang.log", free_port()
        self.words = [
            str(python), "-m", "sglang.launch_server", "--model-path", "m", "--api-key", KEY, "--port", str(self.port),
            "--mamba-scheduler-strategy", "extra_buffer", "",
        ]  # fmt: skip
        self.told: list[str] = []

    @contextlib.contextmanager
    def runs(self, *shell: str, **environment: str) -> Iterator[int]:
        """Start it by a shell, and end what is on its port in the end."""
        script = 'umask 027; ulimit -S -n 777; exec setsid --fork nohup "$@" </dev/null'
        words = [*(shell or ("sh", "-c", script, "sh")), *self.words]
        self.log.write_text("before\n")
        with started(words, self.folder, self.log, HF_TOKEN=TOKEN, **{"ENDS": "soon", **environment}) as pid:
            try:
                yield pid
            finally:
                (self.folder / "stop").touch()
                for listener in sockets.listeners(self.port):
                    os.kill(listener.pid, signal.SIGKILL)
                for scheduler in self.schedulers():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(scheduler, signal.SIGKILL)

    def schedulers(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"^scheduler (\d+)$", self.log.read_text(), re.MULTILINE)]

    def scheduler(self) -> int:
        until(self.schedulers)
        return self.schedulers()[-1]

    def at(self, drain: int = 20) -> OldServer:
        old = server_at("a", self.port, drain)
        assert old
        return old

    def tell(self, phase: str) -> None:
        self.told.append(phase)


@pytest.fixture
def hand(python: Path, tmp_path: Path) -> Hand:
    return Hand(python, tmp_path)


def until(what: Callable[[], Any]) -> None:
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def read(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def facts(pid: int) -> dict[str, Any]:
    """All that is to be again as it was."""
    status = dict(line.split(":\t", 1) for line in read(pid, "status").decode().splitlines())
    return {
        "argv": read(pid, "cmdline"), "environment": sorted(read(pid, "environ").split(b"\0")),
        "program": os.readlink(f"/proc/{pid}/exe"), "folder": os.readlink(f"/proc/{pid}/cwd"),
        "outputs": [os.readlink(f"/proc/{pid}/fd/{number}") for number in "012"],
        "user": [status[name] for name in ("Uid", "Gid", "Groups")], "umask": status["Umask"],
        "open files": re.findall(r"^Max open files +(\d+)", read(pid, "limits").decode(), re.MULTILINE),
        "processors": os.sched_getaffinity(pid), "nice": os.getpriority(os.PRIO_PROCESS, pid),
    }  # fmt: skip


def test_it_is_ended_and_started_again_as_it_was(hand: Hand, tmp_path: Path) -> None:
    with hand.runs() as pid:
        os.setpriority(os.PRIO_PROCESS, pid, 3)
        os.sched_setaffinity(pid, {0})
        before, scheduler = facts(pid), hand.scheduler()
        assert before["open files"] == ["777"] and before["umask"] == "0027"
        old = hand.at()
        assert old.pids == {pid, scheduler}
        old.keep()
        record = tmp_path / "run/taken/a.json"
        assert [path.stat().st_mode & 0o777 for path in (record, record.parent)] == [0o600, 0o700]
        assert KEY in record.read_text() and guard.born(pid), "nothing is ended for that"
        old.end(hand.tell)
        assert not guard.born(pid) and not guard.born(scheduler) and not sockets.listeners(hand.port)
        assert old.pids == frozenset()
        told = old.again(hand.tell)
        (listener,) = sockets.listeners(hand.port)
        assert facts(listener.pid) == before
        assert os.getsid(listener.pid) == listener.pid != pid
        assert told == (
            f"what served before, by its old command, as process {listener.pid}, which answers on port {hand.port}"
        )
        old.forget()
        assert list(record.parent.iterdir()) == []
        assert server_at("a", hand.port, 1) is not None, "it can be taken over again"
    lines = hand.log.read_text().splitlines()
    assert lines[0] == "before" and lines.count("serves") == 2
    # its main process alone was told to end
    assert lines.count("drained") == 1 and "a scheduler was told to end" not in lines
    assert hand.told == [f"ending {old.label}", f"waiting for what served before, process {listener.pid}"]
    assert f"process {pid} of user root (an SGLang server, started by: nohup" in old.label
    assert "4711" not in "".join([old.label, told, *hand.told]).replace(str(pid), "").replace(str(listener.pid), "")


def test_it_is_the_same_program_whatever_its_command_says(hand: Hand, python: Path) -> None:
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    script = 'exec setsid --fork nohup bash -c \'exec -a /opt/gone/python "$@"\' bash "$@" </dev/null'
    with hand.runs("bash", "-c", script, "bash", PYTHONHOME=sys.base_prefix, PYTHONPATH=str(site)) as pid:
        before, old = facts(pid), hand.at()
        assert before["argv"].startswith(b"/opt/gone/python\0-m\0")
        old.keep()
        old.end(hand.tell)
        old.again(hand.tell)
        (listener,) = sockets.listeners(hand.port)
        assert facts(listener.pid) == before
        old.forget()


def test_its_requests_have_as_long_as_is_said(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_over, "STOPS", 0)
    with hand.runs(ENDS="never") as pid:
        scheduler, old = hand.scheduler(), hand.at(drain=1)
        old.keep()
        old.end(hand.tell)
        assert not guard.born(pid) and not guard.born(scheduler)
        assert "drained" in hand.log.read_text()
        old.forget()


def test_what_it_starts_while_it_ends_goes_too(hand: Hand) -> None:
    with hand.runs() as pid:
        scheduler = hand.scheduler()
        old = hand.at()
        old.keep()
        old.family = {str(pid): old.started}  # it was not there when it was looked at
        os.kill(pid, signal.SIGSTOP)  # until its family was looked at again
        resumed = subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pid}"])
        old.end(hand.tell)
        resumed.wait()
        assert not guard.born(scheduler)
        old.forget()


def test_memory_of_a_gpu_is_waited_for(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    with hand.runs():
        held = [[GpuProcess(hand.scheduler(), 70000, 0, None)], []]
        monkeypatch.setattr(gpu, "processes", lambda: held.pop(0))
        old = hand.at()
        old.keep()
        old.end(hand.tell)
        assert held == []
        old.forget()


def test_another_process_of_that_number_is_not_touched(hand: Hand, tmp_path: Path) -> None:
    with hand.runs() as pid:
        old = dataclasses.replace(hand.at(), started="1")
        for refused in (old.keep, lambda: old.end(hand.tell)):
            with pytest.raises(Refused, match=f"process {pid} .* has ended meanwhile: look at what runs now"):
                refused()
        with pytest.raises(Refused, match="has ended by itself"):
            old.again(hand.tell)
        assert guard.born(pid) and "drained" not in hand.log.read_text() and not (tmp_path / "run").exists()


def test_what_was_not_ended_is_not_started_twice(hand: Hand) -> None:
    with hand.runs() as pid:
        old = hand.at()
        old.keep()
        assert old.again(hand.tell) == f"{old.label}, which was left as it is"
        assert [one.pid for one in sockets.listeners(hand.port)] == [pid]
        old.ended = True
        assert old.again(hand.tell) == f"{old.label}, which could not be ended and listens on its port"
        old.port = free_port()
        with pytest.raises(Refused, match="can not be ended, so that it can not be started again"):
            old.again(hand.tell)
        old.forget()


def test_an_old_command_that_fails_is_told_without_a_secret(hand: Hand) -> None:
    with hand.runs():
        old = hand.at()
        old.keep()
        old.end(hand.tell)
        os.rename(old.folder, f"{old.folder}-gone")
        try:
            with pytest.raises(Refused, match=r"the old command can not be started: .*: No such file") as caught:
                old.again(hand.tell)
        finally:
            os.rename(f"{old.folder}-gone", old.folder)
        assert "geheim" not in str(caught.value)
        (hand.folder / "ready").unlink()
        (hand.folder / "ready").mkdir()  # it ends when it has begun to listen
        with pytest.raises(Refused, match=f"has ended: see its log {hand.log}") as caught:
            old.again(hand.tell)
        (hand.folder / "ready").rmdir()
        assert "geheim" not in str(caught.value)
        old.forget()


def test_a_server_that_listens_and_is_not_well_is_not_proved(
    hand: Hand, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_over, "ANSWERS", 3)
    with hand.runs():
        old = hand.at()
        assert old.health == f"http://127.0.0.1:{hand.port}/health"
        old.keep()
        old.end(hand.tell)
        old.health += "/other"
        with pytest.raises(Refused, match="does not answer within 3 s: see its log"):
            old.again(hand.tell)
        old.forget()


@pytest.mark.parametrize("words", [["-c", "{}", "sglang.launch_server"], ["proxy.py", "sglang", "serve"]])
def test_a_program_that_only_has_the_words_is_left_alone(tmp_path: Path, words: list[str]) -> None:
    port = free_port()
    text = f"import socket, time; s = socket.socket(); s.bind(('127.0.0.1', {port})); s.listen(); time.sleep(600)"
    (tmp_path / "proxy.py").write_text(text)
    with subprocess.Popen([sys.executable, *(word.replace("{}", text) for word in words)], cwd=tmp_path) as other:
        try:
            until(lambda: sockets.listeners(port))
            assert server_at("a", port, 1) is None and other.poll() is None
        finally:
            other.kill()
    assert server_at("a", port, 1) is None, "nobody listens"


def test_a_launch_of_this_tool_is_nothing_that_was_started_by_hand(hand: Hand) -> None:
    with hand.runs(SGLANG_LAUNCH_ID="L1"):
        assert server_at("a", hand.port, 1) is None


def test_only_who_is_on_the_port_is_looked_at(python: Path, tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    one, other = (Hand(python, folder) for folder in folders)
    with one.runs() as first, other.runs() as second:
        assert (one.at().pid, other.at().pid) == (first, second)
        assert server_at("a", free_port(), 1) is None


# what can not be started again


def refused(instance: str, port: int) -> str:
    with pytest.raises(Refused) as caught:
        server_at(instance, port, 1)
    return str(caught.value)


def test_what_could_not_be_started_again_is_not_ended(hand: Hand) -> None:
    folder = hand.folder / "gone"
    folder.mkdir()
    script = 'cd gone && exec setsid --fork nohup "$@" </dev/null'
    with hand.runs("sh", "-c", script, "sh") as pid:
        folder.rmdir()
        told = refused("a", hand.port)
        assert told.startswith(
            f"instance 'a': port {hand.port} is held by process {pid} of user root (an SGLang server, "
        )
        assert f"its working directory {folder} is deleted, so that it can not be started again: test " in told
        assert guard.born(pid)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--model-path", "/gone/m"],
            "its --model-path /gone/m is not there any more, so that it can not be started again",
        ),
        (["--lora-paths", "x=/", "y=/gone/l"], "its --lora-paths /gone/l is not there any more"),
        (["--chat-template=/gone/t"], "its --chat-template /gone/t is not there any more"),
        (["--nnodes", "2", "--node-rank", "0"], "it is one of 2 nodes, and the others would end with it"),
        (["--nnodes=1", "--dist-init-addr", "127.0.0.1:5000", "--ssl-keyfile-password", "/geheim"], ""),
        (["--model-path", "/", "--served-model-name", "/gone/m", "--tokenizer-path", "org/name"], ""),
    ],
)
def test_a_command_that_would_fail_is_not_ended(hand: Hand, words: list[str], why: str) -> None:
    hand.words += words
    with hand.runs() as pid:
        if why:
            assert why in refused("a", hand.port)
        else:
            assert hand.at().pid == pid


def test_a_server_that_holds_the_port_beside_its_own_is_not_ended(hand: Hand) -> None:
    hand.words += ["--port", str(free_port())]  # the last one counts; the small server takes the first
    with hand.runs():
        told = refused("a", hand.port)
        assert told.endswith(f"it listens there beside its own port {hand.words[-1]}: choose another port")
    hand.words[-1] = str(hand.port)
    with hand.runs() as pid:
        assert hand.at().pid == pid


def test_whom_its_caller_may_start_again_is_not_ended(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    real = take_over.found_process

    def looked_at(**more: Any) -> str:
        monkeypatch.setattr(take_over, "found_process", lambda pid: dataclasses.replace(real(pid), **more))
        return refused("a", hand.port)

    with hand.runs() as pid:
        docker = "docker 0123456789ab"
        assert looked_at(container=docker, origin=docker).endswith(f"whose place can not be taken: stop {docker}")
        assert f"take process {pid} out of cron and stop it there" in looked_at(origin="cron")
        assert f"take process {pid} out of supervisord" in looked_at(origin="supervisord")
        assert "it is not of this host alone" in looked_at(own_network=True)
        assert "it sees other files than this host" in looked_at(own_files=True)
        monkeypatch.setattr(systemd, "is_here", lambda: False)
        assert "stop unit x.service" in looked_at(origin="unit x.service")

        def hidden(pid: int) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(take_over, "found_process", hidden)
        assert "it can not be looked into: Permission denied" in refused("a", hand.port)


def test_a_shell_that_starts_it_again_and_again(hand: Hand) -> None:
    loop = 'while [ ! -e stop ]; do "$@" </dev/null; done'
    with hand.runs("setsid", "--fork", "sh", "-c", loop, "sh") as pid:
        old = hand.at()
        old.keep()
        with pytest.raises(
            Refused, match=r"something, below process \d+, has started the old command again, as process \d+: end"
        ):
            for _ in range(5):  # it may not have begun yet
                old.end(hand.tell)
                old.ended = True
        until(lambda: sockets.listeners(hand.port))
        (second,) = sockets.listeners(hand.port)
        assert f"as process {second.pid}, which answers" in old.again(hand.tell)
        assert [one.pid for one in sockets.listeners(hand.port)] == [second.pid] != [pid]
        old.forget()


def test_a_loop_with_a_pause_around_a_wrapper(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = 'while [ ! -e stop ]; do sh -c \'"$@"; sleep 2\' sh "$@" </dev/null; done'
    with hand.runs("setsid", "--fork", "sh", "-c", loop, "sh"):
        old = hand.at()
        old.keep()
        old.end(hand.tell)
        assert old.rival() == "", "it pauses"
        until(lambda: sockets.listeners(hand.port))
        (second,) = sockets.listeners(hand.port)
        assert f"has started the old command again, as process {second.pid}: end what does that" in old.rival()
        assert f"as process {second.pid}, which answers" in old.again(hand.tell)
        monkeypatch.setattr(take_over, "_is_same", lambda *_: False)
        assert old.rival() == "", "the same command in another network is another server"
        old.forget()


def test_a_socket_that_outlives_its_process_by_a_moment_is_waited_for(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hand.runs():
        held = [[sockets.Listener(0, "", "", None, (), None)]] * 3
        old = hand.at()
        old.keep()
        monkeypatch.setattr(sockets, "listeners", lambda port: held.pop() if held else [])
        old.end(hand.tell)
        assert held == []
        old.forget()


def test_somebody_else_who_takes_the_port_is_told(hand: Hand) -> None:
    with hand.runs():
        old = hand.at()
        old.keep()
        other = free_port()
        code = f"import socket, time; s = socket.socket(); s.bind(('127.0.0.1', {other})); s.listen(); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", code]) as squatter:
            try:
                until(lambda: sockets.listeners(other))
                old.port = other
                with pytest.raises(Refused, match=f"its port {other} is held by process {squatter.pid} .*: end that"):
                    old.end(hand.tell)
            finally:
                squatter.kill()
        old.forget()


# a run that was ended itself


def test_the_next_run_knows_of_one_that_was_ended(hand: Hand, tmp_path: Path) -> None:
    with hand.runs() as pid:
        before, old = facts(pid), hand.at()
        old.keep()
        assert interrupted("a") is None and not list((tmp_path / "run/taken").iterdir()), "it was not ended"
        old.end(hand.tell)
        again = interrupted("a")
        assert again and again.ended and interrupted("b") is None
        again.keep()
        again.end(hand.tell)  # nothing of it is left
        assert again.again(hand.tell).endswith(f"on port {hand.port}")
        (listener,) = sockets.listeners(hand.port)
        after = facts(listener.pid)
        assert after == before
        assert interrupted("a") is None, "it is there again, so that nobody starts it once more"
        assert hand.log.read_text().count("serves") == 2
        again.forget()
        old.outputs = []


def test_a_log_that_can_not_be_opened_again_is_told(hand: Hand) -> None:
    with hand.runs():
        old = hand.at()
        old.keep()
        old.end(hand.tell)
        later = interrupted("a")
        assert later
        later.logs = (str(hand.folder / "moved"), os.devnull)
        later.keep()
        assert later.again(hand.tell).endswith(
            "; its output goes nowhere, since its log could not be opened by its user"
        )
        later.forget()


def test_what_another_boot_has_left_is_removed(hand: Hand, tmp_path: Path) -> None:
    with hand.runs() as pid:
        old = hand.at()
        old.keep()
        old.end(hand.tell)
        record = tmp_path / "run/taken/a.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "another"}))
        assert interrupted("a") is None and not record.exists() and not guard.born(pid)
        old.forget()


def test_no_file_is_opened_with_more_rights_than_its_own(hand: Hand, tmp_path: Path) -> None:
    mine = tmp_path / "root-only"
    mine.write_text("")
    os.chmod(tmp_path, 0o755)
    nobody = (65534, 65534, [])
    with hand.runs() as pid:
        old = hand.at()
        old.keep()
        outputs = [os.readlink(f"/proc/self/fd/{one}") for one in old.outputs]
        assert outputs == [str(hand.log)] * 2
        old.end(hand.tell)
        later = interrupted("a")
        assert later and later.pid == pid
        link = tmp_path / "link"
        link.symlink_to(mine)
        for place, user, opened in (
            (hand.log, later.user, str(hand.log)),
            (mine, nobody, os.devnull),
            (link, later.user, os.devnull),
            (Path("/dev/full"), later.user, os.devnull),
            (tmp_path / "nowhere", later.user, os.devnull),
        ):
            later.logs, later.user = (str(place),) * 2, user
            found = later._output(0)
            assert os.readlink(f"/proc/self/fd/{found}") == opened, place
            os.close(found)
            later.user = old.user
        assert (os.geteuid(), os.getegid()) == (0, 0)
        old.forget()


@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_a_file_that_a_server_may_only_read_is_not_written_to(tmp_path: Path, mode: str) -> None:
    mine = tmp_path / "root-only"
    mine.write_text("")
    mine.chmod(0o600)
    with mine.open(mode) as file, subprocess.Popen(["sleep", "600"], stdout=file, user=65534, group=65534) as process:
        try:
            until(lambda: read(process.pid, "comm") == b"sleep\n")
            facts = {"pid": process.pid, "user": (65534, 65534, []), "ended": False}
            (descriptor,) = [OldServer._output(_Bare(facts), 0)]  # type: ignore[arg-type]
            # what root has opened for it to write to it may write to again
            assert os.readlink(f"/proc/self/fd/{descriptor}") == (os.devnull if mode == "rb" else str(mine))
            os.close(descriptor)
        finally:
            process.kill()


class _Bare:
    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.__dict__.update(facts)


# units


class Systemd:
    """What systemctl does with the unit of a server."""

    def __init__(self, hand: Hand, pid: int) -> None:
        self.hand, self.pid, self.calls = hand, pid, []
        self.shown = {"UnitFileState": "enabled", "Transient": "no", "TriggeredBy": ""}
        self.hangs = False
        self.states: list[tuple[str, int | None]] = []  # ActiveState, and main process if it is another

    def __call__(self, *words: str, timeout: float | None = None) -> str:
        if words[0] == "show":
            state, pid = self.states.pop(0) if self.states else ("active", None)
            shown = {**self.shown, "ActiveState": state, "MainPID": self.pid if pid is None else pid}
            return "".join(f"{name}={value}\n" for name, value in shown.items())
        self.calls.append(" ".join(words))
        if words[0] == "stop" and self.hangs:
            assert timeout
            self.hangs = False
            raise subprocess.TimeoutExpired(words, timeout)
        if words[0] == "stop":
            os.kill(self.pid, signal.SIGKILL)
            until(lambda: not guard.born(self.pid))
        if words[0] == "start":
            with self.hand.log.open("ab") as log:
                variables = {"PATH": os.environ["PATH"], "READY": str(self.hand.folder / "ready")}
                started = subprocess.Popen(self.hand.words, cwd=self.hand.folder, env=variables, stdout=log, stderr=log)
            started.returncode = 0
            self.pid = started.pid
        return ""


@pytest.fixture
def unit(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    real = take_over.found_process
    with hand.runs() as pid:
        made = Systemd(hand, pid)
        monkeypatch.setattr(take_over, "_systemctl", made)
        monkeypatch.setattr(systemd, "is_here", lambda: True)
        ours = {"origin": "unit llm.service", "own_files": True}
        monkeypatch.setattr(take_over, "found_process", lambda pid: dataclasses.replace(real(pid), **ours))
        yield made


@pytest.mark.parametrize("enabled", [True, False])
def test_a_unit_is_stopped_and_started_by_its_own_means(hand: Hand, unit: Systemd, enabled: bool) -> None:
    unit.shown["UnitFileState"] = "enabled" if enabled else "disabled"
    unit.hangs = not enabled
    old, scheduler = hand.at(), hand.scheduler()
    old.keep()
    old.end(hand.tell)
    stopped = ["stop llm.service", *([] if enabled else ["kill --signal=SIGKILL llm.service", "stop llm.service"])]
    stopped += ["disable llm.service"] if enabled else []
    assert unit.calls == stopped and not guard.born(scheduler)
    assert "drained" not in hand.log.read_text(), "it is told to end by its unit alone"
    told = old.again(hand.tell)
    started = ["enable llm.service"] if enabled else []
    assert unit.calls[len(stopped) :] == [*started, "start --no-block llm.service"]
    assert told == f"what served before, llm.service, as process {unit.pid}, which answers on port {hand.port}"
    old.forget()


def test_a_unit_that_takes_its_time_or_restarts_is_waited_for(
    hand: Hand, unit: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_over, "WAIT", 0.2)
    old = hand.at()
    old.keep()
    old.end(hand.tell)
    with subprocess.Popen(["sleep", "0"]) as ended:  # the first one fails
        ended.wait()
    unit.states = [("inactive", 0), *[("activating", 0)] * 20, ("active", ended.pid), ("activating", 0)]
    told = old.again(hand.tell)
    assert f"as process {unit.pid}, which answers" in told and unit.states == []
    unit("stop", "llm.service")
    unit.states = [("failed", 0)] * 100
    with pytest.raises(Refused, match=r"llm\.service does not start again: see journalctl"):
        old.again(hand.tell)
    old.forget()


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"UnitFileState": "generated"}, "llm.service may not be there any more when it was stopped: stop unit"),
        ({"Transient": "yes"}, "llm.service may not be there any more when it was stopped: stop unit"),
        ({"TriggeredBy": "llm.socket"}, "llm.socket starts llm.service again: stop unit llm.service"),
        (
            {"BoundBy": "multi-user.target proxy.service"},
            "proxy.service is stopped or started together with llm.service: ",
        ),
        ({"MainPID": "1"}, "it is not the main process of llm.service, which may run other things: stop unit"),
    ],
)
def test_a_unit_that_may_not_come_back(hand: Hand, unit: Systemd, shown: dict[str, str], why: str) -> None:
    unit.shown.update(shown)
    if "MainPID" in shown:
        unit.pid = 1
    assert why in refused("a", hand.port)
    assert unit.calls == []


@pytest.mark.parametrize("name", ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "WantedBy"])
def test_a_unit_that_others_go_with(hand: Hand, unit: Systemd, name: str) -> None:
    unit.shown[name] = "multi-user.target"
    assert hand.at()
    unit.shown[name] += " proxy.service"
    assert "proxy.service is stopped or started together with llm.service: stop unit" in refused("a", hand.port)
