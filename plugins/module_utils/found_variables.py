# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A foreign server as an operator would write it for this collection: an entry of `sglang_server_instances`.

The values of secrets are kept apart from the entry, which has the names of variables in their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import processes
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import argument_problems, secret_problems
from ansible_collections.gpuops.sglang.plugins.module_utils.command_line import MAYBE_SECRET, CommandLine
from ansible_collections.gpuops.sglang.plugins.module_utils.found_process import FoundProcess
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import PLAIN, Masker, is_secret_name
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import variable_problem

# Variables that a server, or what it is made of, reads
RELEVANT = re.compile(
    r"(?:SGLANG|SGL|HF|HUGGINGFACE|HUGGING_FACE|TRANSFORMERS|TOKENIZERS|MODELSCOPE|CUDA|CUDNN|CUBLAS|CUTE|CUTLASS|NVIDIA|"
    r"NCCL|RCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|NVSHMEM|NVTE|NVCC|NIXL|UCX|UCC|FI|GLOO|TP|MC|MOONCAKE|"
    r"LMCACHE|DG|DEEPGEMM|DEEPEP|OMP|KMP|MKL|OPENBLAS|NUMEXPR|HIP|ROCR|ROCM|MIOPEN|AITER|HSA|ASCEND|HCCL|VLLM|RAY|"
    r"XGRAMMAR|OUTLINES|TVM|TIKTOKEN|UVICORN|PROMETHEUS|OTEL|RUNAI|S3|AWS|AZURE|GOOGLE|MALLOC|TCMALLOC|SSL|REQUESTS|"
    r"CURL)_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON[A-Z]+|XDG_CACHE_HOME|GLIBC_TUNABLES|TMPDIR|TZ|(?i:https?_proxy|all_proxy|no_proxy)"
)
SHOWN = 50  # names of variables
# of a login, a shell, a terminal, a desktop, a service manager or a venv
SESSION = re.compile(
    r"(?:BASH|CONDA|DBUS|DEBIAN|GPG|JOURNAL|KONSOLE|LC|LESS|LS|MAIL|MANAGER|MOTD|NVM|SSH|STY|SUDO|SYSTEMD|TERM|TMUX|"
    r"VIRTUAL_ENV|VSCODE|VTE|XDG)(?:_.*|%%)?"
    r"|_.*|COLORTERM|DISPLAY|EDITOR|HISTCONTROL|HISTFILE|HISTSIZE|HOME|HOSTNAME|INVOCATION_ID|LANG|LANGUAGE|LESSOPEN|"
    r"LESSCLOSE|LISTEN_.*|LOGNAME|MEMORY_PRESSURE_.*|NOTIFY_SOCKET|OLDPWD|PAGER|PATH|PS1|PWD|SHELL|SHLVL|USER|WINDOW|"
    r"SUPERVISOR_.*"
)
# What the venv, its interpreter or the deployment itself decides
NOT_CARRIED = {
    "PYTHONPATH": "a release has its own packages",
    "PYTHONHOME": "a release has its own packages",
    "PYTHONSAFEPATH": "",
    "PYTHONUNBUFFERED": "",
    "PYTHONDONTWRITEBYTECODE": "",
    "TMPDIR": "the service has a /tmp of its own",
    "SGLANG_LAUNCH_ID": "it carries the launch id",
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "",
    "NVIDIA_DRIVER_CAPABILITIES": "",
}
PATH_OPTION = re.compile(
    r"(?:^|_)(?:paths?|file|certfile|keyfile|certs|template|folder|dir|config|location|token_map|checksum)$"
)
# the end of a name whose value is a secret, beside what has such a word anywhere (processes.NAME)
SECRET_END = re.compile(r"(?i)(?:_pass|_pw|headers)$")


@dataclass
class Written:
    """An entry, and what goes with it."""

    entry: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict)  # as the entry names them -> value, never to be shown
    notes: list[str] = field(default_factory=list)


