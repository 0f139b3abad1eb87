"""The vision tower of LLaVA-OneVision: one square picture, and the squares of a larger one if it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from components.encoder.tower import Picture, Tower
from components.media.images import Pixels
from components.media.video import Sampled


class LlavaOneVision(Tower):
    """tiles [t, 3, 384, 384] -> embeddings [n, size].

    729 rows of the whole picture and up to 9 times as many of its tiles, each line of them with a row for its end. Of a
    picture among others there is one tile: 730 rows. Of a video 196 for each frame, and one for its end.
    """

    processor = "LlavaOnevisionImageProcessorPil"
    shares = True

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        # its processor tells by the length of a list whether a picture is alone
        images = [pixels] if among == 1 else [[pixels, pixels[:1, :1]]]
        made = self._processor(images=images, return_tensors="np", input_data_format="channels_last")
        tiles, size = made["pixel_values"][0], np.asarray(made["image_sizes"][:1])
        return Picture(
            {"tiles": tiles, "size": size}, ("alone" if among == 1 else "among", len(tiles)), len(tiles) * self._patches
        )

    def film(self, film: Sampled) -> Picture:
        frames = self._squares(film.frames)[None]
        return Picture({"frames": frames}, ("film", frames.shape[1]), frames.shape[1] * self._patches, film.times)

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        kind, _tiles = pictures[0].bucket
        if kind == "film":
            given = self._put(pictures, "frames")
            return list(self._model.get_video_features(given, return_dict=True).pooler_output)
        seen = self._model.get_image_features(
            self._put(pictures, "tiles"),
            self._put(pictures, "size").cpu(),
            batch_num_images=[1] * len(pictures) if kind == "alone" else [len(pictures) + 1],
            return_dict=True,
        )
        return list(seen.pooler_output)
