"""Sessions on a real stack: many requests on one WebSocket, input that streams, and nothing lost by cuts or deaths."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from cornstalk import AsyncClient, Client
from cornstalk.client import Chunk, End
from cornstalk.errors import (
    BadInput,
    CornstalkError,
    GatewayError,
    Refused,
    RequestFailed,
    TooLarge,
    UnknownApp,
    Unreachable,
)
from tests.client.conftest import urls_of
from tests.client.media import PNG, WAV
from tests.client.proxy import CuttingProxy
from tests.e2e.apps import APPS, live_answer, mixed, one
from tests.e2e.apps.live import Ask, Reply
from tests.gateway.ws import connected
from tests.stack import Stack, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "A text that is said piece by piece, é and \U0001f33d, while it is echoed. " * 8
SOUND = random.Random(7).randbytes(40_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=3) as running:
        for name in ("one", "live", "mixed"):
            await running.deploy(APPS / f"{name}.py")
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(urls_of(stack)[:2]) as running:
        yield running


def cut_up(whole: Any, seed: int = 0, most: int = 40) -> Iterator[Any]:
    rng = random.Random(seed)
    while whole:
        n = rng.randint(1, most)
        yield whole[:n]
        whole = whole[n:]


async def slowly(whole: Any, seed: int = 0, most: int = 40, pause: float = 0.002) -> AsyncIterator[Any]:
    for piece in cut_up(whole, seed, most):
        await asyncio.sleep(pause)
        yield piece


async def status(stack: Stack, request: str) -> str:
    return str((await stack.clients[0].get(f"/requests/{request}")).json()["status"])


# ------------------------------------------------------------ what is said and told


async def test_requests_side_by_side_on_one_connection(stack: Stack) -> None:
    async with CuttingProxy(stack.ports[0], itertools.repeat(None)) as proxy, AsyncClient(proxy.url) as client:
        async with client.session("one") as session:
            texts = [f"side {i}" for i in range(20)]
            answers = await asyncio.gather(*(session.invoke(text=t, pieces=6, service_ms=20) for t in texts))
            assert [a.response for a in answers] == [one(t, 6) for t in texts]
            assert len({a.request for a in answers}) == 20
            again = await session.invoke({"text": "again"}, pieces=3)
        assert again.response == one("again", 3)
        assert proxy.connections == 1


async def test_live_input_is_heard_before_it_ends(client: AsyncClient) -> None:
    """Text and sound are pushed; the echo of the first piece comes before the last one is said."""
    app = client.app("live", Ask, Reply)
    async with app.session() as session, session.stream(Ask(text="", title="push"), open=["text", "sound"]) as stream:
        assert await stream.send("text", TEXT[:100])
        heard = await anext(stream.text("echo"))
        assert heard
        for piece in cut_up(SOUND, most=4000):
            assert await stream.send("sound", piece)
        assert await stream.end("sound")
        assert await stream.send("text", TEXT[100:])
        assert await stream.end("text")
        assert await stream.end("text")
        answer = await stream.answer()
        assert not await stream.send("text", "nobody needs it")
    whole = live_answer(TEXT, "push")
    assert answer.response == Reply(echo=whole["echo"], back=TEXT, sound=SOUND)


async def test_iterators_are_fed_while_it_runs(client: AsyncClient) -> None:
    async with client.app("live", Ask, Reply).session() as session:
        words = [f"w{i}" for i in range(60)]
        answer = await session.invoke(
            Ask(text="", title="it", look=True), text=slowly(TEXT), sound=slowly(SOUND, most=9000), words=slowly(words)
        )
        assert answer.response == Reply(
            echo=live_answer(TEXT, "it")["echo"], back=TEXT, sound=SOUND, words=words, whole=""
        )
        looked = await session.invoke(Ask(text="", look=True), text=slowly("look, " + TEXT))
        assert looked.response.whole == live_answer("look, " + TEXT, look=True)["whole"]


async def test_bytes_of_a_model_are_bytes_over_http_and_in_a_session(client: AsyncClient) -> None:
    app = client.app("live", Ask, Reply)
    async with app.session() as session:
        for sound in (SOUND, b""):
            ask = Ask(text="whole", sound=sound, words=["5", "null"])
            expected = Reply(echo=live_answer("whole")["echo"], back="whole", sound=sound, words=["5", "null"])
            assert (await app.invoke(ask)).response == expected
            assert (await session.invoke(ask)).response == expected


async def test_files_are_sent_apart(client: AsyncClient) -> None:
    async with client.session("mixed") as session:
        answer = await session.invoke(text="f", sound=WAV, files=[PNG, await client.upload(WAV)])
    assert answer.response == mixed("f", sound=WAV, files=[PNG, WAV])


async def test_events_are_those_of_http(client: AsyncClient) -> None:
    async with client.session("one", seed=3) as session:
        async with session.stream(text="same", pieces=9, service_ms=90) as stream:
            events = [event async for event in stream]
        over_http = client.stream("one", text="same", pieces=9, service_ms=90, seed=3)
        theirs = [event async for event in over_http]
    assert [type(e) for e in events][-1] is End
    texts = ["".join(str(e.data) for e in found if isinstance(e, Chunk)) for found in (events, theirs)]
    assert texts[0] == texts[1] == one("same", 9)["text"]
    assert isinstance(events[-1], End)
    assert isinstance(theirs[-1], End)
    assert events[-1].response == theirs[-1].response


async def test_what_nobody_reads_waits_and_holds_up_the_session(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in the session up to a bound; then the connection waits, and goes on once it is read."""
    monkeypatch.setattr("cornstalk.client.session.UNREAD", 200_000)
    sound = SOUND * 25
    async with (
        AsyncClient(urls_of(stack)[0]) as client,
        client.session("live", resume_grace=60) as session,
        session.stream(text="x", open=["sound"]) as unread,
    ):
        for piece in cut_up(sound, most=30_000):
            await unread.send("sound", piece)
        await unread.end("sound")
        await eventually(lambda: session._unread > 200_000)
        other = asyncio.create_task(session.invoke(text="other"))
        assert session._unread < 200_000 + (1 << 20)
        assert (await unread.answer()).response["sound"] == sound
        assert (await other).response["back"] == "other"


