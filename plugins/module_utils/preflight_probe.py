# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run in a release's own interpreter as `python - WORDS...`, with the words and the environment of a server: write what
SGLang makes of them to standard output, as JSON (Report).

Nothing is loaded on a GPU and no weight is read. A process of its own is needed: resolving writes into the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import functools
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

# SGLang reads each of its variables by its whole name, which stands in its text or in its compiled parts.
VARIABLE = re.compile(rb"\b(?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9]\b")
NOISE = re.compile(r"Ignore import error when loading|\[sgl_kernel\]|^Only CUDA, .* support")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Report(TypedDict):
    """What SGLang makes of a command line; after an error the rest is what was known before it."""

    version: str
    stage: str  # import, parse, resolve, check or model: the last that was begun
    error: str | None  # SGLang's own words, with the kind of the exception
    resolved: dict[str, Any]  # field of ServerArgs -> value
    steps: list[tuple[str, dict[str, Any]]]  # what each step of SGLang's resolution set, in order
    messages: list[str]  # SGLang's warnings
    model: dict[str, Any]  # what SGLang reads from the model's configuration
    problems: dict[str, str]  # architecture, tokenizer, chat_template, cuda -> what SGLang says when it needs it
    unread: dict[str, str]  # variables that this SGLang does not read -> the nearest that it does, or ''


def examine(words: list[str], report: Report) -> None:
    """Fill the report; raises what SGLang raises, up to SystemExit."""
    import sglang
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    report["version"] = sglang.__version__
    try:
        from sglang.srt.plugins import load_plugins
    except ImportError:  # up to 0.5.10
        pass
    else:
        load_plugins()
    report["unread"] = unread_variables(Path(sglang.__file__).parent)
    report["stage"] = "parse"
    trace(ServerArgs, report["steps"])
    args = prepare_server_args(words)
    if hasattr(args, "resolve_once"):  # since 0.5.19
        report["stage"] = "resolve"
        args.resolve_once()
        report["resolved"] = args.resolved_dict()
    else:
        report["resolved"] = dataclasses.asdict(args)
    report["steps"] += [(name, dict(fields)) for name, fields in getattr(args, "_resolved_overrides", None) or ()]
    report["stage"] = "check"
    args.check_server_args()
    report["stage"] = "model"
    try_model(args, report)


def try_model(args: Any, report: Report) -> None:
    """Take the steps of a start that SGLang takes after its checks and that need no device."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.utils import get_model_architecture

    resolved = report["resolved"]
    gpus = None
    if resolved["device"] == "cuda":
        with noted(report, "cuda"):
            import torch

            if not torch.cuda.is_available():
                raise RuntimeError("torch finds no usable CUDA device")
            gpus = torch.cuda.device_count()
    config = ModelConfig.from_server_args(args)
    text = config.hf_text_config
    experts = [getattr(text, name, None) for name in ("num_experts", "n_routed_experts", "num_local_experts")]
    report["model"] = {
        "attention_heads": getattr(config, "num_attention_heads", None),
        "experts": next((number for number in experts if isinstance(number, int) and number), None),
        "gpus": gpus,  # that this process can see
        "key_value_heads": getattr(config, "num_key_value_heads", None),
        "multimodal": bool(getattr(config, "is_multimodal", False)),
    }
    with noted(report, "architecture"):
        get_model_architecture(config)
    if not resolved["skip_tokenizer_init"]:
        with noted(report, "tokenizer"):
            load_tokenizer(resolved)
    template = resolved["chat_template"]
    if template:
        from sglang.srt.parser.conversation import chat_template_exists

        if not chat_template_exists(template) and not Path(template).is_file():
            report["problems"]["chat_template"] = "it is neither a file nor the name of one of SGLang's templates"


def load_tokenizer(resolved: dict[str, Any]) -> None:
    """Load the tokenizer as the server does."""
    try:
        from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer
    except ImportError:  # up to 0.5.10
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    get_tokenizer(
        resolved["tokenizer_path"],
        tokenizer_mode=resolved["tokenizer_mode"],
        trust_remote_code=resolved["trust_remote_code"],
        revision=resolved["revision"],
    )


@contextlib.contextmanager
def noted(report: Report, subject: str) -> Iterator[None]:
    """Leave an exception of the block in the report, as a problem of `subject`."""
    try:
        yield
    except BaseException as error:
        report["problems"][subject] = told(error)
        if not isinstance(error, Exception):
            raise


def trace(args: Any, steps: list[tuple[str, dict[str, Any]]]) -> None:
    """Note what each step changes, for releases whose steps work on the record itself (up to 0.5.18)."""
    known: dict[str, str] = {}
    running: list[str] = []

    def note(record: Any) -> None:
        now = {name: value for name, value in vars(record).items() if not name.startswith("_")}
        texts = {name: repr(value) for name, value in now.items()}
        changed = {name: now[name] for name, text in texts.items() if known and known.get(name) != text}
        if changed:
            steps.append((running[-1] if running else "__post_init__", changed))
        known.update(texts)

    def noting(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def noted_step(self: Any, *given: Any, **named: Any) -> Any:
            note(self)
            running.append(name)
            try:
                return step(self, *given, **named)
            finally:
                note(self)
                running.pop()

        return noted_step

    for name, step in list(vars(args).items()):
        if name.startswith("_handle_") and callable(step):
            setattr(args, name, noting(name, step))


def unread_variables(package: Path) -> dict[str, str]:
    """Return the variables of this process that look like SGLang's but stand nowhere in it."""
    asked = {name for name in os.environ if VARIABLE.fullmatch(name.encode())}
    read = {word.decode() for text in texts_of(package) for word in VARIABLE.findall(text)} if asked else set()
    # every release takes SGL_X for SGLANG_X (srt/environ.py)
    unread = {name for name in asked if not {name, name.replace("SGL_", "SGLANG_", 1)} & read}
    return {name: next(iter(difflib.get_close_matches(name, read, n=1, cutoff=0.9)), "") for name in unread}


