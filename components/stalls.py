"""The deadlock of streams: every slot is held by a reader whose producer died, and the producer waits for a slot.

Seen from one worker: all its slots are taken, and whoever has one waits for a piece that does not come. Then the worker
asks for one item more than it has slots for. If one comes, the reader that waits longest gives its slot up and is
parked; the next piece starts it again, after what it has stored. If none comes nothing happens: no slot was needed. So
nobody need find out which producer is dead, and a reader of a slow one is disturbed only for somebody else's work
(design section 6).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from broker.pull import PullLoop
from components.slots import Slots
from components.streams import StreamOf
from cornstalk.loops import forever
from cornstalk.messages import Lane, WorkItem

STALLED: Final = 1.0
"""Seconds without a piece after which a reader counts as stalled."""
LOOK_EVERY: Final = 0.25
PARKED: Final = 64
"""Readers that wait without a slot, in one worker."""


class Reader(Protocol):
    """The inputs of an item that runs."""

    def longest_waited(self) -> StreamOf | None: ...


class Stalls:
    """Watches the readers of one worker. A crash loses no more than their attempts: their items are delivered again."""

    def __init__(self, slots: Slots, pulls: Mapping[Lane, PullLoop]) -> None:
        self._slots, self._pulls = slots, pulls
        self._credits = {lane: pull.credits for lane, pull in pulls.items()}
        self._readers: dict[Reader, Lane] = {}
        self._parked: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @contextmanager
    def watch(self, reader: Reader, lane: Lane) -> Iterator[None]:
        """While an item has its slot."""
        if self._task is None:
            self._task = asyncio.create_task(forever(self._look, "readers that wait"))
        self._readers[reader] = lane
        try:
            yield
        finally:
            del self._readers[reader]

    async def park(self, item: WorkItem, stream: StreamOf, ended: Callable[[], Awaitable[bool]]) -> bool:
        """Waits without a slot for the next piece, the end of the item's request, or its deadline.

        False if it is to be handed back instead: the worker drains, or too many are parked.
        """
        if sum(self._parked.values()) >= PARKED:
            return False
        self._parked[item.lane] += 1
        piece = asyncio.create_task(stream.next_piece())
        try:
            while not (self._closing or piece.done() or time.time() > item.deadline or await ended()):
                await asyncio.wait([piece], timeout=LOOK_EVERY)
        finally:
            self._parked[item.lane] -= 1
            piece.cancel()
            await asyncio.gather(piece, return_exceptions=True)
        return not self._closing

    async def close(self) -> None:
        """Parked readers are handed back."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        await asyncio.sleep(LOOK_EVERY)
        for lane, pull in self._pulls.items():
            stalled = self._stalled(lane)
            credits = self._credits[lane] + self._parked[lane] + bool(stalled)
            if pull.credits != credits:
                pull.set_credits(credits)
            if stalled and self._slots.wanted(lane):
                await stalled[0].give_up()

    def _stalled(self, lane: Lane) -> list[StreamOf]:
        """What the items in the way of `lane` wait for, the longest first; empty if one of them does not wait."""
        blocking = self._slots.blocking(lane)
        readers = [reader.longest_waited() for reader, at in self._readers.items() if at in blocking]
        stalled = [stream for stream in readers if stream is not None and stream.waited > STALLED]
        if len(stalled) < sum(self._slots.running[at] for at in blocking):
            return []
        return sorted(stalled, key=lambda stream: -stream.waited)
