#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Facts about the GPUs of a host, and what is wrong with them
description:
  - Tells of a bare machine, a container or a Proxmox VE node which GPUs it has and who uses them, of which versions the
    driver's kernel module and libraries are, which device nodes there are and whether they can be opened, and what CUDA
    itself says.
  - RV(faults) names what keeps the GPUs from being used, each in one line with its value, and what to do where, in the
    container or on its node. C(nvidia-smi) can work where CUDA fails, so C(cuInit) of the driver's library is called.
  - Changes nothing. What asks the driver are child processes which end within a minute and a half in all, or are left
    behind where the driver does not let go of them. They can neither load kernel modules nor make, remove or mend
    device nodes, which C(nvidia-smi) and NVIDIA's libraries do by themselves as root; so the facts hold for a service
    that may not do it.
  - C(cuInit) makes no context, so it takes no memory of a busy GPU.
author: gpuops contributors (@gpuops)
options:
  user:
    description:
      - The user who is to use the GPUs, for example the one that the servers run as.
      - As root, devices and CUDA are tried as this user; without root, another user's permissions are judged by the
        owner, group and mode of the devices.
      - When left out, they are tried by the user that the module runs as.
    type: str
attributes:
  check_mode:
    description: Does the same, since it changes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
notes:
  - Works without root. Then processes of others, the kernel's log and devices tell less.
  - A host without a GPU is no error of the module. It has a line in RV(faults).
seealso:
  - module: gpuops.sglang.pct_container_info
"""

EXAMPLES = r"""
- name: Look at the GPUs as the user of the servers
  gpuops.sglang.gpu_info:
    user: sglang
  register: gpu

- name: Go on with sound GPUs only
  ansible.builtin.assert:
    that: gpu.faults | length == 0
    fail_msg: "{{ gpu.faults | join('\n') }}"
"""

RETURN = r"""
faults:
  description: What keeps the GPUs from being used or trusted, causes before what they bring about.
  type: list
  elements: str
  returned: success
  sample:
    - >-
      libcuda.so.1 is 580.95.05 (/usr/lib/x86_64-linux-gnu/libcuda.so.1), but the kernel module is 580.159.04: in this
      container, install the libraries of exactly 580.159.04, without a kernel module
remarks:
  description: What is worth knowing, but keeps nothing from working, for example persistence mode off, or an old Xid.
  type: list
  elements: str
  returned: success
  sample: []
place:
  description: What the host is.
  type: dict
  returned: success
  contains:
    kind:
      description: V(machine), V(node) of Proxmox VE, or V(container).
      type: str
      sample: container
    manager:
      description: What manages the container, as far as it can be told.
      type: str
      sample: lxc
user:
  description: The user that was asked about.
  type: str
  returned: success
  sample: sglang
tried_by:
  description: The user who tried the devices and CUDA.
  type: str
  returned: success
  sample: sglang
