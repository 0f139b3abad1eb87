"""What the engines of images and of videos have in common: loading, checking, progress."""

from __future__ import annotations

import asyncio
import io
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ValidationError

from components import models
from components.diffusers_folder import FAMILIES, DiffusersFolder
from components.engine import Call
from components.generator.diffusion import MOST, Ask, Diffusion, Drawing, Drawings
from components.halves import device_of, dtype_of
from components.loaded import Batched
from components.tensors import torch_of
from cornstalk.errors import EngineError

PREVIEW: Final = 256
"""Pixels, of the longer side."""
_QUALITY: Final = 80


class DiffusionEngine(Batched[Any, Drawings]):
    """An attempt that dies takes the steps that it made with it: the next one makes them again from the same noise, and
    says only what is not stored. What has one size is denoised together, and decoded one by one.
    """

    slots = MOST
    threads = 2
    families: ClassVar[Mapping[str, type[Diffusion]]]
    options: ClassVar[type[BaseModel]]
    """Inputs that are no tensors, with their ranges."""
    _model: Diffusion

    @abstractmethod
    async def run(self, call: Call) -> dict[str, Any]:
        """As Engine.run."""

    def load(self) -> None:
        import torch

        torch.set_num_threads(1)
        known = {pipeline: FAMILIES[pipeline] for pipeline in self.families}
        folder = DiffusersFolder(models.diffusion_model(self.task.model), known)
        device = device_of(self.task.device)
        self._model = self.families[folder.family](folder, dtype_of(self.task.dtype, device), device)
        self.batch = Drawings(self._model)

    async def pictures(self, call: Call) -> AsyncGenerator[Any, None]:
        """What is made of the item, in the parts in which it is decoded; emits the progress on the way."""
        drawing = await asyncio.to_thread(self._begin, call)
        told = sum(len(piece) for piece in call.prior.get("progress", ()))
        async with aclosing(self.batch.results(drawing)) as steps:
            async for made in steps:
                last = made.step == drawing.of
                if made.step > told:
                    shown = made.picture is not None and not last
                    preview = await self.off_loop(_jpeg, made.picture) if shown else b""
                    await call.emit("progress", [{"step": made.step, "of": drawing.of, "preview": preview}])
                    told = made.step
                if last:
                    yield made.picture

    def _begin(self, call: Call) -> Drawing:
        """Raises EngineError bad_input, bad_states."""
        try:
            options: Any = self.options(**{name: call.inputs[name] for name in self.options.model_fields})
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
            previews=getattr(options, "previews", 0),
            frames=getattr(options, "frames", 1),
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
