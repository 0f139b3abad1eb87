"""Speech to text in two halves on the real weights, fed with speech that our own generator makes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.encoder.whisper import WhisperEncoder
from components.engine import Cancelled
from components.generator.hibari import HibariEngine
from components.llm.whisper_decoder import WhisperDecoder
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import AudioEncoder, TextToSpeech, Transcriber
from tests.components.fake_call import FakeCall, Pieces
from tests.components.media_files import encoded_sound

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

PARIS = "What is the capital of France?"


def wav(samples: np.ndarray[Any, Any], rate: int, kind: str = "WAV", subtype: str | None = None) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encoder() -> AsyncIterator[WhisperEncoder]:
    encoder = WhisperEncoder(AudioEncoder())
    await encoder.start()
    yield encoder
    await encoder.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def decoder() -> AsyncIterator[WhisperDecoder]:
    decoder = WhisperDecoder(Transcriber())
    await decoder.start()
    yield decoder
    await decoder.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speech() -> np.ndarray[Any, Any]:
    """PARIS, spoken: int16 at 24 kHz."""
    engine = HibariEngine(TextToSpeech())
    await engine.start()
    call = FakeCall(text=Pieces(PARIS))
    await engine.run(call)
    await engine.stop()
    return np.frombuffer(call.audio, "<i2")


async def heard(encoder: WhisperEncoder, audio: bytes) -> np.ndarray[Any, Any]:
    call = FakeCall(audio=audio)
    assert await encoder.run(call) == {}
    return call.tensors["states"]


async def written(decoder: WhisperDecoder, states: np.ndarray[Any, Any]) -> str:
    result = await decoder.run(FakeCall(states=states))
    assert (result["tokens"] > 0) == bool(result["text"])
    return str(result["text"])


async def test_what_was_spoken_is_heard_exactly(
    encoder: WhisperEncoder, decoder: WhisperDecoder, speech: np.ndarray[Any, Any]
) -> None:
    states = await heard(encoder, wav(speech, 24_000))
    assert (states.shape, states.dtype) == ((1, 1500, 384), np.float32)
    assert await written(decoder, states) == PARIS


@pytest.mark.parametrize(
    ("kind", "subtype", "every", "channels"),
    [
        ("FLAC", None, 1, 2),
        ("OGG", "VORBIS", 1, 1),
        ("MP3", None, 1, 1),
        ("WAV", "FLOAT", 3, 1),
        ("AIFF", "PCM_24", 2, 6),
        ("OGG", "OPUS", 1, 1),
    ],
)
async def test_formats_rates_and_channels(
    encoder: WhisperEncoder,
    decoder: WhisperDecoder,
    speech: np.ndarray[Any, Any],
    kind: str,
    subtype: str | None,
    every: int,
    channels: int,
) -> None:
    samples = np.stack([speech[::every] / 32_768] * channels, axis=1)
    text = await written(decoder, await heard(encoder, wav(samples, 24_000 // every, kind, subtype)))
    assert "capital of France" in text


@pytest.mark.parametrize(("container", "codec", "form"), [("ipod", "aac", "fltp"), ("webm", "libopus", "flt")])
async def test_what_phones_and_browsers_record(
    encoder: WhisperEncoder,
    decoder: WhisperDecoder,
    speech: np.ndarray[Any, Any],
    container: str,
    codec: str,
    form: str,
) -> None:
    samples = (speech / np.float32(32_768)).reshape(-1, 1)
    text = await written(decoder, await heard(encoder, encoded_sound(samples, 24_000, container, codec, form)))
    assert "capital of France" in text


async def test_two_at_once_are_heard_as_each_alone(encoder: WhisperEncoder, speech: np.ndarray[Any, Any]) -> None:
    files = [wav(speech, 24_000), wav(speech[::-1].copy(), 24_000)]
    alone = [await heard(encoder, f) for f in files]
    together = await asyncio.gather(*(heard(encoder, f) for f in files))
    assert all(np.array_equal(a, t) for a, t in zip(alone, together, strict=True))


async def test_silence_is_no_text(encoder: WhisperEncoder, decoder: WhisperDecoder) -> None:
    assert await written(decoder, await heard(encoder, wav(np.zeros(32_000, np.int16), 16_000))) == ""


async def test_thirty_seconds_are_heard_and_one_sample_more_is_not(encoder: WhisperEncoder) -> None:
    await heard(encoder, wav(np.zeros(30 * 8_000, np.int16), 8_000))
    with pytest.raises(EngineError, match="limit is 30 s") as caught:
        await heard(encoder, wav(np.zeros(30 * 8_000 + 1, np.int16), 8_000))
    assert (caught.value.engine_code, caught.value.transient) == ("too_long", False)


async def test_a_header_that_says_too_little_or_nothing_does_not_lift_the_limit(encoder: WhisperEncoder) -> None:
    piped = bytearray(wav(np.zeros(16_000, np.int16), 16_000))
    piped[40:44] = piped[4:8] = b"\xff\xff\xff\xff"  # as a program writes it that cannot go back
    await heard(encoder, bytes(piped))


NAN = np.full(1_600, np.nan, np.float32)
BROKEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"This is a text that somebody named .wav\n" * 50,
    "header only": lambda: wav(np.zeros(0, np.int16), 16_000),
    "cut in the header": lambda: wav(np.zeros(1_600, np.int16), 16_000)[:30],
    "cut FLAC header": lambda: wav(np.zeros(1_600, np.int16), 16_000, "FLAC")[:20],
    "no numbers": lambda: wav(NAN, 16_000, "WAV", "FLOAT"),
    "too slow": lambda: wav(np.zeros(100, np.int16), 100),
    "too many channels": lambda: wav(np.zeros((100, 9), np.int16), 16_000),
    "picture": lambda: b"\x89PNG\r\n\x1a\n" + bytes(1_000),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_audio_is_told_so(encoder: WhisperEncoder, name: str) -> None:
    with pytest.raises(EngineError) as caught:
        await heard(encoder, BROKEN[name]())
    assert (caught.value.engine_code, caught.value.transient) == ("bad_audio", False)


async def test_a_file_that_breaks_off_is_heard_so_far(encoder: WhisperEncoder, speech: np.ndarray[Any, Any]) -> None:
    file = wav(speech, 24_000)
    assert (await heard(encoder, file[: len(file) // 2])).shape == (1, 1500, 384)


async def test_cancelled_it_does_not_encode(encoder: WhisperEncoder, speech: np.ndarray[Any, Any]) -> None:
    call = FakeCall(audio=wav(speech, 24_000))
    call.cancelled.set()
    with pytest.raises(Cancelled):
        await encoder.run(call)
    assert call.tensors == {}


@pytest.mark.parametrize(
    "states",
    [np.zeros((1, 1500, 384), np.float64), np.zeros((1500, 384), np.float32), np.zeros((1, 1500, 512), np.float32)],
)
async def test_states_of_another_model_are_refused(decoder: WhisperDecoder, states: np.ndarray[Any, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        await decoder.run(FakeCall(states=states))
    assert caught.value.engine_code == "bad_states"


async def test_a_model_that_is_not_here_says_which_are() -> None:
    engine = WhisperEncoder(AudioEncoder(model="whisper-large"))
    with pytest.raises(SetupError, match=r"knows whisper-tiny\.en"):
        await engine.start()
    await engine.stop()
