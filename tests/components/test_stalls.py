"""Readers of streams that hold every slot, while what they read waits for one (design section 6)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.facts import Facts
from broker.reads import pages
from broker.subjects import DLQ, end
from broker.work import publish_item
from components.null import digest, stream_of
from cornstalk.messages import End, Lane, StreamRef, WorkItem, decode
from cornstalk.tasks.null import NullStream
from tests.faults.stored import chunks, held
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS = 2
RELAY = NullStream(name="relay", slots=SLOTS)
APP = """
from pydantic import BaseModel
from cornstalk import App, CompositeTask, Stream
from cornstalk.tasks.null import NullStream

class Ask(BaseModel):
    text: str

class Reply(BaseModel):
    text: Stream[str]

class Relay(CompositeTask):
    relay = NullStream(name="relay", slots=2)

    def invoke(self, q: Ask) -> Reply:
        return Reply(text=self.relay(source=self.relay(text=q.text, pieces=3).text).text)

app = App("relay", Relay())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    path: Path = tmp_path_factory.mktemp("app") / "relay.py"
    path.write_text(APP)
    async with Stack() as running:
        await running.deploy(path)
        yield running


def item(request: str, node: str, lane: Lane, **inputs: object) -> WorkItem:
    return WorkItem(
        request=request,
        node=node,
        gen=0,
        component=RELAY.component,
        lane=lane,
        tenant="t",
        deadline=time.time() + 60,
        inputs=dict(inputs),
        outputs={"text": "stream", "pieces": "value"},
    )


@pytest.mark.parametrize("lane", ["interactive", "batch"])
async def test_readers_in_every_slot_make_room_for_what_they_read(stack: Stack, lane: Lane) -> None:
    """Twice as many readers as there are slots of both workers, and only then the producers of what they read."""
    requests = [secrets.token_hex(16) for _ in range(4 * SLOTS)]
    for request in requests:
        source = StreamRef(request, "producer", 0, "text")
        await publish_item(stack.broker, item(request, "reader", lane, text="e", source=source))
    await held(stack, 2 * SLOTS if lane == "interactive" else 2)
    for request in requests:
        await publish_item(stack.broker, item(request, "producer", lane, text=request, pieces=3))
    facts = Facts(stack.broker)

    async def ended(request: str) -> End:
        stored = await eventually(lambda: facts.last(end(request, "reader", 0)), within=50)
        return decode(End, stored.data)

    for outcome in await asyncio.gather(*(ended(request) for request in requests)):
        assert outcome.outcome == "done", outcome
    for request in requests:
        text = stream_of(digest("relay", {**NullStream.defaults, "text": request}), 3)
        echo = stream_of(digest("relay", {**NullStream.defaults, "text": "e"}), 0, text)
        stored = [c.payload for s, c in await chunks(stack, request) if ".reader." in s.subject and not c.takeover]
        assert "".join(stored) == echo
    assert [s async for s in pages(stack.broker, DLQ, f"dlq.{RELAY.component}.>")] == []
