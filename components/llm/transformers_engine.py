"""Language models on transformers: chat turns in, text out token by token, several at a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from components import models
from components.engine import Call
from components.halves import FAMILIES
from components.llm.answer import Ask, checked, longest, say, stored_tokens
from components.llm.batch import Batch, Generation
from components.llm.chat import Chat
from components.llm.content import content_of
from components.llm.grammar import Grammars
from components.llm.model import Model
from components.llm.pictures import READINGS, Reading, read
from components.llm.prompt import Prompt
from components.llm.sampling import sampler
from components.loaded import Batched
from cornstalk.errors import EngineError
from cornstalk.tasks.llm import LLM

CONTEXT: Final = 4096
"""Tokens of prompt and answer together, unless the model knows fewer."""


class TransformersEngine(Batched[LLM, Batch]):
    """Generates by continuous batching in one thread. An answer depends on its own request and seed alone.

    An item that runs again is forced to the stored tokens, then goes on: prior and new text together are what one
    undisturbed attempt would have said, and on a machine that computes otherwise still one text.
    """

    slots = 4
    _model: Model
    _chat: Chat
    _grammars: Grammars
    _reading: Reading | None

    def load(self) -> None:
        folder = models.language_model(self.task.model)
        self._model = Model(folder, CONTEXT, self.task.dtype, self.task.device)
        self._reading = READINGS.get(self._model.config.model_type)
        self._chat = Chat(folder, sees=self._reading is not None)
        self._grammars = Grammars(self._chat, self._model.config.get_text_config().vocab_size)
        self.batch = Batch(self._model)

    async def run(self, call: Call) -> dict[str, Any]:
        ask = checked(call.inputs)
        prompt = await asyncio.to_thread(self._prompt, ask)
        grammar = None if ask.json_schema is None else await asyncio.to_thread(self._grammars.of, ask.json_schema)
        limit = longest(ask, prompt, self._model.context, self.task.model)
        call.tokens_in = len(prompt)
        generation = Generation(
            prompt,
            limit,
            self._chat.end_ids,
            sampler(ask, prompt.tokens, call.seed),
            call.check,
            stored_tokens(call),
            logprobs=ask.logprobs,
            grammar=grammar,
        )
        async with aclosing(self.batch.results(generation)) as tokens:
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
            raise EngineError(f"{self.task.model} takes no pictures; {known} do", "bad_input")
        return Prompt(self._chat.turn(content_of(ask.prompt, [], []), ask.system, ask.tools)[0])
