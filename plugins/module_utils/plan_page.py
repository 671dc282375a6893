# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory plans of several hosts as one HTML page, which needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils.plan_bars import LETTERS

TITLE = "GPU memory plans"
NOTHING = "nothing was planned: it has no instances, or gave no answer"
# What a plan comes to: its mark, and the words for how many do
KINDS = {
    "good": ("✓", "fitting"), "but": ("!", "fitting with less than was asked"), "bad": ("✗", "not fitting"),
    "open": ("?", "that can not be told"), "failed": ("✗", "without a plan"),
}  # fmt: skip
# Background and ink of each part: Okabe and Ito's colours, which colour-blind eyes tell apart; letters say the same
COLOURS = {
    "others": ("#9aa1ab", "#111"), "context": ("#59606a", "#fff"), "weights": ("#0072b2", "#fff"),
    "draft": ("#56b4e9", "#111"), "state": ("#cc79a7", "#111"), "verify": ("#e07b39", "#111"),
    "cache": ("#009e73", "#111"), "requests": ("#f0e442", "#111"), "graphs": ("#e69f00", "#111"),
    "rest": ("repeating-linear-gradient(135deg, var(--card) 0 5px, var(--line) 5px 6px)", "var(--ink)"),
    "unknown": ("repeating-linear-gradient(45deg, var(--card) 0 2px, var(--line) 2px 4px)", "var(--ink)"),
}  # fmt: skip
SHORT = {"others": "others", "draft": "draft", "verify": "verify", "requests": "tables", "rest": "left"}  # in a bar
NEGLIGIBLE = 0.05  # GiB, which would be told as 0.0 or 0.1
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# nothing is loaded and nothing runs, whatever a text might bring in
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --paper: #f4f5f7; --card: #fff; --ink: #1d2329; --soft: #59626d; --line: #d5d9de;
  --good: #00704f; --but: #855700; --bad: #b3261e; --open: #4a5a9a; --failed: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1d2125; --ink: #e6e9ec; --soft: #a3acb6;
  --line: #3f474f; --good: #4cc79b; --but: #e8b04a; --bad: #ff8a80; --open: #a9b8ff; --failed: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.5rem; }
