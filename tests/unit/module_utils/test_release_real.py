# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installations with the real uv, of small wheels from an index on loopback."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import fcntl
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import (
    release,
    release_bytecode,
    release_found,
    release_lock,
    release_record,
    release_source,
    release_uv,
    release_wheelhouse,
    schema_probe,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.release import Means, ReleaseSpec
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import supervisord
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import Steps, passwords
from conftest import run_module
from release_index import SERVER, Index, serving, sglang, wheel

UV = "0.13.9"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# the host's own interpreter makes the releases, not a link into the project's environment
PYTHON = str(Path(sys.executable).resolve())


@pytest.fixture(scope="session")
def uv_home(pytestconfig: pytest.Config) -> Path:
    """The installer, which stays from one run to the next."""
    home = pytestconfig.cache.mkdir("uv") / UV
    with (home.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        release_uv.get(Steps("tests", home.parent, environment), PYTHON, home, UV)
    return home


@dataclasses.dataclass
class Place:
    """A host and an index."""

    folder: Path
    index: Index
    uv_home: Path
    spec: ReleaseSpec
    environment: dict[str, str]
    cache: Path | None = None
    wheelhouse: Path | None = None

    @property
    def means(self) -> Means:
        place = self.spec.root / "uv" / UV
        if not place.exists():
            place.parent.mkdir(parents=True)
            place.symlink_to(self.uv_home)
        probe = inspect.getsource(schema_probe)
        return Means(UV, self.environment, probe, self.cache, self.wheelhouse)

    def ask(self, **changes: Any) -> Place:
        """Return the same with other wishes."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, **changes))

    def install(self) -> dict[str, Any]:
        return release.install(self.spec, self.means)

    def refused(self) -> str:
        with pytest.raises(Refused) as caught:
            self.install()
        assert release_record.read(self.spec.path) is None and not self.spec.path.exists()
        return str(caught.value)

    @property
    def site(self) -> Path:
        return self.spec.path / f"venv/lib/python{VERSION}/site-packages"

    @property
    def lock(self) -> str:
        return (self.spec.path / "lock.txt").read_text()


@pytest.fixture
def place(tmp_path: Path, uv_home: Path) -> Iterator[Place]:
    umask = os.umask(0o022)
    wheels = tmp_path / "wheels"
    sglang(wheels)
    wheel(wheels, "helper", "1.0")
    late = wheel(wheels, "helper", "2.0", files={"__init__.py": "raise ImportError('of another time')\n"})
    with serving(wheels) as index:
        index.days[late.name] = "2026-05-11"
        spec = ReleaseSpec("0.5.23", (), PYTHON, VERSION, tmp_path / "root")
        environment = {"UV_DEFAULT_INDEX": index.url, "UV_HTTP_RETRIES": "0"}
        yield Place(tmp_path, index, uv_home, spec, environment)
    os.umask(umask)


def test_a_version_gets_the_packages_of_its_time(place: Place) -> None:
    record = place.install()
    assert record["packages"] == ["helper==1.0", "sglang==0.5.23"]
    assert (record["date"], record["bytes"] > 500, record["lock"]) == (
        "2026-05-10",
        True,
        release_lock.digest(place.lock),
    )
    assert record["notes"] == []
    assert record["cuda"].startswith("torch of this release is made for no CUDA")
    assert release_record.changes(place.spec.path) == []
    assert list(place.site.glob("sglang/srt/__pycache__/server_args.*.pyc"))


def test_the_days_of_grace_count(place: Place) -> None:
    place.index.days["helper-2.0-py3-none-any.whl"] = "2026-05-10"
    assert "of another time" in place.refused()


@pytest.mark.parametrize(("date", "version"), [("2026-05-10", "1.0"), ("2026-05-11", "2.0"), ("latest", "2.0")])
def test_another_day_is_another_release(place: Place, date: str, version: str) -> None:
    wheel(place.folder / "wheels", "helper", "2.0")
    assert place.ask(date=date).spec.name != place.spec.name
    record = place.ask(date=date).install()
    assert record["packages"][0] == f"helper=={version}"
    assert (record["date"], record["inputs"]["date"]) == (date if date != "latest" else "", date)


def test_a_day_that_is_none_is_refused(place: Place) -> None:
    assert "sglang_install_date is 'May 2026': write a day like 2026-05-10" in place.ask(date="May 2026").refused()


def test_an_index_without_upload_times_gives_the_newest_and_says_so(place: Place) -> None:
    wheel(place.folder / "wheels", "helper", "2.0")
    place.index.times = False
    record = place.install()
    assert record["packages"][0] == "helper==2.0"
    assert record["date"] == ""
    assert f"{place.index.url.rpartition('/')[0]}/files tells no upload time of SGLang 0.5.23" in record["notes"][0]


def test_a_second_index_without_upload_times_is_named_by_its_file(place: Place, tmp_path: Path) -> None:
    wheel(tmp_path / "other", "extra", "1.0")
    sglang(place.folder / "wheels", requires=["helper", "extra"])
    (place.folder / "wheels/helper-2.0-py3-none-any.whl").unlink()
    with serving(tmp_path / "other") as other:
        other.times = False
        place.environment["UV_INDEX"] = other.url
        record = place.install()
    assert record["packages"] == ["extra==1.0", "helper==1.0", "sglang==0.5.23"]
    assert "an index tells no upload times (extra-1.0-py3-none-any.whl)" in record["notes"][0]


def test_wheels_of_a_folder_have_no_day(place: Place, tmp_path: Path) -> None:
    wheel(tmp_path / "local", "helper", "1.5+local")
    place.environment["UV_FIND_LINKS"] = str(tmp_path / "local")
    record = place.install()
    assert record["packages"] == ["helper==1.5+local", "sglang==0.5.23"]
    assert record["date"] == "2026-05-10"


@pytest.fixture
def node(place: Place, tmp_path: Path) -> Place:
    """One whose containers share a cache, of which one has installed."""
    place.cache = tmp_path / "cache"
    place.install()
    place.index.asked.clear()
    return place


def looked(place: Place) -> bool:
    """Tell whether the index was asked for what packages require, and not for their files alone."""
    return any(path.endswith(".metadata") for path in place.index.asked)


def test_a_second_container_gets_what_the_first_has_found(node: Place, tmp_path: Path) -> None:
    node.index.days["helper-2.0-py3-none-any.whl"] = "2026-05-10"
    second = node.ask(root=tmp_path / "second")
    assert second.install()["packages"] == ["helper==1.0", "sglang==0.5.23"] and not looked(node)
    assert second.lock == node.lock


@pytest.mark.parametrize("what", ["day", "overrides", "index", "interpreter", "time", "damaged", "cache"])
def test_what_was_found_for_something_else_does_not_count(
    node: Place, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = node.ask(root=tmp_path / "second")
    (kept,) = (tmp_path / "cache/locks").iterdir()
    if what == "day":
        second = second.ask(date="2026-05-09")
    elif what == "overrides":
        second = second.ask(overrides=("unasked==1",))
    elif what == "index":
        second.environment = {**node.environment, "UV_DEFAULT_INDEX": node.index.url.replace("127.0.0.1", "localhost")}
    elif what == "interpreter":
        monkeypatch.setattr(release_found, "INTERPRETER", "print('another')")
    elif what == "time":
        os.utime(kept, (time.time(), time.time() - 3700))
    elif what == "damaged":
        kept.write_text(kept.read_text()[:40])
    else:
        second.cache = tmp_path / "another"
    second.install()
    assert looked(node)


def test_what_may_become_another_is_not_kept(place: Place, tmp_path: Path) -> None:
    place.cache = tmp_path / "cache"
    wheel(place.folder / "wheels", "helper", "2.0")
    tomorrow = datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=1)
    for date in ("latest", str(tomorrow)):
        place.ask(date=date).install()
    place.index.times = False
    place.ask(root=tmp_path / "without").install()
    assert not (tmp_path / "cache/locks").exists()


def test_what_was_found_and_does_not_install_is_looked_for_again(node: Place, tmp_path: Path) -> None:
    node.index.days["helper-2.0-py3-none-any.whl"] = "2026-05-10"
    wheel(node.folder / "wheels", "helper", "2.0")
    (node.folder / "wheels/helper-1.0-py3-none-any.whl").unlink()
    shutil.rmtree(tmp_path / "cache/archive-v0")
    for folder in (tmp_path / "cache").glob("wheels-v*"):
        shutil.rmtree(folder)
    second = node.ask(root=tmp_path / "second")
    with contextlib.suppress(Refused):
        second.install()
    assert second.install()["packages"] == ["helper==2.0", "sglang==0.5.23"]


@pytest.mark.parametrize("what", ["login", "folder", "local index", "constraints", "several overrides", "wheel"])
def test_what_more_than_words_decide_is_not_kept(place: Place, tmp_path: Path, what: str) -> None:
    place.cache = tmp_path / "cache"
    local = wheel(tmp_path / "local", "helper", "1.5+local")
    (tmp_path / "words").write_text(f"unasked==1.0 --hash=sha256:{'0' * 64}\n")
    asked = place
    if what == "login":
        place.index.login = "me:geheim"
        place.environment["UV_DEFAULT_INDEX"] = place.index.url.replace("://", "://me:geheim@")
    elif what == "folder":
        place.environment["UV_FIND_LINKS"] = str(tmp_path / "local")
    elif what == "local index":
        place.environment["UV_INDEX"] = (tmp_path / "local").as_uri()
        (tmp_path / "local/helper").mkdir()
        (tmp_path / "local/helper/index.html").write_text(f"<a href='../{local.name}'>{local.name}</a>")
    elif what == "constraints":
        place.environment["UV_CONSTRAINT"] = str(tmp_path / "words")
    elif what == "several overrides":
        place.environment["UV_OVERRIDE"] = f"{tmp_path / 'words'} {tmp_path / 'words'}"
    else:
        asked = place.ask(overrides=(f"helper @ {local.as_uri()}",))
    asked.install()
    assert not (tmp_path / "cache/locks").exists()


def test_a_login_in_an_override_is_refused(place: Place) -> None:
    refused = place.ask(overrides=("helper @ http://me:geheim@127.0.0.1/helper-1.0-py3-none-any.whl",)).refused()
    assert "sglang_install_overrides has a login in an address" in refused and "geheim" not in refused
    assert not [path for path in place.folder.rglob("*") if path.is_file() and b"geheim" in path.read_bytes()]


def test_what_was_found_and_is_refused_is_looked_for_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(release.cuda_versions, "driver_problem", lambda *_: "too old")
        assert "too old" in place.refused()
    place.index.days["helper-2.0-py3-none-any.whl"] = "2026-05-10"
    wheel(place.folder / "wheels", "helper", "2.0")
    assert place.install()["packages"] == ["helper==2.0", "sglang==0.5.23"]


def records(site: Path) -> dict[str, set[tuple[str, ...]]]:
    """What each package has brought, without what says from where."""
    found = {}
    for path in site.glob("*.dist-info/RECORD"):
        with path.open() as file:
            found[path.parent.name] = {tuple(row) for row in csv.reader(file) if "RECORD" not in row[0]}
    return found


def test_a_lock_makes_the_same_files_on_another_host(place: Place, tmp_path: Path) -> None:
    first = place.install()
    wheel(place.folder / "wheels", "helper", "1.0.1")
    other = place.ask(lock=place.lock, root=tmp_path / "other")
    second = other.install()
    assert second["packages"] == first["packages"] and second["lock"] == first["lock"]
    assert second["files"] == first["files"]
    assert records(other.site) == records(place.site) and len(records(other.site)) == 2
    assert other.spec.name != place.spec.name and second["inputs"]["lock"] == first["lock"]
    # a release needs no cache
    shutil.rmtree(other.spec.root / "cache")
    assert release_record.changes(other.spec.path) == [] and records(other.site) == records(place.site)


def test_a_proxy_that_inspects_is_told_with_its_remedy(tmp_path: Path) -> None:
    said = "error: Failed to fetch | cause: invalid peer certificate: UnknownIssuer"
    with pytest.raises(Refused, match="set UV_SYSTEM_CERTS to 1 in sglang_install_environment"):
        Steps("SGLang", tmp_path, {}).run("resolving", ["/bin/sh", "-c", f"echo '{said}' >&2; exit 2"])


def test_other_files_have_another_digest(place: Place, tmp_path: Path) -> None:
    first = place.install()
    wheel(place.folder / "wheels", "helper", "1.0", files={"__init__.py": "version = '1.00'\n"})
    assert place.ask(root=tmp_path / "other").install()["files"] != first["files"]


def test_a_lock_reads_alike_however_it_is_laid_out(place: Place) -> None:
    place.install()
    lines = place.lock.splitlines()
    laid_out = "# made by hand\n" + "\n".join(line.replace(" --hash", " \\\n    --hash") for line in reversed(lines))
    assert place.ask(lock=laid_out).spec.name == place.ask(lock=place.lock).spec.name
    assert place.ask(lock=place.lock.replace("1.0", "1.1")).spec.name != place.ask(lock=place.lock).spec.name


@pytest.mark.parametrize(
    ("lock", "told"),
    [
        ("helper==1.0 --hash=sha256:00\n", "has no SGLang in it, not 0.5.23"),
        ("sglang==0.5.9 --hash=sha256:00\n", "has SGLang 0.5.9 in it, not 0.5.23"),
        ("sglang==0.5.23\n", "has the line 'sglang==0.5.23': each line names one package"),
        ("sglang>=0.5.23 --hash=sha256:00\n", "has the line 'sglang>=0.5.23"),
    ],
)
def test_a_lock_that_does_not_do_is_refused(place: Place, lock: str, told: str) -> None:
    assert told in place.ask(lock=lock).refused()


def test_a_file_that_is_not_that_of_the_lock_is_refused_with_both_digests(place: Place) -> None:
    place.install()
    lock, old = place.lock, release_lock.given(place.lock, "0.5.23").packages[0]
    changed = wheel(place.folder / "wheels", "helper", "1.0", files={"__init__.py": "evil = 1\n"})
    new = json.loads(place.index.page("helper") or "")["files"][0]["hashes"]["sha256"]
    told = place.ask(lock=lock, root=place.folder / "other").refused()
    assert changed.exists() and "helper==1.0" in told and old.digests[0] in told and new in told


def test_a_file_that_is_not_what_the_index_says_is_refused(place: Place) -> None:
    page = place.index.page
    wrong = "0" * 64

    def lying(project: str) -> bytes | None:
        told = json.loads(page(project) or b"{}")
        for file in told.get("files", []):
            if project == "helper":
                file["hashes"]["sha256"] = wrong
        return json.dumps(told).encode() if told else None

    place.index.page = lying  # type: ignore[method-assign]
    told = place.refused()
    assert "Hash mismatch for `helper==1.0`" in told and wrong in told


def test_a_pin_that_does_not_hold_is_refused(place: Place) -> None:
    place.install()
    sglang(place.folder / "wheels", requires=["helper==2.0"])
    digest = json.loads(place.index.page("sglang") or "")["files"][0]["hashes"]["sha256"]
    lock = f"{place.lock.splitlines()[0]}\nsglang==0.5.23 --hash=sha256:{digest}\n"
    told = place.ask(lock=lock).refused()
    assert "The package `sglang` requires `helper==2.0`, but `1.0` is installed" in told
    # what an override replaces is meant
    assert place.ask(lock=lock, overrides=("Helper==1.0",)).install()["packages"][0] == "helper==1.0"


def test_a_package_that_an_override_leaves_out_is_not_missed(place: Place) -> None:
    sglang(place.folder / "wheels", requires=["helper", "unwanted[extra]>=1; python_version > '3'"])
    assert "unwanted" in place.refused()
    place.ask(overrides=("unwanted ; python_version < '3'",)).install()


def test_an_edit_reaches_neither_the_cache_nor_another_release(place: Place) -> None:
    place.install()
    (place.site / "helper/__init__.py").open("a").write("edited = 1\n")
    other = place.ask(overrides=("unasked==1",))
    other.install()
    assert (other.site / "helper/__init__.py").read_text() == "version = '1.0'\n"
    (other.site / "helper/__init__.py").open("a").write("edited = 2\n")
    assert "edited = 2" not in (place.site / "helper/__init__.py").read_text()


def test_a_damaged_cache_is_repaired(place: Place) -> None:
    place.install()
    (cached,) = (place.spec.root / "cache").glob("archive-v0/*/helper/__init__.py")
    cached.write_text("version = '9.9'\n")
    other = place.ask(overrides=("unasked==1",))
    other.install()
    assert (other.site / "helper/__init__.py").read_text() == "version = '1.0'\n"


def test_a_wheel_whose_files_are_not_its_record_is_refused(place: Place) -> None:
    path = place.folder / "wheels/helper-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes().replace(b"version = '1.0'\n", b"version = '1.1'\n"))
    told = place.refused()
    # either uv or the check afterwards tells
    assert "helper" in told


def test_an_index_that_is_gone_is_named(place: Place) -> None:
    place.environment["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple"
    assert "http://127.0.0.1:9/simple/sglang/" in place.refused()


def test_an_interpreter_that_does_not_fit_is_refused_before_anything_is_installed(place: Place) -> None:
    (place.folder / "wheels/sglang-0.5.23-py3-none-any.whl").unlink()
    sglang(place.folder / "wheels", tag="cp38-cp38-manylinux_2_34_x86_64")
    told = place.refused()
    assert "`cp38`" in told and PYTHON in told and "set sglang_install_python" in told
    assert not [path for path in place.index.asked if path.endswith(".whl")]
    sglang(place.folder / "wheels", python=">=3.99")
    assert "3.99" in place.refused()


def test_a_platform_without_a_wheel_is_told_which_would_do(place: Place) -> None:
    (place.folder / "wheels/sglang-0.5.23-py3-none-any.whl").unlink()
    sglang(place.folder / "wheels", tag="py3-none-manylinux_2_99_x86_64")
    told = place.refused()
    assert "`manylinux_2_99_x86_64`" in told and "glibc 2." in told


def test_byte_code_comes_from_the_cache_and_is_made_anew_where_it_does_not_load(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataclasses.replace(place, cache=place.folder / "cache")
    first.install()
    (bundle,) = (place.folder / "cache/bytecode").iterdir()
    laid = []
    lay = release_bytecode.Bundle.lay
    monkeypatch.setattr(release_bytecode.Bundle, "lay", lambda one: laid.append(lay(one)) or laid[-1])
    first.ask(root=place.folder / "second").install()
    with zipfile.ZipFile(bundle) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, code in kept.items():
            archive.writestr(name, code[:16] + b"no code" if name == "helper/__init__.py" else code)
    first.ask(root=place.folder / "third").install()
    assert [bool(count) for count in laid] == [True, True]
    with zipfile.ZipFile(bundle) as archive:
        assert b"no code" not in archive.read("helper/__init__.py")
    # a file that the cache has lost is still found out, and brought again
    (cached,) = (place.folder / "cache").glob("archive-v0/*/helper/__init__.py")
    cached.unlink()
    fourth = first.ask(root=place.folder / "fourth")
    fourth.install()
    assert (fourth.site / "helper/__init__.py").exists()
    first.environment["UV_COMPILE_BYTECODE"] = "1"
    first.ask(root=place.folder / "fifth").install()


def test_a_cache_that_can_not_be_written_is_not_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = place.folder / "shared"
    (shared / "archive-v0").mkdir(parents=True)
    place.cache = shared
    temporary = release_uv.tempfile.TemporaryFile

    def refusing(dir: Path) -> Any:
        if dir == shared / "archive-v0":
            raise PermissionError(13, "Permission denied")
        return temporary(dir=dir)

    monkeypatch.setattr(release_uv.tempfile, "TemporaryFile", refusing)
    notes = place.install()["notes"]
    assert notes[0].startswith(f"the cache {shared} can not be written (Permission denied): {place.spec.root}/cache is")
    assert list((place.spec.root / "cache").iterdir())
    monkeypatch.undo()
    other = place.ask(overrides=("unasked==1",))
    assert "cache" not in str(other.install()["notes"])
    assert list((shared / "archive-v0").iterdir())


def test_too_little_room_is_known_before_anything_is_downloaded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.folder)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    told = place.refused()
    assert "its packages take about 0.0 GiB" in told and "nothing was installed" in told
    assert not [path for path in place.index.asked if path.endswith(".whl")]


def test_an_estimate_leaves_no_trace(place: Place) -> None:
    means = place.means
    before = sorted(place.folder.rglob("*"))
    told = release.estimate(place.spec, means)
    assert sorted(place.folder.rglob("*")) == before
    assert (told["packages"], told["seconds"]) == (2, None)
    record = place.install()
    assert told["bytes"] == record["bytes"]
    again = release.estimate(place.ask(overrides=("unasked==1",)).spec, means)
    assert again["seconds"] == pytest.approx(record["seconds"])


@pytest.mark.parametrize("driver", [None, "580.65.06"])
def test_kernels_that_do_not_load_count_where_there_is_a_driver(
    place: Place, driver: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as sgl_kernel says it
    lines = [
        "[sgl_kernel] CRITICAL: no library",
        "",
        "Error details:",
        "- ImportError: libcudart.so.13: no shared object",
    ]
    wheel(
        place.folder / "wheels",
        "sgl_kernel",
        "1.0",
        files={"__init__.py": f"raise ImportError({chr(10).join(lines)!r})\n"},
    )
    sglang(place.folder / "wheels", requires=["helper", "sgl-kernel"])
    monkeypatch.setattr(release.gpu_driver, "kernel_module", lambda: {"version": driver})
    why = "ImportError: [sgl_kernel] CRITICAL: no library; ImportError: libcudart.so.13: no shared object"
    if driver:
        assert f"does not load beside the driver {driver}: {why}" in place.refused()
    else:
        (note,) = place.install()["notes"]
        assert note == f"not proved: that the kernels load: this host has no NVIDIA driver ({why})"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import sgl_kernel", "(ImportError: libcudart.so.13)"),
        ("raise ImportError('libcuda.so.1')", "(ImportError: libcudart.so.13; the server: ImportError: libcuda.so.1)"),
        ("import nowhere", ""),
    ],
)
def test_a_server_that_does_not_load_without_a_driver_is_told_and_a_missing_package_refused(
    place: Place, line: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(place.folder / "wheels", "sgl_kernel", "1.0", files={"__init__.py": "raise ImportError('libcudart.so.13')\n"})
    monkeypatch.setitem(SERVER, "srt/entrypoints/http_server.py", f"{line}\n")
    sglang(place.folder / "wheels", requires=["helper", "sgl-kernel"])
    monkeypatch.setattr(release.gpu_driver, "kernel_module", lambda: {"version": None})
    if told:
        (note,) = place.install()["notes"]
        assert note == f"not proved: that the server and its kernels load: this host has no NVIDIA driver {told}"
    else:
        assert "ModuleNotFoundError: No module named 'nowhere'" in place.refused()


def test_a_wheel_on_the_host_is_installed_instead(place: Place) -> None:
    own = sglang(place.folder / "own", requires=["helper==1.0"])
    built = place.ask(**release_source.asked(str(own)))
    record = built.install()
    assert record["packages"] == ["helper==1.0", f"sglang @ {own.as_uri()}"]
    assert own.as_uri() in built.lock and release_record.changes(built.spec.path) == []
    sglang(place.folder / "own", requires=["helper<2"])
    assert place.ask(**release_source.asked(str(own))).spec.name != built.spec.name


KILLED = 12  # moments, unless --kills says how many
IN_A_ROW = 5  # of the same installation, before it may come to its end
CHILD = """
import json, sys
from pathlib import Path
from ansible_collections.gpuops.sglang.plugins.module_utils.release import Means, ReleaseSpec, install
told = json.loads(sys.argv[1])
spec = ReleaseSpec("0.5.23", tuple(told["overrides"]), told["python"], told["version"], Path(told["root"]))
install(spec, Means(told["uv"], told["environment"], told["probe"]))
"""


def begun(place: Place) -> subprocess.Popen[bytes]:
    """Start the installation in a process of its own."""
    spec, means = place.spec, place.means
    told = {"overrides": spec.overrides, "python": spec.python, "version": spec.python_version, "root": str(spec.root)}
    told |= {"uv": UV, "environment": dict(means.environment), "probe": means.schema_probe}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(told)], env=environment)


def test_a_kill_at_any_moment_leaves_the_other_release_and_nothing_that_counts(
    place: Place, pytestconfig: pytest.Config
) -> None:
    old = place.install()
    files = {path: path.stat().st_mtime_ns for path in place.spec.path.rglob("*")}
    start = time.monotonic()
    assert begun(place.ask(overrides=("unasked==0",))).wait() == 0
    whole = time.monotonic() - start
    left = pytestconfig.getoption("kills") or KILLED
    while left:
        new = place.ask(overrides=(f"unasked=={left}",))
        for _kill in range(min(left, IN_A_ROW)):
            left -= 1
            child = begun(new)
            time.sleep(random.uniform(0, whole))
            child.kill()
            child.wait()
            if release_record.read(new.spec.path) is not None:
                break
        # what was whole when it was killed counts as it is
        record = new.install()
        assert record["packages"] == old["packages"] and release_record.changes(new.spec.path) == []
        assert records(new.site) == records(place.site) and record["files"] == old["files"]
        # release.json comes last: nothing that is needed is made after it
        assert sorted(path.name for path in new.spec.path.iterdir()) == sorted(
            path.name for path in place.spec.path.iterdir()
        )
    assert release_record.read(place.spec.path) == old
    assert {path: path.stat().st_mtime_ns for path in place.spec.path.rglob("*")} == files


def test_two_hosts_at_once_share_a_cache(place: Place, tmp_path: Path) -> None:
    place.environment["UV_CACHE_DIR"] = str(tmp_path / "shared")
    hosts = [place.ask(root=tmp_path / name) for name in ("one", "two", "three")]
    children = [begun(host) for host in hosts]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert records(hosts[0].site) == records(hosts[1].site) == records(hosts[2].site)


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system of its own, which only root can."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("size", [40, 100, 400, 700])
def test_a_disk_that_fills_up_at_any_stage_is_named_and_the_next_run_goes_on(
    place: Place, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(place.folder / "wheels", "helper", "1.0", files={"__init__.py": "", "data": "x" * 600_000})
    monkeypatch.setattr(release.release_room, "UNPACKED", 0)
    with small_disk(place.folder / "small", f"size={size}k") as small:
        root = small / "root"
        (root / "uv").mkdir(parents=True)
        (root / "uv" / UV).symlink_to(place.uv_home)
        other = place.ask(root=root)
        told = other.refused()
        assert str(small) in told and "GiB free" in told, told
        subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
        assert other.install()["packages"] == ["helper==1.0", "sglang==0.5.23"]


@pytest.mark.parametrize("inodes", [12, 40, 60])
def test_a_disk_without_inodes_is_named(place: Place, inodes: int) -> None:
    with small_disk(place.folder / "small", f"size=20m,nr_inodes={inodes}") as small:
        (small / "root/uv").mkdir(parents=True)
        (small / "root/uv" / UV).symlink_to(place.uv_home)
        other = place.ask(root=small / "root")
        assert "inodes free" in other.refused()
        subprocess.run(["mount", "-o", "remount,nr_inodes=4000", str(small)], check=True)
        other.install()


@pytest.mark.skipif(os.geteuid() != 0, reason="the module needs root")
def test_check_mode_tells_what_would_be_installed(place: Place) -> None:
    asked = {"version": "0.5.23", "python": PYTHON, "uv_version": UV, "root": str(place.spec.root), "estimate": True}
    asked |= {"environment": dict(place.means.environment), "_ansible_check_mode": True}
    told = run_module("sglang_release", asked)[0]
    size = told["estimate"]["bytes"]
    assert told["changed"] and told["estimate"] == {"packages": 2, "bytes": size, "seconds": None} and size > 500
    assert told["diff"]["after"].splitlines() == [
        "SGLang 0.5.23", "2 packages, 0.00 GB of files", "for an unknown time: none was installed here before"
    ]  # fmt: skip
    asked["environment"] = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    told = run_module("sglang_release", asked)[0]
    assert told["changed"] and "http://127.0.0.1:9/simple/sglang/" in str(told["warnings"])
    assert not place.spec.path.exists()


@pytest.fixture
def wheelhouse(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a connected machine collects for a host with another Python."""
    (place.folder / "wheels/sglang-0.5.23-py3-none-any.whl").unlink()
    sglang(place.folder / "wheels", tag="cp313-cp313-manylinux_2_34_x86_64")
    sglang(place.folder / "wheels", tag=f"cp{VERSION.replace('.', '')}-none-any")
    wheel(place.folder / "wheels", "uv", UV)
    wheel(place.folder / "wheels", "supervisor", supervisord.VERSION)
    monkeypatch.setattr(release_wheelhouse.release_uv, "get", lambda *_: str(place.uv_home / "bin/uv"))
    return place.folder / "wheelhouse"


@pytest.mark.parametrize("way", ["address", "variables"])
def test_an_index_with_a_login(place: Place, wheelhouse: Path, way: str) -> None:
    place.index.login = "bot:planted-9e21"
    address = place.index.url
    if way == "address":
        place.environment["UV_DEFAULT_INDEX"] = address.replace("://", f"://{place.index.login}@")
    else:
        place.environment |= {"UV_DEFAULT_INDEX": f"own={address}"}
        place.environment |= {"UV_INDEX_OWN_USERNAME": "bot", "UV_INDEX_OWN_PASSWORD": "planted-9e21"}
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "", "")
    _lock, came = release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    assert len(came) == 4
    place.install()
    place.index.login = "bot:another"
    shutil.rmtree(wheelhouse)
    with pytest.raises(Refused) as caught:
        release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    assert "planted" not in str(caught.value)
    kept = [path for path in [*place.spec.path.glob("*.*"), *wheelhouse.rglob("*")] if path.is_file()]
    assert kept and not [path for path in kept if b"planted" in path.read_bytes()]


def test_indexes_of_one_host_with_different_logins(place: Place) -> None:
    place.index.login = "b:2"
    host = place.index.url.partition("://")[2].partition("/")[0]
    addresses = {"UV_INDEX": f"http://a:1@{host}/x y=http://{host}/y", "UV_FIND_LINKS": f"/wheels,http://c:3@{host}/z"}
    logins = release_wheelhouse._logins({**addresses, "UV_INDEX_Y_USERNAME": "b", "UV_INDEX_Y_PASSWORD": "2"})
    assert [len(found) for found in logins.values()] == [3]
    with release_wheelhouse._opened(f"http://{host}/files/helper-1.0-py3-none-any.whl", ["", *logins[host]]) as answer:
        assert answer.read(2) == b"PK"


def test_a_host_without_an_index_installs_from_a_wheelhouse(place: Place, wheelhouse: Path) -> None:
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "", "")
    lock, came = release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    assert sorted(path.name for path in wheelhouse.iterdir()) == sorted([*came, "lock.txt"]) and len(came) == 4
    assert (lock.date, (wheelhouse / "lock.txt").read_text()) == ("2026-05-10", lock.text)
    # once more, of which one file was damaged
    (wheelhouse / "helper-1.0-py3-none-any.whl").write_text("half")
    assert release_wheelhouse.make(target, wheelhouse, UV, place.environment)[1] == ["helper-1.0-py3-none-any.whl"]
    place.environment["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple"
    place.index.asked.clear()
    place.wheelhouse = wheelhouse
    record = place.install()
    assert record["packages"] == ["helper==1.0", "sglang==0.5.23"] and not place.index.asked
    archive = place.folder / "wheelhouse.tar"
    subprocess.run(["tar", "-cf", archive, "-C", place.folder, "wheelhouse"], check=True)
    other = place.ask(lock=lock.text)
    other.wheelhouse = archive
    assert other.install()["lock"] == record["lock"]
    archive.write_bytes(archive.read_bytes()[:1700])
    broken = place.ask(lock=lock.text, root=place.folder / "other")
    broken.wheelhouse = archive
    assert f"{archive} is damaged" in broken.refused()


def test_a_wheelhouse_is_for_another_python_and_platform(place: Place, wheelhouse: Path) -> None:
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "3.13", "x86_64-manylinux_2_36")
    _lock, came = release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    assert "sglang-0.5.23-cp313-cp313-manylinux_2_34_x86_64.whl" in came
    old = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "3.13", "x86_64-manylinux_2_28")
    with pytest.raises(Refused, match="manylinux_2_34_x86_64"):
        release_wheelhouse.make(old, wheelhouse, UV, place.environment)


