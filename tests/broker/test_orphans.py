"""Deliveries that nobody has come again at once; what somebody has stays there. ack_wait is 15 s throughout."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from broker import topology
from broker.connection import Broker
from broker.orphans import ANSWERS, Orphans
from broker.pull import Delivery, PullLoop
from broker.server import Server
from tests.broker.proxy import Proxy
from tests.waiting import eventually

COMPONENT = "null-x-1"
STREAM = "WORK_null-x-1"
WORK = "work.null-x-1.interactive"
SOON = 3.0


class Holder:
    """Holds what comes until it is told to ack."""

    def __init__(self) -> None:
        self.got: Counter[bytes] = Counter()
        self.done = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        self.got[delivery.data] += 1
        await self.done.wait()
        await delivery.ack()


@pytest.fixture
async def queue(broker: Broker) -> Broker:
    await topology.ensure_component(broker, COMPONENT)
    return broker


async def put(broker: Broker, *items: bytes) -> None:
    for item in items:
        await broker.publish_stored(WORK, item, deadline=time.time() + 5)


async def in_flight(broker: Broker) -> int:
    return (await topology.backlog(broker, COMPONENT)).in_flight["interactive"]


async def to_nobody(broker: Broker, count: int) -> None:
    """Items are delivered to an inbox that is read by somebody who will never answer."""
    inbox = broker.nc.new_inbox()
    await broker.nc.subscribe(inbox)
    request = b'{"batch":%d,"no_wait":true}' % count
    await broker.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.interactive", request, reply=inbox)

    async def delivered() -> bool:
        return await in_flight(broker) == count

    await eventually(delivered)


def loop_of(broker: Broker, holder: Holder, heartbeat: float = 2.0) -> PullLoop:
    return PullLoop(broker, STREAM, "interactive", holder, credits=8, heartbeat=heartbeat)


async def handed_back(broker: Broker) -> bool:
    """Whether the server would give something out; takes it."""
    inbox = broker.nc.new_inbox()
    replies = await broker.nc.subscribe(inbox)
    request = b'{"batch":1,"no_wait":true}'
    await broker.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.interactive", request, reply=inbox)
    reply = await replies.next_msg(timeout=2)
    await replies.unsubscribe()
    return (reply.headers or {}).get("Status") != "404"


async def looked(loop: PullLoop) -> None:
    await eventually(lambda: loop.orphans._looking.done(), within=SOON)


async def test_who_starts_finds_what_went_to_the_dead(queue: Broker) -> None:
    await put(queue, b"1", b"2", b"3")
    await to_nobody(queue, 3)
    holder = Holder()
    loop = loop_of(queue, holder)
    await loop.start()
    await eventually(lambda: holder.got == {b"1": 1, b"2": 1, b"3": 1}, within=SOON)
    holder.done.set()

    async def empty() -> bool:
        return await in_flight(queue) == 0

    await eventually(empty)
    await loop.stop()
    await loop.join(1)


async def test_what_somebody_has_stays_there(queue: Broker, nats_server: Server) -> None:
    """Three hold items, one of them while it stops; each looks. Only what nobody has comes again."""
    brokers = [await Broker.connect(nats_server.url, name=f"w{i}", token=nats_server.token) for i in range(3)]
    holders = [Holder() for _ in brokers]
    loops = [loop_of(b, h) for b, h in zip(brokers, holders, strict=True)]
    for n, loop in enumerate(loops):
        await loop.start()
        await put(queue, b"%d" % n)
        await eventually(lambda n=n: sum(sum(h.got.values()) for h in holders) == n + 1)  # type: ignore[misc]
        await loop.pause()
    await put(queue, b"lost")
    await to_nobody(queue, 4)  # those three are in flight as well
    await loops[0].stop()
    stopping = asyncio.create_task(loops[0].join(10))
    await loops[1].resume()
    await loops[2].resume()
    await eventually(lambda: holders[1].got[b"lost"] + holders[2].got[b"lost"] == 1, within=SOON)
    for loop in loops[1:]:
        for _ in range(3):
            loop.orphans.look()
            await looked(loop)
    assert sum((h.got for h in holders), Counter()) == {b"0": 1, b"1": 1, b"2": 1, b"lost": 1}
    for holder in holders:
        holder.done.set()
    await stopping
    for loop in loops[1:]:
        await loop.stop()
        await loop.join(1)
    assert await in_flight(queue) == 0
    for b in brokers:
        await b.close()


async def test_who_is_not_back_yet_is_waited_for(queue: Broker, nats_server: Server) -> None:
    """All connections are lost at once, as when NATS starts anew, and one comes back later than the other."""
    async with Proxy(nats_server.url) as early, Proxy(nats_server.url) as late:
        brokers = [await Broker.connect(proxy.url, name="w", token=nats_server.token) for proxy in (early, late)]
        holders = [Holder() for _ in brokers]
        loops = [loop_of(b, h) for b, h in zip(brokers, holders, strict=True)]
        for loop in loops:
            await loop.start()
            await looked(loop)
        await loops[0].pause()
        await put(queue, b"1")
        await eventually(lambda: holders[1].got == {b"1": 1})
        await loops[0].resume()
        await looked(loops[0])
        back = asyncio.Event()

        async def is_back() -> None:
            back.set()

        brokers[0].on_reconnect(is_back)
        late.refuse()
        for proxy in (late, early):
            proxy.cut()
        async with asyncio.timeout(SOON):
            await back.wait()
        with pytest.raises(AssertionError, match="not within"):
            await eventually(lambda: holders[0].got, within=3 * ANSWERS)
        assert not brokers[1].connected
        await late.accept()
        await eventually(lambda: loops[0].orphans._looking.done(), within=10)
        assert (holders[0].got, holders[1].got) == ({}, {b"1": 1})
        holders[1].done.set()
        for loop in loops:
            await loop.stop()
            await loop.join(1)
        for b in brokers:
            await b.close()


async def test_what_was_sent_into_a_cut_connection_comes_at_once(queue: Broker, nats_server: Server) -> None:
    async with Proxy(nats_server.url) as proxy:
        worker = await Broker.connect(proxy.url, name="worker", token=nats_server.token)
        holder = Holder()
        loop = loop_of(worker, holder)
        await loop.start()
        await eventually(lambda: loop._asked() == 8)
        await worker.nc.flush()
        proxy.muted = True
        await put(queue, b"1")

        async def sent() -> bool:
            return await in_flight(queue) == 1

        await eventually(sent)
        proxy.cut()
        await eventually(lambda: holder.got == {b"1": 1}, within=SOON)
        holder.done.set()
        await loop.stop()
        await loop.join(1)
        await worker.close()


async def test_what_was_sent_to_a_pull_that_was_given_up_comes_soon(queue: Broker, nats_server: Server) -> None:
    """For a while nothing arrives from the server; the connection is the same before and after."""
    async with Proxy(nats_server.url) as proxy:
        worker = await Broker.connect(proxy.url, name="worker", token=nats_server.token)
        holder = Holder()
        loop = loop_of(worker, holder, heartbeat=0.2)
        await loop.start()
        await eventually(lambda: loop._asked() == 8)
        (pull,) = loop._pulls
        await looked(loop)
        proxy.muted = True
        await put(queue, b"1")
        await eventually(lambda: pull not in loop._pulls)
        proxy.muted = False
        await eventually(lambda: holder.got == {b"1": 1}, within=SOON)
        holder.done.set()
        await loop.stop()
        await loop.join(1)
        await worker.close()


async def test_what_was_handed_back_for_later_rests(queue: Broker) -> None:
    """Although nobody has it, and somebody looks."""
    times: list[float] = []

    async def later(delivery: Delivery) -> None:
        times.append(time.monotonic())
        await (delivery.nak(1.5) if delivery.delivered == 1 else delivery.ack())

    loop = PullLoop(queue, STREAM, "interactive", later, credits=8)
    await loop.start()
    await put(queue, b"1")
    await eventually(lambda: len(times) == 1)
    loop.orphans.look()
    await eventually(lambda: len(times) == 2, within=SOON)
    assert times[1] - times[0] >= 1.5
    await loop.stop()
    await loop.join(1)


async def test_what_comes_to_somebody_while_one_looks_stays_there(queue: Broker) -> None:
    """It waited at the server when the question came, as what was handed back for later does for a moment."""
    await put(queue, b"1")
    await to_nobody(queue, 1)
    answers = 0

    def held() -> list[int]:
        nonlocal answers
        answers += 1
        return [1] if answers > 1 else []

    orphans = Orphans(queue, STREAM, "interactive", held)
    await orphans.start()
    await eventually(lambda: orphans._looking is not None and orphans._looking.done(), within=SOON)
    assert not await handed_back(queue)
    await orphans.close()


async def test_who_dies_after_it_has_answered_is_looked_for_again(queue: Broker) -> None:
    """Somebody looks already, and believes its answer; who hears of the death must not rely on that look."""
    await put(queue, b"1")
    await to_nobody(queue, 1)
    answered = asyncio.Event()

    def held() -> list[int]:
        answered.set()
        return [1]

    dying, hears, looks = (Orphans(queue, STREAM, "interactive", h) for h in (held, list, list))
    for one in (dying, hears):
        await one.start()
        await eventually(lambda one=one: one._looking.done(), within=SOON)  # type: ignore[misc]
    answered.clear()
    await looks.start()
    await asyncio.wait_for(answered.wait(), SOON)
    await dying.close()
    hears.look()
    await eventually(lambda: handed_back(queue), within=SOON, every=0.1)
    for one in (hears, looks):
        await one.close()
