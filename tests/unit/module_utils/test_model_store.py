# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models from a hub on this machine, through the real client."""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.sglang.plugins.module_utils import hub, hub_client, model_store
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub
from ansible_collections.gpuops.sglang.plugins.module_utils.model_store import Model, Place
from hub_server import Fault, HubServer, blob, safetensors, small_model
from model_lab import FILES, FIRST, FORK, MIB, NEEDED, SECOND, ModelLab, damage, whole

PROJECT = Path(__file__).parents[3]
DEFAULTS = yaml.safe_load((PROJECT / "roles/sglang_model/defaults/main.yml").read_text())
REPO = "owner/model"


class Lab(ModelLab):
    """A store and a hub."""

    def __init__(self, folder: Path, client: Hub, server: HubServer) -> None:
        self.server, self.hub = server, replace(client, endpoint=server.address)
        super().__init__(Place(folder / "store", folder / "records", self.hub), Model("m", REPO))

    def asked(self, token: str = "") -> Place:
        return replace(self.place, hub=replace(self.hub, token=token))


@pytest.fixture(scope="session")
def client() -> Hub:
    """The real client, in a venv that stays in the checkout's cache."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
    }
    made = Hub(
        "", DEFAULTS["sglang_model_client_version"], inspect.getsource(hub_client), PROJECT / ".cache/hub-client",
        sys.executable, environment=variables,
    )  # fmt: skip
    made.install()
    return replace(made, environment={})


def test_the_client_comes_with_the_same_packages_every_time(client: Hub) -> None:
    done = subprocess.run(
        [client.home / "bin/python", "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    found = {line.lower() for line in done.stdout.split()} - {f"{hub.CLIENT}=={client.client}"}
    assert len(found) > 5 and found <= {line.lower() for line in hub.NEEDS[client.client]}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer().running() as running:
        running.commit(REPO, FILES)
        yield running


@pytest.fixture
def lab(tmp_path: Path, client: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(hub, "PAUSE", 0.01)
    return Lab(tmp_path, client, server)


@pytest.fixture
def small(lab: Lab) -> Iterator[Callable[[str], None]]:
    """Mounts a file system of its own on the store."""
    lab.place.store.mkdir()
    mounted = []

    def mount(options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(lab.place.store)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(lab.place.store)

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_model_is_fetched_once_and_needs_no_network_afterwards(lab: Lab) -> None:
    result = lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    size = sum(len(FILES[name]) for name in NEEDED)
    assert (result["files"], result["size"]) == (result["fetched_files"], result["fetched_size"]) == (len(NEEDED), size)
    assert result["commit"] == lab.record["commit"] == lab.server.refs[REPO]["main"]
    assert lab.server.fetched() == {name: len(FILES[name]) for name in NEEDED if FILES[name]}
    assert sorted(path.name for path in lab.place.store.iterdir()) == [".m.lock", "m"]
    assert lab.folder.stat().st_mode & 0o777 == 0o755 and (lab.folder / FIRST).stat().st_mode & 0o777 == 0o644
    before = {path: path.stat() for path in lab.place.store.rglob("*")}
    # in its place a later commit, which nobody asks for
    lab.server.commit(REPO, small_model("b"))
    for revision in ("main", result["commit"]):
        again = lab.ensure(revision=revision)
        assert again["fetched_files"] == 0 and again["commit"] == result["commit"]
    assert lab.server.requests == []
    after = {path: path.stat() for path in lab.place.store.rglob("*")}
    assert {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in before.items()} == {
        path: (stat.st_ino, stat.st_mtime_ns) for path, stat in after.items()
    }


def test_an_unchanged_model_is_not_read_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.ensure()
    monkeypatch.setattr(model_store.model_record, "digest", None)
    assert lab.ensure()["damaged"] == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"revision": "v2"},
            r"m has revision main \(\w{40}\) of owner/model, asked for is v2: .*another name than 'm'",
        ),
        ({"repo": "owner/other"}, "m has owner/model, asked for is owner/other: .*another name"),
        ({"ignore": ("*.md",)}, r"fetched with ignore: none, asked for is \*\.md: .*another name"),
    ],
)
def test_a_model_that_is_there_is_not_made_another(lab: Lab, asked: dict[str, Any], told: str) -> None:
    lab.ensure()
    before = whole(lab.folder)
    assert re.search(told, lab.refused(**asked))
    assert whole(lab.folder) == before


def test_a_directory_that_somebody_made_is_left_alone(lab: Lab) -> None:
    lab.folder.mkdir(parents=True)
    (lab.folder / "config.json").touch()
    assert f"write 'path: {lab.folder}' in place of 'repo'" in lab.refused()
    assert lab.server.requests == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"repo": "owner/nothing"}, "has no repository owner/nothing without a token: correct 'repo'"),
        ({"repo": "owner/nothing", "token": "t"}, "has no repository owner/nothing with this token"),
        ({"revision": "v9"}, "has no revision 'v9': correct 'revision'"),
        ({"revision": "0" * 40}, f"has no revision '{'0' * 40}'"),
        ({"repo": "a/b/c"}, "'a/b/c' is no name of a repository: write OWNER/NAME"),
        ({"allow": ("nothing*",)}, "no file that 'allow' and 'ignore' leave"),
    ],
)
def test_what_the_hub_does_not_have_is_named(lab: Lab, asked: dict[str, Any], told: str) -> None:
    assert told in lab.refused(**asked)
    assert not lab.folder.exists()


def test_many_small_files_are_asked_for_once_each(lab: Lab) -> None:
    small = {f"part-{number}.txt": b"%d" % number for number in range(400)}
    lab.server.commit(REPO, {**FILES, **small})
    lab.ensure()
    asked = [request.path.rpartition("/")[2] for request in lab.server.requests if "/part-" in request.path]
    assert sorted(asked) == sorted(small)


def test_a_gated_model_is_refused_without_its_token(lab: Lab) -> None:
    lab.server.gated[REPO] = "hf_the-token"
    assert f"{REPO} is gated: accept its terms at {lab.server.address}/{REPO} with an account" in lab.refused()
    refused = lab.refused(token="hf_another")
    assert "accept its terms" in refused and "hf_another" not in refused


def test_a_gated_model_comes_with_a_token_that_nobody_sees(lab: Lab) -> None:
    lab.server.gated[REPO] = "hf_the-token"
    lab.ensure(token="hf_the-token")
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    stored = [request for request in lab.server.requests if "signature" in request.path]
    assert stored and not any(request.token for request in stored)
    assert all(request.token == "hf_the-token" for request in lab.server.requests if request not in stored)
    assert not any(b"the-token" in content for content in whole(lab.place.store).values())
    assert "the-token" not in str(lab.said) + repr(lab.place)


def test_the_token_is_in_no_argument_or_variable_of_a_process(lab: Lab) -> None:
    lab.server.pace = 0.2
    lab.server.gated[REPO] = "hf_the-token"
    process = FORK.Process(target=lab.ensure, kwargs={"token": "hf_the-token"})
    process.start()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    looked = 0
    while process.is_alive():
        for child in children.read_text().split() if children.exists() else ():
            try:
                seen = Path(f"/proc/{child}/cmdline").read_bytes() + Path(f"/proc/{child}/environ").read_bytes()
            except OSError:
                continue
            assert b"the-token" not in seen
            looked += b"HF_HUB_DISABLE_XET" in seen
        time.sleep(0.05)
    assert process.exitcode == 0 and looked and lab.folder.exists()


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "0"}), (500, {})])
def test_a_hub_that_recovers_is_asked_again(lab: Lab, status: int, headers: dict[str, str]) -> None:
    lab.server.faults += [Fault(where, status, headers) for where in ("/api/", "config.json", "signature")]
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert [fault.times for fault in lab.server.faults] == [0, 0, 0]


def test_a_hub_that_does_not_recover_is_told_and_what_came_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "WORKERS", 1)  # the first shard is here before the second is asked for
    lab.server.faults.append(Fault(f"name={SECOND}", 500, times=100))
    assert re.search(f"{lab.server.address} answers 500 for {REPO}, .*deploy again later, which goes on", lab.refused())
    assert not lab.folder.exists()
    assert lab.server.fetched() == {FIRST: len(FILES[FIRST])}
    lab.server.faults.clear()
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert FIRST not in lab.server.fetched()


def test_a_hub_that_is_not_there_is_told(lab: Lab) -> None:
    lab.hub = replace(lab.hub, endpoint="http://127.0.0.1:1")
    assert f"can not fetch {REPO} from http://127.0.0.1:1: ConnectError: " in lab.refused()


def test_a_process_that_is_killed_while_it_fetches_is_told_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    files = small_model(size=16 * MIB)
    lab.server.commit(REPO, files)
    lab.server.pace = 0.05  # 13 s for each of the two that are fetched at a time
    monkeypatch.setattr(hub, "WORKERS", 2)

    def kill_one(told: str) -> None:
        if " of " in told:
            (client,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            os.kill(int(Path(f"/proc/{client}/task/{client}/children").read_text().split()[0]), signal.SIGKILL)

    with pytest.raises(Refused) as caught:
        model_store.ensure(lab.model, lab.place, False, True, kill_one)
    told = "a process that fetches was ended by signal 9, perhaps for want of memory: deploy again, which goes on"
    assert str(caught.value) == f"can not fetch {REPO}: {told}"
    # the other one is not waited for
    there = {path.name: path.stat().st_size for path in lab.partial.glob("*.safetensors")}
    assert all(there.get(name, 0) < len(files[name]) for name in (FIRST, SECOND))


def test_a_cut_connection_goes_on_within_the_file(lab: Lab) -> None:
    large = {**FILES, FIRST: safetensors({"layers.0.weight": os.urandom(24 * MIB)})}
    lab.server.commit(REPO, large)
    lab.server.faults.append(Fault(f"name={FIRST}", cut=15 * MIB))
    lab.ensure()
    assert (lab.folder / FIRST).read_bytes() == large[FIRST]
    asked = [request.range for request in lab.server.requests if f"name={FIRST}" in request.path]
    assert asked == ["", f"bytes={15 * MIB}-"]


def test_a_file_that_an_earlier_run_began_is_gone_on_with(lab: Lab) -> None:
    lab.partial.mkdir(parents=True)
    (lab.partial / FIRST).write_bytes(FILES[FIRST][:20_000])
    (lab.partial / SECOND).write_bytes(FILES[SECOND] + b"more")
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    sent = lab.server.fetched()
    assert sent[FIRST] == len(FILES[FIRST]) - 20_000 and sent[SECOND] == len(FILES[SECOND])


def test_what_was_fetched_of_another_commit_is_used_where_it_is_the_same(lab: Lab) -> None:
    lab.partial.mkdir(parents=True)
    for name in ("README.md", "config.json"):
        (lab.partial / name).write_bytes(FILES[name])
    plan = {name: f"git-sha1:{blob(FILES[name])}" for name in ("README.md", "config.json")}
    (lab.partial / model_store.PLAN).write_text(json.dumps(plan))
    lab.server.commit(REPO, {**small_model("b"), "README.md": FILES["README.md"]})
    lab.ensure()
    assert whole(lab.folder) == {**{name: small_model("b")[name] for name in NEEDED}, "README.md": FILES["README.md"]}
    sent = lab.server.fetched()
    assert "config.json" in sent and "README.md" not in sent


def test_a_file_with_another_content_is_not_taken(lab: Lab) -> None:
    wrong = FILES[FIRST][:-5] + b"wrong"
    lab.server.faults.append(Fault(f"name={FIRST}", content=wrong))
    told = lab.refused()
    hashes = [hub_hash.partition(":")[2] for hub_hash in re.findall(r"sha256:\w+", told)]
    assert f"{lab.partial / FIRST} has the hash" in told and len(set(hashes)) == 2
    assert not lab.folder.exists()
    lab.server.fetched()
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert lab.server.fetched() == {FIRST: len(FILES[FIRST])}


def test_a_file_of_another_size_is_not_taken(lab: Lab) -> None:
    lab.server.faults.append(Fault(f"name={FIRST}", content=FILES[FIRST][:-5], times=100))
    told = lab.refused()
    assert f"should be of size {len(FILES[FIRST])} but has size {len(FILES[FIRST]) - 5} ({FIRST})" in told
    assert not lab.folder.exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (SECOND, FILES[SECOND][:-9], f"{SECOND} has {len(FILES[SECOND]) - 9} of {len(FILES[SECOND])} bytes"),
        (
            SECOND,
            FILES[FIRST],
            f"{SECOND} is of another model or shard: it has layers.0.weight, the index expects layers.1",
        ),
        (SECOND, None, f"lacks 1 files of its weights ({SECOND})"),
        ("config.json", None, "has no config.json"),
    ],
)
def test_a_repository_that_is_no_whole_model_is_refused(lab: Lab, name: str, content: bytes | None, told: str) -> None:
    files = {**FILES, name: content} if content else {one: FILES[one] for one in FILES if one != name}
    lab.server.commit(REPO, files)  # type: ignore[arg-type]
    assert told in lab.refused()
    assert not lab.folder.exists()


@pytest.mark.parametrize(("how", "name"), [("removed", "config.json"), ("truncated", FIRST), ("changed", FIRST)])
def test_a_damaged_file_is_fetched_again_and_no_other(lab: Lab, how: str, name: str) -> None:
    lab.ensure()
    lab.server.fetched()
    damage(lab.folder / name, how)
    checked = lab.ensure(change=False)
    assert (checked["fetched_files"], checked["fetched_size"]) == (1, len(FILES[name])) and lab.server.requests == []
    with (lab.folder / name).open("rb") if how != "removed" else open(os.devnull, "rb") as served:
        result = lab.ensure()
        kept = served.read()
    assert how == "removed" or kept != FILES[name]  # what has it open keeps it
    assert len(result["damaged"]) == 1 and str(lab.folder / name) in result["damaged"][0]
    assert whole(lab.folder) == {one: FILES[one] for one in NEEDED}
    assert lab.server.fetched() == {name: len(FILES[name])}
    assert not lab.partial.exists()
    assert lab.ensure()["damaged"] == []
    assert lab.server.requests == []


def test_a_file_that_was_only_touched_is_read_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.ensure()
    lab.server.requests.clear()
    (lab.folder / FIRST).touch()
    assert lab.ensure()["fetched_files"] == 0
    monkeypatch.setattr(model_store.model_record, "digest", None)
    lab.ensure()
    assert lab.server.requests == []


def test_a_full_check_finds_what_no_stat_tells(lab: Lab) -> None:
    lab.ensure()
    stat = (lab.folder / FIRST).stat()
    damage(lab.folder / FIRST, "changed")
    os.utime(lab.folder / FIRST, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert lab.ensure()["damaged"] == []
    assert len(lab.ensure(full=True)["damaged"]) == 1
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert lab.ensure(full=True)["damaged"] == []


def test_too_little_room_is_told_before_anything_comes(lab: Lab, small: Callable[[str], None]) -> None:
    small("size=64k")
    assert re.search(r"7 files need \d+ kB in .*store, and .*store has [\d.]+ kB free: make room", lab.refused())
    assert "7 files need" in lab.refused(change=False)
    assert lab.server.fetched() == {}


def test_too_few_inodes_are_told_before_anything_comes(lab: Lab, small: Callable[[str], None]) -> None:
    small("size=10m,nr_inodes=6")
    assert re.search(r"\d+ inodes are needed in .*store, and .*store has \d free", lab.refused())
    assert lab.server.fetched() == {}


@pytest.mark.parametrize("options", ["size=96k", "size=10m,nr_inodes=8"])
def test_a_disk_that_fills_up_meanwhile_leaves_no_model(
    lab: Lab, small: Callable[[str], None], options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(options)
    with monkeypatch.context() as patch:
        patch.setattr(model_store, "_check_room", lambda *_: None)
        told = lab.refused()
    assert "No space left on device" in told and str(lab.place.store) in told
    assert not lab.folder.exists()
    subprocess.run(["mount", "-o", "remount,size=10m,nr_inodes=100", str(lab.place.store)], check=True)
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}


KILLED = 4  # moments, unless --kills says how many
IN_A_ROW = 5  # of the same transfer, before it may come to its end


def test_killed_at_any_moment_the_next_run_goes_on(lab: Lab, pytestconfig: pytest.Config) -> None:
    files = small_model(size=500_000)
    lab.server.commit(REPO, files)
    lab.server.pace = 0.05
    begun = time.monotonic()
    lab.ensure(name="first")
    whole_time = time.monotonic() - begun
    left, number = pytestconfig.getoption("kills") or KILLED, 0
    while left:
        number += 1
        folder = lab.place.store / f"m{number}"
        for _kill in range(min(left, IN_A_ROW)):
            left -= 1
            process = FORK.Process(target=lambda name: lab.ensure(name=name), args=(folder.name,))
            process.start()
            process.join(random.uniform(0, whole_time))
            process.kill()
            process.join()
            # no name before all of it is there
            if folder.exists():
                assert whole(folder) == {name: files[name] for name in NEEDED}
                break
        lab.ensure(name=folder.name)
        assert whole(folder) == {name: files[name] for name in NEEDED}
    names = ["first", *(f"m{place}" for place in range(1, number + 1))]
    assert sorted(path.name for path in lab.place.store.iterdir()) == sorted([*names, *(f".{n}.lock" for n in names)])


def test_of_two_at_once_one_fetches_and_the_other_finds_it(lab: Lab) -> None:
    lab.server.pace = 0.1
    processes = [FORK.Process(target=lab.ensure) for _number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert lab.server.fetched() == {name: len(FILES[name]) for name in NEEDED if FILES[name]}
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}


def test_a_store_that_is_read_only_is_enough_where_the_model_is_whole(
    lab: Lab, small: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small("size=10m")
    lab.ensure()
    (lab.folder / FIRST).touch()
    lab.server.requests.clear()
    subprocess.run(["mount", "-o", "remount,ro", str(lab.place.store)], check=True)
    assert lab.ensure()["fetched_files"] == 0
    # what it is now is kept on this host
    with monkeypatch.context() as patch:
        patch.setattr(model_store.model_record, "digest", None)
        assert lab.ensure()["fetched_files"] == 0
    assert lab.server.requests == []
    assert "Read-only file system" in lab.refused(name="another")
    subprocess.run(["mount", "-o", "remount,rw", str(lab.place.store)], check=True)
    damage(lab.folder / SECOND, "truncated")
    subprocess.run(["mount", "-o", "remount,ro", str(lab.place.store)], check=True)
    told = lab.refused()
    assert f"{SECOND} has {len(FILES[SECOND]) - 7} of {len(FILES[SECOND])} bytes" in told
    assert f"{lab.place.store} is read only here" in told


def test_a_store_may_be_a_link(lab: Lab, tmp_path: Path) -> None:
    lab.place.store.symlink_to(tmp_path / "disk")
    assert f"{lab.place.store} is a link to {tmp_path / 'disk'}, which is not there: mount it" in lab.refused()
    (tmp_path / "disk").mkdir()
    lab.ensure()
    assert whole(tmp_path / "disk/m") == {name: FILES[name] for name in NEEDED}
    assert lab.ensure()["fetched_files"] == 0


def test_code_needs_a_yes(lab: Lab) -> None:
    code = {"modeling_a.py": b"import os\n", "sub/b.py": b""}
    lab.server.commit(REPO, {**FILES, **code})
    told = lab.refused()
    assert "could be told to run (modeling_a.py, sub/b.py): read it in" in told and "/tree/" in told
    assert lab.server.fetched() == {}
    result = lab.ensure(trust_remote_code=True)
    assert result["code"] == ["modeling_a.py", "sub/b.py"] and (lab.folder / "sub/b.py").exists()
    assert "could be told to run" in lab.refused()
    assert lab.ensure(name="n", ignore=("*.py",))["code"] == []
    assert not (lab.place.store / "n/modeling_a.py").exists()


def test_code_of_another_repository_needs_a_yes(lab: Lab) -> None:
    config = {"architectures": ["A"], "auto_map": {"AutoConfig": "else/where--config.Config", "AutoModel": "own.Model"}}
    lab.server.commit(REPO, {**FILES, "config.json": json.dumps(config).encode()})
    assert "could be told to run (else/where--config.Config)" in lab.refused()
    assert not lab.folder.exists()
    lab.ensure(trust_remote_code=True)


def test_a_copy_of_a_fetched_model_is_verified_and_asks_no_hub(lab: Lab, tmp_path: Path) -> None:
    lab.ensure()
    there = replace(lab.place, store=tmp_path / "other", records=tmp_path / "others")
    subprocess.run(["cp", "-r", lab.place.store, there.store], check=True)
    lab.server.requests.clear()
    assert model_store.ensure(lab.model, there, False, True, lab.said.append)["fetched_files"] == 0
    assert lab.server.requests == []
    (there.store / "m" / FIRST).write_bytes(FILES[SECOND])
    told = model_store.ensure(lab.model, there, False, True, lab.said.append)
    assert [FIRST in problem for problem in told["damaged"]] == [True] and list(lab.server.fetched()) == [FIRST]


def test_patterns_choose_files(lab: Lab) -> None:
    lab.server.commit(REPO, {"a-Q4.gguf": b"GGUF4", "a-Q8.gguf": b"GGUF8", "config.json": b"{}"})
    lab.ensure(allow=("*Q4.gguf", "config.json"))
    assert sorted(whole(lab.folder)) == ["a-Q4.gguf", "config.json"]
    lab.ensure(name="alone", allow=("*Q8.gguf",))
    assert sorted(whole(lab.place.store / "alone")) == ["a-Q8.gguf"]


def test_no_name_leads_out_of_the_directory(lab: Lab) -> None:
    names = ["../outside.txt", "/outside.txt", "a/../../outside.txt", ".cache/x"]
    lab.server.commit(REPO, {**FILES, **dict.fromkeys(names, b"x")})
    lab.ensure()
    assert sorted(whole(lab.folder)) == sorted(NEEDED)
    assert not list(lab.place.store.parent.rglob("outside.txt"))


def test_a_check_tells_what_would_come_and_writes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(len(FILES[name]) for name in NEEDED)
    checked = lab.ensure(change=False)
    assert (checked["fetched_files"], checked["fetched_size"]) == (len(NEEDED), size)
    assert checked["usual_seconds"] is None
    assert lab.server.fetched() == {} and not lab.place.store.exists() and not lab.place.records.exists()
    monkeypatch.setattr(model_store, "MEASURED", 0)
    done = lab.ensure()
    assert {**done, "usual_seconds": None} == checked
    rate = json.loads((lab.place.records / model_store.RATES).read_text())[lab.server.address]
    assert lab.ensure(name="n", change=False)["usual_seconds"] == round(size / rate)
    assert lab.ensure(change=False)["fetched_files"] == 0


def test_a_check_on_a_host_that_can_not_ask_says_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_hub: Hub) -> None:
        raise Refused("ensurepip is not available")

    monkeypatch.setattr(Hub, "has_client", lambda _hub: False)
    monkeypatch.setattr(Hub, "install", refuse)
    result = model_store.all_of([lab.model], lab.place, [], False, False, lambda _line: None)
    assert result["changed"] and "failed" not in result
    assert result["told"] == ["m: would fetch it; how large it is is not known: ensurepip is not available"]


def test_how_far_it_is_is_told_in_bytes_and_rate(lab: Lab) -> None:
    lab.server.commit(REPO, {**FILES, **{f"more-{number}.json": b" " * 1000 for number in range(40)}})
    lab.server.pace = 0.5
    lab.ensure()
    lines = [line for line in lab.said if "/s" in line]
    assert lines and all(re.fullmatch(r"m: [\d.]+ [kM]?B of 140 kB, [\d.]+ [kM]?B/s, .+ left", line) for line in lines)
    assert "\r" not in "".join(lab.said)


def test_a_model_is_removed_unless_an_instance_uses_it(lab: Lab) -> None:
    lab.ensure()
    used = {"launch L of instance 'a'": ["/srv/other", str(lab.folder / "draft")]}
    lab.ensure(name="n")
    with pytest.raises(Refused, match=r"m is not removed: launch L of instance 'a' has .*/m/draft"):
        model_store.remove(["n", "m"], lab.place, used, True)
    assert (lab.place.store / "n").exists()  # nothing goes where something is refused
    model_store.remove(["n"], lab.place, {}, True)
    assert model_store.remove(["m", "nothing"], lab.place, {}, False) == ["m"] and lab.folder.exists()
    assert model_store.remove(["m", "nothing"], lab.place, {"launch L": ["/srv/other"]}, True) == ["m"]
    assert sorted(path.name for path in lab.place.store.iterdir()) == [".m.lock", ".n.lock"]
    (lab.place.store / "own").mkdir()
    for name, told in (("own", "was not fetched by this role"), ("../own", "is no name of a model")):
        with pytest.raises(Refused, match=told):
            model_store.remove([name], lab.place, {}, True)


class InPlace:
    """A model that is there already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "there"
        self.folder.mkdir()
        for name in NEEDED:
            (self.folder / name).write_bytes(FILES[name])
        nowhere = Hub("http://127.0.0.1:1", "0", "", folder / "root")
        self.place = Place(folder / "store", folder / "records", nowhere)
        self.record = self.place.records / "m.json"

    def ensure(self, full: bool = False, change: bool = True, **other: Any) -> dict[str, Any]:
        model = replace(Model("m", path=str(self.folder)), **other)
        return model_store.ensure(model, self.place, full, change, lambda _line: None)

    def refused(self, **other: Any) -> str:
        with pytest.raises(Refused) as caught:
            self.ensure(**other)
        return str(caught.value)


