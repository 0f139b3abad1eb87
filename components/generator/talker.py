"""The talker of a Qwen-Omni as an engine: rows of a thinker in, codes of speech out, both while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.generator.speech import Speech, Talking
from components.generator.talker_batch import CodeBatch
from components.generator.talker_frames import FrameBatch
from components.halves import device_of, dtype_of
from components.llm.model import STEP_ROWS
from components.loaded import Batched
from components.qwen_omni import OmniFolder
from components.tensors import torch_of
from cornstalk.errors import EngineError
from cornstalk.tasks.omni import Talker

_FAMILIES: Final[dict[str, Callable[[OmniFolder, Any, str], Talking[Any]]]] = {
    "qwen2_5_omni": CodeBatch,
    "qwen3_omni_moe": FrameBatch,
}


class TalkerEngine(Batched[Talker, Talking[Any]]):
    """codes: int16 [n] each, [n, codebooks] where there are several. They follow from the rows and the seed alone, not
    from how the rows were cut.

    An item that runs again is forced to the stored codes, then goes on.
    """

    slots = STEP_ROWS

    def load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = OmniFolder(models.language_model(self.task.model))
        device = device_of(self.task.device)
        self.batch = _FAMILIES[folder.family](folder, dtype_of(self.task.dtype, device), device)

    async def run(self, call: Call) -> dict[str, Any]:
        batch = self.batch
        if call.inputs["max_codes"] < 1:
            raise EngineError(f"max_codes is {call.inputs['max_codes']}; it must be at least 1", "bad_input")
        told = sum(tensor.shape[0] for piece in call.prior.get("codes", ()) for tensor in list(piece))
        speech = batch.speech(call.inputs, call.seed, call.check, call.prior_tokens.get("codes", ()))
        feeding = asyncio.create_task(self._feed(call.inputs["rows"], speech, batch))
        try:
            async with aclosing(batch.results(speech)) as frames:
                async for frame in frames:
                    call.tokens_out += 1
                    if call.tokens_out > told:
                        await call.emit("codes", [np.array(frame, np.int16).reshape(1, *batch.frame)], frame)
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        call.tokens_in = speech.read
        return {"count": call.tokens_out}

    async def _feed(self, pieces: Any, speech: Speech, batch: Talking[Any]) -> None:
        """Rows as they come. What goes wrong with them ends the speech."""
        try:
            async for piece in pieces:
                for tensor in piece:
                    speech.hear(torch_of(tensor))
                batch.news()
            speech.whole = True
        except Exception as error:
            speech.ready.put_nowait(error)
        batch.news()
