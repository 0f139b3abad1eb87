"""Videos on real processes, two workers a component: the bytes that one undisturbed engine makes, whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio

from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient
from cornstalk.tasks import VideoGeneration
from tests.components.test_mp4 import read
from tests.painting.test_video_engine import PROMPTS, Filmer
from tests.painting.tiny_diffusion import SIDE, tiny_wan
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

ASK: Final[dict[str, Any]] = {"width": SIDE, "height": SIDE, "frames": 33, "steps": 4, "guidance": 4.0, "rate": 8}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filmer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Filmer]:
    filmer = Filmer(tiny_wan(tmp_path_factory.mktemp("filming") / "wan"))
    await filmer.prompts.start()
    await filmer.videos.start()
    yield filmer
    await filmer.prompts.stop()
    await filmer.videos.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(filmer: Filmer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The first of two generators dies with its first piece."""
    task = VideoGeneration(filmer.folder, "float32")
    app = tmp_path_factory.mktemp("apps") / "video_generation.py"
    example = (examples() / "video_generation.py").read_text()
    app.write_text(example.replace("(MODEL)", f'({filmer.folder!r}, "float32")'))
    dying = {f"{task.generator.component}@0": "worker.chunk"}
    async with Stack(crash=dying, env={"HF_HUB_OFFLINE": "1"}) as running:
        components = (await running.deploy(app, workers=False))["components"]
        for component in components:
            running.start_workers(component)
        for component in components:
            await running.wait_workers(component, 2, within=180)
        yield running
        assert not running.children[f"{task.generator.component}@0"].alive


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as found:
        yield found


async def expected(filmer: Filmer, prompt: str, seed: int) -> bytes:
    call = await filmer.call(prompt, **ASK, seed=seed)
    await filmer.videos.run(call)
    return b"".join(call.pieces("video"))


async def test_four_at_once_while_a_worker_dies(client: AsyncClient, filmer: Filmer) -> None:
    asks = [{**ASK, "prompt": prompt, "negative_prompt": "bad", "seed": i} for i, prompt in enumerate(PROMPTS)]
    answers = await asyncio.gather(*(client.invoke("video_generation", ask) for ask in asks))
    for seed, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        found, right = read(answer.response["video"]), read(await expected(filmer, prompt, seed))
        assert found.shape == (33, SIDE, SIDE, 3)
        assert np.abs(found.astype(int) - right).mean() < 3
        assert [event["step"] for event in answer.response["progress"]] == [1, 2, 3, 4]


async def test_alone_it_is_the_same_to_the_last_byte(client: AsyncClient, filmer: Filmer) -> None:
    ask = {**ASK, "prompt": "a cat", "negative_prompt": "bad", "seed": 5}
    answer = await client.invoke("video_generation", ask)
    assert answer.response["video"] == await expected(filmer, "a cat", 5)


async def test_frames_that_the_model_does_not_make(stack: Stack) -> None:
    for frames, code in ((32, "bad_input"), (0, "bad_input"), (9999, "bad_input")):
        answer = await stack.clients[0].post("/apps/video_generation", json={**ASK, "prompt": "x", "frames": frames})
        assert answer.json()["error"]["code"] == code
