"""The engine of image generators: embeddings of a prompt in, progress and an image out, in the steps of a batch."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import numpy as np

from components.engine import Call
from components.generator.diffusion_engine import DiffusionEngine
from components.generator.png import unsent
from components.generator.qwen_image import QwenImage
from components.generator.stable_diffusion import StableDiffusion
from cornstalk.tasks.painting import ImageOptions


class ImageEngine(DiffusionEngine):
    """Rows of an image that an earlier attempt stored stay as they are."""

    families = {"StableDiffusionPipeline": StableDiffusion, "QwenImagePipeline": QwenImage}
    options = ImageOptions

    async def run(self, call: Call) -> dict[str, Any]:
        stored = b"".join(piece for piece in call.prior.get("image", ()) if isinstance(piece, bytes))
        async with aclosing(self.pictures(call)) as pictures:
            async for picture in pictures:
                pieces = unsent(np.asarray(picture), stored)
                while (piece := await self.off_loop(next, pieces, None)) is not None:
                    await call.emit("image", piece)
        return {}
