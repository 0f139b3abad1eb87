"""A work queue of a benchmark's own, and nothing round it: what JetStream itself takes."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from broker.connection import Broker
from broker.pull import Delivery, PullLoop
from broker.subjects import work, work_stream
from broker.topology import ensure_component

_NAME = "raw"


class RawQueue:
    """One item at a time: put, then taken as often as it is delivered. `async with RawQueue(broker) as queue`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._got: asyncio.Queue[Delivery] = asyncio.Queue()
        self._pull = PullLoop(broker, work_stream(_NAME), "interactive", self._take, credits=16)

    async def __aenter__(self) -> Self:
        await ensure_component(self._broker, _NAME)
        await self._pull.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pull.stop()

    async def put(self) -> None:
        """Stores an item of 400 bytes, as small as work items are."""
        await self._broker.publish_stored(work(_NAME, "interactive"), b"x" * 400, deadline=time.time() + 10)

    async def taken(self) -> Delivery:
        """The next delivery."""
        return await self._got.get()

    async def _take(self, delivery: Delivery) -> None:
        self._got.put_nowait(delivery)