# ------------------------------------------------------------ cuts and deaths


@pytest.mark.parametrize("seed", range(6))
async def test_cut_anywhere(stack: Stack, seed: int) -> None:
    """Of both directions, on both gateways; three requests with live input each hear everything once."""
    rng = random.Random(seed)

    def cuts(few: int, many: int) -> Iterator[int | None]:
        yield from (rng.randrange(few, many) for _ in range(4))
        yield from itertools.repeat(None)

    asked = cuts(400, 9_000)
    async with (
        CuttingProxy(stack.ports[0], cuts(200, 20_000), asked) as first,
        CuttingProxy(stack.ports[1], cuts(200, 20_000), asked) as second,
        AsyncClient([first.url, second.url]) as client,
        client.app("live", Ask, Reply).session(deadline=40, resume_grace=30) as session,
    ):
        titles = [f"cut {seed} {i}" for i in range(3)]
        answers = await asyncio.gather(
            *(
                session.invoke(Ask(text="", title=t), text=slowly(TEXT, i), sound=slowly(SOUND, i, 900))
                for i, t in enumerate(titles)
            )
        )
        assert first.resets + second.resets >= 3
    for title, answer in zip(titles, answers, strict=True):
        assert answer.response == Reply(echo=live_answer(TEXT, title)["echo"], back=TEXT, sound=SOUND)


@pytest.mark.parametrize("sig", ["kill", "stop"])
async def test_a_gateway_that_dies_or_stops_is_left(stack: Stack, sig: str) -> None:
    """With SIGKILL, or told to stop: requests go on elsewhere, and new ones begin there at once."""
    gateway = stack.children["gateway2"]
    url = urls_of(stack)
    async with (
        AsyncClient([url[2], url[1]]) as client,
        client.app("live", Ask, Reply).session(resume_grace=30) as session,
    ):
        running = asyncio.create_task(session.invoke(Ask(text="", title=sig), text=slowly(TEXT * 4, pause=0.02)))
        async with session.stream(Ask(text="", title="push"), open=["text"]) as stream:
            await stream.send("text", TEXT)
            await anext(stream)
            gateway.kill() if sig == "kill" else gateway.kill(15)
            if sig == "stop":
                await eventually(lambda: not _listens(stack.ports[2]), within=10)
            assert (await session.invoke(Ask(text="new"))).response.back == "new"
            await stream.send("text", TEXT)
            await stream.end("text")
            assert (await stream.answer()).response.back == TEXT * 2
        assert (await running).response == Reply(echo=live_answer(TEXT * 4, sig)["echo"], back=TEXT * 4)
    gateway.wait(30)
    gateway.start()
    await stack.wait_ready(2)


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


