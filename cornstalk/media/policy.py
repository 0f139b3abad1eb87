"""What a marked field takes: media types, and limits that are told from headers, before anything is decoded."""

from __future__ import annotations

from typing import Final

from cornstalk.errors import BadInput, TooLarge, UnsupportedMedia
from cornstalk.media.headers import BrokenHeader, audio_seconds, image_size
from cornstalk.media.sniff import sniff

IMAGE_PIXELS: Final = 64_000_000
"""Pixels of a picture, of each page of one with many."""
AUDIO_SECONDS: Final = 3600.0
"""Seconds of sound whose header tells how long it is; a component may take less."""

MEDIA_TYPES: Final[dict[str, frozenset[str]]] = {
    "image": frozenset(f"image/{t}" for t in ("png", "jpeg", "webp", "gif", "tiff", "bmp")),
    "audio": frozenset(
        f"audio/{t}" for t in ("wav", "flac", "mpeg", "ogg", "mp4", "aac", "aiff", "webm", "x-matroska", "x-caf", "amr")
    ),
    "video": frozenset(f"video/{t}" for t in ("mp4", "quicktime", "3gpp", "webm", "x-matroska", "ogg", "x-msvideo")),
}
NAMES: Final = {
    "image": "PNG, JPEG, WebP, GIF, TIFF and BMP",
    "audio": "WAV, FLAC, MP3, OGG, Opus, M4A, AAC, AIFF, CAF, AMR, and WebM, Matroska or MP4 without pictures",
    "video": "MP4, MOV, WebM, Matroska, OGG and AVI",
}
"""The same for people."""

STATUS_OF: Final = {
    "bad_image": 422,
    "bad_page": 422,
    "bad_audio": 422,
    "bad_video": 422,
    "too_long": 413,
    "too_large": 413,
}
"""HTTP status of what only decoding finds: by these codes an engine says that the file is to blame."""


def check_upload(data: bytes, kind: str, field: str = "") -> str:
    """The media type of the bytes, told by their content, of an upload for a field that takes `kind` ("" = any).

    Raises UnsupportedMedia, TooLarge (pixels, seconds) and BadInput (a header that cannot be read); each says what was
    expected and what came.
    """
    media_type = sniff(data)
    if not kind:
        return media_type
    if media_type not in MEDIA_TYPES[kind]:
        raise UnsupportedMedia(
            f"expected {kind} (by its content), got {media_type}; what can be read is {NAMES[kind]}", field
        )
    try:
        if kind == "image":
            _check_pixels(*image_size(data, media_type), field)
        elif kind == "audio":
            _check_seconds(audio_seconds(data, media_type), field)
    except BrokenHeader as error:
        raise BadInput(f"expected {media_type}, got a broken one: {error}", field) from error
    return media_type


def _check_pixels(width: int, height: int, field: str) -> None:
    if width * height > IMAGE_PIXELS:
        raise TooLarge(
            f"expected a picture of at most {IMAGE_PIXELS / 1e6:g} million pixels, "
            f"got {width} x {height}, which are {width * height / 1e6:.1f} million",
            field,
        )


def _check_seconds(seconds: float | None, field: str) -> None:
    if seconds is not None and seconds > AUDIO_SECONDS:
        raise TooLarge(f"expected sound of at most {AUDIO_SECONDS:g} s, got {seconds:.1f} s", field)
