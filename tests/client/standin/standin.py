"""Stand-ins for the models of examples/spoken_answer.py: they know one answer, and are an engine of a third party."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from pydantic import BaseModel

from components.engine import Call
from cornstalk import CompositeTask, Stream, UnitTask, Upload
from cornstalk.types import Audio

QUESTION: Final = "What is the capital of France?"
WORDS: Final = ("The capital ", "of France ", "is Paris.")
PAUSE: Final = 0.05
"""Seconds before each word: longer than pieces are held back to be joined."""


def spoken(text: str) -> bytes:
    """100 samples for each character."""
    return b"".join(ord(c).to_bytes(2, "little") * 100 for c in text)


class Whisper(UnitTask):
    """Hears QUESTION in every sound."""

    kind: ClassVar[str] = "ear"

    class Out(BaseModel):
        text: str

    def __call__(self, *, audio: Upload) -> Out:
        raise NotImplementedError


class ReadText(UnitTask):
    """Reads QUESTION in every picture."""

    kind: ClassVar[str] = "eye"

    class Out(BaseModel):
        text: str

    def __call__(self, *, image: Upload) -> Out:
        raise NotImplementedError


class Watch(UnitTask):
    """Reads QUESTION in every video."""

    kind: ClassVar[str] = "watch"

    class Out(BaseModel):
        text: str

    def __call__(self, *, video: Upload) -> Out:
        raise NotImplementedError


class Watcher(CompositeTask):
    """Video in, the texts that it shows out."""

    watch = Watch()

    def invoke(self, video: Upload) -> list[Watch.Out]:
        return [self.watch(video=video)]


class SpeechToText(CompositeTask):
    """Audio in, text out."""

    whisper = Whisper()

    def invoke(self, audio: Upload) -> str:
        return self.whisper(audio=audio).text


class LLM(UnitTask):
    """Says WORDS, one piece each; "slowly" in the prompt makes it wait a second before each."""

    kind: ClassVar[str] = "mind"

    class Out(BaseModel):
        text: Stream[str]

    def __call__(self, *, prompt: str) -> Out:
        raise NotImplementedError


class TextToSpeech(UnitTask):
    """Reads aloud what arrives, piece by piece."""

    kind: ClassVar[str] = "voice"

    class Out(BaseModel):
        audio: Stream[Audio]

    def __call__(self, *, text: Stream[str]) -> Out:
        raise NotImplementedError


class Engine:
    """Runs all of them. Emits only what earlier attempts have not."""

    slots = 4

    def __init__(self, task: UnitTask) -> None:
        self._task = task

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def stats(self) -> dict[str, float]:
        return {}

    async def run(self, call: Call) -> dict[str, Any]:
        match self._task:
            case Whisper() | ReadText() | Watch():
                return {"text": QUESTION}
            case LLM():
                await _say(call)
            case TextToSpeech():
                await _speak(call)
        return {}


async def _say(call: Call) -> None:
    said = len("".join(map(str, call.prior.get("text", ()))))
    for index, word in enumerate(WORDS):
        if len("".join(WORDS[:index])) >= said:
            await asyncio.sleep(1.0 if "slowly" in call.inputs["prompt"] else PAUSE)
            await call.emit("text", word)


async def _speak(call: Call) -> None:
    told = sum(map(len, call.prior.get("audio", ())))
    sound = b""
    async for piece in call.inputs["text"]:
        sound += spoken(str(piece))
        if len(sound) > told:
            await call.emit("audio", sound[told:])
            told = len(sound)
