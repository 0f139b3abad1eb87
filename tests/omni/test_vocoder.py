"""The vocoders of both Qwen-Omnis: whole as transformers makes it, in parts as whole, several parts in one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.generator.pcm import WIDTH, pcm_of
from components.generator.sound import Part
from components.generator.vocoder import VocoderEngine
from cornstalk.errors import EngineError, LineageDiverged, SetupError
from cornstalk.tasks.omni import Vocoder
from tests.components.fake_call import FakeCall, Pieces
from tests.omni import tiny_omni3

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-5
"""Of full scale: what is made in windows, beside others, against what is made whole."""


@dataclass(frozen=True)
class Family:
    name: str
    folder: str
    whole: Any
    frame: tuple[int, ...]
    hop: int  # samples of a moment
    lost: int  # samples that the last moment lacks
    first: int  # moments that must be known for the first part
    counts: tuple[int, ...]  # of moments: of one part, of a few, of so many that nothing of the first is looked at

    def samples(self, count: int) -> int:
        return count * self.hop - self.lost if count else 0


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3"])
def family(request: pytest.FixtureRequest) -> Family:
    given = request.getfixturevalue
    if request.param == "qwen2.5":
        return Family("qwen2.5", str(given("folder")), given("whole"), (), 480, 0, 36, (1, 13, 110))
    groups = (tiny_omni3.GROUPS,)
    return Family("qwen3", str(given("folder3")), given("whole3"), groups, 1920, 555, 5, (1, 9, 75))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(family: Family) -> AsyncIterator[VocoderEngine]:
    engine = VocoderEngine(Vocoder(model=family.folder, device="cpu"))
    await engine.start()
    yield engine
    await engine.stop()


def codes_of(family: Family, count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 64, (count, *family.frame)).astype(np.int16)


def pieces(codes: Any, size: int = 7) -> Any:
    return Pieces(*([codes[i : i + size]] for i in range(0, len(codes), size)))


async def speak(engine: VocoderEngine, family: Family, codes: Any, **inputs: Any) -> FakeCall:
    call = FakeCall(codes=pieces(codes), **{**Vocoder.defaults, **inputs})
    assert await engine.run(call) == {"samples": family.samples(len(codes))}
    return call


def as_made(audio: bytes) -> Any:
    return np.frombuffer(audio, "<i2").astype(np.float64)


def by_transformers(family: Family, codes: Any, speaker: str, seed: int) -> Any:
    """The sound of all codes at once: float32 [samples]"""
    import torch

    model = family.whole.model
    with torch.no_grad():
        if isinstance(family.whole, tiny_omni3.Whole):
            return model.code2wav(torch.tensor(codes.T[None].astype(np.int64))).reshape(-1).numpy()
        torch.manual_seed(seed)
        voice = torch.load(f"{family.folder}/spk_dict.pt", weights_only=True)[speaker]
        made = model.token2wav(
            torch.tensor(codes[None].astype(np.int64)), conditioning=voice["cond"], reference_mel=voice["ref_mel"]
        )
        return made.reshape(-1).numpy()


async def test_whole_it_is_bit_for_bit_what_transformers_makes(engine: VocoderEngine, family: Family) -> None:
    import torch

    codes = codes_of(family, 33)
    sound = by_transformers(family, codes, "Ethan", 7)
    torch.manual_seed(1234)  # what others draw does not matter
    part = Part(None, codes.tolist(), engine._model.voice("Ethan", 7))
    assert np.array_equal(engine._model.whole(part).numpy(), sound)
    call = await speak(engine, family, codes, speaker="Ethan", whole=True, seed=7)
    assert call.audio == pcm_of(sound)


@pytest.mark.parametrize("length", [0, 1, 2])
async def test_in_parts_it_is_what_it_is_whole(engine: VocoderEngine, family: Family, length: int) -> None:
    codes = codes_of(family, family.counts[length])
    sound = by_transformers(family, codes, "Chelsie", 3)
    assert len(sound) == family.samples(len(codes))
    assert np.abs(sound).max() > 0.1
    made = as_made((await speak(engine, family, codes, seed=3)).audio)
    assert len(made) == len(sound)
    assert np.abs(made - as_made(pcm_of(sound))).max() <= 1 + TOLERANCE * 32767


async def test_of_what_transformers_cuts_into_chunks_nothing_is_lost_in_parts(folder3: Any, whole3: Any) -> None:
    """Whole it is cut as transformers' `generate` cuts it; in parts it is the sound of all frames at once."""
    import torch

    family = Family("qwen3", str(folder3), whole3, (tiny_omni3.GROUPS,), 1920, 555, 5, ())
    engine = VocoderEngine(Vocoder(model=family.folder, device="cpu"))
    await engine.start()
    codes = codes_of(family, 310)
    with torch.no_grad():
        cut = whole3.model.code2wav.chunked_decode(torch.tensor(codes.T[None].astype(np.int64)), 300, 25)
    call = FakeCall(codes=pieces(codes), **{**Vocoder.defaults, "whole": True})
    assert await engine.run(call) == {"samples": family.samples(310) - family.lost}
    assert call.audio == pcm_of(cut.reshape(-1).numpy())
    made = as_made((await speak(engine, family, codes)).audio)
    assert np.abs(made - as_made(pcm_of(by_transformers(family, codes, "", 0)))).max() <= 1 + TOLERANCE * 32767
    await engine.stop()


