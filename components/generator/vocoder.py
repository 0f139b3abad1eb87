"""The vocoder of Qwen2.5-Omni as an engine: codes in, sound out while they still arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.generator.pcm import WIDTH, pcm_of, unsaid
from components.generator.token2wav import Part, Token2Wav
from components.qwen_omni import OmniFolder, Speaker, speaker_of
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError, LineageDiverged, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import Vocoder

_WHOLE: Final = "whole"


class VocoderEngine:
    """audio: int16 little-endian mono, 24 kHz, 480 samples a code. It follows from codes, speaker and seed.

    Parts of several requests are made in one step where their shapes allow; what is made together may differ from what
    is made alone by rounding (1e-6 of full scale), `whole` is bit for bit what transformers makes. An attempt that goes
    on makes only the parts that are not stored.
    """

    slots = 8

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, Vocoder)
        self._task = task
        self._model: Token2Wav
        self._speakers: dict[str, Speaker] = {}
        self._steps: WindowedBatch[Part, Any] | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = OmniFolder(models.language_model(self._task.model))
        self._speakers = folder.speakers()
        self._model = Token2Wav(folder)
        self._steps = WindowedBatch("vocoder", self._sounds, self.slots)

    async def stop(self) -> None:
        if self._steps is not None:
            await self._steps.close()

    def stats(self) -> dict[str, float]:
        return self._steps.stats() if self._steps is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        speaker = speaker_of(self._speakers, call.inputs["speaker"])
        codes: list[int] = []
        stored = b"".join(piece for piece in call.prior.get("audio", ()) if isinstance(piece, bytes))
        says = self._whole if call.inputs["whole"] else self._parts
        made = await says(call, codes, speaker, stored)
        if made * WIDTH < len(stored):
            raise LineageDiverged(f"{len(stored)} bytes of audio were stored, but the codes make {made * WIDTH}")
        return {"samples": made}

    async def _whole(self, call: Call, codes: list[int], speaker: Speaker, stored: bytes) -> int:
        async for piece in call.inputs["codes"]:
            self._take(codes, piece)
        call.check()
        if not codes:
            return 0
        if len(codes) * self._model.frames > self._model.most:
            most = self._model.most // self._model.frames
            raise EngineError(f"{len(codes)} codes are more than the {most} that are made whole", "too_long")
        sound = await self._step(call, (_WHOLE, id(call)), Part(None, codes, speaker, call.seed))
        for pcm in unsaid(pcm_of(sound), stored):
            await call.emit("audio", pcm)
        return int(sound.shape[0])

    async def _parts(self, call: Call, codes: list[int], speaker: Speaker, stored: bytes) -> int:
        index = made = 0
        pieces = aiter(call.inputs["codes"])
        ended = False
        while True:
            window = self._model.window(index, len(codes), ended)
            if window is None and ended:
                return made
            if window is None:
                try:
                    self._take(codes, await anext(pieces))
                except StopAsyncIteration:
                    ended = True
                continue
            samples = (window.end - window.start) * self._model.hop
            told = stored[made * WIDTH : (made + samples) * WIDTH]
            call.check()
            if len(told) < samples * WIDTH:
                part = Part(window, codes[window.first : window.last], speaker, call.seed)
                sound = await self._step(call, (window.shape, speaker.mel.shape), part)
                for pcm in unsaid(pcm_of(sound), told):
                    await call.emit("audio", pcm)
            index, made = index + 1, made + samples

    async def _step(self, call: Call, shape: Any, part: Part) -> Any:
        assert self._steps is not None
        return await self._steps.do(part, shape, call.check)

    def _sounds(self, parts: Sequence[Part]) -> list[Any]:
        if parts[0].window is None:
            return [self._model.whole(parts[0].codes, parts[0].speaker, parts[0].seed).numpy()]
        return list(self._model.sounds(parts).numpy())

    def _take(self, codes: list[int], tensors: Sequence[Any]) -> None:
        """Raises EngineError bad_codes for what no talker of this model says."""
        for tensor in tensors:
            if not (np.issubdtype(tensor.dtype, np.integer) and tensor.ndim == 1):
                raise EngineError(f"codes are {tensor.dtype} {list(tensor.shape)}, not int16 [n]", "bad_codes")
            if tensor.size and not (tensor.min() >= 0 and tensor.max() < self._model.codes):
                raise EngineError(f"codes must be below {self._model.codes}, and not negative", "bad_codes")
            codes += tensor.tolist()
