# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import gpu
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import Process


@pytest.mark.parametrize(
    ("nodes", "device"),
    [
        ([], None),
        (["nvidiactl", "nvidia-uvm"], None),  # the driver without a GPU
        (["nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"], "cuda"),
        (["kfd"], "cuda"),
    ],
)
def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[str], device: str | None) -> None:
    (tmp_path / "dev").mkdir()
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert gpu.device() == device


def test_another_driver_is_another_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    seen = []
    for text in ("580.65", "580.95", "580.95"):
        version.write_text(text)
        seen.append(gpu.inventory())
    assert seen[0] != seen[1] == seen[2]


STANDINS = Path(__file__).parents[3] / "molecule/lab/standins/cuda"
HIDDEN = 4_194_304 + 4711  # more than the kernel gives, so of no process here
RECORDED = "GPU-08f6e17a-0bbe-60e7-2ae6-907798d17e9a"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script in the place of nvidia-smi; there is none before."""

    def write(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "sleep").symlink_to(shutil.which("sleep") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    return write


def answers(gpus: str, apps: str) -> str:
    """Return a script that answers as nvidia-smi does with --format=csv,noheader,nounits."""
    return (
        "case \"$*\" in\n'--query-gpu=index,uuid,memory.used --format=csv,noheader,nounits')\n"
        f"echo '{gpus}';;\n'--query-compute-apps=pid,used_memory,gpu_uuid --format=csv,noheader,nounits')\n"
        f"echo '{apps}';;\n*) exit 2;; esac"
    )


def test_a_host_without_nvidia_smi_has_no_processes(smi: Callable[[str], None]) -> None:
    assert (gpu.processes(), gpu.memory_used(), gpu.strangers((), ()), gpu.memory_total()) == ([], {}, [], None)


def test_an_nvidia_smi_that_fails_tells_nothing(smi: Callable[[str], None]) -> None:
    smi(f"{answers(f'0, {RECORDED}, 5', f'1, 500, {RECORDED}')}\necho 'can not communicate with the driver'; exit 9")
    assert (gpu.processes(), gpu.memory_used(), gpu.strangers((), ()), gpu.memory_total()) == ([], {}, [], None)


@pytest.mark.parametrize("apps", ["", "No running processes found"])
def test_an_idle_gpu(smi: Callable[[str], None], apps: str) -> None:
    smi(answers(f"0, {RECORDED}, 0", apps))
    assert gpu.processes() == []
    assert gpu.memory_used() == {0: 0.0}


def test_memory_that_the_driver_does_not_tell(smi: Callable[[str], None]) -> None:
    own = os.getpid()
    smi(answers(f"0, {RECORDED}, [N/A]\n1, GPU-b, 17", f"{own}, [N/A], {RECORDED}\n{own}, [Not Found], GPU-b"))
    assert gpu.memory_used() == {1: 17.0}
    assert [(one.pid, one.memory, one.gpu) for one in gpu.processes()] == [(own, None, 0), (own, None, 1)]
    assert [one.gpu for one in gpu.strangers((), ())] == [0, 1]
    assert gpu.processes()[0].label.endswith(": memory of GPU 0")


def test_what_is_no_process_of_a_known_gpu_is_left_out(smi: Callable[[str], None]) -> None:
    smi(answers(f"0, {RECORDED}, 1", f"[N/A], 5, {RECORDED}\n{os.getpid()}, 5, GPU-b\n\n1, 2\n"))
    assert gpu.processes() == []


def test_a_process_that_was_just_ending_is_not_reported_as_hidden(smi: Callable[[str], None], tmp_path: Path) -> None:
    both = f"{HIDDEN}, 500, {RECORDED}\n{HIDDEN - 1}, 400, {RECORDED}"
    later = answers(f"0, {RECORDED}, 1", f"{HIDDEN}, 500, {RECORDED}")
    asked = (
        f"case \"$*\" in *apps*) if [ ! -e {tmp_path}/once ]; then : >{tmp_path}/once; echo '{both}'; exit; fi; esac"
    )
    smi(f"{asked}\n{later}")
    assert [one.pid for one in gpu.processes()] == [HIDDEN]


def test_a_stuck_driver_is_refused(smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SMI_WAIT", 0.2)
    smi("exec sleep 600")
    for ask in (gpu.processes, gpu.memory_used):
        with pytest.raises(Refused) as caught:
            ask()
        assert str(caught.value) == (
            "nvidia-smi does not answer within 0.2 s: the driver is stuck; look for 'Xid' in what 'journalctl -k' "
            "shows (of a container: on its node), then restart that machine"
        )
    # this one only helps to explain another failure
    assert gpu.memory_total() is None


def test_the_smallest_gpu_counts(smi: Callable[[str], None]) -> None:
    smi("echo 143771; echo '[N/A]'; echo 81920")
    assert gpu.memory_total() == 80.0


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells the stand-in for nvidia-smi what computes."""
    monkeypatch.setenv("PATH", f"{STANDINS}:{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_GPU_APPS", str(tmp_path / "apps"))
    return tmp_path / "apps"


