# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container from nothing to two GPUs, by the bootstrap playbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from connections import on_node
from gpu_container import HOST, UNIT, VMID, bootstrap, config, init, inside

WAIT = "apply from its next start on"


@pytest.mark.slow
def test_a_container_from_nothing_to_two_gpus(gpu_node: None, gpu_inventory: Path) -> None:
    made = bootstrap(gpu_inventory)
    assert made.status == 0, made
    found = config()
    assert (found["memory"], found["tags"], found["unprivileged"]) == ("1024", "sglang", "1")
    assert [found[f"dev{n}"] for n in range(3)] == [
        f"/dev/{name},mode=0666" for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
    ]
    assert inside("setpriv --reuid 65534 --clear-groups cat /dev/nvidia0")[0] == 0
    order = on_node(f"systemctl is-enabled gpuops-gpu-devices; grep -c Before=pve-guests.service {UNIT}").split()
    assert order == ["enabled", "1"]

    # a second GPU comes into the running container; the rest waits, and says so
    before = init()
    more = {"gpus": [0, 1], "features": {"nesting": True, "fuse": True}}
    changed = bootstrap(gpu_inventory, **more, shm="64M")
    assert changed.status == 0, changed
    assert f"features, lxc.mount.entry dev/shm of container {VMID} {WAIT}" in " ".join(changed.output.split())
    assert init() == before
    assert inside("setpriv --reuid 65534 --clear-groups cat /dev/nvidia1")[0] == 0

    # allowed, it is restarted in an orderly way: what runs in it comes to its end
    stop = "echo stopped > /root/ended"
    inside(f"systemd-run --unit worker --property ExecStop='/bin/sh -c \"{stop}\"' --property Type=exec sleep infinity")
    restarted = bootstrap(gpu_inventory, **more, shm="64M", restart=True)
    assert restarted.status == 0, restarted
    assert init() != before
    assert inside("cat /root/ended; findmnt -n -o OPTIONS /dev/shm | grep -o size=65536k") == (
        0,
        "stopped\nsize=65536k",
    )
    assert WAIT not in " ".join(restarted.output.split())

    # nothing is left to do, which few calls tell: of the node's devices, of the container, and of its Python
    calm = bootstrap(gpu_inventory, "-vvv", **more, shm="64M")
    assert (calm.status, calm.count(HOST, "changed")) == (0, 0), calm
    assert 2 <= calm.output.count("SSH: EXEC") <= 6, calm.output

    # what would be done is shown, as the lines of the configuration
    wider = {**more, "memory": "2G"}
    shown = bootstrap(gpu_inventory, "--check", "--diff", **wider, shm="64M")
    assert (shown.status, shown.count(HOST, "changed")) == (0, 1), shown
    assert re.findall(r"(?m)^[+-]\w.*", shown.output) == ["-memory: 1024", "+memory: 2048"]
