"""The WebSocket connections of this gateway: bounded, and told when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

CONNECTIONS: Final = 4096
"""Connections at once."""
DRAIN: Final = 5.0
"""Seconds that requests under way get to end when this gateway stops."""
CLOSE_WAIT: Final = 2.0
"""Seconds that sending a close frame may take."""


class Stoppable(Protocol):
    """A connection, as seen from here."""

    def stop(self) -> None:
        """Takes no new requests, and closes once those under way have ended."""

    def leave(self) -> None:
        """Closes now."""


class Sockets:
    """Soft state only."""

    def __init__(self, limit: int = CONNECTIONS) -> None:
        self._limit = limit
        self._open: set[Stoppable] = set()
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limit

    @contextmanager
    def held(self, connection: Stoppable) -> Iterator[None]:
        """Counts a connection while it lives."""
        self._open.add(connection)
        self._empty.clear()
        if self._stopping:
            connection.stop()
        try:
            yield
        finally:
            self._open.discard(connection)
            if not self._open:
                self._empty.set()

    async def close(self, drain: float = DRAIN) -> None:
        """Sends every client elsewhere: at once if it waits for nothing, after `drain` seconds at the latest."""
        self._stopping = True
        for connection in list(self._open):
            connection.stop()
        if not await self._emptied(drain):
            for connection in list(self._open):
                connection.leave()
            await self._emptied(CLOSE_WAIT)

    async def _emptied(self, within: float) -> bool:
        try:
            await asyncio.wait_for(self._empty.wait(), within)
        except TimeoutError:
            return False
        return True
