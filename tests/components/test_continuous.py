"""Continuous batching: joining, leaving and taking turns between the steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing

import pytest

from components.continuous import ContinuousBatch, Member, Stage
from components.engine import Cancelled
from cornstalk.errors import EngineError
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio


def wanted() -> None:
    """Nobody cancelled it."""


class Walker(Member[int]):
    """Reads so often, then walks so often, when it may."""

    def __init__(self, name: str, reads: int, walks: int, check: Callable[[], None] = wanted, shape: str = "") -> None:
        super().__init__(check)
        self.name, self.reads, self.walks, self.shape = name, reads, walks, shape
        self.may = True

    @property
    def ended(self) -> bool:
        return self.reads == self.walks == 0


class Walkers(ContinuousBatch[Walker, int]):
    def __init__(self, most: int = 8) -> None:
        super().__init__("test", most)
        self.log: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def stage(self, member: Walker) -> Stage[Walker, int] | None:
        if not member.may:
            return None
        return Stage(self._read, 1) if member.reads else Stage(self._walk, 3, member.shape)

    def _read(self, walkers: list[Walker]) -> list[list[int]]:
        (walker,) = walkers
        walker.reads -= 1
        self.log.append(f"read {walker.name}")
        return [[]]

    def _walk(self, walkers: list[Walker]) -> list[list[int]]:
        assert self.gate.wait(10)
        self.log.append("walk " + "".join(walker.name for walker in walkers))
        if any(walker.name == "!" for walker in walkers):
            raise RuntimeError("fell")
        for walker in walkers:
            walker.walks -= 1
        return [[walker.walks] for walker in walkers]


async def walked(batch: Walkers, walker: Walker) -> list[int]:
    async with aclosing(batch.results(walker)) as results:
        return [left async for left in results]


async def test_kinds_of_work_take_turns_and_those_of_one_kind_go_together() -> None:
    batch = Walkers()
    a, b, c = Walker("a", 0, 4), Walker("b", 2, 2), Walker("c", 2, 1)
    left = await asyncio.gather(*(walked(batch, walker) for walker in (a, b, c)))
    assert left == [[3, 2, 1, 0], [1, 0], [0]]
    assert batch.log == ["walk a", "read b", "walk a", "read c", "walk a", "read b", "walk ab", "read c", "walk bc"]
    assert batch.stats() == {**batch.stats(), "steps": 9.0, "batch": 2.0, "largest_batch": 2.0}
    await batch.close()


async def test_those_go_first_that_were_stepped_least_recently() -> None:
    batch = Walkers()
    walkers = [Walker(name, 0, 2, shape="x" if name in "xy" else "") for name in "abcdxy"]
    await asyncio.gather(*(walked(batch, walker) for walker in walkers))
    assert batch.log == ["walk abc", "walk dab", "walk xy", "walk cd", "walk xy"]
    await batch.close()


async def test_one_that_waits_for_news_holds_up_nobody() -> None:
    batch = Walkers()
    waiting, other = Walker("w", 0, 1), Walker("o", 0, 2)
    waiting.may = False
    task = asyncio.create_task(walked(batch, waiting))
    assert await walked(batch, other) == [1, 0]
    assert not task.done()
    waiting.may = True
    batch.news()
    assert await task == [0]
    await batch.close()


async def test_a_failed_step_ends_its_members_alone() -> None:
    batch = Walkers()
    bad, good = Walker("!", 0, 1), Walker("g", 0, 2, shape="other")
    found = await asyncio.gather(*(walked(batch, walker) for walker in (bad, good)), return_exceptions=True)
    assert isinstance(found[0], EngineError)
    assert (str(found[0]), found[0].transient, found[1]) == ("a step failed: fell", True, [1, 0])
    await batch.close()


async def test_who_joins_who_is_cancelled_and_who_leaves() -> None:
    batch, unwanted = Walkers(), False

    def check() -> None:
        if unwanted:
            raise Cancelled

    batch.gate.clear()
    doomed = asyncio.create_task(walked(batch, Walker("d", 0, 99, check)))
    await eventually(lambda: batch.steps == 1, within=5)
    joined, left = (asyncio.create_task(walked(batch, Walker(name, 0, 2))) for name in "jl")
    await asyncio.sleep(0)  # they have joined
    left.cancel()
    unwanted = True
    batch.gate.set()
    with pytest.raises(Cancelled):
        await doomed
    assert await joined == [1, 0]
    assert batch.log == ["walk d", "walk j", "walk j"]
    await batch.close()


async def test_full_and_stopped() -> None:
    batch = Walkers(most=1)
    waiting = Walker("w", 0, 1)
    waiting.may = False
    task = asyncio.create_task(walked(batch, waiting))
    await asyncio.sleep(0)  # it has joined
    with pytest.raises(EngineError, match="1 are running"):
        await walked(batch, Walker("x", 0, 1))
    await batch.close()
    with pytest.raises(EngineError, match="stopped"):
        await task
