"""What is stored of a running job, as it is stored: which rows have ended and how, and that it was cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec

from broker.connection import Broker
from broker.reads import Stored, pages
from broker.subjects import BATCH, ROW_STATUS, ROW_USAGE, batch_results
from broker.tail import Entry, Tail, as_it_is
from cornstalk.messages import Usage
from gateway.batch_results import total

STATUSES: Final = ("done", "failed", "cancelled", "expired")

_usage = msgspec.json.Decoder(Usage)


class Tally:
    """Reads everything, then follows it: complete, in order. `async with`; a crash loses nothing.

    `cancelled` is set when a cancel is stored, `over` when every row has a result, or the job has a summary.
    """

    def __init__(self, broker: Broker, job: str, rows: int, on_row: Callable[[int], None]) -> None:
        """`on_row` is called with the number of each row whose result is stored, once."""
        self._broker, self._job, self._on_row = broker, job, on_row
        self.rows = rows
        self.ended: Counter[str] = Counter()
        self.usage = Usage()
        self.cancelled, self.over = asyncio.Event(), asyncio.Event()
        self.has_summary = False
        self._has = bytearray(rows)
        self.following: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        after = 0
        async for stored in pages(self._broker, BATCH, batch_results(self._job)):
            self._add(stored)
            after = stored.seq
        self._tail = Tail(self._broker, BATCH, batch_results(self._job), after, as_it_is, headers=True)
        self.following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.following.cancel()
        with suppress(asyncio.CancelledError):
            await self.following
        await self._tail.close()

    def has(self, row: int) -> bool:
        """Whether its result is stored."""
        return bool(self._has[row])

    def missing(self) -> list[int]:
        """Rows without a result, ascending."""
        return [row for row in range(self.rows) if not self._has[row]]

    async def _follow(self) -> None:
        while (stored := await self._tail.next()) is not None:
            self._add(stored)

    def _add(self, stored: Stored | Entry) -> None:
        match stored.subject.rpartition(".")[2]:
            case "cancel":
                self.cancelled.set()
            case "summary":
                self.has_summary = True
                self.over.set()
            case number if number.isdigit() and int(number) < self.rows and not self._has[int(number)]:
                self._add_row(int(number), stored)

    def _add_row(self, row: int, stored: Stored | Entry) -> None:
        self._has[row] = 1
        status = stored.headers.get(ROW_STATUS, "")
        self.ended[status if status in STATUSES else "failed"] += 1
        with suppress(msgspec.MsgspecError):  # not written by a gateway
            self.usage = total((self.usage, _usage.decode(stored.headers.get(ROW_USAGE, "{}"))))
        self._on_row(row)
        if sum(self.ended.values()) == self.rows:
            self.over.set()
