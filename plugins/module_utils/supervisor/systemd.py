# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd as the supervisor of an instance: the unit's text, and what systemd says of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused, last_lines, run, write_whole
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor import interface
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.interface import (
    BARS,
    LAUNCH_LINE,
    NO_RESTART,
    RESTART_AFTER,
    START_FAILURES,
    STARTS,
    STARTS_WITHIN,
    STOPS,
    Identity,
    LogLine,
    by_option,
    launch_of,
    named_in,
)

NAME = "systemd"
HIDDEN = ("/tmp", "/var/tmp")  # by PrivateTmp=
running_launch = interface.running_launch
UNIT_FOLDER = Path("/etc/systemd/system")
LAUNCH_FIELD = "GPUOPS_LAUNCH"  # of each journal entry of a launch
PROPERTIES = (
    "ActiveState", "SubState", "Result", "MainPID", "InvocationID", "ControlGroup", "UnitFileState", "NRestarts",
    "ExecMainStatus", "ExecMainCode", "ExecMainStartTimestampMonotonic", "NeedDaemonReload", "DropInPaths",
)  # fmt: skip


def is_here() -> bool:
    """Tell whether PID 1 of this host is systemd."""
    return Path("/run/systemd/system").is_dir()


def unit_name(instance: str) -> str:
    """Return the unit of an instance."""
    return f"sglang-{instance}.service"


def unit_path(instance: str) -> Path:
    """Return the unit file of an instance."""
    return UNIT_FOLDER / unit_name(instance)


def unit_text(
    instance: str,
    launch: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    secret_env: str | None,
    user: str,
    home: str,
    watch: Sequence[str],
    drain: int,
) -> str:
    """Return the unit file of one launch; `home` is the only place that the server may write to, besides /tmp.

    `secret_env` is the path of a file with more variables; `watch` is the command that tells systemd of a hung server;
    requests have `drain` s to finish when the server is stopped.

    Restart: an argument error (exit 2), a failed resolution (exit 1) or a taken port (exit 3) is not cured by a
    restart. A clean stop of SGLang up to 0.5.18 ends in a SIGKILL of itself. The limit holds for a server that takes
    minutes to load before it fails again. KillMode=mixed: SGLang drains only when its main process alone gets the
    SIGTERM.
    """
    words = " \\\n    ".join(" ".join(map(quote_word, group)) for group in by_option(argv))
    environment = {**BARS, **environment}
    variables = "".join(f"Environment={quote_variable(name, environment[name])}\n" for name in sorted(environment))
    variables += f"EnvironmentFile={secret_env}\n" if secret_env else ""
    return f"""\
# Written by gpuops.sglang; a change by hand is undone by the next deploy.
{LAUNCH_LINE}{launch}
[Unit]
Description=SGLang instance {instance}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec={STARTS_WITHIN}h
StartLimitBurst={STARTS}

[Service]
Type=exec
TimeoutStartSec=900
User={user}
WorkingDirectory={home}
LogExtraFields={LAUNCH_FIELD}={launch}
LogRateLimitIntervalSec=0
Environment=SGLANG_LAUNCH_ID={launch}
{variables}ExecStart={words}
ExecStartPost=-{" ".join(map(quote_word, watch))}
NotifyAccess=all
Restart=on-failure
RestartPreventExitStatus={" ".join(map(str, NO_RESTART))}
RestartSec={RESTART_AFTER}
KillMode=mixed
TimeoutStopSec={drain + STOPS}
LimitNOFILE=1048576
LimitMEMLOCK=infinity
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={home}

[Install]
WantedBy=multi-user.target
"""


def quote_word(word: str) -> str:
    """Return a word of ExecStart= that systemd turns back into `word` (systemd.syntax(7), systemd.service(5))."""
    escaped = _escape(word).replace("$", "$$")
    return escaped if word and escaped == word and not set(word) & set(" '\";") else f'"{escaped}"'


def quote_variable(name: str, value: str) -> str:
    """Return an assignment of Environment= that systemd turns back into exactly `value`; `$` is not special there."""
    return f'"{_escape(f"{name}={value}")}"'


def programs() -> Mapping[str, str]:
    """systemd needs no program in the folder of a launch."""
    return {}


def read_unit(instance: str) -> str:
    """Return the installed unit file of an instance; empty when there is none."""
    try:
        return unit_path(instance).read_text(encoding="utf-8")
    except OSError:
        return ""


def installed_instances() -> list[str]:
    """Return the names of all instances that have a unit of ours on this host."""
    units = sorted(UNIT_FOLDER.glob("sglang-*.service"))
    names = [unit.name[len("sglang-") : -len(".service")] for unit in units]
    return [name for name in names if launch_of(read_unit(name))]


def instance_in(cgroups: Sequence[str]) -> str | None:
    """Return the instance of ours whose service has one of these control groups, or None."""
    return next((name for name in named_in(cgroups) if launch_of(read_unit(name))), None)


def install(instance: str, text: str) -> None:
    """Put the unit in place and enable it; what runs goes on."""
    write_whole(unit_path(instance), text)
    _systemctl("daemon-reload")
    enable(instance)


def remove(instance: str) -> None:
    """Take the unit of a stopped instance away."""
    disable(instance)
    unit_path(instance).unlink()
    _systemctl("daemon-reload")
    run(["systemctl", "reset-failed", unit_name(instance)])


def enable(instance: str) -> None:
    """Start the instance at boot."""
    _systemctl("enable", "--quiet", unit_name(instance))


