"""Streams of bytes on a real stack, by an engine of a third party: told apart from text, whole, over a cut too."""

from __future__ import annotations

import random

import pytest
from pydantic import BaseModel

from cornstalk import AsyncClient, Stream
from cornstalk.client import Chunk
from cornstalk.types import Audio
from tests.client.conftest import urls_of
from tests.client.media import WAV
from tests.client.proxy import CuttingProxy
from tests.client.standin.standin import QUESTION, WORDS
from tests.client.standin.standin import spoken as speech_of
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "".join(WORDS)


class Spoken(BaseModel):
    question: str
    text: Stream[str]
    speech: Stream[Audio] = b""


@pytest.mark.parametrize("model", [None, Spoken])
async def test_text_and_sound(spoken: Stack, model: type[Spoken] | None) -> None:
    async with AsyncClient(urls_of(spoken)) as client:
        answer = await client.invoke("spoken_answer", audio=WAV, response_model=model)
    response = answer.response.model_dump() if isinstance(answer.response, Spoken) else answer.response
    assert response == {"question": QUESTION, "text": TEXT, "speech": speech_of(TEXT)}


async def test_chunks_of_sound_say_what_they_are(spoken: Stack) -> None:
    async with AsyncClient(urls_of(spoken)) as client, client.stream("spoken_answer", text="hello") as stream:
        chunks = [event async for event in stream if isinstance(event, Chunk)]
    sounds = [c for c in chunks if c.field == "speech"]
    assert {c.media_type for c in sounds} == {"audio/pcm;rate=24000;channels=1"}
    assert b"".join(bytes(c.data) for c in sounds if isinstance(c.data, bytes)) == speech_of(TEXT)


@pytest.mark.parametrize("seed", range(3))
async def test_sound_through_cuts(spoken: Stack, seed: int) -> None:
    rng = random.Random(seed)
    cuts = iter([*(rng.randrange(6000) for _ in range(4)), *[None] * 9])
    async with CuttingProxy(spoken.ports[seed % 2], cuts) as proxy, AsyncClient(proxy.url) as client:
        answer = await client.invoke("spoken_answer", text="hello", response_model=Spoken)
        assert proxy.resets >= 2
    assert answer.response == Spoken(question="hello", text=TEXT, speech=speech_of(TEXT))
