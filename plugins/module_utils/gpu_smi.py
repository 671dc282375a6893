# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi tells of each GPU, as data."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any
from xml.etree import ElementTree

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_child import harmless
from ansible_collections.gpuops.sglang.plugins.module_utils.host import last_lines
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process, process

END = "</nvidia_smi_log>"
UNKNOWN = re.compile(r"\[?(N/A|Not (Supported|Found|Active)|None|Unknown Error|Requested functionality.*|)\]?")
UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
WORDS = 5  # lines of complaints


def ask() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how nvidia-smi fares and the GPUs that it tells of.

    `state` is answers, fails, hangs or missing; `words` are its complaints, which it has beside answers too when some
    GPU does not answer.
    """
    facts: dict[str, Any] = {"state": "answers", "words": [], "driver_version": None, "cuda_version": None}
    if not shutil.which("nvidia-smi"):
        return {**facts, "state": "missing"}, []
    try:
        return _answers(facts)
    except subprocess.TimeoutExpired:
        return {**facts, "state": "hangs"}, []


def _answers(facts: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = _run("-q", "-x")
    before, start, rest = done.stdout.partition("<?xml")
    text, end, after = rest.partition(END)
    facts["words"] = last_lines(f"{before}\n{after}\n{done.stderr}", WORDS)
    try:
        log = ElementTree.fromstring(start + text + end)
    except ElementTree.ParseError:
        facts["words"] = last_lines(f"{done.stdout}\n{done.stderr}", WORDS)
        return {**facts, "state": "fails"}, []
    facts.update(driver_version=_word(log, "driver_version"), cuda_version=_word(log, "cuda_version"))
    elements = log.findall("gpu")
    if done.returncode and not elements:
        facts["state"] = "fails"
    # the XML has neither; an index that is left out is that of a GPU that does not answer
    numbers = {uuid: (int(index), capability) for index, uuid, capability in _capabilities()}
    slices = _slices() if any(one.find("mig_devices/mig_device") is not None for one in elements) else {}
    gpus = [_gpu(one, numbers.get(_word(one, "uuid") or "", (place, None))) for place, one in enumerate(elements)]
    for one in gpus:
        for device in one["mig_devices"]:
            device["profile"], device["uuid"] = slices.get((one["uuid"], device["index"]), (None, None))
    return facts, gpus


def holder(pid: int, name: str | None, memory: float | None, kind: str | None) -> dict[str, Any]:
    """Return what is known of a process on a GPU; who it belongs to is null where this host does not see it."""
    found: Process | None = process(pid, gpu.ROOT / "proc")
    units = [unit for cgroup in found.cgroups for unit in UNIT.findall(cgroup)] if found else []
    return {
        "pid": pid, "name": name, "type": kind, "memory": memory,
        "owner": found.owner if found else None, "command": found.command if found else None,
        "container": found.container if found else None, "unit": units[-1] if units else None,
    }  # fmt: skip


def _gpu(one: ElementTree.Element, number: tuple[int, str | None]) -> dict[str, Any]:
    index, capability = number
    mode = _word(one, "mig_mode/current_mig")
    return {
        "vendor": "nvidia",
        "index": index,
        "uuid": _word(one, "uuid"),
        "name": _word(one, "product_name"),
        "minor": _whole(one, "minor_number"),
        "pci_bus_id": (_word(one, "pci/pci_bus_id") or str(one.get("id"))).lower(),
        "compute_capability": capability if capability and re.fullmatch(r"\d+\.\d+", capability) else None,
        "memory_total": _mib(one, "fb_memory_usage/total"),
        "memory_used": _mib(one, "fb_memory_usage/used"),
        "memory_free": _mib(one, "fb_memory_usage/free"),
        "persistence_mode": _enabled(_word(one, "persistence_mode")),
        "compute_mode": _word(one, "compute_mode"),
        "mig_mode": _enabled(mode),
        "mig_pending": _enabled(_word(one, "mig_mode/pending_mig")),
        "mig_devices": [
            {
                "index": _whole(device, "index"),
                "gpu_instance": _whole(device, "gpu_instance_id"),
                "compute_instance": _whole(device, "compute_instance_id"),
                "memory_total": _mib(device, "fb_memory_usage/total"),
                "memory_used": _mib(device, "fb_memory_usage/used"),
            }
            for device in one.findall("mig_devices/mig_device")
        ],
        "ecc": {
            "enabled": _enabled(_word(one, "ecc_mode/current_ecc")),
            "corrected": _errors(one, r"\w*_correctable\w*|single_bit"),
            "uncorrected": _errors(one, r"\w*_uncorrectable\w*|double_bit"),
            "remapping_pending": _yes(one, "remapped_rows/remapped_row_pending", "retired_pages/pending_retirement"),
            "remapping_failed": _yes(one, "remapped_rows/remapped_row_failure"),
            "unrepairable": _yes(one, "ecc_errors/unrepairable_memory"),
        },
        "recovery_action": _word(one, "gpu_recovery_action"),
        "fabric": {"state": _word(one, "fabric/state"), "status": _word(one, "fabric/status")},
        "processes": [
            holder(pid, _word(told, "process_name"), _mib(told, "used_memory"), _word(told, "type"))
            for told in one.findall("processes/process_info")
            for pid in [_whole(told, "pid")]
            if pid is not None
        ],
    }


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    return harmless("", gpu.SMI_WAIT, "run", "nvidia-smi", *options)


def _capabilities() -> list[list[str]]:
    """Return index, uuid and compute capability of each GPU."""
    done = _run("--query-gpu=index,uuid,compute_cap", "--format=csv,noheader,nounits")
    fields = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return [one for one in fields if len(one) == 3 and one[0].isdigit()]


def _slices() -> dict[tuple[str, int], tuple[str, str]]:
    """Return (uuid of the GPU, index of the MIG device) -> (profile, uuid of the MIG device)."""
    found, owner = {}, ""
    for line in _run("-L").stdout.splitlines():
        whole = re.match(r"GPU \d+:.*\(UUID: (\S+)\)", line)
        part = re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)", line)
        if whole:
            owner = whole[1]
        elif part:
            found[owner, int(part[2])] = part[1], part[3]
    return found


def _word(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if UNKNOWN.fullmatch(text) else text


def _mib(element: ElementTree.Element, path: str) -> float | None:
    match = re.fullmatch(r"([\d.]+) MiB", _word(element, path) or "")
    return float(match[1]) if match else None


def _whole(element: ElementTree.Element, path: str) -> int | None:
    text = _word(element, path) or ""
    return int(text) if text.isdigit() else None


def _enabled(word: str | None) -> bool | None:
    return None if word is None else word == "Enabled"


def _yes(element: ElementTree.Element, *paths: str) -> bool | None:
    words = [word for word in (_word(element, path) for path in paths) if word is not None]
    return "Yes" in words if words else None


def _errors(element: ElementTree.Element, names: str) -> int | None:
    """Return the errors since the driver was loaded whose element has one of these names; old drivers nest a total."""
    counts = []
    for told in element.iterfind("ecc_errors/volatile/*"):
        text = told.findtext("total") or told.text or ""
        if re.fullmatch(names, told.tag) and text.strip().isdigit():
            counts.append(int(text))
    return sum(counts) if counts else None
