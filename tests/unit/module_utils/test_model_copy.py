# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models that are copied from a real ssh server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
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
from ansible_collections.gpuops.sglang.plugins.module_utils import model_copy, model_record, model_store
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.hub import Hub
from ansible_collections.gpuops.sglang.plugins.module_utils.model_copy import Ssh, from_host
from ansible_collections.gpuops.sglang.plugins.module_utils.model_store import Model, Place
from hub_server import blob, sha256, small_model
from model_lab import FILES, FIRST, FORK, MIB, NEEDED, SECOND, ModelLab, damage, whole
from ssh_server import SSHD, SshServer, new_key

pytestmark = pytest.mark.skipif(not (SSHD and shutil.which("rsync")), reason="needs Debian's openssh-server and rsync")
# a space, what a shell and rsync's patterns mean, and a directory beside it that such a pattern would take too
ODD = "a b'$(id)\\[x]*"
PROJECT = Path(__file__).parents[3]
COMMIT = "b968826d9c46dd6066d109eabc6255188de91218"


class Lab(ModelLab):
    """A store here, and a directory on a host."""

    def __init__(self, folder: Path, server: SshServer) -> None:
        self.server, self.there = server, folder / "there"
        self.put(FILES)
        self.ssh = Ssh(server.key, server.known_hosts)
        place = Place(folder / "store", folder / "records", Hub("http://127.0.0.1:1", "0", "", folder / "root"))
        super().__init__(place, Model("m", copy_from=self.address(self.there)))

    def address(self, path: object) -> str:
        return f"ssh://{self.server.user}@127.0.0.1:{self.server.port}{path}"

    def put(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            (self.there / name).parent.mkdir(parents=True, exist_ok=True)
            (self.there / name).write_bytes(content)

    def fetched_there(self) -> None:
        """Leave the record of a model that was fetched."""
        files = {name: {**model_record.state_of(self.there / name, f"sha256:{sha256(FILES[name])}")} for name in NEEDED}
        files["README.md"]["hash"] = f"git-sha1:{blob(FILES['README.md'])}"
        origin = {"repo": "owner/model", "revision": "main", "endpoint": "https://hub.example.com", "commit": COMMIT}
        record = {**origin, "allow": [], "ignore": [], "code": [], "files": files, "verified": "2026-01-01T00:00:00Z"}
        model_record.write(self.there / model_record.NAME, record)

    def asked(self, ssh: Ssh | None = None) -> Place:
        return replace(self.place, ssh=ssh or self.ssh)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    home = tmp_path / "sshd"
    home.mkdir()
    with SshServer(home).running() as server:
        yield Lab(tmp_path, server)


def rsyncs(folder: Path) -> list[int]:
    """Return the processes of rsync that copy into a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"rsync" and f"{folder}/".encode() in words:
            found.append(int(path.parent.name))
    return sorted(found)


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_model_is_copied_once_and_asks_nobody_afterwards(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.there / "config.json").chmod(0o600)
    checked = lab.ensure(change=False)
    assert not lab.place.store.exists() and not lab.place.records.exists()
    monkeypatch.setattr(model_store, "MEASURED", 0)
    result = lab.ensure()
    assert {**result, "usual_seconds": None} == checked
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    size = sum(len(FILES[name]) for name in NEEDED)
    assert (result["fetched_files"], result["fetched_size"], result["commit"]) == (len(NEEDED), size, "")
    assert result["copy_from"] == lab.record["copy_from"] == lab.model.copy_from
    hashes = {name: f"sha256:{sha256(FILES[name])}" for name in NEEDED}
    assert {name: file["hash"] for name, file in lab.record["files"].items()} == hashes
    assert lab.folder.stat().st_mode & 0o777 == 0o755 and (lab.folder / "config.json").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in lab.place.store.iterdir()) == [".m.lock", "m"]
    assert model_record.needs_no_hub(lab.folder, {})
    assert json.loads((lab.place.records / model_store.RATES).read_text()).keys() == {"127.0.0.1"}
    assert lab.ensure(name="n", change=False)["usual_seconds"] is not None
    lab.server.stop()
    assert model_store.is_settled(lab.model, lab.place)
    assert lab.ensure()["fetched_files"] == lab.ensure(full=True)["fetched_files"] == 0
    # the same host by another user and port
    assert lab.ensure(copy_from=f"127.0.0.1:{lab.there}/")["fetched_files"] == 0
    other = f"kpro5:{lab.there}"
    told = f"{lab.folder} has {lab.model.copy_from}, asked for is a copy of {other}: a model is not changed once"
    assert lab.refused(copy_from=other).startswith(told)
    assert f"has {lab.model.copy_from}, asked for is o/m:" in lab.refused(copy_from="", repo="o/m")


def test_what_would_be_copied_is_told(lab: Lab) -> None:
    result = model_store.all_of([lab.model], replace(lab.place, ssh=lab.ssh), [], False, False, lab.said.append)
    size = model_store.amount(sum(len(FILES[name]) for name in NEEDED))
    told = f"{len(NEEDED)} files of {lab.model.copy_from}, {size}, unknown time"
    assert result["told"] == [f"m: would fetch {told}"] and result["diff"][0]["after"] == f"{told}\n"


def test_a_fetched_model_is_copied_by_its_record(lab: Lab) -> None:
    lab.fetched_there()
    lab.put({"NOTES.txt": b"not of the model"})
    result = lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert result["commit"] == COMMIT
    origin = {"repo": "owner/model", "commit": COMMIT, "copy_from": lab.model.copy_from}
    assert {name: lab.record[name] for name in origin} == origin
    assert lab.record["files"]["README.md"]["hash"] == f"git-sha1:{blob(FILES['README.md'])}"
    # what is listed by its repository is the same model, and a copy of the copy has its commit too
    assert lab.ensure(copy_from="", repo="owner/model")["fetched_files"] == 0
    assert lab.ensure(name="n", copy_from=lab.address(lab.folder))["commit"] == COMMIT


def test_what_differs_from_the_record_there_is_not_taken(lab: Lab) -> None:
    lab.fetched_there()
    damage(lab.there / FIRST, "changed")
    wrong = (lab.there / FIRST).read_bytes()
    wrong = wrong[: len(FILES[FIRST])]
    (lab.there / FIRST).write_bytes(wrong)
    told = lab.refused()
    expected, found = sha256(FILES[FIRST]), hashlib.sha256(wrong).hexdigest()
    assert f"{lab.partial / FIRST} has the hash sha256:{found}, expected is sha256:{expected}" in told
    assert "what 127.0.0.1 sent is removed" in told and not lab.folder.exists()
    (lab.there / FIRST).write_bytes(FILES[FIRST])
    lab.server.sent()
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert lab.server.sent() < len(FILES[FIRST]) + 10_000


@pytest.mark.parametrize(
    ("how", "told"),
    [("removed", f"lacks {FIRST}"), ("truncated", f"has {len(FILES[FIRST]) - 7} of {len(FILES[FIRST])} bytes")],
)
def test_what_lacks_beside_the_record_there_is_told_before_anything_comes(lab: Lab, how: str, told: str) -> None:
    lab.fetched_there()
    damage(lab.there / FIRST, how)
    assert f"{lab.model.copy_from} {told}" in lab.refused()
    assert not lab.place.store.exists() or not lab.partial.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{", '{"files": {"a": {"size": 1, "hash": ""}}}', '{"files": {"a": {"size": 1}}}',
        '{"files": {"a": {"hash": "sha256:0"}}}', '{"files": {"a": {"hash": "sha256:0", "size": "1"}}}',
        '{"files": {"a": {"hash": "sha256:0", "size": true}}}',
    ],
)  # fmt: skip
def test_a_damaged_record_there_is_told(lab: Lab, content: str) -> None:
    (lab.there / model_record.NAME).write_text(content)
    assert f"the record {lab.model.copy_from}/.gpuops-model.json is damaged: have the model" in lab.refused()


def test_a_shard_that_is_cut_off_there_makes_no_model(lab: Lab) -> None:
    damage(lab.there / SECOND, "truncated")
    told = lab.refused()
    assert f"{lab.model.copy_from} is no whole model" in told
    assert f"{SECOND} has {len(FILES[SECOND]) - 7} of {len(FILES[SECOND])} bytes" in told and not lab.folder.exists()
    # put right there, with the same beginning or another
    (lab.there / SECOND).write_bytes(FILES[SECOND])
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}


def test_a_damaged_file_is_copied_again_and_no_other_content(lab: Lab) -> None:
    lab.ensure()
    damage(lab.folder / FIRST, "truncated")
    damage(lab.folder / "config.json", "removed")
    result = lab.ensure()
    assert result["fetched_files"] == len(result["damaged"]) == 2
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED} and not lab.partial.exists()
    damage(lab.folder / FIRST, "truncated")
    damage(lab.there / FIRST, "changed")
    assert f"of {len(FILES[FIRST])} bytes" in lab.refused() or "has the hash" in lab.refused()
    assert (lab.folder / FIRST).stat().st_size == len(FILES[FIRST]) - 7
    lab.server.stop()
    assert "Connection refused" in lab.refused()


@pytest.mark.parametrize("recorded", [True, False])
def test_an_interrupted_copy_goes_on_within_the_file(lab: Lab, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    large = small_model(size=16 * MIB)
    lab.put(large)
    if recorded:
        monkeypatch.setattr("test_model_copy.FILES", large)
        lab.fetched_there()
    lab.server.line(pace=0.02)

    def cut(line: str) -> None:
        lab.said.append(line)
        if sum(path.stat().st_size for path in lab.partial.glob("*.safetensors")) > 2 * MIB:
            for pid in rsyncs(lab.partial)[:1]:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(Refused, match=r"rsync was ended|connection unexpectedly closed") as caught:
        model_store.ensure(lab.model, replace(lab.place, ssh=lab.ssh), False, True, cut)
    assert str(caught.value).endswith("deploy again, which goes on")
    assert re.fullmatch(r"m: [\d.]+ [kM]?B of 33.6 MB(, [\d.]+ [kM]?B/s, [^,]+ left)?", lab.said[-1])
    wait_for(lambda: not rsyncs(lab.partial))
    kept = sum(path.stat().st_size for path in lab.partial.glob("*.safetensors"))
    assert kept > MIB and not lab.folder.exists()
    lab.server.line()
    time.sleep(0.1)
    lab.server.sent()
    lab.ensure()
    assert lab.server.sent() < 2 * 16 * MIB - kept + MIB
    assert whole(lab.folder) == {name: large[name] for name in NEEDED}


def test_a_cut_connection_is_told_and_gone_on_with(lab: Lab) -> None:
    large = small_model(size=8 * MIB)
    lab.put(large)
    lab.server.line(cut=5 * MIB)
    told = lab.refused()
    assert lab.model.copy_from in told and told.endswith("deploy again, which goes on")
    assert sum(path.stat().st_size for path in lab.partial.glob("*.safetensors")) > 4 * MIB
    lab.server.line()
    lab.ensure()
    assert whole(lab.folder) == {name: large[name] for name in NEEDED}


def test_a_beginning_of_another_content_is_put_right(lab: Lab) -> None:
    lab.partial.mkdir(parents=True)
    (lab.partial / FIRST).write_bytes(b"x" * 20_000)
    (lab.partial / SECOND).write_bytes(FILES[SECOND] + b"more")
    lab.ensure()
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}


@pytest.mark.parametrize("planned", [True, False])
def test_what_was_replaced_unnoticed_makes_no_mix_of_two_models(lab: Lab, planned: bool) -> None:
    for name in FILES:
        os.utime(lab.there / name, (1, 1))
    (lab.there / SECOND).rename(lab.there / "kept")
    (lab.there / SECOND).write_bytes(FILES[SECOND][:-7])
    lab.refused()
    assert (lab.partial / FIRST).read_bytes() == FILES[FIRST]
    if not planned:
        (lab.partial / model_store.PLAN).unlink()
    (lab.there / "kept").unlink()
    other = small_model("b")
    assert {name: len(other[name]) for name in (FIRST, SECOND)} == {name: len(FILES[name]) for name in (FIRST, SECOND)}
    for name in (FIRST, SECOND):
        lab.put({name: other[name]})
        os.utime(lab.there / name, (1, 1))
    lab.ensure()
    assert [whole(lab.folder)[name] for name in (FIRST, SECOND)] == [other[name] for name in (FIRST, SECOND)]


def test_a_plan_knows_the_size_and_no_plan_nothing(tmp_path: Path) -> None:
    wanted = {"a": {"size": 2, "hash": "", "changed": "then"}, "b": {"size": 2, "hash": "sha256:0", "changed": "then"}}

    def kept(size: int) -> list[str]:
        for name in wanted:
            (tmp_path / name).write_text("xy")
        model_store._keep_known(tmp_path, {**wanted, "a": {**wanted["a"], "size": size}})
        return sorted(model_record.files_of(tmp_path))

    assert [kept(2), kept(2), kept(3)] == [["b"], ["a", "b"], ["b"]]


def test_a_list_has_the_times_of_no_zone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    source = from_host(lab.model.copy_from, lab.ssh)
    assert source
    os.utime(lab.there / FIRST, (1, 1))
    monkeypatch.setitem(model_copy.CLEAN, "TZ", "XYZ-5")
    assert source.plan((), ())["files"][FIRST]["changed"] == "1970/01/01 00:00:01"


def test_a_file_that_was_changed_there_meanwhile_begins_anew(lab: Lab) -> None:
    lab.put({"original/params.pth": b"", "README.md": b"a" * 100})
    damage(lab.there / SECOND, "truncated")
    lab.refused()
    os.utime(lab.there / "README.md", (1, 1))
    lab.put({SECOND: FILES[SECOND]})
    (lab.there / "README.md").write_bytes(b"b" * 100)
    os.utime(lab.there / "README.md", (1, 1))
    lab.ensure()
    assert (lab.folder / "README.md").read_bytes() == b"b" * 100


def test_rsync_ends_with_who_has_started_it(lab: Lab) -> None:
    lab.put(small_model(size=16 * MIB))
    lab.server.line(pace=0.05)
    process = FORK.Process(target=lab.ensure)
    process.start()
    wait_for(lambda: rsyncs(lab.partial))
    process.kill()
    process.join()
    wait_for(lambda: not rsyncs(lab.partial))
    lab.server.line()
    lab.ensure()
    assert len(whole(lab.folder)) == len(NEEDED)


def test_a_path_may_have_any_name(lab: Lab, tmp_path: Path) -> None:
    for name in (f"plain\\name/{ODD}", f"plain\\name/{ODD.replace('*', 'y')}"):
        shutil.copytree(lab.there, tmp_path / name)
    shutil.copytree(lab.there, tmp_path / "plain\\name", dirs_exist_ok=True)
    folder = tmp_path / "plain\\name"
    (folder / ODD / "sp ace ü [0].txt").write_text("odd")
    (folder / ODD.replace("*", "y") / "other.txt").touch()
    lab.ensure(copy_from=lab.address(folder / ODD))
    assert whole(lab.folder) == {**{name: FILES[name] for name in NEEDED}, "sp ace ü [0].txt": b"odd"}
    lab.ensure(name="n", copy_from=lab.address(folder), ignore=("a b*",))
    assert whole(lab.place.store / "n") == {name: FILES[name] for name in NEEDED}


def test_patterns_and_code_are_as_with_a_hub(lab: Lab) -> None:
    lab.put({"modeling.py": b"", "sub/b.py": b"", "more/c.txt": b""})
    told = lab.refused()
    assert f"could be told to run (modeling.py, sub/b.py): read it in {lab.model.copy_from}, then" in told
    assert lab.ensure(name="n", ignore=("*.py", "more/"))["code"] == []
    assert sorted(whole(lab.place.store / "n")) == sorted(NEEDED)
    assert lab.ensure(trust_remote_code=True)["code"] == ["modeling.py", "sub/b.py"]
    assert "no file that 'allow' and 'ignore' leave" in lab.refused(name="o", allow=("nothing*",))
    assert "was fetched with ignore: none" in lab.refused(trust_remote_code=True, ignore=("*.md",))


def snapshot_in(cache: Path) -> Path:
    """Make a snapshot as a hub's client does."""
    snapshot = cache / "snapshots" / COMMIT
    for name in NEEDED:
        stored, link = cache / "blobs" / sha256(FILES[name]), snapshot / name
        for path in (stored, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(FILES[name])
        link.symlink_to(os.path.relpath(stored, link.parent))
    return snapshot


def test_links_of_a_hub_cache_are_followed(lab: Lab, tmp_path: Path) -> None:
    snapshot = snapshot_in(tmp_path / "hub/models--owner--model")
    (snapshot / "dropped.txt").symlink_to("../../blobs/gone")
    lab.ensure(copy_from=lab.address(snapshot))
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    assert not any(path.is_symlink() for path in lab.folder.rglob("*"))


def test_no_link_leads_out_of_a_hub_cache(lab: Lab, tmp_path: Path) -> None:
    cache, outside = tmp_path / "hub/models--owner--model", tmp_path / "outside"
    snapshot, x = snapshot_in(cache), "x.txt"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret").touch()
    (cache / "blobs/.hidden").touch()
    (cache / "blobs/b").symlink_to(outside / "secret")
    (cache / "blobs/sub").symlink_to(outside / "sub")
    for target in ("blobs/b", "blobs/sub", "blobs/sub/y", "blobs/.hidden", "blobs", "refs/main", f"snapshots/{COMMIT}"):
        (snapshot / x).symlink_to(f"../../{target}")
        assert f"is a link to ../../{target}, outside" in lab.refused(copy_from=lab.address(snapshot)), target
        (snapshot / x).unlink()
    (cache / "blobs").rename(tmp_path / "blobs")
    (cache / "blobs").symlink_to(tmp_path / "blobs")
    assert "outside of the model" in lab.refused(copy_from=lab.address(snapshot))


def test_a_path_that_is_a_link_is_judged_where_it_leads(lab: Lab, tmp_path: Path) -> None:
    snapshot = snapshot_in(tmp_path / "real/models--owner--model")
    (tmp_path / "snapshots").mkdir()
    link = tmp_path / "snapshots/main"
    link.symlink_to(snapshot)
    lab.ensure(copy_from=lab.address(link))
    assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    (snapshot / "x.txt").symlink_to(snapshot / "README.md")
    told = f"x.txt is a link to {snapshot}/README.md, which is absolute, so nobody can tell whether it stays in the"
    assert told in lab.refused(name="n", copy_from=lab.address(link))


@pytest.mark.parametrize(
    ("name", "target"), [("loop", "."), ("sub/loop", "."), ("sub/loop", ".."), ("sub/loop", "../sub"), ("loop", "loop")]
)
def test_a_link_back_to_where_it_is_is_refused(lab: Lab, name: str, target: str) -> None:
    (lab.there / "sub").mkdir(exist_ok=True)
    (lab.there / name).symlink_to(target)
    assert lab.refused().endswith(f"/{name} is a link to {target}, where it is in itself: remove it")


def test_a_link_through_a_hidden_folder_is_refused(lab: Lab, tmp_path: Path) -> None:
    (lab.there / ".h").mkdir()
    (tmp_path / "secret").touch()
    (lab.there / ".h/l").symlink_to(tmp_path)
    for target in (".h/l/secret", str(lab.there / ".h/l/secret")):
        (lab.there / "x.txt").symlink_to(target)
        assert f"x.txt is a link to {target}, outside of the model" in lab.refused()
        (lab.there / "x.txt").unlink()


def test_a_name_that_is_not_utf_8_is_told(lab: Lab) -> None:
    Path(os.fsdecode(bytes(lab.there) + b"/b\xffd.txt")).touch()
    assert f"the name of {lab.model.copy_from}/b\ufffdd.txt is not UTF-8 where \ufffd stands" in lab.refused()
    assert lab.ensure(ignore=("b*d.txt",))["files"] == len(NEEDED)


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "deep/up/../../secret", "../../blobs/x", "../there2/x"])
def test_a_link_out_of_the_directory_is_refused(lab: Lab, target: str) -> None:
    (lab.there / "deep/er").mkdir(parents=True)
    (lab.there / "deep/up").symlink_to("er")
    (lab.there / "x.txt").symlink_to(target)
    why = "which is absolute" if target[0] == "/" else "outside of the model"
    assert f"{lab.model.copy_from}/x.txt is a link to {target}, {why}" in lab.refused()
    (lab.there / "x.txt").rename(lab.there / "x.txt -> README.md")
    assert "outside of the model" in lab.refused()
    (lab.there / "x.txt -> README.md").unlink()
    (lab.there / "x.txt").symlink_to(lab.there / "README.md")
    lab.ensure()
    assert (lab.folder / "x.txt").read_bytes() == FILES["README.md"]


