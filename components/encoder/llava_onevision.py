"""The vision tower of LLaVA-OneVision: one square picture, and the squares of a larger one if it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels


class LlavaOneVision(Tower):
    """tiles [t, 3, 384, 384] -> embeddings [n, size].

    729 rows of the whole picture and up to 9 times as many of its tiles, each line of them with a row for its end. Of a
    picture among others there is one tile: 730 rows.
    """

    processor = "LlavaOnevisionImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        # its processor tells by the length of a list whether a picture is alone
        images = [pixels] if among == 1 else [[pixels, pixels[:1, :1]]]
        made = self._processor(images=images, return_tensors="np", input_data_format="channels_last")
        tiles, size = made["pixel_values"][0], np.asarray(made["image_sizes"][:1])
        return Picture({"tiles": tiles, "size": size}, (among == 1, len(tiles)), len(tiles) * self._patches)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        alone, _tiles = pictures[0].bucket
        seen = self._model.get_image_features(
            self._put(pictures, "tiles"),
            self._put(pictures, "size").cpu(),
            batch_num_images=[1] * len(pictures) if alone else [len(pictures) + 1],
            return_dict=True,
        )
        return list(seen.pooler_output)
