"""Triggers whose items find no room: they stay with the dispatcher that has them, as many as the bound says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.requests import Message
from dispatcher.held import MAX_HELD
from tests.dispatcher.few_held import FEW
from tests.dispatcher.harness import Bench, node
from tests.waiting import eventually

AT_ONCE: Final = 200


@asynccontextmanager
async def answers(bench: Bench) -> AsyncIterator[dict[int, list[str]]]:
    """How dispatchers answer each delivery, by its sequence in RUNS."""
    said: dict[int, list[str]] = {}

    async def hear(message: Message) -> None:
        said.setdefault(int(message.subject.split(".")[5]), []).append(message.data.decode().split(" ")[0])

    subscription = await bench.broker.subscribe_core("$JS.ACK.RUNS.dispatch.>", hear)
    try:
        yield said
    finally:
        await subscription.close()


async def redelivered(bench: Bench) -> int:
    count: int = (await bench.broker.api("CONSUMER.INFO.RUNS.dispatch"))["num_redelivered"]
    return count


async def test_a_trigger_that_is_held_stays_with_its_dispatcher(bench: Bench) -> None:
    """Its signs of life reach beyond ack_wait; without them it would come again, and be held twice."""
    await bench.two_dispatchers()
    async with answers(bench) as said:
        request = await bench.accept()
        await bench.graph(request, node("a", component="later"))
        await eventually(lambda: any(words.count("+WPI") >= 5 for words in said.values()), within=15)
        assert await redelivered(bench) == 0
        await bench.component("later")
        await bench.until_items("a", component="later")
        await bench.acked()
    assert all(words[-1] == "+ACK" and words.count("+ACK") == 1 for words in said.values())
    assert await bench.sent("later") == 1


async def test_over_the_bound_triggers_are_handed_back_with_delay_and_nobody_is_stalled(bench: Bench) -> None:
    """One dispatcher: the bound is of each. Half of what the consumer may have under way is left to others."""
    assert (await bench.broker.api("CONSUMER.INFO.RUNS.dispatch"))["config"]["max_ack_pending"] == 2 * MAX_HELD
    await bench.component("full", max_msgs_per_lane=1)
    await bench.component("free")
    await bench.start(module="tests.dispatcher.few_held")
    await bench.pulled()
    over = 40
    requests = [await bench.accept() for _ in range(20)]
    places = [(request, index) for request in requests for index in range((FEW + over) // len(requests) + 1)]
    async with answers(bench) as said:
        for at in range(0, len(places), AT_ONCE):
            some = places[at : at + AT_ONCE]
            await asyncio.gather(*(bench.graph(r, node(f"n{i}", component="full"), index=i) for r, i in some))

        def handed_back() -> int:
            return sum("-NAK" in words for words in said.values())

        await eventually(lambda: handed_back() >= over, within=60)
        request = await bench.accept()
        await bench.graph(request, node("b", component="free"))
        await bench.until_items("b", component="free", within=60)
        await bench.component("full", max_msgs_per_lane=10_000)

        async def all_sent() -> bool:
            return await bench.sent("full") >= len(places)

        await eventually(all_sent, within=90)
        await bench.acked()
    counts = Counter((item.request, item.node) for item in await bench.items("full"))
    assert counts == Counter((r, f"n{i}") for r, i in places)
