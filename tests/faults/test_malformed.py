"""Bytes that are no message, in every queue and in a stream: whoever meets them goes on (rule 13)."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker.subjects import chunk, drive, work
from cornstalk.messages import Chunk
from tests.e2e.apps import one
from tests.faults.client import ask, request_id
from tests.faults.lives import component
from tests.faults.stored import begun, chunks, queues_empty
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

JUNK = b"\xc1 no msgpack"
AT_ONCE = 4


async def store(stack: Stack, subject: str) -> None:
    await stack.broker.publish_stored(subject, JUNK, deadline=time.time() + 10)


async def test_items_that_nobody_can_read_leave_their_queues_and_harm_nobody(stack: Stack) -> None:
    for lane in ("interactive", "batch"):
        for name in ("value", "talker"):
            await store(stack, work(component(stack, name), lane))
    await store(stack, drive("one"))
    texts = [f"beside junk {i}" for i in range(AT_ONCE)]
    answers = await asyncio.gather(*(ask(stack.clients, "one", {"text": t}, t) for t in texts))
    assert [answer.response for answer in answers] == [one(text) for text in texts]
    durable = await ask(stack.clients, "one", {"text": "d"}, "durable", headers={"Cornstalk-Durable": "true"})
    assert durable.response == one("d")
    await queues_empty(stack, within=20)


async def test_a_piece_of_a_stream_that_nobody_can_read_ends_its_request_and_no_other(stack: Stack) -> None:
    text, other = "torn by junk", "whole"
    request = request_id("one", text)
    body = {"text": text, "pieces": 20, "service_ms": 80}
    asking = asyncio.create_task(ask(stack.clients, "one", body, text, within=40))
    beside = asyncio.create_task(ask(stack.clients, "one", body | {"text": other}, other, within=40))
    await begun(stack, request, 3)
    (stored, piece), *_ = await chunks(stack, request)
    assert isinstance(piece, Chunk)
    _, _, node, gen, output = stored.subject.split(".")
    await store(stack, chunk(request, node, int(gen), output))
    answer = await asking
    assert answer.end is not None
    assert answer.end["status"] == "failed"
    assert (await beside).response == one(other, 20)
    await queues_empty(stack, within=20)
