"""The vocoder of a Qwen-Omni as an engine: codes in, sound out while they still arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.generator.code2wav import Code2Wav
from components.generator.pcm import WIDTH, pcm_of, unsaid
from components.generator.sound import Part, SoundModel
from components.generator.token2wav import Token2Wav
from components.halves import device_of
from components.loaded import Batched
from components.qwen_omni import OmniFolder
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError, LineageDiverged
from cornstalk.tasks.omni import Vocoder

_FAMILIES: Final[dict[str, Callable[[OmniFolder, str], SoundModel]]] = {
    "qwen2_5_omni": Token2Wav,
    "qwen3_omni_moe": Code2Wav,
}


class VocoderEngine(Batched[Vocoder, WindowedBatch[Part, Any]]):
    """audio: int16 little-endian mono, 24 kHz. It follows from codes, speaker and seed.

    Parts of several requests are made in one step where their shapes allow; what is made together may differ from what
    is made alone by rounding (1e-6 of full scale), `whole` is bit for bit what transformers makes. An attempt that goes
    on makes only the parts that are not stored.
    """

    slots = 8
    _model: SoundModel

    def load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = OmniFolder(models.language_model(self.task.model))
        self._model = _FAMILIES[folder.family](folder, device_of(self.task.device))
        self.batch = WindowedBatch("vocoder", self._sounds, self.slots)

    async def run(self, call: Call) -> dict[str, Any]:
        voice = self._model.voice(call.inputs["speaker"], call.seed)
        codes: list[Any] = []
        stored = b"".join(piece for piece in call.prior.get("audio", ()) if isinstance(piece, bytes))
        says = self._whole if call.inputs["whole"] else self._parts
        made = await says(call, codes, voice, stored)
        if made * WIDTH < len(stored):
            raise LineageDiverged(f"{len(stored)} bytes of audio were stored, but the codes make {made * WIDTH}")
        return {"samples": made}

    async def _whole(self, call: Call, codes: list[Any], voice: Any, stored: bytes) -> int:
        async for piece in call.inputs["codes"]:
            self._take(codes, piece)
        call.check()
        if not codes:
            return 0
        if len(codes) > (most := self._model.longest):
            raise EngineError(f"{len(codes)} codes are more than the {most} that are made whole", "too_long")
        sound = await self._step(call, Part(None, codes, voice))
        for pcm in unsaid(pcm_of(sound), stored):
            await call.emit("audio", pcm)
        return int(sound.shape[0])

    async def _parts(self, call: Call, codes: list[Any], voice: Any, stored: bytes) -> int:
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
            told = stored[made * WIDTH : (made + window.samples) * WIDTH]
            call.check()
            if len(told) < window.samples * WIDTH:
                sound = await self._step(call, Part(window, codes, voice))
                for pcm in unsaid(pcm_of(sound), told):
                    await call.emit("audio", pcm)
            index, made = index + 1, made + window.samples

    async def _step(self, call: Call, part: Part) -> Any:
        shape = id(call) if part.window is None else self._model.shape(part)  # what is whole is made alone
        return await self.batch.do(part, shape, call.check)

    def _sounds(self, parts: Sequence[Part]) -> list[Any]:
        if parts[0].window is None:
            return [self._model.whole(parts[0]).numpy()]
        return list(self._model.sounds(parts).numpy())

    def _take(self, codes: list[Any], tensors: Sequence[Any]) -> None:
        """Raises EngineError bad_codes for what no talker of this model says."""
        frame = self._model.frame
        for tensor in tensors:
            if not (np.issubdtype(tensor.dtype, np.integer) and tensor.ndim and tensor.shape[1:] == frame):
                right = ["n", *map(str, frame)]
                raise EngineError(
                    f"codes are {tensor.dtype} {list(tensor.shape)}, not int16 [{', '.join(right)}]", "bad_codes"
                )
            if tensor.size and not (tensor.min() >= 0 and tensor.max() < self._model.codes):
                raise EngineError(f"codes must be below {self._model.codes}, and not negative", "bad_codes")
            codes += tensor.tolist()
