"""The talker of Qwen2.5-Omni draws what transformers draws, several at a time, and waits for rows without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.engine import Cancelled
from components.generator.talker import TalkerEngine
from cornstalk.errors import EngineError
from cornstalk.tasks.omni import Talker
from tests.components.fake_call import FakeCall, Pieces
from tests.omni.tiny_omni import Answer, Whole

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["the quick brown fox", "why?", "hello", "a dog", "jumps", "over", "lazy", "the end of it all"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[TalkerEngine]:
    engine = TalkerEngine(Talker(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
def answers(whole: Whole) -> list[Answer]:
    return [whole.answer(text, seeds=(i, 0), tokens=16 + i, codes=30) for i, text in enumerate(TEXTS)]


def elements(answer: Answer) -> list[Any]:
    """The rows as a thinker sends them."""
    rows, first = answer.rows.numpy(), answer.prompt + 1
    return [rows[:first], *(rows[i : i + 1] for i in range(first, len(rows) - 2)), rows[-2:]]


def inputs(rows: Any, **more: Any) -> dict[str, Any]:
    return {**Talker.defaults, "max_codes": 30, "rows": rows, **more}


def codes_of(call: FakeCall) -> list[int]:
    arrays = [array for piece in call.pieces("codes") for array in piece]
    assert {array.dtype for array in arrays} <= {np.dtype(np.int16)}
    return [int(code) for array in arrays for code in array]


async def talk(engine: TalkerEngine, answer: Answer, seed: int, **more: Any) -> FakeCall:
    call = FakeCall(seed=seed, **inputs(Pieces(elements(answer)), **more))
    result = await engine.run(call)
    assert result == {"count": call.tokens_out}
    return call


async def test_eight_at_once_each_draw_what_the_whole_model_draws(engine: TalkerEngine, answers: list[Answer]) -> None:
    batches: list[float] = []

    async def one(index: int) -> list[int]:
        call = FakeCall(seed=index, **inputs(Pieces(elements(answers[index]))))
        call.on_emit = lambda _: batches.append(engine.stats()["batch"])
        await engine.run(call)
        assert [code for codes in call.tokens for code in codes] == codes_of(call)
        return codes_of(call)

    assert await asyncio.gather(*map(one, range(8))) == [answer.codes for answer in answers]
    assert len({tuple(answer.codes) for answer in answers}) == 8
    assert max(batches) >= 4


async def test_one_that_waits_for_rows_holds_up_nobody(engine: TalkerEngine, answers: list[Answer]) -> None:
    arrived: asyncio.Queue[list[Any] | None] = asyncio.Queue()

    class Arriving:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            while (piece := await arrived.get()) is not None:
                yield piece

    rows = elements(answers[0])
    waiting = FakeCall(seed=0, **inputs(Arriving()))
    drawn = asyncio.Event()
    waiting.on_emit = lambda call: drawn.set() if len(codes_of(call)) == 4 else None
    running = asyncio.create_task(engine.run(waiting))
    for row in rows[:5]:  # the prompt, the row that is read with it, and three more
        arrived.put_nowait([row])
    await asyncio.wait_for(drawn.wait(), 20)
    assert codes_of(await talk(engine, answers[1], 1)) == answers[1].codes
    assert codes_of(waiting) == answers[0].codes[:4]
    arrived.put_nowait(rows[5:])
    arrived.put_nowait(None)
    await running
    assert codes_of(waiting) == answers[0].codes


@pytest.mark.parametrize("told", [0, 1, 9, 30])
async def test_stored_codes_are_said_again_and_gone_on_with(
    engine: TalkerEngine, answers: list[Answer], told: int
) -> None:
    """`told` of ten drawn codes still stand: after the loss of a generation none of them does."""
    answer = answers[2]
    stored = [np.array(answer.codes[:told], np.int16)] if told else []
    prior = {"prior": {"codes": [stored]}, "prior_tokens": {"codes": answer.codes[: max(told, 10)]}}
    again, beside = await asyncio.gather(talk(engine, answer, 2, **prior), talk(engine, answers[3], 3))
    assert codes_of(again) == answer.codes[told:]
    assert codes_of(beside) == answers[3].codes


async def test_it_is_forced_to_stored_codes_that_it_would_not_draw(engine: TalkerEngine, answers: list[Answer]) -> None:
    other = answers[5].codes[:6]
    call = await talk(engine, answers[4], 4, prior={"codes": []}, prior_tokens={"codes": other})
    assert codes_of(call)[:6] == other != answers[4].codes[:6]


async def test_the_likeliest_codes_need_no_seed(engine: TalkerEngine, answers: list[Answer]) -> None:
    said = [codes_of(await talk(engine, answers[0], seed, temperature=0.0)) for seed in (1, 2)]
    assert said[0] == said[1] != answers[0].codes


async def test_a_reply_without_words_is_not_said(engine: TalkerEngine, answers: list[Answer]) -> None:
    for rows in (Pieces(), Pieces(elements(answers[0])[:1])):
        call = FakeCall(**inputs(rows))
        assert await engine.run(call) == {"count": 0}
        assert call.log == []


async def test_cancelled_it_leaves_the_others(engine: TalkerEngine, answers: list[Answer]) -> None:
    doomed = FakeCall(seed=0, **inputs(Pieces(elements(answers[0]))))
    doomed.on_emit = lambda call: call.cancelled.set()
    beside = asyncio.create_task(talk(engine, answers[1], 1))
    with pytest.raises(Cancelled):
        await engine.run(doomed)
    assert codes_of(await beside) == answers[1].codes


async def test_what_goes_wrong_with_the_rows_ends_the_speech(engine: TalkerEngine, answers: list[Answer]) -> None:
    class Broken:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            yield elements(answers[0])[:3]
            raise EngineError("the stream it reads ended early", "input_failed")

    with pytest.raises(EngineError, match="ended early"):
        await asyncio.wait_for(engine.run(FakeCall(**inputs(Broken()))), 20)


@pytest.mark.parametrize(
    ("rows", "more", "code"),
    [
        (np.zeros((3, 64), np.float32), {}, "bad_rows"),
        (np.zeros(128, np.float32), {}, "bad_rows"),
        (np.zeros((3, 128), np.int32), {}, "bad_rows"),
        (np.zeros((2047, 128), np.float32), {}, "prompt_too_long"),
        (np.zeros((3, 128), np.float32), {"max_codes": 0}, "bad_input"),
        (np.zeros((3, 128), np.float32), {"top_p": 1.5}, "bad_input"),
        (np.zeros((3, 128), np.float32), {"top_k": 0}, "bad_input"),
        (np.zeros((3, 128), np.float32), {"temperature": -1.0}, "bad_input"),
        (np.zeros((3, 128), np.float32), {"repetition_penalty": 0.0}, "bad_input"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    engine: TalkerEngine, rows: Any, more: dict[str, Any], code: str
) -> None:
    reply = np.zeros((1, 128), np.float32)
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(engine.run(FakeCall(**inputs(Pieces([rows, reply]), **more))), 20)
    assert caught.value.engine_code == code