h2 { margin: 2rem 0 .5rem; font-size: 1.15rem; }
h3 { margin: 0; font-size: 1.1rem; }
h4, caption { margin: 0 0 .4rem; font-size: .95rem; font-weight: 700; text-align: left; }
p, ul, ol, figure { margin: 0; }
a { color: inherit; }
.soft { color: var(--soft); font-size: .875rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
article, .overview { margin: 0 0 1rem; padding: 1rem 1.25rem 1.25rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; }
.overview { margin-top: 1rem; padding: .25rem 1.25rem; }
.verdict { display: flex; gap: .6rem; align-items: baseline; color: var(--tone); }
.verdict .mark { flex: none; width: 1em; font-weight: 700; text-align: center; }
.verdict .words { display: block; white-space: pre-wrap; }
.verdict .words::first-letter { text-transform: uppercase; }
.verdict .room { display: block; color: var(--ink); font-size: .9rem; }
article > .verdict { margin: .5rem 0 1.25rem; padding: .5rem .75rem; border-left: 4px solid var(--tone);
  border-radius: 0 .25rem .25rem 0; background: var(--paper); }
article > .verdict:last-child { margin-bottom: 0; }
article > .verdict .words { font-weight: 600; }
.sides { display: grid; gap: 1.5rem 2.5rem; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
.side > * + * { margin-top: 1.5rem; }
.side h4 .soft { white-space: nowrap; font-weight: 400; }
.gpu { display: flex; gap: .6rem; align-items: center; margin-top: .3rem; }
.gpu > span { min-width: 1ch; text-align: right; }
.bar { display: flex; flex: 1; height: 1.9rem; border: 1px solid var(--soft); border-radius: .25rem; overflow: hidden; }
.many .bar { height: 1.35rem; }
.part { flex: none; display: grid; align-items: center; container-type: inline-size; overflow: hidden;
  box-shadow: inset -1px 0 var(--card); font-size: .8rem; line-height: 1; white-space: nowrap; text-align: center; }
.part:last-child { box-shadow: none; }
.part span { display: none; }
@container (min-width: 1.2em) { .part .letter { display: block; } }
.rest, .unknown { text-shadow: 0 0 3px var(--card), 0 0 3px var(--card), 0 0 3px var(--card); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin-top: .6rem; padding: 0; list-style: none;
  font-size: .875rem; }
.legend li { display: flex; align-items: center; gap: .35em; }
.swatch { display: inline-grid; place-items: center; width: 1.35em; height: 1.35em; flex: none;
  border: 1px solid var(--soft); border-radius: .2em; font-size: .85em; line-height: 1; }
details { margin-top: .5rem; overflow-x: auto; white-space: nowrap; }
details td, details th + th { padding-left: .8rem; text-align: right; }
summary { cursor: pointer; }
.bar, .swatch { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.steps { padding: 0; list-style: none; }
.steps > li { padding: .5rem 0; border-top: 1px solid var(--line); }
.steps > li:first-child { padding-top: 0; border-top: 0; }
.steps p { font-size: .9rem; }
pre { margin: 0 0 .4rem; padding: .5rem .75rem; background: var(--paper); border-radius: .25rem;
  white-space: pre-wrap; }
.plain { padding-left: 1.1rem; font-size: .9rem; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 0; border-top: 1px solid var(--line); font-weight: 400; text-align: left;
  vertical-align: baseline; }
tr:first-child > * { border-top: 0; }
.figures { max-width: 30rem; }
.figures th { color: var(--soft); }
.figures td { padding-left: 1rem; text-align: right; }
.overview th { width: 30%; padding-right: 1.5rem; }
@media screen and (max-width: 48rem) { .sides { grid-template-columns: minmax(0, 1fr); }
  body { padding: 1rem .6rem 2rem; } article { padding: .85rem; }
  .overview { padding: .25rem .85rem; } .overview th { width: 38%; } }
@media print { :root { font-size: 9pt; } body { max-width: none; padding: 0; background: none; }
  article, figure, table, .steps > li { break-inside: avoid; } h2, h3, h4 { break-after: avoid; } }
"""


def page(plans: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page for what sglang_plan returned, by host; a result without a plan is shown with its message."""
    every = [(host, plan) for host in sorted(plans) for plan in plans[host] or [{}]]
    named = [(f"plan-{number}", host, plan) for number, (host, plan) in enumerate(every, 1)]
    body = [f"<h1>{TITLE}</h1>"]
    if len(named) != 1:
        body.append(f'<p class="soft">{_count([plan for _host, plan in every if plan])}</p>')
    if len(named) > 1:
        body.append(_overview(named))
    for host, of_host in groupby(named, lambda one: one[1]):
        articles = "\n".join(_article(anchor, plan) for anchor, _host, plan in of_host)
        body.append(f"<section>\n<h2>{_text(host)}</h2>\n{articles}\n</section>")
    styles = [f".{name} {{ background: {back}; color: {ink}; }}" for name, (back, ink) in COLOURS.items()]
    styles += [
        f"@container (min-width: {0.52 * (len(_short(name)) + 6):.1f}em) "
        f"{{ .{name} .letter {{ display: none; }} .{name} .size {{ display: block; }} }}"
        for name in COLOURS
    ]
    styles += [f".{kind} {{ --tone: var(--{kind}); }}" for kind in KINDS]
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{TITLE}</title>",
        "<style>{}{}\n</style>".format(STYLE, "\n".join(styles)),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>',
            *head,
            "</head>\n<body>\n<main>",
            *body,
            "</main>\n</body>\n</html>\n",
        ]
    )


def _count(plans: Sequence[Mapping[str, Any]]) -> str:
    if not plans:
        return "Nothing was planned: no host has instances, or none gave an answer."
    kinds = [_kind(plan) for plan in plans]
    told = ", ".join(f"{kinds.count(kind)} {words}" for kind, (_mark, words) in KINDS.items() if kind in kinds)
    return f"{len(plans)} instance{'s' if len(plans) > 1 else ''}: {told}."


def _kind(plan: Mapping[str, Any]) -> str:
    if "gpus" not in plan:
        return "failed" if plan else "open"
    if plan["fits"]:
        return "good" if plan["verdict"] == "fits" else "but"
    return "open" if plan["fits"] is None else "bad"


def _overview(named: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    rows = []
    for anchor, host, plan in named:
        name = _text(f"{host} {plan.get('item', '')}".rstrip())
        rows.append(f'<tr><th scope="row"><a href="#{anchor}">{name}</a></th><td>{_verdict(plan)}</td></tr>')
    return '<div class="overview">\n<table aria-label="All instances">\n{}\n</table>\n</div>'.format("\n".join(rows))


def _article(anchor: str, plan: Mapping[str, Any]) -> str:
    named = f"<h3>{_text(plan['item'])}</h3>\n" if plan.get("item") else ""
    if "gpus" not in plan:
        return f'<article id="{anchor}">\n{named}{_verdict(plan)}\n</article>'
    left, right = [_cards(plan)], list(filter(None, _advice(plan)))
    (left if right else right).append(_figures(plan))
    sides = "\n".join('<div class="side">\n{}\n</div>'.format("\n".join(side)) for side in (left, right))
    release = f'<p class="soft">SGLang {_text(plan["sglang_version"])}</p>'
    verdict = _verdict(plan, _room(plan) if plan["fits"] else "")
    return f'<article id="{anchor}">\n{named}{release}\n{verdict}\n<div class="sides">\n{sides}\n</div>\n</article>'


def _verdict(plan: Mapping[str, Any], room: str = "") -> str:
    kind = _kind(plan)
    words = plan["verdict"] if "gpus" in plan else f"no plan: {plan.get('msg', '')}" if plan else NOTHING
    more = f'<span class="room">{room}</span>' if room else ""
    mark = f'<span class="mark" aria-hidden="true">{KINDS[kind][0]}</span>'
    return f'<div class="verdict {kind}">{mark}<div><span class="words">{_text(words)}</span>{more}</div></div>'


def _room(plan: Mapping[str, Any]) -> str:
    requests = _requests(plan["effective_max_running_requests"])
    return f"{plan['kv_tokens']:,} KV tokens; {requests}, then with up to {plan['longest_context']:,} tokens each"


def _cards(plan: Mapping[str, Any]) -> str:
    """Show a bar for each GPU; cards of a kind that follow each other share a heading and a legend."""
    figures = []
    for _kind_of_card, several in groupby(enumerate(plan["gpus"]), lambda one: (one[1]["name"], one[1]["total_gib"])):
        numbers, alike = zip(*several)
        which = f"GPU {numbers[0]} to {numbers[-1]}: {len(alike)} &times;" if len(alike) > 1 else f"GPU {numbers[0]}:"
        size = f"{alike[0]['total_gib']:.1f} GiB{' each' if len(alike) > 1 else ''}"
        bars = "\n".join(_bar(number, one, plan["fits"]) for number, one in zip(numbers, alike))
        figures.append(
            f"<figure{' class=many' if len(alike) > 4 else ''}>\n"
            f'<figcaption><h4>{which} {_text(alike[0]["name"])} <span class="soft">{size}</span></h4></figcaption>\n'
            f"{bars}\n{_legend(numbers, [one['parts'] for one in alike], plan['fits'])}\n</figure>"
        )
    return "\n".join(figures)


def _bar(number: int, gpu: Mapping[str, Any], fits: bool | None) -> str:
    total, end, drawn, parts = sum(gpu["parts"].values()), 0.0, 0, []
    for name, size in gpu["parts"].items():
        end += size
        until = round(end / total * 100_000) if total else 0  # in thousandths of 1 %, so that they add up
        width, drawn = (until - drawn) / 1000, until
        title = f"{_word(name, fits)}: {size:.1f} GiB"
        label = f'<span class="letter">{_letter(name)}</span><span class="size">{_short(name)} {size:.1f}</span>'
        parts.append(f'<div class="part {name}" style="width:{width:.3f}%" title="{title}">{label}</div>')
    held = ", ".join(f"{_word(name, fits)} {size:.1f} GiB" for name, size in _told(gpu["parts"]))
    figures = _text(f"GPU {number}, {gpu['name']}, {gpu['total_gib']:.1f} GiB: {held}")
    shown = f'<div class="bar" role="img" aria-label="{figures}">{"".join(parts)}</div>'
    return f'<div class="gpu"><span class="soft" aria-hidden="true">{number}</span>{shown}</div>'


def _legend(numbers: Sequence[int], gpus: Sequence[Mapping[str, float]], fits: bool | None) -> str:
    """Say what the colours are and how many GiB each part has; for GPUs that differ also in a table."""
    rows, differ, names = [], False, [name for name in LETTERS if any(name in dict(_told(parts)) for parts in gpus)]
    for name in names:
        sizes = [parts.get(name, 0) for parts in gpus]
        least, most = f"{min(sizes):.1f}", f"{max(sizes):.1f}"
        differ |= least != most
        size = most if least == most else f"{least} to {most}"
        swatch = f'<span class="swatch {name}" aria-hidden="true">{_letter(name)}</span>'
        rows.append(f"<li>{swatch}{_word(name, fits)} {size} GiB</li>")
    legend = f'<ul class="legend">{"".join(rows)}</ul>'
    if not differ:
        return legend
    heads = "".join(f'<th scope="col">{_short(name)}</th>' for name in names)
    lines = "\n".join(
        f'<tr><th scope="row">{number}</th>{"".join(f"<td>{parts.get(name, 0):.1f}</td>" for name in names)}</tr>'
        for number, parts in zip(numbers, gpus)
    )
    table = f'<table>\n<tr><th scope="col">GPU</th>{heads}</tr>\n{lines}\n</table>'
    return f'{legend}\n<details><summary class="soft">GiB of each GPU</summary>\n{table}\n</details>'


def _told(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, size) for name, size in parts.items() if size >= NEGLIGIBLE]


def _letter(name: str) -> str:
    return LETTERS[name][0].strip(".")


def _short(name: str) -> str:
    return SHORT.get(name, LETTERS[name][1])


def _word(name: str, fits: bool | None) -> str:
    return "left where it ends" if name == "rest" and not fits else LETTERS[name][1]


def _advice(plan: Mapping[str, Any]) -> list[str]:
    """Return what would help and what is to be known, as sections; an empty text for what there is nothing of."""
    changes = [
        f'<li><strong>{_change(one)}</strong><p>{_text(one["costs"])}</p><p class="soft">{_reached(one)}</p></li>'
        for one in plan["levers"]
    ]
    return [
        _section("One change that helps" if len(changes) == 1 else "Any one of these helps", "ol", "steps", changes),
        _proposal(plan["proposal"]) if plan["proposal"] else "",
        _section("Not known", "ul", "plain", [f"<li>{_text(why)}</li>" for why in plan["unknown"]]),
        _section("Notes", "ul", "plain", [f"<li>{_text(note)}</li>" for note in plan["notes"]]),
    ]


def _section(title: str, tag: str, kind: str, items: Sequence[str]) -> str:
    return f'<section>\n<h4>{title}</h4>\n<{tag} class="{kind}">{"".join(items)}</{tag}>\n</section>' if items else ""


def _proposal(proposal: Mapping[str, Any]) -> str:
    # as they are written in an inventory
    args = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in proposal["args"].items())
    told = f'<p class="soft">{_text(proposal["verdict"])}: {_reached(proposal)}</p>'
    return f"<section>\n<h4>All arguments for what is wanted</h4>\n<pre>{_text(args)}</pre>{told}\n</section>"


