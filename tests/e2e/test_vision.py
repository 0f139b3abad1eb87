"""A multimodal model in two components says what transformers says with it in one piece, token for token.

Real NATS, sidecar and worker processes; each worker finds only its half of the weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.components.media_files import picture
from tests.components.tiny_vl import EYES, FAMILIES, WORDS, Whole, half, noise, tiny_vl
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

APP: Final = """
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks import LLM, ImageEncoder, MultimodalLLM, Sight


class Said(BaseModel):
    text: Stream[str]


class See(CompositeTask):
    model = MultimodalLLM(LLM(model={words!r}, dtype="float32"), ImageEncoder(model={eyes!r}, dtype="float32"))

    def invoke(self, request: Sight) -> Said:
        return Said(text=self.model(request))


app = App({name!r}, See())
"""
TOKENS: Final = 16
PICTURES: Final = [noise(1, 100, 140), noise(2, 60, 60), noise(3, 90, 200), noise(4, 100, 140)]
ASKS: Final[list[tuple[str, tuple[int, ...]]]] = [
    ("why the cat sat", ()),
    ("describe", (0,)),
    ("describe", (3,)),
    ("what", (1,)),
    ("describe these pictures", (0, 1)),
    ("describe these pictures", (1, 0)),
    ("show", (2, 0, 3)),
    ("and on the mat what these pictures show", ()),
]
"""Text only, one picture, several of mixed sizes; two pairs differ in a picture alone."""


@dataclass
class Served:
    """A family that is deployed, and its model in one piece."""

    stack: Stack
    app: str
    whole: Whole

    async def says(self, prompt: str, pictures: tuple[int, ...]) -> str:
        sent = [await self.stack.clients[0].post("/uploads", content=picture(PICTURES[i], "PNG")) for i in pictures]
        images = [{"upload": answer.json()["digest"]} for answer in sent]
        asked = {"prompt": prompt, "images": images, "max_tokens": TOKENS}
        answer = await self.stack.clients[0].post(f"/apps/{self.app}", json=asked)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["response"]["text"]
        return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(sidecar_bytes=1 << 30, env={"HF_HUB_OFFLINE": "1"}) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def served(request: Any, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    name: str = request.param
    folder = await asyncio.to_thread(tiny_vl, tmp_path_factory.mktemp(name), name)
    eyes, words = (half(folder, without) for without in (WORDS, EYES))
    file = folder / "app.py"
    file.write_text(APP.format(words=words, eyes=eyes, name=name))
    components = (await stack.deploy(file, workers=False))["components"]
    assert [component.partition("-")[0] for component in sorted(components)] == ["encoder", "llm"]
    for component in components:
        stack.start_workers(component)
    whole = await asyncio.to_thread(Whole, folder)
    for component in components:
        await stack.wait_workers(component, stack.replicas, within=300)
    yield Served(stack, name, whole)
    for component in components:
        for i in range(stack.replicas):
            stack.children[f"{component}@{i}"].kill()


async def test_what_the_whole_model_says_alone_and_in_company(served: Served) -> None:
    expected = [
        await asyncio.to_thread(served.whole.says, prompt, [PICTURES[i] for i in pictures], TOKENS)
        for prompt, pictures in ASKS
    ]
    assert len(set(expected)) == len(ASKS)
    alone = [await served.says(*ask) for ask in ASKS[:5]]
    together = await asyncio.gather(*(served.says(*ask) for ask in ASKS))
    assert (alone, together) == (expected[:5], expected)
