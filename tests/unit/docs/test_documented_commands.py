# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command of the documentation is one that works, and is run by a test."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.playbook import PlaybookCLI
from documented import EXTRA, OWN, ROOT, Command, commands, extra_variables, load, module_options

COMMANDS = commands()
# form of a command -> tests that run it, each as FILE::NAME and the words that the file must have, else its playbook
RUN_BY: dict[str, list[dict[str, str]]] = load(Path(__file__).with_name("run_by.yml"))
OWN_INVENTORY = "inventories/mine"  # in the documentation; the example stands for it here
LAB_PAGES = {"docs/lab.md", "docs/tutorial.md"}  # whose inventory ansible.cfg of the checkout names
PROGRAMS = {".", "cat", "cp", "curl", "export", "git", "mkdir", "podman", "pveum", "sed"}  # not ours, nor Ansible's
QWEN = ROOT / "tests/unit/fixtures/memory/qwen3-8b.json"


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command of this environment in the checkout's configuration; it must succeed."""
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_INVENTORY": str(ROOT / "inventories/example"),
        "ANSIBLE_NOCOLOR": "1",
    }
    argv = [str(Path(sys.executable).with_name(str(words[0]))), *map(str, words[1:])]
    done = subprocess.run(argv, cwd=cwd, env=environment, input="planted", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout}{done.stderr}"
    return done.stdout


def of(program: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] == program]


def as_params(found: list[Command]) -> list[object]:
    return [pytest.param(command, id=str(command)) for command in {one.words: one for one in found}.values()]


def test_commands_are_found() -> None:
    assert len(of("ansible-playbook")) > 30 and len(of("ansible")) > 3
    assert {command.page for command in COMMANDS} >= {"README.md", "docs/tutorial.md", "docs/first-deploy.md"}


def test_programs_are_known() -> None:
    ansible = {path.name for path in Path(sys.executable).parent.glob("ansible*")}
    own = {
        "sglangctl",
        ".venv-awx/bin/ansible-builder",
        ".venv-awx/bin/ansible-playbook",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("bin/*")),
    }
    assert [str(command) for command in COMMANDS if command.words[0] not in PROGRAMS | ansible | own] == []


@pytest.fixture(scope="session")
def names() -> set[str]:
    """Hosts and groups of the inventories that a reader has."""
    found = {"localhost"}

    def look(groups: dict[str, Any]) -> None:
        for name, group in groups.items():
            hosts = group.get("hosts", {})
            # 2-machines.yml makes a group of each node's name
            found.update([name, *hosts], [host["pct_node"] for host in hosts.values() if "pct_node" in host])
            look(group.get("children", {}))

    for name in ("example", "lab"):
        look(load(ROOT / f"inventories/{name}/1-hosts.yml"))
    return found


@pytest.mark.parametrize("command", as_params(of("ansible-playbook")))
def test_a_playbook_is_run_with_what_it_knows(command: Command, names: set[str]) -> None:
    PlaybookCLI(list(command.words)).parse()  # ends for an option that there is none of
    (playbook,) = (word for word in command.words if word.endswith(".yml") and not word.startswith("{"))
    assert (ROOT / playbook).is_file()
    assert sorted(command.extra.keys() - extra_variables()) == []
    assert {limit for limits in command.values("-l") for limit in re.split("[:,!&]+", limits)} <= names
    assert set(command.values("-i")) <= {OWN_INVENTORY, "inventories/example", "inventories/lab"}


def is_for_the_controller(command: Command) -> bool:
    """Tell whether a command reaches no host of an inventory."""
    if command.words[0] == "ansible":
        return command.words[1] == "localhost"
    plays = [play for word in command.words if word.endswith(".yml") for play in load(ROOT / word)]
    return bool(plays) and all(play.get("hosts") == "localhost" for play in plays)


@pytest.mark.parametrize("page", sorted({command.page for command in COMMANDS} - LAB_PAGES))
def test_no_command_for_a_readers_hosts_reaches_the_lab(page: str) -> None:
    exported, wrong = False, []
    for command in COMMANDS:
        if command.page == page:
            exported = exported or command.words[:2] == ("export", f"ANSIBLE_INVENTORY={OWN_INVENTORY}")
            meant = exported or command.values("-i") == [OWN_INVENTORY]
            if command.words[0] in ("ansible", "ansible-inventory", "ansible-playbook") and not meant:
                wrong += [] if is_for_the_controller(command) else [str(command)]
    assert wrong == [], f"name the inventory: -i, or export ANSIBLE_INVENTORY={OWN_INVENTORY} before it on the page"


def test_the_playbooks_and_extra_variables_pass_a_syntax_check() -> None:
    found = of("ansible-playbook")
    asked = sorted({word for command in found for word in command.words if word.endswith(".yml") and word[0] != "{"})
    extra = [word for command in found for value in command.values(*EXTRA) for word in ("-e", value)]
    run("ansible-playbook", "--syntax-check", "-i", "inventories/example", *extra, *asked)


@pytest.mark.parametrize("command", as_params(of("ansible")))
def test_a_module_is_run_with_options_that_it_has(command: Command, names: set[str]) -> None:
    AdHocCLI(list(command.words)).parse()
    assert command.words[1 + 2 * bool(command.values("-i"))] in names
    (module,) = command.values("-m")
    if not module.startswith(OWN):
        assert module.startswith("ansible.builtin.")
        return
    (text,) = command.values("-a") or [""]
    given = json.loads(text) if text.startswith("{") else dict(word.split("=", 1) for word in shlex.split(text))
    assert sorted(set(given) - module_options(module.removeprefix(OWN))) == []


