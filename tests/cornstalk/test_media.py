"""Bytes are what they contain, not what they are called."""

from __future__ import annotations

import io
import wave
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia
from cornstalk.media import (
    AudioUpload,
    BrokenHeader,
    ImageUpload,
    VideoUpload,
    audio_seconds,
    check_upload,
    image_size,
    media_of,
    sniff,
    takes_upload,
    takes_uploads,
)
from cornstalk.messages import Upload


def wav(rate: int = 16_000, frames: int = 100) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"\0\0" * frames)
    return buffer.getvalue()


def box(name: bytes, *inside: bytes) -> bytes:
    body = b"".join(inside)
    return (8 + len(body)).to_bytes(4, "big") + name + body


def mp4(*kinds: bytes, brand: bytes = b"isom") -> bytes:
    """Its data come first, its tracks of these kinds last."""
    tracks = [
        box(b"trak", box(b"mdia", box(b"mdhd", bytes(20)), box(b"hdlr", bytes(8) + k + bytes(12)))) for k in kinds
    ]
    return box(b"ftyp", brand + bytes(8)) + box(b"mdat", bytes(999)) + box(b"moov", box(b"mvhd", bytes(100)), *tracks)


def element(name: str, *inside: bytes, unknown: bool = False) -> bytes:
    body = b"".join(inside)
    size = b"\x01" + (b"\xff" * 7 if unknown else len(body).to_bytes(7, "big"))
    return bytes.fromhex(name) + size + body


def ebml(doctype: bytes, *kinds: int, unknown: bool = False) -> bytes:
    """Matroska with tracks of these kinds, as it is recorded live if its size is unknown."""
    tracks = element("1654ae6b", *(element("ae", element("d7", b"\1"), element("83", bytes([k]))) for k in kinds))
    head = element("1a45dfa3", element("4286", b"\1"), element("4282", doctype))
    return head + element(
        "18538067", element("1549a966", bytes(30)), tracks, element("1f43b675", bytes(9)), unknown=unknown
    )


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\2\0\0\0"


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
        (b"RF64" + wav()[4:], "audio/wav"),
        (b"RIFX" + wav()[4:], "audio/wav"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0AVI LIST", "video/x-msvideo"),
        (b"RIFF\0\0\0\0CDXAfmt ", "application/octet-stream"),
        (b"FORM\0\0\0\0AIFCFVER", "audio/aiff"),
        (b"GIF89a\1\0\1\0", "image/gif"),
        (b"GIF88a", "text/plain"),
        (b"II+\0\x08\0\0\0", "image/tiff"),
        (b"BM" + bytes(12) + b"\x28\0\0\0", "image/bmp"),
        (b"BMW is a car maker of Munich", "text/plain"),
        (b"caff\0\1\0\0desc", "audio/x-caf"),
        (b"#!AMR\n", "audio/amr"),
        (b"\xff\xf1\x50\x80", "audio/aac"),
        (b"ID3\4\0\0\0\0\0\3abcfLaC", "audio/flac"),
        (b"ID3\4\0\0\0\0\0\3abc\xff\xf1\x50\x80", "audio/aac"),
        (b"OggS" + bytes(24) + b"\x80theora", "video/ogg"),
        (b"OggS" + bytes(24) + b"OpusHead", "audio/ogg"),
        (mp4(b"soun"), "audio/mp4"),
        (mp4(b"soun", b"vide"), "video/mp4"),
        (mp4(b"vide"), "video/mp4"),
        (mp4(b"soun", b"vide", brand=b"M4A "), "audio/mp4"),
        (mp4(b"vide", brand=b"qt  "), "video/quicktime"),
        (mp4(b"soun", brand=b"qt  "), "audio/mp4"),
        (mp4(b"soun", b"vide", brand=b"3gp4"), "video/3gpp"),
        (mp4(brand=b"heic"), "image/heic"),
        (mp4(brand=b"avif"), "image/avif"),
        (mp4(b"soun")[:200], "video/mp4"),
        (mp4(b"vide")[20:], "video/quicktime"),
        (ebml(b"webm", 2), "audio/webm"),
        (ebml(b"webm", 2, unknown=True), "audio/webm"),
        (ebml(b"webm", 1, 2), "video/webm"),
        (ebml(b"matroska", 2), "audio/x-matroska"),
        (ebml(b"matroska", 2, 1), "video/x-matroska"),
        (ebml(b"webm", 2)[:60], "video/webm"),
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
        (ImageUpload, "image", True, False),
        (list[VideoUpload], "video", False, True),
        (Upload, "", True, False),
        (list[AudioUpload], "audio", False, True),
        (list[Upload] | None, "", False, True),
        (Annotated[str, "x"], "", False, False),
        (dict[str, Any], "", False, False),
    ],
)
def test_what_a_field_takes(hint: Any, kind: str, one: bool, many: bool) -> None:
    assert (media_of(hint), takes_upload(hint), takes_uploads(hint)) == (kind, one, many)


