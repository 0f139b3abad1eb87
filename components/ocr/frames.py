"""Frames of a video as a tensor, for those who look at pictures."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from components.engine import Call
from components.media.video import sample_frames
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.reading import SampleFrames

_SIDE: Final = 1280
"""Pixels. Text is looked for in pictures of that size, so larger ones would only fill the arena."""
_MOST: Final = 64


class FrameSampler:
    """Up to 150 MB of frames for 32 of them; a video is decoded in one thread."""

    slots = 2

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, SampleFrames)

    async def start(self) -> None:
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise SetupError(f"frames of videos need {error.name}: pip install 'cornstalk[models]'") from error

    async def stop(self) -> None:
        pass

    def stats(self) -> dict[str, float]:
        return {"batch": 1.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        most = call.inputs["most"]
        if not 1 <= most <= _MOST:
            raise EngineError(f"most is {most}; it must be from 1 to {_MOST}", "bad_input")
        sampled = await asyncio.to_thread(sample_frames, call.inputs["video"], count=most, fps=1.0, side=_SIDE)
        call.check()
        await call.tensor("frames", sampled.frames)
        return {"times": sampled.times}
