# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container is asked to be, what it is, and the changes between the two.

A configuration is what Proxmox's API gives: key -> number or text. What is asked for has the same keys, with values as
an operator writes them: an option of a property string such as net0 by its name, sizes with units, None for what is to
go. What is not asked for is left as it is, down to the single option of a property string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import pct_config
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused

FLAGS = frozenset(("onboot", "protection", "console", "template", "debug", "unprivileged"))
NUMBERS = frozenset(("cores", "cpulimit", "cpuunits", "memory", "swap", "tty"))
MEBIBYTES = frozenset(("memory", "swap"))
LISTS = {"tags": ";", "nameserver": " ", "searchdomain": " "}  # with what Proxmox joins their words
# what holds where a key, or an option of a property string, is not set
DEFAULTS: dict[str, Any] = {
    **{key: "0" for key in FLAGS - {"console"}}, "console": "1", "memory": "512", "swap": "512", "cpulimit": "0",
    "tty": "2", "tags": "", "description": "",
}  # fmt: skip
OPTION_DEFAULTS: dict[str, dict[str, Any]] = {
    "dev": {"mode": "0660", "uid": 0, "gid": 0, "deny-write": False},
    "net": {"type": "veth", "firewall": False, "link_down": False, "host-managed": False},
    "mp": {"ro": False, "backup": False, "quota": False, "shared": False, "replicate": True},
    "rootfs": {"ro": False, "quota": False, "shared": False, "replicate": True},
    "features": dict.fromkeys(("nesting", "keyctl", "fuse", "mknod", "force_rw_sys"), False),
}
# options whose other value is another thing, to which nothing of the old one applies
IDENTITY = {"mp": "volume", "rootfs": "volume", "dev": "path"}
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
NEW_VOLUME = re.compile(r"(?P<storage>[^:/\s]+):(?P<gib>\d+(?:\.\d+)?)")
SECRET = frozenset(("env",))  # keys whose values are not shown
FIXED = frozenset(("unprivileged", "arch", "ostype"))  # what a container keeps for ever
MOST_DEVICES = 256


