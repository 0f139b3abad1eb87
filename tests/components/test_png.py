"""PNGs in pieces: readable by all, and gone on with after any piece by pixels that are nearly the same."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.generator import png
from components.generator.png import unsent
from cornstalk.errors import LineageDiverged


def pixels(high: int, wide: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), np.uint8)


def read(file: bytes) -> Any:
    image = Image.open(io.BytesIO(file))
    assert (image.format, image.mode) == ("PNG", "RGB")
    return np.asarray(image)


@pytest.mark.parametrize(("high", "wide"), [(1, 1), (64, 64), (1024, 900), (3, 5000)])
def test_what_is_read_is_what_was_written(high: int, wide: int) -> None:
    image = pixels(high, wide)
    pieces = list(unsent(image))
    assert len(pieces) == -(-high // max(1, png.BAND // (1 + 3 * wide)))
    assert all(len(piece) < 600 << 10 for piece in pieces)
    assert np.array_equal(read(b"".join(pieces)), image)
    smooth = np.broadcast_to(np.arange(wide, dtype=np.uint8)[None, :, None] % 251, (high, wide, 3))
    assert np.array_equal(read(b"".join(unsent(smooth))), smooth)


def test_who_goes_on_keeps_the_stored_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "BAND", 20 * (1 + 3 * 50))
    first, again = pixels(90, 50), pixels(90, 50, seed=1)
    pieces = list(unsent(first))
    assert len(pieces) == 5
    for told in range(6):
        stored = b"".join(pieces[:told])
        whole = read(stored + b"".join(unsent(again, stored)))
        assert np.array_equal(whole[: 20 * told], first[: 20 * told])
        assert np.array_equal(whole[20 * told :], again[20 * told :])


def test_what_is_stored_must_be_such_pieces() -> None:
    image = pixels(40, 50)
    whole = b"".join(unsent(image))
    for stored in (b"x", whole[:-5], whole[:20], b"".join(unsent(pixels(50, 40))), whole[:60] + bytes(len(whole) - 60)):
        with pytest.raises(LineageDiverged):
            list(unsent(image, stored))
