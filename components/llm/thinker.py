"""The thinker of a Qwen-Omni: text, sounds and pictures in, text out, and beside it rows from which a talker speaks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Any

from components import models
from components.engine import Call
from components.llm.answer import checked, longest, say, stored_tokens
from components.llm.batch import Batch, Generation
from components.llm.chat import Chat
from components.llm.model import STEP_ROWS, Model
from components.llm.omni_prompt import omni_prompt
from components.llm.reply_rows import ReplyRows
from components.llm.sampling import sampler
from components.llm.talker_edge import EDGES, TalkerEdge
from components.llm.transformers_engine import CONTEXT
from components.loaded import Batched
from components.qwen_omni import OmniFolder
from components.tensors import torch_of
from cornstalk.tasks.omni import Thinker


class ThinkerEngine(Batched[Thinker, Batch]):
    """As TransformersEngine. The rows follow from prompt, sounds, pictures, speaker and tokens; no more leaves it."""

    slots = STEP_ROWS
    _model: Model
    _chat: Chat
    _edge: TalkerEdge

    def load(self) -> None:
        folder = OmniFolder(models.language_model(self.task.model))
        edge = EDGES[folder.family]
        self._model = Model(folder.path, CONTEXT, self.task.dtype, self.task.device, taps=edge.taps(folder.config))
        self._edge = edge(folder, self._model)
        self._chat = Chat(folder.path)
        self._edge.check(self._chat.prompt("?", ""))
        self.batch = Batch(self._model)

    async def run(self, call: Call) -> dict[str, Any]:
        inputs = dict(call.inputs)
        audio, speak, speaker = inputs.pop("audio"), inputs.pop("speak"), inputs.pop("speaker")
        ask = checked(inputs)
        voice = self._edge.voice(speaker) if speak else None
        sounds = [torch_of(rows) for rows in audio]
        prompt = await asyncio.to_thread(omni_prompt, self._chat, ask, sounds, self._model.config)
        limit = longest(ask, prompt, self._model.context, self.task.model)
        call.tokens_in = len(prompt)
        draw = sampler(ask, prompt.tokens, call.seed)
        generation = Generation(prompt, limit, self._chat.end_ids, draw, call.check, stored_tokens(call))
        async with AsyncExitStack() as stack:
            if voice is not None:
                await stack.enter_async_context(ReplyRows(call, generation, self._edge, voice))
            tokens = await stack.enter_async_context(aclosing(self.batch.results(generation)))
            call.tokens_out = await say(call, self._chat, ask, tokens)
        return {"tokens": call.tokens_out}