@dataclass(frozen=True)
class Changes:
    """What is to be sent to Proxmox."""

    put: dict[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    resize: dict[str, str] = field(default_factory=dict)  # volume -> its new size

    def __bool__(self) -> bool:
        return bool(self.put or self.delete or self.resize)

    @property
    def keys(self) -> list[str]:
        return sorted({*self.put, *self.delete, *self.resize})

    def applied(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration after them."""
        after = {key: value for key, value in config.items() if key not in self.delete}
        after.update(self.put)
        for key, size in self.resize.items():
            after[key] = _text(key, {**_options(key, str(after[key])), "size": size})
        return after


def compare(config: Mapping[str, Any], asked: Mapping[str, Any]) -> Changes:
    """The changes that make `config` what is asked for; Refused for what Proxmox can not change, or no value at all."""
    put, delete, resize = {}, [], {}
    for key in sorted(asked):
        try:
            now, value = config.get(key), asked[key]
            before = _default(key) if now is None else _canonical(key, str(now))
            new, size = ("", None) if value is None else _merged(key, None if now is None else str(now), value)
            if size:
                resize[key] = size
            if not new:
                if now is not None and before != _default(key):
                    delete.append(key)
                continue
            if _canonical(key, new) == before:
                continue
            if key in FIXED:
                raise ValueError(
                    f"it is {now or 0} now, which can not be changed: leave it out, or make a new container"
                )
            put[key] = new
        except ValueError as problem:
            raise Refused(f"{key}: {_shown(key, asked[key])}: {problem}") from None
    return Changes(put, tuple(delete), resize)


def creation(asked: Mapping[str, Any]) -> dict[str, str]:
    """What a new container is made with."""
    try:
        values = {key: _merged(key, None, value)[0] for key, value in sorted(asked.items()) if value is not None}
    except ValueError as problem:
        raise Refused(f"the new container: {problem}") from None
    return {key: value for key, value in values.items() if value}


def lines(config: Mapping[str, Any], keys: Iterable[str]) -> str:
    """These keys of a configuration as the lines of its file, without values that nobody may see."""
    return "".join(f"{key}: {_shown(key, config[key])}\n" for key in sorted(keys) if key in config)


def _shown(key: str, value: Any) -> str:
    return "(not shown)" if key in SECRET else str(value).replace("\n", "\\n")


# ---- values


def _merged(key: str, now: str | None, value: Any) -> tuple[str, str | None]:
    """The value as Proxmox takes it, with what it has now and is not asked for; and the size that a volume grows to."""
    if pct_config.kind_of(key):
        return _merged_options(key, now, value)
    if key in FLAGS:
        return str(int(_flag(value))), None
    if key in MEBIBYTES:
        return str(mebibytes(value)), None
    if key in NUMBERS:
        if isinstance(value, bool) or not re.fullmatch(r"\d+(\.\d+)?", str(value)):
            raise ValueError("it is no number")
        return str(value), None
    if key in LISTS:
        words = value if isinstance(value, list) else re.split(r"[,;\s]+", str(value))
        return LISTS[key].join(str(word) for word in words if word), None
    if isinstance(value, (dict, list)):
        raise ValueError("it is one text")
    return str(int(value)) if isinstance(value, bool) else str(value), None


def _merged_options(key: str, now: str | None, value: Any) -> tuple[str, str | None]:
    kind = pct_config.kind_of(key)
    if isinstance(value, Mapping):
        asked = {_dashed(str(name)): option for name, option in value.items()}
    else:
        asked = dict(pct_config.parse_properties(key, str(value)))
    present = _options(key, now) if now is not None else {}
    size = None
    identity = IDENTITY.get(kind, "")
    new = NEW_VOLUME.fullmatch(str(asked.get(identity, ""))) if kind in ("mp", "rootfs") else None
    if new and present:
        old = str(present[identity])
        if old.partition(":")[0] != new["storage"]:
            raise ValueError(f"it is on {old} now: 'pct move-volume' can bring it to {new['storage']}")
        asked[identity] = old
        size = _growth(str(present["size"]), new["gib"]) if "size" in present else None
    if kind == "rootfs" and present and asked.get(identity, present[identity]) != present[identity]:
        raise ValueError(f"it is {present[identity]} now, and a container keeps its root file system: leave it out")
    if identity in asked and asked[identity] != present.get(identity):
        present = {}
    merged = {**present, **asked}
    text = _text(key, {name: option for name, option in merged.items() if option is not None})
    pct_config.parse_properties(key, text)  # raises ValueError for what Proxmox would not read
    return text, size


def _growth(size: str, gib: str) -> str | None:
    """The size to which a volume has to grow; None if it is large enough, which it may be by a rounding."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", size)
    if not found:
        raise ValueError(f"its size is {size} now, which is none")
    have, wanted = float(found[1]) * UNITS[found[2]], float(gib) * UNITS["G"]
    if wanted < have:
        raise ValueError(f"it has {size} now and a volume only grows: ask for as much or more")
    return f"{gib}G" if wanted > have else None


def _dashed(name: str) -> str:
    """Proxmox's name of an option, which a template can not write after a dot."""
    return {"deny_write": "deny-write", "host_managed": "host-managed"}.get(name, name)


def _options(key: str, text: str) -> dict[str, Any]:
    return pct_config.parse_properties(key, text)


def _text(key: str, options: Mapping[str, Any]) -> str:
    """A property string, the option that needs no name first."""
    unnamed = pct_config.SHAPES[pct_config.kind_of(key)][0]
    parts = []
    for name, value in sorted(options.items(), key=lambda option: option[0] != unnamed):
        word = str(int(value)) if isinstance(value, bool) else str(value)
        parts.append(word if name == unnamed else f"{name}={word}")
    return ",".join(parts)


def mebibytes(value: Any) -> int:
    """An amount of memory in MiB, which a number is already; 64G and 64GiB are 65536."""
    found = re.fullmatch(r"(\d+)\s*(?:([MGT])(?:i?B)?)?", str(value))
    if not found or isinstance(value, bool):
        raise ValueError("it is no amount of memory: write MiB, or a unit as in 64G")
    return int(found[1]) * UNITS[found[2] or "M"] // UNITS["M"]


def _flag(value: Any) -> bool:
    word = str(int(value) if isinstance(value, bool) else value).lower()
    if word not in pct_config.WORDS:
        raise ValueError("it is neither 0 nor 1")
    return pct_config.WORDS[word]


def _default(key: str) -> Any:
    if key == "features":
        return _canonical(key, "")
    return _canonical(key, DEFAULTS[key]) if key in DEFAULTS else None


def _canonical(key: str, text: str) -> Any:
    """What is equal exactly if Proxmox makes no difference."""
    kind = pct_config.kind_of(key)
    if kind:
        options = {**OPTION_DEFAULTS.get(kind, {}), **_options(key, text)}
        return {name: _plain(name, value) for name, value in options.items()}
    if key in FLAGS:
        return _flag(text)
    if key in NUMBERS:
        return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text
    if key in LISTS:
        words = [word for word in re.split(r"[,;\s]+", text) if word]
        # Proxmox sorts and lowers tags as the datacenter's tag-style says; name servers have an order
        return frozenset(word.lower() for word in words) if key == "tags" else words
    return text.strip() if key == "description" else text


def _plain(name: str, value: Any) -> Any:
    if name == "size":
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", str(value))
        return float(found[1]) * UNITS[found[2]] if found else value
    if name in ("hwaddr", "ip6", "gw6") or name == "type":
        return str(value).lower()
    if name in ("rate", "order", "up", "down"):
        return float(value) if re.fullmatch(r"\d+(\.\d+)?", str(value)) else value
    if name in ("mountoptions", "trunks", "mount"):
        return frozenset(str(value).split(";"))
    return int(str(value), 8) if name == "mode" and re.fullmatch("[0-7]+", str(value)) else value


# ---- devices


def device_paths(config: Mapping[str, Any]) -> dict[str, str]:
    """The devices that a container has, by key."""
    found = {key: str(value) for key, value in config.items() if re.fullmatch(r"dev\d+", key)}
    return {key: str(_options(key, text)["path"]) for key, text in sorted(found.items())}


def placed(
    config: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], taken: Iterable[str] = (), only: str = ""
) -> dict[str, Any]:
    """The keys devN for these devices: the one that a device has already, else the lowest that is free.

    `taken` are keys that are asked for otherwise. Devices whose path matches `only` and are not among these go; with an
    empty `only` all stay.
    """
    present, elsewhere = device_paths(config), set(taken)
    free = iter(f"dev{n}" for n in range(MOST_DEVICES) if f"dev{n}" not in elsewhere.union(present))
    keys = {path: key for key, path in reversed(present.items()) if key not in elsewhere}
    asked: dict[str, Any] = {}
    for device in devices:
        key = keys.get(str(device["path"])) or next(free, None)
        if key is None:
            raise Refused(f"{device['path']}: the container has {MOST_DEVICES} devices already: take one out first")
        asked[key] = dict(device)
    for key, path in present.items():
        if only and re.fullmatch(only, path) and key not in asked and key not in elsewhere:
            asked[key] = None
    return asked


