# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance would become on this host, found out by the installed SGLang itself while the old launch serves.

    STATE/INSTANCE/preflight.json   the last report, with a digest of all that it depends on; readable by root only

SGLang's part runs as the service user: a model may bring code of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.sglang.plugins.module_utils import gpu, launch, model_files, preflight_probe
from ansible_collections.gpuops.sglang.plugins.module_utils.arguments import (
    SECRET,
    TYPES,
    argument_problems,
    secret_problems,
    secrets_text,
)
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, write_whole, writing_below
from ansible_collections.gpuops.sglang.plugins.module_utils.options import Schema, canonical
from ansible_collections.gpuops.sglang.plugins.module_utils.preflight_judge import Judged, Problem, judge
from ansible_collections.gpuops.sglang.plugins.module_utils.secret_forms import forms_of

TIMEOUT = 900  # s: a cold start of the interpreter took 125 s
MASK = "(secret)"
# Fields that may hold a secret wherever it is from
HIDDEN = (*SECRET, "watermark_config", "watermark_key", "watermark_key_b")
LOADED_WHOLE = ("auto", "safetensors", "pt")  # values of load_format that read all files of a directory


@dataclass(frozen=True)
class Preflight:
    """The answer for one instance: it would serve as asked if there are no problems."""

    instance: str
    version: str
    cached: bool  # SGLang was not asked again, since nothing that it depends on has changed
    options: tuple[Judged, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    resolved: Mapping[str, Any]
    steps: tuple[Any, ...] = ()  # name and fields of each step of SGLang's resolution

    def for_record(self) -> dict[str, Any]:
        """Return what the record of a launch keeps: what is to be effective where that is not what was asked."""
        accepted = [row for row in self.options if row.verdict == "accepted"]
        return {
            "accepted": {row.option: row.resolved for row in accepted},
            "resolved": dict(self.resolved),
            "warnings": list(self.warnings),
        }


def preflight(
    instance: launch.Instance, host: launch.Host, schema: Schema, accepted: Mapping[str, str], keep: bool
) -> Preflight:
    """Ask SGLang, or read its last answer, and judge it; `keep` writes the answer down. Raises Refused."""
    place = host.state / instance.name / "preflight.json"
    key = _key(instance, host, schema)
    report = _read(place, key)
    cached = report is not None
    if report is None:
        report = _ask(instance, host, schema)
        # what was refused may be put right by what the digest does not see, e.g. a driver, a permission, the network
        if keep and not report["error"] and not report["problems"]:
            with writing_below(host.state):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, json.dumps({"key": key, "report": report}), 0o600)
    rows, problems = judge(instance.args, schema, report, accepted, _found(instance, report))
    if "cuda" in report["problems"]:
        problems += _gpu_faults(host)
    where = f"instance '{instance.name}'"
    return Preflight(
        instance=instance.name,
        version=report["version"],
        cached=cached,
        options=tuple(rows),
        problems=tuple(f"{where}: {problem}" for problem in problems),
        warnings=tuple(report["messages"]),
        resolved=report["resolved"],
        steps=tuple(report["steps"]),
    )


def examined(
    instance: launch.Instance, host: launch.Host, schema: Schema, accepted: Mapping[str, str], keep: bool,
    leaving: Collection[int] = (),
) -> dict[str, Any]:  # fmt: skip
    """Do all that can be done without stopping anything, and return it as sglang_preflight does.

    The processes `leaving` would be ended before the start.
    """
    wrong = argument_problems(instance.args, schema)
    refusals = []
    answer = None
    try:
        launch.check(instance, host, schema, leaving)
    except Refused as refused:
        refusals.append(str(refused))
    # a port that is held, say, keeps no one from asking
    if not wrong and not secret_problems(instance.secret_options, schema):
        try:
            answer = preflight(instance, host, schema, accepted, keep)
        except Refused as refused:
            refusals.append(str(refused))
    if answer is None:
        # what is written under a name that is no option may be anything
        plain = {name for name in wrong if "-" not in name and name not in SECRET and canonical(name, schema)}
        rows = [
            Judged(name, instance.args[name] if name in plain else MASK, None, "refused", why=why)
            for name, why in wrong.items()
        ]
        answer = Preflight(instance.name, "", False, tuple(rows), (), (), {})
    return {
        "name": answer.instance,
        "sglang_version": answer.version,
        "cached": answer.cached,
        "options": [asdict(row) for row in answer.options],
        "problems": [*refusals, *answer.problems],
        "warnings": list(answer.warnings),
        "resolved": dict(answer.resolved),
        "steps": [{"step": step, "set": fields} for step, fields in answer.steps],
        "plan": None,
        "plan_warnings": [],
    }


