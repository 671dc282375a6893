#!/usr/bin/env python3
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded lab: a Proxmox node with two containers and a rented host, on one Debian machine.

    lab.py up       build what is missing and start what does not run
    lab.py down     stop the machines and forget what they wrote; images and downloads stay
    lab.py purge    the same, and remove everything
    lab.py status   say what runs
    lab.py ssh HOST [COMMAND...]   log in to kpro5 or rental

Everything lies in one folder (/var/lib/gpuops-lab, or GPUOPS_LAB_DIR) and on one bridge of its own; no packet is
routed to the outside: the machines reach the package registries through a proxy on the bridge.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

from images import CA_BUNDLE, build_images
from machines import CONTAINERS, LXC_PATH, RENTAL_PORT, is_running, start, stop
from paths import (
    BRIDGE,
    HOST_ADDRESS,
    IMAGES,
    NETMASK,
    NODE,
    NODE_ADDRESS,
    PROXY_PORT,
    RENTAL,
    RENTAL_ADDRESS,
    ROOT,
    RUN,
    SHARE,
    SOURCE,
    SSH,
    LabError,
    put,
    run,
)  # fmt: skip

# command that must exist -> Debian package that brings it
TOOLS = {
    "lxc-start": "lxc",
    "newuidmap": "uidmap",
    "mmdebstrap": "mmdebstrap",
    "tinyproxy": "tinyproxy-bin",
    "ssh": "openssh-client",
    "ip": "iproute2",
}
LXC_SERVICES = ("lxc-net.service", "lxc.service")
SYSTEMD = Path("/run/systemd/system")  # exists where systemd is PID 1
PROXY_CONFIG = RUN / "tinyproxy.conf"
PROXY_PID = RUN / "tinyproxy.pid"


def up() -> None:
    """Bring the lab up; what runs already is left alone."""
    _install_tools()
    for folder in (IMAGES, SHARE, RUN, SSH, LXC_PATH):
        folder.mkdir(parents=True, exist_ok=True)
    images = build_images()
    _fill_share()
    _ssh_files(images["base"])
    _network()
    _proxy()
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(_start_node, images), pool.submit(_start_rental, images)]:
            job.result()
    status()


def down() -> None:
    """Stop the machines and remove what they wrote."""
    for name in (NODE, RENTAL):
        stop(name)
    _stop_proxy()
    if Path("/sys/class/net", BRIDGE).exists():
        run("ip", "link", "delete", BRIDGE)
    if RUN.exists():
        shutil.rmtree(RUN)
    print("lab: down")


def purge() -> None:
    """Remove the lab with its images, downloads and keys."""
    down()
    shutil.rmtree(ROOT, ignore_errors=True)


def status() -> None:
    """Print each machine and its state."""
    node_runs = is_running(NODE)
    print(f"lab: kpro5   {NODE_ADDRESS}:22    {'running' if node_runs else 'stopped'}")
    for vmid, kind in CONTAINERS.items():
        state = _on_node("pct", "status", str(vmid)).stdout.strip().removeprefix("status: ") if node_runs else "stopped"
        print(f"lab: ct{vmid}   on kpro5        {state} ({kind})")
    rental_runs = is_running(RENTAL)
    print(f"lab: rental  {RENTAL_ADDRESS}:{RENTAL_PORT} {'running' if rental_runs else 'stopped'} (no systemd)")


def ssh(*words: str) -> None:
    """Replace this process by an ssh to a lab machine."""
    os.execvp("ssh", ["ssh", "-F", str(SSH / "config"), *words])


def _install_tools() -> None:
    missing = {package for command, package in TOOLS.items() if not shutil.which(command)}
    if not CA_BUNDLE.exists():
        missing.add("ca-certificates")
    if not missing:
        return
    print(f"lab: installing {', '.join(sorted(missing))}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", env=environment)
    with _lxc_services_kept_off() if "lxc" in missing else nullcontext():
        run("apt-get", "install", "-y", "--no-install-recommends", *sorted(missing), env=environment)


@contextmanager
def _lxc_services_kept_off() -> Iterator[None]:
    """While lxc is installed and from then on; its network would forward and translate packets of the whole machine."""
    if not SYSTEMD.exists():
        yield
        return
    run("systemctl", "mask", "--runtime", *LXC_SERVICES)
    try:
        yield
    finally:
        run("systemctl", "unmask", "--runtime", *LXC_SERVICES)
        if shutil.which("lxc-start"):
            run("systemctl", "disable", *LXC_SERVICES)


def _fill_share() -> None:
    """Put in /srv/lab what the machines share: stand-ins, wheels, the tiny model, speed settings, the uv cache."""
    for source in (
        SOURCE / "standins/pct",
        SOURCE / "standins/pvesh",
        *(SOURCE / "standins/perl5").rglob("*.pm"),
        SOURCE / "standins/cuda/nvidia-smi",
        SOURCE / "standins/cuda/sitecustomize.py",
        SOURCE / "speed/sitecustomize.py",
        *(SOURCE / "standins/server").glob("*.py"),
    ):
        put(SHARE / source.relative_to(SOURCE), source.read_bytes(), source.stat().st_mode & 0o777)
    for script, folder in (("wheels.py", "wheels"), ("tiny_model.py", "models/tiny-qwen3")):
        done = run(sys.executable, SOURCE / script, SHARE / folder).stdout
        print(textwrap.indent(done, "lab: "), end="", flush=True)
    (SHARE / "uvcache").mkdir(exist_ok=True)