def test_a_wheelhouse_with_other_wheels_is_refused_and_keeps_them(place: Place, wheelhouse: Path) -> None:
    wheelhouse.mkdir()
    (wheelhouse / "mine-1.0-py3-none-any.whl").touch()
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "", "")
    with pytest.raises(Refused, match=r"has mine-1.0-py3-none-any.whl, which SGLang 0.5.23 of this day does not need"):
        release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    assert [path.name for path in wheelhouse.iterdir()] == ["mine-1.0-py3-none-any.whl"]


def test_a_wheelhouse_comes_through_a_proxy(place: Place, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    proxy = place.index.url.rpartition("/")[0]
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "", "")
    outside = {"UV_DEFAULT_INDEX": "http://index.example.com/simple", "UV_HTTP_RETRIES": "0", "http_proxy": proxy}
    _lock, came = release_wheelhouse.make(target, wheelhouse, UV, outside)
    asked = [path for path in place.index.asked if path.endswith(".whl")]
    assert sorted(asked) == sorted(f"http://index.example.com/files/{name}" for name in came)
    assert [name.partition("-")[0] for name in came] == ["helper", "sglang", "supervisor", "uv"]


def test_an_index_can_not_name_a_file_outside_of_the_wheelhouse() -> None:
    package = release_lock.Package("x", "1", url="https://index.example.com/x/..%2F..%2Fetc%2Fx-1-py3-none-any.whl")
    assert release_wheelhouse._name(package) == "x-1-py3-none-any.whl"
    with pytest.raises(Refused, match="which is no wheel"):
        release_wheelhouse._name(dataclasses.replace(package, url="https://index.example.com/..%2Fcron.d%2Fx"))


