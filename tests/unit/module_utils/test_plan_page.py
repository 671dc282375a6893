# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.memory_plan import STAGES
from ansible_collections.gpuops.sglang.plugins.module_utils.plan_bars import LETTERS
from ansible_collections.gpuops.sglang.plugins.module_utils.plan_page import page
from hypothesis import given
from hypothesis import strategies as st

PARTS = ("others", *STAGES)
VOID = {"meta"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "section", "article", "h1", "h2", "h3", "h4", "p", "div",
    "span", "strong", "code", "pre", "ul", "ol", "li", "a", "table", "caption", "tr", "th", "td", "figure",
    "figcaption", "details", "summary",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "id", "class", "style", "title", "role", "scope", "href",
    "aria-label", "aria-hidden",
}  # fmt: skip
Tag = tuple[str, dict[str, str]]


class Strict(HTMLParser):
    """Reads a page in which every tag is closed in its turn, and keeps its tags and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[Tag] = []
        self.texts: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs) and None not in dict(attrs).values(), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        elif data.strip():
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self) -> str:
        """What a reader sees, without regard to where it wraps."""
        return " ".join(" ".join(self.texts).split())

    def of(self, kind: str) -> list[dict[str, str]]:
        """Return the attributes of the tags of a class."""
        return [attributes for _tag, attributes in self.tags if kind in attributes.get("class", "").split()]

    def bars(self) -> list[dict[str, str]]:
        return [attributes for _tag, attributes in self.tags if attributes.get("role") == "img"]


def gpu(name: str = "NVIDIA H200", **parts: float) -> dict[str, Any]:
    return {"name": name, "total_gib": sum(parts.values()), "parts": parts}


def lever(**more: Any) -> dict[str, Any]:
    return {"option": "max_running_requests", "value": 8, "costs": "the others wait", "kv_tokens": 5000,
            "effective_max_running_requests": 8, **more}  # fmt: skip


def planned(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "item": "qwen36", "sglang_version": "0.5.11", "fits": True, "verdict": "fits", "kv_tokens": 1234567,
        "state_slots": 24, "effective_max_running_requests": 4, "requested": 48, "weights_gib": 25.51,
        "draft_gib": 0.42, "failing_stage": "", "missing_gib": 0.0, "context": 8192, "longest_context": 2501,
        "levers": [], "proposal": None, "gpus": list(gpus or [gpu(weights=100.0, cache=30.0, rest=10.0)]),
        "notes": [], "unknown": [], **more,
    }  # fmt: skip


def full(text: str = "") -> dict[str, list[dict[str, Any]]]:
    """Return plans of every kind, with `text` in each place that holds foreign text."""
    proposal = {"args": {f"tp_size{text}": 2, "kv_cache_dtype": f"fp8{text}"}, "verdict": f"fits{text}",
                "kv_tokens": 7, "effective_max_running_requests": 9}  # fmt: skip
    gpus = [gpu(f"NVIDIA H200{text}", weights=100.0, cache=30.0), gpu(f"NVIDIA H200{text}", weights=90.0, cache=40.0)]
    told = {
        "item": f"qwen36{text}",
        "sglang_version": f"0.5.11{text}",
        "verdict": f"fits, but{text}",
        "levers": [
            lever(option=f"one{text}", value=f"two{text}", costs=f"three{text}"),
            lever(option=f"gone{text}", value=None),
        ],
        "proposal": proposal,
        "notes": [f"note{text}"],
        "unknown": [f"unknown{text}"],
    }
    odd = {"fits": None, "kv_tokens": None, "state_slots": None, "effective_max_running_requests": None,
           "longest_context": None, "requested": None, "verdict": f"can not be told{text}"}  # fmt: skip
    return {
        f"ct129{text}": [
            planned(*gpus, **told),
            planned(fits=False, verdict=f"does not fit{text}", missing_gib=2.5),
            planned(gpu(weights=50.0, unknown=90.0), **odd),
            {"item": f"broken{text}", "failed": True, "msg": f"no model{text}"},
        ],
        f"gone{text}": [],
    }


@pytest.mark.parametrize("plans", [{}, {"ct129": []}, {"ct129": [planned()]}, full()], ids=["no", "gone", "one", "all"])
def test_the_page_is_whole_and_needs_nothing_but_itself(plans: dict[str, list[dict[str, Any]]]) -> None:
    text = page(plans)
    read = Strict(text)
    assert text.startswith("<!DOCTYPE html>\n") and read.tags[0] == ("html", {"lang": "en"})
    assert {tag for tag, _attributes in read.tags} <= TAGS
    assert {name for _tag, attributes in read.tags for name in attributes} <= ATTRIBUTES
    assert not re.search(r"//|url\(|@import|expression|javascript", text)
    ids = [attributes["id"] for _tag, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"] for _tag, attributes in read.tags if "href" in attributes} <= {f"#{one}" for one in ids}
    (policy,) = (attributes["content"] for _tag, attributes in read.tags if "http-equiv" in attributes)
    assert policy.split("; ")[:2] == ["default-src 'none'", "style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    "planted",
    [
        "<script>alert(1)</script>",
        '"><img src=\'//x\' onerror="y">',
        "</style></title><!--",
        "&lt;&#60;b&amp;",
        "' x='",
    ],
)
def test_foreign_text_stays_text(planted: str) -> None:
    plain, read = Strict(page(full())), Strict(page(full(planted)))
    assert [(tag, list(attributes)) for tag, attributes in read.tags] == [
        (tag, list(attributes)) for tag, attributes in plain.tags
    ]
    assert read.style == plain.style
    fields = ("ct129", "gone", "qwen36", "0.5.11", "fits, but", "does not fit", "can not be told", "one", "two",
              "three", "delete gone", "note", "unknown", "broken", "no model", "tp_size", "fits",
              "NVIDIA H200")  # fmt: skip
    shown = "".join(read.texts)
    assert [field for field in fields if field + planted not in shown] == []
    assert f"kv_cache_dtype: {json.dumps('fp8' + planted)}" in shown
    assert all(f"NVIDIA H200{planted}" in bar["aria-label"] for bar in read.bars()[:2])


def test_text_that_can_not_be_written_is_replaced() -> None:
    text = page({"a\x00\x1b[31mb\udcff\u202e": [planned(notes=["two\nlines"])]})
    assert text.encode() and not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "a\ufffd\ufffd[31mb\ufffd\ufffd" in text and "two\nlines" in text


@given(
    st.lists(
        st.dictionaries(st.sampled_from(PARTS), st.floats(0, 200), min_size=1).filter(
            lambda one: sum(one.values()) > 1
        ),
        min_size=1,
        max_size=9,
    ),
)
def test_a_bar_is_divided_as_the_memory_is(sizes: list[dict[str, float]]) -> None:
    read = Strict(page({"ct129": [planned(*(gpu("NVIDIA H200", **parts) for parts in sizes))]}))
    assert len(read.bars()) == len(sizes)
    widths = [float(re.findall(r"^width:([0-9.]+)%$", part["style"])[0]) for part in read.of("part")]
    names = [part["class"].split()[1] for part in read.of("part")]
    for parts in sizes:
        own = dict(zip(names[: len(parts)], widths[: len(parts)]))
        names, widths = names[len(parts) :], widths[len(parts) :]
        assert sum(own.values()) == pytest.approx(100, abs=1e-6)
        total = sum(parts.values())
        assert own == {name: pytest.approx(size / total * 100, abs=0.0011) for name, size in parts.items()}
    assert names == []


def test_a_bar_tells_its_figures_without_colours() -> None:
    read = Strict(page({"ct129": [planned(gpu(others=0.6, weights=99.4, graphs=0.01, rest=40.0))]}))
    (bar,) = read.bars()
    assert bar["aria-label"] == (
        "GPU 0, NVIDIA H200, 140.0 GiB: in use by others 0.6 GiB, weights 99.4 GiB, left for activations 40.0 GiB"
    )
    assert "weights: 99.4 GiB" in {part["title"] for part in read.of("part")}
    # the same letter in the bar and beside the words
    assert read.texts.count("w") == 2 and "weights 99.4 GiB" in read.texts
    assert [one["class"] for one in read.of("swatch")] == ["swatch others", "swatch weights", "swatch rest"]


def test_each_part_and_kind_has_a_style() -> None:
    read = Strict(page({"ct129": [planned(gpu("NVIDIA H200", **dict.fromkeys(LETTERS, 10.0)))]}))
    drawn = [part["class"].split()[1] for part in read.of("part")]
    looks = {name: re.search(rf"^\.{name} {{ background: (.+?);", read.style, re.M) for name in drawn}
    assert drawn == list(LETTERS)
    assert len({look and look[1] for look in looks.values()}) == len(LETTERS) and all(looks.values())
    kinds = {one["class"].split()[1] for one in Strict(page(full())).of("verdict")}
    assert kinds == {"but", "bad", "open", "failed"}
    assert all(f".{kind} {{ --tone:" in read.style for kind in kinds)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(one * 2 for one in digits)
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_letters_in_a_bar_can_be_read() -> None:
    """As WCAG asks of small text."""
    pairs = re.findall(r"background: (#\w+); color: (#\w+);", page({}))
    assert len(pairs) == 9
    for pair in pairs:
        dark, light = sorted(map(luminance, pair))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair


def test_every_gpu_is_shown_and_those_of_a_kind_share_a_legend() -> None:
    same = [gpu(weights=100.0, rest=40.0) for _ in range(8)]
    read = Strict(page({"ct129": [planned(*same)]}))
    assert [bar["aria-label"].split(",")[0] for bar in read.bars()] == [f"GPU {number}" for number in range(8)]
    assert len(read.of("legend")) == 1 and "GPU 0 to 7: 8 \u00d7 NVIDIA H200 140.0 GiB each" in read.text
    assert "GiB of each GPU" not in read.text

    differ = [*same[:7], gpu(weights=90.0, rest=50.0)]
    read = Strict(page({"ct129": [planned(*differ)]}))
    assert len(read.of("legend")) == 1 and "weights 90.0 to 100.0 GiB" in read.text
    assert read.text.split("GiB of each GPU ")[1].startswith("GPU weights left 0 100.0 40.0 1 100.0 40.0 2 ")
    assert "7 90.0 50.0" in read.text

    hardly = gpu(weights=100.01, rest=39.99)
    assert "GiB of each GPU" not in Strict(page({"ct129": [planned(same[0], hardly)]})).text

    read = Strict(page({"ct129": [planned(*same[:2], gpu("NVIDIA B200", weights=100.0, rest=80.0))]}))
    assert len(read.of("legend")) == 2 and "GPU 2: NVIDIA B200 180.0 GiB" in read.text


def test_what_helps_and_what_is_to_be_known_is_beside_the_bars() -> None:
    changes = [
        lever(),
        lever(option="speculative_algorithm", value=None, costs="slower"),
        lever(option="x", value=True),
    ]
    proposal = {"args": {"tp_size": 2, "kv_cache_dtype": "fp8_e4m3", "a": True}, "verdict": "fits", "kv_tokens": 7000,
                "effective_max_running_requests": 1}  # fmt: skip
    read = Strict(page({"c": [planned(levers=changes, proposal=proposal, unknown=["what is this"], notes=["look"])]}))
    assert read.text.split("Any one of these helps ")[1] == (
        "set max_running_requests to 8 the others wait 5,000 KV tokens, 8 requests at a time "
        "delete speculative_algorithm slower 5,000 KV tokens, 8 requests at a time "
        "set x to true the others wait 5,000 KV tokens, 8 requests at a time "
        'All arguments for what is wanted tp_size: 2 kv_cache_dtype: "fp8_e4m3" a: true '
        "fits: 7,000 KV tokens, 1 request at a time "
        "Not known what is this Notes look"
    )
    bare = Strict(page({"c": [planned()]})).text
    assert [word for word in ("helps", "wanted", "Not known", "Notes") if word in bare] == []


def figures(plan: dict[str, Any]) -> dict[str, str]:
    text = page({"ct129": [plan]})
    return dict(re.findall(r'<tr><th scope="row">([A-Za-z ]+)</th><td>(.*?)</td></tr>', text))


def test_the_figures_are_those_of_the_plan() -> None:
    read = Strict(page({"ct129": [planned()]}))
    assert "1,234,567 KV tokens; 4 requests at a time, then with up to 2,501 tokens each" in read.texts
    assert figures(planned()) == {
        "KV tokens": "1,234,567",
        "State slots": "24",
        "Requests asked for": "48",
        "Requests at a time": "4",
        "Context of a request": "8,192",
        "Longest context of all of them": "2,501",
        "Weights on a GPU": "25.5 GiB",
        "Draft model on a GPU": "0.4 GiB",
    }


def test_a_plan_that_does_not_fit_promises_nothing() -> None:
    failing = planned(fits=False, verdict="does not fit: 2.5 GiB are missing", missing_gib=2.5, draft_gib=0.0)
    assert figures(failing) == {
        "Requests asked for": "48",
        "Context of a request": "8,192",
        "Weights on a GPU": "25.5 GiB",
        "Missing on each GPU": "2.5 GiB",
    }
    read = Strict(page({"ct129": [failing]}))
    assert "left where it ends 10.0 GiB" in read.texts and "1,234,567" not in read.text


def test_what_can_not_be_told_is_not_told() -> None:
    odd = full()["ct129"][2]
    assert figures(odd) == {
        "KV tokens": "not known",
        "Requests asked for": "what memory allows",
        "Requests at a time": "not known",
        "Context of a request": "8,192",
        "Longest context of all of them": "not known",
        "Weights on a GPU": "at least 25.5 GiB",
        "Draft model on a GPU": "0.4 GiB",
    }


def test_every_instance_has_its_verdict_and_the_failed_ones_their_message() -> None:
    read = Strict(page({"gone": [], **full(), "b": [planned()]}))
    told = {
        "b qwen36": "fits",
        "ct129 broken": "no plan: no model",
        "gone": "nothing was planned: it has no instances, or gave no answer",
    }
    for name, verdict in told.items():
        assert re.search(rf"{name} . {verdict} ", read.text), name
        assert read.texts.count(verdict) == 2  # above all, and at the instance
    assert (
        "5 instances: 1 fitting, 1 fitting with less than was asked, 1 not fitting, 1 that can not be told, "
        "1 without a plan."
    ) in read.texts
    heads = [tag for tag, _attributes in read.tags if tag in ("h1", "h2", "h3")]
    assert heads == ["h1", "h2", "h3", "h2", "h3", "h3", "h3", "h3", "h2"]


def test_a_page_of_nothing_says_so() -> None:
    assert "Nothing was planned: no host has instances, or none gave an answer." in Strict(page({})).texts
    assert "nothing was planned: it has no instances, or gave no answer" in Strict(page({"ct129": []})).texts
