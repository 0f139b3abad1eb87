"""At most so many items of a worker run at once, shared between the lanes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cornstalk.messages import Lane

SHARE: Final = 18
"""One start of so many is a batch item's while one waits: 5 % are promised, also of a stretch that begins badly."""
BURST: Final = 1
"""Turns of SHARE starts for which what batch got before counts: for more, batch has less than its share of seconds."""
KEPT: Final = 0.5
"""Share of its time for which the slot of an interactive item is kept for the next one before batch may have it."""
SHORTEST_KEPT: Final = 0.05
LONGEST_KEPT: Final = 2.0
"""Seconds."""


class Draining(Exception):
    """Raised to who waits for a slot when the worker takes no more: the item has not started and is handed back."""


class Slots:
    """At most `total` items run. Interactive ones go first, batch ones take what is left but never the last slot.

    What is left are not the slots that interactive items used just now (KEPT): who was answered may ask again at once.
    Where nothing is left batch still gets one of SHARE starts while an item of it waits. What
    it got before counts, for BURST such turns: so a burst of interactive work is not held up for batch at each turn.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.running: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._waiting: dict[Lane, deque[asyncio.Future[None]]] = {"interactive": deque(), "batch": deque()}
        self._closed = False
        self._passed = 0  # interactive starts while batch waited, less SHARE - 1 for each batch start
        self._used: list[tuple[float, int]] = []  # (until when it counts, interactive items then)

    @asynccontextmanager
    async def take(self, lane: Lane) -> AsyncIterator[None]:
        if self._closed:
            raise Draining
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append(future)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(lane, 0.0)
            raise
        began = time.monotonic()
        try:
            yield
        finally:
            self._give_back(lane, time.monotonic() - began)

    def close(self) -> None:
        """No more items start; those that run go on."""
        self._closed = True
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(Draining())
            waiting.clear()

    def blocking(self, lane: Lane) -> tuple[Lane, ...]:
        """The lanes whose running items keep `lane` from a slot; none if there is one for it."""
        if sum(self.running.values()) >= self.total:
            return ("interactive", "batch")
        return ("batch",) if lane == "batch" and self.running["batch"] >= max(1, self.total - 1) else ()

    def wanted(self, lane: Lane) -> bool:
        """Does an item of `lane` wait for a slot?"""
        return self._wants(lane)

    def _give_back(self, lane: Lane, lasted: float) -> None:
        if lane == "interactive":
            self._note_use(min(LONGEST_KEPT, max(SHORTEST_KEPT, KEPT * lasted)))
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
        used = max(self.running["interactive"], self._recently_used())
        return "batch" if batch and self.running["batch"] < min(most, self.total - used) else None

    def _wants(self, lane: Lane) -> bool:
        waiting = self._waiting[lane]
        while waiting and waiting[0].done():
            waiting.popleft()  # cancelled
        return bool(waiting)

    def _note_use(self, kept: float) -> None:
        """An interactive item ends: what it and those beside it used counts for a while."""
        use = (time.monotonic() + kept, self.running["interactive"])
        self._used = [(until, used) for until, used in self._used if until > use[0] or used > use[1]] + [use]
        asyncio.get_running_loop().call_later(kept, self._forget_use, use)

    def _forget_use(self, use: tuple[float, int]) -> None:
        """By the timer, whatever the clock says: it may stand a rounding before, and nobody would look again."""
        if use in self._used:
            self._used.remove(use)
        self._grant()

    def _recently_used(self) -> int:
        return max((used for _, used in self._used), default=0)
