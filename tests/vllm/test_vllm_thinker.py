"""The thinker of Qwen2.5-Omni on vLLM passes the tests of the other one: tokens of the whole model, and its rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from components.encoder.omni_ear import OmniEarEngine
from components.llm.vllm_thinker import VllmThinker
from cornstalk.errors import SetupError
from cornstalk.tasks.omni import Thinker
from tests.components.fake_call import FakeCall
from tests.omni.conftest import folder, whole
from tests.omni.test_thinker import (
    check,
    ear,
    hear,
    noise,
    rows_of,
    test_sounds_are_heard_as_the_whole_model_hears_them,
    test_stored_text_and_rows_are_gone_on_with,
    test_text_and_rows_are_those_of_the_whole_model,
    test_what_cannot_be_meant_is_refused,
    test_who_is_not_to_speak_sends_no_rows,
    think,
    wav,
)
from tests.omni.test_thinker_sees import PICTURES, shown
from tests.omni.tiny_omni import Whole
from tests.vllm.conftest import ARGUMENTS

__all__ = [
    "ear",
    "folder",
    "test_sounds_are_heard_as_the_whole_model_hears_them",
    "test_stored_text_and_rows_are_gone_on_with",
    "test_text_and_rows_are_those_of_the_whole_model",
    "test_what_cannot_be_meant_is_refused",
    "test_who_is_not_to_speak_sends_no_rows",
    "whole",
]
pytestmark = [
    pytest.mark.models,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:::torch", "ignore:::vllm", "ignore:::transformers"),  # at their import
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[VllmThinker]:
    engine = VllmThinker(Thinker(model=str(folder), dtype="float32", engine="vllm", engine_args=ARGUMENTS))
    await engine.start()
    yield engine
    await engine.stop()


async def test_eight_at_once_hear_their_own_sounds_and_tell_their_own_rows(
    engine: VllmThinker, ear: OmniEarEngine, whole: Whole
) -> None:
    """Prompts of some are read while others are said: a step has tokens of many."""
    texts = ["hello", "the quick brown fox " * 8, "why?", "the dog and"]
    sounds = [noise(0.7, 1), noise(2.5, 2), noise(2.5, 3), noise(1.0, 5)]
    heard = [await hear(ear, wav(sound)) for sound in sounds]
    asks: list[tuple[str, list[Any], Any]] = [(text, [], None) for text in texts]
    asks += [("the dog and", [rows], sound) for rows, sound in zip(heard, sounds, strict=True)]
    calls = await asyncio.gather(*(think(engine, text, audio=rows) for text, rows, _ in asks))
    for call, (text, _, sound) in zip(calls, asks, strict=True):
        check(call, whole.answer(text, sound))


async def test_pictures_have_positions_of_their_own(engine: VllmThinker, whole: Whole, folder: Path) -> None:
    """Rows of transformers' own tower: of what the eyes make, tests/omni tells."""
    seen = shown(folder, PICTURES, [])
    given = {name: seen[1][f"thinker_{name}"] for name in ("pixel_values", "image_grid_thw")}
    with torch.inference_mode():
        rows = whole.model.thinker.get_image_features(**given, return_dict=True).pooler_output
    grids = [(1, high // 2, wide // 2) for _, high, wide in given["image_grid_thw"].tolist()]
    images = [some.unflatten(0, grid).numpy() for some, grid in zip(rows, grids, strict=True)]
    check(await think(engine, "the dog", images=images), whole.answer("the dog", seen=seen))


async def test_rows_are_told_while_it_thinks(engine: VllmThinker) -> None:
    """In the order of what is emitted: rows of the prompt, and of tokens, before the last text."""
    call = await think(engine, "the quick brown fox", max_tokens=200)
    names = [name for name, _ in call.log]
    last = len(names) - 1 - names[::-1].index("text")
    assert names[:last].count("rows") > 10


async def test_one_that_is_cancelled_tells_no_more_and_the_others_all(engine: VllmThinker, whole: Whole) -> None:
    doomed = FakeCall(**{**Thinker.defaults, "prompt": "a", "max_tokens": 500})

    def cancel(call: FakeCall) -> None:
        if len(rows_of(call)) == 5:
            call.cancelled.set()

    doomed.on_emit = cancel
    ended, beside = await asyncio.gather(engine.run(doomed), think(engine, "hello"), return_exceptions=True)
    assert isinstance(ended, BaseException)
    assert isinstance(beside, FakeCall)
    check(beside, whole.answer("hello"))
    assert np.isfinite(np.concatenate(rows_of(doomed))).all()


async def test_what_it_cannot_serve_is_said_at_start(folder: Path) -> None:
    with pytest.raises(ValueError, match="engine_args"):
        Thinker(model=str(folder), engine_args={"max_num_seqs": 1})
    with pytest.raises(SetupError, match="pipeline_parallel_size"):
        VllmThinker(Thinker(model=str(folder), engine="vllm", engine_args={"pipeline_parallel_size": 2}))
    with pytest.raises(SetupError, match="dtype"):
        VllmThinker(Thinker(model=str(folder), engine="vllm", engine_args={"dtype": "float16"}))
