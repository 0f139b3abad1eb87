"""Slots: never more at once than there are, interactive before batch, one slot kept free of batch, none starves."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from components.slots import BURST, SHARE, Draining, Slots
from cornstalk.messages import Lane

LANES = st.sampled_from(["interactive", "batch"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(LANES, st.integers(0, 3)), max_size=24))
def test_limits_hold_whatever_comes(total: int, items: list[tuple[Lane, int]]) -> None:
    async def scenario() -> int:
        slots, most, batch_most, done = Slots(total), 0, 0, 0

        async def item(lane: Lane, turns: int) -> None:
            nonlocal most, batch_most, done
            async with slots.take(lane):
                most = max(most, sum(slots.running.values()))
                batch_most = max(batch_most, slots.running["batch"])
                for _ in range(turns):
                    await asyncio.sleep(0)
            done += 1

        async with asyncio.timeout(5):
            await asyncio.gather(*(item(lane, turns) for lane, turns in items))
        assert most <= total
        assert batch_most <= max(1, total - 1)
        assert slots.running == {"interactive": 0, "batch": 0}
        return done

    assert asyncio.run(scenario()) == len(items)


async def test_an_interactive_item_passes_waiting_batch_items() -> None:
    slots, order = Slots(1), []

    async def item(name: str, lane: Lane) -> None:
        async with slots.take(lane):
            order.append(name)
            await asyncio.sleep(0)

    async with slots.take("interactive"):
        waiting = [asyncio.create_task(item(f"b{i}", "batch")) for i in range(3)]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(item("i", "interactive")))
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["i", "b0", "b1", "b2"]


async def test_a_waiter_that_is_cancelled_takes_nothing() -> None:
    slots = Slots(1)

    async def item() -> None:
        async with slots.take("interactive"):
            pass

    async with slots.take("interactive"):
        waiter = asyncio.create_task(item())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with asyncio.timeout(1):
        await item()
    assert sum(slots.running.values()) == 0


class Load:
    """Items of both lanes that last one turn each, as many as are asked for waiting at any time."""

    def __init__(self, total: int) -> None:
        self.slots = Slots(total)
        self.started: list[Lane] = []
        self.most: dict[Lane, int] = {"interactive": 0, "batch": 0}

    async def keep(self, lane: Lane, waiting: int, count: int) -> None:
        """`count` items of a lane, `waiting` of them at a time."""

        async def client() -> None:
            for _ in range(count // waiting):
                async with self.slots.take(lane):
                    self.started.append(lane)
                    self.most[lane] = max(self.most[lane], self.slots.running[lane])
                    await asyncio.sleep(0)

        await asyncio.gather(*(client() for _ in range(waiting)))

    def share(self) -> float:
        """Of batch, while interactive items came."""
        last = len(self.started) - self.started[::-1].index("interactive")
        return self.started[:last].count("batch") / last


async def test_batch_gets_one_start_in_eighteen_where_interactive_takes_all() -> None:
    load = Load(4)
    batch = asyncio.create_task(load.keep("batch", 3, 3_000))
    await load.keep("interactive", 8, 2_000)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert 0.05 <= load.share() <= 0.06
    assert load.started[:SHARE].count("batch") <= 1, "it is not all at the beginning"


async def test_what_batch_got_before_counts_for_a_while_only() -> None:
    load = Load(4)
    await load.keep("batch", 3, 600)
    load.started.clear()
    batch = asyncio.create_task(load.keep("batch", 3, 3_000))
    await load.keep("interactive", 8, 800)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    first = load.started.index("batch", load.started.index("interactive"))
    assert BURST * SHARE < first <= (BURST + 1) * SHARE + load.slots.total
    assert load.share() >= 0.045


async def test_batch_alone_has_all_slots_but_one() -> None:
    load = Load(4)
    await load.keep("batch", 8, 80)
    assert load.most["batch"] == 3


async def test_the_slots_of_clients_that_come_back_at_once_are_kept_for_them() -> None:
    slots, waited, stop = Slots(4), [], False

    async def client(items: int) -> None:
        for _ in range(items):
            before = len(order)
            async with slots.take("interactive"):
                waited.append(len(order) - before)
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.001)

    order: list[str] = []

    async def batch() -> None:
        while not stop:
            async with slots.take("batch"):
                order.append("b")
                await asyncio.sleep(0.002)

    rows = [asyncio.create_task(batch()) for _ in range(3)]
    await asyncio.gather(client(100), client(100))
    stop = True
    await asyncio.gather(*rows)
    assert sum(n > 0 for n in waited) <= 20, "two clients have two slots, once it is seen that they are two"
    assert len(order) > 60, "and batch has the other two"


async def test_batch_gets_the_kept_slots_when_nobody_comes_back() -> None:
    load = Load(2)
    await load.keep("interactive", 2, 2)
    async with asyncio.timeout(2):
        await load.keep("batch", 1, 1)


async def test_one_slot_is_shared_too() -> None:
    load = Load(1)
    async with asyncio.timeout(5):
        batch = asyncio.create_task(load.keep("batch", 1, 60))
        await load.keep("interactive", 2, 400)
        await batch
    assert load.started.count("batch") == 60
    assert load.share() >= 0.045


def test_a_batch_item_starts_once_the_slots_before_it_are_free_though_nothing_else_happens() -> None:
    """On the loop of real workers, whose clock may stand a rounding before the time that a timer was set for."""

    async def scenario() -> None:
        slots = Slots(2)
        async with slots.take("interactive"), slots.take("interactive"):
            pass
        async with slots.take("batch"):
            pass

    async def scenarios() -> None:
        async with asyncio.timeout(5):
            for _ in range(20):
                await scenario()

    uvloop.run(scenarios())


async def test_what_has_not_started_when_the_slots_close_never_starts() -> None:
    slots, ended = Slots(1), []

    async def item(lane: Lane) -> None:
        async with slots.take(lane):
            ended.append(lane)

    async with slots.take("interactive"):
        waiting = [asyncio.create_task(item("interactive")), asyncio.create_task(item("batch"))]
        await asyncio.sleep(0)
        slots.close()
        with pytest.raises(Draining):
            await item("batch")
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Draining, Draining]
    assert ended == []
    assert slots.running == {"interactive": 0, "batch": 0}
