# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation names is there, and what is there is documented."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml
from documented import PAGES, READMES, ROOT, blocks, load, playbooks, prose, role_options, source_names, variables_of

ALL = [*PAGES, *READMES]
PREFIXES = (*role_options(), "adopt", "ansible_pct", "lab", "pct", "proxmox", "sglang", "support_bundle", "wheelhouse")
NAME = re.compile(rf"(?<![\w./-])(?:{'|'.join(PREFIXES)})_\w*[a-z0-9]")
FOLDERS = (
    "bin",
    "changelogs",
    "docs",
    "inventories",
    "meta",
    "molecule",
    "playbooks",
    "plugins",
    "requirements",
    "roles",
    "tests",
)
FOREIGN = {"pct_remote", "proxmox_pct_remote"}  # of community.proxmox
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# what a reader makes, and what is another's
MADE = ("inventories/mine", "docs/contributing")
PLUGINS = [
    (kind.name, path.stem)
    for kind in sorted((ROOT / "plugins").iterdir())
    if kind.name in ("callback", "connection", "filter", "inventory", "lookup", "modules", "test")
    for path in sorted(kind.glob("*.py"))
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slug(heading: str) -> str:
    """Return the anchor that GitHub, and the site, make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", target):
            continue
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_this_collection_are_there(page: Path) -> None:
    text = "\n".join([*re.findall(r"`[^`\n]+`", prose(page)), *blocks(page, "yaml", "console")])
    assert sorted(set(NAME.findall(text)) - source_names() - FOREIGN) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_of_this_repository_are_there(page: Path) -> None:
    text = "\n".join([*re.findall(r"`[^`\n]+`", prose(page)), *blocks(page, "console")])
    named = re.findall(rf"(?<![\w./-])((?:module_utils|{'|'.join(FOLDERS)})/[\w./-]*\w)", text)
    missing = []
    for path in sorted({path for path in named if not path.startswith(MADE)}):
        place = ROOT / ("plugins" if path.startswith("module_utils/") else "") / path
        if not place.exists() and not place.with_suffix(".py").exists():
            missing.append(path)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_are_yaml_with_variables_of_the_roles(page: Path) -> None:
    options = {name for of_role in role_options().values() for name in of_role}
    for block in blocks(page, "yaml"):
        loaded = yaml.safe_load(block.replace("{{", "(").replace("}}", ")").replace("!vault", ""))
        if isinstance(loaded, dict):
            asked = {name for name in loaded if name.startswith(tuple(f"{role}_" for role in role_options()))}
            assert sorted(asked - options) == []


def test_every_page_is_in_the_index() -> None:
    linked = set(LINK.findall((ROOT / "docs/index.md").read_text(encoding="utf-8")))
    assert [page.name for page in PAGES if page.name not in linked | {"README.md", "index.md"}] == []


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_a_plugin_is_documented(kind: str, name: str) -> None:
    plugin = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.{kind}.{name}")
    told = yaml.safe_load(plugin.DOCUMENTATION)
    assert told["short_description"] and told["description"]
    assert all(option.get("description") for option in (told.get("options") or {}).values())
    if kind in ("filter", "lookup", "modules", "test"):
        assert yaml.safe_load(plugin.EXAMPLES) and yaml.safe_load(plugin.RETURN)


def test_every_role_is_in_the_overview() -> None:
    text = (ROOT / "docs/playbooks.md").read_text(encoding="utf-8")
    assert [role for role in role_options() if f"../roles/{role}/README.md" not in text] == []
    assert sorted(role_options()) == sorted(path.name for path in (ROOT / "roles").iterdir())


@pytest.mark.parametrize("role", role_options())
def test_what_a_role_reads_is_in_its_specification(role: str) -> None:
    specified = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]
    assert all(entry["short_description"] and entry["description"] for entry in specified.values())
    assert all(option["description"] for option in role_options()[role].values())
    files = [
        path
        for folder in ("tasks", "templates", "handlers", "vars")
        for path in (ROOT / "roles" / role / folder).glob("*")
    ]
    text = "\n".join(re.sub(r"(?m)(?:^|\s)#.*", "", path.read_text(encoding="utf-8")) for path in files)
    used = set(re.findall(rf"(?<![\w.]){role}_\w+", text))
    made = set(re.findall(rf"register: ({role}_\w+)", text)) | set(re.findall(rf"^ *({role}_\w+):", text, re.MULTILINE))
    assert sorted(used - made - role_options()[role].keys()) == []


@pytest.mark.parametrize("playbook", playbooks(), ids=name_of)
def test_a_playbook_is_documented_with_its_variables(playbook: Path) -> None:
    text = (ROOT / "docs/playbooks.md").read_text(encoding="utf-8")
    assert f"`playbooks/{playbook.name}`" in text
    assert [name for name in sorted(variables_of(playbook)) if f"`{name}`" not in text] == []


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    pinned = {
        name
        for path in ROOT.glob("requirements/*.txt")
        for name in re.findall(r"^([\w-]+)==", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert sorted(name for name in pinned if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)) == []
