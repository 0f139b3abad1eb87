"""The pull loop against a real server: nothing lost, and the next item promptly, whatever happens to its pulls."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.msg import Msg

from broker import topology
from broker.connection import Broker
from broker.errors import QueueFull
from broker.pull import Delivery, PullLoop
from broker.server import Server
from tests.broker.proxy import Proxy
from tests.waiting import eventually

COMPONENT = "null-x-1"
STREAM = "WORK_null-x-1"
WORK = "work.null-x-1.interactive"


async def put(broker: Broker, *items: bytes) -> None:
    for item in items:
        await broker.publish_stored(WORK, item, deadline=time.time() + 5)


class Taker:
    """Collects and acks what comes."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.got.append(delivery.data)
        await delivery.ack()


@pytest.fixture
async def queue(broker: Broker) -> Broker:
    await topology.ensure_component(broker, COMPONENT)
    return broker


async def test_every_item_is_handled_once_and_leaves_the_queue(queue: Broker) -> None:
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=8)
    await loop.start()
    items = [b"%d" % n for n in range(100)]
    await put(queue, *items)
    await eventually(lambda: len(take.got) == 100)
    assert sorted(take.got) == sorted(items)
    await eventually(lambda: _is_empty(queue))
    await loop.stop()


async def _waiting(broker: Broker) -> tuple[int, int]:
    """Pulls that wait for items, and items that wait for pulls."""
    info = await broker.api(f"CONSUMER.INFO.{STREAM}.interactive")
    return info["num_waiting"], info["num_pending"]


def _into(heard: list[bytes]) -> Callable[[Msg], Awaitable[None]]:
    async def hear(message: Msg) -> None:
        heard.append(message.data)

    return hear


async def _is_empty(broker: Broker) -> bool:
    load = await topology.backlog(broker, COMPONENT)
    return sum(load.pending.values()) + sum(load.in_flight.values()) == 0


async def test_credits_bound_the_handlers(queue: Broker) -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        await delivery.ack()

    loop = PullLoop(queue, STREAM, "interactive", handle, credits=3)
    await loop.start()
    await put(queue, *[b"x"] * 10)
    await eventually(lambda: running == 3)
    loop.set_credits(5)
    await eventually(lambda: running == 5)
    assert (await topology.backlog(queue, COMPONENT)).in_flight["interactive"] == 5
    go.set()
    await eventually(lambda: _is_empty(queue))
    assert most == 5
    await loop.stop()


async def test_fewer_credits_withdraw_the_pulls(queue: Broker) -> None:
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=4)
    await loop.start()
    await eventually(lambda: loop._asked() == 4)
    loop.set_credits(0)
    await eventually(lambda: loop._asked() == 0 and not loop._leaving)
    await put(queue, b"1")
    assert await _waiting(queue) == (0, 1)  # no pull stands that could be answered
    assert take.got == []
    loop.set_credits(1)
    await eventually(lambda: take.got == [b"1"])
    await loop.stop()


async def test_pause_hands_nothing_out_and_resume_goes_on(queue: Broker) -> None:
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=4)
    await loop.start()
    await put(queue, b"1")
    await eventually(lambda: take.got == [b"1"])
    await loop.pause()
    await put(queue, b"2")
    assert await _waiting(queue) == (0, 1)
    assert take.got == [b"1"]
    await loop.resume()
    await eventually(lambda: take.got == [b"1", b"2"])
    await loop.stop()


async def test_stop_leaves_no_item_in_a_dead_inbox(queue: Broker) -> None:
    """A pull that is simply forgotten takes the next item and keeps it until ack_wait."""
    loop = PullLoop(queue, STREAM, "interactive", Taker(), credits=4)
    await loop.start()
    await eventually(lambda: loop._asked() == 4)
    await loop.stop()
    await put(queue, b"1", b"2")
    take = Taker()
    other = PullLoop(queue, STREAM, "interactive", take, credits=4)
    await other.start()
    await eventually(lambda: sorted(take.got) == [b"1", b"2"], within=2)
    await other.stop()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_next_item_arrives_after_a_server_restart(
    queue: Broker, nats_server: Server, how: signal.Signals
) -> None:
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=4)
    await loop.start()
    await put(queue, b"1")
    await eventually(lambda: take.got == [b"1"])
    nats_server.stop() if how is signal.SIGTERM else nats_server.kill()
    await eventually(lambda: not queue.connected)
    nats_server.start()
    await put(queue, b"2", b"3")
    await eventually(lambda: sorted(take.got) == [b"1", b"2", b"3"], within=2)
    await loop.stop()


