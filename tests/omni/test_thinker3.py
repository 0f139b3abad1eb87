"""The thinker of Qwen3-Omni says what transformers says, and tells its talker what transformers hands on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.omni_ear import OmniEarEngine
from components.encoder.tower import Tower
from components.encoder.vision import VisionEncoder
from components.llm.thinker import ThinkerEngine
from components.media.video import choose_frames
from cornstalk.errors import EngineError
from cornstalk.tasks.omni import OmniEar, Thinker
from cornstalk.tasks.seeing import ImageEncoder
from tests.components.fake_call import FakeCall
from tests.components.media_files import picture, video
from tests.components.tiny_vl import noise as noisy
from tests.omni.test_thinker import NEAR, hear, noise, rows_of, think, tokens_of, wav
from tests.omni.tiny_omni3 import HIDDEN, SPEAKERS, Answer, Whole

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["hello", "the quick brown fox", "why?", "a dog", "jumps", "over", "lazy", "the end of it all"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder3: Path) -> AsyncIterator[ThinkerEngine]:
    engine = ThinkerEngine(Thinker(model=str(folder3), dtype="float32"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ear(folder3: Path) -> AsyncIterator[OmniEarEngine]:
    engine = OmniEarEngine(OmniEar(model=str(folder3), dtype="float32", device="cpu"))
    await engine.start()
    yield engine
    await engine.stop()


def check(call: FakeCall, answer: Answer) -> None:
    assert call.text == answer.text.rstrip("\ufffd")  # a character that breaks off is not said
    told, tokens = rows_of(call), tokens_of(call)
    assert tokens == answer.tokens[: len(tokens)]
    assert call.tokens_out == len(answer.tokens)
    assert [(t.dtype, t.shape) for t in told] == [(t.numpy().dtype, t.shape) for t in answer.edge]
    for mine, right in zip(told, answer.edge, strict=True):
        assert np.abs(mine.astype(float) - right.numpy()).max() < NEAR


async def test_text_and_what_is_told_are_those_of_the_whole_model(engine: ThinkerEngine, whole3: Whole) -> None:
    """The long one is read in parts. Nothing of the system's turn is told, and the voice by its code."""
    for text in ("hello", "the quick brown fox " * 8):
        check(await think(engine, text), whole3.answer(text, speaker="Chelsie"))
    check(
        await think(engine, "hello", system="the dog", speaker="Aiden"),
        whole3.answer("hello", system="the dog", speaker="aiden"),
    )


async def test_sounds_are_heard_as_the_whole_model_hears_them(
    engine: ThinkerEngine, ear: OmniEarEngine, whole3: Whole
) -> None:
    """Also one that is no whole number of frames, and one of several windows."""
    sounds = [noise(0.0731, 4), noise(0.7, 1), noise(2.5, 2), noise(2.5, 3), noise(9.003, 5)]
    heard = await asyncio.gather(*(hear(ear, wav(sound)) for sound in sounds))
    assert [rows.shape for rows in heard] == [(n, HIDDEN) for n in (1, 9, 33, 33, 117)]
    for sound, rows in zip(sounds, heard, strict=True):
        check(await think(engine, "the dog and", audio=[rows]), whole3.answer("the dog and", sound, speaker="Chelsie"))


async def test_eight_at_once_are_bit_for_bit_what_they_are_alone(engine: ThinkerEngine) -> None:
    """The experts of one are not computed together with those of another, which would round otherwise."""
    alone = [await think(engine, text) for text in TEXTS]
    batches: list[float] = []

    async def beside(text: str) -> FakeCall:
        call = FakeCall(**{**Thinker.defaults, "prompt": text, "max_tokens": 24})
        call.on_emit = lambda _: batches.append(engine.stats()["batch"])
        await engine.run(call)
        return call

    together = await asyncio.gather(*map(beside, TEXTS))
    assert max(batches) >= 4
    for a, b in zip(alone, together, strict=True):
        assert a.text == b.text
        assert tokens_of(a) == tokens_of(b)
        for one, other in zip(rows_of(a), rows_of(b), strict=True):
            assert np.array_equal(one, other)
    assert len({call.text for call in alone}) == len(TEXTS)


@pytest.mark.parametrize("elements", [0, 1, 4, 7])
async def test_what_is_stored_is_gone_on_with(engine: ThinkerEngine, elements: int) -> None:
    """Also from within the tensors that tell the prompt."""
    first = await think(engine, "why?")
    prior = {"rows": [[tensor] for tensor in rows_of(first)[:elements]]}
    again = await think(engine, "why?", prior=prior, prior_tokens={"rows": tokens_of(first)[:4]})
    assert again.text == first.text
    assert len(rows_of(again)) == len(rows_of(first)) - elements
    for a, b in zip(rows_of(again), rows_of(first)[elements:], strict=True):
        assert np.array_equal(a, b)


async def test_who_there_is_to_speak(engine: ThinkerEngine) -> None:
    assert [int(rows_of(await think(engine, "hello", speaker=name))[3][0]) for name in ("Ethan", "ETHAN", "aiden")] == [
        SPEAKERS[name] for name in ("ethan", "ethan", "aiden")
    ]
    with pytest.raises(EngineError, match="no speaker 'Nobody'; this model has aiden, chelsie, ethan") as caught:
        await think(engine, "hello", speaker="Nobody")
    assert caught.value.engine_code == "bad_input"
    assert (await think(engine, "hello", speaker="Nobody", speak=False)).pieces("rows") == []