def _ssh_files(base: Path) -> None:
    if not (SSH / "id_ed25519").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpuops-lab", "-f", SSH / "id_ed25519")
    host_key = " ".join((base / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
    known_hosts = f"{NODE_ADDRESS} {host_key}\n[{RENTAL_ADDRESS}]:{RENTAL_PORT} {host_key}\n"
    put(SSH / "known_hosts", known_hosts.encode())
    config = f"""\
        Host kpro5
          HostName {NODE_ADDRESS}
        Host rental
          HostName {RENTAL_ADDRESS}
          Port {RENTAL_PORT}
        Host *
          User root
          IdentityFile {SSH / "id_ed25519"}
          IdentitiesOnly yes
          UserKnownHostsFile {SSH / "known_hosts"}
          HostKeyAlgorithms ssh-ed25519
          StrictHostKeyChecking yes
          BatchMode yes
        """
    put(SSH / "config", textwrap.dedent(config).encode())


def _network() -> None:
    if not Path("/sys/class/net", BRIDGE).exists():
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "replace", f"{HOST_ADDRESS}/{NETMASK}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def _proxy() -> None:
    if _proxy_runs():
        return
    config = textwrap.dedent(f"""\
        Listen {HOST_ADDRESS}
        Port {PROXY_PORT}
        Allow {HOST_ADDRESS}/{NETMASK}
        PidFile "{PROXY_PID}"
        LogFile "{RUN / "tinyproxy.log"}"
        LogLevel Warning
        Timeout 600
        MaxClients 200
        """)
    outer = os.environ.get("https_proxy") or os.environ.get("http_proxy")
    if outer:
        config += f"Upstream http {outer.removeprefix('http://').rstrip('/')}\n"
    PROXY_CONFIG.write_text(config)
    run("tinyproxy", "-c", PROXY_CONFIG)
    _wait_for("the proxy", lambda: _answers(HOST_ADDRESS, PROXY_PORT), 20)


def _proxy_runs() -> bool:
    """Tell whether the recorded process is our proxy; a process id alone may since belong to another."""
    try:
        command = Path("/proc", PROXY_PID.read_text().strip(), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(PROXY_CONFIG).encode() in command


def _stop_proxy() -> None:
    if _proxy_runs():
        os.kill(int(PROXY_PID.read_text()), signal.SIGTERM)


def _start_node(images: dict[str, Path]) -> None:
    start(NODE, images)
    _wait_for("ssh to kpro5", lambda: _answers(NODE_ADDRESS, 22) and _on_node("true").returncode == 0, 60)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_start_container, CONTAINERS))


def _start_container(vmid: int) -> None:
    if "running" not in _on_node("pct", "status", str(vmid)).stdout:
        started = _on_node("pct", "start", str(vmid))
        if started.returncode != 0:
            raise LabError(f"pct start {vmid} exited {started.returncode}: {started.stderr.strip()}")
    state = _on_node("pct", "exec", str(vmid), "--", "systemctl", "is-system-running", "--wait").stdout.strip()
    if state != "running":
        failed = _on_node("pct", "exec", str(vmid), "--", "systemctl", "--failed", "--plain", "--no-legend").stdout
        raise LabError(f"container {vmid} is '{state}', failed units: {failed.strip() or 'none'}")


def _start_rental(images: dict[str, Path]) -> None:
    start(RENTAL, images)
    _wait_for("ssh to rental", lambda: _answers(RENTAL_ADDRESS, RENTAL_PORT), 60)


def _on_node(*argv: str) -> subprocess.CompletedProcess[str]:
    return run("ssh", "-F", SSH / "config", "kpro5", "--", *argv, check=False)


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def _wait_for(what: str, happened: Callable[[], bool], limit: int) -> None:
    end = time.monotonic() + limit
    while not happened():
        if time.monotonic() > end:
            raise LabError(f"{what}: no answer within {limit} s; the machines' logs are in {RUN}")
        time.sleep(0.1)


COMMANDS = {"up": up, "down": down, "purge": purge, "status": status, "ssh": ssh}


def main(arguments: list[str]) -> int:
    """Run one command under the lab's lock; return the exit status."""
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("lab: needs root: it starts containers and makes a network bridge", file=sys.stderr)
        return 1
    try:
        ROOT.mkdir(parents=True, exist_ok=True)
        if arguments[0] in ("up", "down", "purge"):
            with (ROOT / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                COMMANDS[arguments[0]]()
        else:
            COMMANDS[arguments[0]](*arguments[1:])
    except LabError as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        # a full disk names no file; what the lab writes lies in its folder
        print(f"lab: {problem.filename or ROOT}: {problem.strerror or problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
