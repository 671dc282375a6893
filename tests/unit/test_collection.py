# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must agree in two places of this repository."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.parent.parent for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
MODULES = sorted(path.stem for path in ROOT.glob("plugins/modules/*.py") if path.stem != "__init__")
GENERATED = {ROOT / "changelogs/changelog.yaml"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


def documentation_of(module: Any) -> dict[str, Any]:
    """Return what a module documents, its fragments included."""
    documentation: dict[str, Any] = yaml.safe_load(module.DOCUMENTATION)
    for name in documentation.pop("extends_documentation_fragment", []):
        # as Ansible reads it: NAMESPACE.COLLECTION.FILE, or with .TEXT one of several in the file
        _namespace, _collection, file, text = f"{name}.documentation".split(".")[:4]
        fragment = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.doc_fragments.{file}")
        shared = yaml.safe_load(getattr(fragment.ModuleDocFragment, text.upper()))
        documentation["options"] = {**shared["options"], **documentation.get("options", {})}
    return documentation


def is_template(value: Any) -> bool:
    return "{{" in str(value)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_of_a_role_are_those_that_are_documented(role: Path) -> None:
    defaults = load(role / "defaults/main.yml") or {}
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert sorted(name for name in options if not name.startswith(f"{role.name}_")) == []
    documented = {name: option["default"] for name, option in options.items() if "default" in option}
    literal = {name: value for name, value in defaults.items() if not is_template(value)}
    assert documented == literal
    assert {name: type(value) for name, value in documented.items()} == {
        name: type(defaults[name]) for name in documented
    }
    assert sorted(set(defaults) - set(options)) == []
    assert sorted(name for name in defaults if options[name].get("required")) == []


class Asked(Exception):
    """Carries the argument specification that a module asks Ansible for."""


def asked_of(module: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def refuse(self: AnsibleModule, argument_spec: dict[str, Any], **_: Any) -> None:
        raise Asked(argument_spec)

    monkeypatch.setattr(AnsibleModule, "__init__", refuse)
    with pytest.raises(Asked) as caught:
        module.main()
    asked: dict[str, Any] = caught.value.args[0]
    return asked


def facts(options: dict[str, Any], inner: str) -> dict[str, Any]:
    """Return what documentation and code both say of options; `inner` is the key of the options of an option."""
    return {
        name: {
            "type": option.get("type", "str"),
            "elements": option.get("elements"),
            "required": option.get("required", False),
            "default": option.get("default"),
            "choices": option.get("choices"),
            "aliases": option.get("aliases", []),
            "options": facts(option[inner], inner) if option.get(inner) else None,
        }
        for name, option in options.items()
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_options_of_a_module_are_those_that_are_documented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.modules.{name}")
    documentation = documentation_of(module)
    assert documentation["module"] == name
    assert facts(documentation["options"], "suboptions") == facts(asked_of(module, monkeypatch), "options")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_use_its_options(name: str) -> None:
    module = importlib.import_module(f"ansible_collections.gpuops.sglang.plugins.modules.{name}")
    options = documentation_of(module)["options"]
    required = {option for option, told in options.items() if told.get("required")}
    uses = [
        task[f"gpuops.sglang.{name}"] for task in yaml.safe_load(module.EXAMPLES) if f"gpuops.sglang.{name}" in task
    ]
    assert uses
    for use in uses:
        assert required <= set(use) <= set(options)


def sources(*suffixes: str) -> Iterator[Path]:
    """Yield the files of this checkout with one of these suffixes, without what tools have left."""
    folders = [ROOT]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or path in GENERATED or path.name == ".plugin-cache.yaml":
                continue
            if path.is_dir() and (not path.name.startswith(".") or path.name == ".ci") and path.name != "output":
                folders.append(path)
            elif path.suffix in suffixes:
                yield path


def test_every_source_file_names_its_licence() -> None:
    line = "# SPDX-License-Identifier: GPL-3.0-or-later"
    files = list(sources(".py", ".yml", ".yaml", ".toml", ".cfg"))
    assert len(files) > 40
    assert [str(path) for path in files if line not in path.read_text(encoding="utf-8").splitlines()[:5]] == []


def test_code_for_hosts_runs_on_an_old_python() -> None:
    """`X | None` in an annotation is an error before Python 3.10 unless annotations are not evaluated."""
    files = [path for path in sources(".py") if path.is_relative_to(ROOT / "plugins")]
    assert files
    assert [
        str(path) for path in files if "from __future__ import annotations" not in path.read_text().splitlines()
    ] == []
