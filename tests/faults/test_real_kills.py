"""The same with real engines: Whisper hears, SmolLM2 answers, a voice says so, while any process dies or stops.

What each question is answered without a fault is what it must be answered with them: the words, and each sample.
CORNSTALK_SOAK=long (`make soak`) is the long form.
"""

from __future__ import annotations

import base64
import io
import os
import random
import secrets
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from cornstalk.cli.paths import PACKAGE, examples
from cornstalk.tasks import LLM, SpeechToText, TextToSpeech
from tests.faults.client import Answer, ask
from tests.faults.soak import ENV, KILL, LONG, STOP, TERM, Kind, Right, Soak
from tests.faults.stored import left_subjects, nothing_left
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.models

QUESTIONS: Final = ("What is the capital of France?", "What is the capital of Italy?")
SEED: Final = {"Cornstalk-Seed": "7"}
RATE: Final = 24_000
VICTIMS: Final = (
    ("worker", KILL),
    ("worker", KILL),
    ("worker", KILL),
    ("dispatcher", KILL),
    ("gateway", KILL),
    ("sidecar", KILL),
    ("nats-server", KILL),
    ("worker", TERM),
    ("worker", STOP),
)
REQUESTS: Final = 120 if LONG else 12
EVERY: Final = 5.0
"""Seconds between two faults: a worker loads its model in about as many."""
PURGED: Final = 90.0


async def test_kills_of_any_process_change_no_word_and_no_sample() -> None:
    seed = int(os.environ.get("CORNSTALK_SEED", secrets.randbelow(10**6) if LONG else 7))
    print(f"seed {seed}")
    async with speaking() as stack:
        mix = tuple([await _kind(stack, body) for body in await _questions(stack)])
        soak = Soak(stack, random.Random(seed), VICTIMS, REQUESTS, mix=mix, every=EVERY, rounds=1)
        await soak.survive()
        await nothing_left(stack, within=40.0)

        async def purged() -> bool:
            return not await left_subjects(stack)

        await eventually(purged, within=PURGED, every=0.5)


@asynccontextmanager
async def speaking() -> AsyncIterator[Stack]:
    """Two gateways, two dispatchers, and two workers of each model that a spoken answer needs."""
    async with Stack(gateways=2, env=ENV | {"HF_HUB_OFFLINE": "1"}) as stack:
        await stack.deploy(PACKAGE / "cli" / "speak_app.py")
        await stack.deploy(examples() / "spoken_answer.py", workers=False)  # nobody shows it anything
        ear = SpeechToText()
        for task in (ear.encoder, ear.transcriber, LLM(), TextToSpeech()):
            stack.start_workers(task.component)
        for task in (ear.encoder, ear.transcriber, LLM(), TextToSpeech()):
            await stack.wait_workers(task.component, stack.replicas)
        yield stack


async def _questions(stack: Stack) -> list[dict[str, Any]]:
    """Each of them written, and spoken."""
    spoken = [await ask(stack.clients, "speak", {"text": text}, f"say {text}", headers=SEED) for text in QUESTIONS]
    files = [base64.b64encode(_wav(_sound(answer))).decode() for answer in spoken]
    return [{"text": text} for text in QUESTIONS] + [{"text": None, "audio": file} for file in files]


async def _kind(stack: Stack, body: dict[str, Any]) -> Kind:
    calm = await ask(stack.clients, "spoken_answer", body, f"calm {hash(str(body))}", headers=SEED)
    assert calm.response["question"] in QUESTIONS
    assert calm.response["text"]
    assert len(_sound(calm)) > RATE
    return "spoken_answer", body, _same_as(calm)


def _same_as(calm: Answer) -> Right:
    def right(_: str, answer: Answer) -> bool:
        same = all(answer.response[name] == calm.response[name] for name in ("question", "text"))
        return same and _sound(answer) == _sound(calm)

    return right


def _sound(answer: Answer) -> bytes:
    return b"".join(base64.b64decode(piece) for piece in answer.pieces["speech"])


def _wav(pcm: bytes) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)
    return buffer.getvalue()
