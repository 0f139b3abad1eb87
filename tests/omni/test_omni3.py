"""Qwen3-Omni in four components, on real processes: what the whole model says, said sooner, whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from components.generator.pcm import pcm_of
from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient
from cornstalk.tasks.omni import Omni
from tests.faults.stored import chunks
from tests.omni.test_omni import EXACT, SOUNDS, TEXTS, ask, nodes
from tests.omni.test_thinker import noise
from tests.omni.tiny_omni3 import GROUPS, HIDDEN, Answer, Whole
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

LIMITS = {"max_tokens": 16, "max_codes": 20}


@pytest.fixture(scope="module")
def parts(folder3: Path) -> Omni:
    return Omni(str(folder3), "float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder3: Path, parts: Omni, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    made = tmp_path_factory.mktemp("apps")
    example = (examples() / "omni.py").read_text()
    (made / "omni.py").write_text(example.replace('"Qwen/Qwen2.5-Omni-7B"', f'{str(folder3)!r}, dtype="float32"'))
    (made / "exact.py").write_text(EXACT.replace("{model!r}", repr(str(folder3))))
    dying = {f"{task.component}@0": "worker.chunk" for task in (parts.thinker, parts.talker, parts.vocoder)}
    async with Stack(env={"CORNSTALK_ACK_WAIT": "2"}, crash=dying) as running:
        await running.deploy(made / "omni.py", workers=False)
        await running.deploy(made / "exact.py", workers=False)
        every = (parts.ear, parts.thinker, parts.talker, parts.vocoder)
        for task in every:
            running.start_workers(task.component)
        for task in every:
            await running.wait_workers(task.component, running.replicas, within=240)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as found:
        yield found


async def expected(stack: Stack, whole3: Whole, request: str, text: str, sound: Any = None, **limits: int) -> Answer:
    """What the whole model answers with the seed that the talker of the request has."""
    seed = (await nodes(stack, request))["talker"].seed
    tokens, codes = limits["max_tokens"], limits["max_codes"]
    return await asyncio.to_thread(whole3.answer, text, sound, seed=seed, speaker="Chelsie", tokens=tokens, codes=codes)


async def test_eight_at_once_are_each_what_the_whole_model_answers(
    stack: Stack, client: AsyncClient, whole3: Whole, parts: Omni
) -> None:
    """Text token for token, sound bit for bit: with and without audio, side by side, nothing of one is in another.

    One of two thinkers, of two talkers and of two vocoders die with their first piece: others go on after what is
    stored.
    """
    said: list[tuple[str, Any]] = [(text, None) for text in TEXTS]
    said += [("the dog and", noise(*sound)) for sound in SOUNDS]
    answers = await asyncio.gather(*(ask(client, "exact", text, sound, **LIMITS) for text, sound in said))
    for (text, sound), answer in zip(said, answers, strict=True):
        right = await expected(stack, whole3, answer.request, text, sound, **LIMITS)
        assert answer.response["text"] == right.text.rstrip("\ufffd")
        assert answer.response["speech"] == pcm_of(right.wave.numpy())
    assert len({answer.response["text"] for answer in answers}) == 8
    assert len({answer.response["speech"] for answer in answers}) == 8
    for task in (parts.thinker, parts.talker, parts.vocoder):
        assert not stack.children[f"{task.component}@0"].alive


async def test_edges_carry_what_the_next_part_reads_and_no_more(
    stack: Stack, client: AsyncClient, whole3: Whole, parts: Omni
) -> None:
    """As the log holds it. Of the prompt that is the turn of the user; neither it nor the sound travels again."""
    sound = noise(2.5, 3)
    answer = await ask(client, "omni", "the dog and", sound, **LIMITS)
    right = await expected(stack, whole3, answer.request, "the dog and", sound, **LIMITS)
    found = await nodes(stack, answer.request)
    assert set(found["talker"].inputs) - {"rows"} <= set(type(parts.talker).defaults)
    assert set(found["vocoder"].inputs) - {"codes"} <= set(type(parts.vocoder).defaults)
    stored: dict[str, list[Any]] = {"rows": [], "codes": []}
    for seen, chunk in await chunks(stack, answer.request):
        if (output := seen.subject.rpartition(".")[2]) in stored and not chunk.takeover:
            stored[output] += [(element.dtype, tuple(element.shape)) for element in chunk.payload]
    assert stored["rows"] == [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in right.edge]
    assert stored["rows"][4:] == [("float32", (1, HIDDEN))] * (len(right.tokens) - 1)
    assert {(dtype, shape[1:]) for dtype, shape in stored["codes"]} == {("int16", (GROUPS,))}
    assert sum(shape[0] for _, shape in stored["codes"]) == len(right.codes)


async def test_speech_begins_before_the_thought_has_ended(stack: Stack, client: AsyncClient, whole3: Whole) -> None:
    """In stored order: the first sound stands before the last text. Made in parts it is what it is whole, nearly."""
    limits = {"max_tokens": 400, "max_codes": 40}
    answer = await ask(client, "omni", "over", **limits)
    found = await nodes(stack, answer.request)
    seqs: dict[str, list[int]] = {}
    for stored, chunk in await chunks(stack, answer.request):
        if not chunk.takeover:
            seqs.setdefault(stored.subject.split(".", 2)[2], []).append(stored.seq)
    text, audio = (seqs[f"{found[name].token}.0.{out}"] for name, out in (("thinker", "text"), ("vocoder", "audio")))
    assert len(text) > 3
    assert min(audio) < max(text)
    right = await expected(stack, whole3, answer.request, "over", **limits)
    assert answer.response["text"] == right.text.rstrip("\ufffd")
    made, whole_sound = (
        np.frombuffer(pcm, "<i2").astype(int) for pcm in (answer.response["speech"], pcm_of(right.wave.numpy()))
    )
    assert len(made) == len(whole_sound)
    assert np.abs(made - whole_sound).max() <= 1


async def test_who_wants_no_speech_makes_no_work_for_it(stack: Stack, client: AsyncClient) -> None:
    answer = await ask(client, "omni", "hello", speak=False, **LIMITS)
    assert answer.response["text"]
    assert not answer.response["speech"]
    assert set(await nodes(stack, answer.request)) == {"thinker"}
