"""The decoder half of Whisper on CTranslate2: hidden states -> text.

CTranslate2 loads the encoder's weights too (75 MB for both halves of tiny.en, 8 bit); only the decoder's are read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.loaded import Loaded
from cornstalk.errors import EngineError
from cornstalk.tasks.hearing import Transcriber

_SILENCE: Final = 0.6
_UNSURE: Final = -1.0
"""Whisper's own thresholds: silence likelier than _SILENCE, and mean log probability of the text below _UNSURE."""


class WhisperDecoder(Loaded[Transcriber]):
    """The likeliest text, without timestamps. One item in the model at a time, one that waits."""

    slots = 2
    _model: Any
    _tokenizer: Any
    _prompt: list[int]

    def load(self) -> None:
        from ctranslate2.models import Whisper
        from tokenizers import Tokenizer

        folder = models.whisper(self.task.model)
        self._model = Whisper(str(folder), device="cpu", compute_type="int8", intra_threads=1)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._prompt = [self._tokenizer.token_to_id(t) for t in ("<|startoftranscript|>", "<|notimestamps|>")]

    async def run(self, call: Call) -> dict[str, Any]:
        ids = await self.off_loop(self._generate, call.inputs["states"])
        call.check()
        call.tokens_out = len(ids)
        return {"text": self._tokenizer.decode(ids).strip(), "tokens": len(ids)}

    def _generate(self, states: np.ndarray[Any, Any]) -> list[int]:
        """Raises EngineError bad_states for a tensor that no encoder of this model made."""
        from ctranslate2 import StorageView

        if states.dtype != np.float32 or states.ndim != 3 or states.shape[:2] != (1, 1500):
            raise EngineError(
                f"states are {states.dtype} {list(states.shape)}, not float32 [1, 1500, size]", "bad_states"
            )
        # CTranslate2 takes only writable arrays
        view = StorageView.from_array(np.array(states, order="C"))
        try:
            with self.step():
                result = self._model.generate(
                    view, [self._prompt], beam_size=1, return_scores=True, return_no_speech_prob=True
                )[0]
        except ValueError as error:  # another size of state
            raise EngineError(f"states are not of this model: {error}", "bad_states") from error
        silent = result.no_speech_prob > _SILENCE and result.scores[0] < _UNSURE
        return [] if silent else list(result.sequences_ids[0])
