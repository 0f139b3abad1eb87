"""Follows what is stored under one filter of a republished stream: complete, in stored order, each message once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.connection import Broker, Subscription
from broker.errors import ReadTimeout
from broker.reads import Stored, page, stored_of
from broker.reassembly import Reassembly
from broker.requests import Message
from broker.subjects import seen

LOOK_AGAIN: Final = 1.0
"""Seconds after which a quiet tail reads, whatever it was told."""

LIMIT: Final = 256
"""Live messages kept for a slow reader."""

LIMIT_BYTES: Final = 2 << 20

_PAGE: Final = 128
_READ_TIMEOUT: Final = 2.0
_PAUSE: Final = 0.05


class Tail:
    """One reader. Live messages are used as they come; gaps, outages and overflow are filled by reading.

    Survives restarts of the server. `next` may be cancelled: nothing is lost by it.
    """

    def __init__(self, broker: Broker, stream: str, filter_subject: str, after: int) -> None:
        self._broker = broker
        self._stream = stream
        self._filter = filter_subject
        self._order: Reassembly[Stored] = Reassembly(after, LIMIT)
        self._kept_bytes = 0
        self._wake = asyncio.Event()
        self._read_at = 0.0
        self._finishing = False
        self.closed = False
        self._subscription: Subscription | None = None
        self._remove: Callable[[], None] | None = None

    async def next(self) -> Stored | None:
        """The next stored message; None after `close`, or after `finish` once there is no more. Raises Disconnected."""
        if self._subscription is None and not self.closed:
            await self._start()
        while not self.closed:
            if (stored := self._order.pop()) is not None:
                self._kept_bytes = max(0, self._kept_bytes - len(stored.data))
                return stored
            self._kept_bytes = 0
            if self._order.missing:
                await self._read()
            elif self._finishing:
                return None
            else:
                await self._await_news()
        return None

    def finish(self) -> None:
        """Nothing more will be stored: `next` ends with what is stored by now."""
        self._finishing = True
        self._lost()

    async def close(self) -> None:
        """Idempotent."""
        self.closed = True
        self._wake.set()
        if self._remove is not None:
            self._remove()
        if self._subscription is not None:
            await self._subscription.close()

    async def _start(self) -> None:
        self._remove = self._broker.on_reconnect(self._on_reconnect)
        self._subscription = await self._broker.subscribe_core(seen(self._filter), self._on_message, on_lost=self._lost)

    async def _read(self) -> None:
        start = self._order.begin()
        done = False
        try:
            stored, last = await page(
                self._broker, self._stream, self._filter, start, timeout=_READ_TIMEOUT, size=_PAGE
            )
            self._order.page(((message.seq, message) for message in stored), last)
            done = True
        except ReadTimeout:
            await asyncio.sleep(_PAUSE)
        finally:
            if not done:
                self._order.failed()
        self._read_at = asyncio.get_running_loop().time()

    async def _await_news(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout_at(self._read_at + LOOK_AGAIN):
                await self._wake.wait()
        except TimeoutError:
            self._order.lost()

    async def _on_message(self, message: Message) -> None:
        previous = int((message.headers or {}).get("Nats-Last-Sequence", 0))
        if self._kept_bytes > LIMIT_BYTES:
            self._order.lost()
        else:
            stored = stored_of(message)
            self._kept_bytes += len(stored.data)
            self._order.live(stored.seq, previous, stored)
        self._wake.set()

    def _lost(self) -> None:
        self._order.lost()
        self._wake.set()

    async def _on_reconnect(self) -> None:
        self._lost()