def test_the_copying_shares_no_connection(lab: Lab) -> None:
    (lab.server.home / "config").write_text("ControlMaster auto\nControlPersist 60\nControlPath /tmp/%C\n")
    with lab.ssh.command(None) as words:
        done = subprocess.run(
            [*words.split(), "-G", "-F", str(lab.server.home / "config"), "kpro5"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert "controlmaster false" in done.stdout and "controlpath" not in done.stdout


def test_who_is_not_known_or_not_let_in_is_told(lab: Lab, tmp_path: Path) -> None:
    other = new_key(tmp_path / "other")
    told = {
        "Host key verification failed": ("sglang_model_ssh_known_hosts", Ssh(lab.ssh.key, "else ssh-ed25519 AAAA")),
        "Permission denied (publickey)": ("set sglang_model_ssh_key to a key that", Ssh(other, lab.ssh.known_hosts)),
        "Load key": ("whole text of a private key", Ssh("no key", lab.ssh.known_hosts)),
    }
    for said, (step, ssh) in told.items():
        found = lab.refused(ssh=ssh)
        assert found.startswith(f"can not copy {lab.model.copy_from}: ") and said in found and step in found
    changed = lab.ssh.known_hosts.replace(
        (lab.server.home / "host.pub").read_text().strip(), (tmp_path / "other.pub").read_text().strip()
    )
    found = lab.refused(ssh=Ssh(lab.ssh.key, changed))
    assert (
        "has changed" in found and "compare its key with that of" in found and "@@@" not in found and "-R" not in found
    )
    assert not lab.folder.exists()


def test_what_is_not_there_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/nowhere/m", lab.there / "config.json"):
        assert lab.refused(copy_from=lab.address(path)).endswith("correct the path in 'copy_from'")
    monkeypatch.setattr(model_copy.shutil, "which", lambda name, path: None)
    told = "this host has no rsync and no ssh: install the packages rsync and openssh-client"
    assert lab.refused() == told
    result = model_store.all_of([lab.model], lab.place, [], False, False, lab.said.append)
    assert result["told"] == [f"m: would fetch it; how large it is is not known: {told}"]


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("bash: line 1: rsync: command not found\nrsync error", "install the package rsync there"),
        ('rsync: [sender] send_files failed to open "/x/a": Permission denied (13)', "take a user that may read"),
        ('rsync: [receiver] write failed on "/s/a": No space left on device (28)', "make room here and deploy again"),
        ("ssh: connect to host kpro5 port 22: Connection timed out", "see whether this host reaches it"),
        ("", "can not copy kpro5:/m: rsync was ended: deploy again, which goes on"),
    ],
)
def test_the_next_step_is_told(said: str, step: str) -> None:
    made = from_host("kpro5:/m", Ssh())
    assert made and step in made._why(said)


