"""What clients are told of streams whose node ran again, was taken over or purged: each piece once, or an error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from broker.chunks import ChunkWriter
from broker.connection import Broker
from broker.facts import Facts
from broker.subjects import accepted, chunk, end, finish, graph
from cornstalk.messages import Accepted, End, Finish, StreamRef, decode, encode
from gateway.events import Event, events
from gateway.follow import Following
from gateway.requests import Run
from tests.waiting import eventually

NODE = "node"


class Story:
    """A request as it is stored: pieces of its one stream by generation, its Ends and its Finish."""

    def __init__(self, broker: Broker, request: str) -> None:
        self.broker, self.request, self.facts = broker, request, Facts(broker)
        self.deadline = time.time() + 60
        self.seqs: list[int] = []

    async def begin(self) -> Story:
        fact = Accepted(request=self.request, tenant="t", app="a", app_version="v", deadline=self.deadline)
        await self._put(accepted(self.request), fact)
        return self

    async def pieces(self, gen: int, attempt: str, *pieces: Any, takeover: bool = False) -> None:
        subject = chunk(self.request, NODE, gen, "text")
        writer = await ChunkWriter.open(
            self.broker, subject, attempt, ttl=60, deadline=self.deadline, fresh=not takeover
        )
        for piece in pieces:
            self.seqs.append(await writer.append(piece))

    async def done(self, gen: int, total: int) -> Finish:
        ended = End(node=NODE, gen=gen, attempt="x", outcome="done", outputs={"text": total})
        await self._put(end(self.request, NODE, gen), ended)
        last = Finish(status="done", response={"parts": [StreamRef(self.request, NODE, gen, "text")], "plain": 1})
        await self._put(finish(self.request), last)
        return last

    async def told(self, last: Finish, after: int = 0, media_type: str = "audio/x") -> list[Event]:
        media = {"parts.0": media_type}.__getitem__
        return [e async for e in events(self.broker, self.facts, last, self.request, media, after)]

    async def _put(self, subject: str, fact: Any) -> None:
        await self.facts.put(subject, encode(fact), deadline=self.deadline, ttl=60)


@pytest.fixture
async def story(shared_broker: Broker, request_id: str) -> Story:
    return await Story(shared_broker, request_id).begin()


def chunks(found: list[Event]) -> list[Any]:
    return [e.data["data"] for e in found if e.kind == "chunk"]


async def test_pieces_in_order_and_the_plain_fields_at_the_end(story: Story) -> None:
    await story.pieces(0, "a", "one ", "two ", "three")
    *pieces, last = await story.told(await story.done(0, 3))
    assert [(e.seq, e.data["data"]) for e in pieces] == list(zip(story.seqs, ["one ", "two ", "three"], strict=True))
    assert pieces[0].data == {
        "field": "parts.0",
        "node": NODE,
        "output": "text",
        "n": 0,
        "data": "one ",
        "media_type": "audio/x",
    }
    assert (last.kind, last.seq, last.data["response"]) == ("end", 0, {"parts": [], "plain": 1})
    assert last.data["streams"] == {"parts.0": {"node": NODE, "output": "text"}}


async def test_bytes_always_have_a_media_type(story: Story) -> None:
    """By which clients tell them from text, also of an app that is not known here any more."""
    await story.pieces(0, "a", b"\xff", b"\0")
    *pieces, _last = await story.told(await story.done(0, 2), media_type="")
    assert [e.data["media_type"] for e in pieces] == ["application/octet-stream"] * 2


async def test_fields_that_come_from_one_output_are_all_named(story: Story) -> None:
    await story.pieces(0, "a", "one ", "two")
    await story.done(0, 2)
    ref = StreamRef(story.request, NODE, 0, "text")
    *pieces, last = await story.told(Finish(status="done", response={"parts": [ref, ref], "plain": 1}))
    assert chunks(pieces) == ["one ", "two"]
    assert all((e.data["field"], e.data["fields"]) == ("parts.0", ["parts.0", "parts.1"]) for e in pieces)
    assert last.data["streams"] == {path: {"node": NODE, "output": "text"} for path in ("parts.0", "parts.1")}


async def test_a_takeover_is_not_seen(story: Story) -> None:
    await story.pieces(0, "a", "one ", "two ")
    await story.pieces(0, "b", "three", takeover=True)
    assert chunks(await story.told(await story.done(0, 3))) == ["one ", "two ", "three"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["ab", "cd"], ["abc", "def", "g"], ["ab", "cd", "ef", "g"]),
        (["abcdef"], ["ab", "cd", "efgh"], ["abcdef", "gh"]),
        (["ab"], ["ab", "cd"], ["ab", "cd"]),
        ([b"\x01\x02\x03"], [b"\x01", b"\x02\x03\x04"], [b"\x01\x02\x03", b"\x04"]),
        ([[1, 2], [3]], [[1], [2, 3, 4], [5]], [[1, 2], [3], [4], [5]]),
    ],
)
async def test_a_node_that_ran_again_says_nothing_twice(
    story: Story, first: list[Any], second: list[Any], expected: list[Any]
) -> None:
    await story.pieces(0, "a", *first)
    await story.pieces(1, "b", *second)
    last = await story.done(1, len(second))
    assert chunks(await story.told(last)) == expected
    for count in range(1, len(first) + 1):  # a client that left after that many pieces, and comes back
        assert chunks(await story.told(last, story.seqs[count - 1])) == expected[count:]


@pytest.mark.parametrize("after", [0, 1])
async def test_what_was_purged_is_an_error(story: Story, after: int) -> None:
    await story.pieces(0, "a", "one", "two")
    last = await story.done(0, 2)
    await story.facts.purge(story.request)
    (event,) = await story.told(last, after and story.seqs[0])
    assert (event.kind, event.data["status"], event.data["error"].code) == ("error", "done", "gone")


async def test_chunks_that_are_missing_are_an_error(story: Story) -> None:
    await story.pieces(0, "a", "one", "two")
    *pieces, last = await story.told(await story.done(0, 3))
    assert chunks(pieces) == ["one", "two"]
    assert (last.kind, last.data["error"].code) == ("error", "gone")


async def test_a_stream_without_a_piece(story: Story) -> None:
    (last,) = await story.told(await story.done(0, 0))
    assert last.kind == "end"


class EndedElsewhere:
    """A driver that finds the Finish of another one before the response has begun here."""

    def __init__(self, last: Finish) -> None:
        self.head: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._last = last

    async def run(self) -> Finish:
        self.head.cancel()
        return self._last


async def test_a_request_that_another_gateway_ended_meanwhile_loses_no_piece(story: Story) -> None:
    await story.pieces(0, "a", "one ", "two ", "three")
    last = await story.done(0, 3)
    following = Following(story.broker, story.facts, story.request)
    (stored,) = [m for m in (await story.facts.read(story.request)).messages if m.subject == accepted(story.request)]
    run = Run(decode(Accepted, stored.data), following, EndedElsewhere(last))  # type: ignore[arg-type]
    found = [e async for e in events(story.broker, story.facts, run, story.request, lambda _: "", 0)]
    assert chunks(found) == ["one ", "two ", "three"]
    assert found[-1].kind == "end"


async def test_a_fact_that_nobody_can_read_does_not_deafen_who_follows(story: Story) -> None:
    """Stored before and while it listens; the end that the dispatcher gives such a request is heard."""
    broken = b"\xc1 no msgpack"
    await story.facts.put(graph(story.request, 0), broken, deadline=story.deadline, ttl=60)
    following = await Following(story.broker, story.facts, story.request).start()
    try:
        await following.read()
        await story.facts.put(graph(story.request, 1), broken, deadline=story.deadline, ttl=60)
        await story.done(0, 0)
        await eventually(lambda: following.state.finish is not None)
        assert following.state.accepted is not None
    finally:
        await following.close()
