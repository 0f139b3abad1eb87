"""Streams that `serve` reads: each piece once, whatever becomes of the node that makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.chunks import ChunkWriter
from broker.connection import Broker
from broker.facts import Facts
from broker.subjects import accepted, chunk, end, finish, graph
from cornstalk.app import load_app
from cornstalk.messages import Accepted, End, Finish, Graph, Node, encode
from gateway.follow import Following
from gateway.journal import Journal
from gateway.part import Ended
from gateway.session import Served
from tests.e2e.apps import APPS

NODE = "node"
APP = load_app((APPS / "served.py").read_text(), "served.py")
TALKER = next(c for c, task in APP.components().items() if "text" in task.outputs)


class Story:
    """A request with one node, as it is stored, and a run of `serve` that reads its stream."""

    def __init__(self, broker: Broker, request: str) -> None:
        self.broker, self.request, self.facts = broker, request, Facts(broker)
        self.deadline = time.time() + 60
        self.following = Following(broker, self.facts, request)

    async def begin(self) -> Story:
        fact = Accepted(request=self.request, tenant="t", app="a", app_version="v", deadline=self.deadline)
        node = Node(id="talk(0)#0/talker#0", token=NODE, component=TALKER, outputs={"text": "stream"})
        await self.following.start()
        await self._put(accepted(self.request), fact)
        await self._put(graph(self.request, 0), Graph(index=0, nodes=(node,), closed=True))
        await self.following.read()
        journal = Journal(self.broker, self.facts, self.following, fact, APP.components(), {})
        self.served = Served(self.broker, journal, APP)
        return self

    async def pieces(self, gen: int, attempt: str, *pieces: Any) -> None:
        subject = chunk(self.request, NODE, gen, "text")
        writer = await ChunkWriter.open(self.broker, subject, attempt, ttl=60, deadline=self.deadline, fresh=True)
        for piece in pieces:
            await writer.append(piece)

    async def end(self, gen: int, outcome: Any, total: int = 0) -> None:
        outputs = {"text": total} if outcome == "done" else {}
        ended = End(node=NODE, gen=gen, attempt="x", outcome=outcome, outputs=outputs)
        await self._put(end(self.request, NODE, gen), ended)

    async def finish(self) -> None:
        await self._put(finish(self.request), Finish(status="cancelled"))

    def read(self) -> tuple[list[Any], asyncio.Task[None]]:
        """What has been read by now, and the reading."""
        got: list[Any] = []

        async def reading() -> None:
            async for piece in self.served.pieces(NODE, "text"):
                got.append(piece)

        return got, asyncio.create_task(asyncio.wait_for(reading(), 10))

    async def _put(self, subject: str, fact: Any) -> None:
        await self.facts.put(subject, encode(fact), deadline=self.deadline, ttl=60)


@pytest.fixture
async def story(shared_broker: Broker, request_id: str) -> AsyncIterator[Story]:
    made = await Story(shared_broker, request_id).begin()
    yield made
    await made.following.close()


async def test_pieces_to_the_end(story: Story) -> None:
    got, reading = story.read()
    await story.pieces(0, "a", "one ", "two")
    await story.end(0, "done", 2)
    await reading
    assert got == ["one ", "two"]
    assert await story.served.whole(NODE, "text") == "one two"


async def test_a_node_that_is_lost_and_runs_again_says_nothing_twice(story: Story) -> None:
    got, reading = story.read()
    await story.pieces(0, "a", "ab", "cd")
    await story.end(0, "lost")
    await story.pieces(1, "b", "abc", "def", "g")
    await story.end(1, "done", 3)
    await reading
    assert "".join(got) == "abcdefg"
    assert got[:2] == ["ab", "cd"]
    assert await asyncio.wait_for(story.served.whole(NODE, "text"), 10) == "abcdefg"


async def test_a_request_that_ends_meanwhile(story: Story) -> None:
    got, reading = story.read()
    await story.pieces(0, "a", "one ")
    await story.finish()
    with pytest.raises(Ended):
        await reading
    with pytest.raises(Ended):
        await asyncio.wait_for(story.served.whole(NODE, "text"), 10)
    assert got == ["one "]
