# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker's GPU containers, from which a 'systemctl daemon-reload' may take the GPU.

With the systemd driver of control groups, systemd writes the device rules of a container's scope again when it reads
its units again. It knows nothing of what NVIDIA's hook has added to them, and from then on the container gets 'Failed
to initialize NVML: Unknown Error' (NVIDIA's Container Toolkit, troubleshooting).
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.processes import process
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import supervisor

PROC = Path("/proc")
SCOPE = re.compile(r"/(docker|cri-containerd|nerdctl)-([0-9a-f]{12})[0-9a-f]*\.scope(?:/|$)", re.MULTILINE)


def refuse_reload(allowed: bool) -> None:
    """Raise Refused where systemd is going to read its units again beside containers that may lose their GPU by it."""
    reads = supervisor().NAME == "systemd"  # another one has nothing read, and may itself run in such a container
    found = containers() if reads and not allowed else []
    if found:
        raise Refused(
            f"this host runs {'; '.join(found)} on a GPU under a control group of systemd, which may lose the GPU "
            "when systemd reads its units again ('daemon-reload'). Nothing was touched. Next: stop it, or give it its "
            "devices by CDI or --device, or allow it by sglang_server_reload_beside_docker and restart it afterwards"
        )


def containers(proc: Path = PROC) -> list[str]:
    """Return each such container with its first process, in a message; not what containers of a node run."""
    first: dict[str, int] = {}
    for pid in sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit()):
        try:
            text = (proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        scope = SCOPE.search(text)
        if scope and not re.search(r"/lxc/\d+/", text):  # of another systemd
            first.setdefault(f"container {scope[2]} of {scope[1]}", pid)
    found = []
    for name, pid in first.items():
        if any((proc / str(pid) / "root/dev").glob("nvidia[0-9]*")):
            one = process(pid, proc)
            found.append(f"{name} ({one.label})" if one else name)
    return found
