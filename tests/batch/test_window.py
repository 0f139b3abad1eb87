"""Rows of an app that a gateway has under way: so many and no more, by priority, also across gateways."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from broker.connection import Broker
from gateway.batch_window import FIRST, ROWS, Window, Windows
from tests.waiting import eventually


@pytest.fixture
async def gateways(shared_broker: Broker) -> AsyncIterator[tuple[Windows, Windows]]:
    one, other = Windows(shared_broker), Windows(shared_broker)
    await one.start()
    await other.start()
    yield one, other
    await one.close()
    await other.close()


class Taker:
    """Takes turns of one job, and says in `order` whose each one was."""

    def __init__(self, window: Window, name: str, priority: int, order: list[str]) -> None:
        self._window, self._name, self._priority, self._order = window, name, priority, order

    async def take(self, count: int) -> None:
        for _ in range(count):
            await self._window.take(self._priority)
            self._order.append(self._name)


async def full(window: Window) -> None:
    """Rows end until there is all the room that there may be, and then it is taken."""
    for _ in range(FIRST):
        await window.take(0)
    for _ in range(ROWS - FIRST):
        window.give_back()
        await window.take(0)
        await window.take(0)


async def test_a_new_job_is_no_burst(gateways: tuple[Windows, Windows]) -> None:
    window = gateways[0].of("burst")
    waiting = [asyncio.create_task(window.take(0)) for _ in range(3 * FIRST)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(task.done() for task in waiting) == FIRST
    window.give_back()
    await asyncio.sleep(0.01)
    assert sum(task.done() for task in waiting) == FIRST + 2, "its place, and one more"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_no_more_than_there_may_be(gateways: tuple[Windows, Windows]) -> None:
    window = gateways[0].of("limit")
    await full(window)
    waiting = asyncio.create_task(window.take(100))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    window.give_back()
    await waiting


async def test_higher_priorities_first_and_equal_ones_in_turn(gateways: tuple[Windows, Windows]) -> None:
    window = gateways[0].of("order")
    await full(window)
    order: list[str] = []
    jobs = [("low", -1), ("a", 0), ("b", 0), ("high", 5)]
    tasks = [asyncio.create_task(Taker(window, name, priority, order).take(3)) for name, priority in jobs]
    await asyncio.sleep(0)
    for taken in range(12):
        window.give_back()
        await eventually(lambda taken=taken: len(order) == taken + 1)
    await asyncio.gather(*tasks)
    assert order == ["high"] * 3 + ["a", "b"] * 3 + ["low"] * 3


async def test_one_that_gives_up_takes_nothing(gateways: tuple[Windows, Windows]) -> None:
    window = gateways[0].of("gone")
    await full(window)
    first, second, third = (asyncio.create_task(window.take(n)) for n in (3, 2, 1))
    await asyncio.sleep(0)
    first.cancel()
    window.give_back()
    await second
    window.give_back()
    third.cancel()  # it has its turn already, and does not know yet
    await asyncio.gather(first, third, return_exceptions=True)
    await asyncio.wait_for(window.take(0), 1)


async def test_rows_wait_for_those_of_a_higher_priority_on_another_gateway(gateways: tuple[Windows, Windows]) -> None:
    app = f"app-{uuid.uuid4().hex}"
    here, there = (windows.of(app) for windows in gateways)
    await full(there)
    high = asyncio.create_task(there.take(1))

    async def told() -> bool:
        low = asyncio.create_task(here.take(0))
        await asyncio.sleep(0.01)
        waits = not low.done()
        low.cancel()
        await asyncio.gather(low, return_exceptions=True)
        if not waits:
            here.give_back()
        return waits

    await eventually(told)
    await asyncio.wait_for(here.take(1), 1)
    low = asyncio.create_task(here.take(0))
    there.give_back()
    await high
    await asyncio.wait_for(low, 5)  # nobody waits there any more