@pytest.mark.parametrize("command", as_params([one for one in COMMANDS if one.words[0].startswith("bin/")]))
def test_a_script_takes_the_words_that_it_is_given(command: Command) -> None:
    script, *words = command.words
    assert os.access(ROOT / script, os.X_OK)
    source = ROOT / ("molecule/lab/lab.py" if script == "bin/lab" else script)
    for word in words[:1]:
        known = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", source.read_text(encoding="utf-8"))
        assert known or (script == "bin/setup" and (ROOT / f"requirements/{word}.txt").is_file())


@pytest.mark.parametrize("command", as_params(of("sglangctl")))
def test_sglangctl_has_what_it_is_asked_for(command: Command) -> None:
    source = (ROOT / "plugins/module_utils/supervisor/supervisord.py").read_text(encoding="utf-8")
    supervisorctl = ("restart", "start", "status", "stop")
    for word in command.words[1:2]:
        assert word in supervisorctl or f"\n    {word})\n" in source


@pytest.mark.parametrize("command", as_params([one for one in COMMANDS if one.words[0] in PROGRAMS]))
def test_files_of_the_checkout_that_a_command_reads_are_there(command: Command) -> None:
    for word in command.words[1:]:
        if word.startswith(("inventories/", "playbooks/", "roles/", "docs/")) and not word.startswith(OWN_INVENTORY):
            assert (ROOT / word).exists()


def test_each_command_is_run_by_a_test() -> None:
    ours = {command.form for command in COMMANDS if command.words[0] not in PROGRAMS}
    assert sorted(ours - RUN_BY.keys()) == [], "commands that no test runs: add one, and name it in run_by.yml"
    assert sorted(RUN_BY.keys() - ours) == [], "run_by.yml names commands that the documentation does not have"


@pytest.mark.parametrize("form", RUN_BY)
def test_the_test_that_runs_a_command_is_there(form: str) -> None:
    for entry in RUN_BY[form]:
        name, _, function = entry["test"].partition("::")
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE)
        words = entry.get("names", form.replace("playbooks/", "").replace("--check", '"--check"')).split()
        missing = [word for word in words if word not in text]
        # what runs all documented commands of a playbook names none
        assert missing == [] or name == f"tests/unit/docs/{Path(__file__).name}"


def run_here(form: str) -> list[Command]:
    """Return the commands of a form that run_by.yml has here."""
    return [command for command in COMMANDS if command.form == form]


PLANS = [form for form in RUN_BY if form.startswith("playbooks/plan.yml")]


@pytest.mark.slow
@pytest.mark.parametrize("form", PLANS)
def test_a_plan(form: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(QWEN.read_text())
    here = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "sglang_install_version": "0.5.23",
        "sglang_plan_assume_complete": True,
        "sglang_plan_gpus": [{"name": "H200"}],
        "sglang_server_instances": [{"name": "qwen", "model": str(tmp_path / "model"), "port": 30000}],
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sglang": {"hosts": {"ct129": here}}}))
    command = run_here(form)[0]
    _program, *words = (word for word in command.words if word not in ("-l", *command.values("-l")))
    words = [str(ROOT / word) if word.endswith(".yml") else word for word in words]
    said = run(
        "ansible-playbook",
        "-i",
        "hosts.yml",
        *(word for word in words if word not in ("-i", OWN_INVENTORY)),
        cwd=tmp_path,
    )
    assert "ct129 qwen: fits" in said and "failed=0" in said
    assert (tmp_path / "plan.html").exists() == ("sglang_plan_page" in form)
    assert "0 NVIDIA H200" in said


def test_the_plan_of_a_purchase(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(QWEN.read_text())
    for command in run_here("ansible gpuops.sglang.sglang_plan"):
        asked = {**json.loads(command.values("-a")[0]), "model": str(tmp_path / "config.json"), "assume_complete": True}
        words = [json.dumps(asked) if word == command.values("-a")[0] else word for word in command.words]
        said = run(*words, "-e", f"ansible_python_interpreter={sys.executable}")
        assert "| SUCCESS =>" in said and "fits: true" in said
        assert ("proposal: null" in said) == ("context" not in asked)


@pytest.mark.parametrize("form", ["ansible ansible.builtin.ping", "ansible gpuops.sglang.gpu_info"])
def test_a_module_that_changes_nothing(form: str) -> None:
    words = list(run_here(form)[0].words)
    words[1 + 2 * ("-i" in words)] = "localhost"
    said = run(
        *(
            "inventories/example" if word == OWN_INVENTORY else "root" if word == "user=sglang" else word
            for word in words
        )
    )
    assert "localhost | SUCCESS =>" in said


def test_a_server_is_asked(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/models").write_text('{"data": [{"id": "/srv/lab/models/tiny-qwen3"}]}')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for command in run_here("ansible ansible.builtin.uri"):
            words = [word.replace(":30000/", f":{server.server_port}/") for word in command.words]
            words[1] = "localhost"
            assert "tiny-qwen3" in run(*words)
        server.shutdown()


def test_a_secret_is_put_into_a_vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("a word")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "vault_sglang_api_key: planted" >"$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    for command in run_here("ansible-vault"):
        words = [str(tmp_path / "vault.yml") if word.startswith(OWN_INVENTORY) else word for word in command.words]
        # an editor is opened in a terminal only
        words += ["--skip-tty-check"] if "create" in words else []
        said = run(*words) or (tmp_path / "vault.yml").read_text()
        assert "$ANSIBLE_VAULT;1.1;AES256" in said and "planted" not in said


def test_the_example_inventory_is_shown() -> None:
    for command in run_here("ansible-inventory"):
        said = run(*("inventories/example" if word == OWN_INVENTORY else word for word in command.words))
        assert "@kpro5:" in said and "--ct129" in said
