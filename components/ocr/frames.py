"""Frames of a video as a tensor, for those who look at pictures."""

from __future__ import annotations

from typing import Any, Final

from components.engine import Call
from components.loaded import Loaded
from components.media.video import Sampled, sample_frames
from cornstalk.errors import EngineError
from cornstalk.tasks.reading import SampleFrames

_SIDE: Final = 1280
"""Pixels. Text is looked for in pictures of that size, so larger ones would only fill the arena."""
_MOST: Final = 64


class FrameSampler(Loaded[SampleFrames]):
    """Up to 150 MB of frames for 32 of them; a video is decoded in one thread."""

    slots = threads = 2

    def load(self) -> None:
        import av  # noqa: F401

    async def run(self, call: Call) -> dict[str, Any]:
        most = call.inputs["most"]
        if not 1 <= most <= _MOST:
            raise EngineError(f"most is {most}; it must be from 1 to {_MOST}", "bad_input")
        sampled = await self.off_loop(self._sampled, call.inputs["video"], most)
        call.check()
        await call.tensor("frames", sampled.frames)
        return {"times": sampled.times}

    def _sampled(self, video: bytes, most: int) -> Sampled:
        with self.step():
            return sample_frames(video, count=most, fps=1.0, side=_SIDE)
