"""Small files that are what they say."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from typing import Final


def wav(samples: bytes = bytes(3200)) -> bytes:
    """16 bit, mono, 16 kHz."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples)
    return buffer.getvalue()


def png() -> bytes:
    """One grey pixel."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(b"\0\x80")) + part(b"IEND", b"")


WAV: Final = wav()
PNG: Final = png()
