# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for AWX's API, which is in no package index: what the modules of awx.awx ask for, on loopback.

It keeps objects, their associations and surveys, and refuses what AWX 24.6.1 documents to refuse: fields that the
module's own documentation does not have, values of another type or choice, ids of nothing, names that are taken,
playbooks that the project does not have, surveys and answers against its rules. It runs no jobs, has no permissions but
the token, and knows nothing of what AWX derives or defaults; that a real AWX takes the same is not proved by it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "geheim-token-4711"
MODULES = {
    "organizations": "organization",
    "credential_types": "credential_type",
    "credentials": "credential",
    "execution_environments": "execution_environment",
    "projects": "project",
    "inventories": "inventory",
    "inventory_sources": "inventory_source",
    "labels": "label",
    "notification_templates": "notification_template",
    "job_templates": "job_template",
    "schedules": "schedule",
    "workflow_job_templates": "workflow_job_template",
    "workflow_job_template_nodes": "workflow_job_template_node",
}
APPROVALS = "workflow_approval_templates"
RUNNABLE = ("job_templates", "workflow_job_templates", "projects", "inventory_sources", APPROVALS)
POINTS_TO = {
    "credential": ("credentials",),
    "credential_type": ("credential_types",),
    "default_environment": ("execution_environments",),
    "execution_environment": ("execution_environments",),
    "inventory": ("inventories",),
    "organization": ("organizations",),
    "project": ("projects",),
    "source_project": ("projects",),
    "unified_job_template": RUNNABLE,
    "workflow_job_template": ("workflow_job_templates",),
}
NEEDED = {
    "credentials": ("name", "credential_type"),
    "inventories": ("name", "organization"),
    "inventory_sources": ("name", "inventory", "source"),
    "job_templates": ("name", "inventory", "project", "playbook"),
    "projects": ("name", "organization", "scm_url"),
    "schedules": ("name", "rrule", "unified_job_template"),
    "workflow_job_template_nodes": ("identifier", "workflow_job_template"),
}
KINDS = {
    "text": str, "textarea": str, "password": str, "multiplechoice": str, "multiselect": (str, list), "integer": int,
    "float": float,
}  # fmt: skip
TYPES = {"str": str, "bool": bool, "int": int, "dict": dict, "list": list, "float": (int, float), "raw": object}
AS_TEXT = ("extra_vars", "variables", "source_vars")  # JSON in a text
Object = dict[str, Any]


class Refused(Exception):
    """Carries what AWX answers with status 400."""