def suggested_name(model: str, port: int, taken: Collection[str]) -> str:
    """Return a name for an instance: that of its model, with the port where it is taken."""
    hub = re.search(r"/models--[^/]+?--([^/]+)/snapshots/[^/]+/?$", model)
    base = hub[1] if hub else model.rstrip("/").rpartition("/")[2]
    plain = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:34].strip("-") or "sglang"
    return plain if plain not in taken else f"{plain}-{port}"


def written(
    found: FoundProcess, line: CommandLine, schema: Schema, gpus: list[int] | None, taken: Collection[str] = ()
) -> Written:
    """Return what to write for a server. `gpus`: what it uses, None where it sees all; `taken`: names of others."""
    notes = [f"its command line: {note}" for note in (*line.notes, *line.problems)]
    args = dict(line.args)
    model, port = str(line.owned.get("model_path", "")), _port(line, schema)
    secrets = {name: value for name, value in line.secrets.items() if not secret_problems({name: value}, schema)}
    variables = dict(relevant(found.environment))
    mask = Masker(
        [
            *line.secrets.items(),
            *((name, value) for name, value in variables.items() if is_secret_variable(name, value)),
        ]
    )
    for name in sorted(args):
        if _may_be_secret(name, args[name], mask):
            value = args.pop(name)
            text = value if isinstance(value, str) else json.dumps(value)
            if secret_problems({name: text}, schema):
                notes.append(f"'{name}' may hold a secret, and no secret can have its form: write it yourself")
            else:
                secrets[name] = text
        else:
            args[name] = _absolute(name, args[name], found, notes)
    for name in argument_problems(args, schema):  # its text may hold what nobody may read
        notes.append(f"'{name}' can not be written as it was: see its command line")
        del args[name]
    if "weight_version" in line.owned:
        notes.append("'weight_version' is left out: it carries the launch id")
    was, model = model, _absolute("model_path", model, found, notes)
    named = line.args.keys() | line.secrets.keys() | line.owned.keys()
    if model != was and "served_model_name" not in named and mask(was) == was:
        args["served_model_name"] = was  # clients know it by that
    env = {}
    for name, value in variables.items():
        told = NOT_CARRIED.get(name)
        if told is not None or variable_problem(name, value):
            notes += [f"the variable {name} is left out: {told}"] if told else []
        elif not is_secret_variable(name, value) and mask(value) == value:
            env[name] = value
        elif name.isupper() and value:
            secrets[name] = value
        else:
            notes.append(
                f"the variable {name} holds a secret, for which a name in capitals is wanted: write it yourself"
            )
    unknown = [
        name
        for name in sorted(found.environment)
        if not RELEVANT.fullmatch(name) and not SESSION.fullmatch(name) and found.environment[name]
    ]
    if unknown:
        notes.append(f"these variables are left out, write those that it needs: {', '.join(unknown[:SHOWN])}")
    visible = found.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and gpus is None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    if mask(model) != model:
        notes.append("its model holds a secret, which is masked here: write it yourself")
        model = mask(model)
    name = suggested_name(model, port, taken)
    vault = {secret: re.sub("[^a-z0-9]", "_", f"vault_{name}_{secret}".lower()) for secret in sorted(secrets)}
    host = line.owned.get("host")
    entry: dict[str, Any] = {
        "name": name,
        "model": model,
        **({"host": host} if host else {}),
        "port": port,
        **({"gpus": gpus} if gpus else {}),
        **({"args": args} if args else {}),
        **({"env": env} if env else {}),
        **({"secrets": {secret: f"{{{{ {vault[secret]} }}}}" for secret in vault}} if vault else {}),
    }
    return Written(entry, secrets, notes)


