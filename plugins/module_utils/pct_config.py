# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox tells of a container through `pvesh`, as data: its state, its configuration, and why it tells nothing.

A value of the configuration such as mp0 is a property string: `volume,name=value,...`. There is no way to write a comma
in it, and the value of the option that comes first may stand without its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# kind of value -> the option that may stand without its name, and those that must be there
SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "rootfs": ("volume", ("volume",)),
    "mp": ("volume", ("volume", "mp")),
    "dev": ("path", ("path",)),
    "net": ("", ("name",)),
    "features": ("", ()),
    "startup": ("order", ()),
}
# no name means different things in two kinds; all others are text
BOOLEANS = frozenset((
    "acl", "ro", "quota", "replicate", "shared", "backup", "keepattrs", "deny-write", "firewall", "link_down",
    "host-managed", "nesting", "keyctl", "fuse", "mknod", "force_rw_sys",
))  # fmt: skip
INTEGERS = frozenset(("uid", "gid", "mtu", "tag", "order", "up", "down"))
WORDS = {"1": True, "on": True, "yes": True, "true": True, "0": False, "off": False, "no": False, "false": False}

# what pvesh says when it fails -> cause and next step. The first match counts.
REFUSALS = (
    (r"ipcc_send_rec|access control list",
     "the cluster file system of {node} does not answer ({said}): see 'systemctl status pve-cluster' on {node}"),
    (r"No '\w+' handler defined",
     "pvesh on {node} does not know {path}: this needs Proxmox VE 8 or newer, see 'pveversion' on {node}"),
)  # fmt: skip


def parse_properties(key: str, text: str) -> dict[str, Any]:
    """The options of the value of a key such as mp0, by Proxmox's own names; ValueError where it has not their form.

    Options that this does not know are kept as text, because newer versions of Proxmox have more of them.
    """
    unnamed, needed = SHAPES[kind_of(key)]
    found: dict[str, Any] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            name, value = unnamed, part
        if not name or not value:
            raise ValueError(f"'{part}' has no {'value' if name else 'name'}")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = _typed(name, value)
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"it needs {' and '.join(missing)}")
    return found


def kind_of(key: str) -> str:
    """The kind of a key whose value is a property string, else the empty string."""
    return key.rstrip("0123456789") if re.fullmatch(r"rootfs|features|startup|(mp|dev|net)[0-9]+", key) else ""


def _typed(name: str, value: str) -> Any:
    if name in BOOLEANS:
        if value.lower() not in WORDS:
            raise ValueError(f"{name}={value} is neither 0 nor 1")
        return WORDS[value.lower()]
    if name in INTEGERS:
        if not re.fullmatch(r"[0-9]+", value):
            raise ValueError(f"{name}={value} is no whole number")
        return int(value)
    return value


def state_facts(listed: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in one entry of the node's list. The number of CPUs may be text there, and before 2024 the vmid was."""
    return {
        "vmid": int(listed["vmid"]),
        "name": listed.get("name"),
        "status": listed["status"],
        "lock": listed.get("lock"),
        "template": bool(listed.get("template")),
        "tags": [tag for tag in re.split(r"[,;\s]+", listed.get("tags") or "") if tag],
        "uptime": int(listed.get("uptime") or 0),
        "cpus": _number(listed.get("cpus")),
        "maxmem": listed.get("maxmem"),
        "maxswap": listed.get("maxswap"),
        "maxdisk": listed.get("maxdisk"),
    }


def _number(value: Any) -> float | None:
    """A number that may be text; text that is none comes out of a configuration that Proxmox could not read."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def config_facts(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The facts in a container's configuration, and what is wrong with values that are left out of them."""
    parsed: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in SHAPES}
    problems = []
    for key in sorted(filter(kind_of, config), key=lambda key: (kind_of(key), len(key), key)):
        try:
            parsed[kind_of(key)][key] = parse_properties(key, str(config[key]))
        except ValueError as problem:
            problems.append(f"{key}: {config[key]}: {problem}")
    facts = {
        "unprivileged": bool(config.get("unprivileged")),
        "devices": {key: _device(options) for key, options in parsed["dev"].items()},
        "mounts": {key: _mount(options) for kind in ("rootfs", "mp") for key, options in parsed[kind].items()},
        "networks": {key: _plain(options) for key, options in parsed["net"].items()},
        "features": _plain(parsed["features"].get("features", {})),
        "lxc": config.get("lxc", []),
        "config": dict(config),
    }
    return facts, problems


def _device(options: Mapping[str, Any]) -> dict[str, Any]:
    """What applies to a device in the container, with Proxmox's defaults."""
    return {"mode": "0660", "uid": 0, "gid": 0, "deny_write": False, **_plain(options)}


def _mount(options: Mapping[str, Any]) -> dict[str, Any]:
    volume = options["volume"]
    kind = "device" if volume.startswith("/dev/") else "bind" if volume.startswith("/") else "volume"
    others = {name: value for name, value in options.items() if name not in ("volume", "mp")}
    return {"type": kind, "volume": volume, "mp": options.get("mp", "/"), "options": _plain(others)}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by names that a template can write after a dot."""
    return {name.replace("-", "_"): value for name, value in options.items()}


def pending_changes(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a container's pending list that wait for its next start, by key; most entries wait for nothing."""
    waiting = [dict(item) for item in items if "pending" in item or item.get("delete")]
    return sorted(waiting, key=lambda item: str(item["key"]))


def missing_containers(vmids: Iterable[int], node: str) -> str:
    """The message for containers that the node does not have."""
    numbers = ", ".join(map(str, vmids))
    return f"{node} has no container {numbers}: see 'pct list' there, correct vmids or ask the node that has it"


def is_gone(stderr: str) -> bool:
    """Tell whether pvesh failed because the container is not there (any more)."""
    return re.search(r"Configuration file '.*' does not exist", stderr) is not None


def refusal(path: str, code: int, stderr: str, node: str) -> str:
    """Why `pvesh get PATH` failed on a node, in one line with the next step."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("pvesh get ")]
    facts = {"node": node, "path": path, "said": lines[-1] if lines else "no output"}
    for pattern, sentence in REFUSALS:
        if re.search(pattern, stderr):
            return sentence.format(**facts)
    return f"pvesh ended with code {code} on {node}: {facts['said']}; try 'pvesh get {path}' on {node}"
