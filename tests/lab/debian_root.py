# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real root filesystems of Debian to install into, and signed repositories of apt to install from.

A root is an overlay; each program in it has mounts of its own, with a /proc that tells of NVIDIA's kernel module.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import images
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Feb 22 01:44:30 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)\n"
ENTER = """
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mount -t proc proc "$ROOT/proc"
if [ -n "$MODULE" ]; then
    # NVIDIA's device in a /dev of its own
    mount -t tmpfs tmpfs "$ROOT/dev"
    for device in null zero full random urandom tty; do
        mknod -m 666 "$ROOT/dev/$device" c $(stat -c '0x%t 0x%T' "/dev/$device")
    done
    mknod -m 666 "$ROOT/dev/nvidia0" c 1 3
    ln -s /proc/self/fd "$ROOT/dev/fd"
    mkdir "$ROOT/dev/pts" "$ROOT/dev/shm"
    mount -t devpts -o ptmxmode=666 devpts "$ROOT/dev/pts"
    ln -s pts/ptmx "$ROOT/dev/ptmx"
    mount -t tmpfs tmpfs "$ROOT/dev/shm"
else
    mount --rbind /dev "$ROOT/dev"
fi
mount --rbind / "$ROOT/host"
mount -t tmpfs tmpfs "$ROOT/proc/driver"
if [ -n "$MODULE" ]; then
    mkdir "$ROOT/proc/driver/nvidia"
    printf '%s' "$MODULE" >"$ROOT/proc/driver/nvidia/version"
fi
exec chroot "$ROOT" "$@"
"""
# a module as a process; what it would log goes nowhere
MODULE = """
import io, sys
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.modules import {name} as module
AnsibleModule.log = lambda self, text, log_args=None: None
sys.stdin = io.TextIOWrapper(io.BytesIO(sys.argv.pop().encode()))
module.main()
"""


@dataclass
class Run:
    """What a program in a root did."""

    status: int
    output: str

    def line(self, word: str) -> str:
        """Return the first line with a word, for an assertion that shows all when there is none."""
        assert word in self.output, self.output
        return next(line for line in self.output.splitlines() if word in line)


@dataclass
class Root:
    """A root filesystem over a read-only one."""

    lower: str  # one folder, or several with ':' between them, the uppermost first
    folder: Path
    module: str = ""  # /proc/driver/nvidia/version
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("upper/host", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        shutil.copyfile("/etc/resolv.conf", self.put("etc/resolv.conf"))

    @property
    def layers(self) -> str:
        """This root as the lower layers of another."""
        return f"{self.folder / 'upper'}:{self.lower}"

    def put(self, path: str, text: str | None = None, mode: int = 0o644) -> Path:
        """Return where a path of this root is written, written with `text` if there is one."""
        place = self.folder / "upper" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            place.write_text(text, encoding="utf-8")
            place.chmod(mode)
        return place

    def run(self, *argv: str) -> Run:
        """Run a program as root of this system; it ends with all that it started."""
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "MODULE": self.module,
            "LOWER": self.lower, "UPPER": str(self.folder / "upper"), "WORK": str(self.folder / "work"),
            "ROOT": str(self.folder / "root"),
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
            **self.environment,
        }  # fmt: skip
        done = subprocess.run(
            ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh",
             *argv],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Run(done.returncode, done.stdout)

    def module_run(self, name: str, **asked: object) -> dict[str, Any]:
        """Run a module with this system's own Python and return its result."""
        self._controller()
        asked = {"ANSIBLE_MODULE_ARGS": asked}
        done = self.run("/usr/bin/python3", "-c", MODULE.format(name=name), json.dumps(asked))
        try:
            result: dict[str, Any] = json.loads(done.output.splitlines()[-1])
        except (ValueError, IndexError):
            raise AssertionError(done.output) from None
        return result

    def _controller(self) -> Path:
        """Give programs of this root the controller's Ansible, and return its Python."""
        python = Path(sys.executable).resolve()
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        self.environment.update({
            "PYTHONPATH": f"/host{packages}:/host{REPOSITORY}/.dev", "LD_LIBRARY_PATH": f"/host{python.parents[1]}/lib",
            "ANSIBLE_COLLECTIONS_PATH": f"/host{REPOSITORY}/.dev", "ANSIBLE_HOME": "/tmp/ansible",
            "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "ANSIBLE_PIPELINING": "true",
        })  # fmt: skip
        return python

    def role(self, name: str, variables: Mapping[str, object], check: bool = False) -> Run:
        """Let the role work on this system, with the controller's own Ansible and this system's Python."""
        playbook = self.folder / "playbook.yml"
        play = {
            "hosts": "localhost",
            "gather_facts": False,
            "roles": [f"gpuops.sglang.{name}"],
            "vars": dict(variables),
        }
        playbook.write_text(yaml.safe_dump([play]), encoding="utf-8")
        argv = [f"/host{self._controller()}", "-m", "ansible", "playbook", f"/host{playbook}", "--diff"]
        argv += [*(["--check"] if check else []), "-e", "ansible_python_interpreter=/usr/bin/python3"]
        return self.run(*argv)