gpus:
  description: The GPUs that nvidia-smi, amd-smi or rocm-smi tell of. What a tool does not tell is null.
  type: list
  elements: dict
  returned: success
  contains:
    vendor:
      description: V(nvidia) or V(amd). An AMD GPU has only what is marked so, besides names and memory.
      type: str
      sample: nvidia
    index:
      description: Index, as the vendor's tool counts.
      type: int
      sample: 0
    uuid:
      description: Unique id.
      type: str
      sample: GPU-08f6e17a-0bbe-60e7-2ae6-907798d17e9a
    name:
      description: Name of the product.
      type: str
      sample: NVIDIA H200
    minor:
      description: N of C(/dev/nvidiaN). NVIDIA only.
      type: int
      sample: 0
    pci_bus_id:
      description: Place on the PCI bus.
      type: str
      sample: "00000000:00:06.0"
    compute_capability:
      description: Compute capability of NVIDIA, graphics version (gfx) of AMD.
      type: str
      sample: "9.0"
    memory_total:
      description: Memory in MiB.
      type: float
      sample: 143771.0
    memory_used:
      description: Memory in use in MiB, whoever uses it.
      type: float
      sample: 0.0
    memory_free:
      description: Free memory in MiB.
      type: float
      sample: 143156.0
    persistence_mode:
      description: Whether the driver keeps the GPU awake. NVIDIA only.
      type: bool
      sample: true
    compute_mode:
      description: Who may use the GPU at a time, for example V(Default) or V(Exclusive_Process). NVIDIA only.
      type: str
      sample: Default
    mig_mode:
      description: Whether the GPU is divided; null for one that can not be. NVIDIA only.
      type: bool
      sample: false
    mig_pending:
      description: The same after the next reset. NVIDIA only.
      type: bool
      sample: false
    mig_devices:
      description: The parts of a divided GPU with index, uuid, profile, instances and memory in MiB. NVIDIA only.
      type: list
      elements: dict
      sample: []
    ecc:
      description:
        - Memory errors since the driver was loaded, C(corrected) and C(uncorrected), whether memory waits to be
          replaced (C(remapping_pending)) and whether that failed. NVIDIA only.
      type: dict
      sample:
        enabled: true
        corrected: 0
        uncorrected: 0
        remapping_pending: false
        remapping_failed: false
        unrepairable: false
    recovery_action:
      description: What the driver asks for to recover the GPU, for example V(Reset). NVIDIA only.
      type: str
      sample: null
    fabric:
      description: State and status of the fabric where GPUs are joined by NVSwitch. NVIDIA only.
      type: dict
      sample: {state: Completed, status: Success}
    processes:
      description:
        - What computes on the GPU. C(pid), C(name) and C(memory) in MiB as the tool tells them; C(owner), C(command)
          without secrets, C(container) of a node and C(unit) of systemd are null for a process that this host does not
          see.
      type: list
      elements: dict
      sample:
        - pid: 567
          name: "sglang::scheduler"
          type: C
          memory: 115504.0
          owner: sglang
          command: "sglang::scheduler"
          container: null
          unit: sglang-qwen36.service
driver:
  description: NVIDIA's kernel modules and libraries.
  type: dict
  returned: success
  contains:
    version:
      description: Version of the loaded kernel module.
      type: str
      sample: 580.159.04
    flavour:
      description: V(open) or V(proprietary).
      type: str
      sample: open
    loaded:
      description: Whether the module nvidia is loaded.
      type: bool
      sample: true
    uvm_loaded:
      description: Whether the module nvidia_uvm is loaded, which CUDA needs.
      type: bool
      sample: true
    nouveau_loaded:
      description: Whether the module nouveau is loaded.
      type: bool
      sample: false
    amdgpu:
      description: Version of AMD's module; V(kernel) for the one that comes with the kernel.
      type: str
      sample: null
    kernel:
      description: Release of the running kernel.
      type: str
      sample: 6.14.8-2-pve
    version_on_disk:
      description: Version of the module nvidia that the running kernel would load.
      type: str
      sample: 580.159.04
    kernels_with_module:
      description: Releases of the installed kernels that have a module nvidia; empty in a container.
      type: list
      elements: str
      sample: [6.14.8-2-pve]
    headers:
      description: Whether the headers of the running kernel are installed.
      type: bool
      sample: true
    dkms:
      description: Versions of NVIDIA's driver that DKMS has the source of.
      type: list
      elements: str
      sample: [580.159.04]
    secure_boot:
      description: Whether Secure Boot is on; null without UEFI.
      type: bool
      sample: false
    libraries:
      description:
        - Each C(libcuda.so.1) and C(libnvidia-ml.so.1) in the order of the loader, with the file that it is a link to
          and the version in that file's name. C(loaded) is the first of each, C(compatibility) one of CUDA's forward
          compatibility.
      type: list
      elements: dict
      sample:
        - name: libcuda.so.1
          path: /usr/lib/x86_64-linux-gnu/libcuda.so.1
          file: libcuda.so.580.159.04
          version: 580.159.04
          loaded: true
          compatibility: false
    libraries_match:
      description: Whether the libraries are of the kernel module's version; null where one of them is not known.
      type: bool
      sample: true
