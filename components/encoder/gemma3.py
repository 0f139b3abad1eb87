"""The vision tower of Gemma 3: every picture as one square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels


class Gemma3(Tower):
    """pixels [1, 3, 896, 896] -> embeddings [256, size]."""

    processor = "Gemma3ImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        made = self._prepared(pixels, do_pan_and_scan=False)["pixel_values"]
        return Picture({"pixels": made}, made.shape, self._patches)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        return list(self._model.get_image_features(self._put(pictures, "pixels"), return_dict=True).pooler_output)
