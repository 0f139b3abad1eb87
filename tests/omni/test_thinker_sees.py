"""The thinker of Qwen2.5-Omni sees pictures and videos as transformers does, and its talker speaks of them alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.omni_ear import OmniEarEngine
from components.encoder.vision import VisionEncoder
from components.generator.talker import TalkerEngine
from components.llm.thinker import ThinkerEngine
from components.media.video import Sampled, choose_frames
from cornstalk.errors import EngineError
from cornstalk.tasks.omni import OmniEar, Talker, Thinker
from cornstalk.tasks.seeing import ImageEncoder
from tests.components.fake_call import FakeCall, Pieces
from tests.components.media_files import picture, video
from tests.components.tiny_vl import noise as noisy
from tests.components.whole_vl import video_processor
from tests.omni.test_thinker import check, hear, noise, rows_of, think, wav
from tests.omni.tiny_omni import Whole

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(folder: Path) -> AsyncIterator[ThinkerEngine]:
    engine = ThinkerEngine(Thinker(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eyes(folder: Path) -> AsyncIterator[VisionEncoder]:
    engine = VisionEncoder(ImageEncoder(model=str(folder), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


PICTURES = [noisy(1, 100, 140), noisy(2, 60, 90)]
CLIP = video([noisy(100 + i, 60, 92) for i in range(25)], fps=10)
"""2.5 s: five frames a step and three in the last would not be equal parts."""


async def see(eyes: VisionEncoder, **inputs: Any) -> tuple[Any, list[float]]:
    call = FakeCall(**ImageEncoder.defaults | inputs)
    told = await eyes.run(call)
    return call.tensors["embeddings"], told["times"]


def shown(folder: Path, pictures: list[Any], films: list[Sampled]) -> tuple[str, dict[str, Any]]:
    """What transformers' own processors make of them: what stands in the text, and inputs."""
    import torch
    from transformers import Qwen2VLImageProcessorPil

    text, inputs = "", dict[str, Any]()
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    if pictures:
        inputs |= processor(images=pictures, return_tensors="pt")
        text += "".join(_marks("<|IMAGE|>", grid) for grid in inputs["image_grid_thw"])
    if films:
        videos = video_processor("qwen2_5_vl")
        videos.size = processor.size
        frames = [torch.from_numpy(film.frames).permute(0, 3, 1, 2) for film in films]
        made = videos(videos=frames, do_sample_frames=False, return_tensors="pt")
        inputs |= {name: made[name] for name in ("pixel_values_videos", "video_grid_thw")}
        inputs["video_second_per_grid"] = torch.tensor([2 / (len(f.frames) / f.seconds) for f in films])
        text += "".join(_marks("<|VIDEO|>", grid) for grid in inputs["video_grid_thw"])
    # its `generate` gives what is not for one part by name to all of them, and its talker refuses pixels
    given = {f"thinker_{name}": value for name, value in inputs.items()}
    return text, given | {f"talker_{name}": value for name, value in inputs.items() if "pixel" not in name}


def _marks(token: str, grid: Any) -> str:
    return f"<|vision_bos|>{token * (int(grid.prod()) // 4)}<|vision_eos|>"


def film() -> Sampled:
    """The frames that the eyes are to choose."""
    chosen = video_processor("qwen2_5_vl").sample_frames(_Told(), fps=2.0).tolist()
    return choose_frames(CLIP, lambda total, rate: chosen)


class _Told:
    total_num_frames, fps = 25, 10.0


@pytest.mark.parametrize(("pictures", "films"), [(1, 0), (2, 0), (0, 1), (2, 2)])
async def test_text_and_rows_are_those_of_the_whole_model(
    thinker: ThinkerEngine, eyes: VisionEncoder, whole: Whole, folder: Path, pictures: int, films: int
) -> None:
    images = [(await see(eyes, image=picture(p, "PNG")))[0] for p in PICTURES[:pictures]]
    watched = [await see(eyes, video=CLIP)] * films
    call = await think(
        thinker, "the dog", images=images, videos=[rows for rows, _ in watched], times=[times for _, times in watched]
    )
    seen = shown(folder, PICTURES[:pictures], [film()] * films)
    check(call, await asyncio.to_thread(whole.answer, "the dog", seen=seen))


async def test_sound_picture_and_video_in_one_turn_and_the_speech_of_it(
    thinker: ThinkerEngine, eyes: VisionEncoder, whole: Whole, folder: Path
) -> None:
    ear, talker = (
        OmniEarEngine(OmniEar(model=str(folder), dtype="float32")),
        TalkerEngine(Talker(model=str(folder), dtype="float32")),
    )
    await ear.start()
    await talker.start()
    sound, (rows, times) = noise(1.3, 7), await see(eyes, video=CLIP)
    image, _ = await see(eyes, image=picture(PICTURES[0], "PNG"))
    heard = await hear(ear, wav(sound))
    call = await think(thinker, "what?", audio=[heard], images=[image], videos=[rows], times=[times])
    right = await asyncio.to_thread(
        whole.answer, "what?", sound, seen=shown(folder, PICTURES[:1], [film()]), seeds=(5, 6)
    )
    check(call, right)
    spoken = FakeCall(
        seed=5, **Talker.defaults | {"rows": Pieces(*[[rows] for rows in rows_of(call)]), "max_codes": 40}
    )
    await talker.run(spoken)
    codes = [int(code) for piece in spoken.pieces("codes") for tensor in piece for code in tensor]
    assert codes == right.codes
    assert len(codes) > 5
    await ear.stop()
    await talker.stop()


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"images": [np.zeros((1, 2, 2, 64), np.float32)]}, "bad_states"),
        ({"images": [np.zeros((2, 1, 2, 2, 128), np.float32)]}, "bad_states"),
        ({"videos": [np.zeros((2, 2, 2, 128), np.float32)]}, "bad_input"),
        ({"videos": [np.zeros((2, 2, 2, 128), np.float32)], "times": [[0.0]]}, "bad_states"),
        ({"images": [np.zeros((1, 2, 2, 128), np.float32)] * 17}, "bad_input"),
        ({"images": [np.zeros((1, 50, 41, 128), np.float32)]}, "prompt_too_long"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_any_step(
    thinker: ThinkerEngine, more: dict[str, Any], code: str
) -> None:
    before = thinker.stats()["steps"]
    with pytest.raises(EngineError) as caught:
        await think(thinker, "hello", **more)
    assert (caught.value.engine_code, thinker.stats()["steps"]) == (code, before)
