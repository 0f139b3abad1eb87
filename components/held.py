"""Items this worker holds: kept in progress, cancelled when nobody wants them, at most `slots` running at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
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
SHARE: Final = 18
"""One start of so many is a batch item's while one waits: 5 % are promised, also of a stretch that begins badly."""
BURST: Final = 3
"""Turns of SHARE starts for which what batch got before counts."""
KEPT: Final = 0.05
"""Seconds that a slot of an interactive item is kept for the next one before batch may have it."""


class Slots:
    """At most `total` items run. Interactive ones go first, batch ones take what is left but never the last slot.

    What is left are not the slots that interactive items used within the last KEPT seconds: who was answered just now
    may ask again at once. Where nothing is left batch still gets one of SHARE starts while an item of it waits. What
    it got before counts, for BURST such turns: so a burst of interactive work is not held up for batch at each turn.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.running: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._waiting: dict[Lane, deque[asyncio.Future[None]]] = {"interactive": deque(), "batch": deque()}
        self._passed = 0  # interactive starts while batch waited, less SHARE - 1 for each batch start
        self._used: deque[tuple[float, int]] = deque()  # (until when, interactive items then), fewer each time

    @asynccontextmanager
    async def take(self, lane: Lane) -> AsyncIterator[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append(future)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(lane)
            raise
        try:
            yield
        finally:
            self._give_back(lane)

    def blocking(self, lane: Lane) -> tuple[Lane, ...]:
        """The lanes whose running items keep `lane` from a slot; none if there is one for it."""
        if sum(self.running.values()) >= self.total:
            return ("interactive", "batch")
        return ("batch",) if lane == "batch" and self.running["batch"] >= max(1, self.total - 1) else ()

    def wanted(self, lane: Lane) -> bool:
        """Does an item of `lane` wait for a slot?"""
        return self._wants(lane)

    def _give_back(self, lane: Lane) -> None:
        if lane == "interactive":
            self._note_use()
        self.running[lane] -= 1
        self._grant()

    def _grant(self) -> None:
        while (lane := self._next()) is not None:
            self.running[lane] += 1
            if lane == "batch":
                self._passed = max(self._passed - (SHARE - 1), -BURST * (SHARE - 1))
            elif self._wants("batch"):
                self._passed = min(self._passed + 1, SHARE - 1)
            self._waiting[lane].popleft().set_result(None)

    def _next(self) -> Lane | None:
        """Who is to start now."""
        if sum(self.running.values()) >= self.total:
            return None
        batch, most = self._wants("batch"), max(1, self.total - 1)
        if batch and self._passed >= SHARE - 1 and self.running["batch"] < most:
            return "batch"
        if self._wants("interactive"):
            return "interactive"
        used = self._recently_used()
        return "batch" if batch and self.running["batch"] < min(most, self.total - used) else None

    def _wants(self, lane: Lane) -> bool:
        waiting = self._waiting[lane]
        while waiting and waiting[0].done():
            waiting.popleft()  # cancelled
        return bool(waiting)

    def _note_use(self) -> None:
        """An interactive item ends: what it and those beside it used counts for a while."""
        loop, used = asyncio.get_running_loop(), self.running["interactive"]
        while self._used and self._used[-1][1] <= used:
            self._used.pop()
        self._used.append((loop.time() + KEPT, used))
        loop.call_later(KEPT, self._grant)

    def _recently_used(self) -> int:
        now = asyncio.get_running_loop().time()
        while self._used and self._used[0][0] <= now:
            self._used.popleft()
        return max(self.running["interactive"], self._used[0][1] if self._used else 0)


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
