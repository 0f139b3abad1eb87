"""How large a picture and how long a sound is, by what headers say: nothing is decoded, no package is needed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

PAGES: Final = 10_000
"""Pages of a TIFF whose sizes are looked at."""
_SOF: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_INTEGER: Final = {3: "H", 4: "I", 16: "Q"}  # TIFF types

Size = tuple[int, int]


class BrokenHeader(ValueError):
    """Raised when a header is cut off or contradicts itself."""


def image_size(data: bytes, media_type: str) -> Size:
    """(width, height) in pixels; of a TIFF with many pages those of the largest. Raises BrokenHeader."""
    try:
        width, height = _SIZES[media_type](data)
    except (struct.error, IndexError) as error:
        raise BrokenHeader("its header breaks off") from error
    if width < 1 or height < 1:
        raise BrokenHeader(f"its header says {width} x {height} pixels")
    return width, height


def audio_seconds(data: bytes, media_type: str) -> float | None:
    """How long it lasts, for WAV and FLAC; None when the header does not tell. Raises BrokenHeader."""
    reader = {"audio/wav": _wav, "audio/flac": _flac}.get(media_type)
    try:
        return reader(data) if reader else None
    except struct.error as error:
        raise BrokenHeader("its header breaks off") from error


def _png(data: bytes) -> Size:
    if data[12:16] != b"IHDR":
        raise BrokenHeader("IHDR is not its first chunk")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> Size:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _bmp(data: bytes) -> Size:
    if data[14] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # negative: rows from the top


def _jpeg(data: bytes) -> Size:
    at = 2
    while at < len(data):
        if data[at] != 0xFF:  # decoders pass over what stands between segments
            at += 1
            continue
        marker = data[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 1:  # padding, and markers without length
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker in (0xD9, 0xDA):
            break
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    raise BrokenHeader("it ends before its size is told")


def _webp(data: bytes) -> Size:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low, middle, high = struct.unpack_from("<HHH", data, 24)
            return (low | (middle & 0xFF) << 16) + 1, (middle >> 8 | high << 8) + 1
    raise BrokenHeader("its first chunk is none of a picture")


def _tiff(data: bytes) -> Size:
    return max(_tiff_pages(data), key=lambda size: size[0] * size[1])


def _tiff_pages(data: bytes) -> Iterator[Size]:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    at = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    count, entry, offset = ("Q", 20, "Q") if big else ("H", 12, "I")
    seen: set[int] = set()
    while at and at not in seen and len(seen) < PAGES:
        seen.add(at)
        entries = struct.unpack_from(order + count, data, at)[0]
        at += struct.calcsize(order + count)
        if at + entries * entry > len(data):
            raise BrokenHeader(f"the directory of page {len(seen)} breaks off")
        sizes = {}
        for place in range(at, at + entries * entry, entry):
            tag, kind = struct.unpack_from(order + "HH", data, place)
            if tag in (256, 257):
                if kind not in _INTEGER:
                    raise BrokenHeader(f"the size of page {len(seen)} is no integer")
                sizes[tag] = struct.unpack_from(order + _INTEGER[kind], data, place + (12 if big else 8))[0]
        if len(sizes) < 2:
            raise BrokenHeader(f"page {len(seen)} has no size")
        yield sizes[256], sizes[257]
        at = struct.unpack_from(order + offset, data, at + entries * entry)[0]
    if not seen:
        raise BrokenHeader("it has no page")


_SIZES: Final[dict[str, Callable[[bytes], Size]]] = {
    "image/png": _png,
    "image/gif": _gif,
    "image/bmp": _bmp,
    "image/jpeg": _jpeg,
    "image/webp": _webp,
    "image/tiff": _tiff,
}


def _wav(data: bytes) -> float | None:
    """By its byte rate, so of any encoding; sound that is not there does not count."""
    order = ">" if data[:4] == b"RIFX" else "<"
    at, rate = 12, 0
    while at + 8 <= len(data):
        name, (size,) = data[at : at + 4], struct.unpack_from(order + "I", data, at + 4)
        if name == b"fmt ":
            (rate,) = struct.unpack_from(order + "I", data, at + 16)
        elif name == b"data":
            return min(size, len(data) - at - 8) / rate if rate else None
        at += 8 + size + size % 2
    raise BrokenHeader("it has no sound in it")


def _flac(data: bytes) -> float | None:
    if data[:4] != b"fLaC":  # behind an ID3 tag
        return None
    (bits,) = struct.unpack_from(">Q", data, 18)
    rate, samples = bits >> 44, bits & (1 << 36) - 1
    return samples / rate if rate and samples else None
