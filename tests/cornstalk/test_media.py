"""Bytes are what they contain, not what they are called."""

from __future__ import annotations

import io
import wave
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.media import AudioUpload, media_of, sniff, takes_upload, takes_uploads
from cornstalk.messages import Upload


def wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(b"\0\0" * 100)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (wav(), "audio/wav"),
        (b"fLaC\0\0\0\x22", "audio/flac"),
        (b"OggS\0\x02", "audio/ogg"),
        (b"ID3\x04\0", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"\xff\xff\xff\xff", "application/octet-stream"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"\0\0\0\x18ftypM4A ", "audio/mp4"),
        (b"\0\0\0\x18ftypisom", "video/mp4"),
        (b"hello, I am no sound", "text/plain"),
        ("é".encode() * 300, "text/plain"),
        (b"\x80\x81\x82\x83\x84\x85", "application/octet-stream"),
    ],
)
def test_sniff(data: bytes, media_type: str) -> None:
    assert sniff(data) == media_type


@given(st.binary(min_size=1))
def test_any_bytes_have_a_type(data: bytes) -> None:
    assert "/" in sniff(data)


@pytest.mark.parametrize(
    ("hint", "kind", "one", "many"),
    [
        (AudioUpload, "audio", True, False),
        (AudioUpload | None, "audio", True, False),
        (Upload, "", True, False),
        (list[AudioUpload], "audio", False, True),
        (list[Upload] | None, "", False, True),
        (Annotated[str, "x"], "", False, False),
        (dict[str, Any], "", False, False),
    ],
)
def test_what_a_field_takes(hint: Any, kind: str, one: bool, many: bool) -> None:
    assert (media_of(hint), takes_upload(hint), takes_uploads(hint)) == (kind, one, many)
