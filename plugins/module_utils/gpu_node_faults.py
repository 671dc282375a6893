# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a device node of a GPU for who is to open it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place


def node_faults(node: Mapping[str, Any], user: str, place: Place) -> Iterator[str]:
    """Yield at most one fault of a device of gpu_devices.devices() that `user` needs."""
    path, answer = node["path"], node["open"]
    what = f"{path} ({node['major']}:{node['minor']}) can not be opened by '{user}', {answer}"
    if node["type"] != "character":
        yield f"{path} is no device but a {node['type']}, as a mount without its device leaves it: {place.give(path)}"
    elif node["expected_major"] not in (None, node["major"]):
        yield (
            f"{path} has major {node['major']}, but its driver {node['driver']} has {node['expected_major']} now, as "
            f"it may at each start: {place.give(path)}, in place of fixed numbers"
        )
    elif answer == "EPERM":
        yield f"{what}: its control group does not permit it: {_permit(path, place)}"
    elif answer == "EACCES" or (answer is None and node["permitted"] is False):
        rights = f"mode {node['mode']}, owner {node['owner']}, group {node['group']}"
        yield f"{path} can not be opened by '{user}', EACCES ({rights}): {_allow(node, user, place)}"
    elif answer in ("ENXIO", "ENODEV"):
        yield f"{what}: nothing drives it: see whether its module is loaded and its GPU is alive {place.there}"
    elif answer not in (None, "opens"):
        yield f"{what}: look for NVRM or amdgpu in 'journalctl -k' {place.there}"


def _permit(path: str, place: Place) -> str:
    if place.manager == "lxc":
        return place.give(path)
    if place.contained:
        return f"a 'systemctl daemon-reload' on its host takes devices away: {place.give(path)}"
    return f"see DevicePolicy and DeviceAllow of the unit that this runs in, {place.there}"


def _allow(node: Mapping[str, Any], user: str, place: Place) -> str:
    steps = []
    named = not node["group"].isdigit() and node["group"] not in ("root", "nogroup", "nobody")
    if re.fullmatch(r".*[67].", node["mode"]) and named:
        steps.append(f"add '{user}' to the group {node['group']}")
    if place.contained:
        steps.append(place.give(node["path"]))
    elif "nvidia" in node["path"]:
        steps.append(
            f"{place.there}, write 'options nvidia NVreg_DeviceFileMode=0666' into /etc/modprobe.d/nvidia.conf"
        )
    return ", or ".join(steps) or f"{place.there}, give it to a group of '{user}' by a rule of udev"
