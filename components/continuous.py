"""Continuous batching: members join and leave between the steps of one thread, and a step advances all it can.

What is batched says what each member needs next (`stage`): members that need the same are stepped together. So language
models take turns between reading prompts and writing answers, and image generators between denoising and decoding.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cornstalk.errors import EngineError

R = TypeVar("R")


class Member(ABC, Generic[R]):
    """One request in a batch, in memory alone: with its process it is gone, and another attempt begins anew."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` raises when the request is not wanted any more."""
        self.check = check
        self.stepped = 0  # number of the last step that it was in
        self.ready: asyncio.Queue[R | Exception | None] = asyncio.Queue()  # results, then None or what went wrong

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether it needs no further step."""


M = TypeVar("M", bound=Member[Any])


@dataclass(frozen=True)
class Stage(Generic[M, R]):
    """What a member needs next. Those of equal stages are stepped together, at most `most` of them."""

    work: Callable[[list[M]], list[list[R]]]
    """Runs in the thread of the batch; the new results of each member."""
    most: int
    shape: Hashable = None


class ContinuousBatch(ABC, Generic[M, R]):
    """Steps while a member can be advanced; sleeps while all wait for news.

    Kinds of work take turns, so that none of them holds up another for longer than a step; of one kind those come first
    that were stepped least recently.
    """

    def __init__(self, name: str, most: int) -> None:
        """`name`: of the thread; `most`: members at once."""
        self._most = most
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._members: list[M] = []
        self._turns: dict[Callable[[list[M]], list[list[R]]], int] = {}  # the last step of each kind of work
        self._stepper: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.steps = self.last = self.largest = 0  # steps so far; members of the last one, and of the largest
        self.longest = 0.0  # seconds

    @abstractmethod
    def stage(self, member: M) -> Stage[M, R] | None:
        """What it needs next; None as long as it waits for something that `news` will tell."""

    async def results(self, member: M) -> AsyncGenerator[R, None]:
        """Results as they come. The member leaves when the iterator is closed: use aclosing.

        Raises what its check raises, what is put into `ready`, and a transient EngineError when the batch is closed, is
        full, or a step fails.
        """
        if len(self._members) >= self._most:
            raise EngineError(f"{self._most} are running", transient=True)
        self._members.append(member)
        self.news()
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._run())
        try:
            while (result := await member.ready.get()) is not None:
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            self._leave(member)
            self.news()

    def news(self) -> None:
        """Some member may need another step than it did."""
        self._news.set()

    def stats(self) -> dict[str, float]:
        """As Engine.stats, and `largest_batch`, `steps`."""
        return {
            "batch": float(self.last),
            "largest_batch": float(self.largest),
            "longest_step_s": self.longest,
            "steps": float(self.steps),
        }

    async def close(self) -> None:
        """Ends what still runs, after the step that runs."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        self._fail(list(self._members), EngineError("the engine was stopped", transient=True))
        self._thread.shutdown()

    async def _run(self) -> None:
        try:
            while self._wanted():
                self._news.clear()
                if (stage := self._next()) is None:
                    await self._news.wait()
                else:
                    await self._step(*stage)
        finally:
            self._stepper = None

    def _wanted(self) -> bool:
        """Ends who is cancelled and who needs nothing; True if someone is left."""
        for member in list(self._members):
            try:
                member.check()
            except Exception as error:
                self._fail([member], error)
            self._end(member)
        return bool(self._members)

    def _next(self) -> tuple[Stage[M, R], list[M]] | None:
        waiting = [
            (stage, member)
            for member in sorted(self._members, key=lambda member: member.stepped)
            if (stage := self.stage(member)) is not None
        ]
        if not waiting:
            return None
        stage, _ = min(waiting, key=lambda pair: self._turns.get(pair[0].work, 0))
        return stage, [member for needed, member in waiting if needed == stage][: stage.most]

    async def _step(self, stage: Stage[M, R], members: list[M]) -> None:
        self.steps += 1
        self._turns[stage.work] = self.steps
        began = time.perf_counter()
        for member in members:
            member.stepped = self.steps
        try:
            fresh = await asyncio.get_running_loop().run_in_executor(self._thread, stage.work, members)
        except Exception as error:
            self._fail(members, EngineError(f"a step failed: {error}", transient=True))
            return
        self.last, self.largest = len(members), max(self.largest, len(members))
        self.longest = max(self.longest, time.perf_counter() - began)
        for member, results in zip(members, fresh, strict=True):
            for result in results:
                member.ready.put_nowait(result)
            self._end(member)

    def _leave(self, member: M) -> None:
        if member in self._members:
            self._members.remove(member)

    def _end(self, member: M) -> None:
        if member.ended and member in self._members:
            self._leave(member)
            member.ready.put_nowait(None)

    def _fail(self, members: Sequence[M], error: Exception) -> None:
        for member in members:
            self._leave(member)
            member.ready.put_nowait(error)
