"""Text out of speech, in two components: the encoder hears, the transcriber writes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import CompositeTask, UnitTask
from cornstalk.types import Tensor, Upload


class AudioEncoder(UnitTask):
    """Hears up to 30 seconds of audio (WAV, FLAC, MP3, OGG, Opus, M4A, AAC, AIFF, WebM; any rate, mono or more)."""

    kind: ClassVar[str] = "encoder"
    cached: ClassVar[bool] = True
    model: str = "whisper-tiny.en"

    class Out(BaseModel):
        states: Tensor  # float32 [1, 1500, 384] for whisper-tiny.en

    def __call__(self, *, audio: Upload) -> Out:
        raise NotImplementedError


class Transcriber(UnitTask):
    """Writes down what an AudioEncoder of the same model heard; "" for silence."""

    kind: ClassVar[str] = "llm"
    model: str = "whisper-tiny.en"

    class Out(BaseModel):
        text: str
        tokens: int

    def __call__(self, *, states: Tensor) -> Out:
        raise NotImplementedError


class SpeechToText(CompositeTask):
    """Audio in, text out."""

    encoder = AudioEncoder()
    transcriber = Transcriber()

    def invoke(self, audio: Upload) -> str:
        return self.transcriber(states=self.encoder(audio=audio).states).text
