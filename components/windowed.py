"""Windowed batching: what waits while a step runs, and has the same shape, is done together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Generic, TypeVar

from components.continuous import ContinuousBatch, Member, Stage
from cornstalk.errors import EngineError

T = TypeVar("T")
R = TypeVar("R")

WAITING: Final = 1024
"""Jobs at once; the slots of an engine are far fewer."""


class Job(Member[Any], Generic[T]):
    """One item, which is done in one step with up to `most` of its shape. It waits for others until `patience` (of the
    event loop's clock).
    """

    def __init__(self, item: T, shape: Hashable, most: int, patience: float, check: Callable[[], None]) -> None:
        super().__init__(check)
        self.item, self.shape, self.most, self.patience = item, shape, most, patience
        self.done = False

    @property
    def ended(self) -> bool:
        return self.done


class WindowedBatch(ContinuousBatch[Job[T], Any], Generic[T, R]):
    """Calls `work` with the items of one shape, the longest waiting first. What breaks one spoils no other."""

    def __init__(self, name: str, work: Callable[[Sequence[T]], Sequence[R]], most: int, window: float = 0.0) -> None:
        """`most`: items in one step; `window`: seconds that one waits at most for those that are being prepared."""
        super().__init__(name, WAITING)
        self._do, self._most_at_once, self._window = work, most, window
        self._coming = 0

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While an item is prepared: the next step may wait for it."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self.news()

    async def do(self, item: T, shape: Hashable, check: Callable[[], None], most: int | None = None) -> R:
        """`most`: for items of which fewer fit into a step. Raises what `check` raises and what `work` raises for this
        item alone: an EngineError as it is, another error as a transient one.
        """
        loop = asyncio.get_running_loop()
        job = Job(item, shape, min(most or self._most_at_once, self._most_at_once), loop.time() + self._window, check)
        timer = loop.call_later(self._window, self.news)
        try:
            async with aclosing(self.results(job)) as results:
                async for result in results:
                    made: R = result
                    return made
        finally:
            timer.cancel()
        raise EngineError("a step gave nothing", transient=True)

    def stage(self, member: Job[T]) -> Stage[Job[T], Any] | None:
        """None while others may come in time. Who is alone does not wait."""
        hopes = self._coming and len(self._members) < self._most_at_once
        if hopes and min(job.patience for job in self._members) > asyncio.get_running_loop().time():
            return None
        return Stage(self._work, member.most, member.shape)

    def _work(self, jobs: list[Job[T]]) -> list[list[Any]]:
        results = self._tried(jobs)
        for job in jobs:
            job.done = True
        return [[result] for result in results]

    def _tried(self, jobs: list[Job[T]]) -> Sequence[Any]:
        """Results, and errors in place of some."""
        try:
            return self._do([job.item for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                known = isinstance(error, EngineError)
                return [error if known else EngineError(f"a step failed: {error}", transient=True)]
        return [result for job in jobs for result in self._tried([job])]
