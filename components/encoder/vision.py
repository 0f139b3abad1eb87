"""The engine of all vision towers: files to pixels to patches in threads, patches through the tower in steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from components import models
from components.encoder.families import towers_of
from components.encoder.tower import Picture, Tower
from components.engine import Call
from components.fingerprint import fingerprint
from components.loaded import Batched
from components.media.images import decode_image, picture_of
from components.media.video import choose_frames
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError
from cornstalk.tasks.seeing import ImageEncoder
from cornstalk.values import out_of_range

THREADS: Final = 2
"""Pictures that are decoded at once."""
WINDOW: Final = 0.01
"""Seconds that a picture waits at most for others that are being prepared."""
MOST: Final = 16
"""Pictures in one step."""
ROOM: Final = 16_384
"""Patches in one step; a picture that has more goes alone."""


class VisionEncoder(Batched[ImageEncoder, WindowedBatch[Picture, Any]]):
    """Pictures of equal shape that wait at the same time go through the tower together, and so do videos.

    What cannot be read fails alone, before any step.
    """

    slots = 8
    threads = THREADS
    window = WINDOW
    identity = ""
    _towers: dict[str, Tower]

    def load(self) -> None:
        self._towers = towers_of(self.task)
        self.identity = fingerprint([models.multimodal_model(name) for name in self._towers])
        self.batch = WindowedBatch("encoder", self._encode, MOST, self.window)

    async def run(self, call: Call) -> dict[str, Any]:
        with self.batch.coming():
            picture = await self.off_loop(self._prepared, call.inputs)
        call.check()
        most = max(1, ROOM // picture.patches)
        await call.tensor("embeddings", await self.batch.do(picture, picture.bucket, call.check, most))
        return {"times": list(picture.times)}

    def _prepared(self, inputs: Mapping[str, Any]) -> Picture:
        """Raises EngineError: bad_input, bad_image, bad_page, bad_video, too_long, too_large."""
        name = inputs["adapter"] or self.task.model
        if name not in self._towers:
            raise EngineError(f"no adapter {name!r}; there are {', '.join(self._towers)}", "bad_input")
        if (inputs["image"] is None) == (inputs["video"] is None):
            raise EngineError("give an image or a video", "bad_input")
        prepared = _picture if inputs["video"] is None else _film
        picture = prepared(self._towers[name], inputs)
        return replace(picture, bucket=(name, picture.bucket))

    def _encode(self, pictures: Sequence[Picture]) -> list[Any]:
        import torch

        name, bucket = pictures[0].bucket
        with torch.inference_mode():
            made = self._towers[name].encode([replace(picture, bucket=bucket) for picture in pictures])
            return [tensor.contiguous().cpu() for tensor in made]


def _picture(tower: Tower, inputs: Mapping[str, Any]) -> Picture:
    image, page = inputs["image"], inputs["page"]
    pixels = decode_image(image, page=page) if isinstance(image, bytes) else picture_of(image, page)
    try:
        return tower.prepare(pixels, inputs["among"])
    except ValueError as error:
        high, wide = pixels.shape[:2]
        raise EngineError(f"a picture of {wide} x {high} is not for this model: {error}", "bad_image") from error


def _film(tower: Tower, inputs: Mapping[str, Any]) -> Picture:
    for name in ("fps", "frames", "side"):
        if limit := out_of_range(ImageEncoder.inputs[name], inputs[name]):
            raise EngineError(f"{name}: {limit}", "bad_input")
    fps, most = inputs["fps"], inputs["frames"]
    film = choose_frames(inputs["video"], lambda total, rate: tower.chosen(total, rate, fps, most), inputs["side"])
    try:
        return tower.film(film)
    except ValueError as error:
        high, wide = film.frames.shape[1:3]
        raise EngineError(f"frames of {wide} x {high} are not for this model: {error}", "bad_video") from error
