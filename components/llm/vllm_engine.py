"""Language models on upstream vLLM: the same answers to the same calls as the transformers engine, many at a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from components import models
from components.engine import Call
from components.halves import FAMILIES as MULTIMODAL
from components.halves import config_of
from components.llm.answer import Ask, checked, longest, say
from components.llm.chat import Chat
from components.llm.content import content_of
from components.llm.grammar import checked_schema
from components.llm.pictures import READINGS, Reading, read
from components.llm.prompt import Prompt
from components.llm.vllm_pictures import FAMILIES, OF_TEXTS
from components.llm.vllm_server import Server
from cornstalk.errors import EngineError
from cornstalk.task import UnitTask
from cornstalk.tasks.llm import LLM

BLIND: Final[dict[str, Any]] = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
"""Of multimodal models: their eyes are another component, and take no memory here."""
SIGHTED: Final[dict[str, Any]] = {**BLIND, "enable_mm_embeds": True, "mm_processor_cache_gb": 0}
"""Of those whose pictures vLLM takes as embeddings."""


class VllmEngine:
    """Continuous batching, prefix caching and parallelism are vLLM's, set by the task's `engine_args`.

    An item that runs again goes on after its stored tokens: they are part of its prompt, whose memory the prefix cache
    may still hold, or are said again one by one where vLLM has to count them. What is drawn after them at a temperature
    may differ from an undisturbed run; what was stored never does.
    """

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, LLM)
        self._task = task
        self._server = Server(task.engine_args)
        self.slots = self._server.slots
        self._chat: Chat
        self._config: Any = None
        self._reading: Reading | None = None

    async def start(self) -> None:
        Server.find()
        await asyncio.to_thread(self._load, models.language_model(self._task.model))

    def _load(self, folder: Path) -> None:
        self._config = config_of(folder)
        kind = self._config.model_type
        self._reading = READINGS[kind] if kind in FAMILIES else None
        self._chat = Chat(folder, sees=kind in READINGS)
        more = SIGHTED if kind in FAMILIES else BLIND if kind in READINGS else {}
        self._server.load(folder, self._task.dtype, [*FAMILIES.values(), *OF_TEXTS.values()], more)

    async def stop(self) -> None:
        await self._server.stop()

    def stats(self) -> dict[str, float]:
        return self._server.stats()

    async def run(self, call: Call) -> dict[str, Any]:
        ask = checked(call.inputs)
        prompt = await asyncio.to_thread(self._prompt, ask)
        schema = None if ask.json_schema is None else await asyncio.to_thread(checked_schema, ask.json_schema)
        limit = longest(ask, prompt, self._server.context, self._task.model)
        call.tokens_in = len(prompt)
        drawn = self._server.tokens(call, ask, prompt, limit, self._chat.end_ids, schema=schema)
        async with aclosing(drawn) as tokens:
            call.tokens_out = await say(call, self._chat, ask, tokens)
        return {"tokens": call.tokens_out}

    def _prompt(self, ask: Ask) -> Prompt:
        """Raises EngineError bad_input, bad_states."""
        if self._reading is not None:
            return read(self._chat, ask, self._reading, self._config)
        if ask.images or ask.videos:
            known = ", ".join(MULTIMODAL[kind] for kind in FAMILIES)
            raise EngineError(f"vLLM takes no pictures for {self._task.model}; for {known} it does", "bad_input")
        return Prompt(self._chat.turn(content_of(ask.prompt, [], []), ask.system, ask.tools)[0])
