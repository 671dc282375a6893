# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of one installed SGLang, and the names that they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Mapping[str, Any]]


class Options(dict[str, Mapping[str, Any]]):
    """The options of a release (main spelling -> facts, see schema_probe) with the version that they are of."""

    def __init__(self, options: Schema, version: str) -> None:
        super().__init__(options)
        self.version = version


def version_of(schema: Schema) -> str:
    """Return SGLang's version, or '' where only the options are known."""
    return schema.version if isinstance(schema, Options) else ""


def name_of(flag: str) -> str:
    """Return a spelling as an operator writes it: --tp-size is tp_size."""
    return flag[2:].replace("-", "_")


def canonical(name: str, schema: Schema) -> str | None:
    """Return the main spelling of the option that `name` (an option or one of its aliases) stands for."""
    flag = "--" + name.replace("_", "-")
    if flag in schema:
        return flag
    return next((main for main, option in schema.items() if flag in option["aliases"]), None)


def written_as(name: str, args: Mapping[str, Any], schema: Schema) -> str | None:
    """Return the name in `args` of the option that `name` stands for, which may be an alias, or None."""
    flag = canonical(name, schema)
    return next((written for written in args if flag and canonical(written, schema) == flag), None)


def names(schema: Schema) -> dict[str, str]:
    """Return every name that an operator may write -> the main name of its option."""
    return {
        name_of(spelling): name_of(main) for main, option in schema.items() for spelling in (main, *option["aliases"])
    }


def choices_of(flag: str, schema: Schema) -> list[Any]:
    """Return the values that an option is limited to; a deprecated name is limited as the option that it sets."""
    option = schema[flag]
    if option["choices"] is None and option["action"] == "DeprecatedAliasStoreAction":
        sharing = (other["choices"] for other in schema.values() if other["dest"] == option["dest"])
        return next((choices for choices in sharing if choices), [])
    return option["choices"] or []
