"""Signs of life for the items that a worker holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from broker.errors import Disconnected
from broker.pull import Delivery
from cornstalk.loops import forever


class Keeper:
    """Tells the broker, each third of ack_wait, that the held items are still worked on."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._held: set[Delivery] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def hold(self, delivery: Delivery) -> AsyncIterator[None]:
        if self._task is None:
            self._task = asyncio.create_task(forever(self._tick, "signs of life"))
        self._held.add(delivery)
        try:
            yield
        finally:
            self._held.discard(delivery)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _tick(self) -> None:
        await asyncio.sleep(self._every)
        for delivery in list(self._held):
            with suppress(Disconnected):  # an outage: what is held too long comes again
                await delivery.in_progress()
