"""The engine of all vision towers: files to pixels to patches in threads, patches through the tower in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np

from components.encoder.families import towers_of
from components.encoder.tower import Picture, Tower
from components.encoder.window import WINDOW, Window
from components.engine import Call
from components.media.images import decode_image, picture_of
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.seeing import ImageEncoder

THREADS: Final = 2
"""Pictures that are decoded at once."""


class VisionEncoder:
    """Pictures of equal shape that wait at the same time go through the tower together (window.py).

    A picture that cannot be read fails alone, before any step.
    """

    slots = 8
    window = WINDOW

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, ImageEncoder)
        self._task = task
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pictures")
        self._towers: dict[str, Tower] = {}
        self._window: Window | None = None

    async def start(self) -> None:
        try:
            self._towers = await asyncio.to_thread(towers_of, self._task)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error
        self._window = Window(self._encode, self.window)

    async def stop(self) -> None:
        if self._window is not None:
            await self._window.close()
        self._threads.shutdown()

    def stats(self) -> dict[str, float]:
        window = self._window
        if window is None:
            return {"batch": 0.0, "longest_step_s": 0.0, "steps": 0.0, "largest_batch": 0.0}
        return {
            "batch": float(window.last),
            "longest_step_s": window.longest,
            "steps": float(window.steps),
            "largest_batch": float(window.largest),
        }

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._window is not None
        given = (call.inputs[name] for name in ("image", "page", "among", "adapter"))
        with self._window.coming():
            picture = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepared, *given)
        call.check()
        await call.tensor("embeddings", await self._window.encode(picture, call.check))
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
