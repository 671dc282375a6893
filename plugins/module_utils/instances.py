# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a host's list of instances, judged on the controller before any host is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KEYS = ("name", "model", "host", "port", "gpus", "args", "env", "secrets")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def instance_problems(instances: Any) -> list[str]:
    """Return one sentence for each thing that must be corrected in `sglang_server_instances`, if any.

    Values are told only where they can not be a secret.
    """
    if not isinstance(instances, list):
        kind = type(instances).__name__
        return [f"sglang_server_instances is of the type {kind}: write a list with one mapping for each instance"]
    problems: list[str] = []
    names: dict[str, int] = {}
    ports: dict[int, str] = {}
    for position, instance in enumerate(instances, start=1):
        if not isinstance(instance, Mapping):
            kind = type(instance).__name__
            problems.append(f"instance {position} is of the type {kind}: write a mapping with name, model and port")
            continue
        name = str(instance.get("name") or "")
        label = f"instance '{name}'" if name else f"instance {position}"
        if not NAME.fullmatch(name):
            problems.append(f"{label} has the name {name!r}: use up to 40 of a-z, 0-9 and '-'")
        elif name in names:
            problems.append(f"{label} is there twice (entries {names[name]} and {position}): rename one")
        names.setdefault(name, position)
        for key in sorted(str(key) for key in instance if key not in KEYS):
            problems.append(f"{label} has a key '{key}': it may have {', '.join(KEYS)}")
        if not instance.get("model"):
            problems.append(f"{label} has no model: set 'model' to a directory or a hub id")
        port = _port(instance.get("port"))
        if port is None:
            problems.append(f"{label} has the port {instance.get('port')!r}: use a whole number from 1024 to 65535")
        elif port in ports:
            problems.append(f"{label} has the port {port}, which {ports[port]} has too: change one")
        else:
            ports[port] = label
        for option, other in bound_ports(instance.get("args")).items():
            if other in ports:
                problems.append(f"{label} has the {option} {other}, which is the port of {ports[other]}: change one")
            else:
                ports[other] = f"{label} ({option})"
    return problems


def bound_ports(args: Any) -> dict[str, int]:
    """Return option -> port of the further ports that a server listens on because its arguments say so."""
    if not isinstance(args, Mapping):
        return {}
    ports = {str(option): _port(value) for option, value in args.items() if str(option).endswith("_port")}
    ports.pop("remote_instance_weight_loader_seed_instance_service_port", None)  # another server's
    if args.get("disaggregation_mode") != "prefill" and not args.get("enable_pd_role_switch"):
        ports.pop("disaggregation_bootstrap_port", None)  # where its prefill server listens
    return {option: port for option, port in ports.items() if port is not None}


def _port(value: Any) -> int | None:
    # a template renders a number as text on some ansible-core versions
    if not re.fullmatch(r"\d{1,5}", str(value)):
        return None
    return int(value) if 1024 <= int(value) <= 65535 else None
