# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forms in which a secret may stand in a text that somebody else has written, such as a log."""

from __future__ import annotations

import json
from collections.abc import Iterator

SHORTEST = 8  # characters of a value inside a JSON secret that is looked for; a shorter one may be any word


def forms_of(secret: str) -> Iterator[str]:
    """Yield the secret, its lines, its escaped forms, and what is in it if it is JSON."""
    forms = (secret, *secret.splitlines(), json.dumps(secret)[1:-1], repr(secret)[1:-1])
    yield from (form for form in forms if form.strip())
    try:
        left = [json.loads(secret)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and len(value) >= SHORTEST:
            yield from (value, json.dumps(value)[1:-1], repr(value)[1:-1])
