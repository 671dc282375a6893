# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts without secrets: known ones in whatever form they stand there, and what looks like one.

What is masked for its name alone may be no secret: better a fact too few than a key too many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.gpuops.sglang.plugins.module_utils.secret_forms import forms_of

MASK = "********"
SHORTEST = 4  # characters; a shorter secret is a part of many words, so it is masked after its name alone
# the end of a name whose value is a secret; a tokenizer's own tokens are none
NAME = (
    r"(?:(?:api|[_-])key|(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)token|passwd|password|passphrase|secret|authorization)"
    r"(?:_\w)?"
)
PLAIN = ("", "None", "null", "True", "true", "False", "false")  # no secrets, whatever their name
# in quotes, which may be escaped (the end of a line ends them too), and perhaps in e.g. SecretStr('...'); or a word
VALUE = (
    r"""(?:(?:\w{1,20}\(|[bru])?(?P<open>\\*["'])(?P<quoted>.*?)(?:(?<!\\)(?P=open)|$)"""
    r"""|(?P<word>[^\s,;&'"()\[\]{}<>]+))"""
)
LOOKS_SECRET = [
    re.compile(pattern)
    for pattern in (
        r"(?s:(?P<keep>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z))",
        r"(?P<keep>[A-Za-z0-9]://[^/\s:@]*:)[^/\s\"']+(?=@)",
        r"(?i:(?P<keep>authorization\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?))[^\"'\n\\]+",
        r"(?i:(?P<keep>\bbearer[ \t]+))[\w.~+/=-]{4,}",
        r"(?P<keep>(?<![A-Za-z0-9])(?:hf_(?=\w{20})|gh[oprsu]_(?=\w{20})|AKIA(?=\w{12})|sk-|glpat-|nvapi-))[\w-]{8,}",
    )
]
ESCAPE = r"(?:\\|%(?:25)*5c)"
SHORT_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def is_secret_name(name: str) -> bool:
    """Tell whether the value of an option or a variable of this name is to be masked."""
    return re.search(rf"(?i)(?:{NAME}|^key)$", name) is not None


class Masker:
    """Takes secrets out of texts. `secrets` are the known ones: pairs of name ('': not known) and value."""

    def __init__(self, secrets: Iterable[tuple[str, str]] = ()) -> None:
        known = list(secrets)
        found = {form.strip() for _name, value in known for form in (value, *forms_of(value))}
        self._forms: list[tuple[str, re.Pattern[str]]] = []
        for form in sorted(found, key=len):
            # an escaped form is found by the pattern of the plain one
            if len(form) >= SHORTEST and not any(pattern.fullmatch(form) for _run, pattern in self._forms):
                self._forms.append((max(re.findall("[A-Za-z0-9]*", form), key=len), _in_any_form(form)))
        self._forms.reverse()  # the longest first, lest one that is a part of another leave the rest of it
        names = sorted({re.sub("[_-]", "[_-]", re.sub(r"[^\w-]", ".", name)) for name, _value in known if name})
        self._known = re.compile(f"(?i:{'|'.join(names)})") if names else None
        name = f"(?P<name>{'|'.join((NAME, *(f'(?<![A-Za-z0-9]){name}' for name in names)))})"
        self._named = [
            re.compile(f"(?im){pattern}")
            for pattern in (
                # "NAME=several words", as in a unit
                rf"""(?P<open>["'])[\w.-]{{0,80}}?{name}=(?P<quoted>.*?)(?:(?<!\\)(?P=open)|$)""",
                rf"""{name}(?:\\*["'])?[ \t]*[:=][ \t]*{VALUE}""",
                # --name VALUE, also where each word is in quotes
                rf"""(?<![\w-])--[\w-]{{0,80}}?{name}(?:\\*["'])?,?[ \t]+(?!\\*["']?--){VALUE}""",
            )
        ]

    def __call__(self, text: str) -> str:
        """Return `text` with every secret masked."""
        for run, pattern in self._forms:
            # letters and digits are never escaped, and to look for them is quick
            if run in text:
                text = pattern.sub(MASK, text)
        for pattern in LOOKS_SECRET:
            text = pattern.sub(rf"\g<keep>{MASK}", text)
        for pattern in self._named:
            text = pattern.sub(self._masked, text)
        return text

    def _masked(self, found: re.Match[str]) -> str:
        group = "word" if found.groupdict().get("word") is not None else "quoted"
        name, value = found["name"], found[group]
        known = self._known is not None and self._known.fullmatch(name)
        # how many tokens, as in '#new-token: 7'
        count = name.lower() == "token" and re.fullmatch(r"\d+(?:\.\d+)?", value)
        if value in PLAIN or (count and not known):
            return found[0]
        start, end = (place - found.start() for place in found.span(group))
        return found[0][:start] + MASK + found[0][end:]


def _in_any_form(secret: str) -> re.Pattern[str]:
    """Return what matches the secret as it is, and escaped, as often as one likes, for JSON, Python, URLs or a shell.

    No text can be read in two ways as the same letter, so that a search is quick whatever it meets.
    """
    parts = re.findall(r"[A-Za-z0-9]+|\\+|.", secret, re.DOTALL)
    return re.compile("".join(part if part.isalnum() and part.isascii() else _letter(part) for part in parts))


def _letter(letter: str) -> str:
    if letter.startswith("\\"):
        return f"(?i:{ESCAPE}+)"
    number, utf8 = ord(letter), letter.encode("utf-8", "surrogatepass")
    units = re.findall("....", letter.encode("utf-16-be", "surrogatepass").hex())
    percent = "".join(f"%(?:25)*{byte:02x}" for byte in utf8)
    ways = [
        f"{ESCAPE}{{0,8}}(?:{percent}|{re.escape(letter)})",
        "".join(f"{ESCAPE}{{1,8}}x{byte:02x}" for byte in utf8),
        "".join(f"{ESCAPE}{{1,8}}u{unit}" for unit in units),
    ]
    if number > 0x7F:
        ways.append(f"{ESCAPE}{{1,8}}" + (f"x{number:02x}" if number < 0x100 else f"U{number:08x}"))
    if letter in SHORT_ESCAPES:
        ways.append(f"{ESCAPE}{{1,8}}{SHORT_ESCAPES[letter]}")
    if letter == " ":
        ways.append(r"(?:\+|%(?:25)*2b)")
    if letter == "'":
        ways = [r"'\\''", "'\"'\"'", *ways]
    return f"(?i:{'|'.join(ways)})"
