"""Parts of an OpenAPI document: operations, their parameters, and their answers by status."""

from __future__ import annotations

from typing import Any, Final

from gateway.schemas import Schema, ref

Operation = dict[str, Any]

_MEANING: Final = {
    200: "as asked",
    201: "stored",
    202: "taken; there is more to come",
    400: "the body cannot be read",
    401: "no admin token came",
    403: "that is not the admin token, or a web page of another origin",
    404: "nothing of this name is here",
    408: "the body stopped in the middle",
    409: "what is stored does not allow it",
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


def header(schema: Schema) -> dict[str, Any]:
    return {"schema": schema}


_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": header({"const": "Bearer"})},
    429: {"Retry-After": header({"type": "integer", "minimum": 1})},
    503: {"Retry-After": header({"type": "integer", "minimum": 1})},
}


def in_json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def sse(schema: Schema) -> dict[str, Any]:
    """`schema`: of one event, as an object of its lines."""
    return {"text/event-stream": {"schema": schema}}


def _error(status: int) -> dict[str, Any]:
    content = in_json(ref("Error"))
    if status == 400:  # what is no HTTP never comes as far as a route
        content["text/plain"] = {"schema": {"type": "string"}}
    found = {"description": _MEANING[status], "content": content}
    return found | ({"headers": _HEADERS[status]} if status in _HEADERS else {})


def responses(answers: dict[int, dict[str, Any]], *errors: int) -> dict[str, Any]:
    """What an operation answers: `answers` when it went well, an error with each other status that it can have."""
    found = {status: _error(status) for status in {*errors, *_EVERYWHERE}}
    found |= {status: {"description": _MEANING[status]} | answer for status, answer in answers.items()}
    return {str(status): found[status] for status in sorted(found)}


def good(schema: Schema, **headers: Schema) -> dict[str, Any]:
    """An answer in JSON; `_` in the names of headers stands for `-`."""
    more = {"headers": {name.replace("_", "-"): header(s) for name, s in headers.items()}} if headers else {}
    return {"content": in_json(schema)} | more


def operation(id: str, about: str, responses: dict[str, Any], *parameters: dict[str, Any], **more: Any) -> Operation:
    found: Operation = {"operationId": id, "summary": about}
    if parameters:
        found["parameters"] = list(parameters)
    return found | more | {"responses": responses}


def parameter(place: str, name: str, schema: Schema, about: str = "") -> dict[str, Any]:
    found = {"name": name, "in": place, "schema": schema}
    return found | ({"description": about} if about else {}) | ({"required": True} if place == "path" else {})


ADMIN: Final[dict[str, Any]] = {"security": [{"admin": []}]}


def without_bodies(answers: dict[int, dict[str, Any]], *errors: int) -> dict[str, Any]:
    """Of HEAD: what an answer means stands in its status."""
    found = responses(answers, *errors)
    return {status: {key: value for key, value in one.items() if key != "content"} for status, one in found.items()}
