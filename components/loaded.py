"""What engines on Python libraries have in common: weights are loaded by a thread, and work goes on beside the loop."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from components.continuous import ContinuousBatch
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask

T = TypeVar("T")
K = TypeVar("K", bound=UnitTask)
B = TypeVar("B", bound=ContinuousBatch[Any, Any])


class Loaded(ABC, Generic[K]):
    """An engine (components/engine.py) whose items are worked on one by one. No state survives its process."""

    threads: ClassVar[int] = 1
    """Of `off_loop`."""

    def __init__(self, task: K) -> None:
        self.task = task
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=type(self).__name__)
        self._longest = 0.0

    @abstractmethod
    def load(self) -> None:
        """In a thread. Raises SetupError, and ImportError for what the extra `models` brings."""

    async def start(self) -> None:
        """Raises SetupError."""
        try:
            await asyncio.to_thread(self.load)
        except ImportError as error:
            needs = getattr(self.task, "model", type(self.task).__name__)
            raise SetupError(f"{needs} needs {error.name}: pip install 'cornstalk[models]'") from error

    async def stop(self) -> None:
        self._pool.shutdown()

    def stats(self) -> dict[str, float]:
        return {"batch": 1.0, "longest_step_s": self._longest}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around what the model computes, in whichever thread."""
        began = time.perf_counter()
        yield
        self._longest = max(self._longest, time.perf_counter() - began)

    async def off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


class Batched(Loaded[K], Generic[K, B]):
    """One whose items are stepped together: `load` sets `batch`."""

    _batch: B | None = None

    @property
    def batch(self) -> B:
        assert self._batch is not None, "the engine was not started"
        return self._batch

    @batch.setter
    def batch(self, batch: B) -> None:
        self._batch = batch

    async def stop(self) -> None:
        if self._batch is not None:
            await self._batch.close()
        await super().stop()

    def stats(self) -> dict[str, float]:
        return super().stats() | ({"batch": 0.0} if self._batch is None else self._batch.stats())
