"""The vision tower of Gemma 3: every picture as one square. To it a video is so many pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels
from components.media.video import Sampled


class Gemma3(Tower):
    """pixels [1, 3, 896, 896] -> embeddings [256, size]; of n frames [n, 256, size]."""

    processor = "Gemma3ImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        made = self._prepared(pixels, do_pan_and_scan=False)["pixel_values"]
        return Picture({"pixels": made}, ("picture", made.shape), self._patches)

    def film(self, film: Sampled) -> Picture:
        made = self._prepared(*film.frames, do_pan_and_scan=False)["pixel_values"]
        return Picture({"pixels": made}, ("film", made.shape), len(made) * self._patches, film.times)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        rows = self._model.get_image_features(self._put(pictures, "pixels"), return_dict=True).pooler_output
        kind, (frames, *_) = pictures[0].bucket
        return list(rows) if kind == "picture" else list(rows.split(frames))
