"""The thinker of a Qwen-Omni: text and sounds in, text out, and beside it the rows from which a talker speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from components import models
from components.engine import Call
from components.llm.answer import Ask, checked, say, stored_tokens
from components.llm.batch import Batch, Generation
from components.llm.chat import Chat
from components.llm.model import STEP_ROWS, Model
from components.llm.prompt import Prompt
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
    """As TransformersEngine. The rows follow from prompt, sounds, speaker and tokens; they are all that leaves it."""

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
        prompt = await asyncio.to_thread(self._prompt, ask, [torch_of(rows) for rows in audio])
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

    def _prompt(self, ask: Ask, sounds: Sequence[Any]) -> Prompt:
        """Each sound between two tokens that say so, with a placeholder for each of its rows. Raises EngineError
        bad_states.
        """
        import torch

        config = self._model.config
        size = config.get_text_config().hidden_size
        tokens: list[int] = []
        lengths = []
        for rows in sounds:
            if not rows.is_floating_point() or rows.ndim != 2 or rows.shape[1] != size:
                raise EngineError(
                    f"rows of sound {list(rows.shape)} are not [n, {size}] of the ear of this model", "bad_states"
                )
            lengths.append(rows.shape[0])
            tokens += [config.audio_start_token_id, *[config.audio_token_id] * rows.shape[0], config.audio_end_token_id]
        whole = self._chat.prompt(ask.prompt, ask.system, sounds=tokens)
        if not sounds:
            return Prompt(whole)
        at, spans = _place(whole, tokens) + 1, []
        for length in lengths:
            spans.append((at, at + length))
            at += length + 2
        return Prompt(whole, torch.cat(list(sounds)).unsqueeze(0), spans)


def _place(whole: Sequence[int], part: Sequence[int]) -> int:
    """Where in a prompt the tokens of its sounds begin: texts have no such control tokens."""
    return whole.index(part[0])
