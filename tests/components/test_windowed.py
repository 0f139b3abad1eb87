"""Windowed batching: one shape in a step, no more than fit, and each job's error is its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from components.engine import Cancelled
from components.windowed import WindowedBatch
from cornstalk.errors import EngineError
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio


def wanted() -> None:
    """Nobody cancelled it."""


class Work:
    """Notes what it was given."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def __call__(self, items: Sequence[str]) -> list[str]:
        self.steps.append(list(items))
        if "bad" in items:
            raise RuntimeError("no")
        if "unfit" in items:
            raise EngineError("unfit", "bad_input")
        return [item.upper() for item in items]


async def test_a_step_has_one_shape_and_no_more_than_fit() -> None:
    batch = WindowedBatch[str, str]("test", work := Work(), 3)
    waiting = [("a", 2), ("b", 1), ("a", 2), ("a", 2), ("c", 9), ("c", 9), ("c", 9), ("c", 9)]
    made = await asyncio.gather(*(batch.do(item, item, wanted, most) for item, most in waiting))
    await batch.close()
    assert work.steps == [["a", "a"], ["b"], ["a"], ["c", "c", "c"], ["c"]]
    assert made == [item.upper() for item, _ in waiting]
    assert (batch.stats()["largest_batch"], batch.stats()["steps"]) == (3.0, 5.0)


async def test_what_breaks_one_spoils_no_other() -> None:
    batch = WindowedBatch[str, str]("test", Work(), 8)
    made: list[Any] = await asyncio.gather(
        *(batch.do(item, "shape", wanted) for item in ("a", "bad", "b", "unfit")), return_exceptions=True
    )
    await batch.close()
    assert [str(m) for m in made] == ["A", "a step failed: no", "B", "unfit"]
    assert [m.transient for m in made if isinstance(m, EngineError)] == [True, False]


async def test_it_waits_for_what_is_being_prepared_but_not_for_long() -> None:
    batch = WindowedBatch[str, str]("test", work := Work(), 8, window=30.0)
    with batch.coming():
        first = asyncio.create_task(batch.do("a", "shape", wanted))
        await eventually(lambda: batch._stepper is not None, within=5)
        second = asyncio.create_task(batch.do("b", "shape", wanted))
        await asyncio.sleep(0)  # it waits too
    assert [await first, await second] == ["A", "B"]
    assert work.steps == [["a", "b"]]
    impatient = WindowedBatch[str, str]("test", work, 8, window=0.05)
    began = time.monotonic()
    with impatient.coming():
        assert await impatient.do("c", "shape", wanted) == "C"
    assert time.monotonic() - began >= 0.05
    await batch.close()
    await impatient.close()


async def test_who_is_cancelled_leaves_and_who_waits_at_the_end_is_told() -> None:
    def gone() -> None:
        raise Cancelled

    batch = WindowedBatch[str, str]("test", work := Work(), 8, window=30.0)
    with pytest.raises(Cancelled):
        await batch.do("a", "shape", gone)
    assert work.steps == []
    with batch.coming():
        waiting = asyncio.create_task(batch.do("a", "shape", wanted))
        await eventually(lambda: batch._stepper is not None, within=5)
        await batch.close()
        with pytest.raises(EngineError, match="stopped") as caught:
            await waiting
    assert caught.value.transient
