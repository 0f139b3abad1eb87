"""Both Qwen-Omnis in four components, on real processes: what the whole model says, said sooner, whatever dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from broker.facts import Facts
from components.generator.pcm import pcm_of
from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient, Chunk
from cornstalk.graph import fold
from cornstalk.messages import FACTS, Node, decode
from cornstalk.tasks.omni import Omni
from tests.faults.stored import chunks
from tests.omni import tiny_omni3
from tests.omni.exact import exact_app
from tests.omni.test_thinker import noise, wav
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["hello", "the quick brown fox", "the dog and", "jump"]
SOUNDS = [(0.7, 1), (2.5, 2), (2.5, 3), (1.0, 5)]
LIMITS = {"max_tokens": 16, "max_codes": 30}


@dataclass(frozen=True)
class Family:
    folder: Path
    whole: Any
    frame: tuple[int, ...]
    hop: int  # samples of a moment
    lost: int  # samples that the last moment lacks
    long: int  # tokens of a thought that lasts longer than the first sound takes

    def answer(self, text: str, sound: Any, seeds: tuple[int, int], limits: dict[str, int]) -> tuple[str, Any]:
        """What the whole model says and how it sounds, with the seeds of talker and vocoder."""
        how: dict[str, Any] = {"seeds": seeds}
        if isinstance(self.whole, tiny_omni3.Whole):
            how = {"seed": seeds[0], "speaker": "Chelsie"}
        right = self.whole.answer(text, sound, tokens=limits["max_tokens"], codes=limits["max_codes"], **how)
        return right.text.rstrip("\ufffd"), right.wave.numpy()  # a character that breaks off is not said


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3"])
def family(request: pytest.FixtureRequest) -> Family:
    given = request.getfixturevalue
    if request.param == "qwen2.5":
        return Family(given("folder"), given("whole"), (), 480, 0, 600)
    return Family(given("folder3"), given("whole3"), (tiny_omni3.GROUPS,), 1920, 555, 250)


@pytest.fixture(scope="module")
def parts(family: Family) -> Omni:
    return Omni(str(family.folder), "float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(family: Family, parts: Omni, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    made, folder = tmp_path_factory.mktemp("apps"), str(family.folder)
    example = (examples() / "omni.py").read_text()
    (made / "omni.py").write_text(example.replace('"Qwen/Qwen2.5-Omni-7B"', f'{folder!r}, dtype="float32"'))
    (made / "exact.py").write_text(exact_app("exact", family.folder))
    dying = {f"{task.component}@0": "worker.chunk" for task in (parts.talker, parts.vocoder)}
    async with Stack(env={"CORNSTALK_ACK_WAIT": "2"}, crash=dying) as running:
        await running.deploy(made / "omni.py", workers=False)
        await running.deploy(made / "exact.py", workers=False)
        counts = {parts.ear: 1, parts.thinker: 1, parts.talker: 2, parts.vocoder: 2}
        for task, running.replicas in counts.items():
            running.start_workers(task.component)
        for task, count in counts.items():
            await running.wait_workers(task.component, count, within=300)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as found:
        yield found


async def nodes(stack: Stack, request: str) -> dict[str, Node]:
    """By the name of their task."""
    stored = (await Facts(stack.broker).read(request)).messages
    state = fold(decode(FACTS[kind], s.data) for s in stored if (kind := _kind(s.subject)) in ("accepted", "graph"))
    return {node.id.partition("#")[0]: node for node in state.nodes.values()}


def _kind(subject: str) -> str:
    return subject.split(".")[2]


async def expected(
    stack: Stack, family: Family, request: str, text: str, sound: Any = None, **limits: int
) -> tuple[str, Any]:
    """What the whole model answers with the seeds that the nodes of the request have."""
    found = await nodes(stack, request)
    seeds = found["talker"].seed, found["vocoder"].seed
    return await asyncio.to_thread(family.answer, text, sound, seeds, limits)


async def ask(client: AsyncClient, app: str, text: str, sound: Any = None, seed: int = 1, **more: Any) -> Any:
    """With a seed: by lot a talker says nothing at all now and then, of which transformers makes an error."""
    heard = {} if sound is None else {"audio": wav(sound)}
    return await client.invoke(app, {"text": text, **heard, **more}, seed=seed)


async def test_eight_at_once_are_each_what_the_whole_model_answers(
    stack: Stack, client: AsyncClient, family: Family, parts: Omni
) -> None:
    """Text token for token, sound bit for bit: with and without audio, side by side, nothing of one is in another.

    One of two talkers and one of two vocoders die with their first piece: others go on after what is stored.
    """
    said = [(text, None) for text in TEXTS] + [("the dog and", noise(*sound)) for sound in SOUNDS]
    answers = await asyncio.gather(*(ask(client, "exact", *one, seed=n, **LIMITS) for n, one in enumerate(said)))
    for (text, sound), answer in zip(said, answers, strict=True):
        words, wave = await expected(stack, family, answer.request, text, sound, **LIMITS)
        assert answer.response["text"] == words
        assert answer.response["speech"] == pcm_of(wave)
    assert len({answer.response["speech"] for answer in answers}) == 8
    for task in (parts.talker, parts.vocoder):
        assert not stack.children[f"{task.component}@0"].alive


async def test_speech_begins_before_the_thought_has_ended(
    stack: Stack, client: AsyncClient, family: Family, parts: Omni
) -> None:
    """Its thinker stands still in mid-thought until the first sound is heard. Made in parts it is what it is whole,
    nearly.
    """
    limits = {"max_tokens": family.long, "max_codes": 80}
    thinker, said, order = stack.children[f"{parts.thinker.component}@0"], "", list[str]()
    async with client.stream("omni", text="a", seed=1, **limits) as stream:
        try:
            async for chunk in stream:
                if not isinstance(chunk, Chunk):
                    break
                order.append(chunk.field)
                said += chunk.data if isinstance(chunk.data, str) else ""
                if chunk.field == "speech":
                    thinker.kill(signal.SIGCONT)
                elif len(said) > family.long // 2 and "speech" not in order:
                    thinker.kill(signal.SIGSTOP)
        finally:
            thinker.kill(signal.SIGCONT)
        answer = await stream.answer()
    assert "text" in order[order.index("speech") :]
    words, wave = await expected(stack, family, answer.request, "a", **limits)
    assert answer.response["text"] == words
    made, whole_sound = (np.frombuffer(pcm, "<i2").astype(int) for pcm in (answer.response["speech"], pcm_of(wave)))
    assert len(made) == len(whole_sound)
    assert np.abs(made - whole_sound).max() <= 1


async def test_who_wants_no_speech_makes_no_work_for_it(stack: Stack, client: AsyncClient) -> None:
    answer = await ask(client, "omni", "hello", speak=False, **LIMITS)
    assert answer.response["text"]
    assert not answer.response["speech"]
    assert set(await nodes(stack, answer.request)) == {"thinker"}


async def test_no_edge_carries_the_prompt_or_the_sound_again(
    stack: Stack, client: AsyncClient, family: Family, parts: Omni
) -> None:
    """Rows and codes are all that streams: bytes of the former by token, of the latter 2 a code."""
    answer = await ask(client, "omni", "the dog and", noise(2.5, 3), **LIMITS)
    found = await nodes(stack, answer.request)
    assert set(found["talker"].inputs) - {"rows"} <= set(type(parts.talker).defaults)
    assert set(found["vocoder"].inputs) - {"codes"} <= set(type(parts.vocoder).defaults)
    codes = [
        (element.dtype, element.shape)
        for stored, chunk in await chunks(stack, answer.request)
        if stored.subject.endswith(".codes")
        for element in chunk.payload
    ]
    assert set(codes) == {("int16", (1, *family.frame))}
    assert (len(codes) * family.hop - family.lost) * 2 == len(answer.response["speech"])
