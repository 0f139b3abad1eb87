"""Text to speech with hibari (ONNX, 24 kHz): sentence by sentence, while the text still arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any

from components import models
from components.engine import Call
from components.generator.pcm import WIDTH, pcm_of, unsaid
from components.generator.sentences import Sentences
from components.loaded import Loaded
from cornstalk.errors import LineageDiverged, SetupError
from cornstalk.tasks.speech import TextToSpeech


class HibariEngine(Loaded[TextToSpeech]):
    """audio: int16 little-endian mono, 24 kHz. It follows from text and seed alone, not from the pieces of the text.

    An item that runs again makes the stored audio again (100 times faster than it lasts), and goes on after it.
    """

    slots = 4
    _tts: Any

    def load(self) -> None:
        if self.task.model != "hibari":
            raise SetupError(f"no speech model {self.task.model!r}: this release knows hibari")
        models.hibari(self.task.voice)
        from hibari import Hibari

        self._tts = Hibari(voice=self.task.voice, threads=1)
        self._speech("Ready.", [0])  # loads the pronunciation tables

    async def run(self, call: Call) -> dict[str, Any]:
        stored = b"".join(p for p in call.prior.get("audio", ()) if isinstance(p, bytes))
        told, made, index = len(stored), 0, 0
        async with aclosing(_sentences(call.inputs["text"])) as sentences:
            async for sentence in sentences:
                call.check()
                pcm = await self.off_loop(self._speech, sentence, [call.seed % 2**64, index])
                for piece in unsaid(pcm, stored[made : made + len(pcm)]):
                    await call.emit("audio", piece)
                made, index = made + len(pcm), index + 1
        if made < told:
            raise LineageDiverged(f"{told} bytes of audio were stored, but the text makes {made}")
        return {"samples": made // WIDTH}

    def _speech(self, sentence: str, seed: list[int]) -> bytes:
        """Each sentence draws its own noise, so it sounds the same wherever the text was cut."""
        with self.step():
            audio = self._tts(sentence, seed=seed)
        return pcm_of(audio)


async def _sentences(text: AsyncIterable[str]) -> AsyncGenerator[str, None]:
    sentences = Sentences()
    async for piece in text:
        for sentence in sentences.push(piece):
            yield sentence
    if rest := sentences.end():
        yield rest
