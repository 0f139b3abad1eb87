"""Speech out of text."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import UnitTask
from cornstalk.types import Audio, Stream


class TextToSpeech(UnitTask):
    """Reads a text aloud, from its first sentence on, while the rest still arrives. English."""

    kind: ClassVar[str] = "generator"
    model: str = "hibari"
    voice: str = "heart"

    class Out(BaseModel):
        audio: Stream[Audio]
        samples: int

    def __call__(self, *, text: Stream[str]) -> Out:
        raise NotImplementedError