@pytest.fixture
def there(tmp_path: Path) -> InPlace:
    return InPlace(tmp_path)


def test_a_model_in_place_is_verified_and_not_changed(there: InPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat() for path in there.folder.rglob("*")}
    assert there.ensure(change=False)["files"] == len(NEEDED)
    assert not there.record.exists()
    assert there.ensure()["fetched_files"] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }
    monkeypatch.setattr(model_store.model_record, "structure_problems", None)
    there.ensure()
    assert not there.place.store.exists()


@pytest.mark.parametrize("how", ["removed", "truncated"])
def test_damage_in_place_is_told(there: InPlace, how: str) -> None:
    there.ensure()
    damage(there.folder / SECOND, how)
    told = there.refused()
    assert SECOND in told and ("lacks 1 files" in told or f"has {len(FILES[SECOND]) - 7} of" in told)


def test_a_changed_content_in_place_is_told_where_its_hash_is_known(there: InPlace) -> None:
    there.ensure(full=True)
    there.ensure(full=True)
    (there.folder / FIRST).touch()
    there.ensure()
    damage(there.folder / FIRST, "changed")
    assert re.search(rf"{FIRST} was changed since 20.*hash sha256:\w+, expected is sha256:\w+", there.refused())
    there.record.unlink()  # as it says
    there.ensure()


