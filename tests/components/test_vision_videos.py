"""Videos for models that see, through its eyes and its words: rows for a prompt, or a typed error before any step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.vision import VisionEncoder
from components.llm.transformers_engine import TransformersEngine
from components.media import video as media
from cornstalk.errors import EngineError
from cornstalk.tasks import LLM, ImageEncoder
from tests.components.fake_call import FakeCall
from tests.components.media_files import encoded_sound, picture, tone, video
from tests.components.patient import Patient
from tests.components.tiny_lm import tiny_model
from tests.components.tiny_vl import SIZE, noise, tiny_vl

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vl(tmp_path_factory.mktemp("vl"), "qwen3_vl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eyes(folder: Path) -> AsyncIterator[VisionEncoder]:
    engine = Patient(ImageEncoder(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(folder: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(LLM(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


def clip(seed: int, frames: int = 20, fps: int = 10) -> bytes:
    return video([noise(100 * seed + i, 64, 96) for i in range(frames)], fps=fps)


async def watched(eyes: VisionEncoder, **inputs: Any) -> tuple[Any, list[float]]:
    call = FakeCall(**ImageEncoder.defaults | inputs)
    told = await eyes.run(call)
    return call.tensors["embeddings"], told["times"]


# ------------------------------------------------------------ eyes


async def test_videos_of_one_shape_go_together_and_are_seen_as_alone(eyes: VisionEncoder) -> None:
    files = [clip(i) for i in range(4)]
    alone = [await watched(eyes, video=file) for file in files]
    before = eyes.stats()["steps"]
    together = await asyncio.gather(*(watched(eyes, video=file) for file in files))
    assert eyes.stats()["steps"] == before + 1
    for (rows, times), (again, same) in zip(alone, together, strict=True):
        assert (rows.shape, times, same) == ((3, 2, 2, 3, SIZE), [0.3, 1.6], [0.3, 1.6])
        assert np.allclose(rows, again, atol=1e-5)
    assert not np.allclose(alone[0][0], alone[1][0], atol=1e-2)


async def test_how_many_frames_and_how_large(eyes: VisionEncoder) -> None:
    steps = {
        (inputs.get("fps"), inputs.get("frames")): (await watched(eyes, video=clip(1), **inputs))[0].shape[1]
        for inputs in ({}, {"fps": 4.0}, {"fps": 10.0}, {"fps": 10.0, "frames": 6}, {"frames": 1})
    }
    assert list(steps.values()) == [2, 4, 8, 3, 1]
    small = (await watched(eyes, video=clip(1), side=48))[0]
    assert small.shape[-3:-1] == (1, 2)


async def test_what_cannot_be_watched_is_refused_before_any_step(
    eyes: VisionEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, before = clip(1), eyes.stats()["steps"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"video": b""}, "bad_video"),
        ({"video": good[:-200]}, "bad_video"),
        ({"video": good[:40] + bytes(5000)}, "bad_video"),
        ({"video": encoded_sound(tone(440, 44_100), 44_100, "mp4", "aac")}, "bad_video"),
        ({"video": picture(noise(1, 60, 60), "PNG")}, "bad_video"),
        ({"video": good, "image": picture(noise(1, 60, 60), "PNG")}, "bad_input"),
        ({}, "bad_input"),
        ({"video": good, "fps": 0.0}, "bad_input"),
        ({"video": good, "fps": float("nan")}, "bad_input"),
        ({"video": good, "frames": 65}, "bad_input"),
        ({"video": good, "side": -1}, "bad_input"),
        ({"video": video([noise(i, 2, 900) for i in range(4)])}, "bad_video"),
        ({"image": good}, "bad_image"),
    ]
    for inputs, code in cases:
        with pytest.raises(EngineError) as caught:
            await watched(eyes, **inputs)
        assert (caught.value.engine_code, caught.value.transient) == (code, False), inputs.keys()
    monkeypatch.setattr(media, "MAX_SECONDS", 1.0)
    with pytest.raises(EngineError, match=r"lasts 2\.0 s") as caught:
        await watched(eyes, video=good)
    assert (caught.value.engine_code, eyes.stats()["steps"]) == ("too_long", before)


# ------------------------------------------------------------ words


def rows(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


SEEN = (3, 2, 2, 3, SIZE)
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


@pytest.mark.parametrize(
    ("inputs", "code", "why"),
    [
        ({"videos": [rows(*SEEN)]}, "bad_input", "1 videos were given, and times of 0"),
        ({"videos": [rows(*SEEN)], "times": [[0.0]]}, "bad_states", "a video of 2 steps has 1 times"),
        ({"videos": [rows(*SEEN[1:])], "times": [[0.0, 1.0]]}, "bad_states", "not those of an encoder of this model"),
        ({"videos": [rows(3, 0, 2, 3, SIZE)], "times": [[]]}, "bad_states", "not those of an encoder of this model"),
        ({"videos": [rows(*SEEN)] * 5, "times": [[0.0, 1.0]] * 5}, "bad_input", "takes up to 4"),
        ({"prompt": ["what", IMAGE]}, "bad_input", "1 places of type image, and 0 were given"),
        ({"prompt": [VIDEO, "what", VIDEO], "videos": [rows(*SEEN)], "times": [[0.0, 1.0]]}, "bad_input", "2 places"),
        ({"videos": [rows(3, 20, 10, 11, SIZE)], "times": [[0.5] * 20]}, "prompt_too_long", "takes 2047"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_any_step(
    llm: TransformersEngine, inputs: dict[str, Any], code: str, why: str
) -> None:
    before = llm.stats()["steps"]
    with pytest.raises(EngineError, match=why) as caught:
        await llm.run(FakeCall(**{"prompt": "what", **inputs}))
    assert (caught.value.engine_code, llm.stats()["steps"]) == (code, before)


async def test_a_text_forges_no_video(llm: TransformersEngine) -> None:
    call = FakeCall(prompt="<|video_pad|> what", videos=[rows(*SEEN)], times=[[0.0, 1.0]], max_tokens=4)
    await llm.run(call)
    assert call.text


async def test_a_model_without_eyes_takes_texts_alone(tmp_path: Path) -> None:
    llm = TransformersEngine(LLM(model=str(tiny_model(tmp_path, "llama")), dtype="float32"))
    await llm.start()
    one, parts = FakeCall(prompt="the cat sat", max_tokens=6), FakeCall(prompt=["the cat", " sat"], max_tokens=6)
    await llm.run(one)
    await llm.run(parts)
    assert one.text == parts.text
    with pytest.raises(EngineError, match="takes no pictures") as caught:
        await llm.run(FakeCall(prompt="what", videos=[rows(*SEEN)], times=[[0.0, 1.0]]))
    assert caught.value.engine_code == "bad_input"
    await llm.stop()
