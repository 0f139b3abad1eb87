"""The response that carries events: told to the end, until the client leaves, or until telling fails."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.events import Event
from gateway.sse import EventStream, Say, directly

CHUNK, END = Event("chunk", 7, {"data": "\u00e9"}), Event("end", 0, {"status": "done"})
WIRE = [
    b'event: chunk\nid: 7\ndata: {"data":"\xc3\xa9"}\n\n',
    b": ping\n\n",
    b'event: end\ndata: {"status":"done"}\n\n',
    b"",
]


class Client:
    """What a server gives to an application: `sent` is what came past it."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


async def all_of_it(say: Say) -> None:
    for event in (CHUNK, Event("ping"), END):
        await say(event)


async def test_what_goes_over_the_wire() -> None:
    client = Client()
    await EventStream(all_of_it, {"X": "y"})({"type": "http"}, client.receive, client.send)
    start, *_, last = client.sent
    headers = dict(start["headers"])
    assert (start["status"], headers[b"x"]) == (200, b"y")
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in headers
    assert client.bodies == WIRE
    assert [message["more_body"] for message in client.sent[1:]] == [True, True, True, False]
    assert last["body"] == b""


async def test_events_go_past_middlewares_and_the_start_through_them() -> None:
    seen: list[str] = []
    stream = EventStream(all_of_it, {})

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        async def looked_at(message: Message) -> None:
            seen.append(message["type"])
            await send(message)

        await stream(scope, receive, looked_at)

    client = Client()
    await directly(middleware)({"type": "http"}, client.receive, client.send)
    assert client.bodies == WIRE
    assert seen == ["http.response.start", "http.response.body"]  # the end of the body is no event


async def test_a_client_that_leaves_ends_the_telling() -> None:
    client, cleaned = Client(), False

    async def for_ever(say: Say) -> None:
        nonlocal cleaned
        try:
            await say(CHUNK)
            client.left.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    await asyncio.wait_for(EventStream(for_ever, {})({"type": "http"}, client.receive, client.send), 5)
    assert cleaned
    assert client.bodies == WIRE[:1]  # and no end of it: nobody must take this for the whole


@pytest.mark.parametrize("before", [0, 1])
async def test_what_telling_raises_is_raised(before: int) -> None:
    client = Client()

    async def fails(say: Say) -> None:
        for _ in range(before):
            await say(CHUNK)
        raise LookupError("x")

    tasks = asyncio.all_tasks()
    with pytest.raises(LookupError):
        await EventStream(fails, {})({"type": "http"}, client.receive, client.send)
    assert client.bodies == WIRE[:before]
    assert asyncio.all_tasks() == tasks


async def test_a_server_that_stops_leaves_no_task() -> None:
    client = Client()

    async def for_ever(say: Say) -> None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    serving = asyncio.create_task(EventStream(for_ever, {})({"type": "http"}, client.receive, client.send))
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks() - before) == 3
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.all_tasks() - before == set()
