"""Binary frames of a WebSocket, which carry bytes beside a JSON object (docs/websocket.md).

length of the header (uint16, big-endian) | header, a JSON object in UTF-8 | the bytes
"""

from __future__ import annotations

import struct
from typing import Final

LIMIT: Final = 16 << 20
"""Bytes of one frame from a client; larger files go over HTTP."""
_HEAD: Final = struct.Struct("!H")


def join(header: bytes, data: bytes) -> bytes:
    """A binary frame. Raises ValueError for a header over 65,535 bytes."""
    if len(header) >= 1 << 16:
        raise ValueError(f"the header of a binary frame has {len(header)} bytes")
    return _HEAD.pack(len(header)) + header + data


def split(message: bytes) -> tuple[bytes, bytes]:
    """Header and bytes of a binary frame. Raises ValueError for what is none."""
    start = _HEAD.size
    if len(message) < start or len(message) < (end := start + _HEAD.unpack_from(message)[0]):
        raise ValueError("a binary frame begins with the length of its JSON header, two bytes, big-endian")
    return message[start:end], message[end:]
