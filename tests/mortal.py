"""Parts of this process that die as processes do: at any of their awaits, with all their tasks, connection cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from broker.connection import Broker
from broker.server import Server

T = TypeVar("T")

_of: ContextVar[Life | None] = ContextVar("life", default=None)


class Life:
    """What runs in it has a connection of its own. `dies_at`: how many times its tasks go on before the end; None: it
    lives until `end`. What it had not sent by then is never sent, and nothing of it goes on.
    """

    def __init__(self, server: Server, name: str, dies_at: int | None = None) -> None:
        self.name, self.dies_at, self.steps = name, dies_at, 0
        self.dead = False
        self._server = server
        self._broker: Broker | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, run: Callable[[Broker], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Runs it, cancelled at the end of this life."""
        asyncio.get_running_loop().set_task_factory(_task)
        token = _of.set(self)
        try:
            return asyncio.create_task(self._run(run))
        finally:
            _of.reset(token)

    def end(self) -> None:
        """Idempotent. Who connects yet ends with the next step."""
        if self.dead or self._broker is None:
            self.dies_at = 1
            return
        self.dead = True
        if self._broker.nc._transport is not None:
            self._broker.nc._transport._io_writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def gone(self) -> None:
        """Once it has ended: no task of it is left. AssertionError if one does not end."""
        while left := [task for task in self._tasks if not task.done()]:
            done, _ = await asyncio.wait(left, timeout=10)
            assert done, f"these outlive {self.name}: {left}"

    def goes_on(self) -> bool:
        """Whether a task of it may take its next step."""
        if self._broker is not None:
            self.steps += 1
            if self.steps == self.dies_at:
                self.end()
        return not self.dead

    async def _run(self, run: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        self._broker = await Broker.connect(self._server.url, name=self.name, token=self._server.token)
        return await run(self._broker)


class _Mortal(Coroutine[Any, Any, Any]):
    """A coroutine of a life: cancelled wherever it stands once that has ended, however often it catches that."""

    def __init__(self, life: Life, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._life, self._coroutine = life, coroutine

    def send(self, value: Any) -> Any:
        if self._life.goes_on():
            return self._coroutine.send(value)
        return self._coroutine.throw(asyncio.CancelledError())

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
    """Tasks belong to the life of whoever starts them."""
    life = _of.get() if context is None else context.get(_of)
    if life is None:
        return asyncio.Task(coroutine, loop=loop, context=context)
    task: asyncio.Task[Any] = asyncio.Task(_Mortal(life, coroutine), loop=loop, context=context)
    life._tasks.append(task)
    if life.dead:
        task.cancel()
    return task
