# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation says, in a form that can be compared with the source."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
READMES = sorted(ROOT.glob("roles/*/README.md"))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OWN = "gpuops.sglang."
EXTRA = ("-e", "--extra-vars")


@dataclass(frozen=True)
class Command:
    """A line with a prompt in a console block."""

    page: str
    words: tuple[str, ...]

    def values(self, *names: str) -> list[str]:
        """Return the values of an option."""
        return [value for name, value in zip(self.words, self.words[1:]) if name in names]

    @property
    def extra(self) -> dict[str, Any]:
        """The variables of -e."""
        given: dict[str, Any] = {}
        for value in self.values(*EXTRA):
            if value.startswith("{"):
                given.update(json.loads(value))
            else:
                given.update(word.split("=", 1) for word in shlex.split(value) if not value.startswith("@"))
        return given

    @property
    def form(self) -> str:
        """What is run, whichever machine it is for: the playbook, or the program with its first word."""
        program, *words = self.words
        if program == "ansible-playbook":
            (playbook,) = (word for word in words if word.endswith(".yml") and not word.startswith(("@", "{")))
            return " ".join([playbook, *(["--check"] if "--check" in words else []), *sorted(self.extra)])
        if program == "ansible":
            return f"{program} {self.values('-m')[0]}"
        return " ".join([program, *words[:1]]) if program.startswith(("bin/", "sglangctl")) else program

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the code blocks of a page in these languages."""
    for indent, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands() -> list[Command]:
    """Return every command of the documentation, in order."""
    return [
        Command(str(page.relative_to(ROOT)), tuple(shlex.split(line[2:], comments=True)))
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith(("$ ", "# "))
    ]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def role_options() -> dict[str, dict[str, Any]]:
    """Return role -> option -> its specification, of all entry points."""
    return {
        path.parent.parent.name: {
            name: option
            for entry in load(path)["argument_specs"].values()
            for name, option in entry.get("options", {}).items()
        }
        for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
    }


def playbooks() -> list[Path]:
    return sorted(ROOT.glob("playbooks/*.yml"))


def variables_of(playbook: Path) -> set[str]:
    """Return the variables that a playbook reads and neither sets itself nor has from a role."""
    text = re.sub(r"#.*", "", playbook.read_text(encoding="utf-8"))
    used = set(re.findall(r"(?<![\w.'])(?:adopt|support_bundle|wheelhouse|sglang_plan|state)_\w+", text))
    set_here = set(re.findall(r"^ *(?:- )?(\w+):", text, re.MULTILINE)) | set(re.findall(r"register: (\w+)", text))
    set_here |= set(re.findall(r"name: (wheelhouse_\w+)", text))
    roles = {name for options in role_options().values() for name in options}
    return {
        name for name in used if name not in set_here | roles and not (playbook.parent.parent / "roles" / name).is_dir()
    }


@cache
def extra_variables() -> set[str]:
    """Return every variable that a command may set by -e."""
    return {name for options in role_options().values() for name in options} | {
        name for playbook in playbooks() for name in variables_of(playbook)
    }


@cache
def documentation(kind: str, name: str) -> dict[str, Any]:
    """Return the documentation of a module or another plugin."""
    plugin = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.{kind}.{name}")
    read: dict[str, Any] = yaml.safe_load(plugin.DOCUMENTATION)
    return read


def module_options(name: str) -> set[str]:
    """Return the options of a module of this collection, those of its fragments included."""
    told = documentation("modules", name)
    options = set(told.get("options", {}))
    for fragment in told.get("extends_documentation_fragment", []):
        file, _, text = fragment.removeprefix(OWN).partition(".")
        shared = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.doc_fragments.{file}")
        options |= set(yaml.safe_load(getattr(shared.ModuleDocFragment, (text or "documentation").upper()))["options"])
    return options


@cache
def source_names() -> set[str]:
    """Return every name of two words or more in what is shipped, and in the inventories."""
    names: set[str] = set()
    for folder in ("plugins", "roles", "playbooks", "inventories"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yml", ".j2") and "__pycache__" not in path.parts:
                names.add(path.stem)
                names.update(re.findall(r"\w+_\w+", path.read_text(encoding="utf-8")))
    return names | {path.name for path in (ROOT / "roles").iterdir()}