def test_the_stand_in_without_a_file_is_an_idle_gpu(apps: Path) -> None:
    assert gpu.processes() == []
    assert gpu.memory_used() == {0: 0.0}
    assert gpu.memory_total() == 97887 / 1024


def test_processes_are_told_with_their_gpu_and_memory(apps: Path) -> None:
    own = os.getpid()
    apps.write_text(f"{own}, 40960, 1\n!{HIDDEN}, 512, 0\n{own}, 8, 0\n!{HIDDEN},[N/A],1")
    found = gpu.processes()
    told = [(own, 40960.0, 1), (HIDDEN, 512.0, 0), (own, 8.0, 0), (HIDDEN, None, 1)]
    assert [(one.pid, one.memory, one.gpu) for one in found] == told
    assert [one.pid for one in found if one.process] == [own, own]
    assert found[0].process and found[0].label == f"{found[0].process.label}: 40960 MiB of GPU 1"
    assert found[1].label == (
        f"process {HIDDEN}, which this host does not see (of the node or of another container): 512 MiB of GPU 0"
    )
    assert [one.memory for one in gpu.processes([0])] == [512.0, 8.0]
    assert gpu.processes([2]) == []
    assert gpu.memory_used() == {0: 520.0, 1: 40960.0}


def test_an_ended_process_holds_nothing(apps: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            apps.write_text(f"{child.pid}, 500, 0\n")
            assert [one.pid for one in gpu.processes()] == [child.pid]
            assert gpu.memory_used() == {0: 500.0}
        finally:
            child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert gpu.memory_used() == {0: 0.0}  # though nobody has asked for its status yet
    assert gpu.processes() == []
    assert gpu.memory_used() == {0: 0.0}


def test_strangers_are_what_is_in_no_cgroup_of_ours_and_holds_memory(
    apps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups = {
        11: "/system.slice/sglang-a.service",
        12: "/system.slice/sglang-b.service/x",
        13: "/system.slice/sglang-ab.service",
        14: "/user.slice",
        15: "/user.slice",
    }
    monkeypatch.setattr(
        gpu, "process", lambda pid, proc: Process(pid, "x", "ops", 1.0, (cgroups[pid],), None) if pid < 16 else None
    )
    apps.write_text("!11, 900, 0\n!12, 900, 0\n!13, 64, 0\n!14, 63, 0\n!15, [N/A], 0\n!16, 900, 0\n!14, 900, 1\n")
    own = ["/system.slice/sglang-a.service", "/system.slice/sglang-b.service", ""]
    assert [one.pid for one in gpu.strangers([0], own)] == [13, 15, 16]
    assert [one.pid for one in gpu.strangers([], own)] == [13, 15, 16, 14]
    assert [one.pid for one in gpu.strangers([0], [])] == [11, 12, 13, 15, 16]


def test_the_memory_of_each_gpu(smi: Callable[[str], None]) -> None:
    assert gpu.cards() == []
    query = "--query-gpu=index,name,memory.total,memory.free --format=csv,noheader,nounits"
    told = "1, NVIDIA L40S, 46068, 45500\n0, NVIDIA H200, 143771, 143156\n2, NVIDIA GB10, [N/A], [N/A]"
    smi(f"[ \"$*\" = '{query}' ] && echo '{told}'")
    assert gpu.cards() == [
        gpu.GpuMemory(0, "NVIDIA H200", 143771, 143156),
        gpu.GpuMemory(1, "NVIDIA L40S", 46068, 45500),
    ]