def others(config: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Devices of the container whose path matches `kind` and that are not among these, as `devN: path`."""
    paths = {str(device["path"]) for device in devices}
    return [
        f"{key}: {path}" for key, path in device_paths(config).items() if re.fullmatch(kind, path) and path not in paths
    ]


# ---- raw keys of LXC, which stand in the file alone


def with_raw(text: str, asked: Sequence[tuple[str, str]]) -> tuple[str, list[str], list[str]]:
    """A configuration file with these raw keys: (text, lines that went, lines that came). All others stay.

    A line takes the place of the one for the same limit, or the same target of a mount.
    """
    section = re.search(r"(?m)^\[", text)  # pending changes, then snapshots
    head, tail = (text[: section.start()], "\n" + text[section.start() :]) if section else (text, "")
    kept, gone, come = head.rstrip("\n").splitlines(), [], []
    for key, value in asked:
        place = _raw_place(key, value)
        same = [line for line in kept if (pair := raw_pair(line)) and _raw_place(*pair) == place]
        if [raw_pair(line) for line in same] != [(key, value)]:
            kept = [line for line in kept if line not in same] + [f"{key}: {value}"]
            gone += same
            come.append(f"{key}: {value}")
    return ("\n".join(kept) + "\n" + tail if come else text), gone, come


def raw_pair(line: str) -> tuple[str, str] | None:
    """Key and value of a line with a raw key."""
    found = re.fullmatch(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*", line)
    return (found[1], found[2]) if found else None


def _raw_place(key: str, value: str) -> tuple[str, str]:
    if key == "lxc.mount.entry":
        words = value.split()
        return key, words[1].strip("/") if len(words) > 1 else value
    return key, "" if key.startswith("lxc.prlimit.") else value
