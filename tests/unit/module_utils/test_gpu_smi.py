# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi, amd-smi and rocm-smi print, as data, and what is made of the state of a GPU."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu_amd, gpu_smi
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_facts import gpu_facts
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_place import Place
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_state import state_faults, state_remarks
from conftest import FIXTURES

if TYPE_CHECKING:
    from gpu_hosts import Host

pytest_plugins = ["gpu_hosts"]
BUSY = (FIXTURES / "gpu/h200-busy.xml").read_text()
HERE = Place("machine")


def changed(*pairs: tuple[str, str]) -> str:
    """Return the recorded output with other values."""
    text = BUSY
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def told(host: Host, *pairs: tuple[str, str]) -> dict[str, Any]:
    """Return the only GPU that is told of."""
    host.smi(changed(*pairs))
    (one,) = gpu_smi.ask()[1]
    return one


def test_a_recorded_h200(bare: Host) -> None:
    bare.smi()
    facts, (one,) = gpu_smi.ask()
    assert facts == {"state": "answers", "words": [], "driver_version": "580.159.04", "cuda_version": "13.0"}
    assert one.pop("processes") == [
        {
            "pid": 694, "name": "python3", "type": "C", "memory": 1634.0, "owner": None, "command": None,
            "container": None, "unit": None,
        }
    ]  # fmt: skip
    assert one == {
        "vendor": "nvidia", "index": 0, "uuid": "GPU-79f77a03-f5e8-aefa-7f77-328bf40fdf43", "name": "NVIDIA H200",
        "minor": 0, "pci_bus_id": "00000000:00:06.0", "compute_capability": "9.0", "memory_total": 143771.0,
        "memory_used": 1643.0, "memory_free": 141514.0, "persistence_mode": True, "compute_mode": "Default",
        "mig_mode": False, "mig_pending": False, "mig_devices": [],
        "ecc": {
            "enabled": True, "corrected": 0, "uncorrected": 0, "remapping_pending": False, "remapping_failed": False,
            "unrepairable": False,
        },
        "recovery_action": None, "fabric": {"state": None, "status": None},
    }  # fmt: skip
    assert list(state_faults(one, HERE, None)) == list(state_remarks([one], [], HERE)) == []


def test_whose_a_process_is(bare: Host) -> None:
    proc = bare.root / "proc"
    for pid, cgroup in (
        (694, "/system.slice/sglang-qwen36.service"),
        (695, "/lxc/129/ns/system.slice/sglang-a.service"),
        (696, "/user.slice/user-0.slice/session-3.scope"),
    ):
        bare.write(f"proc/{pid}/stat", f"{pid} (python3) S " + " ".join(["1"] * 30))
        bare.write(f"proc/{pid}/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\n")
        bare.write(f"proc/{pid}/cmdline", "python3\0-m\0sglang.launch_server\0--api-key\0hush\0")
        bare.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
    assert proc.is_dir()
    one = BUSY[BUSY.index("\t\t\t<process_info>") : BUSY.index("</process_info>") + len("</process_info>\n")]
    bare.smi(BUSY.replace(one, one + one.replace("694", "695") + one.replace("694", "696") + one.replace("694", "697")))
    found = gpu_smi.ask()[1][0]["processes"]
    assert [(one["container"], one["unit"]) for one in found] == [
        (None, "sglang-qwen36.service"),
        (129, "sglang-a.service"),
        (None, "session-3.scope"),
        (None, None),
    ]
    assert found[0]["owner"] == "root" and found[0]["command"] == "python3 -m sglang.launch_server --api-key ***"


MIG = """<mig_devices><mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id>
<compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>40448 MiB</total><used>298 MiB</used><free>40151 MiB</free></fb_memory_usage>
</mig_device></mig_devices>"""


def test_a_divided_gpu(bare: Host) -> None:
    mode = ("<current_mig>Disabled", "<current_mig>Enabled")
    parts = re.search(r"<mig_devices>.*?</mig_devices>", BUSY, re.DOTALL)
    assert parts
    bare.smi(
        changed(mode, (parts[0], MIG), ("143771 MiB", "N/A")),
        more="""[ "$*" = -L ] && cat <<X && exit
GPU 0: NVIDIA H200 (UUID: GPU-79f77a03-f5e8-aefa-7f77-328bf40fdf43)
  MIG 3g.71gb     Device  0: (UUID: MIG-3b6d9c57-7f7b-5d3f-9c43-0f0a3f1b2c4d)
X""",
    )
    (one,) = gpu_smi.ask()[1]
    assert (one["mig_mode"], one["mig_pending"], one["memory_total"]) == (True, False, None)
    assert one["mig_devices"] == [
        {
            "index": 0, "gpu_instance": 3, "compute_instance": 0, "memory_total": 40448.0, "memory_used": 298.0,
            "profile": "3g.71gb", "uuid": "MIG-3b6d9c57-7f7b-5d3f-9c43-0f0a3f1b2c4d",
        }
    ]  # fmt: skip
    assert list(state_faults(one, HERE, None)) == []
    assert "GPU 0 changes its MIG mode at its next reset" in next(state_remarks([one], [], HERE))
    (line,) = state_faults(told(bare, mode), HERE, None)
    assert line.startswith(
        "GPU 0 (NVIDIA H200, 00000000:00:06.0) is in MIG mode without a MIG device, so nothing can use it"
    )


