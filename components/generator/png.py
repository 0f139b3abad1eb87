"""An image as clients get it: a PNG in pieces of whole rows, so that another attempt can go on after any of them.

What is made again may differ in the last bit of a pixel, and then no byte of a PNG that is compressed as a whole would
be the same. Here the stored rows stay, and the others follow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from cornstalk.errors import LineageDiverged

BAND: Final = 512 << 10
"""Bytes of pixels in one piece."""
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_SUB: Final = 1  # filter: what a pixel is more than the one to its left; needs no other row
_ZLIB: Final = b"\x78\x9c"


def unsent(pixels: np.ndarray[Any, Any], stored: bytes = b"") -> Iterator[bytes]:
    """The pieces of uint8 [height, width, 3] after those `stored`. Raises LineageDiverged unless they are of an
    image of this size.
    """
    high, wide, _ = pixels.shape
    head = _SIGNATURE + _part(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0))
    told = _told(stored, head)
    row = 1 + 3 * wide
    total, band = zlib.adler32(told), max(1, BAND // row)
    for start in range(len(told) // row, high, band):
        end = min(start + band, high)
        rows = _filtered(pixels[start:end])
        total = zlib.adler32(rows, total)
        press = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        data = press.compress(rows) + press.flush(zlib.Z_FINISH if end == high else zlib.Z_FULL_FLUSH)
        if start == 0:
            data = _ZLIB + data
        if end == high:
            data += struct.pack(">I", total)
        piece = _part(b"IDAT", data)
        yield (head if start == 0 else b"") + piece + (_part(b"IEND", b"") if end == high else b"")


def _filtered(pixels: np.ndarray[Any, Any]) -> bytes:
    high, wide, _ = pixels.shape
    rows = np.empty((high, 1 + 3 * wide), np.uint8)
    rows[:, 0] = _SUB
    rows[:, 1:4] = pixels[:, 0]
    rows[:, 4:] = (pixels[:, 1:] - pixels[:, :-1]).reshape(high, -1)
    return rows.tobytes()


def _told(stored: bytes, head: bytes) -> bytes:
    """The filtered rows in the pieces that are stored."""
    if not stored:
        return b""
    data, at = b"", len(head)
    try:
        while at < len(stored):
            length, kind = struct.unpack_from(">I4s", stored, at)
            data += stored[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
            at += 12 + length
        if stored.startswith(head) and at == len(stored):
            return zlib.decompressobj().decompress(data)
    except (struct.error, zlib.error) as error:
        raise LineageDiverged(f"what is stored is no image: {error}") from error
    raise LineageDiverged("what is stored is not of an image of this size")


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
