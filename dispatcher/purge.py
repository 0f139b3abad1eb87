"""Removes finished requests from RUNS and CHUNKS once nobody may resume them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from broker.errors import BrokerError
from broker.facts import Facts
from dispatcher.releases import Releases
from dispatcher.timers import Timers

log = logging.getLogger(__name__)

PAUSE: Final = 0.002
"""Seconds between two purges, so that at most 500 a second are asked of the server."""
AGAIN: Final = 5.0
"""Seconds until a purge that failed is tried again."""


class Purger:
    """Purges each finished request after `grace` seconds, or its own resume grace if that is longer.

    Its tensors are released once more then: the first release was a hint that may have been lost, and an attempt that
    came late may have committed after it. `run.<r>.end` stays as tombstone until its TTL. The list is memory only,
    rebuilt from the stored ends when a dispatcher becomes active (recovery.py); what is never purged goes by TTL.
    """

    def __init__(self, facts: Facts, grace: float, releases: Releases) -> None:
        self._facts, self._grace, self._releases = facts, grace, releases
        self._timers = Timers()

    def add(self, request: str, resume_grace: float, finished: float | None = None) -> None:
        """`finished`: when its end was stored, Unix seconds; now by default."""
        at = (time.time() if finished is None else finished) + max(self._grace, resume_grace)
        if request not in self._timers:
            self._timers.add(request, at)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            request = await self._timers.due()
            self._releases.whole(request)
            try:
                await self._facts.purge(request)
            except BrokerError as error:
                log.warning("request %s not purged yet: %s", request, type(error).__name__)
                self._timers.add(request, time.time() + AGAIN)
            await asyncio.sleep(PAUSE)
