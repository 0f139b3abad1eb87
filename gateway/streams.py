"""What the stream fields of a response are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from cornstalk.app import App
from cornstalk.hints import hint_at, plain
from cornstalk.types import media_type_of

OCTETS: Final = "application/octet-stream"
MediaTypes = Callable[[str], str]
"""Field path ("parts.0.sound") -> media type of its pieces."""


def media_types(app: App | None) -> MediaTypes:
    """Of the response of an app; of one that is not known here nothing is told."""
    model = app.response_model if app is not None else None
    return lambda path: media_type(model, path)


def media_type(model: type[BaseModel] | None, path: str) -> str:
    """Bytes have one, by which clients know that they are base64 in JSON; "" for text and lists."""
    hint = hint_at(model, path)
    return media_type_of(hint) or (OCTETS if plain(hint) is bytes else "")
