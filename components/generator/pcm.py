"""Sound as clients get it: int16 little-endian, in pieces; and what is made again beside what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from cornstalk.errors import LineageDiverged

PIECE: Final = 32_768
"""Bytes of one piece: 0.68 s at 24 kHz."""
WIDTH: Final = 2
"""Bytes of a sample."""
NEAR: Final = 64
"""Steps of int16 by which audio that is made again on another machine may differ, and nobody hears it."""


def pcm_of(sound: Any) -> bytes:
    """Float samples from -1 to 1; louder ones are clipped."""
    pcm: bytes = (np.clip(sound, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return pcm


def unsaid(pcm: bytes, stored: bytes) -> Iterator[bytes]:
    """The pieces of `pcm` after what is stored of it. Raises LineageDiverged unless it begins with that, nearly."""
    whole = min(len(stored), len(pcm)) // WIDTH  # a piece may end within a sample
    a, b = (np.frombuffer(x, "<i2", whole).astype(np.int32) for x in (pcm, stored))
    if whole and np.abs(a - b).max() > NEAR:
        raise LineageDiverged("the stored audio is not what is made now")
    for start in range(len(stored), len(pcm), PIECE):
        yield pcm[start : start + PIECE]