async def test_broken_connection_with_pulls_out(queue: Broker, nats_server: Server) -> None:
    """The server lives on and may hold pulls of the dead connection: no item goes to them."""
    async with Proxy(nats_server.url) as proxy:
        worker = await Broker.connect(proxy.url, name="worker", token=nats_server.token)
        take = Taker()
        loop = PullLoop(worker, STREAM, "interactive", take, credits=4)
        await loop.start()
        await eventually(lambda: loop._asked() == 4)
        for n in range(3):
            proxy.cut()
            await eventually(lambda: not worker.connected)
            await put(queue, b"%d" % n)
            await eventually(lambda n=n: len(take.got) == n + 1, within=2)  # type: ignore[misc]
        assert take.got == [b"0", b"1", b"2"]
        await loop.stop()
        await worker.close()


async def test_item_sent_into_a_dead_connection_comes_again(broker: Broker, nats_server: Server) -> None:
    await topology.ensure_component(broker, COMPONENT, ack_wait=0.5)
    async with Proxy(nats_server.url) as proxy:
        worker = await Broker.connect(proxy.url, name="worker", token=nats_server.token)
        take = Taker()
        loop = PullLoop(worker, STREAM, "interactive", take, credits=4)
        await loop.start()
        await eventually(lambda: loop._asked() == 4)
        await worker.nc.flush()
        proxy.muted = True
        await put(broker, b"1")
        await eventually(lambda: _in_flight(broker))
        proxy.cut()
        await eventually(lambda: take.got == [b"1"], within=3)
        await eventually(lambda: _is_empty(broker))
        await loop.stop()
        await worker.close()


async def _in_flight(broker: Broker) -> bool:
    return (await topology.backlog(broker, COMPONENT)).in_flight["interactive"] == 1


async def test_items_stored_before_a_kill_are_not_lost(queue: Broker, nats_server: Server) -> None:
    items = [b"%d" % n for n in range(50)]
    await put(queue, *items)
    nats_server.kill()
    nats_server.start()
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=8)
    await loop.start()
    await eventually(lambda: sorted(take.got) == sorted(items))
    await loop.stop()


async def test_consumer_deleted_and_created_again(queue: Broker) -> None:
    take = Taker()
    loop = PullLoop(queue, STREAM, "interactive", take, credits=4)
    await loop.start()
    await eventually(lambda: loop._asked() == 4)
    await queue.api(f"CONSUMER.DELETE.{STREAM}.interactive")
    await put(queue, b"1")
    await topology.ensure_component(queue, COMPONENT)
    await eventually(lambda: take.got == [b"1"], within=2)
    await loop.stop()


async def test_loop_started_before_its_consumer_exists(broker: Broker) -> None:
    take = Taker()
    loop = PullLoop(broker, STREAM, "interactive", take, credits=1)
    await loop.start()
    await eventually(lambda: loop._failures > 1)
    await topology.ensure_component(broker, COMPONENT)
    await put(broker, b"1")
    await eventually(lambda: take.got == [b"1"], within=2)
    await loop.stop()


