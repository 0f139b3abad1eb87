"""Qwen3-Omni in components, on real processes: what the whole model says, whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient
from cornstalk.tasks.omni import Omni
from tests.omni.test_omni import SOUNDS, TEXTS, ask
from tests.omni.test_thinker import noise
from tests.omni.tiny_omni3 import Whole
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

LIMITS = {"max_tokens": 16, "max_codes": 30}


@pytest.fixture(scope="module")
def parts(folder3: Path) -> Omni:
    return Omni(str(folder3), "float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder3: Path, parts: Omni, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    app = tmp_path_factory.mktemp("apps") / "omni.py"
    example = (examples() / "omni.py").read_text()
    app.write_text(example.replace('"Qwen/Qwen2.5-Omni-7B"', f'{str(folder3)!r}, dtype="float32"'))
    dying = {f"{parts.thinker.component}@0": "worker.chunk"}
    async with Stack(env={"CORNSTALK_ACK_WAIT": "2"}, crash=dying) as running:
        await running.deploy(app, workers=False)
        for task in (parts.ear, parts.thinker):
            running.start_workers(task.component)
        for task in (parts.ear, parts.thinker):
            await running.wait_workers(task.component, 2, within=180)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as found:
        yield found


async def test_eight_at_once_are_each_what_the_whole_model_says(
    stack: Stack, client: AsyncClient, whole3: Whole, parts: Omni
) -> None:
    """Token for token, with and without audio. One of two thinkers dies with its first piece: the other goes on."""
    said: list[tuple[str, Any]] = [(text, None) for text in TEXTS]
    said += [("the dog and", noise(*sound)) for sound in SOUNDS]
    answers = await asyncio.gather(*(ask(client, "omni", text, sound, speak=False, **LIMITS) for text, sound in said))
    for (text, sound), answer in zip(said, answers, strict=True):
        right = await asyncio.to_thread(whole3.answer, text, sound, tokens=LIMITS["max_tokens"], codes=1)
        assert answer.response["text"] == right.text.rstrip("\ufffd")
    assert len({answer.response["text"] for answer in answers}) == 8
    assert not stack.children[f"{parts.thinker.component}@0"].alive