def disable(instance: str) -> None:
    """Do not start the instance at boot."""
    _systemctl("disable", "--quiet", unit_name(instance))


def stop(instance: str) -> None:
    """Stop the service and return when it has ended: SIGTERM to the main process, and in the end SIGKILL to all."""
    _systemctl("stop", unit_name(instance))
    # SGLang up to 0.5.18 ends itself by SIGKILL, also when it was asked to stop
    run(["systemctl", "reset-failed", unit_name(instance)])


def start(instance: str) -> None:
    """Start the service; raises Refused with what systemd says when its process can not be run.

    A process that ran and ended is no matter of systemd's.
    """
    # start limits of an earlier crash loop do not hold a new launch back
    run(["systemctl", "reset-failed", unit_name(instance)])
    if run(["systemctl", "start", unit_name(instance)]).returncode != 0:
        state = identity(instance)
        # without a process the exit status is that of an earlier one
        status = "" if state.result in ("resources", "protocol") else state.exit_status
        number = status.rpartition(" ")[2]
        if number and number not in START_FAILURES:
            return
        why = START_FAILURES.get(number, "systemd could not start it")
        said = [line.text for line in log_of(launch_of(read_unit(instance)) or "", 20) if line.invocation][-3:]
        how = status or state.result
        evidence = f". {' | '.join(said)}" if said else ""
        raise Refused(f"{unit_name(instance)} does not start ({how}): {why}{evidence}")


def identity(instance: str) -> Identity:
    """Ask systemd for the state of an instance's service."""
    shown = _systemctl("show", unit_name(instance), f"--property={','.join(PROPERTIES)}")
    values = dict(line.partition("=")[::2] for line in shown.splitlines())
    ended = {"1": "exited", "2": "killed", "3": "dumped"}.get(values.get("ExecMainCode", "0"))
    return Identity(
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        main_pid=int(values.get("MainPID") or 0),
        invocation=values.get("InvocationID", ""),
        cgroup=values.get("ControlGroup", ""),
        enabled=values.get("UnitFileState") == "enabled",
        restarts=int(values.get("NRestarts") or 0),
        exit_status=f"{ended} {values['ExecMainStatus']}" if ended else "",
        shown=values,
    )


def drop_ins(identity: Identity) -> list[str]:
    """Return the files that change this service beside its unit; an image may have some for all services."""
    paths = identity.shown.get("DropInPaths", "").split()
    return [path for path in paths if Path(path).parent.name != "service.d" or path.startswith("/etc/")]


def into_scope(name: str, pid: int) -> None:
    """Take a process out of the control group of who called it, which may be ended as a whole; as far as it goes."""
    with contextlib.suppress(OSError):
        run([
            "busctl", "call", "--quiet", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", f"{name}.scope", "fail",
            "1", "PIDs", "au", "1", str(pid), "0",
        ])  # fmt: skip


def began(identity: Identity) -> float:
    """Return when the main process was started, in s of the monotonic clock."""
    return int(identity.shown.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def computed(identity: Identity) -> float:
    """Return the s of CPU that the service's processes have had so far; 0 where the kernel does not tell."""
    try:
        told = Path(f"/sys/fs/cgroup{identity.cgroup}/cpu.stat").read_text()
        return int(dict(line.split() for line in told.splitlines())["usage_usec"]) / 1e6
    except (OSError, ValueError, KeyError):
        return 0.0


def log_of(launch: str, count: int, invocation: str = "") -> list[LogLine]:
    """Return the last `count` entries that the journal has of a launch, or of one run of its service, and no others."""
    if not launch:
        return []
    matches = [f"{LAUNCH_FIELD}={launch}", *([f"_SYSTEMD_INVOCATION_ID={invocation}"] if invocation else [])]
    fields = "MESSAGE,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,_PID"
    done = run([
        "journalctl", "--output=json", f"--output-fields={fields}", "--all", "--no-pager", f"--lines={count}",
        *matches,
    ])  # fmt: skip
    return [line for line in map(_log_line, done.stdout.splitlines()) if line.text.strip()]


def log_place(launch: str) -> str:
    """Return the command that shows the whole log of a launch."""
    return f"journalctl {LAUNCH_FIELD}={launch}"


def log_command(instance: str) -> str:
    """Return the command by which an operator sees the log of an instance."""
    return f"journalctl -u {unit_name(instance)}"


def end_command(instance: str) -> str:
    """Return the command by which an operator ends an instance for good."""
    return f"systemctl disable --now {unit_name(instance)}"


def described(instance: str) -> Sequence[str]:
    """Return the command that shows all that systemd knows of an instance."""
    return ["systemctl", "show", unit_name(instance)]


def _log_line(entry: str) -> LogLine:
    values = json.loads(entry)
    text = values.get("MESSAGE") or ""
    if isinstance(text, list):  # bytes that are no plain text
        text = bytes(text).decode(errors="replace")
    own = values.get("_PID") == "1"
    invocation = "" if own else values.get("_SYSTEMD_INVOCATION_ID") or ""
    return LogLine(int(values["__MONOTONIC_TIMESTAMP"]) / 1e6, text, invocation)


def _escape(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "%": "%%", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(
        escapes.get(letter) or (f"\\x{ord(letter):02x}" if ord(letter) < 32 or ord(letter) == 127 else letter)
        for letter in text
    )


def _systemctl(*words: str) -> str:
    done = run(["systemctl", *words])
    if done.returncode != 0:
        raise Refused(f"systemctl {' '.join(words)} failed: {' | '.join(last_lines(done.stderr, 3))}")
    return done.stdout