@pytest.mark.parametrize("rows", [np.zeros((3, 64), np.float32), np.zeros((3, HIDDEN), np.int32)])
async def test_what_the_ear_of_another_model_heard_is_refused(engine: ThinkerEngine, rows: Any) -> None:
    with pytest.raises(EngineError, match=rf"not \[n, {HIDDEN}\] of the ear of this model") as caught:
        await think(engine, "hello", audio=[rows])
    assert caught.value.engine_code == "bad_states"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eyes(folder3: Path) -> AsyncIterator[VisionEncoder]:
    engine = VisionEncoder(ImageEncoder(model=str(folder3), dtype="float32", device="cpu"))
    await engine.start()
    yield engine
    await engine.stop()


def pixels(seed: int) -> Any:
    high, wide = 64 + 32 * seed, 160 - 32 * seed
    return np.random.default_rng(seed).integers(0, 256, (high, wide, 3), np.uint8)


async def see(eyes: VisionEncoder, image: Any) -> Any:
    call = FakeCall(**ImageEncoder.defaults | {"image": picture(image, "PNG")})
    await eyes.run(call)
    return call.tensors["embeddings"]


def shown(folder: Path, images: list[Any]) -> tuple[str, dict[str, Any]]:
    """What transformers' own processor makes of pictures: what stands in the text, and inputs."""
    from transformers import Qwen2VLImageProcessorPil

    made = Qwen2VLImageProcessorPil.from_pretrained(folder)(images=images, return_tensors="pt")
    rows = [int(grid.prod()) // 4 for grid in made["image_grid_thw"]]
    media = "".join(f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in rows)
    return media, {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}


async def test_pictures_are_seen_as_the_whole_model_sees_them(
    engine: ThinkerEngine, eyes: VisionEncoder, folder3: Path, whole3: Whole
) -> None:
    """With their deepstack features, and at their places: of the talker's prompt too."""
    for images in ([pixels(0)], [pixels(1), pixels(2)]):
        seen = [await see(eyes, image) for image in images]
        media, inputs = shown(folder3, images)
        right = whole3.answer("what?", system="see", media=media, inputs=inputs, speaker="Chelsie")
        assert int(right.edge[1].sum()) == sum(s.shape[2] * s.shape[3] for s in seen)
        check(await think(engine, "what?", system="see", images=seen), right)


async def test_sounds_and_pictures_in_one_turn(
    engine: ThinkerEngine, ear: OmniEarEngine, eyes: VisionEncoder, folder3: Path, whole3: Whole
) -> None:
    """transformers answers such a turn in text alone: its talker does not know how long a sound is."""
    import torch

    sound, image = noise(1.3, 7), pixels(1)
    said = await think(engine, "what?", audio=[await hear(ear, wav(sound))], images=[await see(eyes, image)])
    media, inputs = shown(folder3, [image])
    ids, inputs = whole3.turn("what?", sound, media=media, inputs=inputs)
    ends = whole3.model.generation_config.eos_token_id
    thought = whole3.model.thinker.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, max_new_tokens=24, do_sample=False,
        eos_token_id=ends,
    )  # fmt: skip
    right = [token for token in thought[0, ids.shape[1] :].tolist() if token not in ends]
    assert tokens_of(said) == right[: len(tokens_of(said))]
    assert said.tokens_out == len(right)
    positions, _ = whole3.model.thinker.get_rope_index(
        ids, inputs["image_grid_thw"], attention_mask=torch.ones_like(ids),
        audio_seqlens=inputs["feature_attention_mask"].sum(-1),
    )  # fmt: skip
    told = rows_of(said)
    assert int(told[1].sum()) == 17 + 3 * 4
    assert np.array_equal(told[2], positions[:, 0].numpy())


async def test_what_the_eyes_of_another_model_saw_is_refused(engine: ThinkerEngine) -> None:
    for embeddings in (np.zeros((1, 2, 2, HIDDEN), np.float32), np.zeros((3, 1, 2, 2, 64), np.float32)):
        with pytest.raises(EngineError, match=f"not those of an encoder of this model, whose rows have {HIDDEN}"):
            await think(engine, "hello", images=[embeddings])


def clip(rate: int, frames: int) -> bytes:
    return video([noisy(100 + i, 64, 96) for i in range(frames)], fps=rate)


def filmed(tower: Tower, file: bytes) -> tuple[str, dict[str, Any]]:
    """As `shown`, of a video whose frames `tower` chooses and prepares."""
    import torch

    made = tower.film(choose_frames(file, lambda total, rate: tower.chosen(total, rate, 2.0, 16), 448))
    patches, grid = (torch.from_numpy(made.arrays[name]) for name in ("pixel_values", "image_grid_thw"))
    each = torch.tensor([made.times[1]])
    media = f"<|vision_start|>{'<|video_pad|>' * (len(patches) // 4)}<|vision_end|>"
    return media, {"pixel_values_videos": patches, "video_grid_thw": grid, "video_second_per_grid": each}


@pytest.mark.parametrize("file", [clip(10, 25), clip(4, 10)])
async def test_videos_are_seen_as_the_whole_model_sees_them(
    engine: ThinkerEngine, eyes: VisionEncoder, folder3: Path, whole3: Whole, file: bytes
) -> None:
    """Of the first the steps lie at fractions of a position. Beside a picture, whose rows stand before it."""
    call = FakeCall(**ImageEncoder.defaults | {"video": file})
    times = (await eyes.run(call))["times"]
    assert call.tensors["embeddings"].shape[1] == len(times) > 1
    (tower,) = eyes._towers.values()
    (media, inputs), (more, others) = shown(folder3, [pixels(2)]), filmed(tower, file)
    right = whole3.answer("what?", media=media + more, inputs=inputs | others, speaker="Chelsie")
    seen = {"images": [await see(eyes, pixels(2))], "videos": [call.tensors["embeddings"]], "times": [times]}
    check(await think(engine, "what?", **seen), right)
