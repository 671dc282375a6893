# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's modules and device files on a Proxmox node, there before its containers start.

A container does not start without a device that it is to have, and the driver makes some of them at their first use
only. So a unit makes them at each boot, and again where one has gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, gpu_driver
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run, write_whole

NAME = "gpuops-gpu-devices.service"
MODULES = "etc/modules-load.d/gpuops-nvidia.conf"
UNIT = f"etc/systemd/system/{NAME}"
MAKER = "usr/bin/nvidia-modprobe"
CAPABILITIES = "/usr/bin/find /proc/driver/nvidia/capabilities -path */mig/* -name access"
UNIT_TEXT = f"""\
# Written by gpuops.sglang.proxmox_container
[Unit]
Description=Device files of the GPUs, for containers
After=systemd-modules-load.service nvidia-persistenced.service
Before=pve-guests.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-modprobe -u -c 0
{{modeset}}# opens every GPU, which makes its device file, and keeps the driver loaded where no daemon does
ExecStart=-/usr/bin/nvidia-smi -pm 1
ExecStart=/usr/bin/nvidia-smi -L
# capabilities of MIG, where there are any
ExecStart=-{CAPABILITIES} -exec /usr/bin/nvidia-modprobe -f {{{{}}}} \\;

[Install]
WantedBy=multi-user.target
"""


@dataclass
class Todo:
    """What is to be done; empty where all is as it should be."""

    files: dict[str, str] = field(default_factory=dict)  # path below / -> text
    enable: bool = False
    start: str = ""  # why

    @property
    def changes(self) -> list[str]:
        """Each change in words."""
        return [
            *(f"/{path}" for path in self.files),
            *([f"{NAME} enabled"] if self.enable else []),
            *([f"{NAME} started: {self.start}"] if self.start else []),
        ]


def compare(modeset: bool) -> Todo:
    """Return what is to be done; nothing on a node without NVIDIA's driver."""
    if not (gpu.ROOT / MAKER).exists():
        return Todo()
    names = ["nvidia", "nvidia_uvm", *(["nvidia_modeset"] if modeset else [])]
    wanted = {
        MODULES: "\n".join(["# Written by gpuops.sglang.proxmox_container", *names, ""]),
        UNIT: UNIT_TEXT.format(modeset="ExecStart=/usr/bin/nvidia-modprobe -m\n" if modeset else ""),
    }
    todo = Todo({path: text for path, text in wanted.items() if now(path) != text})
    asked = run(["systemctl", "show", "--property=UnitFileState,ActiveState", NAME]).stdout.split()
    todo.enable = "UnitFileState=enabled" not in asked
    devices = ["nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in gpu_driver.minors())]
    missing = [f"/dev/{name}" for name in devices if not (gpu.ROOT / "dev" / name).exists()]
    if "ActiveState=active" not in asked or UNIT in todo.files:
        todo.start = "to make the device files"
    elif missing:
        todo.start = f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} gone"
    return todo


def do(todo: Todo) -> None:
    """Do it; raises Refused with the unit's own words where the driver makes no devices."""
    for path, text in todo.files.items():
        write_whole(gpu.ROOT / path, text)
    if UNIT in todo.files:
        _systemctl("daemon-reload")
    if todo.enable:
        _systemctl("enable", NAME)
    if todo.start:
        _systemctl("restart", NAME)


def now(path: str) -> str:
    """Return the text of a file below /, '' where there is none."""
    try:
        return (gpu.ROOT / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _systemctl(*words: str) -> None:
    done = run(["systemctl", *words])
    if done.returncode:
        said = last_lines(run(["journalctl", "--unit", NAME, "--lines=5", "--output=cat", "--no-pager"]).stdout, 5)
        raise Refused(
            f"{' '.join(words)} failed on this node, so its containers' GPUs may be missing at its next boot: "
            f"{' | '.join(said or last_lines(done.stderr, 1))}: see that 'nvidia-smi' works there, then run again"
        )