def test_who_moves_a_model_with_a_damaged_record_away_gets_it_anew(lab: Lab) -> None:
    lab.ensure()
    record = lab.folder / model_record.NAME
    record.write_text("{")
    told = f"the record {record} is damaged: move {lab.folder} away and deploy again, which fetches the model anew"
    assert lab.refused() == told
    lab.folder.rename(lab.place.store / "away")
    assert lab.ensure()["fetched_files"] == len(NEEDED)


def test_the_role_installs_nothing_for_a_copy_that_is_there(lab: Lab, tmp_path: Path) -> None:
    lab.ensure()
    # a host with apt, which notes its calls, and without rsync and ssh
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text(f"#!/bin/sh\necho called >>{tmp_path}/apt\n")
    (programs / "apt-get").chmod(0o755)
    (programs / "sh").symlink_to("/bin/sh")
    tasks = yaml.safe_load((PROJECT / "roles/sglang_model/tasks/copy.yml").read_text())
    for task in tasks:
        if task.pop("ansible.builtin.apt", None):
            task["ansible.builtin.command"] = f"{programs}/apt-get install"
    asked = {"sglang_model_store": str(lab.place.store), "sglang_model_environment": {}, "ansible_connection": "local"}
    asked["ansible_python_interpreter"] = sys.executable
    for name, called in (("m", False), ("n", True)):
        models = [{"name": "hub", "repo": "o/m"}, {"name": name, "copy_from": "kpro5:/m"}]
        play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
        play |= {"vars": {**asked, "sglang_model_models": models}, "environment": {"PATH": str(programs)}}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        argv = [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", tmp_path / "play.yml"]
        done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        noted = (tmp_path / "apt").read_text().count("called") if (tmp_path / "apt").exists() else 0
        assert (noted == 2) is called  # its version, and the installation


def test_too_little_room_is_told_before_anything_comes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    state = os.statvfs("/")

    class Full:
        f_frsize, f_bavail, f_files, f_favail = state.f_frsize, 1, 0, 0

    monkeypatch.setattr(model_store.os, "statvfs", lambda _path: Full)
    for change in (True, False):
        assert re.match(r"7 files need \d+ kB in .*store, and .* has .* free: make room", lab.refused(change=change))
    assert not list(lab.place.store.rglob("*.safetensors"))


def test_a_disk_that_fills_up_meanwhile_leaves_no_model(lab: Lab) -> None:
    lab.place.store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(lab.place.store)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_store, "_check_room", lambda *_: None)
            told = lab.refused()
        assert "No space left on device" in told and told.endswith("make room here and deploy again, which goes on")
        subprocess.run(["mount", "-o", "remount,size=10m", str(lab.place.store)], check=True)
        lab.ensure()
        assert whole(lab.folder) == {name: FILES[name] for name in NEEDED}
    finally:
        subprocess.run(["umount", str(lab.place.store)], check=True)