def bookworm() -> Path:
    """Return the lab's own Debian 12."""
    return images.build_images()["base"]


def trixie(folder: Path) -> Path:
    """Make a Debian 13 with Python."""
    sources = [line.replace("bookworm", "trixie") for line in images._sources() if line.endswith("bookworm main")]
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    subprocess.run(
        ["mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--include=python3,python3-apt",
         "--dpkgopt=force-unsafe-io", *without,
         '--aptopt=Acquire::Languages "none"', "trixie", str(folder), *sources],
        check=True,
    )  # fmt: skip
    return folder


@dataclass(frozen=True)
class Package:
    """A package as a repository has it; its files can be run."""

    name: str
    version: str
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


class Key:
    """A throw-away key of a repository."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        folder.mkdir(mode=0o700)
        self._gpg("--passphrase", "", "--quick-generate-key", "lab repository", "ed25519", "sign", "1d")
        self.public = self._gpg("--armor", "--export")

    def _gpg(self, *words: str) -> str:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--pinentry-mode", "loopback", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def sign(self, release: Path) -> None:
        """Write InRelease beside Release."""
        self._gpg("--yes", "--clearsign", "--output", str(release.with_name("InRelease")), str(release))

    def close(self) -> None:
        """End the agent that gpg has started."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=True)


def build_repository(folder: Path, packages: Sequence[Package], key: Key) -> None:
    """Make a flat repository, as NVIDIA's are."""
    folder.mkdir(parents=True)
    index = []
    for package in packages:
        tree = folder / "tree"
        fields = {
            "Package": package.name, "Version": package.version, "Architecture": "amd64",
            "Maintainer": "Lab <lab@example.com>", "Description": "a stand-in", **package.fields,
        }  # fmt: skip
        control = "".join(f"{name}: {value}\n" for name, value in fields.items())
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(control)
        for path, content in package.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content if isinstance(content, bytes) else content.encode())
            (tree / path).chmod(0o755)
        for path, target in package.links.items():
            (tree / path).symlink_to(target)
        name = f"{package.name}_{package.version.replace(':', '%3a')}_amd64.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, folder / name], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        shutil.rmtree(tree)
        data = (folder / name).read_bytes()
        index.append(f"{control}Filename: ./{name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n")
    text = "\n".join(index)
    (folder / "Packages").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "Release").write_text(f"Origin: NVIDIA\nSHA256:\n {digest} {len(text.encode())} Packages\n")
    key.sign(folder / "Release")


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Key]:
    """The key of the repositories of a run of tests."""
    made = Key(tmp_path_factory.mktemp("key") / "gnupg")
    yield made
    made.close()


@pytest.fixture(scope="session")
def debian12(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian 12 with what Ansible's module apt needs."""
    root = Root(str(bookworm()), tmp_path_factory.mktemp("debian12"))
    done = root.run("sh", "-c", "apt-get -q update && apt-get -q -y --no-install-recommends install python3-apt")
    assert done.status == 0, done.output
    return root.layers


@pytest.fixture(scope="session")
def debian13(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian 13, made anew."""
    return str(trixie(tmp_path_factory.mktemp("debian13") / "root"))
