"""The engine of video generators: embeddings of a prompt in, progress and a video out, in the steps of a batch."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from components.engine import Call
from components.generator.diffusion_engine import DiffusionEngine
from components.generator.mp4 import Mp4
from components.generator.wan import Wan
from cornstalk.tasks.filming import VideoOptions


class VideoEngine(DiffusionEngine):
    """Frames leave as they are decoded. Fragments that an earlier attempt stored stay as they are."""

    families = {"WanPipeline": Wan}
    options = VideoOptions

    async def run(self, call: Call) -> dict[str, Any]:
        stored = b"".join(piece for piece in call.prior.get("video", ()) if isinstance(piece, bytes))
        file = Mp4(call.inputs["rate"], stored)
        async with aclosing(self.pictures(call)) as parts:
            async for frames in parts:
                for piece in await self.off_loop(file.add, frames):
                    await call.emit("video", piece)
        for piece in await self.off_loop(file.end):
            await call.emit("video", piece)
        return {}
