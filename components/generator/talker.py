"""The talker of Qwen2.5-Omni as an engine: rows of a thinker in, codes of speech out, both while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from components import models
from components.engine import Call
from components.generator.talker_batch import Batch, Draw, Speech
from components.generator.talker_model import TalkerModel
from components.halves import dtype_of
from components.llm.model import STEP_ROWS
from components.qwen_omni import OmniFolder
from components.tensors import torch_of
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import Talker


class TalkerEngine:
    """codes: int16 [n] each. They follow from the rows and the seed alone, not from how the rows were cut.

    An item that runs again is forced to the stored codes, then goes on.
    """

    slots = STEP_ROWS

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, Talker)
        self._task = task
        self._model: TalkerModel
        self._batch: Batch | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        import torch

        torch.set_num_threads(1)
        folder = OmniFolder(models.language_model(self._task.model))
        self._model = TalkerModel(folder, dtype_of(self._task.dtype, "cpu"))
        self._batch = Batch(self._model)

    async def stop(self) -> None:
        if self._batch is not None:
            await self._batch.close()

    def stats(self) -> dict[str, float]:
        return self._batch.stats() if self._batch is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._batch is not None
        limit: int = call.inputs["max_codes"]
        if limit < 1:
            raise EngineError(f"max_codes is {limit}; it must be at least 1", "bad_input")
        told = sum(tensor.shape[0] for piece in call.prior.get("codes", ()) for tensor in list(piece))
        draw = _draw(call.inputs, call.seed, self._model)
        speech = Speech(limit, self._model.ends, draw, call.check, call.prior_tokens.get("codes", ()))
        feeding = asyncio.create_task(self._feed(call.inputs["rows"], speech))
        try:
            async with aclosing(self._batch.results(speech)) as codes:
                async for code in codes:
                    call.tokens_out += 1
                    if call.tokens_out > told:
                        await call.emit("codes", [np.array([code], np.int16)], (code,))
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        call.tokens_in = speech.read
        return {"count": call.tokens_out}

    async def _feed(self, pieces: Any, speech: Speech) -> None:
        """Rows as they come. What goes wrong with them ends the speech."""
        assert self._batch is not None
        first: Any = None
        try:
            async for piece in pieces:
                for tensor in piece:
                    rows = self._checked(tensor)
                    if first is None:
                        first = rows
                    elif speech.prompt is None:
                        speech.prompt = self._prompt(first, rows, speech)
                        speech.rows += rows[1:]
                    else:
                        speech.rows += rows
                self._batch.news()
            speech.whole = True
        except Exception as error:
            speech.ready.put_nowait(error)
        self._batch.news()

    def _prompt(self, first: Any, rows: Any, speech: Speech) -> Any:
        import torch

        most = self._model.context - len(first) - 1
        if most < 1:
            raise EngineError(
                f"the prompt has {len(first)} rows; the talker takes {self._model.context - 2}", "prompt_too_long"
            )
        speech.limit = min(speech.limit, most)
        return torch.cat([first, rows[:1]])

    def _checked(self, tensor: Any) -> Any:
        """Raises EngineError bad_rows for what no thinker of this model gives."""
        rows = torch_of(tensor)
        if not rows.is_floating_point() or rows.ndim != 2 or rows.shape[1] != self._model.size:
            raise EngineError(
                f"rows are {tensor.dtype} {list(tensor.shape)}, not [n, {self._model.size}] of a thinker of this model",
                "bad_rows",
            )
        return rows


def _draw(inputs: Mapping[str, Any], seed: int, model: TalkerModel) -> Draw:
    """As transformers draws them, by a generator of this request alone; the likeliest at temperature 0.

    Raises EngineError bad_input.
    """
    import torch
    from transformers.generation import logits_process as process

    temperature: float = inputs["temperature"]
    try:
        processors = [
            process.RepetitionPenaltyLogitsProcessor(float(inputs["repetition_penalty"])),
            process.SuppressTokensLogitsProcessor([model.begin]),
        ]
        if temperature != 0.0:
            processors += [
                process.TemperatureLogitsWarper(float(temperature)),
                process.TopKLogitsWarper(inputs["top_k"]),
                process.TopPLogitsWarper(float(inputs["top_p"])),
            ]
    except ValueError as error:
        raise EngineError(str(error), "bad_input") from error
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))

    def draw(logits: Any, codes: Sequence[int]) -> int:
        history, scores = torch.tensor([sorted({*model.before, *codes})]), logits.unsqueeze(0)
        for processor in processors:
            scores = processor(history, scores)
        if temperature == 0.0:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))

    return draw