@pytest.mark.parametrize(
    "asked", [f"git+https://bot:planted-1@git.example.com/s@{'a' * 40}", "git+https://planted-1@git.example.com/s@main"]
)
def test_a_login_in_the_source_or_a_lock_is_refused_and_not_shown(asked: str) -> None:
    for refuse in (release_source.asked, lambda text: release_lock.given(f"sglang @ {text}\n", "0.5.23")):
        with pytest.raises(Refused, match="has a login in") as caught:
            refuse(asked)
        assert "planted" not in str(caught.value)
    assert passwords({"x": asked}) == {"planted-1"}
    assert release_source.asked(f"git+ssh://git@git.example.com/s@{'a' * 40}")["source"].startswith("git+ssh")


def test_the_day_ends_at_the_same_instant_everywhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.environment["TZ"] = "America/Los_Angeles"
    assert "helper==1.0" in place.ask(date="2026-05-10").install()["packages"]


def test_an_archive_is_not_kept_in_the_release_nor_unpacked_for_a_look(place: Place, wheelhouse: Path) -> None:
    target = release_wheelhouse.Target("0.5.23", (), "", PYTHON, "", "")
    release_wheelhouse.make(target, wheelhouse, UV, place.environment)
    archive = place.folder / "wheelhouse.tar"
    subprocess.run(["tar", "-cf", archive, "-C", place.folder, "wheelhouse"], check=True)
    place.wheelhouse = archive
    with pytest.raises(Refused, match="is unpacked for an installation alone"):
        release.estimate(place.spec, place.means)
    place.install()
    assert not list(place.spec.path.rglob("*.whl"))


def test_a_wheelhouse_that_is_not_there_is_named(place: Place) -> None:
    place.wheelhouse = place.folder / "nowhere"
    assert f"there is no {place.wheelhouse}" in place.refused()