def test_code_in_place_needs_a_yes(there: InPlace) -> None:
    (there.folder / "modeling.py").touch()
    assert f"could be told to run (modeling.py): read it in {there.folder}" in there.refused()
    assert there.ensure(trust_remote_code=True)["code"] == ["modeling.py"]
    assert "modeling.py" in there.refused()


def test_a_place_that_is_not_there_is_told(there: InPlace, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert f"{link}, a link to {tmp_path / 'gone'}, can not be read: No such file" in there.refused(path=str(link))
    link.unlink()
    link.symlink_to(there.folder)
    assert there.ensure(path=str(link))["files"] == len(NEEDED)
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in there.refused(path=str(tmp_path / "empty"))


def test_links_that_lead_nowhere_or_back_are_no_part_of_a_model(there: InPlace) -> None:
    (there.folder / "NOTES.md").symlink_to("/nowhere/blob")
    for name in ("a", "b"):
        (there.folder / name).symlink_to(there.folder)
    assert there.ensure()["files"] == len(NEEDED)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_record_is_told(there: InPlace, content: str) -> None:
    there.ensure()
    there.record.write_text(content)
    assert f"the record {there.record} is damaged: delete it and deploy again" in there.refused()


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.safetensors", "model.bin", "a.pt", "x.gguf", "onnx/m.onnx"], ["model.safetensors"]),
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["pytorch_model.bin", "config.json"], ["pytorch_model.bin", "config.json"]),
        (["model.safetensors", "encoder/model.safetensors", "tokenizer.model"],
         ["model.safetensors", "encoder/model.safetensors", "tokenizer.model"]),
    ],
)  # fmt: skip
def test_other_forms_of_the_same_weights_are_not_needed(names: list[str], kept: list[str]) -> None:
    assert list(model_store.needed({name: {} for name in names})) == kept


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ([Model("../a", "o/m")], "name '../a'"),
        ([Model("a", "o/m"), Model("a", "o/n")], "'a' is there twice"),
        ([Model("a")], "needs exactly one of 'repo', 'path' and 'copy_from'"),
        ([Model("a", "o/m", path="/a")], "needs exactly one of 'repo', 'path' and 'copy_from'"),
        ([Model("a", path="b/c")], "write an absolute one"),
    ],
)
def test_a_list_that_must_be_corrected_is_told(models: list[Model], told: str) -> None:
    (problem,) = model_store.problems_of(models)
    assert told in problem


