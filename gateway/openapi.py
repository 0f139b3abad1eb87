"""GET /openapi.json: what this gateway takes and answers, and what each app that is deployed does."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from cornstalk.app import App
from cornstalk.errors import AppError
from cornstalk.messages import LONGEST_DEADLINE
from cornstalk.records import AppRecord
from gateway.bodies import SCHEMAS, TEXT, TEXTS, WHOLE
from gateway.deadletters import LAST, LONGEST_PAGE
from gateway.errors import json_response
from gateway.http import REQUEST_HEADER, service_of
from gateway.operations import (
    ADMIN,
    Operation,
    good,
    header,
    in_json,
    operation,
    parameter,
    responses,
    sse,
    without_bodies,
)
from gateway.options import LONGEST_GRACE, LONGEST_KEY
from gateway.schemas import Schema, app_schemas, obj, ref

router = APIRouter()


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """OpenAPI 3.1, exact for the apps that are deployed now."""
    described: Described = request.app.state.described
    return json_response(described.of(await service_of(request).apps.deployed()))


class Described:
    """The document, made again when other versions of apps are deployed."""

    def __init__(self) -> None:
        self._versions: list[tuple[str, str]] | None = None
        self._document: dict[str, Any] = {}

    def of(self, deployed: list[tuple[AppRecord, App | AppError]]) -> dict[str, Any]:
        versions = [(record.name, record.version) for record, _ in deployed]
        if versions != self._versions:
            # one that cannot be loaded here takes no request that could be described
            self._document = document([app for _, app in deployed if isinstance(app, App)])
            self._versions = versions
        return self._document


def document(apps: list[App]) -> dict[str, Any]:
    """The OpenAPI document of a gateway with these apps."""
    schemas = dict(SCHEMAS)
    paths = _static()
    for app in apps:
        schemas |= app_schemas(app)
        paths[f"/apps/{app.name}"] = {"post": _invoke(app.name), "delete": _remove(app.name)}
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": "Cornstalk gateway", "version": "1", "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}}},
    }


_ABOUT: Final = (
    "Any gateway serves any request. Errors are JSON with a stable `code`; one whose `retryable` is true may pass. "
    "A method that a path does not have is answered 405, a path that is not here 404, both with such an error. "
    "`/apps/{name}` is a WebSocket as well."
)


# ------------------------------------------------------------ what is here without any app

_OFFSETS: Final[dict[str, Schema]] = {"Upload_Offset": WHOLE, "Upload_Complete": {"enum": ["?0", "?1"]}}
_NAME: Final = parameter("path", "name", {"type": "string"}, "an app")
_COMPONENT: Final = parameter("path", "component", {"type": "string"}, "an id of GET /components")
_CHANGED: Final = (401, 403, 404, 408, 422, 503)
_ID: Final = parameter("path", "request_id", ref("Id"))
_DIGEST: Final = parameter("path", "digest", ref("Digest"))
_LETTER: Final = parameter("path", "letter", {"type": "integer", "minimum": 1, "maximum": LAST - 1})
_TOKEN: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{1,128}$"}
_ANY_BODY: Final = {"required": True, "content": {"application/octet-stream": {}}}


def _static() -> dict[str, dict[str, Operation]]:
    stored = good(ref("StoredUpload"), **_OFFSETS)
    some = good(obj(digest=ref("Digest"), nbytes=WHOLE), **_OFFSETS)
    there = {"headers": {name.replace("_", "-"): header(schema) for name, schema in _OFFSETS.items()}}
    apps = obj(apps={"type": "array", "items": ref("App")})
    deployed = obj(name=TEXT, version=TEXT, components=TEXTS, warnings=TEXTS)
    components = obj(components={"type": "array", "items": ref("Component")})
    ended = {"enum": ["cancelling", "done", "failed", "cancelled", "expired"]}
    letters = obj({"next": WHOLE}, dead_letters={"type": "array", "items": ref("DeadLetter")})
    source = {"required": True, "content": {"text/x-python": {"schema": TEXT}}}
    not_ready = good(obj(status={"const": "not ready"}, why=TEXT))
    ready = {200: good(obj(status={"const": "ready"})), 503: not_ready}
    return {
        "/healthz": {"get": operation("healthz", "lives", responses({200: good(obj(status={"const": "ok"}))}))},
        "/readyz": {"get": operation("readyz", "serves", responses(ready))},
        "/openapi.json": {
            "get": operation("openapi", "this document", responses({200: good({"type": "object"})}, 503))
        },
        "/apps": {
            "get": operation("list_apps", "every app", responses({200: good(apps)}, 503)),
            "post": operation(
                "deploy",
                "deploys the app file in the body",
                responses({201: good(deployed)}, 401, 403, 408, 422, 429, 503),
                requestBody=source,
                **ADMIN,
            ),
        },
        "/apps/{name}": {"delete": operation("remove", "removes an app", _REMOVED, _NAME, **ADMIN)},
        "/components": {
            "get": operation("components", "who works, and what waits", responses({200: good(components)}, 503))
        },
        "/components/{component}/autoscale": {
            "get": operation(
                "autoscale",
                "how many workers, and why",
                responses({200: good(ref("Autoscaled"))}, 404, 503),
                _COMPONENT,
            ),
            "patch": operation(
                "set_autoscale",
                "changes settings",
                responses({200: good(obj(id=TEXT, autoscaled={"type": "boolean"}, policy=ref("Policy")))}, *_CHANGED),
                _COMPONENT,
                requestBody={"required": True, "content": in_json(ref("PolicyChange"))},
                **ADMIN,
            ),
        },
        "/requests/{request_id}": {
            "get": operation(
                "status",
                "where a request stands",
                responses({200: good(ref("Request"))}, 404, 410, 422, 503),
                _ID,
            ),
            "delete": operation(
                "cancel",
                "cancels it",
                responses({202: good(obj(request=ref("Id"), status=ended))}, 403, 404, 422, 503),
                _ID,
            ),
        },
        "/requests/{request_id}/events": {
            "get": operation(
                "resume",
                "the events of a request from after one on",
                responses({200: {"content": sse(ref("Event"))}}, 404, 422, 503),
                _ID,
                parameter("header", "Last-Event-ID", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}),
            )
        },
        "/uploads": {
            "post": operation(
                "upload", "takes one file", responses({201: stored}, 403, 408, 422, 503), requestBody=_ANY_BODY
            )
        },
        "/uploads/{digest}": {
            "head": operation("uploaded", "how much is there", without_bodies({200: there}, 404, 422, 503), _DIGEST),
            "put": operation(
                "upload_part",
                "takes bytes of a file",
                responses({200: stored, 201: stored, 202: some}, 403, 404, 408, 410, 416, 422, 503),
                _DIGEST,
                parameter(
                    "header", "Content-Range", {"type": "string", "pattern": r"^bytes \d{1,15}-\d{1,15}/\d{1,15}$"}
                ),
                requestBody=_ANY_BODY,
            ),
        },
        "/dead-letters": {
            "get": operation(
                "dead_letters",
                "work that was given up, newest first",
                responses({200: good(letters)}, 401, 403, 422, 503),
                parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE}),
                parameter("query", "before", {"type": "integer", "minimum": 1, "maximum": LAST}),
                **ADMIN,
            ),
            "delete": operation(
                "purge_dead_letters",
                "removes all of them, or those of one component, of one reason",
                responses({200: good(obj(removed=WHOLE))}, 401, 403, 422, 503),
                parameter("query", "component", _TOKEN),
                parameter("query", "reason", _TOKEN),
                **ADMIN,
            ),
        },
        "/dead-letters/{letter}": {
            "get": operation(
                "dead_letter",
                "one of them",
                responses({200: good(ref("DeadLetter"))}, 401, 403, 404, 422, 503),
                _LETTER,
                parameter("query", "payload", {"type": "boolean"}, "with the values of its inputs"),
                **ADMIN,
            ),
            "delete": operation(
                "remove_dead_letter",
                "removes one of them",
                responses({200: good(obj(removed=WHOLE))}, 401, 403, 404, 422, 503),
                _LETTER,
                **ADMIN,
            ),
        },
        "/dead-letters/{letter}/retry": {
            "post": operation(
                "retry_dead_letter",
                "asks its request again",
                responses({202: good(obj(dead_letter=WHOLE, request=TEXT))}, 401, 403, 404, 409, 422, 503, 504),
                _LETTER,
                **ADMIN,
            )
        },
    }


# ------------------------------------------------------------ apps

_REMOVED: Final = responses({200: good(obj(name=TEXT, drains=TEXTS))}, 401, 403, 404, 503)
_SECONDS: Final[Schema] = {"type": "number", "description": "seconds from now"}
_ASKED: Final = (
    parameter(
        "header", "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}, "the same request"
    ),
    parameter("header", "Cornstalk-Deadline", _SECONDS | {"exclusiveMinimum": 0, "maximum": LONGEST_DEADLINE}),
    parameter(
        "header", "Cornstalk-Resume-Grace", {"type": "number", "minimum": 0, "maximum": LONGEST_GRACE}, "seconds"
    ),
    parameter("header", "Cornstalk-Durable", {"type": "boolean"}, "goes on without any client"),
    parameter("header", "Cornstalk-Lane", {"enum": ["interactive", "batch"]}),
    parameter("header", "Cornstalk-Seed", {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}),
    parameter("header", "Cornstalk-Tenant", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}),
    parameter("header", "traceparent", {"type": "string"}, "W3C trace context"),
)


def _invoke(name: str) -> Operation:
    asked = {REQUEST_HEADER: header(ref("Id"))}
    answer = {"content": in_json(ref(f"{name}.answer")) | sse(ref(f"{name}.event")), "headers": asked}
    return operation(
        f"invoke_{name}",
        f"runs one request of {name}",
        responses({200: answer}, 403, 404, 408, 410, 415, 422, 429, 499, 502, 503, 504),
        *_ASKED,
        requestBody={
            "required": True,
            "content": {
                **in_json(ref(f"{name}.request")),
                "multipart/form-data": {"schema": ref(f"{name}.form")},
            },
        },
    )


def _remove(name: str) -> Operation:
    return operation(f"remove_{name}", f"removes {name}", _REMOVED, **ADMIN)
