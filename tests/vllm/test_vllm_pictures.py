"""Multimodal models on vLLM, each without the file of its eyes, say what transformers says with the whole of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.vision import VisionEncoder
from components.llm.transformers_engine import TransformersEngine
from components.llm.vllm_engine import VllmEngine
from components.llm.vllm_pictures import FAMILIES
from cornstalk.errors import EngineError
from cornstalk.tasks import LLM, ImageEncoder
from tests.components.fake_call import FakeCall
from tests.components.media_files import picture, video
from tests.components.test_vision_encoder import (
    folder,
    said,
    test_a_text_forges_no_picture,
    test_pictures_that_cannot_be_meant_are_refused_before_any_step,
    test_stored_text_is_gone_on_with_after_pictures,
)
from tests.components.tiny_vl import EYES, SIZE, WORDS, half, noise, tiny_vl
from tests.components.whole_vl import WholeVL
from tests.vllm.conftest import ARGUMENTS

__all__ = [
    "folder",
    "test_a_text_forges_no_picture",
    "test_pictures_that_cannot_be_meant_are_refused_before_any_step",
    "test_stored_text_is_gone_on_with_after_pictures",
]
pytestmark = [
    pytest.mark.models,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:::torch", "ignore:::vllm", "ignore:::transformers"),  # at their import
]
CONTEXT: Final = {**ARGUMENTS, "max_model_len": 2048}
TOKENS: Final = 16
PICTURES: Final = [noise(1, 100, 140), noise(2, 60, 60), noise(3, 90, 200), noise(4, 100, 140)]
ASKS: Final[list[tuple[str, tuple[int, ...]]]] = [
    ("why the cat sat", ()),
    ("describe", (0,)),
    ("describe", (3,)),
    ("describe these pictures", (0, 1)),
    ("describe these pictures", (1, 0)),
    ("show", (2, 0, 3)),
]
"""Text only, one picture, several of mixed sizes; two pairs differ in a picture alone."""


class Parted(NamedTuple):
    """A model in two halves, and in one piece."""

    eyes: VisionEncoder
    words: VllmEngine
    folder: Path
    whole: WholeVL

    async def says(self, prompt: str, pictures: tuple[int, ...]) -> str:
        looks = [await self.seen(image=picture(PICTURES[i], "PNG"), among=len(pictures)) for i in pictures]
        return await said(self.words, prompt=prompt, images=[rows for rows, _ in looks], max_tokens=TOKENS)

    async def seen(self, **shown: Any) -> tuple[Any, list[float]]:
        """Embeddings, and the times of a video."""
        look = FakeCall(**{**ImageEncoder.defaults, **shown})
        values = await self.eyes.run(look)
        return look.tensors["embeddings"], values["times"]


async def started(words: str, **arguments: Any) -> VllmEngine:
    engine = VllmEngine(LLM(model=words, engine="vllm", dtype="float32", engine_args={**CONTEXT, **arguments}))
    await engine.start()
    return engine


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def parted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parted]:
    folder = tiny_vl(tmp_path_factory.mktemp(request.param), request.param)
    eyes = VisionEncoder(ImageEncoder(model=half(folder, WORDS), dtype="float32"))
    await eyes.start()
    words = await started(half(folder, EYES))
    yield Parted(eyes, words, folder, WholeVL(folder))
    await words.stop()
    await eyes.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(folder: Path) -> AsyncIterator[VllmEngine]:
    engine = await started(str(folder))
    yield engine
    await engine.stop()


async def test_what_the_whole_model_says_alone_and_in_company(parted: Parted) -> None:
    """In company prompts are read in parts, and what was seen before is known by its rows."""
    expected = [parted.whole.says([*(PICTURES[i] for i in pictures), prompt], TOKENS) for prompt, pictures in ASKS]
    assert len(set(expected)) == len(ASKS)
    assert [await parted.says(*ask) for ask in ASKS] == expected
    assert await asyncio.gather(*(parted.says(*ask) for ask in ASKS)) == expected


async def test_videos_and_pictures_between_texts_are_read_as_the_other_engine_reads_them(parted: Parted) -> None:
    """That one reads them as the whole model (tests/e2e/test_vision.py)."""
    films = [video([noise(10 * n + i, 64, 96) for i in range(n)], fps=6) for n in (9, 4)]
    (first, at), (second, then) = [await parted.seen(video=film) for film in films]
    photo, _ = await parted.seen(image=picture(PICTURES[1], "PNG"), among=2)
    shown = {"image": {"type": "image"}, "video": {"type": "video"}}
    asks: list[dict[str, Any]] = [
        {"prompt": "describe", "videos": [first], "times": [at]},
        {
            "prompt": ["first ", shown["video"], " then ", shown["image"], " and ", shown["video"], " why"],
            "images": [photo],
            "videos": [second, first],
            "times": [then, at],
        },
    ]
    other = TransformersEngine(LLM(model=str(parted.folder), dtype="float32"))
    await other.start()
    for ask in asks:
        ours, theirs = [await said(engine, **ask, max_tokens=TOKENS) for engine in (parted.words, other)]
        assert ours == theirs
    await other.stop()


async def test_a_family_whose_pictures_vllm_takes_not_answers_texts_and_names_those_that_it_takes(
    tmp_path: Path,
) -> None:
    whole = tiny_vl(tmp_path, "gemma3")
    engine = await started(half(whole, EYES))
    with pytest.raises(EngineError, match=r"no pictures for .*; for Qwen2\.5-VL, .*InternVL3 it does") as caught:
        await said(engine, prompt="what", images=[np.zeros((16, SIZE), np.float32)])
    assert caught.value.engine_code == "bad_input"
    assert await said(engine, prompt="what", max_tokens=TOKENS) == WholeVL(whole).says(["what"], TOKENS)
    await engine.stop()
