# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site that `bin/docs --html` has made: read from its folder, with no network and no dead link."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/docs/html"
PAGES = sorted(SITE.rglob("*.html"))
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}  # what a browser loads by itself

# where styles and scripts write what they load
ADDRESSES = {
    ".css": r"(?:url\(|@import )\s*[\"']?([^\"')]+)",
    ".js": r"(?:\b(?:fetch|import|importScripts|Request|Worker)\s*\(|\b(?:src|href)\s*=)\s*[\"'`]([^\"'`]+)",
}


class Page(HTMLParser):
    """Links, what a page loads, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.anchors |= {str(told[name]) for name in ("id", "name") if told.get(name)}
        if tag == "a" and told.get("href"):
            self.links.add(str(told["href"]))
        if told.get(FETCHED.get(tag, "")) and told.get("rel") not in ("next", "prev", "index", "search"):
            self.loaded.add(str(told[FETCHED[tag]]))


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def is_elsewhere(link: str) -> bool:
    return re.match(r"[a-z]+:|//", link) is not None


def test_the_site_is_made() -> None:
    assert (SITE / "index.html").is_file() and len(PAGES) > 50, "run bin/docs --html"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(SITE)))
def test_no_link_is_dead_and_nothing_is_fetched(path: Path) -> None:
    page, dead = read(path), []
    assert {what for what in page.loaded if is_elsewhere(what)} == set()
    # what the theme writes into a page with contents of its own
    assert "ERROR: Adding a table of contents" not in path.read_text(encoding="utf-8")
    for link in page.links | page.loaded:
        target, _, anchor = link.partition("#")
        if is_elsewhere(link):
            continue
        place = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
        if not place.is_file() or (anchor and place.suffix == ".html" and unquote(anchor) not in read(place).anchors):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize(("suffix", "address"), ADDRESSES.items())
def test_styles_and_scripts_fetch_nothing(suffix: str, address: str) -> None:
    files = list(SITE.rglob(f"*{suffix}"))
    assert files
    found = [(path.name, url) for path in files for url in re.findall(address, path.read_text(encoding="utf-8"))]
    assert [one for one in found if is_elsewhere(one[1]) and not one[1].startswith(("data:", "javascript:"))] == []


def test_all_pages_are_reached_from_the_first_one() -> None:
    reached, ahead = set(), [SITE / "index.html"]
    while ahead:
        path = ahead.pop()
        if path not in reached and path.suffix == ".html":
            reached.add(path)
            ahead += [
                (path.parent / link.partition("#")[0]).resolve() for link in read(path).links if not is_elsewhere(link)
            ]
    assert sorted(str(path.relative_to(SITE)) for path in set(PAGES) - reached - {SITE / "search.html"}) == []


@pytest.fixture(scope="module")
def index() -> Any:
    """What the search of the site looks into; a browser has it as a script, which it may load from a folder too."""
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("protectsystem", "security"),
        ("libnuma1", "troubleshooting"),
        ("adopt", "adopt"),
        ("vmid", "reference/pct_exec_module"),
        ("wheelhous", "offline"),  # the search cuts words to their stems
    ],
)
def test_the_search_finds_a_word(index: Any, word: str, page: str) -> None:
    found = {**index["terms"], **index["titleterms"]}.get(word, [])
    pages = [index["docnames"][number] for number in ([found] if isinstance(found, int) else found)]
    assert page in pages


def test_each_module_role_and_plugin_has_a_page() -> None:
    kinds = {
        "callback": "callback",
        "connection": "connection",
        "filter": "filter",
        "inventory": "inventory",
        "lookup": "lookup",
        "modules": "module",
    }
    asked = [
        f"{path.stem}_{kinds[path.parent.name]}" for path in ROOT.glob("plugins/*/*.py") if path.parent.name in kinds
    ]
    asked += [f"{path.name}_role" for path in (ROOT / "roles").iterdir()]
    assert len(asked) > 30
    assert [name for name in asked if not (SITE / f"reference/{name}.html").is_file()] == []
