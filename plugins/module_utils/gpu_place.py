# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host is, and so where its GPUs are looked after."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu

MARKS = ((".dockerenv", "docker"), ("run/.containerenv", "podman"))  # what container managers leave


@dataclass(frozen=True)
class Place:
    """A machine, a Proxmox node or a container."""

    kind: str  # machine, node, container
    manager: str | None = None  # of the container: lxc, docker, podman, ...

    @property
    def contained(self) -> bool:
        """Whether the kernel is another one's."""
        return self.kind == "container"

    @property
    def there(self) -> str:
        """Where the kernel and its modules are looked after."""
        if not self.contained:
            return f"on this {self.kind}"
        on_host = "on the host of this container (rented: ask its provider)"
        return "on the node of this container" if self.manager == "lxc" else on_host

    @property
    def here(self) -> str:
        """Where programs and libraries are installed."""
        return "in this container" if self.contained else self.there

    @property
    def log(self) -> str:
        """Where the kernel's own words are."""
        return f"look for NVRM in 'journalctl -k' {self.there}"

    def give(self, path: str) -> str:
        """Say how a device comes into this container, or how this host makes it."""
        if self.manager == "lxc" and "nvidia" not in path:
            return (
                f"{self.there}, 'pct set CTID --devN {path},gid=GID,mode=0660' with the number that 'getent group "
                "render' tells in this container, and restart it"
            )
        uvm = "nvidia-uvm" in path
        made = "'nvidia-modprobe -u -c 0'" if uvm else "'nvidia-modprobe -c N' for GPU N"
        kept = (
            "with nvidia_uvm in /etc/modules-load.d/nvidia.conf at each start"
            if uvm
            else "nvidia-persistenced keeps it"
        )
        if self.manager == "lxc":
            exists = f"see that it is there ({made}; {kept}), then " if uvm else ""
            return f"{self.there}, {exists}'pct set CTID --devN {path},mode=0666', and restart the container"
        if self.contained:
            return f"have the container started with its GPUs again ('--gpus all', or '--device {path}')"
        again = ", and restart the containers that use it" if self.kind == "node" else ""
        return f"{self.there}, {made} makes it, {kept}{again}"


def find_place() -> Place:
    """Return what this is, as far as whoever asks can see it."""
    manager = _first_line("run/systemd/container")
    for mark, name in MARKS:
        if not manager and (gpu.ROOT / mark).exists():
            manager = name
    for variable in [] if manager else _first_line("proc/1/environ").split("\0"):  # which only root can read
        name, _sign, value = variable.partition("=")
        manager = value if name == "container" else manager
    if manager:
        return Place("container", manager)
    return Place("node" if (gpu.ROOT / "usr/bin/pveversion").exists() else "machine")


def _first_line(path: str) -> str:
    try:
        return (gpu.ROOT / path).read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
