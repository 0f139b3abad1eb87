"""Qwen2.5-Omni with its eyes, on real processes: turns with sounds, pictures and videos are answered side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from components.generator.pcm import pcm_of
from cornstalk.client import AsyncClient
from cornstalk.tasks.omni import Omni
from tests.components.media_files import picture
from tests.omni.exact import exact_app
from tests.omni.test_omni import nodes
from tests.omni.test_thinker import noise, wav
from tests.omni.test_thinker_sees import CLIP, PICTURES, film, shown
from tests.omni.tiny_omni import Whole
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

LIMITS: Final = {"max_tokens": 12, "max_codes": 24}
SOUND: Final = noise(1.3, 7)
ASKS: Final[list[tuple[str, bool, list[int], int]]] = [
    ("hello", False, [], 0),
    ("the dog", True, [], 0),
    ("the dog", False, [0], 0),
    ("the dog", False, [1], 0),
    ("the dog", False, [1, 0], 0),
    ("what?", False, [], 1),
    ("what?", True, [0], 1),
    ("what?", True, [1], 1),
]
"""Text, whether there is a sound, which pictures, how many videos."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    file = tmp_path_factory.mktemp("apps") / "sees.py"
    file.write_text(exact_app("sees", folder))
    parts = Omni(str(folder), "float32")
    async with Stack(env={"CORNSTALK_ACK_WAIT": "2"}) as running:
        await running.deploy(file, workers=False)
        counts = {parts.ear: 1, parts.eyes: 2, parts.thinker: 2, parts.talker: 1, parts.vocoder: 1}
        for task, running.replicas in counts.items():
            running.start_workers(task.component)
        for task, count in counts.items():
            await running.wait_workers(task.component, count, within=300)
        yield running


async def test_eight_at_once_are_each_what_the_whole_model_answers(stack: Stack, folder: Path, whole: Whole) -> None:
    """Text token for token, sound bit for bit: nothing of one is in another."""
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as client:

        async def ask(text: str, heard: bool, pictures: list[int], videos: int) -> Any:
            given: dict[str, Any] = {"audio": wav(SOUND)} if heard else {}
            given |= {"images": [picture(PICTURES[i], "PNG") for i in pictures]} if pictures else {}
            given |= {"videos": [CLIP] * videos} if videos else {}
            return await client.invoke("sees", {"text": text, **given, **LIMITS}, seed=1)

        answers = await asyncio.gather(*(ask(*one) for one in ASKS))
    for (text, heard, pictures, videos), answer in zip(ASKS, answers, strict=True):
        found = await nodes(stack, answer.request)
        seen = shown(folder, [PICTURES[i] for i in pictures], [film()] * videos)
        right = await asyncio.to_thread(
            whole.answer,
            text,
            SOUND if heard else None,
            seen=seen,
            seeds=(found["talker"].seed, found["vocoder"].seed),
            tokens=LIMITS["max_tokens"],
            codes=LIMITS["max_codes"],
        )
        assert answer.response["text"] == right.text.rstrip("\ufffd")
        assert answer.response["speech"] == pcm_of(right.wave.numpy())
    assert len({answer.response["text"] for answer in answers}) == len(ASKS)
