"""The thinker of a Qwen-Omni: text, sounds and pictures in, text out, and beside it rows from which a talker speaks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Any

from components import models
from components.engine import Call
from components.llm.answer import checked, say, stored_tokens
from components.llm.batch import Batch, Generation
from components.llm.chat import Chat
from components.llm.model import STEP_ROWS, Model
from components.llm.omni_prompt import omni_prompt
from components.llm.reply_rows import ReplyRows
from components.llm.sampling import sampler
from components.llm.talker_edge import EDGES, TalkerEdge
from components.llm.transformers_engine import CONTEXT
from components.qwen_omni import OmniFolder
from components.tensors import torch_of
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import Thinker


class ThinkerEngine:
    """As TransformersEngine. The rows follow from prompt, sounds, pictures, speaker and tokens; no more leaves it."""

    slots = STEP_ROWS

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, Thinker)
        self._task = task
        self._model: Model
        self._chat: Chat
        self._edge: TalkerEdge
        self._batch: Batch | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        folder = OmniFolder(models.language_model(self._task.model))
        edge = EDGES[folder.family]
        self._model = Model(folder.path, CONTEXT, self._task.dtype, taps=edge.taps(folder.config))
        self._edge = edge(folder, self._model)
        self._chat = Chat(folder.path)
        self._batch = Batch(self._model)

    async def stop(self) -> None:
        if self._batch is not None:
            await self._batch.close()

    def stats(self) -> dict[str, float]:
        return self._batch.stats() if self._batch is not None else {"batch": 0.0, "longest_step_s": 0.0}

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._batch is not None
        inputs = dict(call.inputs)
        audio, speak, speaker = inputs.pop("audio"), inputs.pop("speak"), inputs.pop("speaker")
        ask = checked(inputs)
        voice = self._edge.voice(speaker) if speak else None
        sounds = [torch_of(rows) for rows in audio]
        prompt = await asyncio.to_thread(omni_prompt, self._chat, ask, sounds, self._model.config)
        room = self._model.context - len(prompt)
        if room < 1:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens; {self._task.model} takes {self._model.context - 1}",
                "prompt_too_long",
            )
        call.tokens_in = len(prompt)
        limit, draw = min(ask.max_tokens, room), sampler(ask, prompt.tokens, call.seed)
        generation = Generation(prompt, limit, self._chat.end_ids, draw, call.check, stored_tokens(call))
        async with AsyncExitStack() as stack:
            if voice is not None:
                await stack.enter_async_context(ReplyRows(call, generation, self._edge, voice))
            tokens = await stack.enter_async_context(aclosing(self._batch.results(generation)))
            call.tokens_out = await say(call, self._chat, ask, tokens)
        return {"tokens": call.tokens_out}
