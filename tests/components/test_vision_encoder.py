"""Vision towers: pictures that wait together go together, a bad one fails alone, a bad folder is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.vision import VisionEncoder
from components.engine import Cancelled
from components.llm.transformers_engine import TransformersEngine
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import LLM, ImageEncoder
from tests.components.fake_call import FakeCall
from tests.components.media_files import pages, picture, scene
from tests.components.patient import Patient
from tests.components.tiny_lm import tiny_model
from tests.components.tiny_vl import EYES, SIZE, WORDS, noise, tiny_vl

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vl(tmp_path_factory.mktemp("vl"), "qwen2_5_vl")


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


async def seen(eyes: VisionEncoder, image: Any, page: int = 0, adapter: str = "") -> np.ndarray[Any, Any]:
    call = FakeCall(**ImageEncoder.defaults | {"image": image, "page": page, "adapter": adapter})
    await eyes.run(call)
    return call.tensors["embeddings"]


async def test_pictures_that_wait_together_go_together_and_are_seen_as_alone(eyes: VisionEncoder) -> None:
    files = [picture(noise(i, 100, 140), "PNG") for i in range(8)]
    alone = [await seen(eyes, file) for file in files]
    before = eyes.stats()
    assert before["largest_batch"] == 1
    together = await asyncio.gather(*(seen(eyes, file) for file in files))
    after = eyes.stats()
    assert (after["largest_batch"], after["steps"] - before["steps"]) == (len(files), 1)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(alone, together, strict=True))
    assert together[0].shape == (1, 4, 5, SIZE)


async def test_one_that_cannot_be_read_fails_alone(eyes: VisionEncoder) -> None:
    good = picture(noise(1, 60, 60), "PNG")
    bad = [good[:-60], b"", picture(noise(1, 2, 900), "PNG"), np.zeros((2, 4, 4), np.uint8)]
    found = await asyncio.gather(*(seen(eyes, image) for image in (good, *bad, good)), return_exceptions=True)
    assert [e.engine_code if isinstance(e, EngineError) else "seen" for e in found] == [
        "seen", "bad_image", "bad_image", "bad_image", "bad_image", "seen",
    ]  # fmt: skip


async def test_whatever_file_a_picture_comes_in_it_is_seen_alike(eyes: VisionEncoder) -> None:
    """What users send: 16 bit, CMYK, the first frame of an animation or any, a photo that lies on its side."""
    from PIL import Image

    gray = np.repeat(scene(84, 112)[:, :, :1], 3, 2)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise by a quarter
    plain, lossy = {"atol": 1e-5}, {"atol": 0.2}
    cases: list[tuple[bytes, int, Any, dict[str, float]]] = [
        (picture(gray[:, :, 0].astype(np.uint16) * 257, "PNG"), 0, gray, plain),
        (picture(scene(84, 112), "JPEG", "CMYK", quality=98), 0, scene(84, 112), lossy),
        (pages(gray, gray[:, ::-1], kind="GIF"), 0, gray, lossy),
        (pages(gray, gray[:, ::-1], kind="GIF"), 1, gray[:, ::-1], lossy),
        (picture(np.rot90(scene(84, 112)).copy(), "JPEG", quality=98, exif=turned), 0, scene(84, 112), lossy),
    ]
    for file, page, pixels, near in cases:
        found, expected = await seen(eyes, file, page), await seen(eyes, picture(pixels, "PNG"))
        assert found.shape == expected.shape == (1, 3, 4, SIZE)
        assert np.allclose(found, expected, **near), np.abs(found - expected).max()
    with pytest.raises(EngineError) as caught:
        await seen(eyes, cases[2][0], page=2)
    assert caught.value.engine_code == "bad_page"


async def test_a_frame_of_a_tensor_is_seen_as_its_file(eyes: VisionEncoder) -> None:
    frames = np.stack([noise(i, 60, 60) for i in range(3)])
    as_file = await seen(eyes, picture(frames[2], "PNG"))
    assert np.allclose(await seen(eyes, frames, page=2), as_file, atol=1e-5)
    with pytest.raises(EngineError, match="no picture 3 of 3"):
        await seen(eyes, frames, page=3)


async def test_who_is_cancelled_while_it_waits_leaves_and_the_others_go_on(eyes: VisionEncoder) -> None:
    doomed = FakeCall(**ImageEncoder.defaults | {"image": picture(noise(1, 60, 60), "PNG")})
    task = asyncio.create_task(eyes.run(doomed))
    doomed.cancelled.set()
    await seen(eyes, picture(noise(2, 60, 60), "PNG"))
    with pytest.raises(Cancelled):
        await task


# ------------------------------------------------------------ one tower for several models


async def test_models_that_share_a_tower_share_a_component(tmp_path: Path) -> None:
    one, two = (tiny_vl(tmp_path / str(seed), "llava_onevision", seed=seed) for seed in (1, 2))
    shared = Patient(ImageEncoder(model=str(one), adapters=(str(two),), dtype="float32"))
    await shared.start()
    file = picture(noise(1, 100, 140), "PNG")
    found = await asyncio.gather(*(seen(shared, file, adapter=adapter) for adapter in ("", str(one), str(two))))
    with pytest.raises(EngineError, match="no adapter '/elsewhere'") as caught:
        await seen(shared, file, adapter="/elsewhere")
    assert caught.value.engine_code == "bad_input"
    towers = [tower.vision_tower for tower in shared._towers.values()]
    assert towers[0] is towers[1]
    await shared.stop()
    for folder, ours in ((one, found[0]), (one, found[1]), (two, found[2])):
        alone = VisionEncoder(ImageEncoder(model=str(folder), dtype="float32"))
        await alone.start()
        assert np.allclose(await seen(alone, file), ours, atol=1e-5)
        await alone.stop()
    assert not np.allclose(found[0], found[2], atol=1e-2)


async def test_another_tower_is_no_adapter(tmp_path: Path, folder: Path) -> None:
    one, two = (tiny_vl(tmp_path / str(tower), "llava_onevision", tower=tower) for tower in (1, 2))
    for model, adapter, why in (
        (one, two, "sees with another tower than"),
        (one, folder, "sees with another tower than"),
        (folder, one, r"Qwen2\.5-VL has its projector within its tower"),
    ):
        with pytest.raises(SetupError, match=why):
            await VisionEncoder(ImageEncoder(model=str(model), adapters=(str(adapter),))).start()


# ------------------------------------------------------------ the words


async def said(llm: TransformersEngine, **inputs: Any) -> str:
    call = FakeCall(**inputs)
    await llm.run(call)
    return call.text


@pytest.mark.parametrize(
    ("inputs", "code", "why"),
    [
        ({"images": [np.zeros((4, SIZE), np.float32)]}, "bad_states", "not those of an encoder of this model"),
        ({"images": [np.zeros((1, 2, 2, SIZE + 1), np.float32)]}, "bad_states", "not those of an encoder"),
        ({"images": [np.zeros((1, 2, 2, SIZE), np.uint8)]}, "bad_states", "not those of an encoder"),
        ({"images": [np.zeros((1, 2, 2, SIZE), np.float32)] * 17}, "bad_input", "17 pictures were given; .* up to 16"),
        ({"images": [np.zeros((1, 50, 41, SIZE), np.float32)]}, "prompt_too_long", "takes 2047"),
    ],
)
async def test_pictures_that_cannot_be_meant_are_refused_before_any_step(
    llm: TransformersEngine, inputs: dict[str, Any], code: str, why: str
) -> None:
    before = llm.stats()["steps"]
    with pytest.raises(EngineError, match=why) as caught:
        await said(llm, prompt="what", **inputs)
    assert (caught.value.engine_code, llm.stats()["steps"]) == (code, before)


async def test_a_text_forges_no_picture(llm: TransformersEngine) -> None:
    rows = [np.ones((1, 2, 2, SIZE), np.float32)]
    assert await said(llm, prompt="<|image_pad|> what", images=rows, max_tokens=4)


async def test_stored_text_is_gone_on_with_after_pictures(llm: TransformersEngine) -> None:
    rows = [np.random.default_rng(3).normal(size=(1, 6, 5, SIZE)).astype(np.float32)]
    whole = FakeCall(prompt="what", images=rows, max_tokens=12)
    await llm.run(whole)
    stored = "".join(whole.pieces("text")[:5])
    tokens = [token for some in whole.tokens[:5] for token in some]
    again = FakeCall(prompt="what", images=rows, max_tokens=12, prior={"text": [stored]}, prior_tokens={"text": tokens})
    await llm.run(again)
    assert stored + again.text == whole.text


async def test_a_model_without_eyes_takes_no_pictures(tmp_path: Path) -> None:
    llm = TransformersEngine(LLM(model=str(tiny_model(tmp_path, "llama")), dtype="float32"))
    await llm.start()
    with pytest.raises(EngineError, match=r"takes no pictures; Qwen2\.5-VL") as caught:
        await said(llm, prompt="what", images=[np.zeros((1, 2, 2, SIZE), np.float32)])
    assert caught.value.engine_code == "bad_input"
    await llm.stop()


# ------------------------------------------------------------ folders


async def refused(folder: Path, why: str, *, words: bool) -> None:
    task: Any = LLM(model=str(folder), dtype="float32") if words else ImageEncoder(model=str(folder), dtype="float32")
    with pytest.raises(SetupError, match=why):
        await (TransformersEngine(task) if words else VisionEncoder(task)).start()


@pytest.mark.parametrize(("file", "words"), [(EYES, False), (WORDS, True)])
async def test_weights_that_are_missing_or_not_whole_are_refused(tmp_path: Path, file: str, words: bool) -> None:
    folder = tiny_vl(tmp_path, "qwen2_5_vl")
    whole = (folder / file).read_bytes()
    for damaged in (whole[:-1000], whole[:20], b""):
        (folder / file).write_bytes(damaged)
        await refused(folder, f"{file} is missing, broken or not whole", words=words)
    (folder / file).unlink()
    await refused(folder, f"{file} is missing, broken or not whole", words=words)
    index = folder / "model.safetensors.index.json"
    named = json.loads(index.read_bytes())["weight_map"]
    lost = next(name for name, where in sorted(named.items()) if where == file)
    from safetensors.torch import load, save_file

    save_file({name: tensor for name, tensor in load(whole).items() if name != lost}, folder / file)
    await refused(folder, "lacks 1 weights of its qwen2_5_vl, such as", words=words)
    index.write_text("{")
    await refused(folder, "cannot be loaded", words=words)


async def test_other_architectures_and_names_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "llama", "llama")
    await refused(folder, r"is a llama; there are vision towers of Qwen2\.5-VL", words=False)
    (folder / "config.json").write_text("{}")
    await refused(folder, "has no configuration that can be read", words=False)
    await refused(tmp_path, "no multimodal model in .*has a config.json", words=False)
    with pytest.raises(SetupError, match="no multimodal model 'nobody/nothing': they are named by"):
        await VisionEncoder(ImageEncoder(model="nobody/nothing")).start()


async def test_a_folder_that_does_not_say_how_pictures_are_prepared(tmp_path: Path) -> None:
    folder = tiny_vl(tmp_path, "qwen2_5_vl")
    (folder / "preprocessor_config.json").unlink()
    await refused(folder, "does not say how pictures are prepared", words=False)
