"""Follows what is stored under one filter of a republished stream: complete, in stored order, each message once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from broker.connection import Broker, Subscription
from broker.errors import ReadTimeout
from broker.reads import headers_of, last_stored, page, place_of
from broker.reassembly import Reassembly
from broker.subjects import seen, stored_subject

LOOK_AGAIN: Final = 1.0
"""Seconds between looks: a tail that waits and has heard nothing since the one before reads, whatever it was told."""

_TOGETHER: Final = 0.05
"""Seconds: looks fall on multiples of it, so that those of many tails wake their process once."""

LIMIT: Final = 256
"""Live messages kept for a slow reader."""

LIMIT_BYTES: Final = 2 << 20

_PAGE: Final = 128
_READ_TIMEOUT: Final = 2.0
_PAUSE: Final = 0.05


class Entry(Struct, frozen=True):
    """A stored message as a tail hands it out."""

    subject: str
    seq: int
    data: bytes
    headers: dict[str, str] = {}


def as_it_is(entry: Entry) -> Entry:
    """What a tail makes of an entry for those who want no more."""
    return entry


T = TypeVar("T")


class Tail(Generic[T]):
    """One reader. Live messages are used as they come; gaps, outages and overflow are filled by reading.

    Survives restarts of the server. `next` may be cancelled: nothing is lost by it.
    """

    def __init__(
        self,
        broker: Broker,
        stream: str,
        filter_subject: str,
        after: int,
        made: Callable[[Entry], T],
        *,
        headers: bool = False,
    ) -> None:
        """`made`: what is handed out, of each entry. `headers`: whether entries have them; without, time is saved."""
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._stream = stream
        self._filter = filter_subject
        self._made = made
        self._headers = headers
        self._order: Reassembly[Entry] = Reassembly(after, LIMIT)
        self._kept_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._heard = False  # since the last look
        self._finishing = False
        self.closed = False
        self._subscription: Subscription | None = None
        self._remove: Callable[[], None] | None = None
        self._look_again: asyncio.TimerHandle | None = None

    async def next(self, patience: float = math.inf) -> T | None:
        """The next stored message; None after `close`, or after `finish` once there is no more.

        Raises TimeoutError when none came for `patience` seconds and up to a look more; Disconnected.
        """
        if self._subscription is None and not self.closed:
            await self._start()
        until = self._loop.time() + patience
        while not self.closed:
            if (entry := self._order.pop()) is not None:
                self._kept_bytes = max(0, self._kept_bytes - len(entry.data))
                return self._made(entry)
            self._kept_bytes = 0
            if self._order.missing:
                await self._read()
            elif self._finishing:
                return None
            elif self._loop.time() > until:
                raise TimeoutError
            else:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        return None

    def finish(self) -> None:
        """Nothing more will be stored: `next` ends with what is stored by now."""
        self._finishing = True
        self._lost()

    async def close(self) -> None:
        """Idempotent."""
        self.closed = True
        self._wake()
        if self._look_again is not None:
            self._look_again.cancel()
        if self._remove is not None:
            self._remove()
        if self._subscription is not None:
            await self._subscription.close()

    async def _start(self) -> None:
        self._remove = self._broker.on_reconnect(self._on_reconnect)
        self._subscription = await self._broker.listen(seen(self._filter), self._hear, on_lost=self._lost)
        if not self.closed:
            self._look_later()

    async def _read(self) -> None:
        """One page: the last one if it reaches what was stored when it was asked for. What comes later is heard."""
        start = self._order.begin()
        done = False
        try:
            newest = await self._newest()
            stored, last = await page(
                self._broker, self._stream, self._filter, start, timeout=_READ_TIMEOUT, size=_PAGE
            )
            lags = last and (stored[-1].seq if stored else start - 1) < newest
            self._order.page(((m.seq, Entry(m.subject, m.seq, m.data, m.headers)) for m in stored), last and not lags)
            done = True
            if lags:
                await asyncio.sleep(_PAUSE)
        except ReadTimeout:
            await asyncio.sleep(_PAUSE)
        finally:
            if not done:
                self._order.failed()

    async def _newest(self) -> int:
        """The newest sequence that a page must reach: in a cluster a replica that lags behind may answer."""
        newest = await last_stored(self._broker, self._stream, self._filter) if self._broker.clustered else None
        return newest.seq if newest is not None else 0

    def _hear(self, subject: str, data: bytes, block: bytes) -> None:
        self._heard = True
        if self._kept_bytes > LIMIT_BYTES:
            self._order.lost()
        else:
            seq, previous = place_of(block)
            self._kept_bytes += len(data)
            entry = Entry(stored_subject(subject), seq, data, headers_of(block) if self._headers else {})
            self._order.live(seq, previous, entry)
        self._wake()

    def _look(self) -> None:
        """One timer for the life of the tail, not one for each message it waits for."""
        self._look_later()
        if self._waiter is not None and not self._heard:
            self._lost()
        self._heard = False

    def _look_later(self) -> None:
        at = self._loop.time() + LOOK_AGAIN
        self._look_again = self._loop.call_at(at - at % _TOGETHER + _TOGETHER, self._look)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lost(self) -> None:
        self._order.lost()
        self._wake()

    async def _on_reconnect(self) -> None:
        self._lost()
