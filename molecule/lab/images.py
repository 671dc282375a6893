# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root filesystems of the lab, built once and then only read (every machine writes into an overlay of its own).

`base` is a Debian 12 with systemd, as Proxmox's template is; what a deployment needs beyond it, it installs itself.
`base-u` is the same with user ids shifted by 100000 for unprivileged containers. `node` is `base` with the LXC tools.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from paths import IMAGES, RUN, put, run

SUITE = "bookworm"  # SGLang 0.5.23 wants Python 3.11 or newer, and glibc 2.34
BASE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "openssh-server",
    "rsync",
    "iproute2",
    "ca-certificates",
    "procps",
    "kmod",
    "sudo",
)
NODE_PACKAGES = ("lxc", "lxc-templates", "uidmap", "iputils-ping")
ID_SHIFT = 100000
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
IN_USE = RUN / "images"  # the key of the images that the machines were started from
# Units that cost boot time or report 'degraded' in a container and that nothing here needs.
MASKED_UNITS = (
    "lxc.service",
    "lxc-net.service",
    "lxc-monitord.service",
    "apparmor.service",
    "systemd-networkd.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "e2scrub_all.timer",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-kernel-config.mount",
)


def build_images() -> dict[str, Path]:
    """Return the folder of each image by name, building those that are missing (about 100 s for all).

    From its first start until `down` a lab keeps its images, since what the machines wrote lies over them.
    """
    key = _key_in_use() or _key()
    folder = IMAGES / key
    images = {name: folder / name for name in ("base", "base-u", "node")}
    for name, build in (("base", _build_base), ("base-u", _build_shifted), ("node", _build_node)):
        if not images[name].is_dir():
            print(f"lab: building the image {name}", flush=True)
            # an image exists under its final name only when it is complete
            partial = folder / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            build(partial, images)
            partial.rename(images[name])
    put(IN_USE, key.encode())
    for old in IMAGES.iterdir():
        if old != folder:
            shutil.rmtree(old)
    return images


def _key_in_use() -> str:
    """Return the recorded key, empty if there is none or its images are gone."""
    key = IN_USE.read_text() if IN_USE.exists() else ""
    return key if (IMAGES / key).is_dir() else ""


def _key() -> str:
    """Return a name that changes with everything an image is made of."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(CA_BUNDLE.read_bytes())
    return digest.hexdigest()[:12]


def _build_base(target: Path, _images: dict[str, Path]) -> None:
    run(
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(BASE_PACKAGES)}",
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        SUITE,
        target,
        *_sources(),
    )
    # the machine's own bundle, since it may reach the registries through an authority of its own
    shutil.copyfile(CA_BUNDLE, target / "etc/ssl/certs/ca-certificates.crt")
    (target / "etc/hostname").unlink(missing_ok=True)  # each machine has its own
    (target / "etc/resolv.conf").unlink(missing_ok=True)
    (target / "etc/resolv.conf").write_text("# names are resolved by the proxy\n")
    for unit in MASKED_UNITS:
        link = target / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")


def _build_shifted(target: Path, images: dict[str, Path]) -> None:
    target.rmdir()
    run("cp", "-a", images["base"], target)
    seen: set[int] = set()
    for folder, folders, files in os.walk(target):
        for path in (Path(folder), *(Path(folder) / name for name in (*folders, *files))):
            status = path.lstat()
            if status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            os.lchown(path, status.st_uid + ID_SHIFT, status.st_gid + ID_SHIFT)
            if not path.is_symlink():
                path.chmod(status.st_mode & 0o7777)  # chown has cleared the setuid bits


def _build_node(target: Path, images: dict[str, Path]) -> None:
    target.rmdir()
    run("cp", "-a", images["base"], target)
    resolv = target / "etc/resolv.conf"
    offline = resolv.read_text()
    policy = target / "usr/sbin/policy-rc.d"
    try:
        shutil.copyfile("/etc/resolv.conf", resolv)
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("chroot", target, "apt-get", "update", env=environment)
        run("chroot", target, "apt-get", "install", "-y", "--no-install-recommends", *NODE_PACKAGES, env=environment)
        run("chroot", target, "apt-get", "clean")
    finally:
        policy.unlink(missing_ok=True)
        resolv.write_text(offline)
    with (target / "etc/subuid").open("a") as subuid, (target / "etc/subgid").open("a") as subgid:
        subuid.write(f"root:{ID_SHIFT}:65536\n")
        subgid.write(f"root:{ID_SHIFT}:65536\n")
    # two logins besides root: one that may become root, one that may not
    for user in ("ops", "guest"):
        run("chroot", target, "useradd", "--create-home", "--shell", "/bin/bash", user)
    sudoers = target / "etc/sudoers.d/ops"
    sudoers.write_text("ops ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)


def _sources() -> list[str]:
    """Return apt source lines for SUITE on the mirror that this machine uses; empty for mmdebstrap's own default.

    Only http sources are taken: the mirror+file: of Debian's cloud images names a file that mmdebstrap does not see.
    """
    listing = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages").stdout
    mirrors = {codename: uri.rstrip("/") for uri, codename in (line.rsplit(" ", 1) for line in listing.splitlines())}
    lines = []
    for codename, uri in mirrors.items():
        if not uri.startswith(("http://", "https://")):
            continue
        if codename in ("bookworm", "trixie"):
            lines += [f"deb {uri} {SUITE} main", f"deb {uri} {SUITE}-updates main"]
        elif codename in ("bookworm-security", "trixie-security"):
            lines.append(f"deb {uri} {SUITE}-security main")
    return lines
