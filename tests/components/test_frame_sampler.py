"""Frames of a video as a tensor: which ones, how large, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from components.engine import Cancelled, Engine
from components.registry import engine_for
from cornstalk.errors import EngineError
from cornstalk.tasks import SampleFrames
from cornstalk.values import check_outputs
from tests.components.fake_call import FakeCall
from tests.components.media_files import Array, video

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sampler() -> AsyncIterator[Engine]:
    engine = engine_for(SampleFrames())
    await engine.start()
    yield engine
    await engine.stop()


async def sampled(sampler: Engine, data: bytes, most: int = 32) -> tuple[Array, list[float]]:
    call = FakeCall(video=data, most=most)
    outputs = check_outputs(SampleFrames(), await sampler.run(call))
    return call.tensors["frames"], outputs["times"]


def of(seconds: int, height: int = 32, width: int = 48) -> bytes:
    """Two frames a second, those of second i gray of i * 10."""
    return video([np.full((height, width, 3), i // 2 * 10, np.uint8) for i in range(2 * seconds)], fps=2)


async def test_one_of_each_second(sampler: Engine) -> None:
    frames, times = await sampled(sampler, of(5))
    assert (frames.shape, frames.dtype) == ((5, 32, 48, 3), np.uint8)
    assert times == [0, 1, 2, 3, 4]
    assert [round(float(f.mean()) / 10) for f in frames] == [0, 1, 2, 3, 4]


async def test_of_a_long_video_as_many_as_asked_for(sampler: Engine) -> None:
    frames, times = await sampled(sampler, of(20), most=4)
    assert times == [2.5, 7.5, 12.5, 17.5]
    assert [round(float(f.mean()) / 10) for f in frames] == [2, 7, 12, 17]


async def test_large_frames_are_made_smaller(sampler: Engine) -> None:
    frames, _ = await sampled(sampler, of(1, height=1080, width=1920))
    assert frames.shape == (1, 720, 1280, 3)


@pytest.mark.parametrize(
    ("data", "most", "code"),
    [(b"I am no video", 4, "bad_video"), (of(3)[:-300], 4, "bad_video"), (b"", 0, "bad_input"), (b"", 65, "bad_input")],
)
async def test_what_it_refuses(sampler: Engine, data: bytes, most: int, code: str) -> None:
    with pytest.raises(EngineError) as caught:
        await sampled(sampler, data, most)
    assert (caught.value.engine_code, caught.value.transient) == (code, False)


async def test_cancelled_it_hands_out_nothing(sampler: Engine) -> None:
    call = FakeCall(video=of(1), most=1)
    call.cancelled.set()
    with pytest.raises(Cancelled):
        await sampler.run(call)
    assert call.tensors == {}