cuda:
  description: What the driver's library for CUDA answers.
  type: dict
  returned: success
  contains:
    result:
      description: What C(cuInit) returned, 0 where CUDA works; null without an answer.
      type: int
      sample: 999
    name:
      description: Name of that result.
      type: str
      sample: CUDA_ERROR_UNKNOWN
    meaning:
      description: What that result means, with its usual cause.
      type: str
      sample: mostly /dev/nvidia-uvm is missing, stale or not permitted, or a GPU is lost
    devices:
      description: Number of GPUs or MIG devices that CUDA counts.
      type: int
      sample: null
    driver_version:
      description: Newest version of CUDA that the library supports.
      type: str
      sample: "13.0"
    library:
      description: File that was loaded.
      type: str
      sample: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    error:
      description: Why there is no answer, for example that the process crashed or hung.
      type: str
      sample: null
devices:
  description: Device nodes of NVIDIA and AMD.
  type: list
  elements: dict
  returned: success
  contains:
    path:
      description: Path of the node.
      type: str
      sample: /dev/nvidia-uvm
    type:
      description: V(character), or what it is instead.
      type: str
      sample: character
    driver:
      description: Name of its driver in C(/proc/devices).
      type: str
      sample: nvidia-uvm
    major:
      description: Major number.
      type: int
      sample: 508
    minor:
      description: Minor number.
      type: int
      sample: 0
    expected_major:
      description: Major number that the driver has now; null for a driver that this kernel does not know.
      type: int
      sample: 511
    mode:
      description: Permissions.
      type: str
      sample: "0666"
    owner:
      description: Owner.
      type: str
      sample: root
    group:
      description: Group.
      type: str
      sample: root
    permitted:
      description: Whether owner, group and mode let the user read and write.
      type: bool
      sample: true
    open:
      description:
        - V(opens), or the error of opening it. V(EPERM) is a refusal of the control group, V(EACCES) one of owner,
          group and mode, V(ENXIO) a node without a driver. Null where it was not tried.
      type: str
      sample: opens
devices_untried:
  description: Why not all devices could be tried, for example because opening one of them hangs.
  type: str
  returned: success
  sample: null
pci:
  description: GPUs on the PCI bus and the kernel's driver of each. A container sees all of its node's.
  type: list
  elements: dict
  returned: success
  sample:
    - {bus_id: "0000:00:06.0", vendor: nvidia, driver: nvidia}
minors:
  description: N of each C(/dev/nvidiaN) that the kernel module has a GPU for; in a container those of its node.
  type: list
  elements: int
  returned: success
  sample: [0]
nvidia_smi:
  description: How C(nvidia-smi) fares.
  type: dict
  returned: success
  contains:
    state:
      description: V(answers), V(fails), V(hangs) or V(missing).
      type: str
      sample: answers
    words:
      description: Lines in which it complains.
      type: list
      elements: str
      sample: []
    driver_version:
      description: Version of the driver that it tells.
      type: str
      sample: 580.159.04
    cuda_version:
      description: Version of CUDA that it tells.
      type: str
      sample: "13.0"
amd_smi:
  description: How C(amd-smi) or C(rocm-smi) fares, with the name of the tool; null on a host without an AMD GPU.
  type: dict
  returned: success
  sample: null
shm_mib:
  description: Size of C(/dev/shm) in MiB.
  type: int
  returned: success
  sample: 65536
memlock_mib:
  description:
    - Memory in MiB that PID 1 may lock at most, and so each service of a container; null for no limit.
  type: float
  returned: success
  sample: 8.0
kernel_log:
  description: Last lines of this boot's kernel log that tell of trouble with a GPU, as far as they can be read.
  type: list
  elements: str
  returned: success
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_facts import gpu_facts
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused


def main() -> None:
    """Gather and return."""
    module = AnsibleModule(argument_spec={"user": {"type": "str"}}, supports_check_mode=True)
    try:
        facts = gpu_facts(module.params["user"])
    except Refused as refused:
        module.fail_json(msg=str(refused))
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
