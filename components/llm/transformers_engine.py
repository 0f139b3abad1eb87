"""Language models on transformers: chat turns in, text out token by token, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from components import models
from components.engine import Call
from components.llm.batch import Batch, Generation, Sample
from components.llm.chat import Chat, Detokenizer
from components.llm.model import Model
from components.llm.prompt import Prompt
from components.llm.text import Stops, Unsaid
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.llm import LLM

CONTEXT: Final = 4096
"""Tokens of prompt and answer together, unless the model knows fewer."""
MAX_STOPS: Final = 16
MAX_TEMPERATURE: Final = 10.0


@dataclass(frozen=True)
class Ask:
    """A checked request."""

    prompt: str
    system: str
    max_tokens: int
    stop: list[str]
    temperature: float


class TransformersEngine:
    """Generates by continuous batching in one thread. An answer depends on its own request and seed alone.

    An item that runs again is forced to the stored tokens, then goes on: prior and new text together are what one
    undisturbed attempt would have said, and on a machine that computes otherwise still one text.
    """

    slots = 4

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, LLM)
        self._task = task
        self._model: Model
        self._chat: Chat
        self._batch: Batch | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        folder = models.language_model(self._task.model)
        self._model = Model(folder, CONTEXT, self._task.dtype)
        self._chat = Chat(folder)
        self._batch = Batch(self._model)

    async def stop(self) -> None:
        if self._batch is not None:
            await self._batch.close()

    def stats(self) -> dict[str, float]:
        batch = self._batch
        if batch is None:
            return {"batch": 0.0, "longest_step_s": 0.0, "steps": 0.0}
        return {"batch": float(batch.last), "longest_step_s": batch.longest, "steps": float(batch.steps)}

    async def run(self, call: Call) -> dict[str, Any]:
        ask = _checked(call.inputs)
        prompt = await asyncio.to_thread(self._chat.prompt, ask.prompt, ask.system)
        room = self._model.context - len(prompt)
        if room < 1:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens; {self._task.model} takes {self._model.context - 1}",
                "prompt_too_long",
            )
        call.tokens_in = len(prompt)
        forced = call.prior_tokens.get("text", [])
        sample = _sampler(ask.temperature, call.seed)
        generation = Generation(
            Prompt(prompt), min(ask.max_tokens, room), self._chat.end_ids, sample, call.check, forced
        )
        call.tokens_out = await self._say(call, generation, Stops(ask.stop), len(forced))
        return {"tokens": call.tokens_out}

    async def _say(self, call: Call, generation: Generation, stops: Stops, stored: int) -> int:
        """Emits what is new, with its tokens; the number of tokens up to the end or the stop string.

        Raises LineageDiverged before it emits if the `stored` first tokens do not give the stored text.
        """
        assert self._batch is not None
        text, unsaid = Detokenizer(self._chat), Unsaid("".join(str(p) for p in call.prior.get("text", ())))
        tokens: list[int] = []
        async with aclosing(self._batch.generate(generation)) as fresh:
            async for token in fresh:
                tokens.append(token)
                if piece := unsaid.push(stops.push(text.push(token))):
                    await call.emit("text", piece, tokens[stored:])
                    stored = max(stored, len(tokens))
                if stops.hit:
                    break
        rest = unsaid.push(stops.end())
        unsaid.end()
        if rest:
            await call.emit("text", rest, tokens[stored:])
        return len(tokens)


def _checked(inputs: Mapping[str, Any]) -> Ask:
    """Raises EngineError bad_input."""
    ask = Ask(**{**LLM.defaults, **inputs})
    if ask.max_tokens < 1:
        raise EngineError(f"max_tokens is {ask.max_tokens}; it must be at least 1", "bad_input")
    if not 0.0 <= ask.temperature <= MAX_TEMPERATURE:
        raise EngineError(f"temperature is {ask.temperature}; it must be from 0 to {MAX_TEMPERATURE}", "bad_input")
    if len(ask.stop) > MAX_STOPS or not all(ask.stop):
        raise EngineError(f"stop takes up to {MAX_STOPS} strings, none of them empty", "bad_input")
    return ask


def _sampler(temperature: float, seed: int) -> Sample:
    """The likeliest token at temperature 0; else drawn by a generator of this request alone."""
    import torch

    if temperature == 0.0:
        return lambda logits: int(logits.argmax())
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))

    def draw(logits: Any) -> int:
        scaled = (logits - logits.max()) / temperature
        return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))

    return draw
