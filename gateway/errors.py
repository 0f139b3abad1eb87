"""Errors as HTTP answers: always JSON with code, message and, where one is to blame, the field."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from broker.errors import BrokerError, PayloadTooLarge, RequestEnded, UploadGone
from cornstalk.errors import AppError, BadInput, CornstalkError, Refused
from gateway.encode import to_json

log = logging.getLogger(__name__)


class Unauthorized(CornstalkError):
    """Raised when an admin call brings no token."""

    code = "unauthorized"
    status = 401


class Forbidden(CornstalkError):
    """Raised when an admin call brings a wrong token."""

    code = "forbidden"
    status = 403


class Expired(CornstalkError):
    """Raised when the deadline passed before the request was accepted."""

    code = "expired"
    status = 504
    retryable = True


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON by msgspec: bytes become base64, structs objects."""
    return Response(to_json(body), status, headers, media_type="application/json")


class Answered(NamedTuple):
    """An error as clients get it: HTTP status, the `error` of the JSON body, headers."""

    status: int
    error: dict[str, Any]
    headers: dict[str, str]


def error_response(error: Exception) -> Response:
    """A typed error as JSON."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    answered = answer_of(error)
    return json_response({"error": answered.error}, answered.status, answered.headers)


def answer_of(error: Exception) -> Answered:
    """What clients are told of an error."""
    match error:
        case CornstalkError():
            return _typed(error)
        case RequestEnded() | UploadGone():
            return _answer(410, "gone", str(error))
        case PayloadTooLarge():
            return _answer(413, "too_large", str(error))
        case BrokerError():
            log.warning("not answered: %s", type(error).__name__)
            return _answer(503, "unavailable", f"the broker: {error}", {"Retry-After": "1"}, retryable=True)
        case HTTPException():
            phrase = HTTPStatus(error.status_code).phrase
            headers = dict(error.headers or {})
            return _answer(error.status_code, phrase.lower().replace(" ", "_"), str(error.detail), headers)
    return _answer(500, "internal", f"{type(error).__name__} in the gateway; its log says more")


def _typed(error: CornstalkError) -> Answered:
    headers: dict[str, str] = {}
    more: dict[str, Any] = {}
    if isinstance(error, BadInput) and error.field:
        more["field"] = error.field
    if isinstance(error, AppError) and error.line:
        more["line"] = error.line
    if isinstance(error, Refused):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return _answer(error.status, error.code, str(error), headers, retryable=error.retryable, **more)


def _answer(
    status: int, code: str, message: str, headers: dict[str, str] | None = None, retryable: bool = False, **more: Any
) -> Answered:
    return Answered(status, {"code": code, "message": message, "retryable": retryable, **more}, headers or {})


def install(app: FastAPI) -> None:
    """Every error of a route becomes such an answer. One that nobody foresaw is a bug: logged, and a 500."""

    async def answer(_: Request, error: Exception) -> Response:
        return error_response(error)

    for kind in (CornstalkError, BrokerError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, answer)