async def test_the_first_part_is_heard_before_the_rest_is_said(engine: VocoderEngine, family: Family) -> None:
    arrived: asyncio.Queue[list[Any] | None] = asyncio.Queue()

    class Arriving:
        async def __aiter__(self) -> AsyncIterator[list[Any]]:
            while (piece := await arrived.get()) is not None:
                yield piece

    heard = asyncio.Event()
    call = FakeCall(**Vocoder.defaults, codes=Arriving())
    call.on_emit = lambda _: heard.set()
    running = asyncio.create_task(engine.run(call))
    codes = codes_of(family, family.first + 24)
    arrived.put_nowait([codes[: family.first]])
    await asyncio.wait_for(heard.wait(), 20)
    arrived.put_nowait([codes[family.first :]])
    arrived.put_nowait(None)
    await running
    assert call.audio == (await speak(engine, family, codes)).audio


async def test_parts_of_several_requests_share_steps(engine: VocoderEngine, family: Family) -> None:
    """Each sounds as it does alone: nothing of one is heard in another."""
    said = [codes_of(family, 30, i) for i in range(8)]
    alone = [(await speak(engine, family, codes, seed=i)).audio for i, codes in enumerate(said)]
    batches: list[float] = []

    async def beside(index: int) -> bytes:
        call = FakeCall(codes=pieces(said[index]), seed=index, **Vocoder.defaults)
        call.on_emit = lambda _: batches.append(engine.stats()["batch"])
        await engine.run(call)
        return call.audio

    together = await asyncio.gather(*map(beside, range(8)))
    for a, b in zip(alone, together, strict=True):
        assert np.abs(as_made(a) - as_made(b)).max() <= 1
    assert max(batches) >= 4
    assert len(set(alone)) == 8


async def test_parts_from_different_places_may_share_a_step(engine: VocoderEngine, family: Family) -> None:
    """Once they are beyond their beginnings; one of them may be where it is by a takeover, and has read nothing yet."""
    model, parts, right = engine._model, [], []
    for seed, index in [(1, 2), (2, 3), (3, 2)]:
        codes = codes_of(family, 240, seed)
        sound, start = by_transformers(family, codes, "Chelsie", seed), 0
        for before in range(index):
            window = model.window(before, len(codes), True)
            assert window is not None
            start += window.samples
        window = model.window(index, len(codes), True)
        assert window is not None
        parts.append(Part(window, codes.tolist(), model.voice("Chelsie", seed)))
        right.append(sound[start : start + window.samples])
    assert len({model.shape(part) for part in parts}) == 1
    assert np.abs(model.sounds(parts).numpy() - np.array(right)).max() <= TOLERANCE


async def test_a_step_that_fails_leaves_nothing_behind(engine: VocoderEngine, family: Family) -> None:
    """What it has read meanwhile is read once, whether the step failed before or after it."""
    codes, model = codes_of(family, 40, 3), engine._model
    right = by_transformers(family, codes, "Chelsie", 5)
    voice, told, sounds, index = model.voice("Chelsie", 5), codes.tolist(), [], 0
    while (window := model.window(index, len(told), True)) is not None:
        part, torn = Part(window, told, voice), Part(window, told[:1], model.voice("Ethan", 5))
        for parts in ([part, torn], [torn, part]):
            with pytest.raises((RuntimeError, ValueError)):
                model.sounds(parts)
        sounds.append(model.sounds([part])[0].numpy())
        index += 1
    assert np.abs(np.concatenate(sounds) - right).max() <= TOLERANCE


@pytest.mark.parametrize(("whole", "told"), [(True, 30_000), (False, 11_521), (False, 30_000)])
async def test_stored_sound_is_gone_on_with(engine: VocoderEngine, family: Family, whole: bool, told: int) -> None:
    """Also from within a sample, as a piece may have ended."""
    codes = codes_of(family, 45)
    undisturbed = (await speak(engine, family, codes, whole=whole)).audio
    again = await speak(engine, family, codes, whole=whole, prior={"audio": [undisturbed[:told]]})
    joined = undisturbed[:told] + again.audio
    assert len(joined) == len(undisturbed)
    assert np.abs(as_made(joined) - as_made(undisturbed)).max() <= (family.name == "qwen3")


async def test_stored_sound_that_the_codes_do_not_make_is_no_part_of_a_mixture(
    engine: VocoderEngine, family: Family
) -> None:
    codes = codes_of(family, 45)
    stored = (await speak(engine, family, codes_of(family, 45, 9))).audio
    for prior in (stored[:20_000], stored + b"\0" * WIDTH):
        with pytest.raises(LineageDiverged):
            await speak(engine, family, codes, prior={"audio": [prior]})


async def test_no_codes_make_no_sound(engine: VocoderEngine, family: Family) -> None:
    for at_once in (True, False):
        assert (await speak(engine, family, codes_of(family, 0), whole=at_once)).audio == b""


async def test_what_no_talker_says_is_refused(engine: VocoderEngine, family: Family) -> None:
    right = codes_of(family, 3)
    for wrong in (right + 72, right - 64, right[..., None], right.astype(np.float32), right.sum(-1).astype(np.int16)):
        with pytest.raises(EngineError) as caught:
            await engine.run(FakeCall(codes=Pieces([wrong]), **Vocoder.defaults))
        assert caught.value.engine_code == "bad_codes"


async def test_an_unknown_speaker_is_told_who_there_is(engine: VocoderEngine, family: Family) -> None:
    """Of Qwen2.5-Omni alone: that of Qwen3-Omni hears the voice in its codes."""
    if family.name == "qwen3":
        await speak(engine, family, codes_of(family, 1), speaker="Nobody")
        return
    with pytest.raises(EngineError, match="no speaker 'Nobody'; this model has Chelsie, Ethan") as caught:
        await speak(engine, family, codes_of(family, 1), speaker="Nobody")
    assert caught.value.engine_code == "bad_input"


async def test_a_vocoder_that_this_machine_has_no_device_for(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SetupError, match="no CUDA device"):
        await VocoderEngine(Vocoder(model=family.folder, device="cuda")).start()
