"""Cut connections and killed gateways on a real stack: the answer is exactly right, and the caller sees nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from broker.facts import Facts
from broker.subjects import parse_run
from cornstalk import AsyncClient, Client
from cornstalk.client import Chunk
from cornstalk.client.aio import AsyncAnswerStream
from tests.client.conftest import urls_of
from tests.client.media import wav
from tests.client.proxy import CuttingProxy
from tests.e2e.apps import chain, mixed
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def cuts_of(seed: int, most: int) -> Iterator[int | None]:
    """Six cuts, then peace."""
    rng = random.Random(seed)
    yield from (rng.randrange(most) for _ in range(6))
    while True:
        yield None


def nothing(chunks: int) -> None:
    """What most tests do after a chunk."""


async def heard(stream: AsyncAnswerStream, then: Callable[[int], None] = nothing) -> dict[str, str]:
    """The text of each field; fails when a piece comes twice or out of order. `then` hears how many chunks came."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    seq = 0
    async for event in stream:
        if isinstance(event, Chunk):
            assert event.seq > seq
            assert event.n == counts.get(event.field, 0)
            seq, counts[event.field] = event.seq, event.n + 1
            texts[event.field] = texts.get(event.field, "") + str(event.data)
            then(sum(counts.values()))
    return texts


async def accepted(stack: Stack) -> set[str]:
    """The requests that are stored."""
    return {parse_run(stored.subject).request async for stored in Facts(stack.broker).accepted()}


@pytest.mark.parametrize("seed", range(6))
async def test_cut_anywhere(stack: Stack, seed: int) -> None:
    most = (500, 800, 1600)[seed % 3]
    async with (
        CuttingProxy(stack.ports[0], cuts_of(seed, most)) as first,
        CuttingProxy(stack.ports[1], cuts_of(seed + 100, most)) as second,
        AsyncClient([first.url, second.url]) as client,
    ):
        async with client.stream("chain", text=f"cut {seed}", pieces=20, service_ms=10, deadline=40) as stream:
            texts = await heard(stream)
            answer = await stream.answer()
        resets = first.resets + second.resets
    whole = chain(f"cut {seed}", pieces=20)
    assert answer.response == whole
    assert texts == {"text": whole["text"], "echo": whole["echo"]}
    assert resets >= 3


async def test_an_upload_that_got_no_answer_is_sent_again_and_run_once(stack: Stack) -> None:
    sound = wav(random.Random(1).randbytes(300_000))
    before = await accepted(stack)
    async with (
        CuttingProxy(stack.ports[0], iter([0, 0, 40, None, None])) as proxy,
        AsyncClient(proxy.url) as client,
    ):
        answer = await client.invoke("mixed", text="u", sound=sound)
        assert (proxy.resets, proxy.connections) == (3, 4)
    assert answer.response == mixed("u", sound=sound)
    assert await accepted(stack) - before == {answer.request}


async def test_the_client_for_threads_resumes_too(stack: Stack) -> None:
    def ask(url: str) -> object:
        with Client(url) as client:
            return client.invoke("chain", text="threads", pieces=8, service_ms=10).response

    async with CuttingProxy(stack.ports[0], cuts_of(7, 800)) as proxy:
        assert await asyncio.to_thread(ask, proxy.url) == chain("threads", pieces=8)
        assert proxy.resets >= 2


@pytest.mark.parametrize("after", [1, 4, 9])
async def test_a_gateway_is_killed_in_mid_stream(stack: Stack, after: int) -> None:
    """With SIGKILL, after so many chunks."""
    gateway = stack.children["gateway0"]

    def kill(chunks: int) -> None:
        if chunks == after:
            gateway.kill()

    async with (
        AsyncClient(urls_of(stack)) as client,
        client.stream("chain", text=f"kill {after}", pieces=10, service_ms=60) as stream,
    ):
        texts = await heard(stream, kill)
        answer = await stream.answer()
    gateway.wait(5)
    gateway.start()
    await stack.wait_ready(0)
    whole = chain(f"kill {after}", pieces=10)
    assert answer.response == whole
    assert texts == {"text": whole["text"], "echo": whole["echo"]}


async def test_the_only_gateway_dies_and_comes_back(stack: Stack) -> None:
    gateway = stack.children["gateway1"]
    async with (
        AsyncClient(urls_of(stack)[1]) as client,
        client.stream("chain", text="back", pieces=10, service_ms=60) as stream,
    ):
        asking = asyncio.create_task(stream.answer())
        await eventually(lambda: stream.request)
        gateway.kill()
        gateway.wait(5)
        gateway.start()
        assert (await asking).response == chain("back", pieces=10)
