# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with the GPUs of a host: one line for each fault, with the thing, its value and where to do what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.gpu import SMI_WAIT
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_driver import LIBRARIES
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_node_faults import node_faults
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_state import state_faults, state_remarks

LITTLE_SHM = 1024  # MiB; Docker gives 64, and NCCL fails with it
LOST = "restart it; if it comes again, look at power, cooling and the slot"
OPEN_ONLY = "GPUs from Blackwell on need the open flavour of the kernel modules"
# CUresult -> what to do where it is the only fault; {there}, {log} and {exactly} are filled in
STEPS = {
    34: "take the folder 'stubs' of the CUDA toolkit out of LD_LIBRARY_PATH and /etc/ld.so.conf.d",
    46: "end what uses the GPU exclusively, or 'nvidia-smi -c DEFAULT' {there}",
    802: "{there}, start nvidia-fabricmanager of exactly {exactly}",
    803: "install the libraries of exactly {exactly}",
    804: "take the folder 'compat' of the CUDA toolkit out of LD_LIBRARY_PATH and /etc/ld.so.conf.d",
    **{code: "start or end nvidia-cuda-mps-control for this user" for code in range(805, 811)},
    999: "{there}, 'rmmod nvidia_uvm' and 'modprobe nvidia_uvm' while no GPU is in use, else restart it",
}
ALONE = (34, 802, 804)  # no other fault brings these about


def find_faults(facts: Mapping[str, Any], place: Place) -> tuple[list[str], list[str]]:
    """Return what keeps the GPUs from being used or trusted, and what is only worth knowing."""
    judge = _Judge(facts, place)
    return list(judge.faults()), list(judge.remarks())


