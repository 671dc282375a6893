# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Byte code that goes from one release to the next, read by the interpreter itself."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import release_bytecode, release_files, release_record
from ansible_collections.gpuops.sglang.plugins.module_utils.release_bytecode import ABANDONED, KEPT, Bundle

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
MODULES = ("alone", "pack/__init__", "pack/part")


def site_of(folder: Path, body: str = "value = 1\n", age: int = 100) -> Path:
    """A site-packages with three modules, whose files were written `age` s ago."""
    info = folder / "one-1.0.dist-info"
    info.mkdir(parents=True)
    lines = []
    for name in MODULES:
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)
        os.utime(path, (time.time() - age,) * 2)
        lines.append(f"{name}.py,{release_record.digest_of(str(path))},{len(body)}\n")
    (info / "RECORD").write_text("".join(lines))
    return folder


def bundle_of(site: Path, cache: Path, version: str = VERSION) -> Bundle:
    with release_files.checked(site, cache) as checking:
        assert checking.damage() == []
        return Bundle(cache, checking.site, checking.owners, version)


def compiled_modules(site: Path) -> list[str]:
    """The modules whose byte code Python takes for theirs."""
    words = [
        sys.executable,
        "-B",
        "-I",
        "-v",
        "-c",
        f"import sys; sys.path[:0] = [{str(site)!r}]; import alone, pack.part",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    taken = [line.partition(" matches ")[2] for line in done.stderr.splitlines()]
    return sorted(os.path.relpath(line, site)[: -len(".py")] for line in taken if line.startswith(f"{site}/"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def kept(tmp_path: Path, cache: Path) -> Bundle:
    """A bundle of a release that was loaded."""
    first = site_of(tmp_path / "first")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(first)], check=True)
    bundle = bundle_of(first, cache)
    assert not bundle.lay()
    bundle.keep(0)
    return bundle


def test_the_next_release_of_the_same_files_has_nothing_to_compile(tmp_path: Path, cache: Path, kept: Bundle) -> None:
    second = site_of(tmp_path / "second", age=50)  # written at another time
    assert compiled_modules(second) == []
    bundle = bundle_of(second, cache)
    assert bundle.path == kept.path and bundle.lay()
    assert compiled_modules(second) == list(MODULES)
    # what is edited later counts
    (second / "alone.py").write_text("value = 2\n")
    assert len(compiled_modules(second)) == 2


@pytest.mark.parametrize("what", ["content", "interpreter"])
def test_another_release_gets_none_of_it(tmp_path: Path, cache: Path, kept: Bundle, what: str) -> None:
    second = site_of(tmp_path / "second", "value = 2\n" if what == "content" else "value = 1\n")
    bundle = bundle_of(second, cache, VERSION if what == "content" else "3.8")
    assert bundle.path != kept.path and not bundle.lay() and compiled_modules(second) == []


def test_a_bundle_that_is_damaged_is_forgotten(tmp_path: Path, cache: Path, kept: Bundle) -> None:
    whole = kept.path.read_bytes()
    site = site_of(tmp_path / "second")
    second = bundle_of(site, cache)
    bits = [
        bytes([*whole[:place], whole[place] ^ 1 << place % 8, *whole[place + 1 :]]) for place in range(0, len(whole), 7)
    ]
    forgotten = 0
    for damaged in (b"", whole[: len(whole) // 2], b"no archive", *bits):
        kept.path.write_bytes(damaged)
        second.lay()
        forgotten += not kept.path.exists()
        for path in site.rglob("*.pyc"):
            code = path.read_bytes()
            assert code[:4] == importlib.util.MAGIC_NUMBER and marshal.loads(code[16:])
            path.unlink()
    assert forgotten > len(bits) / 2  # some bits mean nothing, e.g. those of a time


def test_what_can_not_be_laid_is_compiled(
    tmp_path: Path, cache: Path, kept: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path / "second")
    bundle = bundle_of(site, cache)
    (site / "pack/part.py").unlink()  # the check of the files tells
    there = site / f"__pycache__/alone.{sys.implementation.cache_tag}.pyc"
    there.parent.mkdir()
    there.write_text("of the installer")
    assert bundle.lay() == len(MODULES)
    assert there.read_text() == "of the installer"
    assert [path.name.partition(".")[0] for path in site.glob("pack/__pycache__/*")] == ["__init__"]
    shutil.rmtree(site / "pack/__pycache__")
    (site / "pack/__pycache__").write_text("in the way")
    bundle.lay()
    assert kept.path.exists()


def test_more_that_was_compiled_takes_the_place_of_less(tmp_path: Path, cache: Path, kept: Bundle) -> None:
    with zipfile.ZipFile(kept.path) as archive:
        code = archive.read("alone.py")
    with zipfile.ZipFile(kept.path, "w") as archive:
        archive.writestr("alone.py", code)
    second = site_of(tmp_path / "second")
    bundle = bundle_of(second, cache)
    laid = bundle.lay()
    bundle.keep(laid)
    assert zipfile.ZipFile(kept.path).namelist() == ["alone.py"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(second)], check=True)
    bundle.keep(laid)
    assert sorted(zipfile.ZipFile(kept.path).namelist()) == [f"{name}.py" for name in MODULES]


def test_nothing_is_written_but_beside_a_source(tmp_path: Path, cache: Path, kept: Bundle) -> None:
    with zipfile.ZipFile(kept.path) as archive:
        code = archive.read("alone.py")
    second = site_of(tmp_path / "second")
    before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    with zipfile.ZipFile(kept.path, "w") as archive:
        for name in ("../outside.py", "/outside.py", "pack/nowhere.py", "pack", "alone.py"):
            archive.writestr(name, code)
    assert bundle_of(second, cache).lay()
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} == before
    assert not Path("/__pycache__").exists() and len(compiled_modules(second)) == 1


def test_a_file_of_two_packages_is_left_out(tmp_path: Path, cache: Path) -> None:
    site = site_of(tmp_path / "first")
    other = site / "two-1.0.dist-info"
    other.mkdir()
    (other / "RECORD").write_text(f"alone.py,{release_record.as_record(bytes(32))},3\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    bundle = bundle_of(site, cache)
    bundle.keep(0)
    assert zipfile.ZipFile(bundle.path).namelist() == ["pack/__init__.py", "pack/part.py"]


def test_byte_code_of_a_package_is_left_as_it_came(tmp_path: Path, cache: Path) -> None:
    bundles = []
    for name in ("first", "second"):
        site = site_of(tmp_path / name)
        own = site / f"__pycache__/alone.{sys.implementation.cache_tag}.pyc"
        own.parent.mkdir()
        own.write_bytes(b"as the package has it")
        with (site / "one-1.0.dist-info/RECORD").open("a") as record:
            record.write(f"{own.relative_to(site)},{release_record.digest_of(str(own))},21\n")
        bundles.append(bundle_of(site, cache))
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(site / "pack")], check=True)
        bundles[0].keep(0)
    (tmp_path / "second/pack/__pycache__").rename(tmp_path / "gone")
    assert bundles[1].lay() and own.read_bytes() == b"as the package has it"
    assert zipfile.ZipFile(bundles[1].path).namelist() == ["pack/__init__.py", "pack/part.py"]


def test_few_bundles_are_kept_and_nothing_of_one_that_was_killed(tmp_path: Path, cache: Path) -> None:
    folder = cache / release_bytecode.FOLDER
    folder.mkdir()
    old, young = folder / "tmp1.partial", folder / "tmp2.partial"
    for path in (old, young):
        path.write_text("")
    os.utime(old, (time.time() - ABANDONED - 60,) * 2)
    written = []
    for number in range(KEPT + 2):
        site = site_of(tmp_path / str(number), f"value = {number}\n")
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
        bundle = bundle_of(site, cache)
        bundle.keep(0)
        os.utime(bundle.path, (time.time() - 100 + number,) * 2)
        written.append(bundle.path)
    assert sorted(folder.iterdir()) == sorted([young, *written[-KEPT:]])


def test_a_cache_that_takes_no_bundle_is_no_obstacle(tmp_path: Path, cache: Path) -> None:
    (cache / release_bytecode.FOLDER).write_text("in the way")
    bundle = bundle_of(site_of(tmp_path / "first"), cache)
    bundle.keep(0)
    assert not bundle.lay()
