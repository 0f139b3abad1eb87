"""What bytes are, told by their content: names and declared types of files lie."""

from __future__ import annotations

import codecs
from typing import Final

from cornstalk.media.containers import ebml_doctype, ebml_has_pictures, mp4_has_pictures

_MAGIC: Final = (
    (0, b"fLaC", "audio/flac"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"II+\x00", "image/tiff"),
    (0, b"MM\x00+", "image/tiff"),
    (0, b"caff\x00\x01", "audio/x-caf"),
    (0, b"#!AMR", "audio/amr"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
)
_RIFF: Final = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
_STILLS: Final = {b"heic": "image/heic", b"heix": "image/heic", b"mif1": "image/heic", b"avif": "image/avif"}
_SOUND_BRANDS: Final = (b"M4A ", b"M4B ", b"M4P ", b"F4A ")
_BMP_HEADERS: Final = (12, 40, 52, 56, 64, 108, 124)
_ID3: Final = 10  # bytes of its header


def sniff(data: bytes) -> str:
    """The media type of bytes: "text/plain" or "application/octet-stream" if it is none that is known here.

    MP4, WebM, Matroska and OGG are audio or video by the tracks in them.
    """
    for look in (_magic, _riff, _iso, _ebml, _ogg, _bmp, _mpeg):
        if media_type := look(data):
            return media_type
    return "text/plain" if _is_text(data) else "application/octet-stream"


def _magic(data: bytes) -> str:
    return next((media_type for offset, magic, media_type in _MAGIC if data.startswith(magic, offset)), "")


def _riff(data: bytes) -> str:
    if data[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        return _RIFF.get(data[8:12], "")
    return "audio/aiff" if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC") else ""


def _iso(data: bytes) -> str:
    """MP4 and its kin, by brand, and by the tracks in it where that is not enough."""
    if data[4:8] in (b"moov", b"mdat", b"wide"):  # QuickTime before there were brands
        return "video/quicktime"
    if data[4:8] != b"ftyp":
        return ""
    brand = data[8:12]
    if brand in _STILLS:
        return _STILLS[brand]
    if brand in _SOUND_BRANDS or mp4_has_pictures(data) is False:
        return "audio/mp4"
    return "video/quicktime" if brand == b"qt  " else "video/3gpp" if brand[:2] == b"3g" else "video/mp4"


def _ebml(data: bytes) -> str:
    if not data.startswith(b"\x1aE\xdf\xa3"):
        return ""
    kind = "audio" if ebml_has_pictures(data) is False else "video"
    return f"{kind}/webm" if ebml_doctype(data) == b"webm" else f"{kind}/x-matroska"


def _ogg(data: bytes) -> str:
    if not data.startswith(b"OggS"):
        return ""
    begins = data[28:4096]  # the first packets of all streams come first
    return "video/ogg" if b"\x80theora" in begins or b"\x01video" in begins else "audio/ogg"


def _bmp(data: bytes) -> str:
    size = int.from_bytes(data[14:18], "little")
    return "image/bmp" if data[:2] == b"BM" and size in _BMP_HEADERS else ""


def _mpeg(data: bytes) -> str:
    """MP3 or bare AAC, behind an ID3 tag or not."""
    if data[:3] == b"ID3":
        size = 0
        for byte in data[6:_ID3]:
            size = size << 7 | byte & 0x7F
        begin = data[_ID3 + size : _ID3 + size + 4]
        return "audio/flac" if begin == b"fLaC" else "audio/aac" if _is_adts(begin) else "audio/mpeg"
    return "audio/aac" if _is_adts(data) else "audio/mpeg" if _is_mpeg_frame(data) else ""


def _is_mpeg_frame(data: bytes) -> bool:
    """An MPEG audio frame header: sync, and no reserved version, layer, bit rate or sample rate."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer, bitrate, rate = data[1] >> 3 & 3, data[1] >> 1 & 3, data[2] >> 4, data[2] >> 2 & 3
    return version != 1 and layer != 0 and bitrate not in (0, 15) and rate != 3


def _is_adts(data: bytes) -> bool:
    """An AAC frame header: sync with layer 0, and no reserved sample rate."""
    return len(data) >= 4 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0 and data[2] >> 2 & 15 < 13


def _is_text(data: bytes) -> bool:
    """UTF-8 without NUL, as far as the first 512 bytes tell."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:512], final=len(data) <= 512)
    except UnicodeDecodeError:
        return False
    return "\0" not in text
