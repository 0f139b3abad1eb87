"""Items this worker holds: kept in progress, cancelled when nobody wants them, at most `slots` running at once."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from broker.connection import Broker, Subscription
from broker.errors import Disconnected
from broker.facts import Facts
from broker.pull import Delivery
from broker.requests import Message
from broker.subjects import ALL_CANCEL_HINTS
from broker.subjects import cancel as cancel_subject
from broker.subjects import finish as finish_subject
from components.call import ItemCall
from components.engine import Engine
from cornstalk.messages import Lane

log = logging.getLogger(__name__)

REMEMBERED: Final = 10_000
"""Requests whose cancel hint is remembered for items still queued; older ones are found by the stored fact."""
STOP_GRACE: Final = 0.25
"""Seconds beyond its longest step that an engine has to notice a cancel."""


class Slots:
    """At most `total` items run; an interactive one never waits behind a batch one; batch leaves one slot free."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.running: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._waiting: list[tuple[int, int, asyncio.Future[None], Lane]] = []
        self._ticket = 0

    @asynccontextmanager
    async def take(self, lane: Lane) -> AsyncIterator[None]:
        if self._waiting or not self._free(lane):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ticket += 1
            heapq.heappush(self._waiting, (lane == "batch", self._ticket, future, lane))
            self._grant()
            await future
        else:
            self.running[lane] += 1
        try:
            yield
        finally:
            self.running[lane] -= 1
            self._grant()

    def _free(self, lane: Lane) -> bool:
        limit = self.total if lane == "interactive" else max(1, self.total - 1)
        return sum(self.running.values()) < self.total and (lane == "interactive" or self.running["batch"] < limit)

    def _grant(self) -> None:
        while self._waiting:
            _, _, future, lane = self._waiting[0]
            if not future.done():
                if not self._free(lane):
                    return
                self.running[lane] += 1
                future.set_result(None)
            heapq.heappop(self._waiting)


class Keeper:
    """Tells the broker, each third of ack_wait, that the held items are still worked on."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._held: set[Delivery] = set()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def hold(self, delivery: Delivery) -> AsyncIterator[None]:
        if self._task is None:
            self._task = asyncio.create_task(self._tick())
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
        while True:
            await asyncio.sleep(self._every)
            for delivery in list(self._held):
                with suppress(Disconnected):  # an outage: what is held too long comes again
                    await delivery.in_progress()


class Cancels:
    """Turns cancel hints into cancelled calls, after a look at the stored fact. A lost hint costs only work."""

    def __init__(self, broker: Broker, facts: Facts, engine: Engine) -> None:
        self._broker, self._facts, self._engine = broker, facts, engine
        self._calls: dict[str, set[ItemCall]] = {}
        self._hinted: OrderedDict[str, None] = OrderedDict()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self._broker.subscribe_core(ALL_CANCEL_HINTS, self._hint)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()

    async def ended(self, request: str) -> bool:
        """Is the request cancelled or ended, as stored? Asks only for requests that a hint named."""
        return request in self._hinted and await self._stored(request)

    @asynccontextmanager
    async def watch(self, call: ItemCall) -> AsyncIterator[None]:
        """Cancels `call` by hint, or with reason "expired" at its deadline."""
        loop = asyncio.get_running_loop()
        self._calls.setdefault(call.request, set()).add(call)
        timer = loop.call_later(max(0.0, call.deadline - time.time()), self._cancel, call, "expired")
        try:
            yield
        finally:
            timer.cancel()
            calls = self._calls[call.request]
            calls.discard(call)
            if not calls:
                del self._calls[call.request]

    async def _hint(self, message: Message) -> None:
        request = message.subject.rpartition(".")[2]
        self._hinted[request] = None
        if len(self._hinted) > REMEMBERED:
            self._hinted.popitem(last=False)
        if request in self._calls and await self._stored(request):
            for call in list(self._calls.get(request, ())):
                self._cancel(call, "cancelled")

    def _cancel(self, call: ItemCall, reason: str) -> None:
        call.cancel(reason, STOP_GRACE + self._engine.stats().get("longest_step_s", 0.0))

    async def _stored(self, request: str) -> bool:
        for subject in (finish_subject(request), cancel_subject(request)):
            if await self._facts.last(subject) is not None:
                return True
        return False
