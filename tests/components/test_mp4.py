"""MP4s in pieces: readable from the first one on, and gone on with after any of them."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import pytest

from components.generator.mp4 import GROUP, Mp4

SIDE: Final = 64


def read(file: bytes) -> Any:
    """The frames, which stand side by side in time: uint8 [n, height, width, 3]."""
    import av

    with av.open(io.BytesIO(file)) as container:
        (stream,) = container.streams.video
        frames = list(container.decode(stream))
        assert [round(frame.time * stream.average_rate) for frame in frames] == list(range(len(frames)))
        return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


def scene(frames: int, wide: int = SIDE) -> Any:
    ramp = np.linspace(20, 220, wide).astype(np.uint8)
    rows = [np.roll(ramp, shift)[None, :, None] for shift in range(frames)]
    return np.stack([np.broadcast_to(row, (SIDE, wide, 3)) for row in rows])


def pieces_of(frames: Any, stored: bytes = b"", rate: int = 25) -> list[bytes]:
    file, pieces = Mp4(rate, stored), []
    for start in range(0, len(frames), 7):
        pieces += file.add(frames[start : start + 7])
    return [*pieces, *file.end()]


@pytest.mark.parametrize("rate", [1, 16, 25, 60])
@pytest.mark.parametrize("count", [1, GROUP, GROUP + 1, 40])
def test_what_is_read_is_what_was_written(count: int, rate: int) -> None:
    frames = scene(count)
    pieces = pieces_of(frames, rate=rate)
    assert len(pieces) == -(-count // GROUP)
    for told in range(1, len(pieces) + 1):
        found = read(b"".join(pieces[:told]))
        assert len(found) == min(count, told * GROUP)
        assert np.abs(found.astype(int) - frames[: len(found)]).mean() < 3


def test_who_goes_on_keeps_the_stored_fragments() -> None:
    first, again = scene(40), scene(40)[:, ::-1, ::-1]
    pieces = pieces_of(first)
    for told in range(4):
        stored = b"".join(pieces[:told])
        found = read(stored + b"".join(pieces_of(again, stored))).astype(int)
        kept = min(told * GROUP, 40)
        assert not kept or np.abs(found[:kept] - first[:kept]).mean() < 3
        assert kept == 40 or np.abs(found[kept:] - again[kept:]).mean() < 3
