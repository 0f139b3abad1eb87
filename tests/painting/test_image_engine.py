"""Images are those of diffusers, bit for bit alone and within a step of 8 bits in company, and batched step by step."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.prompt import PromptEngine
from components.engine import Cancelled
from components.generator import diffusion, png
from components.generator.image import ImageEngine
from cornstalk.errors import EngineError, LineageDiverged
from cornstalk.tasks.painting import ImageGenerator, PromptEncoder
from tests.components.fake_call import FakeCall
from tests.painting.conftest import Family
from tests.painting.tiny_diffusion import SIDE, Whole, tiny_stable_diffusion

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="package")]

PROMPTS: Final = ["a cat", "a dog on the mat", "the sea", "why the cat sat", "x", "red", "blue sky", "mountains"]
NEAR: Final = 1
"""Of 255, by which an image that is made in company may differ."""
SIZE: Final = {"width": SIDE, "height": SIDE}


class Painter:
    """Both components of a model, in this process."""

    def __init__(self, folder: Path) -> None:
        self.prompts = PromptEngine(PromptEncoder(model=str(folder), dtype="float32"))
        self.images = ImageEngine(ImageGenerator(model=str(folder), dtype="float32"))

    async def start(self) -> None:
        await self.prompts.start()
        await self.images.start()

    async def stop(self) -> None:
        await self.prompts.stop()
        await self.images.stop()

    async def embeddings(self, prompt: str) -> Any:
        call = FakeCall(prompt=prompt)
        await self.prompts.run(call)
        return call.tensors["embeddings"]

    async def call(self, prompt: str, negative: str | None = "bad", **inputs: Any) -> FakeCall:
        call = FakeCall()
        call.inputs |= {**ImageGenerator.defaults, "steps": 5, **SIZE, **inputs}
        call.inputs["prompt"] = await self.embeddings(prompt)
        call.inputs["negative"] = None if negative is None else await self.embeddings(negative)
        return call

    async def image(self, prompt: str, **inputs: Any) -> Any:
        call = await self.call(prompt, **inputs)
        await self.images.run(call)
        return pixels(call)

    @property
    def steps(self) -> float:
        return self.images.stats().get("steps", 0.0)


def pixels(call: FakeCall) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(b"".join(call.pieces("image")))))


def progress(call: FakeCall) -> list[dict[str, Any]]:
    return [event for piece in call.pieces("progress") for event in piece]


def near(one: Any, other: Any) -> bool:
    return bool(np.abs(one.astype(int) - other).max() <= NEAR)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def painter(family: Family) -> AsyncIterator[Painter]:
    painter = Painter(family.folder)
    await painter.start()
    yield painter
    await painter.stop()


@pytest.mark.parametrize("more", [{}, {"guidance": 1.0}, {"width": 96}, {"height": 128}], ids=str)
async def test_alone_it_is_what_diffusers_makes(family: Family, painter: Painter, more: dict[str, Any]) -> None:
    asked = {"steps": 5, "guidance": 4.0, "seed": 7, **SIZE, **more}
    made = await painter.image("the cat", negative="a dog", **asked)
    assert np.array_equal(made, family.whole.image("the cat", "a dog", **asked))
    for other in ({"seed": 8}, {"negative": "why"}, {"prompt": "the sea"}):
        if more.get("guidance") == 1.0 and "negative" in other:
            continue
        assert not near(made, await painter.image(**{"prompt": "the cat", "negative": "a dog", **asked, **other}))


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # within diffusers
@pytest.mark.parametrize(
    ("scheduler", "more"),
    [
        ("DDIMScheduler", {"clip_sample": False}),
        ("EulerAncestralDiscreteScheduler", {}),
        ("DPMSolverMultistepScheduler", {}),
    ],
)
async def test_whatever_the_scheduler(tmp_path: Path, scheduler: str, more: dict[str, Any]) -> None:
    folder = tiny_stable_diffusion(tmp_path / scheduler, scheduler, **more)
    painter, asked = Painter(folder), {"steps": 5, "guidance": 4.0, "seed": 7, **SIZE}
    await painter.start()
    expected = [Whole(folder).image(prompt, "bad", **asked) for prompt in PROMPTS[:2]]
    assert np.array_equal(await painter.image(PROMPTS[0], **asked), expected[0])
    together = await asyncio.gather(*(painter.image(prompt, **asked) for prompt in PROMPTS[:2]))
    assert all(map(near, together, expected))
    await painter.stop()


async def test_eight_at_once_are_each_what_they_are_alone(family: Family, painter: Painter) -> None:
    """With and without guidance, of two sizes, of different lengths: no image looks at another one."""
    asks: list[dict[str, Any]] = [
        {"seed": i, "guidance": 1.0 if i == 5 else 3.0 + i, "steps": 5 + i % 3, **SIZE, "width": 96 if i > 5 else SIDE}
        for i in range(8)
    ]
    expected = [family.whole.image(prompt, "bad", **ask) for prompt, ask in zip(PROMPTS, asks, strict=True)]
    calls = [await painter.call(prompt, **ask) for prompt, ask in zip(PROMPTS, asks, strict=True)]
    sizes: list[float] = []
    for call in calls:
        call.on_emit = lambda _: sizes.append(painter.images.stats()["batch"])
    await asyncio.gather(*map(painter.images.run, calls))
    assert all(map(near, map(pixels, calls), expected))
    assert max(sizes) >= 4
    assert painter.images.stats()["largest_batch"] >= 4


async def test_one_joins_and_leaves_between_the_steps_of_another(painter: Painter) -> None:
    long, short = await painter.call("a cat", steps=20, seed=1), await painter.call("a dog", steps=3, seed=2)
    begun, at = asyncio.Event(), []
    long.on_emit = lambda call: begun.set() if len(call.pieces("progress")) == 3 else None
    running = asyncio.create_task(painter.images.run(long))
    await begun.wait()
    await painter.images.run(short)
    at.append(len(long.pieces("progress")))
    assert at[0] < 20
    await running
    assert near(pixels(short), await painter.image("a dog", steps=3, seed=2))
    assert near(pixels(long), await painter.image("a cat", steps=20, seed=1))


async def test_progress_and_previews(painter: Painter) -> None:
    from PIL import Image

    call = await painter.call("a cat", previews=2, width=320)
    await painter.images.run(call)
    told = progress(call)
    of = told[-1]["of"]
    assert [event["step"] for event in told] == list(range(1, of + 1))
    previews = [event["preview"] for event in told if event["preview"]]
    assert [event["step"] for event in told if event["preview"]] == [round(of / 3), round(2 * of / 3)]
    assert [Image.open(io.BytesIO(preview)).size for preview in previews] == [(256, 51)] * 2
    assert [name for name, _ in call.log][-1] == "image"


async def test_an_attempt_that_follows_says_only_what_is_not_stored(
    painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(png, "BAND", 16 * (1 + 3 * SIDE))
    whole = await painter.call("a cat", previews=1, seed=3)
    await painter.images.run(whole)
    pieces = whole.pieces("image")
    assert len(pieces) == 4
    again = await painter.call("a cat", previews=1, seed=3)
    again.prior = {"progress": whole.pieces("progress")[:4], "image": pieces[:2]}
    await painter.images.run(again)
    assert progress(again) == progress(whole)[4:]
    assert [*pieces[:2], *again.pieces("image")] == pieces
    other = await painter.call("a cat", seed=3)
    other.prior = {"image": [b"\x89PNX"]}
    with pytest.raises(LineageDiverged):
        await painter.images.run(other)


async def test_cancelled_it_ends_within_a_step_and_the_others_go_on(painter: Painter) -> None:
    doomed, beside = await painter.call("a cat", steps=500), await painter.call("a dog", steps=10, seed=4)
    at: list[float] = []

    def cancel(call: FakeCall) -> None:
        if len(call.log) == 3:
            call.cancelled.set()
            at.append(time.perf_counter())

    doomed.on_emit = cancel
    running = asyncio.create_task(painter.images.run(beside))
    with pytest.raises(Cancelled):
        await painter.images.run(doomed)
    assert time.perf_counter() - at[0] <= 0.25 + painter.images.stats()["longest_step_s"]
    assert len(doomed.log) == 3
    await running
    assert near(pixels(beside), await painter.image("a dog", steps=10, seed=4))


@pytest.mark.parametrize(
    "inputs",
    [
        {"width": 100},
        {"width": 0},
        {"height": 8192},
        {"steps": 0},
        {"steps": 501},
        {"guidance": float("nan")},
        {"guidance": -1.0},
        {"seed": -1},
        {"previews": 17},
    ],
    ids=str,
)
async def test_what_cannot_be_meant_is_refused_before_any_step(painter: Painter, inputs: dict[str, Any]) -> None:
    before = painter.steps
    with pytest.raises(EngineError, match=next(iter(inputs))) as caught:
        await painter.images.run(await painter.call("x", **inputs))
    assert (caught.value.engine_code, painter.steps) == ("bad_input", before)


@pytest.mark.parametrize("shape", [(7, 8), (64,), (0, 64), (1, 7, 64)])
@pytest.mark.parametrize("name", ["prompt", "negative"])
async def test_embeddings_of_another_model(painter: Painter, name: str, shape: tuple[int, ...]) -> None:
    call = await painter.call("x")
    call.inputs[name] = np.zeros(shape, np.float32)
    with pytest.raises(EngineError, match="of this model") as caught:
        await painter.images.run(call)
    assert caught.value.engine_code == "bad_states"


async def test_a_prompt_that_is_too_long(painter: Painter) -> None:
    with pytest.raises(EngineError, match="the model reads") as caught:
        await painter.embeddings("word " * 600)
    assert caught.value.engine_code == "prompt_too_long"


async def test_large_images_go_in_smaller_steps(painter: Painter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "ROOM", 3 * SIDE * SIDE)
    calls = [await painter.call(prompt, seed=1) for prompt in PROMPTS]
    sizes: list[float] = []
    for call in calls:
        call.on_emit = lambda _: sizes.append(painter.images.stats()["batch"])
    await asyncio.gather(*map(painter.images.run, calls))
    assert max(sizes) == 3


async def test_what_stops_takes_its_images_along(family: Family) -> None:
    painter = Painter(family.folder)
    await painter.start()
    call = await painter.call("x", steps=500)
    begun = asyncio.Event()
    call.on_emit = lambda _: begun.set()
    running = asyncio.create_task(painter.images.run(call))
    await begun.wait()
    await painter.stop()
    with pytest.raises(EngineError) as caught:
        await running
    assert caught.value.transient
