"""What bytes are, told by their content: names and declared types of files lie."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from cornstalk.messages import Upload


@dataclass(frozen=True)
class Media:
    """Mark of an Upload field that takes one kind of media: "audio", "image" or "video"."""

    kind: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "contentMediaType": f"{self.kind}/*"}


AudioUpload = Annotated[Upload, Media("audio")]
"""An upload that must be sound: WAV, FLAC, OGG, MP3, AIFF or M4A."""

_MAGIC: Final = (
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
)
_RIFF: Final = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}


def sniff(data: bytes) -> str:
    """The media type of bytes: "text/plain" or "application/octet-stream" if it is none that is known here."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return "audio/aiff"
    for offset, magic, media_type in _MAGIC:
        if data.startswith(magic, offset):
            return media_type
    if _is_mpeg_frame(data):
        return "audio/mpeg"
    return "text/plain" if _is_text(data) else "application/octet-stream"


def _is_text(data: bytes) -> bool:
    """UTF-8 without NUL, as far as the first 512 bytes tell."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:512], final=len(data) <= 512)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _is_mpeg_frame(data: bytes) -> bool:
    """An MPEG audio frame header: sync, and no reserved version, layer, bit rate or sample rate."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer, bitrate, rate = data[1] >> 3 & 3, data[1] >> 1 & 3, data[2] >> 4, data[2] >> 2 & 3
    return version != 1 and layer != 0 and bitrate not in (0, 15) and rate != 3


def media_of(hint: Any) -> str:
    """The kind that a field declared `hint` takes, through Optional and unions; "" if any."""
    if get_origin(hint) is Annotated:
        return next((m.kind for m in get_args(hint)[1:] if isinstance(m, Media)), "") or media_of(get_args(hint)[0])
    return next((kind for arg in get_args(hint) if (kind := media_of(arg))), "")


def takes_upload(hint: Any) -> bool:
    """Whether a field declared `hint` may hold an Upload itself (not a list of them)."""
    if hint is Upload:
        return True
    if get_origin(hint) in (list, dict, tuple, set):
        return False
    return any(takes_upload(arg) for arg in get_args(hint))


def takes_uploads(hint: Any) -> bool:
    """Whether a field declared `hint` is a list of uploads."""
    if get_origin(hint) is list:
        return takes_upload(get_args(hint)[0])
    return any(takes_uploads(arg) for arg in get_args(hint) if get_origin(hint) is not dict)
