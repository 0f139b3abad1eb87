"""What clients, gateways and the spool agree on about the bytes of one upload."""

from __future__ import annotations

import hashlib
from typing import Final

LIMIT: Final = 64 << 20
"""Bytes of one upload."""
PART: Final = 512 << 10
"""Bytes that are stored at once. Where an upload goes on after a cut is a multiple of it."""


def blake2b_256(data: bytes) -> str:
    """blake2b-256 in hex, as `b2sum -l 256` prints it: the name of an upload. A millisecond per MiB."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()
