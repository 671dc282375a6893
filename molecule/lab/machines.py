# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's two outer machines, both real LXC containers of this machine: the node kpro5 and the host rental.

The node runs LXC itself; its containers 129 and 130 are described in Proxmox's own format and started by `pct`.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from paths import (
    BRIDGE,
    HOST_ADDRESS,
    NETMASK,
    NETWORK,
    NODE,
    NODE_ADDRESS,
    RENTAL,
    RENTAL_ADDRESS,
    RUN,
    SHARE,
    SSH,
    run,
)  # fmt: skip

LXC_PATH = RUN / "lxc"
CONTAINERS = {129: "unprivileged", 130: "privileged"}
RENTAL_PORT = 2222


def is_running(name: str) -> bool:
    """Tell whether the outer machine `name` runs; where LXC is not installed none does."""
    if not shutil.which("lxc-info"):
        return False
    return run("lxc-info", "-P", LXC_PATH, "-n", name, "-s", "-H", check=False).stdout.strip() == "RUNNING"


def start(name: str, images: dict[str, Path]) -> None:
    """Start the outer machine `name`; what it wrote in an earlier run is kept."""
    if is_running(name):
        return
    folder = LXC_PATH / name
    if not (folder / "prepared").exists():
        delta = folder / "delta"
        if delta.exists():
            shutil.rmtree(delta)
        delta.mkdir(parents=True)
        {NODE: _prepare_node, RENTAL: _prepare_rental}[name](delta)
        (folder / "prepared").touch()
    config = {NODE: _node_config, RENTAL: _rental_config}[name](images)
    (folder / "config").write_text(_common_config(folder) + config)
    run("lxc-start", "-P", LXC_PATH, "-n", name, "-d", "-o", RUN / f"{name}.log", "-l", "INFO")


def stop(name: str) -> None:
    """Stop the outer machine `name` at once, with everything inside it."""
    if is_running(name):
        run("lxc-stop", "-P", LXC_PATH, "-n", name, "-k")


def _common_config(folder: Path) -> str:
    # A pure cgroup2 mount is the layout of a Proxmox VE 8 or 9 node, and nested LXC works with it on v1 hosts too.
    return textwrap.dedent(f"""\
        lxc.include = /usr/share/lxc/config/common.conf
        lxc.include = /usr/share/lxc/config/nesting.conf
        lxc.apparmor.profile = unconfined
        lxc.mount.auto = proc:mixed sys:mixed
        lxc.mount.entry = cgroup2 sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0
        lxc.mount.entry = {SHARE} srv/lab none bind,create=dir 0 0
        lxc.net.0.type = veth
        lxc.net.0.link = {BRIDGE}
        lxc.net.0.flags = up
        lxc.net.0.name = eth0
        lxc.net.0.ipv4.gateway = {HOST_ADDRESS}
        """)


def _node_config(images: dict[str, Path]) -> str:
    return textwrap.dedent(f"""\
        lxc.uts.name = kpro5
        lxc.rootfs.path = overlay:{images["node"]}:{LXC_PATH / NODE / "delta"}
        lxc.mount.entry = {images["base"].parent} srv/img none bind,ro,create=dir 0 0
        lxc.mount.entry = {RUN / "containers"} var/lib/lxc none bind,create=dir 0 0
        lxc.net.0.veth.pair = gpuops-kpro5
        lxc.net.0.ipv4.address = {NODE_ADDRESS}/{NETMASK}
        """)


def _rental_config(images: dict[str, Path]) -> str:
    return textwrap.dedent(f"""\
        lxc.uts.name = rental
        lxc.rootfs.path = overlay:{images["base"]}:{LXC_PATH / RENTAL / "delta"}
        lxc.init.cmd = /usr/local/sbin/start-machine
        lxc.net.0.veth.pair = gpuops-rental
        lxc.net.0.ipv4.address = {RENTAL_ADDRESS}/{NETMASK}
        """)


def _prepare_node(delta: Path) -> None:
    (RUN / "containers").mkdir(exist_ok=True)
    for home in ("root", "home/ops", "home/guest"):
        _authorize(delta / home)
    _write(
        delta / "etc/systemd/system/vmbr0.service",
        f"""\
        # A Proxmox node's bridge: eth0 is its uplink, the node's address is on the bridge.
        [Unit]
        DefaultDependencies=no
        Before=network.target ssh.service
        [Service]
        Type=oneshot
        RemainAfterExit=yes
        ExecStart=/sbin/ip link add vmbr0 type bridge
        ExecStart=/sbin/ip link set vmbr0 up
        ExecStart=/sbin/ip addr flush dev eth0
        ExecStart=/sbin/ip link set eth0 master vmbr0
        ExecStart=/sbin/ip addr replace {NODE_ADDRESS}/{NETMASK} dev vmbr0
        ExecStart=/sbin/ip route replace default via {HOST_ADDRESS}
        """,
    )
    wants = delta / "etc/systemd/system/sysinit.target.wants/vmbr0.service"
    wants.parent.mkdir(parents=True)
    wants.symlink_to("/etc/systemd/system/vmbr0.service")
    for program in ("usr/sbin/pct", "usr/bin/pvesh"):
        link = delta / program
        link.parent.mkdir(parents=True)
        link.symlink_to(f"/srv/lab/standins/{link.name}")
    for vmid, kind in CONTAINERS.items():
        _write(
            delta / f"etc/pve/lxc/{vmid}.conf",
            f"""\
            arch: amd64
            cores: 2
            features: nesting=1
            hostname: ct{vmid}
            memory: 8192
            mp0: /srv/lab,mp=/srv/lab
            net0: name=eth0,bridge=vmbr0,gw={HOST_ADDRESS},ip={NETWORK}.{vmid}/{NETMASK},type=veth
            onboot: 1
            ostype: debian
            rootfs: lab:{"base-u" if kind == "unprivileged" else "base"},size=8G
            unprivileged: {int(kind == "unprivileged")}
            """,
        )


def _prepare_rental(delta: Path) -> None:
    _authorize(delta / "root")
    init = delta / "usr/local/sbin/start-machine"
    _write(
        init,
        f"""\
        #!/bin/sh
        # PID 1 of a rented container: an sshd on an odd port, and no service manager.
        mkdir -p /run/sshd
        /usr/sbin/sshd -p {RENTAL_PORT}
        while :; do sleep 3600 & wait $!; done
        """,
    )
    init.chmod(0o755)


def _authorize(home: Path) -> None:
    # OpenSSH wants to own neither the folder nor the file, only that nobody else may write them
    keys = home / ".ssh/authorized_keys"
    keys.parent.mkdir(parents=True, mode=0o755)
    shutil.copyfile(SSH / "id_ed25519.pub", keys)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
