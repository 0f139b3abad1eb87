"""What must be stored waits for room: a full stream is not the end of work that is done, or of a promise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broker.errors import QueueFull, StorageFull

T = TypeVar("T")

SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries while the stream is full."""


async def until_room(store: Callable[[], Awaitable[T]]) -> T:
    """What `store` returns, called again while it raises QueueFull or StorageFull. The deadline is its own."""
    pause = SHORTEST_PAUSE
    while True:
        try:
            return await store()
        except (QueueFull, StorageFull):
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(LONGEST_PAUSE, pause * 2)
