"""Adds up what comes of a request: each piece once, the whole response at the end. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Generic, get_origin

from pydantic import TypeAdapter

from cornstalk.client.events import Answer, Chunk, R
from cornstalk.client.typed import from_base64, type_at
from cornstalk.errors import GatewayError
from cornstalk.messages import Error

Source = tuple[str, str]
"""Node and output that a stream field comes from; two fields may show the same one."""


class Reading(Generic[R]):
    """What has come so far."""

    def __init__(self, model: type[R] | None) -> None:
        self._model = model
        self._pieces: dict[Source, list[Any]] = {}

    def chunk(self, seq: int, data: Mapping[str, Any]) -> Chunk | None:
        """The piece that an event brings; None if it is here already: a computation that was run again says it twice.

        Raises GatewayError when a piece before it is missing.
        """
        pieces = self._pieces.setdefault((data["node"], data["output"]), [])
        field, n, media_type = data["field"], data["n"], data.get("media_type", "")
        if n < len(pieces):
            return None
        if n > len(pieces):
            raise GatewayError(200, Error(code="gap", message=f"{field}: expected piece {len(pieces)}, got {n}"))
        piece = data["data"]
        if isinstance(piece, str) and (media_type or type_at(self._model, field) is bytes):
            piece = base64.b64decode(piece)
        pieces.append(piece)
        return Chunk(field, piece, n, seq, media_type, tuple(data.get("fields", (field,))))

    def answer(self, data: Mapping[str, Any]) -> Answer[R]:
        """The whole answer, by the data of `end`. Raises pydantic.ValidationError when the model refuses it."""
        response = from_base64(self._model, data["response"])
        for path, source in sorted(data["streams"].items(), key=lambda item: _in_order(item[0])):
            response = _with(response, path.split("."), self._whole(path, (source["node"], source["output"])))
        if self._model is not None:
            response = TypeAdapter(self._model).validate_python(response)
        return Answer(data["request"], response, data.get("times", {}))

    def _whole(self, path: str, source: Source) -> Any:
        pieces = self._pieces.get(source)
        if not pieces:
            hint = type_at(self._model, path)
            kind = get_origin(hint) or hint
            return kind() if kind in (str, bytes, list) else ""
        if isinstance(pieces[0], list):
            return [element for piece in pieces for element in piece]
        return pieces[0][:0].join(pieces)


def _in_order(path: str) -> list[tuple[int, str]]:
    return [(int(name), "") if name.isdigit() else (-1, name) for name in path.split(".")]


def _with(value: Any, path: list[str], whole: Any) -> Any:
    """A response with a stream field put back. Fields of one list are put back in order: each moves the rest on."""
    name, rest = path[0], path[1:]
    if isinstance(value, list):
        index = int(name)
        if rest:
            return [*value[:index], _with(value[index], rest, whole), *value[index + 1 :]]
        return [*value[:index], whole, *value[index:]]
    return {**value, name: _with(value[name], rest, whole) if rest else whole}
