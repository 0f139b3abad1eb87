"""Language models on transformers: chat turns in, text out token by token, several at a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from components import models
from components.engine import Call
from components.halves import FAMILIES
from components.llm.answer import Ask, checked, say, stored_tokens
from components.llm.batch import Batch, Generation
from components.llm.chat import Chat
from components.llm.content import content_of
from components.llm.grammar import Grammars
from components.llm.model import Model
from components.llm.pictures import READINGS, Reading, read
from components.llm.prompt import Prompt
from components.llm.sampling import sampler
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.llm import LLM

CONTEXT: Final = 4096
"""Tokens of prompt and answer together, unless the model knows fewer."""


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
        self._grammars: Grammars
        self._reading: Reading | None = None
        self._batch: Batch | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        folder = models.language_model(self._task.model)
        self._model = Model(folder, CONTEXT, self._task.dtype, self._task.device)
        self._reading = READINGS.get(self._model.config.model_type)
        self._chat = Chat(folder, sees=self._reading is not None)
        self._grammars = Grammars(self._chat, self._model.config.get_text_config().vocab_size)
        self._batch = Batch(self._model)

    async def stop(self) -> None:
        if self._batch is not None:
            await self._batch.close()

    def stats(self) -> dict[str, float]:
        return self._batch.stats() if self._batch is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        ask = checked(call.inputs)
        prompt = await asyncio.to_thread(self._prompt, ask)
        grammar = None if ask.json_schema is None else await asyncio.to_thread(self._grammars.of, ask.json_schema)
        room = self._model.context - len(prompt)
        if room < 1:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens; {self._task.model} takes {self._model.context - 1}",
                "prompt_too_long",
            )
        call.tokens_in = len(prompt)
        generation = Generation(
            prompt,
            min(ask.max_tokens, room),
            self._chat.end_ids,
            sampler(ask, prompt.tokens, call.seed),
            call.check,
            stored_tokens(call),
            logprobs=ask.logprobs,
            grammar=grammar,
        )
        assert self._batch is not None
        async with aclosing(self._batch.results(generation)) as tokens:
            call.tokens_out = await say(call, self._chat, ask, tokens)
        if grammar is not None:
            grammar.check()
        return {"tokens": call.tokens_out}

    def _prompt(self, ask: Ask) -> Prompt:
        """Raises EngineError bad_input, bad_states."""
        if self._reading is not None:
            return read(self._chat, ask, self._reading, self._model.config)
        if ask.images or ask.videos:
            known = ", ".join(FAMILIES[kind] for kind in READINGS)
            raise EngineError(f"{self._task.model} takes no pictures; {known} do", "bad_input")
        return Prompt(self._chat.turn(content_of(ask.prompt, [], []), ask.system, ask.tools)[0])
