"""Room for one more row: rows wait at the door, as requests are refused there, so that none is stuck in the middle."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

from broker.connection import Broker
from broker.subjects import CHUNKS, RUNS, UPLOADS
from broker.topology import share_in_use
from cornstalk.errors import Refused
from gateway.admission import FRESH, FULL, Admission

STREAMS: Final = (RUNS, CHUNKS, UPLOADS)
LOOK_EVERY: Final = 0.25
"""Seconds between two looks of a row that waits."""


class Room:
    """Half of each queue and stream is for what is under way and for interactive work. A look counts for a moment."""

    def __init__(self, broker: Broker, admission: Admission) -> None:
        self._broker, self._admission = broker, admission
        self._looked = 0.0
        self._used = 0.0

    async def wait(self, components: tuple[str, ...]) -> None:
        """Returns when there is room. Raises BrokerError."""
        while True:
            try:
                await self._admission.check(components, "batch", math.inf)
                if await self._in_use() <= FULL:
                    return
            except Refused:
                pass
            await asyncio.sleep(LOOK_EVERY)

    async def _in_use(self) -> float:
        """Of the fullest stream, 0 to 1."""
        if time.monotonic() - self._looked > FRESH:
            self._used = max(await asyncio.gather(*(share_in_use(self._broker, stream) for stream in STREAMS)))
            self._looked = time.monotonic()
        return self._used