@settings(deadline=None)
@given(st.data())
def test_no_walk_over_boxes_is_long_or_fails(data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from([mp4(b"soun", b"vide"), ebml(b"webm", 1, 2)])))
    for _ in range(data.draw(st.integers(1, 6))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    assert "/" in sniff(bytes(file))


@given(st.sampled_from(["png", "jpeg", "webp", "gif", "tiff", "bmp"]), st.binary())
def test_sizes_of_any_bytes(kind: str, data: bytes) -> None:
    try:
        width, height = image_size(data, f"image/{kind}")
    except BrokenHeader:
        return
    assert width > 0 < height


def test_a_tiff_that_goes_in_circles_ends() -> None:
    page = b"\2\0" + b"".join(
        t.to_bytes(2, "little") + b"\3\0\1\0\0\0" + n for t, n in ((256, b"\5\0\0\0"), (257, b"\7\0\0\0"))
    )
    assert image_size(b"II*\0\x08\0\0\0" + page + b"\x08\0\0\0", "image/tiff") == (5, 7)


def test_what_a_marked_field_takes() -> None:
    assert check_upload(wav(), "audio") == check_upload(wav(), "") == "audio/wav"
    assert check_upload(png(8_000, 8_000), "image") == "image/png"
    assert check_upload(mp4(b"vide"), "video") == "video/mp4"
    assert check_upload(png(90_000, 90_000), "") == "image/png"


@pytest.mark.parametrize(
    ("data", "kind", "error", "said"),
    [
        (
            wav(),
            "image",
            UnsupportedMedia,
            "expected image (by its content), got audio/wav; what can be read is PNG, JPEG",
        ),
        (mp4(b"soun"), "video", UnsupportedMedia, "expected video (by its content), got audio/mp4"),
        (mp4(b"soun", b"vide"), "audio", UnsupportedMedia, "expected audio (by its content), got video/mp4"),
        (mp4(brand=b"heic"), "image", UnsupportedMedia, "got image/heic"),
        (png(8_001, 8_000), "image", TooLarge, "at most 64 million pixels, got 8001 x 8000, which are 64.0 million"),
        (wav(rate=1, frames=3601), "audio", TooLarge, "at most 3600 s, got 3601.0 s"),
        (png(0, 5), "image", BadInput, "expected image/png, got a broken one: its header says 0 x 5 pixels"),
        (png(5, 5)[:20], "image", BadInput, "got a broken one: its header breaks off"),
        (b"\xff\xd8\xff\xd9", "image", BadInput, "it ends before its size is told"),
        (wav()[:36], "audio", BadInput, "it has no sound in it"),
    ],
)
def test_what_it_does_not_take_and_why(data: bytes, kind: str, error: type[BadInput], said: str) -> None:
    with pytest.raises(error) as caught:
        check_upload(data, kind, "field")
    assert str(caught.value).startswith("field: expected")
    assert said in str(caught.value)
    assert caught.value.field == "field"


def test_how_long_a_wav_is() -> None:
    assert audio_seconds(wav(), "audio/wav") == pytest.approx(100 / 16_000)
    assert audio_seconds(wav(rate=50), "audio/wav") == 2