def test_a_model_is_not_to_be_had_and_removed() -> None:
    assert "is to be had and to be removed" in model_store.problems_of([Model("a", "o/m")], ["a"])[0]


def test_what_would_come_and_what_was_damaged_is_told(lab: Lab) -> None:
    def told(change: bool) -> Any:
        return model_store.all_of([lab.model], lab.place, [], False, change, lambda _line: None)["told"]

    (line,) = told(False)
    assert re.fullmatch(r"m: would fetch 7 files of \w{40}, 100 kB, unknown time", line)
    assert told(True) == []
    damage(lab.folder / FIRST, "truncated")
    told_size = f"m: {lab.folder / FIRST} has {len(FILES[FIRST]) - 7} of {len(FILES[FIRST])} bytes: fetched again"
    assert told(True) == [told_size]
    assert told(True) == told(False) == []


def test_one_model_that_is_refused_keeps_no_other_from_coming(there: InPlace) -> None:
    models = [Model("a", path="/nowhere"), Model("own", "o/m"), Model("m", path=str(there.folder))]
    (there.place.store / "own").mkdir(parents=True)  # not of this role
    assert not any(model_store.is_settled(model, there.place) for model in models)
    result = model_store.all_of(models, there.place, [], False, True, lambda _line: None)
    assert result["failed"] and "/nowhere" in result["msg"] and [one["name"] for one in result["models"]] == ["m"]


@pytest.mark.parametrize(
    ("size", "told"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (16.4e9, "16.4 GB"), (2e12, "2.00 TB")],
)
def test_amounts(size: float, told: str) -> None:
    assert model_store.amount(size) == told
