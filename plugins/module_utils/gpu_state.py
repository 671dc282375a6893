# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPUs tell of their own state that somebody must see to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place

# Xids that are not a program's own: what NVIDIA's catalogue of them says, in short
XIDS = {
    46: "the GPU stopped processing: restart the machine if it is not well again",
    48: "an uncorrectable memory error: reset the GPU when it is idle",
    62: "the GPU's internal controller halted: reset the GPU",
    63: "a memory row or page is to be replaced: reset the GPU when it is idle",
    64: "a memory row or page could not be replaced: have the GPU exchanged",
    74: "an error of NVLink: look at 'nvidia-smi nvlink -e'",
    79: "the GPU has fallen off the bus: restart the machine; if it comes again, look at power, cooling and the slot",
    94: "a contained memory error: what ran on the GPU is lost, restart it",
    95: "an uncontained memory error: reset the GPU",
    119: "the GPU's system processor does not answer: reset the GPU or restart the machine",
    120: "an error of the GPU's system processor: reset the GPU or restart the machine",
    140: "an unrecovered memory error: reset the GPU",
    154: "the driver asks for a recovery of the GPU, which the line names",
}


def state_faults(gpu: Mapping[str, Any], place: Place, version: str | None) -> Iterator[str]:
    """Yield what keeps one of NVIDIA's GPUs from being used or trusted; `version` is the driver's."""
    name, ecc = f"GPU {gpu['index']} ({gpu['name']}, {gpu['pci_bus_id']})", gpu["ecc"]
    reset = f"'nvidia-smi -i {gpu['index']} -r' when it is idle, {place.there}"
    if gpu["recovery_action"]:
        yield f"{name}: the driver asks for '{gpu['recovery_action']}': end what uses it and do that {place.there}"
    elif ecc["uncorrected"]:
        yield f"{name} has {ecc['uncorrected']} uncorrected memory errors since the driver was loaded: {reset}"
    if ecc["remapping_failed"] or ecc["unrepairable"]:
        yield f"{name} has memory that can not be replaced any more: have it exchanged"
    if gpu["mig_mode"] and not gpu["mig_devices"]:
        yield (
            f"{name} is in MIG mode without a MIG device, so nothing can use it: {place.there}, make some with "
            f"'nvidia-smi mig -i {gpu['index']} -cgi PROFILE -C', or leave the mode with '-mig 0'"
        )
    if gpu["compute_mode"] == "Prohibited":
        yield f"{name} is in compute mode Prohibited: 'nvidia-smi -i {gpu['index']} -c DEFAULT' {place.there}"
    if gpu["fabric"]["state"] not in (None, "Completed"):
        exactly = version or "the driver's version"
        yield (
            f"{name} is in fabric state '{gpu['fabric']['state']}': {place.there}, start nvidia-fabricmanager of "
            f"exactly {exactly}"
        )


def state_remarks(gpus: Sequence[Mapping[str, Any]], log: Sequence[str], place: Place) -> Iterator[str]:
    """Yield what is worth knowing of NVIDIA's GPUs and of this boot's kernel log."""
    off = ", ".join(str(one["index"]) for one in gpus if one["persistence_mode"] is False)
    if off:
        yield f"persistence mode is off for GPU {off}, and a start waits: {place.there}, enable nvidia-persistenced"
    for one in gpus:
        reset = f"'nvidia-smi -i {one['index']} -r' when it is idle, {place.there}"
        if one["ecc"]["remapping_pending"]:
            yield f"GPU {one['index']} replaces bad memory at its next reset: {reset}"
        if one["mig_pending"] not in (None, one["mig_mode"]):
            yield f"GPU {one['index']} changes its MIG mode at its next reset: {reset}"
        if (one["compute_mode"] or "").startswith("Exclusive"):
            yield f"GPU {one['index']} is in compute mode {one['compute_mode']}: only one process can use it"
    latest = {}
    for line in log:
        match = re.search(r"Xid \(PCI:([\da-fA-F:.]+)\): (\d+)", line)
        if match and int(match[2]) in XIDS:
            latest[match[1], int(match[2])] = line
    for (bus_id, code), line in latest.items():
        yield f"the kernel has told of Xid {code} of GPU {bus_id} since its start, {XIDS[code]} ({line})"