class Awx:
    """All objects: kind -> id -> fields. `options` has the documented options of each module of awx.awx."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]], playbooks: set[str]) -> None:
        self.options, self.playbooks = options, playbooks
        self.objects: dict[str, dict[int, Object]] = {kind: {} for kind in (*MODULES, APPROVALS)}
        self.surveys: dict[str, Object] = {}
        self.linked: dict[str, list[int]] = {}
        self.writes: list[str] = []
        self.last = 0
        for name, secret in (("Machine", "ssh_key_data"), ("Vault", "vault_password")):
            fields = [{"id": secret, "secret": True}]
            self._keep("credential_types", {"name": name, "managed": True, "inputs": {"fields": fields}})

    def named(self, kind: str, name: str) -> Object:
        """Return the only object of that name."""
        (found,) = [one for one in self.objects[kind].values() if one["name"] == name]
        return found

    def launch(self, template: Object, answers: Mapping[str, Any]) -> Object:
        """Return the extra vars of a job that is started with these answers; raises Refused as AWX does."""
        spec = self.surveys.get(template["url"], {}).get("spec", [])
        problems = [text for question in spec for text in answer_problems(question, answers)]
        if problems:
            raise Refused({"variables_needed_to_start": problems})
        strange = sorted(answers.keys() - {question["variable"] for question in spec})
        if strange:
            raise Refused({"extra_vars": [f"Variables {', '.join(strange)} are not allowed on launch."]})
        # an empty default is passed as well, and one that the question itself would refuse is not
        defaults = {one["variable"]: one["default"] for one in spec if one.get("default") is not None}
        taken = {
            one["variable"]: defaults[one["variable"]]
            for one in spec
            if one["variable"] in defaults and not answer_problems(one, defaults)
        }
        return {**json.loads(template.get("extra_vars") or "{}"), **taken, **answers}

    def get(self, path: str, query: Mapping[str, str]) -> Object:
        """Answer GET."""
        kind, number, below = _parts(path)
        if kind == "project_updates":
            return {"id": number, "status": "successful"}
        if below == "survey_spec":
            return self.surveys.get(f"/api/v2/{kind}/{number}/", {})
        if below and kind != APPROVALS:
            return _page([self._shown(self._any(one)) for one in self.linked.get(path, [])])
        if number:
            return self._shown(self.objects[kind][number])
        kinds = RUNNABLE if kind == "unified_job_templates" else (kind,)
        found = [one for each in kinds for one in self.objects[each].values() if _matches(one, query)]
        return _page([self._shown(one) for one in found])

    def post(self, path: str, data: Object) -> tuple[int, Object]:
        """Answer POST."""
        kind, number, below = _parts(path)
        if below == "launch":
            return 201, {"extra_vars": self.launch(self.objects[kind][number], data.get("extra_vars", {}))}
        self.writes.append(f"POST {path}")
        if below == "survey_spec":
            survey_problems(data)
            self.surveys[f"/api/v2/{kind}/{number}/"] = data
            return 200, {}
        if below == "create_approval_template":
            made = self._keep(APPROVALS, {key: data.get(key) for key in ("name", "description", "timeout")})
            self.objects[kind][number]["unified_job_template"] = made["id"]
            return 201, self._shown(made)
        if below:
            self._any(data["id"])
            links = self.linked.setdefault(path, [])
            links.remove(data["id"]) if data.get("disassociate") else links.append(data["id"])
            return 204, {}
        self._judge(kind, data, new=True)
        return 201, self._shown(self._keep(kind, data))

    def patch(self, path: str, data: Object) -> Object:
        """Answer PATCH."""
        kind, number, _below = _parts(path)
        self.writes.append(f"PATCH {path}")
        there = self.objects[kind][number]
        if kind != APPROVALS:
            self._judge(kind, {**there, **data}, data)
        there.update(data)
        return self._shown(there)

    def _keep(self, kind: str, data: Object) -> Object:
        self.last += 1
        kept = {"id": self.last, "type": kind.rstrip("s"), "url": f"/api/v2/{kind}/{self.last}/", **data}
        self.objects[kind][self.last] = kept
        return kept

    def _any(self, number: int) -> Object:
        for objects in self.objects.values():
            if number in objects:
                return objects[number]
        raise Refused({"id": [f"{number} is nothing"]})

    def _shown(self, one: Object) -> Object:
        related = {"survey_spec": f"{one['url']}survey_spec/"}
        if one.get("unified_job_template") in self.objects[APPROVALS]:
            related["unified_job_template"] = self.objects[APPROVALS][one["unified_job_template"]]["url"]
        summary = {"current_update": {"id": 1}} if one["type"] == "project" else {}
        shown = {**one, "related": related, "summary_fields": summary, "scm_revision": ""}
        if one["type"] == "credential":
            fields = self.objects["credential_types"][one["credential_type"]]["inputs"]["fields"]
            hidden = {field["id"] for field in fields if field.get("secret")}
            inputs = one.get("inputs", {})
            shown["inputs"] = {key: "$encrypted$" if key in hidden else value for key, value in inputs.items()}
        return shown

    def _judge(self, kind: str, whole: Object, given: Object | None = None, new: bool = False) -> None:
        problems: dict[str, Any] = {}
        # AWX has it read-only, and the modules send some of them back
        options = {**self.options[MODULES[kind]], "managed": {"type": "bool"}, "type": {"type": "str"}}
        for field, value in (given if given is not None else whole).items():
            option = options.get(field)
            if option is None:
                problems[field] = ["is no field"]
            elif field in POINTS_TO:
                if value is not None and not any(value in self.objects[other] for other in POINTS_TO[field]):
                    problems[field] = [f"{value!r} is the id of nothing"]
            elif value is not None:
                wanted = str if field in AS_TEXT else TYPES[option.get("type", "str")]
                if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
                    problems[field] = [f"{value!r} is not of the type {option.get('type')}"]
                elif option.get("choices") and value not in option["choices"]:
                    problems[field] = [f"{value!r} is not a valid choice."]
        problems.update(
            {field: ["This field is required."] for field in NEEDED.get(kind, ["name"]) if not whole.get(field)}
        )
        if whole.get("playbook", "") not in {"", *self.playbooks}:
            problems["playbook"] = ["Playbook not found for project."]
        if "rrule" in whole and not re.fullmatch(
            r"DTSTART:\d{8}T\d{6}Z RRULE:FREQ=[A-Z]+;INTERVAL=\d+.*", whole["rrule"]
        ):
            problems["rrule"] = ["is no rule"]
        unique = [whole.get(field) for field in ("name", "identifier", "organization", "workflow_job_template")]
        for other in self.objects[kind].values() if new else ():
            if unique == [
                other.get(field) for field in ("name", "identifier", "organization", "workflow_job_template")
            ]:
                problems["__all__"] = ["there is one of this name"]
        if problems:
            raise Refused(problems)


def survey_problems(survey: Object) -> None:
    """Raise Refused for a survey that AWX does not take."""

    def refuse(text: str) -> None:
        raise Refused({"error": text})

    if not all(isinstance(survey.get(key), str) for key in ("name", "description")) or not survey.get("spec"):
        refuse("a survey has a name, a description and questions")
    variables = [question.get("variable") for question in survey["spec"]]
    for question in survey["spec"]:
        name, kind = question.get("variable"), question.get("type")
        if not all(isinstance(question.get(key), str) for key in ("type", "question_name", "variable")):
            refuse(f"{name}: type, question_name and variable are texts")
        if not isinstance(question.get("required"), bool):
            refuse(f"{name}: required is to be a boolean")
        if variables.count(name) > 1:
            refuse(f"{name} is there twice")
        if kind not in KINDS:
            refuse(f"{name}: {kind} is no type")
        default = question.get("default", "")
        if default != "" and not isinstance(default, KINDS[kind]):  # type: ignore[arg-type]
            refuse(f"{name}: the default is not of the type {kind}")
        if not all(question.get(key) is None or isinstance(question[key], int) for key in ("min", "max")):
            refuse(f"{name}: limits are whole numbers")
        if kind in ("multiselect", "multiplechoice"):
            chosen = default.splitlines() if isinstance(default, str) else default
            if not question.get("choices") or any(one not in question["choices"] for one in chosen):
                refuse(f"{name} has no choices, or a default that is none of them")
        if kind == "password" and default:
            refuse(f"{name}: a secret is in the survey")  # AWX takes it; these surveys must not have one


def answer_problems(question: Object, answers: Mapping[str, Any]) -> list[str]:
    """Return what AWX says of the answer to one question."""
    name, kind = question["variable"], question["type"]
    if name not in answers:
        return [f"'{name}' value missing"] if question["required"] else []
    value = answers[name]
    least, most = question.get("min"), question.get("max")
    if kind in ("text", "textarea", "password"):
        if not isinstance(value, str):
            return [f"Value {value} for '{name}' expected to be a string."]
        size = len(value)
    elif kind == "integer":
        if type(value) is not int:
            return [f"Value {value} for '{name}' expected to be an integer."]
        size = value
    else:
        chosen = value if kind == "multiselect" else [value]
        if not isinstance(chosen, list):
            return [f"'{name}' value is expected to be a list."]
        return [
            f"Value {one} for '{name}' expected to be one of them." for one in chosen if one not in question["choices"]
        ]
    if least is not None and size < least:
        return [f"'{name}' value {value} is too small (must be at least {least})."]
    return [f"'{name}' value {value} is too large (must be no more than {most})."] if most and size > most else []


def _parts(path: str) -> tuple[str, int, str]:
    words = path.strip("/").split("/")[2:]
    return words[0], int(words[1]) if len(words) > 1 else 0, words[2] if len(words) > 2 else ""


def _page(results: list[Object]) -> Object:
    return {"count": len(results), "next": None, "results": results}


def _matches(one: Object, query: Mapping[str, str]) -> bool:
    for key, value in query.items():
        field, _, how = key.partition("__")
        if str(one.get(field)) not in (value.split(",") if how == "in" else [value]):
            return False
    return True


@contextmanager
def serving(awx: Awx) -> Iterator[str]:
    """Serve it and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            url = urlsplit(self.path)
            data = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            status, body = 200, {}
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    status = 401
                elif self.command == "GET":
                    body = awx.get(url.path, dict(parse_qsl(url.query)))
                elif self.command == "POST":
                    status, body = awx.post(url.path, data)
                else:
                    body = awx.patch(url.path, data)
            except Refused as refused:
                status, body = 400, refused.args[0]
            except KeyError:
                status, body = 404, {"detail": "Not found."}
            sent = b"" if status == 204 else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("X-API-Product-Name", "AWX")
            self.send_header("X-API-Product-Version", "24.6.1")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            """Leave the test's output alone."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
