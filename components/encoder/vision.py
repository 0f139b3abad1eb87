"""The engine of all vision towers: files to pixels to patches in threads, patches through the tower in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np

from components import models
from components.encoder.families import towers_of
from components.encoder.tower import Picture, Tower
from components.engine import Call
from components.fingerprint import fingerprint
from components.media.images import decode_image, picture_of
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.seeing import ImageEncoder

THREADS: Final = 2
"""Pictures that are decoded at once."""
WINDOW: Final = 0.01
"""Seconds that a picture waits at most for others that are being prepared."""
MOST: Final = 16
"""Pictures in one step."""
ROOM: Final = 16_384
"""Patches in one step; a picture that has more goes alone."""


class VisionEncoder:
    """Pictures of equal shape that wait at the same time go through the tower together.

    A picture that cannot be read fails alone, before any step.
    """

    slots = 8
    window = WINDOW
    identity = ""

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, ImageEncoder)
        self._task = task
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pictures")
        self._towers: dict[str, Tower] = {}
        self._steps: WindowedBatch[Picture, Any] | None = None

    async def start(self) -> None:
        try:
            self._towers = await asyncio.to_thread(towers_of, self._task)
            folders = [models.multimodal_model(name) for name in self._towers]
            self.identity = await asyncio.to_thread(fingerprint, folders)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error
        self._steps = WindowedBatch("encoder", self._encode, MOST, self.window)

    async def stop(self) -> None:
        if self._steps is not None:
            await self._steps.close()
        self._threads.shutdown()

    def stats(self) -> dict[str, float]:
        return self._steps.stats() if self._steps is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._steps is not None
        given = (call.inputs[name] for name in ("image", "page", "among", "adapter"))
        with self._steps.coming():
            picture = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepared, *given)
        call.check()
        most = max(1, ROOM // picture.patches)
        await call.tensor("embeddings", await self._steps.do(picture, picture.bucket, call.check, most))
        return {}

    def _prepared(self, image: bytes | np.ndarray[Any, Any], page: int, among: int, adapter: str) -> Picture:
        """Raises EngineError: bad_input, bad_image, bad_page, too_large."""
        name = adapter or self._task.model
        if name not in self._towers:
            raise EngineError(f"no adapter {name!r}; there are {', '.join(self._towers)}", "bad_input")
        pixels = decode_image(image, page=page) if isinstance(image, bytes) else picture_of(image, page)
        try:
            picture = self._towers[name].prepare(pixels, among)
        except ValueError as error:
            high, wide = pixels.shape[:2]
            raise EngineError(f"a picture of {wide} x {high} is not for this model: {error}", "bad_image") from error
        return replace(picture, bucket=(name, picture.bucket))

    def _encode(self, pictures: Sequence[Picture]) -> list[Any]:
        import torch

        name, bucket = pictures[0].bucket
        with torch.inference_mode():
            made = self._towers[name].encode([replace(picture, bucket=bucket) for picture in pictures])
            return [tensor.contiguous().cpu() for tensor in made]
