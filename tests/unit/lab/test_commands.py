# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands in bin/, in a copy of the project where every tool only notes how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
# any tool of the virtual environment; a broken one stands for an interpreter that was replaced by another version
TOOL = """\
#!/bin/sh
if [ "$1 $2" = "-I -c" ]; then [ ! -e "$PROJECT/broken" ]; exit; fi
echo "$LC_ALL ${0##*/} $*" >>"$PROJECT/log"
"""
PYTHON3 = """\
#!/bin/sh
if [ "$1" = -c ]; then exit 0; fi
echo "$*" >>"$PROJECT/log"
rm -rf "$4" "$PROJECT/broken"
mkdir -p "$4/bin"
for name in python pip molecule pytest ansible-playbook; do cp "$PROJECT/tool" "$4/bin/$name"; done
"""
MAKE = "-m venv --clear .venv"


class Project:
    """The copy, and what was called in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(PROJECT / "bin", root / "bin")
        shutil.copytree(PROJECT / "requirements", root / "requirements")
        (root / "path").mkdir()
        for name, text in (("tool", TOOL), ("path/python3", PYTHON3)):
            (root / name).write_text(text)
            (root / name).chmod(0o755)

    def calls(self, *argv: str) -> list[str]:
        """Run one command; return the calls that it made."""
        (self.root / "log").write_text("")
        environment = {
            "PATH": f"{self.root / 'path'}:{os.environ['PATH']}",
            "PROJECT": str(self.root),
            "LC_ALL": "xx_XX",
        }
        subprocess.run([str(self.root / argv[0]), *argv[1:]], env=environment, check=True, capture_output=True)
        return (self.root / "log").read_text().splitlines()

    def setup(self, kind: str) -> list[str]:
        """Run bin/setup; return its calls without the options that are always the same."""
        return [call.rpartition(" pip install ")[2].rpartition(" -r ")[2] for call in self.calls("bin/setup", kind)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_setup_installs_once(project: Project) -> None:
    assert project.setup("run") == [MAKE, "requirements/run.txt"]
    assert project.setup("run") == []
    assert project.setup("test") == ["requirements/test.txt"]
    assert project.setup("test") == []
    assert project.setup("run") == []  # a test environment has all that a run needs
    # its own environment
    assert project.setup("awx") == [MAKE.replace(".venv", ".venv-awx"), "requirements/awx.txt"]
    assert project.setup("test") == []


def test_setup_follows_the_requirements_there_and_back(project: Project) -> None:
    requirements = project.root / "requirements/run.txt"
    original = requirements.read_text()
    project.setup("test")
    requirements.write_text(original + "more==1\n")
    assert project.setup("run") == ["requirements/run.txt"]
    assert project.setup("test") == ["requirements/test.txt"]
    requirements.write_text(original)
    assert project.setup("run") == ["requirements/run.txt"]


def test_setup_replaces_an_environment_that_does_not_work(project: Project) -> None:
    project.setup("run")
    (project.root / "broken").touch()
    assert project.setup("run") == [MAKE, "requirements/run.txt"]


def test_setup_does_not_trust_an_installation_that_failed(project: Project) -> None:
    project.setup("run")
    pip = project.root / ".venv/bin/pip"
    requirements = project.root / "requirements/run.txt"
    original = requirements.read_text()
    requirements.write_text(original + "more==1\n")
    pip.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        project.setup("run")
    shutil.copy(project.root / "tool", pip)
    requirements.write_text(original)
    assert project.setup("run") == ["requirements/run.txt"]


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("bin/lab up", ["python molecule/lab/lab.py up"]),
        ("bin/demo", ["python molecule/lab/lab.py up", "ansible-playbook deploy.yml -l kpro5"]),
        (
            "bin/test --fast",
            [
                "pytest tests/unit --numprocesses auto -m not slow",
                "python molecule/lab/lab.py up",
                "pytest tests/lab --numprocesses 3 -m not slow",
            ],
        ),
        (
            "bin/test",
            [
                "pytest tests/unit --numprocesses auto",
                "molecule destroy",
                "molecule test --destroy never",
                "pytest tests/lab --numprocesses 3",
                "molecule destroy",
                "pytest tests/lifecycle",
            ],
        ),
    ],
)
def test_a_command_brings_its_own_locale(project: Project, command: str, calls: list[str]) -> None:
    project.setup("test")
    project.setup("awx")
    assert project.calls(*command.split()) == [f"C.UTF-8 {call}" for call in calls]
