"""SmolLM2 on vLLM: all that every language model engine does, and what is vLLM's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from components.engine import Cancelled
from components.llm.transformers_engine import TransformersEngine
from components.llm.vllm_engine import VllmEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import LLM
from tests.components.fake_call import FakeCall
from tests.components.llm_suite import *  # noqa: F403
from tests.components.llm_suite import CITY, PARIS, PROMPTS, SCHEMAS, joined, say
from tests.components.tiny_lm import tiny_model
from tests.vllm.conftest import ARGUMENTS
from tests.waiting import eventually

PENALTIES: Final[list[dict[str, float]]] = [
    *({}, {}, {}, {}),
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 1.0},
]
"""With each of PROMPTS."""

pytestmark = [
    pytest.mark.models,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:::torch", "ignore:::vllm", "ignore:::transformers"),  # at their import
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(LLM(engine="vllm", dtype="float32", engine_args=ARGUMENTS))
    await engine.start()
    yield engine
    await engine.stop()


async def idle(engine: VllmEngine) -> None:
    await eventually(lambda: engine._server._llm.get_num_unfinished_requests() == 0, within=5.0)


async def test_its_tokens_are_those_of_transformers(engine: VllmEngine) -> None:
    other = TransformersEngine(LLM(dtype="float32"))
    await other.start()
    try:
        for prompt, more in zip(PROMPTS, PENALTIES, strict=True):
            ours, theirs = [await say(e, prompt, max_tokens=16, logprobs=2, **more) for e in (engine, other)]
            assert (ours.text, ours.tokens_out) == (theirs.text, theirs.tokens_out)
            for mine, its in zip(joined(ours, "logprobs"), joined(theirs, "logprobs"), strict=True):
                assert mine["logprob"] == pytest.approx(its["logprob"], abs=1e-2)
                assert [one["text"] for one in mine["top"]] == [one["text"] for one in its["top"]]
        for schema in SCHEMAS:
            ours, theirs = [await say(e, CITY, json_schema=schema) for e in (engine, other)]
            assert (ours.text, ours.tokens_out) == (theirs.text, theirs.tokens_out)
    finally:
        await other.stop()


async def test_requests_run_together_and_a_late_one_joins(engine: VllmEngine) -> None:
    largest = 0.0

    def watch(_: FakeCall) -> None:
        nonlocal largest
        largest = max(largest, engine.stats()["batch"])

    calls = [FakeCall(prompt=p, max_tokens=48) for p in PROMPTS]
    for call in calls:
        call.on_emit = watch
    early = [asyncio.create_task(engine.run(call)) for call in calls[:-1]]
    await eventually(lambda: calls[0].log, within=60)
    await engine.run(calls[-1])
    await asyncio.gather(*early)
    assert largest >= 4


async def test_a_cancel_ends_it_in_vllm_too_also_before_its_first_token(engine: VllmEngine) -> None:
    long, reading = FakeCall(prompt=PROMPTS[1], max_tokens=800), FakeCall(prompt="word " * 900)
    tasks = [asyncio.create_task(engine.run(long))]
    await eventually(lambda: long.log, within=60)
    tasks.append(asyncio.create_task(engine.run(reading)))
    await eventually(lambda: engine._server._llm.get_num_unfinished_requests() == 2, within=5.0, every=0.001)
    for call in (long, reading):
        call.cancelled.set()
    for task in tasks:
        with pytest.raises(Cancelled):
            await task
    await idle(engine)
    await say(engine)


async def test_stopped_where_it_waits_it_leaves_vllm(engine: VllmEngine) -> None:
    call = FakeCall(prompt=PROMPTS[1], max_tokens=800)
    task = asyncio.create_task(engine.run(call))
    await eventually(lambda: call.log, within=60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(engine)


async def test_a_prompt_over_the_context_is_refused_before_any_step(engine: VllmEngine) -> None:
    before = engine.stats()["steps"]
    with pytest.raises(EngineError, match="takes 1023") as caught:
        await engine.run(FakeCall(prompt="word " * 1100))
    assert (caught.value.engine_code, caught.value.transient) == ("prompt_too_long", False)
    assert engine.stats()["steps"] == before


async def test_all_that_is_asked_may_be_stored_already(engine: VllmEngine) -> None:
    whole = await say(engine, PARIS, max_tokens=4)
    before = engine.stats()["steps"]
    stored: dict[str, Any] = {
        "prior": {"text": whole.pieces("text")},
        "prior_tokens": {"text": [t for some in whole.tokens for t in some]},
    }
    again = await say(engine, PARIS, max_tokens=4, **stored)
    assert (again.pieces("text"), again.tokens_out, engine.stats()["steps"]) == ([], 4, before)


async def test_what_it_cannot_serve_is_said_at_start(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "whole", "llama")
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[: None if file.suffix == ".json" else 1000])
    with pytest.raises(SetupError, match="engine_args"):
        await VllmEngine(LLM(model=str(folder), engine="vllm", engine_args={"no_such_argument": 1})).start()
    with pytest.raises(SetupError, match="dtype"):
        VllmEngine(LLM(model=str(folder), engine="vllm", engine_args={"dtype": "float16"}))
    with pytest.raises(SetupError, match="cannot serve"):
        await VllmEngine(LLM(model=str(broken), engine="vllm", engine_args=ARGUMENTS)).start()
    with pytest.raises(ValueError, match="engine_args"):
        LLM(engine_args={"max_num_seqs": 1})
