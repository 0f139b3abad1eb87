"""The vision tower of InternVL3: a picture as up to 12 square tiles, and once more as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels


class InternVL3(Tower):
    """tiles [t, 3, 448, 448], t from 1 to 13 -> embeddings [256 * t, size]."""

    processor = "GotOcr2ImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        tiles = self._prepared(pixels, crop_to_patches=True)["pixel_values"]
        return Picture({"tiles": tiles}, len(tiles), len(tiles) * self._patches)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        rows = self._model.get_image_features(self._put(pictures, "tiles"), return_dict=True).pooler_output
        return [part.flatten(0, 1) for part in rows.split(len(pictures[0].arrays["tiles"]))]
