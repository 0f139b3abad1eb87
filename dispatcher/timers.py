"""Things that are due at a time, by key. In memory: their owner rebuilds them from the log."""

from __future__ import annotations

import asyncio
import heapq
import time


class Timers:
    """A heap of (Unix seconds, key) from which entries can be dropped. `due` waits for the earliest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def add(self, key: str, at: float) -> None:
        """Sets or moves a key."""
        if self._at.get(key) == at:
            return
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if self._heap[0] == (at, key):
            self._changed.set()

    def drop(self, key: str) -> None:
        """Idempotent. The heap is rebuilt when most of it is dropped, so it stays within twice the keys."""
        self._at.pop(key, None)
        if len(self._heap) > 64 + 2 * len(self._at):
            self._heap = [(at, key) for key, at in self._at.items()]
            heapq.heapify(self._heap)

    async def due(self) -> str:
        """Waits for the next key that is due, and takes it."""
        while True:
            self._changed.clear()
            while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            wait = self._heap[0][0] - time.time() if self._heap else None
            if wait is not None and wait <= 0:
                _, key = heapq.heappop(self._heap)
                del self._at[key]
                return key
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass
