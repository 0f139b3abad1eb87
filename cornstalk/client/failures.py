"""From what a gateway says to the typed errors of cornstalk/errors.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cornstalk.errors import (
    AppError,
    BadInput,
    CornstalkError,
    GatewayError,
    Refused,
    RequestFailed,
    TimedOut,
    TooLarge,
    Unavailable,
    UnknownApp,
    UnknownRequest,
    UnsupportedMedia,
)
from cornstalk.messages import Error

_BAD_INPUT: Final[dict[str, type[BadInput]]] = {
    kind.code: kind for kind in (BadInput, UnknownApp, UnknownRequest, TooLarge, UnsupportedMedia)
}
_AGAIN: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses after which the same may be taken in a moment."""
EXPIRED: Final = "expired"
"""Code of a request whose deadline passed before it was accepted."""


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> CornstalkError:
    """The error that an answer of 4xx or 5xx stands for. `headers` by lower-case name."""
    said = _said(body)
    code, message = str(said.get("code", f"http_{status}")), str(said.get("message", f"the gateway answered {status}"))
    field = str(said.get("field", ""))
    if code in _BAD_INPUT or (field and status != 404):
        return _bad_input(code, message, field)
    if code == EXPIRED:
        return TimedOut(message)
    if status in _AGAIN:
        return (Refused if status == 429 else Unavailable)(message, _seconds(headers.get("retry-after", "")))
    if code == AppError.code:
        return AppError(message, int(said.get("line", 0)))
    return GatewayError(status, _error(said, code, message))


def frame_refusal(said: Mapping[str, Any]) -> CornstalkError:
    """The error that a frame of type error stands for, by its `error`, when it does not end a request."""
    code, message, field = str(said["code"]), str(said["message"]), str(said.get("field", ""))
    if code in _BAD_INPUT or field:
        return _bad_input(code, message, field)
    if code == EXPIRED:
        return TimedOut(message)
    if code in (Refused.code, Unavailable.code):
        return (Refused if code == Refused.code else Unavailable)(message, float(said.get("retry_after", 1.0)))
    return GatewayError(0, _error(said, code, message))


def closing(code: int, reason: str, url: str) -> CornstalkError | None:
    """The error that a close code stands for; None when connecting again may help."""
    if code == 4404:
        return UnknownApp(reason)
    if code == 4429:
        return Refused(reason, 1.0)
    if code in (1003, 1007, 1009, 4403):
        return GatewayError(0, Error(code="connection_closed", message=f"{url} closed with {code}: {reason}"))
    return None


def request_failure(data: Mapping[str, Any]) -> RequestFailed:
    """The error that the last event of a request stands for which ended failed, cancelled or expired."""
    said = data.get("error") or {}
    error = _error(said, str(data["status"]), f"the request ended {data['status']}")
    return RequestFailed(str(data["request"]), str(data["status"]), error)


def no_gateway(url: str) -> GatewayError:
    """The error for an answer that no gateway gives."""
    return GatewayError(200, Error(code="no_gateway", message=f"what answers at {url} is no gateway"))


def _bad_input(code: str, message: str, field: str) -> BadInput:
    return _BAD_INPUT.get(code, BadInput)(message.removeprefix(f"{field}: "), field)


def _said(body: bytes) -> Mapping[str, Any]:
    """The error in a body; a proxy between may have put anything there."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _error(said: Mapping[str, Any], code: str, message: str) -> Error:
    return msgspec.convert({"code": code, "message": message, **said}, Error, strict=False)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
