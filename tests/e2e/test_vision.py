"""A multimodal model in two components says what transformers says with it in one piece, token for token.

Real NATS, sidecar and worker processes; each worker finds only its half of the weights. Videos are files; transformers
is given all of their frames, and chooses and prepares them by itself.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio

from tests.components.media_files import encoded_sound, picture, tone, video
from tests.components.tiny_vl import EYES, FAMILIES, WORDS, half, noise, tiny_vl
from tests.components.whole_vl import Film, WholeVL
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
P: Final = [noise(1, 100, 140), noise(2, 60, 60), noise(3, 90, 200), noise(4, 100, 140)]
"""Pictures."""
V: Final = [("video", 20, 10), ("video", 12, 6)]
"""Videos: how many frames, and how many of them in a second. Of both four are seen: processors of transformers take no
two videos of which they choose different numbers of frames.
"""
ASKS: Final[list[list[Any]]] = [
    ["why the cat sat"],
    [P[0], "describe"],
    [P[3], "describe"],
    [P[1], "what"],
    [V[0], "describe"],
    [P[0], P[1], "describe these pictures"],
    [P[1], P[0], "describe these pictures"],
    ["first ", P[0], " then ", V[0], " and ", P[1], " why"],
    ["first ", P[1], " then ", V[0], " and ", P[0], " why"],
    ["show", V[1], P[2]],
    [P[2], P[0], P[3], V[1], V[0], "show"],
    ["and on the mat what these pictures show"],
]
"""Text, pictures and videos, one and several of mixed sizes, in many orders; of some pairs only one picture differs."""


@dataclass
class Served:
    """A family that is deployed, and its model in one piece."""

    stack: Stack
    app: str
    whole: WholeVL

    async def asked(self, content: list[Any], **more: Any) -> Any:
        """The HTTP answer to parts in their order."""
        parts = [part if isinstance(part, str) else {"type": _kind(part)} for part in content]
        asked = {
            "prompt": parts if len(parts) > 1 else parts[0],
            "images": [await self._sent(picture(part, "PNG")) for part in content if _kind(part) == "image"],
            "videos": [await self._sent(self._file(*part[1:])) for part in content if _kind(part) == "video"],
        }
        return await self.stack.clients[0].post(f"/apps/{self.app}", json={**asked, "max_tokens": TOKENS, **more})

    async def says(self, content: list[Any], **more: Any) -> str:
        answer = await self.asked(content, **more)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["response"]["text"]
        return text

    async def _sent(self, file: bytes) -> dict[str, str]:
        return {"upload": (await self.stack.clients[0].post("/uploads", content=file)).json()["digest"]}

    def _file(self, frames: int, fps: int) -> bytes:
        return video([noise(100 * fps + i, 60, 92) for i in range(frames)], fps=fps)

    def expected(self, content: list[Any]) -> str:
        shown = [self._film(*part[1:]) if _kind(part) == "video" else part for part in content]
        return self.whole.says(shown, TOKENS)

    def _film(self, frames: int, fps: int) -> Film:
        import av

        with av.open(io.BytesIO(self._file(frames, fps))) as file:
            return Film(np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]), fps)


def _kind(part: Any) -> str:
    return "text" if isinstance(part, str) else "video" if isinstance(part, tuple) else "image"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny_vl(tmp_path_factory.mktemp(name), name) for name in FAMILIES}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folders: dict[str, Path]) -> AsyncIterator[Stack]:
    """Two processes for the eyes of all families, and two for their words."""
    async with Stack(sidecar_bytes=1 << 30, env={"HF_HUB_OFFLINE": "1"}) as running:
        components: list[str] = []
        for name, folder in folders.items():
            eyes, words = (half(folder, without) for without in (WORDS, EYES))
            file = folder / "app.py"
            file.write_text(APP.format(words=words, eyes=eyes, name=name))
            components += (await running.deploy(file, workers=False))["components"]
        for kind in ("encoder", "llm"):
            of_kind = [component for component in components if component.startswith(kind)]
            assert len(of_kind) == len(FAMILIES)
            running.start_together(kind, of_kind)
        for component in components:
            await running.wait_workers(component, running.replicas, within=300)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def served(request: Any, stack: Stack, folders: dict[str, Path]) -> Served:
    name: str = request.param
    return Served(stack, name, await asyncio.to_thread(WholeVL, folders[name]))


async def test_what_the_whole_model_says_alone_and_in_company(served: Served) -> None:
    expected = [await asyncio.to_thread(served.expected, content) for content in ASKS]
    assert len(set(expected)) == len(ASKS)
    alone = [await served.says(content) for content in ASKS[3:9]]
    together = await asyncio.gather(*(served.says(content) for content in ASKS))
    assert (alone, together) == (expected[3:9], expected)


async def test_what_has_no_place_in_the_prompt_stands_before_it(served: Served) -> None:
    content = [P[0], V[0], "describe"]
    assert await served.says(content, prompt="describe") == await asyncio.to_thread(served.expected, content)


async def test_what_cannot_be_shown_is_refused(served: Served) -> None:
    """At the door where the file tells it, else by the eyes, and the model has no work."""
    good = served._file(20, 10)
    silent = encoded_sound(tone(440, 44_100), 44_100, "mp4", "aac")
    for file, status, why in (
        (silent, 415, "expected video"),
        (good[:-200], 422, "the video"),
        (good[:40] + bytes(5000), 422, "the video"),
    ):
        asked = {"prompt": "what", "videos": [await served._sent(file)]}
        answer = await served.stack.clients[0].post(f"/apps/{served.app}", json=asked)
        assert (answer.status_code, why in answer.text) == (status, True), answer.text
    for more in (
        {"images": []},
        {"frames": 65},
        {"fps": 0},
        {"videos": [{"upload": "0"}] * 5},
        {"images": [{"upload": "0"}] * 17},
    ):
        answer = await served.asked([P[0], "what"], **more)
        assert answer.status_code == 422, answer.text