def _ask(instance: launch.Instance, host: launch.Host, schema: Schema) -> preflight_probe.Report:
    """Run the probe in the release's interpreter and return its report, without a secret in it."""
    user = _user(host.user)
    home = host.home(instance.name)
    with tempfile.TemporaryDirectory(prefix="gpuops-preflight-") as name:
        folder = Path(name)
        config = folder / "secrets.yaml"
        stand_ins = _stand_ins(instance.secret_options, schema)
        if stand_ins:
            write_whole(config, secrets_text(stand_ins), 0o600, (user.pw_uid, user.pw_gid))
        words = launch.words(instance, schema, config if stand_ins else None, "preflight")
        environment = {**launch.environment(instance, host), **instance.secret_env}
        if not home.is_dir():
            home = folder
            environment["HOME"] = str(folder)
        os.chown(folder, user.pw_uid, user.pw_gid)  # from here on root writes nothing into it
        python = str(host.release / "venv/bin/python")
        try:
            process = subprocess.Popen(
                [python, "-", *words],
                cwd=home,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"can not run {python} as the user '{user.pw_name}': {error.strerror}") from error
        try:
            stdout, stderr = process.communicate(inspect.getsource(preflight_probe), TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Refused(f"instance '{instance.name}': SGLang took over {TIMEOUT} s to read the arguments") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            process.wait()
    try:
        report: preflight_probe.Report = json.loads(stdout)
    except ValueError:
        said = masked(" | ".join(last_lines(stderr, 5)), instance.secrets)
        raise Refused(
            f"instance '{instance.name}': SGLang's check of the arguments ended with exit status {process.returncode} "
            f"and no answer: {said}: install the release {host.release.name} again if it is damaged"
        ) from None
    hidden = {name: MASK for name in (*instance.secret_options, *HIDDEN) if report["resolved"].get(name)}
    clean: preflight_probe.Report = masked({**report, "steps": []}, instance.secrets)
    clean["steps"] = masked([step for step in report["steps"] if not hidden.keys() & step[1].keys()], instance.secrets)
    clean["resolved"].update(hidden)
    return clean


def masked(value: Any, secrets: Mapping[str, str]) -> Any:
    """Return `value` with every secret in its texts replaced, also the single values of one that is JSON."""
    parts = sorted({part for text in secrets.values() for part in forms_of(text)}, key=len, reverse=True)

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(item) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, str):
            for part in parts:
                value = value.replace(part, MASK)
        return value

    return clean(value)


def _stand_ins(secrets: Mapping[str, str], schema: Schema) -> dict[str, str]:
    """Return what stands for the secrets while SGLang is asked: the value itself only where SGLang reads into it."""
    kinds = {name: schema[canonical(name, schema) or name]["type"] for name in secrets}
    read = {name: kinds[name] in TYPES or value.lstrip()[:1] in ("[", "{", "/") for name, value in secrets.items()}
    return {name: value if read[name] else "stand-in" for name, value in secrets.items()}


def _gpu_faults(host: launch.Host) -> list[str]:
    """Return why SGLang can not use the GPU, so far as this host and its driver tell."""
    from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_facts import gpu_facts

    try:
        faults: list[str] = gpu_facts(_user(host.user).pw_name)["faults"]
    except Refused as refused:
        return [str(refused)]
    return faults


def _found(instance: launch.Instance, report: preflight_probe.Report) -> list[Problem]:
    """Return what is wrong with files that SGLang only reads when it loads the model."""
    try:
        return list(_file_problems(Path(instance.model), report["resolved"], report["model"]))
    except OSError:
        return []  # root is not let in, as on some network file systems; SGLang has read what it must


def _file_problems(model: Path, resolved: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[Problem]:
    if model.is_absolute() and model.is_dir():
        if resolved.get("load_format") in LOADED_WHOLE:
            for problem in model_files.weight_problems(model):
                why, _colon, instead = problem.rpartition(": ")
                yield Problem("model", why, instead)
        quantization = model_files.quantization_problem(model, resolved.get("quantization"))
        if quantization:
            yield Problem("quantization", quantization, "delete 'quantization', or take a quantized model")
        processor = model_files.processor_problem(model) if told.get("multimodal") else None
        if processor:
            yield Problem("model", processor, "finish the download")
    tokenizer = Path(resolved.get("tokenizer_path") or "")
    if tokenizer.is_absolute() and tokenizer.is_dir() and not resolved.get("skip_tokenizer_init"):
        missing = model_files.tokenizer_problem(tokenizer)
        if missing:
            yield Problem("tokenizer_path", missing, "finish the download, or set 'tokenizer_path'")
    draft = resolved.get("speculative_draft_model_path") or ""
    if draft.startswith("/") and not model_files.is_model(Path(draft)):
        why = f"'speculative_draft_model_path' is {draft}, which has no config.json"
        yield Problem("speculative_draft_model_path", why, "correct the path or mount it")
    for path in _adapters(resolved.get("lora_paths") or []):
        if path.startswith("/") and not Path(path, "adapter_config.json").is_file():
            why = f"'lora_paths' has {path}, which has no adapter_config.json"
            yield Problem("lora_paths", why, "correct the path or mount it")


def _adapters(written: Any) -> list[str]:
    """Return the paths of adapters: each is a path, NAME=PATH, or a record; or there is a mapping name -> path."""
    entries = list(written.values()) if isinstance(written, dict) else written
    paths = [entry.get("lora_path") if isinstance(entry, dict) else entry for entry in entries]
    return [str(path).partition("=")[2] or str(path) for path in paths]


def _key(instance: launch.Instance, host: launch.Host, schema: Schema) -> str:
    """Return a digest of all that SGLang's answer depends on."""
    words = launch.words(instance, schema, None, "preflight")
    inside = _stand_ins(instance.secret_options, schema)
    given = [word.rpartition("=")[2] for word in (*words, *instance.env.values())]
    paths = sorted({word for word in given if word.startswith("/")})
    depends = [
        inspect.getsource(preflight_probe),
        _stamps(host.release / "release.json"),
        words,
        sorted(inside.items()),
        sorted(launch.environment(instance, host).items()),
        sorted(instance.secret_env),
        [[path, *_stamps(Path(path))] for path in paths],
        gpu.inventory(),
        host.user,
    ]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def _stamps(path: Path) -> list[Sequence[Any]]:
    """Return name, size and time of a file, or of the files of a directory; one that is not there has none."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError:
        return []


def _read(place: Path, key: str) -> preflight_probe.Report | None:
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        report: preflight_probe.Report = content["report"]
        return report if content["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _user(name: str) -> pwd.struct_passwd:
    """Return the service user, or nobody where it is yet to be made."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")
