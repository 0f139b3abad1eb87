"""One dispatcher pulls; when it is gone another does, soon; two at once do no harm."""

from __future__ import annotations

import asyncio
import signal
import time

import msgspec

from broker.connection import Broker
from broker.requests import Message
from broker.server import Server
from broker.subjects import DISPATCH, DISPATCH_BEAT, RUNS
from broker.topology import DISPATCH_ACK_WAIT
from dispatcher.leader import SoftLeader
from tests.dispatcher.harness import Bench, node, value_of
from tests.waiting import eventually


async def test_a_standby_takes_over_within_two_seconds_of_a_kill(bench: Bench) -> None:
    await bench.component()
    active, _ = await bench.two_dispatchers()
    request = await bench.accept()
    await bench.graph(request, node("a"), node("b", value_of("a")))
    await bench.until_items("a")
    active.kill()
    await active.gone()
    await bench.end(request, "a", outputs={"v": "A"})
    began = time.monotonic()
    await bench.until_items("a", "b")
    assert time.monotonic() - began < 4.0


async def test_a_trigger_that_died_with_its_dispatcher_comes_at_once(bench: Bench) -> None:
    """Delivered, and not acked when its dispatcher died: the next one need not wait for its ack_wait."""
    await bench.component()
    active, _ = await bench.two_dispatchers()
    beating: set[str] = set()

    async def heard(message: Message) -> None:
        beating.add(msgspec.msgpack.decode(message.data)["id"])

    beats = await bench.broker.subscribe_core(DISPATCH_BEAT, heard)
    await eventually(lambda: len(beating) == 2, within=20)
    await beats.close()
    request = await bench.accept()
    await bench.graph(request, node("a"), node("b", value_of("a")))
    await bench.until_items("a")
    active.kill(signal.SIGSTOP)
    began = time.monotonic()
    await bench.end(request, "a", outputs={"v": "A"})

    async def delivered() -> bool:
        return bool((await bench.broker.api(f"CONSUMER.INFO.{RUNS}.{DISPATCH}"))["num_ack_pending"])

    await eventually(delivered)
    active.kill()
    await bench.until_items("a", "b")
    took = time.monotonic() - began
    print(f"killed to dispatched: {took:.2f} s")
    assert took < DISPATCH_ACK_WAIT


async def test_a_dispatcher_that_is_told_to_stop_leaves_nothing_behind(bench: Bench) -> None:
    await bench.component()
    active, _ = await bench.two_dispatchers()
    await bench.worker()
    requests = [await bench.accept() for _ in range(30)]
    for request in requests:
        await bench.graph(request, node("a"), node("b", value_of("a")))
    active.kill(signal.SIGTERM)
    assert await active.gone() == 0
    await eventually(lambda: len(bench.ran) == 60, within=10.0)
    await bench.acked()
    assert await bench.sent() == 60


async def test_of_two_active_ones_the_higher_id_stands_by(nats_server: Server, broker: Broker) -> None:
    async def become(active: bool) -> None:
        pass

    brokers = [await Broker.connect(nats_server.url, name="b", token=nats_server.token) for _ in range(3)]
    leaders = [SoftLeader(b, become) for b in brokers]
    for leader in leaders:
        leader.active = True  # as after a partition
    tasks = [asyncio.create_task(leader.run()) for leader in leaders]
    await eventually(lambda: sum(leader.active for leader in leaders) == 1)
    lowest = min(leaders, key=lambda leader: leader.id)
    assert lowest.active
    await lowest.resign()
    tasks.pop(leaders.index(lowest)).cancel()
    await eventually(lambda: sum(leader.active for leader in leaders) == 1 and not lowest.active, within=2.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for b in brokers:
        await b.close()
