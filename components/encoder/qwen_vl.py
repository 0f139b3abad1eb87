"""Vision towers of Qwen-VL: pictures keep their shape, and four patches become one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels


class Qwen25VL(Tower):
    """patches [p, 1176] (14 x 14 pixels, twice) -> embeddings [1, rows, columns, size], rows * columns = p / 4.

    The shape is what the language model derives the positions of the rows from.
    """

    processor = "Qwen2VLImageProcessorPil"

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        made = self._prepared(pixels)
        arrays = {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
        return Picture(arrays, tuple(made["image_grid_thw"][0].tolist()), len(made["pixel_values"]))

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        return [
            self._shaped(picture, rows)
            for picture, rows in zip(pictures, self._seen(pictures).pooler_output, strict=True)
        ]

    def _seen(self, pictures: Sequence[Picture]) -> Any:
        return self._model.get_image_features(
            self._put(pictures, "pixel_values"), self._put(pictures, "image_grid_thw"), return_dict=True
        )

    def _shaped(self, picture: Picture, rows: Any) -> Any:
        """[..., n, size] -> [..., 1, rows, columns, size]."""
        frames, high, wide = picture.arrays["image_grid_thw"][0].tolist()
        merge = self.config.vision_config.spatial_merge_size
        return rows.unflatten(-2, (frames, high // merge, wide // merge))


class Qwen2VL(Qwen25VL):
    """As Qwen25VL: patches [p, 1176] -> embeddings [1, rows, columns, size]."""


class Qwen3VL(Qwen25VL):
    """patches [p, 1536] (16 x 16 pixels, twice) -> embeddings [1 + layers, 1, rows, columns, size].

    The first are those of the rows; the others are deepstack features, which the first layers of the model add.
    """

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        import torch

        seen = self._seen(pictures)
        layers = zip(seen.pooler_output, *seen.deepstack_features, strict=True)
        return [self._shaped(picture, torch.stack(rows)) for picture, rows in zip(pictures, layers, strict=True)]