async def test_the_only_gateway_dies_and_comes_back(stack: Stack) -> None:
    gateway = stack.children["gateway2"]
    async with (
        AsyncClient(urls_of(stack)[2]) as client,
        client.session("live", resume_grace=30) as session,
        session.stream(title="back", open=["text"]) as stream,
    ):
        await stream.send("text", TEXT)
        gateway.kill()
        gateway.wait(5)
        gateway.start()
        await stream.send("text", TEXT)
        await stream.end("text")
        assert (await stream.answer()).response["back"] == TEXT * 2
    await stack.wait_ready(2)


async def test_an_idle_session_connects_again(stack: Stack) -> None:
    async with CuttingProxy(stack.ports[0], iter([3000, None])) as proxy, AsyncClient(proxy.url) as client:
        async with client.session("one") as session:
            for i in range(12):
                assert (await session.invoke(text=f"{i}")).response == one(f"{i}")
        assert proxy.connections == 2


# ------------------------------------------------------------ leaving, failing


async def test_cancel(client: AsyncClient, stack: Stack) -> None:
    async with client.session("live") as session, session.stream(title="c", open=["text"]) as stream:
        await stream.send("text", TEXT)
        await stream.cancel()
        with pytest.raises(RequestFailed) as caught:
            await stream.answer()
        assert caught.value.status_word == "cancelled"
        assert not await stream.send("text", "more")
        assert await status(stack, stream.request) == "cancelled"


async def test_leaving_cancels_unless_it_is_durable(client: AsyncClient, stack: Stack) -> None:
    async with client.session("one") as session:
        async with session.stream(text="left", pieces=9, service_ms=1800) as stream:
            await anext(stream)
        await eventually(lambda: _is(stack, stream.request, "cancelled"), within=3)
        still = session.stream(text="still", pieces=9, service_ms=1800)
        await anext(still)
    await eventually(lambda: _is(stack, still.request, "cancelled"), within=3)
    with pytest.raises(CornstalkError, match="closed"):
        await still.answer()
    with pytest.raises(CornstalkError, match="closed"):
        session.stream(text="late")
    async with client.session("one", durable=True) as lasting, lasting.stream(text="d", service_ms=300) as stream:
        await eventually(lambda: stream.request)
    await eventually(lambda: _is(stack, stream.request, "done"), within=10)


async def _is(stack: Stack, request: str, how: str) -> bool:
    return await status(stack, request) == how


async def test_a_cancelled_task_cancels_its_request(client: AsyncClient, stack: Stack) -> None:
    async with client.session("one") as session:
        stream = session.stream(text="task", service_ms=20_000)
        async with stream:
            waiting = asyncio.create_task(stream.answer())
            await eventually(lambda: stream.request)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await eventually(lambda: _is(stack, stream.request, "cancelled"), within=3)


async def test_one_bad_request_leaves_the_others_alone(client: AsyncClient) -> None:
    async with client.session("live") as session:
        good = asyncio.create_task(session.invoke(text=slowly(TEXT)))
        for fields, field in (({"text": 5}, "text"), ({"text": "x", "more": 1}, "more"), ({}, "text")):
            with pytest.raises(BadInput) as caught:
                await session.invoke(**fields)
            assert caught.value.field == field
        with pytest.raises(BadInput) as whole:
            await session.invoke(text="x", sound=WAV)  # a file, and no upload is taken there
        assert whole.value.field == "sound"
        with pytest.raises(BadInput, match=r"title"):
            await session.invoke(text="x", title=slowly("t"))
        with pytest.raises(TooLarge):
            await session.invoke(text="x" * (17 << 20))
        async with session.stream(text="x", open=["sound"]) as stream:
            with pytest.raises(BadInput, match="an open field"):
                await stream.send("text", "x")
            await stream.send("sound", "no bytes")
            with pytest.raises(BadInput, match="binary frame"):
                await stream.answer()
        assert (await good).response["back"] == TEXT


