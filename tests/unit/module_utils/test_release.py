# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installations with a stand-in of Python, pip and uv that makes the same files."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, host, release, release_record
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.release import ReleaseSpec
from conftest import running

UV = "0.13.9"
OPTIONS = {"--tp-size": {"type": "int"}}
PACKAGES = ["sglang==0.5.23", "torch==2.14.1"]

# one program under the names of all: it notes each call, fails where a file says so, and makes what the real one makes
TOOL = r"""#!/bin/sh
state=@STATE@
for last; do :; done
case "$0 $*" in
*/host-python\ -m\ venv\ --clear\ *) step=installer-venv ;;
*/uv/*/bin/python\ -m\ pip\ install\ *) step=installer-pip ;;
*/bin/uv\ --version) step=uv-version ;;
*/bin/uv\ venv\ *) step=venv ;;
*/bin/uv\ pip\ compile\ *--no-deps*) step=look ;;
*/bin/uv\ pip\ compile\ *) step=resolve ;;
*/bin/uv\ pip\ check\ *) step=check ;;
*/bin/uv\ pip\ install\ *) step=install ;;
*/bin/uv\ pip\ freeze\ *) step=freeze ;;
*/venv/bin/python\ -I\ -) step=probe ;;
*) echo "unexpected: $0 $*" >&2; exit 99 ;;
esac
echo "$step $*" >>"$state/log"
if [ -e "$state/fail-$step" ]; then cat "$state/fail-$step" >&2; exit 7; fi
case $step in
installer-venv|venv) mkdir -p "$last/bin" && cp "$state/tool" "$last/bin/python" ;;
installer-pip) cp "$state/tool" "$(dirname "$0")/uv"; echo "${last#uv==}" >"$state/uv-version" ;;
uv-version) echo "uv $(cat "$state/uv-version") (x86_64)" ;;
install) env >"$state/environment"; cat >"$state/installed"
    if [ -e "$state/packed" ]; then
        mkdir -p "${6%bin/python}lib/python3.11"
        cp -r "$state/packed" "${6%bin/python}lib/python3.11/site-packages"
    fi ;;
look) cat "$state/alone" ;;
resolve) cat "${UV_OVERRIDE:-/dev/null}" >"$state/overrides"; cat >"$state/wanted"; cat "$state/resolved" ;;
freeze) cat "$state/packages" ;;
probe) cat >"$state/probe"; cat "$state/described" ;;
esac
"""


