"""Slots: never more at once than there are, interactive before batch, one slot kept free of batch."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.held import Slots

LANES = st.sampled_from(["interactive", "batch"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(LANES, st.integers(0, 3)), max_size=24))
def test_limits_hold_whatever_comes(total: int, items: list[tuple[Literal["interactive", "batch"], int]]) -> None:
    async def scenario() -> int:
        slots, most, batch_most, done = Slots(total), 0, 0, 0

        async def item(lane: Literal["interactive", "batch"], turns: int) -> None:
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

    async def item(name: str, lane: Literal["interactive", "batch"]) -> None:
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