def test_the_key_is_in_no_argument_variable_or_file(lab: Lab, tmp_path: Path) -> None:
    lab.put(small_model(size=4 * MIB))
    lab.server.line(pace=0.02)
    secret = lab.ssh.key.splitlines()[2].encode()
    process = FORK.Process(target=lab.ensure)
    process.start()
    looked = 0
    while process.is_alive():
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            assert secret not in seen
            key = re.search(rb" -i (/proc/\d+/fd/\d+)[ \0]", seen.replace(b"\0", b" ") + b" ")
            if b"IdentitiesOnly" in seen and key and process.is_alive():
                with contextlib.suppress(OSError):  # it may end meanwhile
                    assert os.readlink(key[1]).startswith(b"/memfd:")
                    looked += 1
        time.sleep(0.02)
    assert process.exitcode == 0 and looked
    places = [path for place in ("store", "records") for path in (tmp_path / place).rglob("*") if path.is_file()]
    assert places and not any(secret in path.read_bytes() for path in places)
    assert secret.decode() not in str(lab.said) + repr(lab.place) + repr(lab.ssh)
    with lab.ssh.command(None) as words:
        file = Path(words.rpartition("-i ")[2].split()[0])
        assert file.stat().st_mode & 0o777 == 0o600 and secret in file.read_bytes()
    assert not file.exists()


