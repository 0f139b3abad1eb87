"""The thinker of Qwen2.5-Omni says what transformers says, and hands its talker the rows that transformers hands on."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile

from components.encoder.omni_ear import OmniEarEngine
from components.llm.thinker import ThinkerEngine
from cornstalk.errors import EngineError
from cornstalk.tasks.omni import OmniEar, Thinker
from tests.components.fake_call import FakeCall
from tests.omni.tiny_omni import Answer, Whole

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

NEAR = 1e-4
"""Rows are computed in steps of other shapes than transformers'."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[ThinkerEngine]:
    engine = ThinkerEngine(Thinker(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ear(folder: Path) -> AsyncIterator[OmniEarEngine]:
    engine = OmniEarEngine(OmniEar(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


def noise(seconds: float, seed: int) -> Any:
    return (np.random.default_rng(seed).standard_normal(int(seconds * 16_000)) * 0.1).astype(np.float32)


def wav(samples: Any, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, "FLOAT", format="WAV")
    return file.getvalue()


async def hear(ear: OmniEarEngine, audio: bytes) -> Any:
    call = FakeCall(audio=audio)
    await ear.run(call)
    return call.tensors["rows"]


async def think(engine: ThinkerEngine, prompt: str, **more: Any) -> FakeCall:
    call = FakeCall(**{**Thinker.defaults, "prompt": prompt, "max_tokens": 24, **more})
    assert await engine.run(call) == {"tokens": call.tokens_out}
    return call


def rows_of(call: FakeCall) -> list[Any]:
    return [np.asarray(rows) for piece in call.pieces("rows") for rows in piece]


def tokens_of(call: FakeCall) -> list[int]:
    """Those that its rows are of."""
    return [t for (name, _), some in zip(call.log, call.tokens, strict=True) if name == "rows" for t in some]


def check(call: FakeCall, answer: Answer) -> None:
    """The last token has no row, unless it is the end of the turn, which is no part of the reply."""
    assert call.text == answer.text.rstrip("\ufffd")  # a character that breaks off is not said
    rows, tokens = rows_of(call), tokens_of(call)
    assert tokens == answer.tokens[: len(tokens)]
    assert (len(tokens), call.tokens_out) == (len(answer.rows) - answer.prompt - 3, len(answer.tokens))
    assert [len(r) for r in rows] == [answer.prompt + 1, *[1] * (len(answer.rows) - answer.prompt - 3), 2]
    assert np.abs(np.concatenate(rows) - answer.rows.numpy()).max() < NEAR


async def test_text_and_rows_are_those_of_the_whole_model(engine: ThinkerEngine, whole: Whole) -> None:
    for text in ("hello", "the quick brown fox " * 8):  # the long one is read in parts, the short one ends by itself
        check(await think(engine, text), whole.answer(text))


async def test_sounds_are_heard_as_the_whole_model_hears_them(
    engine: ThinkerEngine, ear: OmniEarEngine, whole: Whole
) -> None:
    sounds = [noise(0.7, 1), noise(2.5, 2), noise(2.5, 3)]
    heard = await asyncio.gather(*(hear(ear, wav(sound)) for sound in sounds))
    assert [rows.shape for rows in heard] == [(17, 128), (62, 128), (62, 128)]
    for sound, rows in zip(sounds, heard, strict=True):
        check(await think(engine, "the dog and", audio=[rows]), whole.answer("the dog and", sound))


async def test_who_is_not_to_speak_sends_no_rows(engine: ThinkerEngine) -> None:
    silent = await think(engine, "hello", speak=False, speaker="Nobody")
    assert silent.pieces("rows") == []
    assert silent.text == (await think(engine, "hello")).text


@pytest.mark.parametrize("elements", [0, 1, 5])
async def test_stored_text_and_rows_are_gone_on_with(engine: ThinkerEngine, elements: int) -> None:
    """More rows than text may be stored: the tokens of both are one text. After a loss no row is left."""
    first = await think(engine, "why?")
    said = [tuple(piece) for name, piece in first.log if name == "rows"]
    prior = {"rows": [list(said[i]) for i in range(elements)]}
    again = await think(engine, "why?", prior=prior, prior_tokens={"rows": tokens_of(first)[:4]})
    assert again.text == first.text
    assert len(rows_of(again)) == len(rows_of(first)) - elements
    for a, b in zip(rows_of(again), rows_of(first)[elements:], strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"speaker": "Nobody"}, "bad_input"),
        ({"max_tokens": 0}, "bad_input"),
        ({"audio": [np.zeros((3, 64), np.float32)]}, "bad_states"),
        ({"audio": [np.zeros((3, 128), np.int32)]}, "bad_states"),
        ({"prompt": "long " * 2048}, "prompt_too_long"),
    ],
)
async def test_what_cannot_be_meant_is_refused(engine: ThinkerEngine, more: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError) as caught:
        await think(engine, **{"prompt": "hello", **more})
    assert caught.value.engine_code == code


@pytest.mark.parametrize(
    ("audio", "code"),
    [(b"no audio", "bad_audio"), (wav(noise(0.01, 1)), "bad_audio"), (wav(np.zeros(16_000 * 31)), "too_long")],
)
async def test_what_cannot_be_heard_is_refused(ear: OmniEarEngine, audio: bytes, code: str) -> None:
    with pytest.raises(EngineError) as caught:
        await hear(ear, audio)
    assert caught.value.engine_code == code
