"""The decoder half of Whisper on CTranslate2: hidden states -> text.

CTranslate2 loads the encoder's weights too (75 MB for both halves of tiny.en, 8 bit); only the decoder's are read.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.hearing import Transcriber

_SILENCE: Final = 0.6
_UNSURE: Final = -1.0
"""Whisper's own thresholds: silence likelier than _SILENCE, and mean log probability of the text below _UNSURE."""


class WhisperDecoder:
    """The likeliest text, without timestamps. One item in the model at a time, one that waits."""

    slots = 2

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, Transcriber)
        self._task = task
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="whisper")
        self._model: Any = None
        self._tokenizer: Any = None
        self._prompt: list[int] = []
        self._longest = 0.0

    async def start(self) -> None:
        try:
            await self._off_loop(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        from ctranslate2.models import Whisper
        from tokenizers import Tokenizer

        folder = models.whisper(self._task.model)
        self._model = Whisper(str(folder), device="cpu", compute_type="int8", intra_threads=1)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._prompt = [self._tokenizer.token_to_id(t) for t in ("<|startoftranscript|>", "<|notimestamps|>")]

    async def stop(self) -> None:
        self._thread.shutdown()

    def stats(self) -> dict[str, float]:
        return {"batch": 1.0, "longest_step_s": self._longest}

    async def run(self, call: Call) -> dict[str, Any]:
        ids = await self._off_loop(self._generate, call.inputs["states"])
        call.check()
        call.tokens_out = len(ids)
        return {"text": self._tokenizer.decode(ids).strip(), "tokens": len(ids)}

    async def _off_loop(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _generate(self, states: np.ndarray[Any, Any]) -> list[int]:
        """Raises EngineError bad_states for a tensor that no encoder of this model made."""
        from ctranslate2 import StorageView

        if states.dtype != np.float32 or states.ndim != 3 or states.shape[:2] != (1, 1500):
            raise EngineError(
                f"states are {states.dtype} {list(states.shape)}, not float32 [1, 1500, size]", "bad_states"
            )
        began = time.perf_counter()
        # CTranslate2 takes only writable arrays
        view = StorageView.from_array(np.array(states, order="C"))
        try:
            result = self._model.generate(
                view, [self._prompt], beam_size=1, return_scores=True, return_no_speech_prob=True
            )[0]
        except ValueError as error:  # another size of state
            raise EngineError(f"states are not of this model: {error}", "bad_states") from error
        self._longest = max(self._longest, time.perf_counter() - began)
        silent = result.no_speech_prob > _SILENCE and result.scores[0] < _UNSURE
        return [] if silent else list(result.sequences_ids[0])