class _Judge:
    """Judges what gpu_facts() has gathered, each cause before what it brings about."""

    def __init__(self, facts: Mapping[str, Any], place: Place) -> None:
        self.facts, self.place = facts, place
        self.driver, self.cuda, self.smi = facts["driver"], facts["cuda"], facts["nvidia_smi"]
        self.words = " | ".join(self.smi["words"])
        self.exactly = self.driver["version"] or "the version of the kernel module"
        self.devices = {one["path"]: one for one in facts["devices"]}
        self.missing = sorted({*LIBRARIES} - {one["name"] for one in self.driver["libraries"]})
        self.on_bus = [one for one in facts["pci"] if one["vendor"] == "nvidia"]
        self.gpus = [one for one in facts["gpus"] if one["vendor"] == "nvidia"]

    def faults(self) -> Iterator[str]:
        """Yield all faults."""
        works = self.cuda["result"] == 0
        nodes = any("/nvidia" in path for path in self.devices)
        nvidia = bool(self.on_bus or self.gpus or nodes or works or self.driver["loaded"])
        if nvidia:
            # where CUDA works, nothing that it needs is missing
            causes = [] if works else [*self.module(), *self.nodes()]
            found = [*causes, *self.versions(), *self.tool(bool(causes)), *self.lost(bool(causes))]
            yield from [*found, *self.of_cuda(bool(found))]
        for one in self.gpus:
            yield from state_faults(one, self.place, self.driver["version"])
        if self.facts["amd_smi"] and not nvidia:
            yield from self.amd()
        elif not nvidia:
            look = f"look {self.place.there}" if self.place.contained else "see whether 'lspci -nn' has it"
            yield (
                "there is no GPU: none of NVIDIA or AMD is on the PCI bus, no module of theirs is loaded, and there is "
                f"neither /dev/nvidia0 nor /dev/kfd: if there should be one, {look}"
            )

    def remarks(self) -> Iterator[str]:
        """Yield what is only worth knowing."""
        yield from state_remarks(self.gpus, self.facts["kernel_log"], self.place)
        absent = [*self.missing, *(["nvidia-smi"] if self.smi["state"] == "missing" else [])]
        if self.place.kind == "node" and absent and self.driver["loaded"]:
            yield (
                f"this node has no {', '.join(absent)}, which its containers bring by themselves; without, less can be "
                "told here"
            )
        shm = self.facts["shm_mib"]
        if len(self.facts["gpus"]) > 1 and shm is not None and shm < LITTLE_SHM:
            yield (
                f"/dev/shm has {shm} MiB, which is little for NCCL between {len(self.facts['gpus'])} GPUs: mount it "
                f"with {LITTLE_SHM} MiB or more (Docker: --shm-size or --ipc=host)"
            )
        locked = self.facts["memlock_mib"]
        if len(self.facts["gpus"]) > 1 and locked is not None and self.place.contained:
            raised = (
                f"{self.place.there}, write 'lxc.prlimit.memlock: unlimited' into /etc/pve/lxc/CTID.conf"
                if self.place.manager == "lxc"
                else "have it started with '--ulimit memlock=-1'"
            )
            yield (
                f"services of this container may lock {locked:g} MiB, whatever their LimitMEMLOCK asks, and NCCL locks "
                f"what it gives to a network card: {raised}, and restart it"
            )

    def module(self) -> Iterator[str]:
        """Yield why the kernel has no driver of NVIDIA's."""
        driver, there = self.driver, self.place.there
        kept = [] if self.place.contained else [one["bus_id"] for one in self.on_bus if one["driver"] == "vfio-pci"]
        for bus_id in kept:
            yield (
                f"GPU {bus_id} is kept for a virtual machine by vfio-pci: {there}, take it out of the VM's hostpci and "
                "of 'options vfio-pci ids=' in /etc/modprobe.d, then restart"
            )
        if kept and len(kept) == len(self.on_bus):
            return  # no module is needed for what is not to be used here
        if driver["loaded"]:
            if not driver["uvm_loaded"] and "/dev/nvidia-uvm" in self.devices:
                yield (
                    f"the module nvidia_uvm is not loaded, which CUDA needs: {there}, 'modprobe nvidia_uvm', and write "
                    "nvidia_uvm into /etc/modules-load.d/nvidia.conf for each start"
                )
        elif driver["nouveau_loaded"]:
            yield (
                f"the module nouveau is loaded, beside which NVIDIA's can not be: {there}, write 'blacklist nouveau' "
                "into /etc/modprobe.d/nouveau.conf, 'update-initramfs -u', and restart"
            )
        elif self.place.contained:
            yield f"the module nvidia is not loaded: run this {there} to see why"
        elif driver["version_on_disk"] or driver["kernel"] in driver["kernels_with_module"]:
            signed = "; Secure Boot is on, so it must be signed with a key that 'mokutil --list-enrolled' has"
            yield (
                f"the module nvidia {driver['version_on_disk'] or ''} is on disk but not loaded: {there}, 'modprobe "
                f"nvidia' and see what 'journalctl -k' says{signed if driver['secure_boot'] else ''}"
            )
        else:
            yield self._not_built()

    def _not_built(self) -> str:
        kernel, dkms = self.driver["kernel"], self.driver["dkms"]
        others = ", ".join(self.driver["kernels_with_module"])
        steps = (
            []
            if self.driver["headers"]
            else [f"install its headers (proxmox-headers-{kernel} or linux-headers-{kernel})"]
        )
        steps.append(f"'dkms autoinstall', which builds {dkms[-1]}" if dkms else "install NVIDIA's driver")
        return (
            f"there is no module nvidia for the running kernel {kernel}{f', only for {others}' if others else ''}: "
            f"{self.place.there}, {', then '.join(steps)}"
        )

    def versions(self) -> Iterator[str]:
        """Yield which library is missing or not of the kernel module's version."""
        driver, kernel = self.driver, self.driver["version"]
        for name in self.missing if self.place.kind != "node" else []:
            yield (
                f"{name} is not found: {self.place.here}, install the driver's libraries of exactly {self.exactly} "
                "(NVIDIA's installer with --no-kernel-modules, or packages of that version); else run ldconfig"
            )
        for one in driver["libraries"]:
            if not kernel or not one["loaded"] or one["compatibility"] or one["version"] in (None, kernel):
                continue
            seen = f"{one['name']} is {one['version']} ({one['path']}), but the kernel module is {kernel}"
            if self.place.contained:
                yield f"{seen}: {self.place.here}, install the libraries of exactly {kernel}, without a kernel module"
            elif driver["version_on_disk"] == one["version"]:
                yield f"{seen}: the module {one['version']} is on disk, so restart this {self.place.kind} to load it"
            else:
                yield f"{seen}: {self.place.there}, install the whole driver in one version, then restart"

    def tool(self, causes: bool) -> Iterator[str]:
        """Yield what keeps nvidia-smi from answering, if not modules or devices, of which there are other faults."""
        state = self.smi["state"]
        if state == "missing" and self.place.kind != "node":
            utilities = f"install the driver's utilities of exactly {self.exactly}"
            yield f"there is no nvidia-smi in PATH: {self.place.here}, {utilities}"
        elif state == "hangs":
            seen = f"nvidia-smi does not answer within {SMI_WAIT} s, so the driver is stuck"
            yield f"{seen}: look for 'Xid' in 'journalctl -k' {self.place.there}, then restart it"
        elif state == "fails":
            step = self._step(causes)
            if step:
                yield f"nvidia-smi fails: {self.words or 'it says nothing'}: {step}"

    def _step(self, causes: bool) -> str | None:
        """Return what to do about the words of an nvidia-smi that fails; None where another fault says it better."""
        driver, place = self.driver, self.place
        if "version mismatch" in self.words:
            one_version = f"{place.there}, make kernel module and libraries one version, then restart"
            return None if driver["libraries_match"] is False else one_version
        # mostly "couldn't communicate with the NVIDIA driver", 'No devices were found' or 'Insufficient Permissions'
        if causes and "device handle" not in self.words:
            return None
        if "No devices were found" in self.words:
            hint = f" ({OPEN_ONLY}, and these are proprietary)" if driver["flavour"] == "proprietary" else ""
            return f"the kernel module could not start a GPU, or none was given to this {place.kind}{hint}: {place.log}"
        if "device handle" in self.words:
            return f"a GPU is lost: {place.there}, {LOST}"
        if "Unknown Error" in self.words and place.contained:
            lost = "a container loses its GPUs when 'systemctl daemon-reload' runs on its host"
            return f"{lost}: have it restarted, with --device for each node or with CDI"
        return place.log

    def lost(self, causes: bool) -> Iterator[str]:
        """Yield which GPU does not answer though its driver has it, and no other fault says why."""
        if self.smi["state"] != "answers" or causes:
            return
        answering = {(one["pci_bus_id"] or "")[-12:] for one in self.gpus}
        said = f": {self.words}" if self.words else ""
        driven = [one["bus_id"] for one in self.on_bus if one["driver"] == "nvidia" and one["bus_id"] not in answering]
        if driven and not self.place.contained:  # a container sees the whole bus of its node
            for bus_id in driven:
                refusal = [line for line in self.facts["kernel_log"] if bus_id in line and "in this system" in line]
                why = f": {refusal[0]}: {OPEN_ONLY}" if refusal else f"{said}: {self.place.there}, {LOST}"
                yield f"GPU {bus_id} is on the PCI bus, but does not answer nvidia-smi{why}"
        elif "device handle" in self.words:
            yield f"nvidia-smi does not reach every GPU{said}: {self.place.there}, {LOST}"
        elif not answering:
            yield f"nvidia-smi tells of no GPU{said}: {self.place.log}"

    def nodes(self) -> Iterator[str]:
        """Yield what is wrong with the devices that CUDA needs."""
        if not self.driver["loaded"]:
            return  # told already
        given = [path for path in self.devices if re.fullmatch(r"/dev/nvidia\d+", path)]
        wanted = given if self.place.contained else [f"/dev/nvidia{minor}" for minor in self.facts["minors"]]
        for path in ["/dev/nvidiactl", "/dev/nvidia-uvm", *(wanted or given or ["/dev/nvidia0"])]:
            if path not in self.devices:
                yield f"{path} is missing: {self.place.give(path)}"
            elif self.driver["uvm_loaded"] or path != "/dev/nvidia-uvm":
                yield from self._node(path)
        if self.facts["devices_untried"]:
            yield (
                f"can not try all devices as '{self.facts['tried_by']}', {self.facts['devices_untried']}: look for "
                f"'Xid' in 'journalctl -k' {self.place.there}"
            )

    def _node(self, path: str) -> Iterator[str]:
        node = self.devices[path]
        user = self.facts["user"] if node["open"] is None else None
        return node_faults(node, user or self.facts["tried_by"], self.place)

    def of_cuda(self, others: bool) -> Iterator[str]:
        """Yield what CUDA itself says; `others` tells whether there are faults that may have brought it about."""
        result, error = self.cuda["result"], self.cuda["error"]
        said = f"cuInit of {self.cuda['library'] or 'libcuda.so.1'} as '{self.facts['tried_by']}'"
        if result == 0:
            listed = sum(not one["mig_mode"] for one in self.gpus)
            if (self.cuda["devices"] or listed) < listed:
                yield (
                    f"CUDA counts {self.cuda['devices']} of {listed} GPUs as '{self.facts['tried_by']}': see who can "
                    f"open each /dev/nvidiaN, and {self.place.log}"
                )
        elif result is not None:
            meaning = f", {self.cuda['meaning']}" if self.cuda["meaning"] else ""
            compatibility = result in (803, 804) and "/compat" in str(self.cuda["library"])
            step = STEPS.get(804 if compatibility else result, "{log}").format(
                there=self.place.there, log=self.place.log, exactly=self.exactly
            )
            step = (
                step if not others or compatibility or result in ALONE else "put right first what is told before this"
            )
            yield f"{said} returns {result} {self.cuda['name']}{meaning}: {step}"
        elif "libcuda.so.1" not in self.missing:  # else told already
            again = f"install the libraries of exactly {self.exactly} again {self.place.here}"
            yield f"{said} gives no answer: {error}: look for 'Xid' in 'journalctl -k' {self.place.there}, else {again}"

    def amd(self) -> Iterator[str]:
        """Yield what keeps AMD's GPUs from being used."""
        tool, there = self.facts["amd_smi"], self.place.there
        if not self.driver["amdgpu"] and "/dev/kfd" not in self.devices:
            yield f"the module amdgpu is not loaded: {there}, 'modprobe amdgpu' and see what 'journalctl -k' says"
            return
        renders = [path for path in self.devices if path.startswith("/dev/dri/renderD")]
        for path in ["/dev/kfd", *(renders or ["/dev/dri/renderD128"])]:
            if path in self.devices:
                yield from self._node(path)
            elif self.place.manager == "lxc":
                yield f"{path} is missing: {self.place.give(path)}"
            else:
                yield f"{path} is missing: see what amdgpu says in 'journalctl -k' {there}"
        if tool["state"] != "answers":
            words = " | ".join(tool["words"])
            yield f"{tool['tool']} is of no use, {tool['state']}: {words}: {self.place.here}, install ROCm's amd-smi"
