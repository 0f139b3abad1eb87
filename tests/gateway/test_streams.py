"""The media type of a stream field, wherever it stands in a response."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel

from cornstalk import Stream
from cornstalk.types import Audio, Pcm
from gateway.streams import OCTETS, media_type, media_types


class Part(BaseModel):
    sound: Stream[Audio]
    bytes: Stream[bytes]
    text: Stream[str]


class Reply(BaseModel):
    sound: Stream[Annotated[bytes, Pcm(8_000)]]
    raw: Stream[bytes]
    text: Stream[str]
    words: Stream[list[str]]
    parts: list[Part]
    named: dict[str, Part]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sound", "audio/pcm;rate=8000;channels=1"),
        ("raw", OCTETS),
        ("text", ""),
        ("words", ""),
        ("parts.0.sound", "audio/pcm;rate=24000;channels=1"),
        ("parts.11.bytes", OCTETS),
        ("named.a.text", ""),
        ("named.a.bytes", OCTETS),
        ("no.such.field", ""),
    ],
)
def test_media_type(path: str, expected: str) -> None:
    assert media_type(Reply, path) == expected


def test_of_an_app_that_is_not_known_here_nothing_is_told() -> None:
    assert media_types(None)("sound") == ""
