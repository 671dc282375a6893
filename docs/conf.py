# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sphinx settings of the site that `bin/docs --html` makes of docs/*.md and of what antsibull-docs writes.

The site works from a folder: it asks no network, and its search is a script beside its pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes

GALAXY = yaml.safe_load((Path(__file__).resolve().parents[3] / "galaxy.yml").read_text(encoding="utf-8"))
CORE = "https://docs.ansible.com/projects/ansible-core/devel/"
# Pages of ansible-core that antsibull-docs refers to by name; Sphinx would have to fetch their inventory.
LABELS = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "callback_plugins": "plugins/callback.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}
ELSEWHERE = {r"\.\./roles/(\w+)/README\.md": r"reference/\1_role.rst", r"\.\./CHANGELOG\.rst": "changelog.rst"}
REFERENCE = "Look up"  # the section of index.md that gets the generated pages

project = f"{GALAXY['namespace']}.{GALAXY['name']}"
author = "gpuops contributors"
version = release = GALAXY["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx_antsibull_ext"]
exclude_patterns = ["*.j2"]
myst_heading_anchors = 3  # headings are linked as on GitHub
highlight_language = "none"
pygments_style = "ansible"

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
# a page that was opened from a folder may not read others to show where the words stand
html_show_search_summary = False
# a variable of ssh or of Ansible that is named has no page
nitpick_ignore_regex = [("envvar", ".*")]


def adapt(_app: Any, name: str, source: list[str]) -> None:
    """Lead links out of docs/ to pages of the site, and make the lists of links in index.md its navigation."""
    # the theme has each page's own contents beside it
    source[0] = source[0].replace(".. contents::\n   :local:\n   :depth: 1\n", "")
    for path, page in ELSEWHERE.items():
        source[0] = re.sub(rf"\]\({path}", f"]({page}", source[0])
    if name != "index":
        return
    for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", source[0], re.MULTILINE):
        links = re.findall(r"^- \[([^]]+)\]\(([\w-]+)\.\w+\)", text, re.MULTILINE)
        pages = [f"{shown} <{page}>" for shown, page in links]
        if title == REFERENCE:
            pages.append("Modules, plugins and roles <reference/index>")
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"


def to_core(_app: Any, _env: Any, node: Any, content: Any) -> Any:
    """Link what ansible-core's own pages describe."""
    target = node.get("reftarget", "")
    found = re.match(r"ansible_collections\.ansible\.builtin\.(\w+)$", target)
    page = f"collections/ansible/builtin/{found[1]}.html" if found else LABELS.get(target)
    return nodes.reference("", "", content, internal=False, refuri=CORE + page) if page else None


def setup(app: Any) -> None:
    """Tell Sphinx of both."""
    app.connect("source-read", adapt)
    app.connect("missing-reference", to_core)
