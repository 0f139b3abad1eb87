"""What a client does beside its event loop: mapping arenas and large copies, in two threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sidecar import arena
from sidecar.arena import Mapping
from sidecar.errors import Denied

T = TypeVar("T")


class Mapper:
    """Descriptors are closed whatever happens: work that was begun is finished, even if nobody waits for it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "sidecar")
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, work: Callable[[], object]) -> None:
        """Runs `work` in a thread. A cancelled caller leaves it running to its end."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work` in a thread, unless it is cancelled before a thread is free."""
        return self._threads.submit(work)

    async def writable(self, descriptor: int, size: int) -> Mapping:
        """Takes over the descriptor. Raises OSError, Denied."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _writable, descriptor, size)

    async def read_only(self, descriptor: int, size: int) -> Mapping:
        """Takes over the descriptor. Raises OSError, and Denied for an arena that others could change or shrink."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _read_only, descriptor, size)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)


def _writable(descriptor: int, size: int) -> Mapping:
    mapping = Mapping(descriptor, size, writable=True)
    mapping.populate(writable=True)
    return mapping


def _read_only(descriptor: int, size: int) -> Mapping:
    sealed = arena.is_sealed(descriptor)
    mapping = Mapping(descriptor, size, writable=False)
    if not sealed:
        raise Denied("the arena is not sealed")
    mapping.populate(writable=False)
    return mapping
