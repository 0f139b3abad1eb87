"""Looks at what others hold, remembered for a moment: however many ask, the server is asked four times a second."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FRESH: Final = 0.25
"""Seconds that a look holds."""


class Looks(Generic[T]):
    """The answer for each name. Who asks while another asks waits for the same answer. Soft state only."""

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        """`ask`: looks now. What it raises is raised by the look, and nothing is remembered."""
        self._ask = ask
        self._known: dict[str, tuple[float, T]] = {}  # name -> (monotonic, answer)
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def at(self, names: Iterable[str]) -> list[T]:
        """In the order of the names."""
        return await asyncio.gather(*map(self._look, names))

    async def _look(self, name: str) -> T:
        async with self._asking[name]:
            known = self._known.get(name)
            if known is None or time.monotonic() - known[0] > FRESH:
                answer = await self._ask(name)
                known = self._known[name] = (time.monotonic(), answer)
            return known[1]
