"""Tokens per second of one vLLM worker in the whole pipeline, and of vLLM's own AsyncLLM on the same prompts.

Eight requests at once, streamed: over HTTP through gateway, NATS, dispatcher and worker; and, as the floor, straight
from an engine with the same arguments in this process. Rounds of the two take turns; both engines are there all the
time. One begins when the other is idle: a worker of vLLM waits for its next step by turning in a loop for a second,
on a core that the other needs. Needs vLLM: run it with .venv-vllm. Bar (issue 5): >= 0.9.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from bench.apps.talk import app
from components import models
from components.__main__ import ENVIRONMENT
from components.llm.chat import Chat
from components.llm.vllm_server import ENVIRONMENT as OF_VLLM
from cornstalk.tasks import LLM
from tests.stack import Stack

APP: Final = Path(__file__).parent / "apps" / "talk.py"
BAR: Final = 0.9
TOKENS: Final = 64
"""Of each answer; no story ends before."""
PROMPTS: Final = [
    f"Tell me a long story about {hero}."
    for hero in ("a fox", "the sea", "two kings", "a lost dog", "an old clock", "a ship", "the moon", "a baker")
]
QUIETLY: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
STARTS_WITHIN: Final = 300.0
IDLE: Final = 0.2
LOOK: Final = 0.5
"""Seconds."""


class Answered(NamedTuple):
    tokens: int
    first: float
    ended: float
    """When, by time.perf_counter()."""


class Round(NamedTuple):
    """What eight requests together got."""

    tokens_per_s: float
    first_token_s: float
    """Median."""


async def run(rounds: int) -> dict[str, Any]:
    for name, value in (ENVIRONMENT | OF_VLLM | QUIETLY).items():
        os.environ.setdefault(name, value)
    ((component, task),) = app.components().items()
    assert isinstance(task, LLM)
    async with Stack(replicas=1) as stack, _engine(task) as (llm, chat):
        await stack.deploy(APP, workers=False)
        stack.start_workers(component)
        await stack.wait_workers(component, 1, within=STARTS_WITHIN)
        ours, floor = [], []
        for measured in range(-1, rounds):  # the first one warms up
            await _idle()
            one = await _together(lambda p: _ask(stack, p))
            await _idle()
            pair = one, await _together(lambda p: _draw(llm, chat, p))
            if measured >= 0:
                ours.append(pair[0])
                floor.append(pair[1])
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(ours, floor, strict=True)]
    ratio = statistics.median(ratios)
    return {
        "name": "llm_overhead",
        "figures": _medians(ours) | {"tokens": TOKENS * len(PROMPTS)},
        "floor": _medians(floor),
        "ratio": {"tokens_per_s": round(ratio, 3), "of_each_round": [round(one, 3) for one in ratios]},
        "bar": {"tokens_per_s": BAR},
        "ok": ratio >= BAR,
    }


def _medians(rounds: list[Round]) -> dict[str, float]:
    return {
        "tokens_per_s": round(statistics.median(one.tokens_per_s for one in rounds), 1),
        "first_token_p50_s": round(statistics.median(one.first_token_s for one in rounds), 3),
    }


async def _idle() -> None:
    """All below this process takes less than IDLE of a core. Raises TimeoutError."""
    below = psutil.Process().children(recursive=True)

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in below)

    async with asyncio.timeout(STARTS_WITHIN):
        while True:
            before = used()
            await asyncio.sleep(LOOK)
            if used() - before < IDLE * LOOK:
                return


async def _together(ask: Callable[[str], Awaitable[Answered]]) -> Round:
    began = time.perf_counter()
    answers = await asyncio.gather(*(ask(prompt) for prompt in PROMPTS))
    tokens = [answer.tokens for answer in answers]
    if tokens != [TOKENS] * len(PROMPTS):
        raise RuntimeError(f"answers have {tokens} tokens, not {TOKENS} each")
    took = max(answer.ended for answer in answers) - began
    return Round(sum(tokens) / took, statistics.median(answer.first for answer in answers) - began)


async def _ask(stack: Stack, prompt: str) -> Answered:
    (client,), first, event = stack.clients, 0.0, ""
    body, headers = {"text": prompt, "max_tokens": TOKENS}, {"Accept": "text/event-stream"}
    async with client.stream("POST", "/apps/talk", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("event:"):
                event = line.removeprefix("event:").strip()
            elif line.startswith("data:") and event == "chunk":
                first = first or time.perf_counter()
            elif line.startswith("data:") and event == "end":
                ended = time.perf_counter()
                told = await client.get(f"/requests/{json.loads(line.removeprefix('data:'))['request']}")
                return Answered(told.json()["nodes"][0]["usage"]["tokens_out"], first, ended)
    raise RuntimeError(f"the stream ended with {event!r}")


@asynccontextmanager
async def _engine(task: LLM) -> AsyncIterator[tuple[Any, Chat]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    folder = models.language_model(task.model)
    arguments = AsyncEngineArgs(model=str(folder), dtype=task.dtype, **task.engine_args)
    llm = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
    try:
        yield llm, Chat(folder)
    finally:
        await asyncio.to_thread(llm.shutdown)


_numbers = itertools.count()


async def _draw(llm: Any, chat: Chat, prompt: str) -> Answered:
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, output_kind=RequestOutputKind.DELTA)
    first, tokens = 0.0, 0
    async for output in llm.generate(tokens_input(chat.prompt(prompt, "")), sampling, f"floor{next(_numbers)}"):
        first = first or time.perf_counter()
        tokens += len(output.outputs[0].token_ids)
    return Answered(tokens, first, time.perf_counter())
