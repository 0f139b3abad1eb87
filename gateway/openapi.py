"""GET /openapi.json: what this gateway takes and answers, and what each app that is deployed does."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from cornstalk.app import App
from cornstalk.errors import AppError
from cornstalk.records import AppRecord
from gateway.deadletters import LAST, LONGEST_PAGE
from gateway.errors import json_response
from gateway.http import REQUEST_HEADER, service_of
from gateway.options import LONGEST, LONGEST_GRACE, LONGEST_KEY
from gateway.schemas import Schema, app_schemas, ref

router = APIRouter()

Operation = dict[str, Any]


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
    schemas = dict(_SCHEMAS)
    paths = dict(_static())
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


# ------------------------------------------------------------ answers

_MEANING: Final = {
    200: "as asked",
    201: "stored",
    202: "taken; there is more to come",
    400: "the body cannot be read",
    401: "no admin token came",
    403: "that is not the admin token",
    404: "nothing of this name is here",
    408: "the body stopped in the middle",
    410: "it was here, and has been purged",
    413: "over a stated limit",
    415: "not a kind of content that is taken here",
    416: "these bytes would leave a hole",
    422: "it cannot be meant: `field` says where",
    429: "full: try again after Retry-After seconds",
    499: "the request was cancelled",
    500: "the app failed, or the gateway has a bug",
    502: "a component failed: `component` says which",
    503: "not to be served now: try again",
    504: "the deadline has passed",
}
_EVERYWHERE: Final = (400, 413, 500)
"""What is refused before a route is looked at: no HTTP, a body declared too large; and bugs."""


def _header(schema: Schema) -> dict[str, Any]:
    return {"schema": schema}


_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": _header({"const": "Bearer"})},
    429: {"Retry-After": _header({"type": "integer", "minimum": 1})},
    503: {"Retry-After": _header({"type": "integer", "minimum": 1})},
}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _sse(schema: Schema) -> dict[str, Any]:
    """`schema`: of one event, as an object of its lines."""
    return {"text/event-stream": {"schema": schema}}


def _error(status: int) -> dict[str, Any]:
    content = _json(ref("Error"))
    if status == 400:  # what is no HTTP never comes as far as a route
        content["text/plain"] = {"schema": {"type": "string"}}
    found = {"description": _MEANING[status], "content": content}
    return found | ({"headers": _HEADERS[status]} if status in _HEADERS else {})


def _responses(good: dict[int, dict[str, Any]], *errors: int) -> dict[str, Any]:
    found = {status: _error(status) for status in {*errors, *_EVERYWHERE}}
    found |= {status: {"description": _MEANING[status]} | answer for status, answer in good.items()}
    return {str(status): found[status] for status in sorted(found)}


def _good(schema: Schema, **headers: Schema) -> dict[str, Any]:
    more = {"headers": {name.replace("_", "-"): _header(s) for name, s in headers.items()}} if headers else {}
    return {"content": _json(schema)} | more


def _operation(id: str, about: str, responses: dict[str, Any], *parameters: dict[str, Any], **more: Any) -> Operation:
    found: Operation = {"operationId": id, "summary": about}
    if parameters:
        found["parameters"] = list(parameters)
    return found | more | {"responses": responses}


def _in(place: str, name: str, schema: Schema, about: str = "") -> dict[str, Any]:
    found = {"name": name, "in": place, "schema": schema}
    return found | ({"description": about} if about else {}) | ({"required": True} if place == "path" else {})


_ADMIN: Final[dict[str, Any]] = {"security": [{"admin": []}]}


# ------------------------------------------------------------ schemas


def _object(optional: Schema | None = None, /, **required: Schema) -> Schema:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_SECONDS: Final[Schema] = {"type": "number", "description": "Unix seconds"}
_SCHEMA: Final[Schema] = {"type": "object", "description": "JSON Schema"}
_COUNTS: Final[Schema] = {"type": "object", "additionalProperties": _WHOLE, "description": "by lane"}
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)"
_FAILURE: Final[Schema] = _object(
    {
        "retryable": {"type": "boolean"},
        "field": _TEXT | {"description": "field, header or option that is to blame"},
        "line": {"type": "integer", "description": "line of the app file"},
        "component": _TEXT,
        "node": _TEXT,
        "attempt": _TEXT,
    },
    code=_TEXT | {"description": "stable"},
    message=_TEXT,
)

_SCHEMAS: Final[dict[str, Schema]] = {
    "Id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "Digest": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "blake2b-256, as of `b2sum -l 256`"},
    "Times": {"type": "object", "additionalProperties": {"type": "number"}, "description": "Unix seconds"},
    "Failure": _FAILURE,
    "Error": _object({"request": ref("Id"), "status": _TEXT}, error=ref("Failure")),
    "Failed": _object(
        request=ref("Id"), status={"enum": ["done", "failed", "cancelled", "expired"]}, error=ref("Failure")
    ),
    "Event": _object(
        {"id": _TEXT}, event={"enum": ["chunk", "end", "error"]}, data=_TEXT | {"contentMediaType": "application/json"}
    ),
    "Upload": {
        "description": "a data URL, base64, or the digest of what was sent to /uploads",
        "anyOf": [
            {"type": "string", "pattern": f"^data:[^,;]*;base64,{_BASE64}$"},
            {"type": "string", "pattern": f"^{_BASE64}$"},
            _object(upload=ref("Digest")) | {"additionalProperties": False},
        ],
    },
    "Returned": _object(upload=ref("Digest")),
    "App": _object(
        {"request": _SCHEMA, "response": _SCHEMA, "error": _object(code=_TEXT, message=_TEXT)},
        name=_TEXT,
        version=_TEXT,
        components=_TEXTS,
        deployed_at=_SECONDS,
    ),
    "Component": _object(
        id=_TEXT,
        kind=_TEXT,
        task=_TEXT,
        apps=_TEXTS,
        state={"enum": ["active", "draining"]},
        replicas=_WHOLE,
        pending=_COUNTS,
        in_flight=_COUNTS,
        workers={"type": "array", "items": {"type": "object"}},
    ),
    "Request": _object(
        {"response": {}, "error": {"anyOf": [ref("Failure"), {"type": "null"}]}},
        request=ref("Id"),
        app=_TEXT,
        status={"enum": ["running", "done", "failed", "cancelled", "expired"]},
        times=ref("Times"),
        facts=_WHOLE,
        cuts=_WHOLE,
        nodes={"type": "array", "items": ref("Node")},
    ),
    "Node": {
        "description": "one call",
        "allOf": [
            _object(
                {"earlier": {"type": "array", "items": ref("Generation")}},
                id=_TEXT,
                node=_TEXT,
                component=_TEXT,
                line=_TEXT,
                needs=_TEXTS,
            ),
            ref("Generation"),
        ],
    },
    "Generation": _object(
        {
            "worker": _TEXT,
            "attempt": _TEXT,
            "usage": {"type": "object"},
            "error": ref("Failure"),
            "vanished": {"type": "array", "items": _object(node=_TEXT, gen=_WHOLE)},
        },
        gen=_WHOLE,
        restarts=_WHOLE,
        outcome=_TEXT | {"description": "empty while it runs"},
        times=ref("Times"),
    ),
    "StoredUpload": _object(digest=ref("Digest"), nbytes=_WHOLE, media_type=_TEXT, kept_s={"type": "number"}),
    "DeadLetter": _object(
        {"error": ref("Failure"), "subject": _TEXT, "item": {"type": ["object", "null"]}},
        id=_WHOLE,
        at=_SECONDS,
        component=_TEXT,
        reason=_TEXT,
        request=_TEXT,
        node=_TEXT,
        gen=_WHOLE,
        nbytes=_WHOLE,
        attempts=_WHOLE,
    ),
}


# ------------------------------------------------------------ what is here without any app

_OFFSETS: Final[dict[str, Schema]] = {"Upload_Offset": _WHOLE, "Upload_Complete": {"enum": ["?0", "?1"]}}
_NAME: Final = _in("path", "name", {"type": "string"}, "an app")
_ID: Final = _in("path", "request_id", ref("Id"))
_DIGEST: Final = _in("path", "digest", ref("Digest"))
_ANY_BODY: Final = {"required": True, "content": {"application/octet-stream": {}}}


def _static() -> dict[str, dict[str, Operation]]:
    stored = _good(ref("StoredUpload"), **_OFFSETS)
    some = _good(_object(digest=ref("Digest"), nbytes=_WHOLE), **_OFFSETS)
    there = {"headers": {name.replace("_", "-"): _header(schema) for name, schema in _OFFSETS.items()}}
    apps = _object(apps={"type": "array", "items": ref("App")})
    deployed = _object(name=_TEXT, version=_TEXT, components=_TEXTS, warnings=_TEXTS)
    components = _object(components={"type": "array", "items": ref("Component")})
    ended = {"enum": ["cancelling", "done", "failed", "cancelled", "expired"]}
    letters = _object({"next": _WHOLE}, dead_letters={"type": "array", "items": ref("DeadLetter")})
    source = {"required": True, "content": {"text/x-python": {"schema": _TEXT}}}
    not_ready = _good(_object(status={"const": "not ready"}, why=_TEXT))
    ready = {200: _good(_object(status={"const": "ready"})), 503: not_ready}
    return {
        "/healthz": {"get": _operation("healthz", "lives", _responses({200: _good(_object(status={"const": "ok"}))}))},
        "/readyz": {"get": _operation("readyz", "serves", _responses(ready))},
        "/openapi.json": {
            "get": _operation("openapi", "this document", _responses({200: _good({"type": "object"})}, 503))
        },
        "/apps": {
            "get": _operation("list_apps", "every app", _responses({200: _good(apps)}, 503)),
            "post": _operation(
                "deploy",
                "deploys the app file in the body",
                _responses({201: _good(deployed)}, 401, 403, 408, 422, 429, 503),
                requestBody=source,
                **_ADMIN,
            ),
        },
        "/apps/{name}": {"delete": _operation("remove", "removes an app", _REMOVED, _NAME, **_ADMIN)},
        "/components": {
            "get": _operation("components", "who works, and what waits", _responses({200: _good(components)}, 503))
        },
        "/requests/{request_id}": {
            "get": _operation(
                "status",
                "where a request stands",
                _responses({200: _good(ref("Request"))}, 404, 410, 422, 503),
                _ID,
            ),
            "delete": _operation(
                "cancel",
                "cancels it",
                _responses({202: _good(_object(request=ref("Id"), status=ended))}, 404, 422, 503),
                _ID,
            ),
        },
        "/requests/{request_id}/events": {
            "get": _operation(
                "resume",
                "the events of a request from after one on",
                _responses({200: {"content": _sse(ref("Event"))}}, 404, 422, 503),
                _ID,
                _in("header", "Last-Event-ID", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}),
            )
        },
        "/uploads": {
            "post": _operation(
                "upload", "takes one file", _responses({201: stored}, 408, 422, 503), requestBody=_ANY_BODY
            )
        },
        "/uploads/{digest}": {
            "head": _operation("uploaded", "how much is there", _bodyless({200: there}, 404, 422, 503), _DIGEST),
            "put": _operation(
                "upload_part",
                "takes bytes of a file",
                _responses({200: stored, 201: stored, 202: some}, 404, 408, 410, 416, 422, 503),
                _DIGEST,
                _in("header", "Content-Range", {"type": "string", "pattern": r"^bytes \d{1,15}-\d{1,15}/\d{1,15}$"}),
                requestBody=_ANY_BODY,
            ),
        },
        "/dead-letters": {
            "get": _operation(
                "dead_letters",
                "work that was given up, newest first",
                _responses({200: _good(letters)}, 401, 403, 422, 503),
                _in("query", "limit", {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE}),
                _in("query", "before", {"type": "integer", "minimum": 1, "maximum": LAST}),
                **_ADMIN,
            )
        },
        "/dead-letters/{letter}": {
            "get": _operation(
                "dead_letter",
                "one of them",
                _responses({200: _good(ref("DeadLetter"))}, 401, 403, 404, 422, 503),
                _in("path", "letter", {"type": "integer", "minimum": 1, "maximum": LAST - 1}),
                _in("query", "payload", {"type": "boolean"}, "with the values of its inputs"),
                **_ADMIN,
            )
        },
    }


def _bodyless(good: dict[int, dict[str, Any]], *errors: int) -> dict[str, Any]:
    """Of HEAD: what an answer means stands in its status."""
    found = _responses(good, *errors)
    return {status: {key: value for key, value in one.items() if key != "content"} for status, one in found.items()}


# ------------------------------------------------------------ apps

_REMOVED: Final = _responses({200: _good(_object(name=_TEXT, drains=_TEXTS))}, 401, 403, 404, 503)
_ASKED: Final = (
    _in("header", "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}, "the same request"),
    _in("header", "Cornstalk-Deadline", {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST}, "seconds"),
    _in("header", "Cornstalk-Resume-Grace", {"type": "number", "minimum": 0, "maximum": LONGEST_GRACE}, "seconds"),
    _in("header", "Cornstalk-Durable", {"type": "boolean"}, "goes on without any client"),
    _in("header", "Cornstalk-Lane", {"enum": ["interactive", "batch"]}),
    _in("header", "Cornstalk-Seed", {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}),
    _in("header", "Cornstalk-Tenant", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}),
    _in("header", "traceparent", {"type": "string"}, "W3C trace context"),
)


def _invoke(name: str) -> Operation:
    asked = {REQUEST_HEADER: _header(ref("Id"))}
    answer = {"content": _json(ref(f"{name}.answer")) | _sse(ref(f"{name}.event")), "headers": asked}
    return _operation(
        f"invoke_{name}",
        f"runs one request of {name}",
        _responses({200: answer}, 404, 408, 410, 415, 422, 429, 499, 502, 503, 504),
        *_ASKED,
        requestBody={
            "required": True,
            "content": {
                **_json(ref(f"{name}.request")),
                "multipart/form-data": {"schema": ref(f"{name}.form")},
            },
        },
    )


def _remove(name: str) -> Operation:
    return _operation(f"remove_{name}", f"removes {name}", _REMOVED, **_ADMIN)
