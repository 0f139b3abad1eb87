"""The vocoder of Qwen2.5-Omni: whole as transformers makes it, in parts as whole, several parts in one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.generator.pcm import WIDTH, pcm_of
from components.generator.vocoder import VocoderEngine
from cornstalk.errors import EngineError, LineageDiverged
from cornstalk.tasks.omni import Vocoder
from tests.components.fake_call import FakeCall, Pieces
from tests.omni.tiny_omni import Whole

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-5
"""Of full scale: what is made in windows, beside others, against what is made whole."""
SAMPLES = 480
"""Of a code."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[VocoderEngine]:
    engine = VocoderEngine(Vocoder(model=str(folder)))
    await engine.start()
    yield engine
    await engine.stop()


def codes_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 64, count).tolist()  # type: ignore[no-any-return]


def pieces(codes: list[int], size: int = 7) -> Any:
    arrays = [np.array(codes[i : i + size], np.int16) for i in range(0, len(codes), size)]
    return Pieces(*([a] for a in arrays))


async def speak(engine: VocoderEngine, codes: list[int], **inputs: Any) -> FakeCall:
    call = FakeCall(codes=pieces(codes), **{**Vocoder.defaults, **inputs})
    assert await engine.run(call) == {"samples": len(codes) * SAMPLES}
    return call


async def test_whole_it_is_bit_for_bit_what_transformers_makes(engine: VocoderEngine, whole: Whole) -> None:
    import torch

    codes, speaker = codes_of(33), engine._speakers["Ethan"]
    torch.manual_seed(7)
    with torch.no_grad():
        wave = whole.model.token2wav(
            torch.tensor([codes]), conditioning=speaker.condition, reference_mel=speaker.mel
        ).reshape(-1)
    torch.manual_seed(1234)  # what others draw does not matter
    assert torch.equal(engine._model.whole(codes, speaker, 7), wave)
    call = await speak(engine, codes, speaker="Ethan", whole=True, seed=7)
    assert call.audio == pcm_of(wave.numpy())


@pytest.mark.parametrize("count", [1, 13, 110])
async def test_in_parts_it_is_what_it_is_whole(engine: VocoderEngine, count: int) -> None:
    codes, model = codes_of(count), engine._model
    sound = model.whole(codes, engine._speakers["Chelsie"], 3).numpy()
    assert len(sound) == count * SAMPLES
    assert np.abs(sound).max() > 0.1
    call = await speak(engine, codes, seed=3)
    made = np.frombuffer(call.audio, "<i2").astype(np.float64)
    assert len(made) == len(sound)
    assert np.abs(made - np.frombuffer(pcm_of(sound), "<i2")).max() <= 1 + TOLERANCE * 32767


async def test_the_first_part_is_heard_before_the_rest_is_said(engine: VocoderEngine) -> None:
    arrived: asyncio.Queue[list[Any] | None] = asyncio.Queue()

    class Arriving:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            while (piece := await arrived.get()) is not None:
                yield piece

    heard = asyncio.Event()
    call = FakeCall(**Vocoder.defaults, codes=Arriving())
    call.on_emit = lambda _: heard.set()
    running = asyncio.create_task(engine.run(call))
    codes = codes_of(60)
    arrived.put_nowait([np.array(codes[:36], np.int16)])
    await asyncio.wait_for(heard.wait(), 20)
    arrived.put_nowait([np.array(codes[36:], np.int16)])
    arrived.put_nowait(None)
    await running
    assert call.audio == (await speak(engine, codes)).audio


async def test_parts_of_several_requests_share_steps(engine: VocoderEngine) -> None:
    """Each sounds as it does alone: nothing of one is heard in another."""
    said = [codes_of(30, i) for i in range(8)]
    alone = [(await speak(engine, codes, seed=i)).audio for i, codes in enumerate(said)]
    batches: list[float] = []

    async def beside(index: int) -> bytes:
        call = FakeCall(codes=pieces(said[index]), seed=index, **Vocoder.defaults)
        call.on_emit = lambda _: batches.append(engine.stats()["batch"])
        await engine.run(call)
        return call.audio

    together = await asyncio.gather(*map(beside, range(8)))
    for a, b in zip(alone, together, strict=True):
        apart = np.frombuffer(a, "<i2").astype(int) - np.frombuffer(b, "<i2")
        assert np.abs(apart).max() <= 1
    assert max(batches) >= 4
    assert len(set(alone)) == 8


@pytest.mark.parametrize(("whole", "told"), [(True, 30_000), (False, 11_521), (False, 30_000)])
async def test_stored_sound_is_gone_on_with(engine: VocoderEngine, whole: bool, told: int) -> None:
    """Also from within a sample, as a piece may have ended."""
    codes = codes_of(45)
    undisturbed = (await speak(engine, codes, whole=whole)).audio
    again = await speak(engine, codes, whole=whole, prior={"audio": [undisturbed[:told]]})
    assert undisturbed[:told] + again.audio == undisturbed


async def test_stored_sound_that_the_codes_do_not_make_is_no_part_of_a_mixture(engine: VocoderEngine) -> None:
    codes = codes_of(45)
    stored = (await speak(engine, codes_of(45, 9))).audio
    for prior in (stored[:20_000], stored + b"\0" * WIDTH):
        with pytest.raises(LineageDiverged):
            await speak(engine, codes, prior={"audio": [prior]})


async def test_no_codes_make_no_sound(engine: VocoderEngine) -> None:
    for at_once in (True, False):
        assert (await speak(engine, [], whole=at_once)).audio == b""


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (np.array([72], np.int16), "bad_codes"),
        (np.array([-1], np.int16), "bad_codes"),
        (np.array([[1]], np.int16), "bad_codes"),
        (np.array([1.0], np.float32), "bad_codes"),
    ],
)
async def test_what_no_talker_says_is_refused(engine: VocoderEngine, tensor: Any, code: str) -> None:
    with pytest.raises(EngineError) as caught:
        await engine.run(FakeCall(codes=Pieces([tensor]), **Vocoder.defaults))
    assert caught.value.engine_code == code


async def test_an_unknown_speaker_is_told_who_there_is(engine: VocoderEngine) -> None:
    with pytest.raises(EngineError, match="no speaker 'Nobody'; this model has Chelsie, Ethan") as caught:
        await speak(engine, [1], speaker="Nobody")
    assert caught.value.engine_code == "bad_input"
