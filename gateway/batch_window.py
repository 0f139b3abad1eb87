"""How many rows of an app a gateway has under way, and whose turn is next: by priority, and among equals in turn."""

from __future__ import annotations

import asyncio
import heapq
import secrets
import time
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from broker.connection import Broker, Subscription
from broker.errors import Disconnected
from broker.requests import Message
from broker.subjects import ALL_BATCH_HINTS, batch_hint
from cornstalk.loops import forever

ROWS: Final = 128
"""Rows of one app that a gateway has under way at most: few beside what the streams hold."""
FIRST: Final = 8
"""Rows with which it begins; each that ends makes room for one more, so that a new job is no burst for the others."""
SAY_EVERY: Final = 0.25
"""Seconds between two hints of a gateway whose rows wait."""
BELIEVE: Final = 1.0
"""Seconds that a hint of another gateway counts."""


class Waits(Struct, frozen=True):
    """A hint: at `gateway` rows of this priority wait."""

    gateway: str
    priority: int


_hint = msgspec.msgpack.Decoder(Waits)


class Window:
    """The rows of one app on this gateway. Soft: after a crash the next holder of each job counts anew."""

    def __init__(self, broker: Broker, app: str, me: str) -> None:
        self._broker, self._app, self._me = broker, app, me
        self._under_way = 0
        self._room = FIRST
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = 0
        self._elsewhere: dict[str, tuple[int, float]] = {}  # gateway -> (priority, until when it counts)
        self._someone_waits = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def take(self, priority: int) -> None:
        """Returns when a row may start; `give_back` when it has ended. May be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ticket += 1
        heapq.heappush(self._waiting, (-priority, self._ticket, future))
        self._grant()
        if not future.done():
            self._someone_waits.set()
            if self._ticking is None:
                self._ticking = asyncio.create_task(forever(self._tick, "rows that wait"))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        self._under_way -= 1
        self._room = min(ROWS, self._room + 1) if self._under_way else FIRST
        self._grant()

    def hear(self, waits: Waits) -> None:
        """Rows wait on another gateway; those that are worth less than the highest of them wait here as well."""
        if waits.gateway != self._me:
            self._elsewhere[waits.gateway] = (waits.priority, time.monotonic() + BELIEVE)

    def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def _grant(self) -> None:
        while (
            (priority := self._highest()) is not None and self._under_way < self._room and not self._outranked(priority)
        ):
            self._under_way += 1
            heapq.heappop(self._waiting)[2].set_result(None)

    def _highest(self) -> int | None:
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)  # cancelled
        return -self._waiting[0][0] if self._waiting else None

    def _outranked(self, priority: int) -> bool:
        now = time.monotonic()
        return any(other > priority and now < until for other, until in self._elsewhere.values())

    async def _tick(self) -> None:
        """While rows wait: says so, and looks whether those of others still do."""
        await self._someone_waits.wait()
        if (priority := self._highest()) is None:
            self._someone_waits.clear()
            return
        if not self._outranked(priority):
            with suppress(Disconnected):  # a hint
                waits = msgspec.msgpack.encode(Waits(self._me, priority))
                await self._broker.publish_core(batch_hint(self._app), waits)
        await asyncio.sleep(SAY_EVERY)
        self._grant()


class Windows:
    """The window of each app of this gateway, and what is heard from the other gateways."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._me = secrets.token_hex(8)
        self._windows: dict[str, Window] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self._broker.subscribe_core(ALL_BATCH_HINTS, self._hear)

    async def close(self) -> None:
        for window in self._windows.values():
            window.close()
        if self._subscription is not None:
            await self._subscription.close()

    def of(self, app: str) -> Window:
        if app not in self._windows:
            self._windows[app] = Window(self._broker, app, self._me)
        return self._windows[app]

    async def _hear(self, message: Message) -> None:
        try:
            waits = _hint.decode(message.data)
        except msgspec.MsgspecError:
            return  # not a gateway of this release
        if (window := self._windows.get(message.subject.rpartition(".")[2])) is not None:
            window.hear(waits)