def relevant(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that a server reads, by name."""
    return ((name, environment[name]) for name in sorted(environment) if RELEVANT.fullmatch(name))


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server reads, without the values of secrets."""
    shown = dict(relevant(environment))
    mask = Masker((name, value) for name, value in shown.items() if is_secret_variable(name, value))
    return {name: "***" if is_secret_variable(name, value) else mask(value) for name, value in shown.items()}


def is_secret_variable(name: str, value: str) -> bool:
    """Tell whether nobody may read a variable of the environment."""
    if is_secret_name(name) or Masker()(value) != value:
        return True
    plain = re.sub("(?i)tokenizers?", "", name)
    counts = re.search("(?i)_tokens(?:_|$)", name) is not None and value.isdigit()
    if counts or value in (*PLAIN, "0", "1"):
        return False
    return re.fullmatch(processes.NAME, plain, re.IGNORECASE) is not None or SECRET_END.search(plain) is not None


def _may_be_secret(name: str, value: Any, mask: Masker) -> bool:
    text = value if isinstance(value, str) else json.dumps(value)
    # values, not names, of JSON that may hold a password
    told = name in MAYBE_SECRET and '"' in re.sub(r'"[^"]*"\s*:', "", json.dumps(value))
    return told or any(mask(one) != one for one in (text, f"{name}: {text}"))


def _port(line: CommandLine, schema: Schema) -> int:
    return int(line.owned.get("port") or (schema.get("--port") or {}).get("default") or 30000)


def _absolute(name: str, value: Any, found: FoundProcess, notes: list[str]) -> Any:
    """Return a path that is there, seen from the server's working directory, as it is from anywhere."""
    if isinstance(value, list):
        return [_absolute(name, item, found, notes) for item in value]
    if name == "lora_paths" and isinstance(value, dict) and "lora_path" in value:
        return {**value, "lora_path": _absolute("lora_path", value["lora_path"], found, notes)}
    if not isinstance(value, str) or not PATH_OPTION.search(name) or not value or found.container:
        return value
    label, equals, path = value.partition("=") if name == "lora_paths" else ("", "", value)
    if name == "lora_paths" and not equals:
        label, equals, path = value, "=", value  # clients know an adapter without a name by its path
    absolute = found.path(path)
    if path.startswith(("/", "{")) or "://" in path or not _exists(absolute):
        return value
    notes.append(f"'{name}' is {path!r} seen from {found.folder}: it is written as {absolute}")
    return f"{label}{equals}{absolute}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def plain_secrets(found: FoundProcess, schema: Schema | None) -> list[tuple[str, str]]:
    """Return name and value of what is a secret by its name, also where the options are not known."""
    words = [(flag.strip("-"), value) for flag, value in _secret_words(found.argv, schema).values()]
    variables = [(name, value) for name, value in relevant(found.environment) if is_secret_variable(name, value)]
    return [*words, *variables]


def shown_words(found: FoundProcess, mask: Masker, schema: Schema | None) -> list[str]:
    """Return the command line without the values of secrets."""
    hidden = _secret_words(found.argv, schema)
    shown = [mask(word) for word in found.argv]
    for position in hidden:
        flag, equals, _value = found.argv[position].partition("=")
        shown[position] = f"{flag}=***" if equals and flag == hidden[position][0] else "***"
    return shown


def _secret_words(argv: Sequence[str], schema: Schema | None) -> dict[int, tuple[str, str]]:
    """Return position -> option and value of each word that is or has the value of a secret."""
    found = {}
    for position, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if position in found or not _is_secret_flag(flag, schema):
            continue
        if equals:
            found[position] = (flag, value)
        elif position + 1 < len(argv):
            found[position + 1] = (flag, argv[position + 1])
    return found


def _is_secret_flag(flag: str, schema: Schema | None) -> bool:
    """Tell whether what follows a word may be a secret; SGLang takes the beginning of a name for the whole."""
    if not flag.startswith("--") or len(flag) < 3:
        return False
    hidden = [
        f"--{name.replace('_', '-')}" for name in ("admin_api_key", "api_key", "ssl_keyfile_password", *MAYBE_SECRET)
    ]
    if flag in hidden or is_secret_name(flag[2:]):
        return True
    known = schema is not None and canonical(flag[2:], schema) is not None
    return not known and flag not in ("--model", "--ssl-keyfile") and any(one.startswith(flag) for one in hidden)
