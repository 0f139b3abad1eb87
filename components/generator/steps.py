"""Windowed batching: what waits while a step runs, and has the same shape, is done together in the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Waiting(Generic[T, R]):
    shape: Hashable
    item: T
    done: asyncio.Future[R]


class Steps(Generic[T, R]):
    """Calls `work` in a thread of its own with up to `most` items of one shape, the longest waiting first."""

    def __init__(self, work: Callable[[Sequence[T]], Sequence[R]], most: int) -> None:
        self._work, self._most = work, most
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="steps")
        self._waiting: list[_Waiting[T, R]] = []
        self._stepper: asyncio.Task[None] | None = None
        self.last = 0  # items of the last step
        self.longest = 0.0  # seconds

    async def do(self, shape: Hashable, item: T) -> R:
        """Raises what `work` raises for this item alone."""
        waiting = _Waiting[T, R](shape, item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._stepper is None:
            self._stepper = asyncio.create_task(self._run())
        return await waiting.done

    async def close(self) -> None:
        """After the step that runs; who waits is cancelled."""
        if self._stepper is not None:
            self._stepper.cancel()
            await asyncio.wait([self._stepper])
        for waiting in self._waiting:
            waiting.done.cancel()
        self._thread.shutdown()

    async def _run(self) -> None:
        try:
            while group := self._next():
                await self._step(group)
        finally:
            self._stepper = None

    def _next(self) -> list[_Waiting[T, R]]:
        self._waiting = [w for w in self._waiting if not w.done.done()]  # who was cancelled waits no more
        group = [w for w in self._waiting if w.shape == self._waiting[0].shape][: self._most]
        self._waiting = [w for w in self._waiting if w not in group]
        return group

    async def _step(self, group: list[_Waiting[T, R]]) -> None:
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._work, [w.item for w in group])
        except Exception as error:
            if len(group) == 1:
                _tell(group[0], error)
                return
            for waiting in group:  # what breaks one spoils no other
                await self._step([waiting])
            return
        self.last, self.longest = len(group), max(self.longest, time.perf_counter() - began)
        for waiting, result in zip(group, results, strict=True):
            _tell(waiting, result)


def _tell(waiting: _Waiting[T, R], result: R | Exception) -> None:
    if waiting.done.done():
        return
    if isinstance(result, Exception):
        waiting.done.set_exception(result)
    else:
        waiting.done.set_result(result)
