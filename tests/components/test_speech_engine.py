"""Text to speech on the real voice: early, the same however the text arrives, and taken up again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import pytest_asyncio

from components.engine import Cancelled
from components.generator.hibari import HibariEngine
from components.generator.pcm import PIECE
from cornstalk.errors import LineageDiverged, SetupError
from cornstalk.tasks import TextToSpeech
from tests.components.fake_call import FakeCall, Pieces

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Paris is the capital of France. It lies on the Seine! How many people live there? About two million."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[HibariEngine]:
    engine = HibariEngine(TextToSpeech())
    await engine.start()
    yield engine
    await engine.stop()


async def speak(engine: HibariEngine, *pieces: str, seed: int = 1, stored: bytes = b"") -> bytes:
    call = FakeCall(seed=seed, text=Pieces(*pieces), prior={"audio": [stored[:7], stored[7:]]})
    result = await engine.run(call)
    assert result == {"samples": len(stored + call.audio) // 2}
    assert all(len(p) <= PIECE for p in call.pieces("audio"))
    return call.audio


async def test_the_audio_is_sound_of_the_expected_length(engine: HibariEngine) -> None:
    samples = np.frombuffer(await speak(engine, TEXT), "<i2")
    assert 4 < len(samples) / 24_000 < 10
    assert 1_000 < np.abs(samples.astype(int)).max() <= 32_767


async def test_it_speaks_the_first_sentence_before_the_text_has_ended(engine: HibariEngine) -> None:
    spoken = asyncio.Event()
    call = FakeCall()
    call.on_emit = lambda call: spoken.set()

    async def text() -> AsyncIterator[str]:
        yield "Paris is the capital. It"
        async with asyncio.timeout(30):
            await spoken.wait()  # for ever, if the engine waited for the end of the text
        call.log.append(("text ends", ""))
        yield " lies on the Seine."

    call.inputs["text"] = text()
    await engine.run(call)
    events = [name for name, _ in call.log]
    assert "audio" in events[: events.index("text ends")]
    assert "audio" in events[events.index("text ends") :]


async def test_the_audio_is_the_same_however_the_text_arrives(engine: HibariEngine) -> None:
    whole = await speak(engine, TEXT)
    words, letters = await asyncio.gather(speak(engine, *_words(TEXT)), speak(engine, *TEXT))
    assert words == letters == whole


def _words(text: str) -> list[str]:
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


async def test_the_seed_alone_decides_the_noise(engine: HibariEngine) -> None:
    first, again, other = [await speak(engine, "Hello there.", seed=s) for s in (3, 3, 2**64 - 1)]
    assert first == again != other
    assert len(first) == len(other)


@pytest.mark.parametrize("told", [2, 40_001, 10**9])
async def test_stored_audio_is_gone_on_with(engine: HibariEngine, told: int) -> None:
    whole = await speak(engine, TEXT)
    assert whole[:told] + await speak(engine, *TEXT, stored=whole[:told]) == whole


@pytest.mark.parametrize("spoil", [lambda pcm: pcm + bytes(10**6), lambda pcm: pcm[:100] + b"\x00\x70" + pcm[102:]])
async def test_stored_audio_that_the_text_does_not_make_is_no_part_of_a_mixture(
    engine: HibariEngine, spoil: Callable[[bytes], bytes]
) -> None:
    whole = await speak(engine, "Hello.")
    with pytest.raises(LineageDiverged):
        await speak(engine, "Hello.", stored=spoil(whole))


@pytest.mark.parametrize(
    "text", ["", " \n ", "…", "日本の首都", "😀", "\x00\ufffd", "**bold** `code` https://x.y/z?a=b"]
)
async def test_any_text_can_be_spoken(engine: HibariEngine, text: str) -> None:
    await speak(engine, text)


async def test_a_sentence_without_an_end_is_spoken_too(engine: HibariEngine) -> None:
    assert len(await speak(engine, "and so on, " * 100)) > 24_000 * 2 * 20


async def test_cancelled_it_ends_at_the_next_sentence(engine: HibariEngine) -> None:
    call = FakeCall(text=Pieces(*TEXT))
    call.on_emit = lambda call: call.cancelled.set()
    with pytest.raises(Cancelled):
        await engine.run(call)
    assert len(call.log) == 1


async def test_a_voice_that_is_not_here_is_never_downloaded(engine: HibariEngine) -> None:
    absent = HibariEngine(TextToSpeech(voice="emma"))
    with pytest.raises(SetupError, match="emma"):
        await absent.start()
    await absent.stop()
