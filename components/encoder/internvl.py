"""The vision tower of InternVL3: a picture as up to 12 square tiles, and once more as a whole; a frame as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.encoder.tower import Picture, Tower, evenly
from components.media.images import Pixels
from components.media.video import Sampled


class InternVL3(Tower):
    """tiles [t, 3, 448, 448], t from 1 to 13 -> embeddings [256 * t, size]; of n frames [n, 256, size]."""

    processor = "GotOcr2ImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        tiles = self._prepared(pixels, crop_to_patches=True)["pixel_values"]
        return Picture({"tiles": tiles}, ("picture", len(tiles)), len(tiles) * self._patches)

    def chosen(self, total: int, rate: float, fps: float, most: int) -> list[int]:
        count = len(super().chosen(total, rate, fps, most))
        return evenly(total, count, total / count / 2)

    def film(self, film: Sampled) -> Picture:
        tiles = self._squares(film.frames)
        return Picture({"tiles": tiles}, ("film", len(tiles)), len(tiles) * self._patches, film.times)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        rows = self._model.get_image_features(self._put(pictures, "tiles"), return_dict=True).pooler_output
        kind, tiles = pictures[0].bucket
        return [part.flatten(0, 1) if kind == "picture" else part for part in rows.split(tiles)]