def pylock(*packages: str) -> str:
    blocks = ['lock-version = "1.0"\n']
    for package in packages:
        name, _, version = package.partition("==")
        file = f'url = "http://127.0.0.1/{name}.whl", size = 1000, hashes = {{ sha256 = "{hash_of(package)}" }}'
        blocks.append(f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{{ {file} }}]\n')
    return "\n".join(blocks)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Lab:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        tool = TOOL.replace("@STATE@", str(self.state))
        for path in (self.state / "tool", folder / "host-python"):
            path.write_text(tool)
            path.chmod(0o755)
        self.offer("cuda-toolkit==13.0.3.0", "torch==2.14.1")
        (self.state / "packages").write_text("torch==2.14.1\nsglang==0.5.23\n")
        self.describe("0.5.23")
        self.spec = ReleaseSpec(
            "0.5.23", ("torchvision ; python_version < '3'",), str(folder / "host-python"), "3.11", folder / "root"
        )

    def offer(self, *packages: str) -> None:
        """Let uv find these beside SGLang."""
        (self.state / "alone").write_text(pylock("sglang==0.5.23"))
        (self.state / "resolved").write_text(pylock("sglang==0.5.23", *packages))

    def describe(self, version: str) -> None:
        described = json.dumps({"sglang_version": version, "options": OPTIONS})
        (self.state / "described").write_text(f"a package greets\n{described}a package says goodbye\n")

    def fail(self, step: str, text: str = "first\nlast words\n") -> None:
        (self.state / f"fail-{step}").write_text(text)

    def heal(self) -> None:
        for path in self.state.glob("fail-*"):
            path.unlink()

    @property
    def steps(self) -> list[str]:
        """The steps since the last look."""
        log = self.state / "log"
        found = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
        log.write_text("")
        return found

    def install(self, **environment: str) -> dict[str, Any]:
        return release.install(self.spec, release.Means(UV, environment, "the source of the probe"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    umask = os.umask(0o077)
    yield Lab(tmp_path)
    os.umask(umask)


STEPS = ["look", "resolve", "venv", "install", "probe", "check", "freeze"]
ALL_STEPS = ["installer-venv", "installer-pip", *STEPS]


def test_an_installation_makes_a_release(lab: Lab) -> None:
    record = lab.install()
    assert lab.steps == ALL_STEPS
    assert record == release_record.read(lab.spec.path)
    assert record["name"] == lab.spec.name == lab.spec.path.name
    assert record["version"] == "0.5.23"
    assert record["packages"] == PACKAGES
    assert record["inputs"] == lab.spec.inputs
    assert release_record.schema(lab.spec.path) == OPTIONS
    assert (lab.state / "probe").read_text() == "the source of the probe"
    assert (lab.state / "overrides").read_text() == "torchvision ; python_version < '3'\n"


def test_a_release_that_is_there_is_not_touched(lab: Lab) -> None:
    record = lab.install()
    assert lab.steps == ALL_STEPS
    before = {path: path.stat().st_mtime_ns for path in lab.spec.path.rglob("*")}
    assert lab.install() == record
    assert lab.steps == []
    assert {path: path.stat().st_mtime_ns for path in lab.spec.path.rglob("*")} == before


def test_another_release_comes_beside_it_with_the_same_installer(lab: Lab) -> None:
    first = lab.install()
    lab.spec = dataclasses.replace(lab.spec, overrides=())
    assert lab.steps == ALL_STEPS
    second = lab.install()
    assert lab.steps == ["uv-version", *STEPS]
    assert first["name"] != second["name"]
    assert sorted(path.name for path in (lab.spec.root / "releases").iterdir()) == sorted(
        [first["name"], second["name"]]
    )


def test_everyone_may_read_a_release(lab: Lab) -> None:
    lab.install()
    for path in [lab.spec.root, *lab.spec.path.rglob("*")]:
        wanted = 0o555 if path.is_dir() else 0o444
        assert stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


def test_the_name_depends_on_every_input_and_on_nothing_else() -> None:
    spec = ReleaseSpec("0.5.23", ("a==1", "b==2"), "/usr/bin/python3", "3.11", Path("/opt/sglang"))
    same = [
        dataclasses.replace(spec, overrides=("b==2", "a==1")),
        dataclasses.replace(spec, python="/usr/local/bin/python3.11"),
        dataclasses.replace(spec, root=Path("/srv")),
    ]
    other = [
        dataclasses.replace(spec, version="0.5.22"),
        dataclasses.replace(spec, overrides=("a==1",)),
        dataclasses.replace(spec, overrides=("a==1", "b==3")),
        dataclasses.replace(spec, overrides=()),
        dataclasses.replace(spec, python_version="3.12"),
        dataclasses.replace(spec, compiler=True),
    ]
    assert {again.name for again in same} == {spec.name}
    assert len({spec.name, *(changed.name for changed in other)}) == len(other) + 1
    assert spec.name.startswith("0.5.23-")
    assert spec.path == Path("/opt/sglang/releases") / spec.name
    # names stay valid from one version of this collection to the next
    assert spec.name == "0.5.23-30aef2d7"


def test_a_driver_that_is_too_old_is_told_before_anything_is_downloaded(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "proc/driver/nvidia/version"
    module.parent.mkdir(parents=True)
    module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07  Thu Feb 22 01:44:30 UTC 2024\n")
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    with pytest.raises(Refused, match=r"made for CUDA 13\.0, which needs NVIDIA's driver 580 or newer.*, not 570"):
        lab.install()
    assert lab.steps == ["installer-venv", "installer-pip", "look", "resolve"]
    assert not lab.spec.path.exists()
    module.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n")
    lab.install()
    assert lab.steps == ["uv-version", *STEPS]


def test_the_compiler_comes_in_the_version_of_torchs_cuda(lab: Lab) -> None:
    lab.spec = dataclasses.replace(lab.spec, compiler=True)
    record = lab.install()
    assert record["inputs"]["compiler"] == "wheels"
    wanted = (lab.state / "wanted").read_text().split()
    assert {"sglang==0.5.23", "nvidia-cuda-nvcc==13.0.*", "nvidia-nvvm==13.0.*"} <= set(wanted)
    lab.offer("torch==2.14.1+cpu")
    lab.spec = dataclasses.replace(lab.spec, overrides=())
    with pytest.raises(Refused, match="made for no CUDA"):
        lab.install()


def test_only_the_given_environment_reaches_the_installer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/leaked")
    lab.install(https_proxy="http://proxy.example.com:3128", UV_INDEX_URL="http://index.example.com")
    lines = (line.partition("=") for line in (lab.state / "environment").read_text().splitlines())
    environment = {name: value for name, _, value in lines if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
    assert environment == {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "UV_CACHE_DIR": str(lab.spec.root / "cache"),
        "UV_INDEX_URL": "http://index.example.com",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "https_proxy": "http://proxy.example.com:3128",
    }


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("installer-venv", "making uv's venv"),
        ("installer-pip", "installing uv"),
        ("look", "looking for it"),
        ("resolve", "resolving"),
        ("venv", "making the venv"),
        ("install", "installing"),
        ("freeze", "listing"),
        ("probe", "importing the server"),
    ],
)
def test_a_failed_step_leaves_no_release_and_the_next_run_makes_it(lab: Lab, step: str, what: str) -> None:
    lab.fail(step)
    with pytest.raises(Refused) as caught:
        lab.install()
    assert str(caught.value) == f"SGLang 0.5.23: {what} failed with exit status 7: first | last words"
    assert release_record.read(lab.spec.path) is None
    assert not lab.spec.path.exists()
    lab.heal()
    assert lab.install()["packages"] == PACKAGES


def test_an_interruption_leaves_no_release(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    really_write = release.write_whole

    def write(path: Path, text: str) -> None:
        if path.name == "release.json":
            raise KeyboardInterrupt
        really_write(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(release, "write_whole", write)
        with pytest.raises(KeyboardInterrupt):
            lab.install()
    assert not lab.spec.path.exists()
    assert lab.install()["packages"] == PACKAGES


def test_what_a_killed_installation_left_is_replaced(lab: Lab) -> None:
    lab.install()
    (lab.spec.path / "release.json").unlink()
    (lab.spec.path / "venv/half").write_text("a part of a package")
    assert release_record.read(lab.spec.path) is None
    assert lab.install() == release_record.read(lab.spec.path)
    assert not (lab.spec.path / "venv/half").exists()


@pytest.mark.parametrize("part", ["release.json", "schema.json", "venv/bin/python"])
def test_an_incomplete_release_is_none(lab: Lab, part: str) -> None:
    lab.install()
    (lab.spec.path / part).unlink()
    assert release_record.read(lab.spec.path) is None


def test_a_damaged_record_is_none(lab: Lab) -> None:
    lab.install()
    (lab.spec.path / "release.json").write_text('{"name": ')
    assert release_record.read(lab.spec.path) is None
    (lab.spec.path / "schema.json").write_text("{}")
    assert release_record.schema(lab.spec.path) is None
    assert release_record.schema(lab.spec.root / "nowhere") is None


@pytest.mark.parametrize("content", ["", '{"options": ', "{}"])
def test_a_release_with_a_damaged_schema_is_made_again(lab: Lab, content: str) -> None:
    lab.install()
    (lab.spec.path / "schema.json").write_text(content)
    assert release_record.read(lab.spec.path) is None
    assert lab.steps == ALL_STEPS
    assert lab.install() == release_record.read(lab.spec.path)
    assert lab.steps == ["uv-version", *STEPS]
    assert release_record.schema(lab.spec.path) == OPTIONS


def test_another_version_than_asked_is_refused(lab: Lab) -> None:
    lab.describe("0.5.22")
    with pytest.raises(Refused) as caught:
        lab.install()
    text = str(caught.value)
    assert text == f"asked for SGLang 0.5.23, but 0.5.22 was installed in {lab.spec.path}"
    assert not lab.spec.path.exists()


def test_a_full_disk_is_named_with_its_free_space(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(lab.state)._replace(free=3 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    lab.fail("install", "error: No space left on device (os error 28)\n")
    with pytest.raises(Refused) as caught:
        lab.install()
    assert str(caught.value).endswith(f"No space left on device (os error 28); {lab.spec.root} has 3.0 GiB free")


def test_little_space_is_named_whatever_the_installer_says(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(lab.state)._replace(free=2**29)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    lab.fail("install", "error: failed to unpack\n")
    with pytest.raises(Refused, match=r"failed to unpack; .* has 0\.5 GiB free"):
        lab.install()


def test_a_damaged_installer_is_replaced(lab: Lab) -> None:
    lab.install()
    uv = lab.spec.root / "uv" / UV / "bin/uv"
    lab.spec = dataclasses.replace(lab.spec, overrides=())
    uv.write_bytes(b"\x7fELF")  # a download that was cut off
    assert lab.steps == ALL_STEPS
    lab.install()
    assert lab.steps == ALL_STEPS


def test_an_installer_of_another_version_is_replaced(lab: Lab) -> None:
    lab.install()
    (lab.state / "uv-version").write_text("0.1.0\n")
    lab.spec = dataclasses.replace(lab.spec, overrides=())
    assert lab.steps == ALL_STEPS
    lab.install()
    assert lab.steps == ["uv-version", *ALL_STEPS]


def test_an_interpreter_that_is_gone_is_named(lab: Lab) -> None:
    lab.spec = dataclasses.replace(lab.spec, python="/nowhere/python3")
    with pytest.raises(Refused, match="can not run /nowhere/python3: No such file or directory"):
        lab.install()


def test_a_root_that_can_not_be_made_is_named(lab: Lab) -> None:
    lab.spec = dataclasses.replace(lab.spec, root=lab.state / "log/root")
    (lab.state / "log").write_text("")
    with pytest.raises(Refused) as caught:
        lab.install()
    assert str(caught.value).startswith(f"can not write {lab.spec.root}: Not a directory; ")


def test_a_lock_on_a_full_disk_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(Refused, match=rf"can not write {lab.spec.root}: No space left on device; .* GiB free"):
        lab.install()


class Holder:
    """Another process's lock; flock does not care that it is held by this process."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.file = (root / "install.lock").open("w")
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.file.write("4711\n")
        self.file.flush()

    def release(self) -> None:
        self.file.close()


def test_a_second_installation_is_refused_with_the_holder(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LOCK_WAIT", 0)
    holder = Holder(lab.spec.root)
    with pytest.raises(Refused) as caught:
        lab.install()
    assert str(caught.value).startswith(f"process 4711 still installs into {lab.spec.root}")
    assert lab.steps == []
    holder.release()
    lab.install()
    assert (lab.spec.root / "install.lock").read_text().split()[0] == str(os.getpid())


def test_a_second_installation_waits_for_the_first(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(lab.spec.root)
    waited = []

    def first_one_fails(seconds: float) -> None:
        waited.append(seconds)
        shutil.rmtree(lab.spec.path, ignore_errors=True)
        if len(waited) == 3:
            holder.release()

    monkeypatch.setattr(host.time, "sleep", first_one_fails)
    assert lab.install()["packages"] == PACKAGES
    assert len(waited) == 3


def test_a_damaged_release_is_not_replaced_under_a_server_that_runs_from_it(lab: Lab) -> None:
    python = lab.spec.path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/sleep")
    with running(python, "60"):
        with pytest.raises(Refused, match=r"is damaged .* and a server runs from it: stop that one"):
            lab.install()
        assert python.is_symlink()
    assert lab.install()["packages"] == PACKAGES


def test_the_version_of_an_interpreter() -> None:
    assert release.python_version(sys.executable) == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_an_interpreter_that_does_not_work_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="/nowhere/python3 does not run: No such file or directory"):
        release.python_version("/nowhere/python3")
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho 'no module encodings' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Refused, match="python3 does not work: no module encodings"):
        release.python_version(str(broken))


class Packages:
    """A release with packages in its venv."""

    def __init__(self, lab: Lab) -> None:
        self.path = lab.spec.path
        self.site = self.path / "venv/lib/python3.11/site-packages"
        packed = lab.state / "packed"
        (packed / "sglang/srt").mkdir(parents=True)
        for file in ("a,b.py", "srt/server_args.py"):
            (packed / "sglang" / file).write_text("code")
        for name in ("sglang-0.5.23", "sglang_kernel-0.3", "transformers-5.0.0", "Ruamel.yaml-2026.07"):
            (packed / f"{name}.dist-info").mkdir()
        digest = "sha256=VpTQii5T_8rgwxA-Wtb2B2q9lg6x-KVldwQLwQKPcCs"  # of 'code'
        record = f'"sglang/a,b.py",{digest},4\nsglang/srt/server_args.py,{digest},4\n'
        record += "sglang/__pycache__/a.pyc,,\nsglang-0.5.23.dist-info/RECORD,,\n"
        (packed / "sglang-0.5.23.dist-info/RECORD").write_text(record)
        (lab.state / "packages").write_text(
            "Ruamel-Yaml==2026.7\nsglang==0.5.23\nsglang-kernel @ file:///w.whl\ntransformers==5.0.0\n"
        )
        lab.install()

    def forget_distributions(self) -> None:
        record = json.loads((self.path / "release.json").read_text())
        del record["distributions"]
        (self.path / "release.json").write_text(json.dumps(record))

    @property
    def changes(self) -> list[str]:
        return release_record.changes(self.path)


@pytest.fixture
def packages(lab: Lab) -> Packages:
    return Packages(lab)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_release_that_nobody_touched_has_no_changes(packages: Packages, recorded: bool) -> None:
    folders = ["Ruamel.yaml-2026.07", "sglang-0.5.23", "sglang_kernel-0.3", "transformers-5.0.0"]
    record = json.loads((packages.path / "release.json").read_text())
    assert record["distributions"] == [f"{folder}.dist-info" for folder in folders]
    if not recorded:
        packages.forget_distributions()
    assert packages.changes == []


@pytest.mark.parametrize("recorded", [True, False])
def test_packages_that_were_changed_are_told(packages: Packages, recorded: bool) -> None:
    if not recorded:
        packages.forget_distributions()
    (packages.site / "transformers-5.0.0.dist-info").rename(packages.site / "transformers-5.1.0.dist-info")
    (packages.site / "Ruamel.yaml-2026.07.dist-info").rmdir()
    (packages.site / "debug_tool-1.0.dist-info").mkdir()
    assert packages.changes == [
        "package debug-tool 1.0 was added",
        "package ruamel-yaml was removed, installed was 2026.7",
        "package transformers is 5.1.0, installed was 5.0.0",
    ]


def test_files_of_sglang_that_were_changed_are_told(packages: Packages) -> None:
    edited = packages.site / "sglang/srt/server_args.py"
    edited.write_text("CODE")
    assert packages.changes == ["sglang/srt/server_args.py was changed"]
    edited.write_text("more code")
    os.utime(edited, (0, 0))  # as a copy that keeps its time
    assert packages.changes == ["sglang/srt/server_args.py was changed"]
    edited.unlink()
    assert packages.changes == ["sglang/srt/server_args.py was removed"]
    (packages.site / "sglang-0.5.23.dist-info/RECORD").unlink()
    assert packages.changes == ["sglang-0.5.23.dist-info/RECORD was removed"]


def test_a_file_that_was_only_touched_is_not_changed(packages: Packages) -> None:
    (packages.site / "sglang/a,b.py").write_text("code")
    assert packages.changes == []


def test_a_damaged_release_is_told(packages: Packages) -> None:
    (packages.path / "schema.json").unlink()
    assert packages.changes == [f"the release {packages.path} is damaged or gone"]


def test_packages_of_the_distribution_that_lack(tmp_path: Path) -> None:
    for name in ("python3-venv.list", "libnuma1:amd64.list", "libnuma-dev.md5sums", "gcc.list"):
        (tmp_path / name).touch()
    asked = ["python3-venv", "libnuma1=2.0.16-1", "libnuma1/stable", "libnuma1>=2", "libnuma", "libnuma-dev"]
    assert release.lacking_packages(asked, tmp_path) == ["libnuma", "libnuma-dev"]
    asked = ["gcc:amd64", "libnuma1:amd64", "libnuma1:i386", "gcc:amd64=4:12.2.0-3"]
    assert release.lacking_packages(asked, tmp_path) == ["libnuma1:i386"]
    assert release.lacking_packages(asked, tmp_path / "no Debian") == []
