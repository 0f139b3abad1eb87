"""The frames of a WebSocket: JSON objects as text, and binary frames that carry bytes beside such an object.

Pure. `docs/websocket.md` describes the conversation; the structs here say what a client may send.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from cornstalk import frames
from cornstalk.errors import BadInput
from gateway.body import parse_json

Id = Annotated[str, Meta(min_length=1, max_length=128)]
"""What a client calls its request, on this connection."""


class Garbled(Exception):
    """Raised when a frame is no frame of this protocol, so that nobody knows what comes after: `code` closes."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _FromClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of what a client may send."""


class Invoke(_FromClient, frozen=True, tag="invoke"):
    """Runs a request. `open`: fields of the input that follow in pieces. `options`: as the headers of HTTP."""

    id: Id
    input: dict[str, Any] = {}
    open: list[str] = []
    options: dict[str, Any] = {}


class Input(_FromClient, frozen=True, tag="input"):
    """The next piece of an open field: text, or members of a list. Bytes come in a binary frame, without `data`."""

    id: Id
    field: str
    data: Any = None


class InputEnd(_FromClient, frozen=True, tag="input_end"):
    """No more pieces of an open field. Saying it again, also after a resume, does no harm."""

    id: Id
    field: str


class Resume(_FromClient, frozen=True, tag="resume"):
    """Goes on with a request, here or on another gateway, after the chunk with sequence `after`.

    Its open fields are taken over from the connection that streamed them in before, unless this one only listens.
    """

    id: Id
    request: str
    after: Annotated[int, Meta(ge=0, lt=10**18)] = 0
    listen: bool = False


class Cancel(_FromClient, frozen=True, tag="cancel"):
    """Cancels a request at once."""

    id: Id


class Ping(_FromClient, frozen=True, tag="ping"):
    """Is answered by a pong."""


Frame = Invoke | Input | InputEnd | Resume | Cancel | Ping


class BadFrame(BadInput):
    """Raised when a frame has a wrong or a missing field. `id` is its request's, if it says so."""

    code = "bad_frame"

    def __init__(self, message: str, id: str = "") -> None:
        super().__init__(message)
        self.id = id


def read(message: str | bytes) -> Frame:
    """A frame from a client. Raises BadFrame; Garbled for what cannot be read at all."""
    if isinstance(message, str):
        return _frame(_object(1007, "text frame", message))
    header, data = split(message)
    if header.get("type") != "input" or "data" in header:
        raise BadFrame('a binary frame is {"type": "input", "id", "field"} and the bytes', _id(header))
    return _frame(header | {"data": data})


def split(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and bytes of a binary frame. Raises Garbled."""
    try:
        header, data = frames.split(message)
    except ValueError as error:
        raise Garbled(1003, str(error)) from error
    return _object(1003, "header of a binary frame", header), data


def _object(code: int, what: str, text: str | bytes) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise Garbled(code, f"a {what} is a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise Garbled(code, f"a {what} is a JSON object, got {type(value).__name__}")
    return value


def _frame(body: dict[str, Any]) -> Frame:
    try:
        frame: Frame = msgspec.convert(body, Frame)
    except msgspec.ValidationError as error:
        raise BadFrame(f"{str(body.get('type'))[:40]}: {error}", _id(body)) from error
    return frame


def _id(body: dict[str, Any]) -> str:
    """The request's id, as far as a frame that is wrong says it."""
    given = body.get("id")
    return given if isinstance(given, str) and len(given) <= 128 else ""
