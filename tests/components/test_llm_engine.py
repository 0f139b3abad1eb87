"""SmolLM2 on transformers: streamed, batched, stopped, cancelled and taken up again, on the real weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from components.engine import Cancelled
from components.llm.transformers_engine import CONTEXT, TransformersEngine
from cornstalk.errors import EngineError
from cornstalk.tasks import LLM
from tests.components.fake_call import FakeCall
from tests.components.llm_suite import *  # noqa: F403
from tests.components.llm_suite import PARIS, PROMPTS, flat, say, stored
from tests.waiting import eventually

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(LLM())
    await engine.start()
    yield engine
    await engine.stop()


async def test_an_answer_does_not_depend_on_what_runs_beside_it(engine: TransformersEngine) -> None:
    # drawn tokens show a difference in the last bit of a logit long before the likeliest ones do
    asks: list[dict[str, Any]] = [{"prompt": p, "max_tokens": 16, "temperature": i % 2} for i, p in enumerate(PROMPTS)]
    alone = [(await say(engine, **ask)).text for ask in asks]
    together = await asyncio.gather(*(say(engine, **ask) for ask in asks))
    assert [c.text for c in together] == alone
    assert len(set(alone)) == len(PROMPTS)


async def test_a_late_short_request_is_done_while_a_long_prompt_is_still_read(engine: TransformersEngine) -> None:
    done: list[str] = []

    async def named(name: str, prompt: str) -> None:
        await say(engine, prompt, max_tokens=4)
        done.append(name)

    await asyncio.gather(named("long", "word " * 600), named("short", PARIS))
    assert done == ["short", "long"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("told", [1, 7, 16])
async def test_stored_text_is_gone_on_with_as_if_nothing_had_happened(
    engine: TransformersEngine, temperature: float, told: int
) -> None:
    whole = await say(engine, PROMPTS[1], max_tokens=16, temperature=temperature)
    again, _beside = await asyncio.gather(
        say(engine, PROMPTS[1], max_tokens=16, temperature=temperature, **stored(whole, told)),
        say(engine, PROMPTS[5], max_tokens=8),
    )
    assert "".join(whole.pieces("text")[:told]) + again.text == whole.text
    assert again.tokens_out == whole.tokens_out
    assert flat(whole.tokens[:told]) + flat(again.tokens) == flat(whole.tokens)


async def test_stored_text_is_said_again_in_fewer_steps_than_the_first_time(engine: TransformersEngine) -> None:
    async def steps(**inputs: Any) -> tuple[float, FakeCall]:
        before = engine.stats()["steps"]
        call = await say(engine, PROMPTS[1], max_tokens=16, **inputs)
        return engine.stats()["steps"] - before, call

    slow, first = await steps()
    fast, _ = await steps(**stored(first, 16))
    assert (slow, fast) == (16, 3)


async def test_cancelled_it_ends_within_one_step_and_the_others_go_on(engine: TransformersEngine) -> None:
    doomed = FakeCall(prompt=PROMPTS[1], max_tokens=500)
    steps: list[float] = []

    def cancel(call: FakeCall) -> None:
        if len(call.log) == 3:
            call.cancelled.set()
            steps.append(engine.stats()["steps"])

    doomed.on_emit = cancel
    beside = asyncio.create_task(say(engine))
    with pytest.raises(Cancelled):
        await engine.run(doomed)
    assert engine.stats()["steps"] - steps[0] <= 1
    assert len(doomed.log) == 3
    assert (await beside).text == "The capital of France is Paris."


async def test_cancelled_while_its_prompt_is_read_it_ends_within_one_step(engine: TransformersEngine) -> None:
    before = engine.stats()["steps"]
    call = FakeCall(prompt="word " * 2000)
    call.cancelled.set()
    with pytest.raises(Cancelled):
        await engine.run(call)
    assert engine.stats()["steps"] - before <= 1


async def test_stopped_where_it_waits_it_leaves_the_batch(engine: TransformersEngine) -> None:
    task = asyncio.create_task(engine.run(FakeCall(prompt=PROMPTS[1], max_tokens=2000)))
    before = engine.stats()["steps"]
    await eventually(lambda: engine.stats()["steps"] > before)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await say(engine)
    assert engine.stats()["batch"] == 1


async def test_a_prompt_over_the_context_is_refused_before_any_step(engine: TransformersEngine) -> None:
    before = engine.stats()["steps"]
    with pytest.raises(EngineError, match=f"takes {CONTEXT - 1}") as caught:
        await engine.run(FakeCall(prompt="word " * CONTEXT))
    assert (caught.value.engine_code, caught.value.transient) == ("prompt_too_long", False)
    assert engine.stats()["steps"] == before
