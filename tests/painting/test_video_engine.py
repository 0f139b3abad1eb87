"""Videos are those of diffusers, frame for frame, and leave while the rest is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.prompt import PromptEngine
from components.engine import Cancelled
from components.generator.video import VideoEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks.filming import VideoGenerator
from cornstalk.tasks.painting import PromptEncoder
from tests.components.fake_call import FakeCall
from tests.components.test_mp4 import read
from tests.painting.test_image_engine import near, progress
from tests.painting.tiny_diffusion import SIDE, tiny_stable_diffusion, tiny_wan

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

PROMPTS: Final = ["a cat walks", "the sea", "a dog runs in the rain", "x"]
ASK: Final = {"width": SIDE, "height": SIDE, "frames": 9, "steps": 4, "guidance": 4.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan(tmp_path_factory.mktemp("filming") / "wan")


class Filmer:
    """Both components of a model, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.prompts = PromptEngine(PromptEncoder(model=str(folder), dtype="float32"))
        self.videos = VideoEngine(VideoGenerator(model=str(folder), dtype="float32"))

    async def call(self, prompt: str, **inputs: Any) -> FakeCall:
        call = FakeCall()
        call.inputs |= {**VideoGenerator.defaults, **ASK, **inputs}
        call.inputs["prompt"], call.inputs["negative"] = await self._read(prompt), await self._read("bad")
        return call

    async def frames(self, prompt: str, **inputs: Any) -> Any:
        """As they are decoded, before they are compressed."""
        call = await self.call(prompt, **inputs)
        return np.concatenate([part async for part in self.videos.pictures(call)])

    async def _read(self, prompt: str) -> Any:
        call = FakeCall(prompt=prompt)
        await self.prompts.run(call)
        return call.tensors["embeddings"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filmer(folder: Path) -> AsyncIterator[Filmer]:
    filmer = Filmer(folder)
    await filmer.prompts.start()
    await filmer.videos.start()
    yield filmer
    await filmer.prompts.stop()
    await filmer.videos.stop()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    import diffusers
    import torch

    pipeline = diffusers.WanPipeline.from_pretrained(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    asked = {"height": SIDE, "width": SIDE, "num_frames": 9, "num_inference_steps": 4, "guidance_scale": 4.0}
    return [
        np.stack([
            np.asarray(frame)
            for frame in pipeline(
                prompt, "bad", generator=torch.Generator().manual_seed(seed), output_type="pil", **asked
            ).frames[0]
        ])
        for seed, prompt in enumerate(PROMPTS * 2)
    ]  # fmt: skip


async def test_frames_are_those_of_diffusers(filmer: Filmer, expected: list[Any]) -> None:
    assert np.array_equal(await filmer.frames(PROMPTS[0], seed=0), expected[0])
    together = await asyncio.gather(*(filmer.frames(prompt, seed=i) for i, prompt in enumerate(PROMPTS * 2)))
    assert all(map(near, together, expected))
    assert filmer.videos.stats()["largest_batch"] >= 4
    assert expected[0].shape == (9, SIDE, SIDE, 3)
    assert not near(expected[0][0], expected[0][8])


async def test_fragments_leave_while_the_rest_is_decoded(filmer: Filmer) -> None:
    call = await filmer.call(PROMPTS[0], seed=0, rate=8, frames=41)
    steps: list[float] = []
    call.on_emit = lambda _: steps.append(filmer.videos.stats()["steps"])
    await filmer.videos.run(call)
    assert [event["step"] for event in progress(call)] == [1, 2, 3, 4]
    pieces = call.pieces("video")
    assert len(pieces) == 3
    assert steps[-3] < steps[-1]  # decoding went on after the first piece
    frames, found = await filmer.frames(PROMPTS[0], seed=0, frames=41), read(b"".join(pieces))
    assert found.shape == frames.shape == (41, SIDE, SIDE, 3)
    assert np.abs(found.astype(int) - frames).mean() < 30  # of noise, compressed

    again = await filmer.call(PROMPTS[0], seed=0, rate=8, frames=41)
    again.prior = {"progress": call.pieces("progress"), "video": pieces[:2]}
    await filmer.videos.run(again)
    assert (progress(again), again.pieces("video")) == ([], pieces[2:])


async def test_cancelled_while_it_is_decoded(filmer: Filmer) -> None:
    call = await filmer.call("x", frames=41)
    call.on_emit = lambda call: call.cancelled.set() if progress(call)[-1]["step"] == 4 else None
    with pytest.raises(Cancelled):
        await filmer.videos.run(call)
    assert not call.pieces("video")


@pytest.mark.parametrize("inputs", [{"frames": 8}, {"frames": 0}, {"rate": 0}, {"width": 100}, {"steps": 0}], ids=str)
async def test_what_cannot_be_meant_is_refused(filmer: Filmer, inputs: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=next(iter(inputs))) as caught:
        await filmer.videos.run(await filmer.call("x", **inputs))
    assert caught.value.engine_code == "bad_input"


async def test_an_image_generator_makes_no_videos(tmp_path: Path) -> None:
    folder = tiny_stable_diffusion(tmp_path / "images")
    with pytest.raises(SetupError, match=r"known here are Wan 2\.1"):
        await VideoEngine(VideoGenerator(model=str(folder))).start()