async def test_an_iterator_that_fails_ends_its_request(client: AsyncClient, stack: Stack) -> None:
    async def broken() -> AsyncIterator[str]:
        yield "some"
        raise OSError("the microphone is gone")

    async with client.session("live") as session, session.stream(text=broken()) as stream:
        with pytest.raises(OSError, match="microphone"):
            await stream.answer()
        await eventually(lambda: _is(stack, stream.request, "cancelled"), within=3)


async def test_who_does_not_serve_says_why(stack: Stack, client: AsyncClient) -> None:
    async with client.session("nobody") as session:
        with pytest.raises(UnknownApp):
            await session.invoke(text="x")
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncClient(url, reach_within=0.3) as lonely, lonely.session("one") as session:
        with pytest.raises(Unreachable):
            await session.invoke(text="x")
    async with AsyncClient([url, *urls_of(stack)]) as other, other.session("one") as session:
        assert (await session.invoke(text="passed over")).response == one("passed over")


async def test_more_than_a_connection_takes(client: AsyncClient) -> None:
    async with client.session("one") as session:
        many = [asyncio.create_task(session.invoke(text=f"{i}", service_ms=5000)) for i in range(33)]
        done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Refused):
            await done.pop()
    for task in many:
        with pytest.raises(CornstalkError):
            await task
    async with client.session("one", retry_refused=True) as patient:
        answers = await asyncio.gather(*(patient.invoke(text=f"{i}", service_ms=30) for i in range(40)))
    assert [a.response for a in answers] == [one(f"{i}") for i in range(40)]


async def test_the_same_input_from_elsewhere_takes_over(client: AsyncClient, stack: Stack) -> None:
    async with client.session("live") as session, session.stream(open=["text"]) as stream:
        await stream.send("text", "mine")
        async with connected(stack.ports[2], "live") as other:
            await other.send("resume", id="o", request=stream.request)
            await other.receive()
            await stream.send("text", "too late")
            await stream.end("text")
            with pytest.raises(GatewayError) as caught:
                await stream.answer()
        assert caught.value.error.code == "taken_over"


# ------------------------------------------------------------ threads


async def test_the_session_for_threads_says_the_same(stack: Stack) -> None:
    def ask(url: list[str]) -> list[Any]:
        told: list[Any] = []
        with Client(url) as client, client.app("live", Ask, Reply).session(resume_grace=30) as session:
            pieces = iter(list(cut_up(TEXT)))
            told.append(
                session.invoke(Ask(text="", title="threads"), text=pieces, sound=cut_up(SOUND, most=5000)).response
            )
            with session.stream(Ask(text="", title="push"), open=["text"]) as stream:
                assert stream.send("text", TEXT)
                assert next(stream)
                assert stream.end("text")
                told.append("".join(stream.text("back")))
                told.append(stream.answer().response.back)
                assert not stream.send("text", "x")
            with session.stream(Ask(text=""), open=["text"]) as stream:
                stream.cancel()
                with pytest.raises(RequestFailed):
                    stream.answer()
            with session.stream(Ask(text=""), text=_broken()) as stream, pytest.raises(OSError, match="microphone"):
                stream.answer()
        with pytest.raises(CornstalkError, match="closed"):
            session.stream(Ask(text=""))
        return told

    async with CuttingProxy(stack.ports[0], iter([9000, 7000, *[None] * 50])) as proxy:
        whole, back, answer = await asyncio.to_thread(ask, [proxy.url, urls_of(stack)[1]])
    assert whole == Reply(echo=live_answer(TEXT, "threads")["echo"], back=TEXT, sound=SOUND)
    assert answer == TEXT
    assert TEXT.endswith(back)
    assert not [t for t in threading.enumerate() if t.name.startswith("feed")]


def _broken() -> Iterator[str]:
    yield "some"
    raise OSError("the microphone is gone")
