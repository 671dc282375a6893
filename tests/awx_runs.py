# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What AWX would do with a job template of awx/objects.yml: its surveys, and its jobs through ansible-runner."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv-awx/bin"


class _Loader(yaml.SafeLoader):
    """Ansible's tag for what is no template is of no meaning here."""


class _Dumper(yaml.SafeDumper):
    """Texts as AWX writes them: marked, so that Ansible does not take them for templates."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("!unsafe", text))


def objects(name: str) -> list[dict[str, Any]]:
    """Return a list of awx/objects.yml, its templates as they stand."""
    found: list[dict[str, Any]] = yaml.load((ROOT / "awx/objects.yml").read_text(), _Loader)[name]
    return found


def environment(**more: str) -> dict[str, str]:
    """Return this environment with the programs of .venv-awx, and nothing that changes how Ansible works."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", **more}


class Job:
    """A job that ended: its status, its output, its artefacts and each host's counts."""

    def __init__(self, folder: Path, status: int) -> None:
        self.status = status
        # AWX keeps the output of each event; this is all of them in their order
        events = [json.loads(path.read_text()) for path in folder.glob("artifacts/1/job_events/*-*.json")]
        events.sort(key=lambda event: event["counter"])
        self.output = "\n".join(event["stdout"] for event in events if event["stdout"])
        (stats,) = [event["event_data"] for event in events if event["event"] == "playbook_on_stats"] or [{}]
        self.artifacts: dict[str, Any] = stats.get("artifact_data", {})
        self.changed = {host: stats["changed"].get(host, 0) for host in stats.get("processed", {})}

    @property
    def last_lines(self) -> list[str]:
        """The lines of the last task that printed something."""
        return self.output.rpartition("\nPLAY RECAP")[0].rpartition("\nTASK [")[2].splitlines()

    def __repr__(self) -> str:
        return f"exit {self.status}\n{self.output[-6000:]}"


def run(
    folder: Path,
    playbook: str,
    answers: Mapping[str, Any],
    inventory: str | Path,
    *words: str,
    extra_vars: Mapping[str, Any] | None = None,
    unsafe: bool = True,
) -> Job:
    """Run a job as AWX starts it.

    The private data directory has the project, and a file of variables in which texts are marked, unless AWX is set to
    evaluate answers (`unsafe` false). There is no terminal, and the login that AWX always names is root.
    """
    (folder / "env").mkdir(parents=True)
    (folder / "project").symlink_to(ROOT)
    marked = yaml.dump({**answers, "awx_job_id": 1}, Dumper=_Dumper if unsafe else yaml.SafeDumper)
    (folder / "env/extravars").write_text(marked + (yaml.safe_dump(dict(extra_vars)) if extra_vars else ""))
    (folder / "env/cmdline").write_text(" ".join(["-u", "root", *words]))
    kept = ("HOME", "GPUOPS_LAB_DIR")
    given = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [
            BIN / "ansible-runner",
            "run",
            folder,
            "--ident",
            "1",
            "--playbook",
            playbook,
            "--inventory",
            inventory,
            "--quiet",
        ],
        env={
            **given,
            "PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    job = Job(folder, done.returncode)
    job.output = job.output or done.stdout + done.stderr
    return job


def empty_texts(template: str) -> dict[str, str]:
    """Return an empty answer to each question for a text, which AWX takes and does not give by itself."""
    (survey,) = [one["survey"] for one in objects("awx_templates") if one["name"] == template]
    return {question["variable"]: "" for question in survey if question["type"] == "text"}
