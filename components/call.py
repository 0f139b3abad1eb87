"""The Call that the worker hands to an engine: one item's inputs, outputs and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from components.engine import Block, Call, Cancelled, Piece
from components.outputs import Outputs
from cornstalk.messages import WorkItem

T = TypeVar("T")


class ItemCall:
    """Implements components.engine.Call over the broker and the sidecar. Dies with its attempt."""

    def __init__(self, item: WorkItem, attempt: str, inputs: dict[str, Any], outputs: Outputs) -> None:
        self.request, self.node, self.gen, self.attempt = item.request, item.node, item.gen, attempt
        self.seed, self.deadline = item.seed, item.deadline
        self.inputs, self.prior, self.prior_tokens = inputs, outputs.prior, outputs.prior_tokens
        self.cancelled = asyncio.Event()
        self.tokens_in = self.tokens_out = 0
        self._outputs = outputs
        self._reason = ""
        self._stop: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Callable[[Call], Awaitable[T]]) -> T:
        """What `work` answers. Raises Cancelled as soon as it checks, or stops it where it waits."""
        self.check()
        self._task = asyncio.current_task()
        try:
            return await work(self)
        except asyncio.CancelledError:
            if self._stop is None or self._task is None:
                raise
            self._task.uncancel()
            raise Cancelled(self._reason) from None
        finally:
            if self._stop is not None:
                self._stop.cancel()

    def cancel(self, reason: str, grace: float) -> None:
        """From the event loop. After `grace` seconds without a check the engine is cancelled where it waits.

        A call that has not begun to run never does.
        """
        if self.cancelled.is_set():
            return
        self._reason = reason
        self.cancelled.set()
        if self._task is not None:
            self._stop = asyncio.get_running_loop().call_later(grace, self._task.cancel)

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled(self._reason)

    async def emit(self, output: str, piece: Piece, tokens: Sequence[int] = ()) -> None:
        self.check()
        await self._outputs.emit(output, piece, tokens)

    async def tensor(self, output: str, array: Any) -> None:
        self.check()
        await self._outputs.tensor(output, array)

    def reserve(self, output: str, shape: tuple[int, ...], dtype: str) -> AbstractAsyncContextManager[Block]:
        self.check()
        return self._outputs.reserve(output, shape, dtype)
