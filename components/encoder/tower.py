"""A vision tower: pixels in, rows of embeddings out. One subclass for each family of models."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from components.halves import eyes
from components.media.images import Pixels
from components.media.video import Frames, Sampled
from cornstalk.errors import SetupError

_VIDEOS: Final = "video_preprocessor_config.json"


@dataclass(frozen=True)
class Picture:
    """What a tower takes of one picture, or of the frames of a video."""

    arrays: dict[str, np.ndarray[Any, Any]]
    bucket: Any
    """Hashable. Pictures of one bucket have equal shapes and go through the tower together."""
    patches: int
    """Its share of the memory of a step."""
    times: Sequence[float] = ()
    """Of a video: seconds from its begin to each step of its embeddings along time."""


class Tower(ABC):
    """Weights of the eyes of one model. `prepare` is safe from any thread, `encode` is for one at a time."""

    processor: ClassVar[str]
    """The class of transformers that turns pixels into patches, without torchvision."""
    shares: ClassVar[bool] = False
    """Whether the tower ends before the projector, so that models with projectors of their own can share it."""

    def __init__(self, folder: Path, config: Any, dtype: Any, device: str, of: Tower | None = None) -> None:
        """`of`: whose vision tower this one uses; then only the projector is loaded. Raises SetupError."""
        import transformers

        self.config, self.dtype, self.device = config, dtype, device
        try:
            self._processor = getattr(transformers, self.processor).from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SetupError(f"{folder} does not say how pictures are prepared: {error}") from error
        self._videos = _read(folder / _VIDEOS)
        self._model: Any = self._loaded(folder, of)

    @abstractmethod
    def prepare(self, pixels: Pixels, among: int) -> Picture:
        """`pixels` RGB uint8 [h, w, 3]; `among`: how many pictures its prompt has. Raises ValueError."""

    def chosen(self, total: int, rate: float, fps: float, most: int) -> list[int]:
        """Which of `total` frames, `rate` a second, the family's own processor takes of a video: `fps` of a second."""
        count = min(max(int(total / rate * fps), 1), most, total)
        return evenly(total, count)

    @abstractmethod
    def film(self, film: Sampled) -> Picture:
        """`prepare` of the frames of a video."""

    @abstractmethod
    def encode(self, pictures: Sequence[Picture]) -> list[Any]:
        """Tensors, one for each picture of a bucket."""

    def _loaded(self, folder: Path, of: Tower | None) -> Any:
        return eyes(folder, self.config, self.dtype, self.device, of and of.vision_tower).model

    def _prepared(self, *pictures: Pixels, **more: Any) -> Any:
        return self._processor(images=list(pictures), return_tensors="np", input_data_format="channels_last", **more)

    def _put(self, pictures: Sequence[Picture], name: str) -> Any:
        """One array of all pictures, on the device."""
        import torch

        joined = torch.from_numpy(np.concatenate([picture.arrays[name] for picture in pictures])).to(self.device)
        return joined.to(self.dtype) if joined.is_floating_point() else joined

    def _squares(self, frames: Frames) -> np.ndarray[Any, Any]:
        """Frames as they are, in the one size of the tower: float32 [n, 3, h, w]."""
        own = self._processor
        shown = np.moveaxis(scaled(frames, own.size["height"], own.size["width"]), -1, 1)
        normal = [own.normalize(own.rescale(f, own.rescale_factor), own.image_mean, own.image_std) for f in shown]
        return np.stack(normal).astype(np.float32)

    @property
    def vision_tower(self) -> Any:
        """The module that others may share."""
        return self._model.vision_tower

    @property
    def _patches(self) -> int:
        """Of one tile."""
        vision = self.config.vision_config
        sides = [np.max(size) for size in (vision.image_size, vision.patch_size)]
        return int(sides[0] // sides[1]) ** 2


def scaled(frames: Frames, high: int, wide: int) -> Frames:
    """By torch, as transformers scales frames; pictures are scaled by Pillow."""
    import torch
    from torch.nn.functional import interpolate

    if frames.shape[1:3] == (high, wide):
        return frames
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    return np.asarray(interpolate(pixels, (high, wide), mode="bicubic", antialias=True).permute(0, 2, 3, 1))


def evenly(total: int, count: int, shift: float = 0.0) -> list[int]:
    """`count` numbers below `total`, one from each equal part, in the arithmetic of transformers."""
    step = total / count
    return [int(np.float32(shift + number * step)) for number in range(count)]


def _read(file: Path) -> dict[str, Any]:
    """What a folder says of videos beside what it says of pictures. Raises SetupError."""
    if not file.is_file():
        return {}
    try:
        told: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise SetupError(f"{file} does not say how videos are prepared: {error}") from error
    return told