@pytest.mark.parametrize(
    ("pair", "fault"),
    [
        (
            ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"),
            ": the driver asks for 'Reset': end what uses it",
        ),
        (
            ("<dram_uncorrectable>0", "<dram_uncorrectable>2"),
            " has 2 uncorrected memory errors since the driver was loaded",
        ),
        (("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>1"), " has 1 uncorrected memory errors"),
        (("<remapped_row_failure>No", "<remapped_row_failure>Yes"), " has memory that can not be replaced any more"),
        (("<unrepairable_memory>No", "<unrepairable_memory>Yes"), " has memory that can not be replaced any more"),
        (
            ("<compute_mode>Default", "<compute_mode>Prohibited"),
            " is in compute mode Prohibited: 'nvidia-smi -i 0 -c DEFAULT'",
        ),
        (
            ("<state>N/A", "<state>In Progress"),
            " is in fabric state 'In Progress': on this machine, start nvidia-fabricmanager",
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_gpu_that_is_not_sound(bare: Host, pair: tuple[str, str], fault: str) -> None:
    (line,) = state_faults(told(bare, pair), HERE, "580.159.04")
    assert line.startswith(f"GPU 0 (NVIDIA H200, 00000000:00:06.0){fault}")


@pytest.mark.parametrize(
    ("pair", "remark"),
    [
        (("<persistence_mode>Enabled", "<persistence_mode>Disabled"), "persistence mode is off for GPU 0"),
        (("<remapped_row_pending>No", "<remapped_row_pending>Yes"), "GPU 0 replaces bad memory at its next reset"),
        (("<compute_mode>Default", "<compute_mode>Exclusive_Process"), "GPU 0 is in compute mode Exclusive_Process"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_is_worth_a_word(bare: Host, pair: tuple[str, str], remark: str) -> None:
    one = told(bare, pair)
    assert list(state_faults(one, HERE, None)) == []
    (line,) = state_remarks([one], [], HERE)
    assert line.startswith(remark)


def test_the_last_of_each_kind_of_xid_is_told() -> None:
    log = [
        "[1] NVRM: Xid (PCI:0000:07:00): 94, pid=5, Contained: old",
        "[2] NVRM: Xid (PCI:0000:07:00): 31, pid=5, Ch 00000008",  # a program's own fault
        "[3] NVRM: Xid (PCI:0000:07:00): 94, pid=6, Contained: new",
    ]
    (line,) = state_remarks([], log, HERE)
    assert line.startswith("the kernel has told of Xid 94 of GPU 0000:07:00 since its start, a contained memory error")
    assert "new" in line


def test_old_drivers_nest_their_counts(bare: Host) -> None:
    old = """<volatile><single_bit><device_memory>1</device_memory><total>3</total></single_bit>
    <double_bit><device_memory>4</device_memory><total>4</total></double_bit></volatile>"""
    new = BUSY[BUSY.index("<volatile>") : BUSY.index("</volatile>") + len("</volatile>")]
    ecc = told(bare, (new, old))["ecc"]
    assert (ecc["corrected"], ecc["uncorrected"]) == (3, 4)


def test_complaints_beside_an_answer_and_an_index_that_is_left_out(bare: Host) -> None:
    bare.smi(
        capabilities="3, GPU-79f77a03-f5e8-aefa-7f77-328bf40fdf43, [N/A]",
        more="echo 'Unable to determine the device handle for GPU1'",
    )
    facts, (one,) = gpu_smi.ask()
    assert facts["words"] == ["Unable to determine the device handle for GPU1"] and facts["state"] == "answers"
    assert (one["index"], one["compute_capability"]) == (3, None)


def test_half_an_answer_is_a_failure(bare: Host) -> None:
    bare.smi(BUSY[:2000])
    facts, gpus = gpu_smi.ask()
    assert (facts["state"], gpus) == ("fails", []) and facts["words"]


def test_the_stand_in_of_the_lab(bare: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FIXTURES.parents[2] / "molecule/lab/standins/cuda"
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STANDIN_GPU_APPS", str(bare.write("apps", f"{os.getpid()}, 500, 1\n")))
    facts, (first, second) = gpu_smi.ask()
    assert facts["state"] == "answers" and (first["memory_used"], second["memory_used"]) == (0.0, 500.0)
    assert (second["index"], second["compute_capability"]) == (1, "12.0")
    assert [one["pid"] for one in second["processes"]] == [os.getpid()]
    assert list(state_remarks([first, second], [], HERE)) == []


# as the source of amd-smi prints it; ROCm 7 puts a 'gpu_data' around it
AMD = {
    "list --json": [{"gpu": 0, "bdf": "0000:05:00.0", "uuid": "bcff74a1-0000-1000-80b1-aabbccddeeff", "kfd_id": 19499}],
    "static --asic --bus --vram --json": [
        {
            "gpu": 0,
            "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942", "oam_id": 6},
            "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16},
            "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
        }
    ],
    "metric --mem-usage --json": [
        {
            "gpu": 0,
            "mem_usage": {
                "total_vram": {"value": 196592, "unit": "MB"},
                "used_vram": {"value": 283, "unit": "MB"},
                "free_vram": {"value": 196309, "unit": "MB"},
            },
        }
    ],
    "process --general --json": [
        {
            "gpu": 0,
            "process_list": [
                {"process_info": {"name": "rvs", "pid": 4194304, "mem_usage": {"value": 1073741824, "unit": "B"}}},
                {"process_info": "No running processes detected"},
            ],
        }
    ],
}


def amd_smi(host: Host, wrapped: bool) -> None:
    """Make an amd-smi that answers."""
    cases = "".join(
        f"'{question}') cat <<'X'\n{json.dumps({'gpu_data': answer} if wrapped else answer)}\nX\n;;\n"
        for question, answer in AMD.items()
    )
    host.program(
        "amd-smi", f'echo "WARNING: User is missing the following required groups: render"\ncase "$*" in\n{cases}esac'
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi(bare: Host, wrapped: bool) -> None:
    amd_smi(bare, wrapped)
    facts, (one,) = gpu_amd.ask()
    assert facts == {"tool": "amd-smi", "state": "answers", "words": []}
    assert [(told["pid"], told["memory"], told["owner"]) for told in one.pop("processes")] == [(4194304, 1024.0, None)]
    assert one == {
        "vendor": "amd", "index": 0, "uuid": "bcff74a1-0000-1000-80b1-aabbccddeeff", "name": "AMD Instinct MI300X",
        "pci_bus_id": "0000:05:00.0", "compute_capability": "gfx942", "memory_total": 196592.0, "memory_used": 283.0,
        "memory_free": 196309.0,
    }  # fmt: skip


# of a Radeon RX 7900 XT
ROCM = {
    "card0": {
        "Unique ID": "0x9246aabbccddeeff", "PCI Bus": "0000:C4:00.0", "VRAM Total Memory (B)": "21458059264",
        "VRAM Total Used Memory (B)": "27856896", "Card Series": "Radeon RX 7900 XT", "Card Model": "0x744c",
        "GFX Version": "gfx1100",
    },
    "system": {"Driver version": "6.12.12"},
}  # fmt: skip


def test_rocm_smi_where_there_is_no_amd_smi(bare: Host) -> None:
    bare.program("rocm-smi", f"cat <<'X'\n{json.dumps(ROCM)}\nX")
    facts, (one,) = gpu_amd.ask()
    assert (facts["tool"], facts["state"]) == ("rocm-smi", "answers")
    assert (one["name"], one["compute_capability"], one["pci_bus_id"]) == (
        "Radeon RX 7900 XT",
        "gfx1100",
        "0000:c4:00.0",
    )
    assert (one["memory_total"], round(one["memory_free"])) == (20464.0, 20437)


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        (
            "echo 'ERROR: Unable to detect any GPU devices' >&2; exit 1",
            "fails",
            ["ERROR: Unable to detect any GPU devices"],
        ),
        ("echo '[{'", "fails", ["[{"]),
        ("", "fails", []),
    ],
)
def test_amd_smi_that_fails(bare: Host, script: str, state: str, words: list[str]) -> None:
    bare.program("amd-smi", script)
    facts, gpus = gpu_amd.ask()
    assert (facts, gpus) == ({"tool": "amd-smi", "state": state, "words": words}, [])


def test_a_host_with_amd_gpus(bare: Host) -> None:
    amd_smi(bare, True)
    bare.pci("0000:05:00.0", "amdgpu", vendor="0x1002", kind="0x120000")
    bare.module("amdgpu")
    bare.write("proc/devices", "Character devices:\n  1 kfd\n  1 drm\n")
    bare.node("kfd", "dri/renderD128")
    found = gpu_facts()
    assert (found["faults"], [one["name"] for one in found["gpus"]]) == ([], ["AMD Instinct MI300X"])
    assert found["driver"]["amdgpu"] == "kernel"
    (bare.root / "dev/kfd").unlink()
    bare.write("run/systemd/container", "lxc")
    (bare.programs / "amd-smi").unlink()
    kfd, tool = gpu_facts()["faults"]
    assert kfd.startswith(
        "/dev/kfd is missing: on the node of this container, 'pct set CTID --devN /dev/kfd,gid=GID,mode=0660'"
    )
    assert tool.startswith("amd-smi is of no use, missing: ") and tool.endswith(
        "in this container, install ROCm's amd-smi"
    )
    (bare.root / "sys/module/amdgpu").rmdir()
    assert gpu_facts()["faults"][0].startswith(
        "the module amdgpu is not loaded: on the node of this container, 'modprobe"
    )
