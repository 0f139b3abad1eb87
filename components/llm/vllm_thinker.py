"""The thinker of Qwen2.5-Omni on upstream vLLM: what ThinkerEngine takes in and gives out, and rows while it thinks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from components import models
from components.engine import Call
from components.halves import rows_of
from components.llm.answer import checked, longest, say
from components.llm.chat import Chat
from components.llm.omni_prompt import omni_prompt
from components.llm.reply_rows import ReplyRows
from components.llm.talker_edge import EDGES, TalkerEdge
from components.llm.vllm_pictures import PICTURE, SOUND
from components.llm.vllm_reply import Reply
from components.llm.vllm_server import Server
from components.llm.vllm_states import States
from components.qwen_omni import FAMILIES, OmniFolder
from components.tensors import torch_of
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.omni import Thinker

FAMILY: Final = "qwen2_5_omni"
MODELS: Final = [
    f"{name}=components.llm.vllm_thinker_model:Thinker"
    for name in ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel")
]
EMBEDDINGS: Final = "thinker.model.embed_tokens.weight"


class VllmThinker:
    """As ThinkerEngine, batched by vLLM. Sounds go in as prompt embeddings, and with pictures beside them as these do;
    hidden states come out of each step.

    Prompts are read anew each time: of what its prefix cache knows, vLLM computes no states.
    """

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, Thinker)
        if int(task.engine_args.get("pipeline_parallel_size", 1)) > 1:
            raise SetupError("a thinker on vLLM has no pipeline_parallel_size: embeddings and states would be apart")
        self._task = task
        self._server = Server(task.engine_args)
        self.slots = self._server.slots
        self._numbers = itertools.count()
        self._states: States | None = None
        self._config: Any = None
        self._chat: Chat
        self._edge: TalkerEdge

    async def start(self) -> None:
        Server.find()
        self._states = States()
        await asyncio.to_thread(self._load, self._states.address)

    def _load(self, address: str) -> None:
        from vllm.config import KVTransferConfig

        folder = OmniFolder(models.language_model(self._task.model))
        if folder.family != FAMILY:
            raise SetupError(
                f"on vLLM there is a thinker of {FAMILIES[FAMILY]}, not of {FAMILIES[folder.family]}: its engine is "
                "'transformers'"
            )
        self._config = folder.config.thinker_config
        self._chat = Chat(folder.path)
        connector = KVTransferConfig(
            kv_connector="StatesConnector",
            kv_connector_module_path="components.llm.vllm_thinker_model",
            kv_role="kv_both",
            kv_connector_extra_config={"address": address},
        )
        more = {
            "limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0},
            "enable_mm_embeds": True,
            "mm_processor_cache_gb": 0,
            "enable_prefix_caching": False,
            "kv_transfer_config": connector,
        }
        self._server.load(folder.path, self._task.dtype, MODELS, more)
        self._edge = EDGES[FAMILY](folder, _Embeddings(folder, self._server.dtype))

    async def stop(self) -> None:
        await self._server.stop()
        if self._states is not None:
            await self._states.close()

    def stats(self) -> dict[str, float]:
        return self._server.stats()

    async def run(self, call: Call) -> dict[str, Any]:
        assert self._states is not None
        inputs = dict(call.inputs)
        audio, speak, speaker = inputs.pop("audio"), inputs.pop("speak"), inputs.pop("speaker")
        ask = checked(inputs)
        voice = self._edge.voice(speaker) if speak else None
        sounds = [torch_of(rows) for rows in audio]
        prompt = await asyncio.to_thread(omni_prompt, self._chat, ask, sounds, self._config)
        limit = longest(ask, prompt, self._server.context, self._task.model)
        call.tokens_in = len(prompt)
        reply, name = Reply(prompt, limit), str(next(self._numbers)) if speak else None
        async with AsyncExitStack() as stack:
            if name is not None:
                await stack.enter_async_context(ReplyRows(call, reply, self._edge, voice))
                stack.enter_context(self._states.hearing(name, reply.hear))
            modality = SOUND if prompt.positions is None else PICTURE
            drawn = self._server.tokens(call, ask, prompt, limit, self._chat.end_ids, modality=modality, heard_as=name)
            tokens = await stack.enter_async_context(aclosing(drawn))
            call.tokens_out = await say(call, self._chat, ask, reply.follow(tokens))
            if name is not None:
                await reply.told()
        return {"tokens": call.tokens_out}


class _Embeddings:
    """Those of single tokens, from the folder: in vLLM they are in another process."""

    def __init__(self, folder: OmniFolder, dtype: Any) -> None:
        self._folder, self._dtype = folder, dtype

    def embeddings(self, tokens: Sequence[int]) -> Any:
        """[n, size]."""
        return rows_of(self._folder.path, EMBEDDINGS, tokens).to(self._dtype)
