"""Qwen3-Omni with its eyes, on real processes: turns with sounds, pictures and videos are answered side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from components.encoder.families import towers_of
from components.generator.pcm import pcm_of
from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient
from cornstalk.tasks.omni import Omni
from cornstalk.tasks.seeing import ImageEncoder
from tests.components.media_files import picture
from tests.faults.stored import chunks
from tests.omni.exact import exact_app
from tests.omni.test_omni import SOUNDS, TEXTS, ask, nodes
from tests.omni.test_thinker import noise
from tests.omni.test_thinker3 import clip, filmed, pixels, shown
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
    (made / "exact.py").write_text(exact_app("exact", folder3))
    dying = {f"{task.component}@0": "worker.chunk" for task in (parts.thinker, parts.talker, parts.vocoder)}
    async with Stack(env={"CORNSTALK_ACK_WAIT": "2"}, crash=dying) as running:
        await running.deploy(made / "omni.py", workers=False)
        await running.deploy(made / "exact.py", workers=False)
        every = (parts.ear, parts.eyes, parts.thinker, parts.talker, parts.vocoder)
        for task in every:
            running.start_workers(task.component)
        for task in every:
            await running.wait_workers(task.component, running.replicas, within=240)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as found:
        yield found


async def expected(stack: Stack, whole3: Whole, request: str, text: str, sound: Any = None, **seen: Any) -> Answer:
    """What the whole model answers with the seed that the talker of the request has."""
    seed = (await nodes(stack, request))["talker"].seed
    tokens, codes = LIMITS["max_tokens"], LIMITS["max_codes"]
    return await asyncio.to_thread(
        lambda: whole3.answer(text, sound, seed=seed, speaker="Chelsie", tokens=tokens, codes=codes, **seen)
    )


def _files(images: list[Any], films: list[bytes]) -> dict[str, Any]:
    pictures = [picture(image, "PNG") for image in images]
    return {name: files for name, files in (("images", pictures), ("videos", films)) if files}


async def test_eight_at_once_are_each_what_the_whole_model_answers(
    stack: Stack, client: AsyncClient, folder3: Path, whole3: Whole, parts: Omni
) -> None:
    """Text token for token, sound bit for bit: nothing of one is in another.

    One of two thinkers, of two talkers and of two vocoders die with their first piece: others go on after what is
    stored.
    """
    film = clip(10, 25)
    said: list[tuple[str, Any, list[Any], list[bytes]]] = [(text, None, [], []) for text in TEXTS[:3]]
    said += [("the dog and", noise(*sound), [], []) for sound in SOUNDS[:2]]
    said += [("what?", None, [pixels(0)], []), ("what?", None, [pixels(2), pixels(1)], [])]
    said += [("what?", None, [pixels(1)], [film])]
    answers = await asyncio.gather(
        *(ask(client, "exact", text, sound, **_files(images, films), **LIMITS) for text, sound, images, films in said)
    )
    (tower,) = towers_of(ImageEncoder(model=str(folder3), dtype="float32", device="cpu")).values()
    for (text, sound, images, films), answer in zip(said, answers, strict=True):
        visible = [*([shown(folder3, images)] if images else []), *(filmed(tower, film) for film in films)]
        media = "".join(text for text, _ in visible)
        inputs = {name: value for _, given in visible for name, value in given.items()}
        right = await expected(stack, whole3, answer.request, text, sound, media=media, inputs=inputs)
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
    right = await expected(stack, whole3, answer.request, "the dog and", sound)
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