def _change(lever: Mapping[str, Any]) -> str:
    option, value = lever["option"], lever["value"]
    if value is None:
        return f"delete <code>{_text(option)}</code>"
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"set <code>{_text(option)}</code> to <code>{_text(shown)}</code>"


def _reached(plan: Mapping[str, Any]) -> str:
    return f"{plan['kv_tokens']:,} KV tokens, {_requests(plan['effective_max_running_requests'])}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'} at a time"


def _figures(plan: Mapping[str, Any]) -> str:
    requested, fits = plan["requested"], plan["fits"]
    rows = [
        ("KV tokens", _counted(plan["kv_tokens"]) if fits is not False else ""),
        ("State slots", _counted(plan["state_slots"]) if fits and plan["state_slots"] else ""),
        ("Requests asked for", "what memory allows" if requested is None else f"{requested:,}"),
        ("Requests at a time", _counted(plan["effective_max_running_requests"]) if fits is not False else ""),
        ("Context of a request", f"{plan['context']:,}"),
        ("Longest context of all of them", _counted(plan["longest_context"]) if fits is not False else ""),
        ("Weights on a GPU", f"{'at least ' if fits is None else ''}{plan['weights_gib']:.1f} GiB"),
        ("Draft model on a GPU", f"{plan['draft_gib']:.1f} GiB" if plan["draft_gib"] else ""),
        ("Missing on each GPU", f"{plan['missing_gib']:.1f} GiB" if plan["missing_gib"] else ""),
    ]
    body = "\n".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in rows if value)
    return f'<table class="figures">\n<caption>Figures</caption>\n{body}\n</table>'


def _counted(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def _text(value: Any) -> str:
    """Return foreign text so that it is text in HTML and in an attribute, and nothing else."""
    return escape(UNPRINTABLE.sub("\ufffd", str(value)))