def texts_of(package: Path) -> Iterator[bytes]:
    """Yield what a package consists of; not its tests, nor its part that makes pictures, which is another server."""
    for path in package.rglob("*"):
        inside = path.relative_to(package).parts
        if path.suffix in (".py", ".so") and inside[0] not in ("multimodal_gen", "test"):
            yield path.read_bytes()


def told(error: BaseException) -> str:
    """Return the words of an exception on one line, with its kind where they do not say enough."""
    text = " ".join(COLOUR.sub("", str(error)).split())
    return text if isinstance(error, argparse.ArgumentError) else f"{type(error).__name__}: {text}"


def listen(messages: list[str]) -> None:
    """Collect what SGLang warns of; its own set-up of logging throws away every handler."""
    make = logging.getLogRecordFactory()

    def record(*given: Any, **named: Any) -> logging.LogRecord:
        made = make(*given, **named)
        if made.levelno >= logging.WARNING and made.name.startswith("sglang"):
            add(made.getMessage())
        return made

    def show(message: Warning | str, *_given: Any, **_named: Any) -> None:
        if "CUDA" in str(message):  # torch says so that it can not use a driver
            add(str(message))

    def add(text: str) -> None:
        text = " ".join(COLOUR.sub("", text).split())
        if text not in messages and not NOISE.search(text):
            messages.append(text)

    logging.setLogRecordFactory(record)
    warnings.showwarning = show


def refuse(_parser: argparse.ArgumentParser, message: str) -> None:
    """Stand in for the exit of argparse, which prints its words among others."""
    raise argparse.ArgumentError(None, message)


def report_of(words: list[str]) -> Report:
    """Return what SGLang makes of a command line; once in a process."""
    report = Report(
        version="", stage="import", error=None, resolved={}, steps=[], messages=[], model={}, problems={}, unread={}
    )
    listen(report["messages"])
    argparse.ArgumentParser.error = refuse  # type: ignore[assignment,method-assign]
    try:
        examine(words, report)
    except BaseException as error:
        report["error"] = told(error)
    return report


def main() -> None:
    """Print the report and nothing else to standard output."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    json.dump(report_of(sys.argv[1:]), answer, default=str)
    answer.flush()
    os._exit(0)  # packages leave threads behind that keep the interpreter from ending


if __name__ == "__main__":
    main()
