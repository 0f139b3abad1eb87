"""The engine of image generators: embeddings of a prompt in, progress and an image out, in the steps of a batch."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from components import models
from components.diffusers_folder import DiffusersFolder
from components.engine import Call
from components.generator.diffusion import MOST, Ask, Diffusion, Drawing, Drawings
from components.generator.png import unsent
from components.generator.qwen_image import QwenImage
from components.generator.stable_diffusion import StableDiffusion
from components.halves import device_of, dtype_of
from components.tensors import torch_of
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.painting import ImageGenerator, ImageOptions

FAMILIES: Final[dict[str, type[Diffusion]]] = {
    "StableDiffusionPipeline": StableDiffusion,
    "QwenImagePipeline": QwenImage,
}
PREVIEW: Final = 256
"""Pixels, of the longer side."""
_QUALITY: Final = 80


class ImageEngine:
    """An attempt that dies takes the steps that it made with it: the next one makes them again from the same noise, and
    says only what is not stored; rows of the image that are stored stay. Images of one size are denoised together, and
    decoded one by one.
    """

    slots = MOST

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, ImageGenerator)
        self._task = task
        self._model: Diffusion
        self._drawings: Drawings | None = None
        self._files = ThreadPoolExecutor(2, thread_name_prefix="files")

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = DiffusersFolder(models.diffusion_model(self._task.model))
        device = device_of(self._task.device)
        self._model = FAMILIES[folder.family](folder, dtype_of(self._task.dtype, device), device)
        self._drawings = Drawings(self._model)

    async def stop(self) -> None:
        if self._drawings is not None:
            await self._drawings.close()
        self._files.shutdown()

    def stats(self) -> dict[str, float]:
        return self._drawings.stats() if self._drawings is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._drawings is not None
        drawing = await asyncio.to_thread(self._begin, call)
        told = sum(len(piece) for piece in call.prior.get("progress", ()))
        async with aclosing(self._drawings.results(drawing)) as steps:
            async for made in steps:
                if made.step > told:
                    shown = made.picture is not None and made.step < drawing.of
                    preview = await self._off_loop(_jpeg, made.picture) if shown else b""
                    await call.emit("progress", [{"step": made.step, "of": drawing.of, "preview": preview}])
        stored = b"".join(piece for piece in call.prior.get("image", ()) if isinstance(piece, bytes))
        pieces = unsent(np.asarray(made.picture), stored)
        while (piece := await self._off_loop(next, pieces, None)) is not None:
            await call.emit("image", piece)
        return {}

    async def _off_loop(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._files, work, *arguments)

    def _begin(self, call: Call) -> Drawing:
        """Raises EngineError bad_input, bad_states."""
        try:
            options = ImageOptions(**{name: call.inputs[name] for name in ImageOptions.model_fields})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise EngineError(f"{first['loc'][0]}: {first['msg']}", "bad_input") from error
        model, negative = self._model, call.inputs["negative"]
        guidance = model.guidance if options.guidance is None else options.guidance
        ask = Ask(
            prompt=self._text(call.inputs["prompt"]),
            negative=None if negative is None or guidance <= 1.0 else self._text(negative),
            width=options.width or model.side,
            height=options.height or model.side,
            steps=options.steps,
            guidance=guidance,
            seed=(call.seed if options.seed is None else options.seed) & (2**63 - 1),
            previews=options.previews,
        )
        return model.begin(ask, call.check)

    def _text(self, tensor: Any) -> Any:
        rows = torch_of(tensor)
        if not rows.is_floating_point() or rows.ndim != 2 or rows.shape[1] != self._model.text_size or not len(rows):
            raise EngineError(
                f"embeddings are {tensor.dtype} {list(tensor.shape)}, not [n, {self._model.text_size}] of this model",
                "bad_states",
            )
        return rows.to(self._model.device, self._model.dtype)


def _jpeg(picture: Any) -> bytes:
    file, small = io.BytesIO(), picture.copy()
    small.thumbnail((PREVIEW, PREVIEW))
    small.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
