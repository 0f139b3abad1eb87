"""Vision towers of Qwen-VL: pictures keep their shape, and four patches become one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from components.encoder.tower import Picture, Tower, evenly, scaled
from components.media.images import Pixels
from components.media.video import Frames, Sampled

_LIMITS: Final = {"shortest": "min_pixels", "longest": "max_pixels"}
"""How older folders call them."""
_FEWEST: Final = 4
"""Frames of a video, if it has as many."""


class Qwen25VL(Tower):
    """patches [p, 1176] (14 x 14 pixels, twice) -> embeddings [1, rows, columns, size], rows * columns = p / 4.

    Of n frames [n / 2, rows, columns, size]: two in turn are one step, and steps are equal parts of the video. The
    shape and their times are what the language model derives the positions of the rows from.
    """

    processor = "Qwen2VLImageProcessorPil"

    def prepare(self, pixels: Pixels, among: int) -> Picture:
        made = self._prepared(pixels)
        arrays = {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
        return Picture(arrays, tuple(made["image_grid_thw"][0].tolist()), len(made["pixel_values"]))

    def chosen(self, total: int, rate: float, fps: float, most: int) -> list[int]:
        count = min(max(total / rate * fps, _FEWEST), min(most, total) // 2 * 2)
        return evenly(total, max(1, int(count) // 2 * 2))

    def film(self, film: Sampled) -> Picture:
        merge = self._processor.temporal_patch_size
        frames = np.concatenate([film.frames, *[film.frames[-1:]] * (-len(film.frames) % merge)])
        steps = len(frames) // merge
        made = self._prepared(*scaled(frames, *self._size(film.frames)), do_resize=False)
        # the patches of one picture hold it `merge` times, side by side
        alone = made["pixel_values"].reshape(len(frames), -1, 3, merge, self._processor.patch_size**2)[:, :, :, 0]
        joined = alone.reshape(steps, merge, *alone.shape[1:]).transpose(0, 2, 3, 1, 4)
        patches = joined.reshape(-1, made["pixel_values"].shape[1])
        grid = made["image_grid_thw"][:1] * [[steps, 1, 1]]
        arrays = {"pixel_values": patches, "image_grid_thw": grid}
        return Picture(arrays, tuple(grid[0].tolist()), len(patches), self._times(film, steps))

    def _size(self, frames: Frames) -> tuple[int, int]:
        """Height and width in which frames are seen. Raises ValueError for those of no such shape."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        high, wide = smart_resize(*frames.shape[1:3], self._factor, self._limit("shortest"), self._limit("longest"))
        return high, wide

    @property
    def _factor(self) -> int:
        """Pixels of a side of what one row stands for."""
        return int(self._processor.patch_size * self._processor.merge_size)

    def _limit(self, edge: str) -> int:
        """Pixels at least ("shortest") or at most. Of videos, if the folder says so."""
        said = self._videos.get(_LIMITS[edge]) or self._videos.get("size", {}).get(f"{edge}_edge")
        return int(said or self._processor.size[f"{edge}_edge"])

    def _times(self, film: Sampled, steps: int) -> list[float]:
        each = self._processor.temporal_patch_size / (len(film.frames) / film.seconds) if film.seconds else 0.0
        return [step * each for step in range(steps)]

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
        """[..., n, size] -> [..., steps, rows, columns, size]."""
        frames, high, wide = picture.arrays["image_grid_thw"][0].tolist()
        merge = self.config.vision_config.spatial_merge_size
        return rows.unflatten(-2, (frames, high // merge, wide // merge))


class Qwen2VL(Qwen25VL):
    """As Qwen25VL: patches [p, 1176] -> embeddings [1, rows, columns, size]."""


class Qwen3VL(Qwen25VL):
    """patches [p, 1536] (16 x 16 pixels, twice) -> embeddings [1 + layers, 1, rows, columns, size].

    The first are those of the rows; the others are deepstack features, which the first layers of the model add. The
    time of a step is the middle of those of its two frames.
    """

    def chosen(self, total: int, rate: float, fps: float, most: int) -> list[int]:
        count = min(max(int(total / rate * fps), _FEWEST), most, total)
        return [round(number) for number in np.linspace(0, total - 1, count)]

    def _size(self, frames: Frames) -> tuple[int, int]:
        """Limits for videos are those of all frames together."""
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

        merge = self._processor.temporal_patch_size
        shape = (max(len(frames), merge), *frames.shape[1:3])
        if not self._videos:
            return super()._size(frames)
        high, wide = smart_resize(*shape, merge, self._factor, self._limit("shortest"), self._limit("longest"))
        return high, wide

    def _times(self, film: Sampled, steps: int) -> list[float]:
        merge = self._processor.temporal_patch_size
        times = [*film.times, *[film.times[-1]] * (steps * merge - len(film.times))]
        return [(first + last) / 2 for first, last in zip(times[::merge], times[merge - 1 :: merge], strict=True)]

    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        import torch

        seen = self._seen(pictures)
        layers = zip(seen.pooler_output, *seen.deepstack_features, strict=True)
        return [self._shaped(picture, torch.stack(rows)) for picture, rows in zip(pictures, layers, strict=True)]
