"""The worker loop against what may come: bad items harm no other, and each failure is typed and stored once."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from broker.chunks import ChunkWriter
from broker.facts import Facts
from broker.reads import last_stored
from broker.subjects import DLQ, chunk, dead_letter, end, work
from broker.work import publish_item
from components.null import digest, piece
from cornstalk.messages import End, StreamRef, WorkItem, decode, encode
from cornstalk.task import UnitTask
from cornstalk.tasks.null import Null, NullStream, NullTensor
from tests.e2e.apps import APPS, one
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
VALUE = Null(name="value")
TENSOR = NullTensor(name="maker")
STREAM = NullStream(name="talker")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack() as running:
        await running.deploy(APPS / "one.py")
        await running.deploy(APPS / "chain.py")
        yield running


def item(task: UnitTask = VALUE, deadline: float = 60.0, gen: int = 0, **inputs: object) -> WorkItem:
    return WorkItem(
        request=secrets.token_hex(16),
        node="n",
        gen=gen,
        component=task.component,
        lane="interactive",
        tenant="t",
        deadline=time.time() + deadline,
        inputs=dict(inputs),
        outputs={name: port.kind for name, port in type(task).outputs.items()},
    )


async def outcome(stack: Stack, sent: WorkItem) -> End:
    """Publishes an item and waits for its End."""
    await publish_item(stack.broker, sent)
    return await stored_end(stack, sent)


async def stored_end(stack: Stack, sent: WorkItem) -> End:
    facts = Facts(stack.broker)
    stored = await eventually(lambda: facts.last(end(sent.request, sent.node, sent.gen)), within=15)
    return decode(End, stored.data)


async def works_still(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/one", json={"text": "still"})
    assert answer.json()["response"] == one("still")
    assert all(child.alive for child in stack.children.values())


@pytest.mark.parametrize("data", [b"", b"\xc1", b"not msgpack", encode({"v": 1, "request": 5}), encode([1, 2])])
async def test_what_is_no_item_is_taken_off_the_queue(stack: Stack, data: bytes) -> None:
    await stack.broker.publish_stored(work(VALUE.component, "interactive"), data, deadline=time.time() + 5)

    async def empty() -> bool:
        found = (await stack.clients[0].get("/components")).json()["components"]
        load = next(c for c in found if c["id"] == VALUE.component)
        return not sum(load["pending"].values()) and not sum(load["in_flight"].values())

    await eventually(empty, within=5)
    await works_still(stack)


async def test_an_item_past_its_deadline_ends_expired(stack: Stack) -> None:
    sent = item(deadline=-1.0, text="late")
    await stack.broker.publish_stored(work(sent.component, "interactive"), encode(sent), deadline=time.time() + 5)
    assert (await stored_end(stack, sent)).outcome == "expired"


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        ("raise", "asked_to_fail"),
        ("bug", "engine_raised"),
        ("wrong_type", "bad_output"),
        ("transient", "asked_to_wait"),
    ],
)
async def test_each_failure_is_typed_and_buried_once(stack: Stack, fail: str, code: str) -> None:
    sent = item(text="x", fail=fail)
    ended = await outcome(stack, sent)
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert (ended.error.code, ended.error.component, ended.error.node) == (code, VALUE.component, "n")
    assert 0 < ended.times.published <= ended.times.claimed <= ended.times.ended
    letter = dead_letter(VALUE.component, "failed", sent.request, "n", 0)
    assert await last_stored(stack.broker, DLQ, letter) is not None
    await works_still(stack)


async def test_the_first_stored_end_stays(stack: Stack) -> None:
    """The same node published twice outside the dedup window: one outcome."""
    sent = item(text="twice")
    first = await outcome(stack, sent)
    await stack.broker.publish_stored(work(sent.component, "interactive"), encode(sent), deadline=time.time() + 5)
    await works_still(stack)
    assert (await stored_end(stack, sent)).attempt == first.attempt
    assert first.outputs == {"digest": digest("value", {**Null.defaults, "text": "twice"})}


async def settled(stack: Stack, task: UnitTask, outputs: dict[str, Any], stored: list[str], **inputs: object) -> End:
    """The End of generation 1 of a node whose generation 0 was done with `outputs` and the pieces `stored`."""
    sent = item(task, gen=1, **inputs)
    if stored:
        subject = chunk(sent.request, "n", 0, "text")
        writer = await ChunkWriter.open(stack.broker, subject, "a", ttl=60, deadline=sent.deadline)
        for payload in stored:
            await writer.append(payload)
    done = End(node="n", gen=0, attempt="a", outcome="done", outputs=outputs)
    await Facts(stack.broker).put(end(sent.request, "n", 0), encode(done), deadline=time.time() + 5, ttl=60)
    return await outcome(stack, sent)


async def test_a_tensor_is_made_again_beside_the_values_that_stay(stack: Stack) -> None:
    right = digest("maker", {**NullTensor.defaults, "text": "x"})
    ended = await settled(stack, TENSOR, {"digest": right}, [], text="x")
    assert ended.outcome == "done"
    assert ended.outputs["digest"] == right


async def test_what_is_made_again_and_differs_is_an_error_not_a_mixture(stack: Stack) -> None:
    right = digest("maker", {**NullTensor.defaults, "text": "x"})
    ended = await settled(stack, TENSOR, {"digest": right}, [], text="x", fail="diverge")
    assert ended.error is not None
    assert (ended.outcome, ended.error.code) == ("failed", "lineage_diverged")


async def test_a_stream_that_was_whole_is_not_added_to(stack: Stack) -> None:
    seed = digest("talker", {**NullStream.defaults, "text": "x"})
    pieces = [piece(seed, i) for i in range(3)]
    outputs = {"text": 3, "pieces": 3}
    same = await settled(stack, STREAM, outputs, pieces, text="x", pieces=3)
    assert (same.outcome, same.outputs) == ("done", outputs)
    more = await settled(stack, STREAM, outputs, pieces, text="x", pieces=4)
    assert more.error is not None
    assert (more.outcome, more.error.code) == ("failed", "lineage_diverged")


async def test_a_stream_whose_producer_failed_fails_its_reader(stack: Stack) -> None:
    sent = item(text="reader", texts=[])
    producer = End(node="p", gen=0, attempt="a", outcome="failed")
    await Facts(stack.broker).put(end(sent.request, "p", 0), encode(producer), deadline=time.time() + 5, ttl=60)
    reader = WorkItem(
        request=sent.request,
        node=sent.node,
        gen=0,
        component=sent.component,
        lane="interactive",
        tenant="t",
        deadline=sent.deadline,
        inputs={"text": StreamRef(sent.request, "p", 0, "text")},
        outputs=sent.outputs,
    )
    ended = await outcome(stack, reader)
    assert ended.error is not None
    assert ended.error.code == "input_failed"