@pytest.mark.parametrize(
    ("copy_from", "login", "port", "path"),
    [
        ("kpro5:/srv/m", "kpro5", None, "/srv/m"),
        ("root@kpro5.example.com:/srv/a b:c/", "root@kpro5.example.com", None, "/srv/a b:c"),
        ("ssh://root@10.0.0.1:2222/srv/m", "root@10.0.0.1", "2222", "/srv/m"),
        ("ssh://kpro5/srv/m", "kpro5", None, "/srv/m"),
        ("root@[fe80::1%eth0]:/srv/m", "root@[fe80::1%eth0]", None, "/srv/m"),
    ],
)
def test_both_forms_of_an_address_are_understood(copy_from: str, login: str, port: str | None, path: str) -> None:
    made = from_host(copy_from, Ssh())
    assert made and (made.login, made.port, made.path) == (login, port, path)


@pytest.mark.parametrize(
    "copy_from",
    [
        "-oProxyCommand=touch x:/m", "-oProxyCommand=x@host:/m", "root@-oProxyCommand=x:/m",
        "ssh://-oProxyCommand=x/m", "ssh://-lroot@host/m", "a b:/m", "a -oProxyCommand=x@host:/m",
        "root@host -oX=y:/m", "host'\":/m", "host\t:/m", "$(id):/m", "`id`:/m", "host::module/m", "rsync://host/m",
        "host:relative", "host:", "host:/", "host:///", "/m", "host://a", "ssh://host:22x/m", "ssh://host:-p/m",
        "host:/a\nb", "host:/a\0b", "[::1]x:/m", "@host:/m", "höst:/m",
    ],
)  # fmt: skip
def test_a_hostile_address_is_refused(copy_from: str) -> None:
    assert from_host(copy_from, Ssh()) is None
    (problem,) = model_store.problems_of([Model("a", copy_from=copy_from)])
    assert problem.startswith(f"model 'a' has copy_from {copy_from!r}: write [USER@]HOST:/PATH or")


def test_only_one_origin_is_taken() -> None:
    for model in (Model("a", "o/m", copy_from="h:/m"), Model("a", path="/m", copy_from="h:/m")):
        assert "needs exactly one of 'repo', 'path' and 'copy_from'" in model_store.problems_of([model])[0]
