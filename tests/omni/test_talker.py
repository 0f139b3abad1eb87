"""The talkers of both Qwen-Omnis draw what transformers draws, several at a time, and wait for rows without a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.engine import Cancelled
from components.generator.talker import TalkerEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks.omni import Talker
from tests.components.fake_call import FakeCall, Pieces
from tests.omni import tiny_omni, tiny_omni3
from tests.omni.test_thinker import noise

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["the quick brown fox", "why?", "hello", "a dog", "jumps", "over", "lazy", "the end of it all"]
SPEAKERS = ["Ethan", "chelsie", "Aiden"]
LIMIT = 30


@dataclass(frozen=True)
class Told:
    """What a thinker sends, element by element, and what the whole model draws of it."""

    elements: list[Any]
    codes: list[Any]


@dataclass(frozen=True)
class Family:
    name: str
    folder: str
    told: list[Told]
    frame: tuple[int, ...]
    opening: int  # elements before the reply

    @property
    def plain(self) -> list[list[int]]:
        """Codes of each as they are stored: one after the other."""
        return [np.array(told.codes).ravel().tolist() for told in self.told]


def of_25(folder: str, whole: tiny_omni.Whole) -> Family:
    def told(answer: tiny_omni.Answer) -> Told:
        rows, first = answer.rows.numpy(), answer.prompt + 1
        return Told([rows[:first], *(rows[i : i + 1] for i in range(first, len(rows) - 2)), rows[-2:]], answer.codes)

    said = [whole.answer(text, seeds=(i, 0), tokens=16 + i, codes=LIMIT) for i, text in enumerate(TEXTS)]
    return Family("qwen2.5", folder, [told(answer) for answer in said], (), 1)


def of_3(folder: str, whole: tiny_omni3.Whole) -> Family:
    """Half of them answer sounds."""
    told = []
    for i, text in enumerate(TEXTS):
        sound, speaker = noise(0.5 + i, i) if i % 2 else None, SPEAKERS[i % 3]
        answer = whole.answer(text, sound, seed=i, tokens=16 + i, codes=LIMIT, speaker=speaker)
        told.append(Told([tensor.numpy() for tensor in answer.edge], answer.codes.tolist()))
    return Family("qwen3", folder, told, (tiny_omni3.GROUPS,), 4)


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3"])
def family(request: pytest.FixtureRequest) -> Family:
    if request.param == "qwen2.5":
        return of_25(str(request.getfixturevalue("folder")), request.getfixturevalue("whole"))
    return of_3(str(request.getfixturevalue("folder3")), request.getfixturevalue("whole3"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(family: Family) -> AsyncIterator[TalkerEngine]:
    engine = TalkerEngine(Talker(model=family.folder, dtype="float32", device="cpu"))
    await engine.start()
    yield engine
    await engine.stop()


def inputs(rows: Any, **more: Any) -> dict[str, Any]:
    return {**Talker.defaults, "max_codes": LIMIT, "rows": rows, **more}


def codes_of(call: FakeCall) -> list[Any]:
    arrays = [array for piece in call.pieces("codes") for array in piece]
    assert {array.dtype for array in arrays} <= {np.dtype(np.int16)}
    assert [tuple(array.ravel()) for array in arrays] == call.tokens
    return [code for array in arrays for code in array.tolist()]


async def talk(engine: TalkerEngine, told: Told, seed: int, **more: Any) -> FakeCall:
    call = FakeCall(seed=seed, **inputs(Pieces(told.elements), **more))
    result = await engine.run(call)
    assert result == {"count": call.tokens_out}
    return call


async def test_eight_at_once_each_draw_what_the_whole_model_draws(engine: TalkerEngine, family: Family) -> None:
    batches: list[float] = []

    async def one(index: int) -> list[int]:
        call = FakeCall(seed=index, **inputs(Pieces(family.told[index].elements)))
        call.on_emit = lambda _: batches.append(engine.stats()["batch"])
        await engine.run(call)
        assert {array.shape for piece in call.pieces("codes") for array in piece} == {(1, *family.frame)}
        return codes_of(call)

    assert await asyncio.gather(*map(one, range(8))) == [told.codes for told in family.told]
    assert len({str(told.codes) for told in family.told}) == 8
    assert max(batches) >= 4


async def test_one_that_waits_for_rows_holds_up_nobody(engine: TalkerEngine, family: Family) -> None:
    arrived: asyncio.Queue[list[Any] | None] = asyncio.Queue()

    class Arriving:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            while (piece := await arrived.get()) is not None:
                yield piece

    told, beside = family.told[:2]
    waiting = FakeCall(seed=0, **inputs(Arriving()))
    drawn = asyncio.Event()
    waiting.on_emit = lambda call: drawn.set() if len(codes_of(call)) == 4 else None
    running = asyncio.create_task(engine.run(waiting))
    few = family.opening + 4  # the row that is read with the opening, and three more
    for element in told.elements[:few]:
        arrived.put_nowait([element])
    await asyncio.wait_for(drawn.wait(), 20)
    assert codes_of(await talk(engine, beside, 1)) == beside.codes
    assert codes_of(waiting) == told.codes[:4]
    arrived.put_nowait(told.elements[few:])
    arrived.put_nowait(None)
    await running
    assert codes_of(waiting) == told.codes


def as_stored(family: Family, codes: Sequence[Any]) -> list[int]:
    return [int(code) for code in np.array(codes).ravel()]


@pytest.mark.parametrize("stored", [0, 1, 9, 30])
async def test_stored_codes_are_said_again_and_gone_on_with(engine: TalkerEngine, family: Family, stored: int) -> None:
    """`stored` of ten drawn moments still stand: after the loss of a generation none of them does."""
    told, beside = family.told[2:4]
    assert len(told.codes) > 10
    tensors = [np.array(told.codes[:stored], np.int16)] if stored else []
    prior = {"codes": [tensors]}
    tokens = {"codes": as_stored(family, told.codes[: max(stored, 10)])}
    again, other = await asyncio.gather(
        talk(engine, told, 2, prior=prior, prior_tokens=tokens), talk(engine, beside, 3)
    )
    assert codes_of(again) == told.codes[stored:]
    assert codes_of(other) == beside.codes


async def test_it_is_forced_to_stored_codes_that_it_would_not_draw(engine: TalkerEngine, family: Family) -> None:
    other = family.told[5].codes[:6]
    tokens = {"codes": as_stored(family, other)}
    call = await talk(engine, family.told[4], 4, prior={"codes": []}, prior_tokens=tokens)
    assert codes_of(call)[:6] == other != family.told[4].codes[:6]


async def test_the_likeliest_codes_need_no_seed(engine: TalkerEngine, family: Family) -> None:
    said = [codes_of(await talk(engine, family.told[0], seed, temperature=0.0)) for seed in (1, 2)]
    assert said[0] == said[1] != family.told[0].codes


async def test_how_codes_are_drawn_can_be_asked_for(engine: TalkerEngine, family: Family) -> None:
    """With the defaults of its family spelled out it draws the same, and with others not."""
    top_k, top_p = (40, 0.8) if family.name == "qwen2.5" else (50, 1.0)
    assert codes_of(await talk(engine, family.told[0], 0, top_k=top_k, top_p=top_p)) == family.told[0].codes
    assert codes_of(await talk(engine, family.told[0], 0, top_k=1)) != family.told[0].codes


async def test_a_reply_without_words_is_not_said(engine: TalkerEngine, family: Family) -> None:
    for rows in (Pieces(), Pieces(family.told[0].elements[: family.opening])):
        call = FakeCall(**inputs(rows))
        assert await engine.run(call) == {"count": 0}
        assert call.log == []


async def test_cancelled_it_leaves_the_others(engine: TalkerEngine, family: Family) -> None:
    doomed = FakeCall(seed=0, **inputs(Pieces(family.told[0].elements)))
    doomed.on_emit = lambda call: call.cancelled.set()
    beside = asyncio.create_task(talk(engine, family.told[1], 1))
    with pytest.raises(Cancelled):
        await engine.run(doomed)
    assert codes_of(await beside) == family.told[1].codes


async def test_what_goes_wrong_with_the_rows_ends_the_speech(engine: TalkerEngine, family: Family) -> None:
    class Broken:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            yield family.told[0].elements[: family.opening + 2]
            raise EngineError("the stream it reads ended early", "input_failed")

    with pytest.raises(EngineError, match="ended early"):
        await asyncio.wait_for(engine.run(FakeCall(**inputs(Broken()))), 20)


async def refused(engine: TalkerEngine, elements: list[Any], **more: Any) -> str | None:
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(engine.run(FakeCall(**inputs(Pieces(elements), **more))), 20)
    return caught.value.engine_code


@pytest.mark.parametrize(
    "more",
    [
        {"max_codes": 0},
        {"top_p": 1.5},
        {"top_k": 0},
        {"temperature": -1.0},
        {"repetition_penalty": 0.0},
    ],
)
async def test_what_cannot_be_meant_is_refused(engine: TalkerEngine, family: Family, more: dict[str, Any]) -> None:
    assert await refused(engine, family.told[0].elements, **more) == "bad_input"


async def test_what_no_thinker_of_the_model_sends_is_refused(engine: TalkerEngine, family: Family) -> None:
    first, *opening, reply = family.told[0].elements[: family.opening + 1]
    size = first.shape[1]
    for shape, dtype in [
        ((9, size + 1), np.float32),
        ((size,), np.float32),
        ((9, size), np.int32),
        ((0, size), np.float32),
    ]:
        rows = np.zeros(shape, dtype)
        assert await refused(engine, [rows, *opening, reply]) == "bad_rows"
        assert await refused(engine, [first, *opening, reply, rows]) == "bad_rows"
    for index, wrong in enumerate(opening):
        broken = [*opening[:index], wrong[..., :-1], *opening[index + 1 :]]
        assert await refused(engine, [first, *broken, reply]) == "bad_rows"


async def test_a_prompt_that_leaves_no_room_is_refused(engine: TalkerEngine, family: Family) -> None:
    first, *opening, reply = family.told[0].elements[: family.opening + 1]
    size = first.shape[1]
    if opening:
        opening = [np.zeros(2045, np.uint8), np.zeros((3, 2045), np.float32), opening[2]]
    assert await refused(engine, [np.zeros((2048, size), np.float32), *opening, reply]) == "prompt_too_long"


async def test_rows_and_weights_of_half_the_bytes(family: Family) -> None:
    """bfloat16, which numpy calls uint16. The same codes, however they are drawn, are not promised."""
    import torch

    def halved(element: Any) -> Any:
        if element.dtype != np.float32 or len(element) == 3:  # positions are no rows
            return element
        return torch.from_numpy(element).bfloat16().view(torch.uint16).numpy()

    engine = TalkerEngine(Talker(model=family.folder, dtype="bfloat16", device="cpu"))
    await engine.start()
    told = Told([halved(element) for element in family.told[0].elements], [])
    said = [codes_of(await talk(engine, told, 1)) for _ in range(2)]
    assert said[0] == said[1]
    assert len(said[0]) > 5
    await engine.stop()


async def test_a_talker_that_this_machine_has_no_device_for(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SetupError, match="no CUDA device"):
        await TalkerEngine(Talker(model=family.folder, device="cuda")).start()


@pytest.mark.parametrize("family", ["qwen3"], indirect=True)
async def test_one_may_say_nothing(engine: TalkerEngine, family: Family) -> None:
    """Its first draw ends it, by lot: with some seed or other. transformers makes an error of that."""
    for seed in range(2000):
        call = await talk(engine, family.told[0], seed, max_codes=1)
        if call.tokens_out == 0:
            break
    assert (call.tokens_out, codes_of(call)) == (0, [])
    assert codes_of(await talk(engine, family.told[0], seed)) == []