async def test_pull_that_the_server_dropped_silently_is_repeated(broker: Broker) -> None:
    """More pulls than max_waiting: with heartbeats asked for, the server says nothing about those it drops."""
    await topology.ensure_component(broker, COMPONENT)
    config = (await broker.api(f"CONSUMER.INFO.{STREAM}.interactive"))["config"]
    await broker.api(f"CONSUMER.DELETE.{STREAM}.interactive")
    await broker.api(
        f"CONSUMER.DURABLE.CREATE.{STREAM}.interactive",
        {"stream_name": STREAM, "config": {**config, "max_waiting": 1}},
    )
    blocker = PullLoop(broker, STREAM, "interactive", Taker(), credits=1, heartbeat=0.1)
    await blocker.start()
    await eventually(lambda: blocker._asked() == 1)
    await broker.nc.flush()
    take = Taker()
    loop = PullLoop(broker, STREAM, "interactive", take, credits=1, heartbeat=0.1)
    await loop.start()
    await eventually(lambda: loop._asked() == 1)
    await broker.nc.flush()
    await blocker.stop()
    await put(broker, b"1")
    await eventually(lambda: take.got == [b"1"], within=3)
    await loop.stop()


async def test_short_pulls_expire_and_are_repeated(queue: Broker) -> None:
    take, pulls = Taker(), []
    await queue.nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.interactive", cb=_into(pulls))
    loop = PullLoop(queue, STREAM, "interactive", take, credits=2, expires=0.1, heartbeat=0.05)
    await loop.start()
    await eventually(lambda: len(pulls) > 2)
    await put(queue, b"1")
    await eventually(lambda: take.got == [b"1"], within=1)
    await loop.stop()


async def test_handler_that_raises_hands_back(queue: Broker, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.delivered)
        if delivery.delivered == 1:
            raise ValueError("secret prompt")
        await delivery.ack()

    loop = PullLoop(queue, STREAM, "interactive", handle, credits=1)
    await loop.start()
    await put(queue, b"1")
    await eventually(lambda: seen == [1, 2])
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
    await loop.stop()


async def test_answers_of_a_delivery(queue: Broker) -> None:
    deliveries: list[Delivery] = []

    async def handle(delivery: Delivery) -> None:
        deliveries.append(delivery)
        await (delivery.nak(0.05) if delivery.delivered == 1 else delivery.term("not wanted"))

    loop = PullLoop(queue, STREAM, "interactive", handle, credits=1)
    await loop.start()
    before = time.time()
    await queue.publish_stored(WORK, b"1", deadline=before + 5, headers={"traceparent": "00-ab"})
    await eventually(lambda: len(deliveries) == 2)
    first, second = deliveries
    assert (first.delivered, second.delivered) == (1, 2)
    assert (first.stream_seq, first.consumer_seq, second.consumer_seq) == (1, 1, 2)
    assert (first.subject, first.data, first.headers["traceparent"]) == (WORK, b"1", "00-ab")
    assert before - 1 < first.time < time.time() + 1
    await eventually(lambda: _is_empty(queue))
    await loop.stop()


async def test_in_progress_keeps_an_item_and_ack_wait_gives_it_on(broker: Broker) -> None:
    await topology.ensure_component(broker, COMPONENT, ack_wait=0.4)
    starts: list[float] = []

    async def handle(delivery: Delivery) -> None:
        starts.append(time.monotonic())
        if delivery.delivered == 1:
            for _ in range(6):
                await asyncio.sleep(0.1)  # its work, which takes longer than ack_wait
                await delivery.in_progress()
        else:
            await delivery.ack()

    loop = PullLoop(broker, STREAM, "interactive", handle, credits=2)
    await loop.start()
    await put(broker, b"1")
    await eventually(lambda: len(starts) == 2)
    assert starts[1] - starts[0] > 0.9
    await loop.stop()


async def test_a_full_lane_refuses_and_leaves_the_other_lane_alone(broker: Broker) -> None:
    await topology.ensure_component(broker, COMPONENT, max_msgs_per_lane=3)
    publish: Callable[[str], Awaitable[object]] = lambda lane: broker.publish_stored(  # noqa: E731
        f"work.{COMPONENT}.{lane}", b"x", deadline=time.time() + 5
    )
    for _ in range(3):
        await publish("batch")
    with pytest.raises(QueueFull):
        await publish("batch")
    await publish("interactive")
    load = await topology.backlog(broker, COMPONENT)
    assert (load.pending, load.max_msgs) == ({"interactive": 1, "batch": 3}, 3)
